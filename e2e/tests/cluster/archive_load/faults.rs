//! What goes wrong under the load, one after the other: members, sidecars and the store. It notes when, and what the
//! archive tells of itself before it and meanwhile; others judge that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::api::LogParams;
use quorate_e2e::faults::processes;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, PUT_ASIDE, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::sleep;

use super::reached;
use crate::archive::{self, add_role, depose, leader, leader_records};

/// How long the cluster is left alone between two faults.
const BETWEEN_FAULTS: Duration = Duration::from_secs(3);
/// For how long the store hangs, is gone, or is slow.
const STORE_FAULT: Duration = Duration::from_secs(5);
/// For how long it is gone the first time: more comes then than an archive holds in memory (16 MiB).
const OUTAGE: Duration = Duration::from_secs(30);
/// A slow store stops for so long, goes on for so long, and so on.
const STUTTER: Duration = Duration::from_millis(200);
/// How often a fault has to come at least.
const TIMES: u32 = 2;
/// How often is looked whether the cluster is well enough for the next fault.
const LOOK: Duration = Duration::from_millis(250);

/// What happens to the cluster and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The first time, and then each other one, not until another member leads.
    LeaderKilled,
    /// The kubelet holds a second start back for 10 s, a third one for 20 s. In that time more comes than an archive goes on
    /// after (`MOST_BEHIND`): it begins a new generation, and another one has what lies between.
    SidecarKilled,
    /// It takes connections, and answers nothing.
    StoreHangs,
    /// It refuses connections.
    StoreGone,
    StoreSlow,
    /// No watch shows it, so a new generation begins.
    RoleAdded,
}

/// In this order.
const FAULTS: [Fault; 6] = [
    Fault::LeaderKilled,
    Fault::StoreHangs,
    Fault::SidecarKilled,
    Fault::StoreGone,
    Fault::RoleAdded,
    Fault::StoreSlow,
];

/// What the archive tells of itself.
#[derive(Clone, Copy, Debug)]
pub struct Reported {
    pub asked: Timestamp,
    /// Up to where all is in the store.
    pub head: i64,
    /// How far the cluster is, by how far the store is said to be behind.
    pub reached: i64,
}

impl Reported {
    /// Of all that tell it, and of the cluster's status, the furthest; demands that the store has as much already. It reads
    /// the store's files, so that the store itself need not answer.
    async fn now(db: &Cluster, gateway: &Gateway) -> Result<Self> {
        let reported = wait_for("the archive to tell how far it is", PATIENCE, async || {
            let asked = Timestamp::now();
            let status = db.view().await?.status().backup.map(|state| state.head_revision);
            let reports = archive::reports(db).await?;
            let head = |report: &Value| report["head"]["revision"].as_i64();
            let reached = |report: &Value| Some(head(report)? + report["lag"]["revisions"].as_i64()?);
            let told = || format!("{reports:?}");
            Ok(Self {
                asked,
                head: reports.values().filter_map(head).chain(status).max().with_context(told)?,
                reached: reports.values().filter_map(reached).max().with_context(told)?,
            })
        })
        .await?;
        let ends = ends(gateway).await?;
        ensure!(ends.contains(&reported.head), "{reported:?}, and the store has {ends:?}");
        Ok(reported)
    }
}

/// The last revisions of all that is in the store, as the manifests say.
async fn ends(gateway: &Gateway) -> Result<BTreeSet<i64>> {
    let mut ends = BTreeSet::new();
    for (part, field) in [("/full", "revision"), ("/m/", "to")] {
        // Folders of uploads come and go while they are looked through.
        let paths = wait_for("the names in the store", PATIENCE, async || gateway.objects(part)).await?;
        for path in paths {
            let manifest: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
            ends.insert(manifest[field].as_i64().with_context(|| format!("{}: {manifest}", path.display()))?);
        }
    }
    Ok(ends)
}

/// What has happened.
#[derive(Debug, Default)]
pub struct Disturbance {
    times: BTreeMap<Fault, u32>,
    /// From a moment up to which all was in the store, before a leader or its sidecar was killed, until all that had been
    /// written meanwhile was there as well.
    pub kills: Vec<RangeInclusive<Timestamp>>,
    /// The longest time for which the leader had no sidecar.
    pub without_sidecar: Duration,
    /// What the archive told before each kill, and while the store failed.
    pub reports: Vec<Reported>,
}

impl Disturbance {
    async fn happens(&mut self, fault: Fault, db: &Cluster, gateway: &mut Gateway) -> Result<()> {
        let times = self.times.get(&fault).copied().unwrap_or_default();
        match fault {
            Fault::LeaderKilled => {
                let (begin, leader) = self.about_to_kill(db, gateway).await?;
                if times.is_multiple_of(2) {
                    depose(db, &leader).await?;
                } else {
                    processes::kill_member(db.scene(), &leader).await?;
                }
                self.killed(db, begin).await?;
            }
            Fault::SidecarKilled => {
                let (begin, leader) = self.about_to_kill(db, gateway).await?;
                self.without_sidecar = self.without_sidecar.max(kill_sidecar(db, &leader).await?);
                self.killed(db, begin).await?;
            }
            Fault::StoreHangs => {
                gateway.pause(true)?;
                sleep(STORE_FAULT).await;
                self.reports.push(Reported::now(db, gateway).await?);
                gateway.pause(false)?;
            }
            Fault::StoreGone => {
                gateway.stop()?;
                sleep(if times == 0 { OUTAGE } else { STORE_FAULT }).await;
                self.reports.push(Reported::now(db, gateway).await?);
                if times == 0 {
                    is_put_aside(db).await?;
                }
                gateway.start_again().await?;
            }
            Fault::StoreSlow => self.reports.push(slow(db, gateway).await?),
            Fault::RoleAdded => add_role(db, times).await?,
        }
        self.times.insert(fault, times + 1);
        Ok(())
    }

    /// Waits until all is in the store, and notes what the archive tells of that; since when it was so, and who leads.
    async fn about_to_kill(&mut self, db: &Cluster, gateway: &Gateway) -> Result<(Timestamp, String)> {
        let begin = is_stored(db).await?;
        self.reports.push(Reported::now(db, gateway).await?);
        Ok((begin, leader(db).await?))
    }

    /// Waits until the archive has come over it.
    async fn killed(&mut self, db: &Cluster, begin: Timestamp) -> Result<()> {
        is_stored(db).await?;
        self.kills.push(begin..=Timestamp::now());
        Ok(())
    }

    fn has_all(&self) -> Result<()> {
        for fault in FAULTS {
            let times = self.times.get(&fault).copied().unwrap_or_default();
            ensure!(times >= TIMES, "{fault:?} only {times} times");
        }
        Ok(())
    }
}

/// One fault after the other, each when all is well again, until the load is over.
pub async fn disturb(db: &Cluster, gateway: &mut Gateway, over: &AtomicBool) -> Result<Disturbance> {
    let mut done = Disturbance::default();
    for fault in FAULTS.into_iter().cycle() {
        sleep(BETWEEN_FAULTS).await;
        if !are_well(db, over).await {
            break;
        }
        done.happens(fault, db, gateway).await.with_context(|| format!("{fault:?}"))?;
    }
    eprintln!("{:?}; for {:.1?} there was no sidecar", done.times, done.without_sidecar);
    done.has_all()?;
    Ok(done)
}

/// Waits until all members are well; not so once the load is over.
async fn are_well(db: &Cluster, over: &AtomicBool) -> bool {
    while !over.load(Ordering::Relaxed) {
        if db.view().await.is_ok_and(|view| view.status().ready_replicas == 3) {
            return true;
        }
        sleep(LOOK).await;
    }
    false
}

/// Waits until the archive has stored all that is written by now; when "now" was.
async fn is_stored(db: &Cluster) -> Result<Timestamp> {
    let now = Timestamp::now();
    let last = wait_for("how far etcd is", PATIENCE, async || db.ask(async |etcd| reached(etcd).await).await).await?;
    leader_records(db, None, last, PATIENCE).await?;
    Ok(now)
}

/// Kills the sidecar that records; how long it took until there was another one.
async fn kill_sidecar(db: &Cluster, leader: &str) -> Result<Duration> {
    let before = wait_for("a sidecar to kill", PATIENCE, async || archive::sidecar(db, leader).await).await?;
    processes::signal(before, Signal::KILL)?;
    let killed = Instant::now();
    wait_for("another sidecar", PATIENCE, async || {
        let after = archive::sidecar(db, leader).await?;
        ensure!(after != before, "it is still the same");
        Ok(())
    })
    .await?;
    Ok(killed.elapsed())
}

/// Demands that what comes to the leader's sidecar has been put aside.
async fn is_put_aside(db: &Cluster) -> Result<()> {
    let leader = leader(db).await?;
    let log = LogParams { container: Some("archive".to_owned()), ..LogParams::default() };
    let log = db.pods().logs(&leader, &log).await?;
    ensure!(log.contains(PUT_ASIDE), "{leader} holds all of an outage in memory:\n{log}");
    Ok(())
}

/// Makes the store slow for a while; what the archive told in the middle of that.
async fn slow(db: &Cluster, gateway: &Gateway) -> Result<Reported> {
    let stutter = async {
        let begun = Instant::now();
        while begun.elapsed() < STORE_FAULT {
            gateway.pause(true)?;
            sleep(STUTTER).await;
            gateway.pause(false)?;
            sleep(STUTTER).await;
        }
        anyhow::Ok(())
    };
    let told = async {
        sleep(STORE_FAULT / 2).await;
        Reported::now(db, gateway).await
    };
    let ((), told) = tokio::try_join!(stutter, told)?;
    Ok(told)
}
