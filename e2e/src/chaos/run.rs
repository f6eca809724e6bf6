//! One chaos run on a real cluster: create, load, disturb, let it come to rest, look at everything, judge. It brings up and
//! takes down nothing but its EtcdCluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use serde_json::json;

use super::book::Book;
use super::check::{self, Violation};
use super::clock::{Clock, Moment};
use super::history::{History, Trouble};
use super::inject::{Deed, Injector};
use super::leadership::renewals;
use super::load::Load;
use super::looks::Looks;
use super::operator_log::{OperatorLog, Said};
use super::schedule::{FIRST_SIZE, Schedule};
use crate::lab::Lab;
use crate::progress::{Progress, Step};
use crate::scene::{Cluster, Scene, Twice, View, Wish};

/// How soon the cluster has to be as asked for, once no fault is left: every node is Ready and the API server answers by
/// then. Another operator may have to take the Lease over first (15 s), and what was killed often may wait for the kubelet
/// (its back-off is 10 s, then 20 s, then 40 s).
pub const CONVERGES_WITHIN: Duration = Duration::from_secs(90);
/// How much longer for each minor version that it then still has to go: an image is tried on each member's node, up to
/// five members change one after the other, and etcd takes some seconds to move its own version.
pub const A_MINOR_WITHIN: Duration = Duration::from_mins(1);
/// How long the cluster is created at most, before anything was done to it.
const UNDISTURBED: Duration = Duration::from_mins(3);

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was to be done.
    pub schedule: Schedule,
    /// What was done.
    pub deeds: Vec<Deed>,
    /// What was recorded.
    pub history: History,
    /// What the operator said.
    pub operator_log: Vec<String>,
    /// When an operator took or renewed the Lease.
    pub renewals: Vec<Moment>,
    /// How long it took to converge, if it did.
    pub converged: Option<Duration>,
    /// What is wrong.
    pub violations: Vec<Violation>,
}

/// Runs a schedule in a scene.
pub async fn run(scene: &Scene, schedule: &Schedule, progress: &Progress) -> Result<Run> {
    let lab = Lab::from_env().context("chaos needs the local cluster")?;
    let mut step = progress.step(format_args!("seed {}", schedule.seed));
    let twice = Twice::watch(scene.namespace());
    let clock = Clock::start();
    step.note("creates the cluster");
    let cluster = created(scene, schedule).await?;
    let name = cluster.name();
    let wished = Arc::new(AtomicU8::new(FIRST_SIZE));
    let (log, book) = (OperatorLog::follow(&lab, name, clock), Book::open(&cluster).await?);
    let looks = Looks::new(&cluster, &book, clock, wished.clone());
    let over = Arc::new(AtomicBool::new(false));
    let looking = tokio::spawn(looks.clone().look_until(over.clone()));
    let load = Load::start(&cluster, &book, clock, schedule.seed).await?;
    let injector = Injector::new(lab.clone(), &cluster, &book, &looks, clock, wished);
    let deeds = injector.carry_out(schedule, load.recorder(), &mut step).await;
    let converged = converge(&lab, &cluster, &injector, &mut step).await;
    step.note("looks at everything");
    let mut history = load.finish().await?;
    over.store(true, Ordering::Relaxed);
    history.samples = looking.await.context("the eyes of the run were closed early")??;
    let Said { deeds: steps, lines: operator_log } = log.end().await?;
    history.deeds = steps;
    let renewals = renewals(lab.audit_log()?.lines(), &clock)?;
    if let Err(error) = &converged {
        history.troubles.push(Trouble::NotConverged(format!("{error:#}")));
    }
    if let Err(error) = twice.nothing_ran_twice() {
        history.troubles.push(Trouble::RanTwice(format!("{error:#}")));
    }
    step.note(format_args!("judges {} calls", history.calls.len()));
    let faults = schedule.lasts();
    let (history, violations) = tokio::task::spawn_blocking(move || {
        let mut violations = check::check(&history);
        violations.extend(check::idle(&history, faults));
        (history, violations)
    })
    .await?;
    let verdict = if violations.is_empty() { "nothing is wrong".to_owned() } else { told(&violations) };
    step.done(format_args!("{verdict}, {} calls, {} faults", history.calls.len(), deeds.len()));
    let (schedule, converged) = (schedule.clone(), converged.ok());
    Ok(Run { schedule, deeds, history, operator_log, renewals, converged, violations })
}

fn told(violations: &[Violation]) -> String {
    format!("{} violations", violations.len())
}

/// Its name is part of the scene's: the operator's log tells clusters apart by their names.
async fn created(scene: &Scene, schedule: &Schedule) -> Result<Cluster> {
    let unique: String = scene.namespace().chars().rev().take(6).collect::<Vec<_>>().into_iter().rev().collect();
    let wish = Wish::new(&format!("c{unique}"), FIRST_SIZE)
        .version(&schedule.version)
        .with("/etcd/snapshotCount", json!(schedule.snapshot_count))
        // The whole history is read back in the end.
        .with("/etcd/autoCompaction", json!({ "mode": "Periodic", "retention": "0" }));
    let cluster = scene.create(&wish).await?;
    let settled = tokio::time::timeout(UNDISTURBED, cluster.settles(FIRST_SIZE.into())).await;
    settled.map_err(|_| anyhow!("the undisturbed cluster took longer than {} s", UNDISTURBED.as_secs()))??;
    Ok(cluster)
}

/// Takes every fault back, and demands that the cluster becomes what is asked for: how long that took.
async fn converge(lab: &Lab, cluster: &Cluster, injector: &Injector, step: &mut Step) -> Result<Duration> {
    step.note("takes all faults back");
    lab.heal_all().await.context("failed to take all faults back")?;
    injector.wake().await?;
    step.note("waits for the cluster to converge");
    let since = tokio::time::Instant::now();
    let limit = CONVERGES_WITHIN + A_MINOR_WITHIN * minors_to_go(&cluster.view().await?);
    cluster.settles_within(injector.size().into(), limit).await.context("it did not converge")?;
    Ok(since.elapsed())
}

/// How many minor versions lie between what runs and what is wished.
fn minors_to_go(view: &View) -> u32 {
    let minor = |version: &str| version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    let (runs, wished) = (view.status().version.as_deref().and_then(minor), minor(&view.object.spec.version));
    runs.zip(wished).map_or(0, |(runs, wished)| runs.abs_diff(wished))
}
