//! One chaos run on a real cluster: create, load, disturb, let it come to rest, look at everything, judge. It brings up and
//! takes down nothing but its EtcdCluster.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::back_off;
use super::book::Book;
use super::check::{self, Violation};
use super::clock::{Clock, Moment};
use super::fault::minor;
use super::history::{History, Trouble};
use super::inject::{Deed, Injector};
use super::leadership::renewals;
use super::load::Load;
use super::looks::Looks;
use super::operator_log::{OperatorLog, Said};
use super::schedule::{FIRST_SIZE, Schedule};
use super::stalls::Stalls;
use super::standings::Standings;
use super::versions::UNKNOWN;
use crate::command::Command;
use crate::faults::operator::Operator;
use crate::lab::Lab;
use crate::progress::Progress;
use crate::scene::{Cluster, PATIENCE, Scene, Twice, View, Wish, wait_for};
use crate::workspace;

/// How soon the cluster has to be as asked for, once no fault is left: every node is Ready and the API server answers by
/// then. Another operator may have to take the Lease over first (15 s), and what was killed often may wait for the kubelet
/// (its back-off is 10 s, then 20 s, then 40 s; what it says that is longer is added). It is a bound for a machine that goes
/// on: as long as one stands still (its disk takes no write, or no process runs) is added, up to [`STILL_AT_MOST`].
pub const CONVERGES_WITHIN: Duration = Duration::from_secs(90);
/// The back-off of the kubelet that is part of that.
const BACK_OFF_WITHIN: Duration = Duration::from_secs(40);
/// How often it is asked for: the shortest one lasts as long.
const BACK_OFF_INTERVAL: Duration = Duration::from_secs(10);
/// How much longer for each minor version that it then still has to go: an image is tried on each member's node, up to
/// five members change one after the other, and etcd takes some seconds to move its own version.
pub const A_MINOR_WITHIN: Duration = Duration::from_mins(1);
/// How much is added for a machine that stands still at most: one that does so for longer can't tell anything.
pub const STILL_AT_MOST: Duration = Duration::from_mins(5);
/// How long the cluster is created at most, before anything was done to it.
const UNDISTURBED: Duration = Duration::from_mins(3);
/// How often all faults are taken back: a node that does not come back within two minutes is switched on once more.
const HEALS: u32 = 2;

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
    /// What git called the workspace when it began, from which the operator is built unless another was there.
    pub commit: String,
    /// When an operator took or renewed the Lease.
    pub renewals: Vec<Moment>,
    /// How long it took to converge, if it did.
    pub converged: Option<Duration>,
    /// What is wrong.
    pub violations: Vec<Violation>,
}

/// Runs a schedule in a scene. An error says that nothing could be begun; whatever goes wrong later is part of the run, with
/// all that was recorded until then.
pub async fn run(scene: &Scene, schedule: &Schedule, progress: &Progress) -> Result<Run> {
    let lab = Lab::from_env().context("chaos needs the local cluster")?;
    let mut step = progress.step(format_args!("seed {}", schedule.seed));
    let commit = commit_of(&workspace::root()).await;
    let twice = Twice::watch(scene.namespace());
    let clock = Clock::start();
    step.note("creates the cluster");
    let cluster =
        Box::pin(created(scene, schedule)).await.context("no fault was made yet: failed to create the cluster")?;
    let name = cluster.name();
    let wished = Arc::new(AtomicU8::new(FIRST_SIZE));
    let book = wait_for("the addresses of the members", PATIENCE, async || Book::open(&cluster).await).await;
    let book = book.context("no fault was made yet")?;
    let load = Load::start(&cluster, &book, clock, schedule.seed).await.context("no fault was made yet")?;
    // From here on nothing ends the run early, which would leave these at work.
    let log = OperatorLog::follow(&lab, name, clock);
    let looks = Looks::new(&cluster, &book, clock, wished.clone());
    let over = Arc::new(AtomicBool::new(false));
    let standings = Standings::new(&book, &looks, clock).look_until(over.clone());
    let looking = tokio::spawn(futures::future::join(looks.clone().look_until(over.clone()), standings));
    let injector = Injector::new(lab.clone(), &cluster, &book, &looks, clock, wished);
    let deeds = injector.carry_out(schedule, load.recorder(), &mut step).await;
    let mut troubles = Vec::new();
    step.note("takes all faults back");
    let converged = match Box::pin(healed(&lab, &injector)).await {
        Ok(()) => {
            step.note("waits for the cluster to converge");
            let converged = Box::pin(converge(&cluster, &injector)).await;
            converged.map_err(|error| Trouble::NotConverged(format!("{error:#}")))
        }
        Err(error) => Err(Trouble::Unfinished(format!("failed to take all faults back: {error:#}"))),
    };
    let converged = match converged {
        Ok(took) => Some(took),
        Err(trouble) => {
            troubles.push(trouble);
            None
        }
    };
    step.note("looks at everything");
    let mut history = load.finish().await;
    over.store(true, Ordering::Relaxed);
    let mut unfinished = |what: &str, error: anyhow::Error| {
        troubles.push(Trouble::Unfinished(format!("{what}: {error:#}")));
    };
    let looked = looking.await.map_err(anyhow::Error::from);
    match looked.and_then(|(samples, standings)| Ok((samples?, standings))) {
        Ok((samples, standings)) => (history.samples, history.standings) = (samples, standings),
        Err(error) => unfinished("the eyes of the run were closed early", error),
    }
    let said = log.end().await.unwrap_or_else(|error| {
        unfinished("the operator's log is lost", error);
        Said::default()
    });
    let Said { deeds: steps, lines: operator_log } = said;
    history.deeds = steps;
    if let Err(error) = twice.nothing_ran_twice() {
        troubles.push(Trouble::RanTwice(format!("{error:#}")));
    }
    history.troubles.extend(troubles);
    step.note(format_args!("judges {} calls", history.calls.len()));
    let history = Arc::new(history);
    let judged = history.clone();
    let judging = tokio::task::spawn_blocking(move || check::check(&judged));
    let mut violations = judging.await.unwrap_or_else(|error| {
        vec![Violation { check: check::Check::Complete, what: format!("the checks ended early: {error}") }]
    });
    violations.extend(check::of_little_worth(&history, schedule, &deeds));
    let verdict = if violations.is_empty() { "nothing is wrong".to_owned() } else { told(&violations) };
    step.done(format_args!("{verdict}, {} calls, {} faults", history.calls.len(), deeds.len()));
    let (schedule, history) = (schedule.clone(), Arc::unwrap_or_clone(history));
    Ok(Run { schedule, deeds, history, operator_log, commit, renewals: led(&lab, &clock), converged, violations })
}

fn told(violations: &[Violation]) -> String {
    format!("{} violations", violations.len())
}

/// What git calls what is in this folder. It takes no lock: others may be at work there.
async fn commit_of(folder: &Path) -> String {
    let git = Command::new("git").args(["--no-optional-locks", "describe", "--always", "--dirty"]).folder(folder);
    git.run().await.map_or_else(|_| UNKNOWN.to_owned(), |said| said.trim().to_owned())
}

/// When an operator led. Nothing is judged by it: it only explains when nobody could write.
fn led(lab: &Lab, clock: &Clock) -> Vec<Moment> {
    let led = lab.audit_log().map_err(anyhow::Error::from).and_then(|log| renewals(log.lines(), clock));
    led.unwrap_or_else(|error| {
        tracing::warn!("nobody knows when an operator led: {error:#}");
        Vec::new()
    })
}

/// Its name is part of the scene's: the operator's log tells clusters apart by their names.
async fn created(scene: &Scene, schedule: &Schedule) -> Result<Cluster> {
    let unique: String = scene.namespace().chars().rev().take(6).collect::<Vec<_>>().into_iter().rev().collect();
    let wish = Wish::new(&format!("c{unique}"), FIRST_SIZE)
        .version(&schedule.version)
        .with("/etcd/snapshotCount", json!(schedule.snapshot_count))
        // The whole history is read back in the end.
        .with("/etcd/autoCompaction", json!({ "mode": "Periodic", "retention": "0" }));
    let cluster = wait_for("the wish to be taken", PATIENCE, async || scene.create(&wish).await).await?;
    cluster.settles_within(FIRST_SIZE.into(), UNDISTURBED).await.context("nothing disturbed it")?;
    Ok(cluster)
}

/// Takes every fault back: all nodes are Ready then, the API server answers, and knows how many members are wanted.
async fn healed(lab: &Lab, injector: &Injector) -> Result<()> {
    let mut tries = 1;
    while let Err(error) = lab.heal_all().await {
        ensure!(tries < HEALS, "{:#}", anyhow::Error::from(error));
        tries += 1;
    }
    wait_for("the last wish to be taken", PATIENCE, async || injector.wake().await).await
}

/// Demands that the cluster becomes what is asked for: how long that took. While the machine stands still, nobody can do
/// anything: that time is added to the bound. So is what the kubelet says that it lets those wait whom the faults have
/// killed often, beyond what is in the bound; whoever ends once no fault is left waits at the operator's cost.
async fn converge(cluster: &Cluster, injector: &Injector) -> Result<Duration> {
    let (since, over) = (tokio::time::Instant::now(), Timestamp::now());
    let stalls = Stalls::watch(&workspace::cache().join("chaos"))?;
    let view = wait_for("a look at the cluster", PATIENCE, async || cluster.view().await).await?;
    let bound = CONVERGES_WITHIN + A_MINOR_WITHIN * minors_to_go(&view);
    let mut back_off = Duration::ZERO;
    loop {
        let limit = extended(bound, back_off, stalls.so_far());
        let slice = limit.saturating_sub(since.elapsed()).min(BACK_OFF_INTERVAL);
        let settled = cluster.settles_within(injector.size().into(), slice).await;
        let took = since.elapsed();
        let Err(error) = settled else { return Ok(took) };
        let seen = tokio::time::timeout(BACK_OFF_INTERVAL, Box::pin(backs_off(cluster, over))).await;
        back_off = back_off.max(seen.ok().and_then(Result::ok).unwrap_or_default());
        let stood_still = stalls.so_far();
        if took >= extended(bound, back_off, stood_still) {
            let within = format!("within {:.0} s", took.as_secs_f64());
            let still = format!("of which the machine stood still for {:.1} s", stood_still.as_secs_f64());
            let waited = format!("the kubelet's longest back-off was {} s", back_off.as_secs());
            return Err(error.context(format!("it did not converge {within}, {still}; {waited}")));
        }
    }
}

/// The back-off that holds the cluster up, of containers that had ended when the faults were over: the longest of a member's,
/// or the operator's, where none of its replicas runs.
async fn backs_off(cluster: &Cluster, over: Timestamp) -> Result<Duration> {
    let operator = Operator::new(cluster.scene().client());
    let (view, replicas) = tokio::try_join!(cluster.view(), operator.replicas())?;
    let operators = replicas.values().map(|pod| back_off::longest([pod], over)).min();
    Ok(back_off::longest(view.pods.values(), over).max(operators.unwrap_or_default()))
}

/// A bound where the kubelet has let somebody wait for so long, on a machine that has stood still for so long.
fn extended(bound: Duration, back_off: Duration, stood_still: Duration) -> Duration {
    bound + back_off.saturating_sub(BACK_OFF_WITHIN) + stood_still.min(STILL_AT_MOST)
}

/// How many minor versions lie between what runs and what is wished.
fn minors_to_go(view: &View) -> u32 {
    let status = view.status();
    let members = status.members.iter().filter_map(|member| member.version.as_deref());
    farthest(members.chain(status.version.as_deref()), &view.object.spec.version)
}

/// The same for the farthest of these versions. The status tells the lowest, beside which others may have gone ahead that
/// have to come back.
fn farthest<'a>(run: impl Iterator<Item = &'a str>, wished: &str) -> u32 {
    let Some(wished) = minor(wished) else { return 0 };
    run.filter_map(minor).map(|runs| runs.abs_diff(wished)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_workspace_is_called_by_its_commit_and_nothing_else_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(commit_of(folder).await, UNKNOWN);
        let git = async |arguments: &[&str]| Command::new("git").args(arguments).folder(folder).run().await.unwrap();
        git(&["init", "--quiet"]).await;
        let named = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgSign=false"];
        git(&[&named[..], &["commit", "--quiet", "--allow-empty", "--message", "first"]].concat()).await;
        assert_eq!(commit_of(folder).await, git(&["rev-parse", "--short", "HEAD"]).await.trim());
    }

    #[test]
    fn a_machine_that_stands_still_for_ever_is_not_waited_for_for_ever() {
        let still = Duration::from_secs(7);
        let extended = |still| extended(CONVERGES_WITHIN, Duration::ZERO, still);
        assert_eq!(extended(still), CONVERGES_WITHIN + still);
        assert_eq!(extended(Duration::from_hours(1)), CONVERGES_WITHIN + STILL_AT_MOST);
    }

    #[test]
    fn a_member_that_has_gone_ahead_has_to_come_back() {
        let to_go = |run: &[&str], wished: &str| farthest(run.iter().copied(), wished);
        assert_eq!(to_go(&["3.6.16", "3.7.3"], "3.6.16"), 1);
        assert_eq!(to_go(&["3.5.35", "3.6.16"], "3.7.3"), 2);
        assert_eq!((to_go(&["3.6.16"], "3.6.16"), to_go(&[], "3.6.16"), to_go(&["x"], "3.6.16")), (0, 0, 0));
    }

    #[test]
    fn only_a_back_off_beyond_the_one_in_the_bound_is_added() {
        let extended = |seconds| extended(CONVERGES_WITHIN, Duration::from_secs(seconds), Duration::ZERO);
        let added = [0, 40, 80, 300].map(|seconds| extended(seconds).saturating_sub(CONVERGES_WITHIN).as_secs());
        assert_eq!(added, [0, 0, 40, 260]);
    }
}
