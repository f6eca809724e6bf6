//! One chaos run on a real cluster: create, load, disturb, let it come to rest, look at everything, judge. It brings up and
//! takes down nothing but its EtcdCluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use serde_json::json;

use super::book::Book;
use super::check::{self, Violation};
use super::clock::Clock;
use super::history::{History, Trouble};
use super::inject::{Deed, Injector};
use super::load::Load;
use super::looks::Looks;
use super::operator_log::OperatorLog;
use super::schedule::{FIRST_SIZE, Schedule};
use crate::lab::Lab;
use crate::progress::{Progress, Step};
use crate::scene::{Cluster, Scene, Twice, Wish};

/// How soon the cluster has to be as asked for, once no fault is left: every node is Ready and the API server answers by
/// then. Another operator may have to take the Lease over first (15 s), and what was killed often may wait for the kubelet
/// (its back-off is 10 s, then 20 s, then 40 s).
pub const CONVERGES_WITHIN: Duration = Duration::from_secs(90);
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
    history.deeds = log.end().await?;
    if let Err(error) = &converged {
        history.troubles.push(Trouble::NotConverged(format!("{error:#}")));
    }
    if let Err(error) = twice.nothing_ran_twice() {
        history.troubles.push(Trouble::RanTwice(format!("{error:#}")));
    }
    step.note(format_args!("judges {} calls", history.calls.len()));
    let (history, violations) = tokio::task::spawn_blocking(move || {
        let violations = check::check(&history);
        (history, violations)
    })
    .await?;
    let verdict = if violations.is_empty() { "nothing is wrong".to_owned() } else { told(&violations) };
    step.done(format_args!("{verdict}, {} calls, {} faults", history.calls.len(), deeds.len()));
    Ok(Run { schedule: schedule.clone(), deeds, history, converged: converged.ok(), violations })
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
    if let Ok(settled) = tokio::time::timeout(CONVERGES_WITHIN, cluster.settles(injector.size().into())).await {
        return settled.map(|_| since.elapsed());
    }
    let seen = cluster.view().await.map_or_else(|error| format!("{error:#}"), |view| view.summary());
    Err(anyhow!("it did not converge within {} s; last seen: {seen}", CONVERGES_WITHIN.as_secs()))
}
