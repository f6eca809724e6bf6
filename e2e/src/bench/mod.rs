//! How fast Quorate is, each time as a ratio to a floor: what the same takes with hand-written pods on the same cluster,
//! measured in the same minutes, one after the other in turn. It measures, and says which rows are within what they are to
//! reach; nothing fails for being slow.

pub mod backup;
mod changes;
mod looks;
mod nodes;
mod pod_watch;
mod raw;
mod reach;
mod report;
mod rows;
mod stopwatch;

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::scene::Scene;
use crate::workspace;
use reach::{Figure, Reach};
use report::{Measured, Report};

/// How often each row is measured when nothing else is asked for: enough for a median that one slow run does not move.
pub const RUNS: u32 = 5;
/// How much more often what takes a second or two is measured. The kubelet asks each second whether a container is ready: of
/// such a row, five runs say more of that second's phase than of anything else.
const OFTEN: u32 = 3;
/// How much more often that is measured of which the wait for the kubelet's next look is the most, anything up to a second: one
/// run that just misses the look moves the median by as much as the runs are apart, which are spread over that second.
const MOST_OFTEN: u32 = 9;

/// The versions between which it is gone.
const V3_5: &str = "3.5.35";
/// The default of an EtcdCluster.
const V3_6: &str = "3.6.16";
/// The last one.
const V3_7: &str = "3.7.3";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// From the creation of a cluster of three to three healthy voters in Ready pods.
    #[value(name = "bootstrap-3")]
    Bootstrap,
    /// From the forced deletion of a pod to the member's return.
    #[value(name = "pod-deleted")]
    PodDeleted,
    /// From `kill -9` of a member's etcd to the member's return.
    #[value(name = "process-killed")]
    ProcessKilled,
    /// From the loss of a volume to three healthy voters.
    #[value(name = "volume-lost")]
    VolumeLost,
    /// From the forced deletion of all pods to three healthy voters.
    #[value(name = "all-pods-deleted")]
    AllPodsDeleted,
    /// From three to five voters.
    #[value(name = "scale-3-5")]
    ScaleUp,
    /// From five to three voters, pods and volumes gone.
    #[value(name = "scale-5-3")]
    ScaleDown,
    /// As bootstrap-3, with the leading operator's pod deleted once the seed runs.
    #[value(name = "operator-restart")]
    OperatorRestart,
    /// From 3.5 to 3.6: until three Ready voters run it.
    #[value(name = "upgrade-3.5-3.6")]
    UpgradeTo36,
    /// From 3.6 to 3.7: until three Ready voters run it.
    #[value(name = "upgrade-3.6-3.7")]
    UpgradeTo37,
    /// From 3.5 to 3.7 in one wish, at rest: until three Ready voters run it.
    #[value(name = "upgrade-3.5-3.7")]
    UpgradeOverTwo,
    /// The longest time without an acknowledged write on the way from 3.5 to 3.7.
    #[value(name = "upgrade-write-gap")]
    UpgradeWriteGap,
    /// From a change of settings to three healthy voters in new pods.
    #[value(name = "rolling-restart")]
    RollingRestart,
    /// From the deletion of a member's Node to three healthy voters on others.
    #[value(name = "node-lost")]
    NodeLost,
    /// The leading operator's resident memory with one cluster at rest.
    #[value(name = "operator-rss-mib")]
    Memory,
    /// The operator's writes within a minute with one cluster at rest, without its Lease.
    #[value(name = "idle-writes-per-minute")]
    IdleWrites,
}

impl Row {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Bootstrap
            | Self::PodDeleted
            | Self::ProcessKilled
            | Self::VolumeLost
            | Self::AllPodsDeleted
            | Self::ScaleUp
            | Self::ScaleDown
            | Self::OperatorRestart
            | Self::UpgradeTo36
            | Self::UpgradeTo37
            | Self::UpgradeOverTwo
            | Self::UpgradeWriteGap
            | Self::RollingRestart
            | Self::NodeLost => "s",
            Self::Memory => "MiB",
            Self::IdleWrites => "writes",
        }
    }

    fn reach(self) -> Option<Reach> {
        match self {
            Self::Bootstrap => Some(Reach::RatioAtMost(1.5)),
            Self::PodDeleted => Some(Reach::RatioAtMost(1.2)),
            Self::ProcessKilled => Some(Reach::RatioAtMost(1.1)),
            Self::VolumeLost | Self::UpgradeTo36 | Self::UpgradeTo37 | Self::RollingRestart => {
                Some(Reach::RatioAtMost(2.0))
            }
            Self::ScaleUp | Self::ScaleDown => Some(Reach::ValueAtMost(Figure::Median, 3.0)),
            Self::UpgradeWriteGap => Some(Reach::ValueAtMost(Figure::Max, 1.0)),
            Self::Memory => Some(Reach::ValueAtMost(Figure::Max, 30.0)),
            Self::IdleWrites => Some(Reach::ValueAtMost(Figure::Max, 0.0)),
            Self::AllPodsDeleted | Self::OperatorRestart | Self::UpgradeOverTwo | Self::NodeLost => None,
        }
    }

    async fn measure(self, scene: &Scene, runs: u32) -> Result<Measured> {
        match self {
            Self::Bootstrap => rows::bootstrap(scene, runs, false).await,
            Self::PodDeleted => rows::pod_deleted(scene, runs.saturating_mul(OFTEN)).await,
            Self::ProcessKilled => rows::process_killed(scene, runs.saturating_mul(MOST_OFTEN)).await,
            Self::VolumeLost => rows::volume_lost(scene, runs).await,
            Self::AllPodsDeleted => rows::all_pods_deleted(scene, runs).await,
            Self::ScaleUp => rows::scale_up(scene, runs).await,
            Self::ScaleDown => rows::scale_down(scene, runs).await,
            Self::OperatorRestart => rows::bootstrap(scene, runs, true).await,
            Self::UpgradeTo36 => changes::upgrade(scene, runs, V3_5, V3_6).await,
            Self::UpgradeTo37 => changes::upgrade(scene, runs, V3_6, V3_7).await,
            Self::UpgradeOverTwo => changes::upgrade_over_two(scene, runs, V3_5, V3_7).await,
            Self::UpgradeWriteGap => changes::write_gap(scene, runs, V3_5, V3_7).await,
            Self::RollingRestart => changes::rolling_restart(scene, runs).await,
            Self::NodeLost => nodes::lost(scene, runs).await,
            Self::Memory => rows::memory(scene, runs).await,
            Self::IdleWrites => rows::idle_writes(scene, runs).await,
        }
    }
}

/// Measures the rows asked for (all, if none are) on a cluster that has the operator, prints them as a table and writes
/// them to `target/bench/cluster.json`. Has to run where pods can be reached.
pub async fn run(only: &[Row], runs: u32) -> Result<()> {
    let rows = if only.is_empty() { Row::value_variants() } else { only };
    let mut report = Report::default();
    for row in rows {
        let name = row.name();
        eprintln!("{name}");
        let scene = Scene::open(&format!("bench-{}", name.replace('.', "-"))).await?;
        let measured = row.measure(&scene, runs).await.with_context(|| format!("failed to measure {name}"))?;
        scene.close().await?;
        report.add(name, row.unit(), row.reach(), &measured);
        // A later row that fails shall not cost the earlier ones.
        report.write(&workspace::root().join("target/bench/cluster.json"))?;
    }
    println!("{report}");
    Ok(())
}
