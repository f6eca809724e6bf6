//! Carries out a schedule on the real cluster: each fault in its time, and what lasts is taken back. A fault whose moment
//! is wrong is left out and says why; nothing here judges what the cluster makes of it.

mod machinery;
mod members;
mod wishes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::book::Book;
use super::clients::{Recorder, pretend};
use super::clock::{Clock, Moment};
use super::fault::{Fault, Scope};
use super::looks::Looks;
use super::schedule::{Event, Schedule};
use crate::faults::operator::Operator;
use crate::lab::Lab;
use crate::progress::Step;
use crate::scene::Cluster;

/// How long carrying out a fault may take beyond the time that it lasts: a node or an API server that starts needs some ten
/// seconds, on a machine whose disk stands still a minute and more, and what is cut short there is taken back only in the
/// end. What nobody takes back then has a longer one ([`acts_within`]).
const ACT_DEADLINE: Duration = Duration::from_mins(3);
/// How long a call that needs the API server may be tried: that may be away, by another fault.
const TRY_DEADLINE: Duration = Duration::from_secs(10);
/// The pause between two such tries.
const TRY_PAUSE: Duration = Duration::from_millis(300);
/// How often the progress is told.
const TELL_INTERVAL: Duration = Duration::from_millis(500);

/// What came of a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Carried {
    /// It was done: to whom.
    Done(String),
    /// Its moment was wrong: why.
    Skipped(String),
    /// It could not be done: why.
    Failed(String),
}

/// A fault and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deed {
    /// The fault and its time in the schedule.
    pub event: Event,
    /// When it began: what waits for its moment has not begun before.
    pub begun: Moment,
    /// When it was over.
    pub ended: Moment,
    /// What came of it.
    pub carried: Carried,
}

impl Deed {
    /// Whether it was done.
    pub fn is_done(&self) -> bool {
        matches!(self.carried, Carried::Done(_))
    }
}

/// A schedule that is being carried out, since when, and the record of what clients see meanwhile.
#[derive(Clone, Copy, Debug)]
struct UnderWay<'a> {
    schedule: &'a Schedule,
    started: Instant,
    recorder: &'a Recorder,
}

/// Who carries out a schedule.
pub struct Injector {
    lab: Lab,
    cluster: Cluster,
    operator: Operator,
    book: Book,
    looks: Looks,
    clock: Clock,
    /// How many members the user wants when the cluster is awake.
    size: AtomicU8,
    /// How many it wants now.
    wished: Arc<AtomicU8>,
    /// The nodes that can't be reached or don't run.
    away: Mutex<BTreeSet<String>>,
    /// When volumes were lost last. Whoever wants to lose some holds it meanwhile.
    last_loss: tokio::sync::Mutex<Option<Instant>>,
    done: AtomicU32,
}

impl std::fmt::Debug for Injector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injector").field("cluster", &self.cluster.name()).finish_non_exhaustive()
    }
}

impl Injector {
    /// One for this cluster of this lab, which has as many members now as `wished` says.
    pub fn new(lab: Lab, cluster: &Cluster, book: &Book, looks: &Looks, clock: Clock, wished: Arc<AtomicU8>) -> Self {
        Self {
            lab,
            operator: Operator::new(cluster.scene().client()),
            cluster: cluster.clone(),
            book: book.clone(),
            looks: looks.clone(),
            clock,
            size: AtomicU8::new(wished.load(Ordering::Relaxed)),
            wished,
            away: Mutex::default(),
            last_loss: tokio::sync::Mutex::default(),
            done: AtomicU32::new(0),
        }
    }

    /// How many members the user wants in the end.
    pub fn size(&self) -> u8 {
        self.size.load(Ordering::Relaxed)
    }

    /// Carries out the schedule from now on, and returns when all that lasts was taken back.
    pub async fn carry_out(&self, schedule: &Schedule, recorder: &Recorder, progress: &mut Step) -> Vec<Deed> {
        let started = Instant::now();
        let under_way = UnderWay { schedule, started, recorder };
        let all = join_all(schedule.events.iter().map(|event| self.one(event, under_way)));
        let over = tokio::time::sleep_until(started + schedule.lasts());
        let tell = async {
            loop {
                tokio::time::sleep(TELL_INTERVAL).await;
                progress.note(format_args!(
                    "{:.0} of {:.0} s, {} of {} faults, {} calls, {} writes acknowledged",
                    started.elapsed().as_secs_f64(),
                    schedule.lasts().as_secs_f64(),
                    self.done.load(Ordering::Relaxed),
                    schedule.events.len(),
                    recorder.len(),
                    recorder.acknowledged(),
                ));
            }
        };
        let work = async { tokio::join!(all, over).0 };
        tokio::select! {
            deeds = work => deeds,
            never = tell => never,
        }
    }

    async fn one(&self, event: &Event, under_way: UnderWay<'_>) -> Deed {
        tokio::time::sleep_until(under_way.started + Duration::from_millis(event.at.into())).await;
        let mut begun = self.clock.now();
        let limit = event.fault.lasts() + acts_within(event.fault.scope());
        let carried = match tokio::time::timeout(limit, self.carry(&event.fault, under_way, &mut begun)).await {
            Ok(Ok(carried)) => carried,
            Ok(Err(error)) => Carried::Failed(format!("{error:#}")),
            Err(_) => Carried::Failed(format!("it was not over within {} s", limit.as_secs())),
        };
        self.done.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(fault = %event.fault, ?carried, "carried out");
        Deed { event: event.clone(), begun, ended: self.clock.now(), carried }
    }

    async fn carry(&self, fault: &Fault, under_way: UnderWay<'_>, begun: &mut Moment) -> Result<Carried> {
        match fault {
            Fault::KillProcesses { victims } => Ok(self.kill_processes(*victims)),
            Fault::DeletePods { victims, grace } => self.delete_pods(*victims, *grace).await,
            Fault::LoseVolumes { victims, how } => self.lose_volumes(*victims, *how, under_way, begun).await,
            Fault::PauseMembers { victims, .. } => self.pause_members(*victims, fault.lasts()).await,
            Fault::CutMember { victims, way, .. } => self.cut_member(*victims, *way, fault.lasts()).await,
            Fault::CutNode { node, .. } => self.cut_node(*node, fault.lasts()).await,
            Fault::CutNodeFromApi { node, .. } => self.cut_node_from_api(*node, fault.lasts()).await,
            Fault::StopNode { node, .. } => self.stop_node(*node, fault.lasts()).await,
            Fault::KillOperators { all } => self.kill_operators(*all).await,
            Fault::PauseOperator { .. } => self.pause_operator(fault.lasts()).await,
            Fault::CutOperator { .. } => self.cut_operator(fault.lasts()).await,
            Fault::StopApi { .. } => self.stop_api(fault.lasts()).await,
            Fault::PauseApi { .. } => self.pause_api(fault.lasts()).await,
            Fault::Scale { replicas } => self.scale(*replicas).await,
            Fault::Roll { change } => self.roll(*change).await,
            Fault::Hibernate { .. } => self.hibernate(fault.lasts()).await,
            Fault::Upgrade { to } => self.upgrade(to).await,
            Fault::TurnBack { to, back, .. } => self.turn_back(to, back, fault.lasts()).await,
            Fault::Pretend => {
                let call = pretend(&self.cluster, under_way.recorder).await?;
                Ok(Carried::Done(call.key.0))
            }
        }
    }

    /// The nodes that are away.
    fn away(&self) -> BTreeSet<String> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn goes_away(&self, node: &str) {
        self.away.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned());
    }

    fn is_back(&self, node: &str) {
        self.away.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }
}

/// How long carrying out a fault of this scope may take beyond the time that it lasts. A loss of volumes that is cut short
/// can't be taken back in the end: a claim that is left half deleted would take its volume along when its pod goes, in
/// whatever moment. So it has all the time that its parts may take.
const fn acts_within(scope: Scope) -> Duration {
    match scope {
        Scope::Volumes => members::LOSS_WITHIN,
        Scope::Members | Scope::Nodes | Scope::Operator | Scope::Api | Scope::Spec => ACT_DEADLINE,
    }
}

/// Tries something that needs the API server until it succeeds or time is up.
async fn tried<T>(act: impl AsyncFn() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        let left = TRY_DEADLINE.saturating_sub(started.elapsed());
        let tried = tokio::time::timeout(left, act()).await;
        match tried.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", TRY_DEADLINE.as_secs()))) {
            Ok(done) => return Ok(done),
            Err(error) if started.elapsed() + TRY_PAUSE >= TRY_DEADLINE => return Err(error),
            Err(_) => tokio::time::sleep(TRY_PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::fault::Loss;
    use crate::scene::{PATIENCE, longest};

    #[test]
    fn no_act_is_cut_short_before_its_own_deadlines_end_it() {
        for how in [Loss::Deleted, Loss::Emptied] {
            let parts = members::CALM_WITHIN + members::CALM_LOOK + members::loses_within(how);
            assert!(acts_within(Scope::Volumes) >= parts, "{how:?}: {parts:?}");
        }
        // Hibernates, or wants another version, and takes that back.
        assert!(acts_within(Scope::Spec) >= TRY_DEADLINE * 2 + longest(PATIENCE));
        // Deletes the pods of five members, one after the other.
        assert!(acts_within(Scope::Members) >= TRY_DEADLINE * 5);
        assert!(acts_within(Scope::Operator) >= TRY_DEADLINE);
    }
}
