//! What is remembered of a cluster between two rounds of this process. All of it can be lost without harm: it saves
//! calls, steadies reports and takes the time. Decisions wait longer without it, and are no others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use quorate_crds::{ConditionType, EtcdCluster, EtcdClusterStatus, Reason};
use quorate_statemachine::{
    Alarm, Finding, LookAgain, Membership, Overall, Phase, Plan, PodStage, Serial, Sight, Step, Uid,
};
use tokio::time::Instant;

use super::act::{Ungrown, Urged};
use super::observe::Observed;
use super::observe::archive::Archives;
use super::observe::endpoints::Endpoints;
use super::observe::pods::Leaving;
use super::observe::said::Seen;
use super::observe::verify::Proofs;
use super::pace::Helpless;
use super::pki::Wallet;
use super::report;
use crate::metrics::Metrics;

/// For how long a member of a cluster at rest may be silent before that is reported: one look that failed, a process that
/// the kubelet restarts at once, or a pod whose object goes in a moment, is no news. Decisions do not wait for it.
const SILENCE: Duration = Duration::from_secs(2);
/// For how long a cluster is looked at in haste when nothing comes of it: far longer than a process takes to start. What
/// lasts longer (a pod that hangs while it ends, a learner that copies gigabytes) is looked at every few seconds then.
const HASTE: Duration = Duration::from_mins(1);
/// For how long the watch is awaited that says that a pod is gone which goes at once: it comes within milliseconds, unless
/// somebody else's finalizer holds the pod.
const GOING: Duration = Duration::from_millis(100);
/// For how long nobody is asked after an etcd has ended that its kubelet starts again: as long as a container and an etcd take to
/// start where nothing else is to do. What members tell, and how they come to tell it, costs the processors 20 ms and more each
/// time, which the one that starts needs; measured, it came up 0.09 of 0.42 s later.
const RESTARTS: Duration = Duration::from_millis(400);
/// How old what was seen at pods may be to be gone on with: somewhat more than the longest pause between two looks at rest.
const GOES_ON_FOR: Duration = Duration::from_secs(45);
/// How many of our own writes may be on their way through the watch; far more than one round makes.
const ON_THEIR_WAY: usize = 16;

/// What is remembered of one cluster.
#[derive(Debug)]
pub struct Memo {
    uid: Option<String>,
    /// The object as we last wrote it, and the versions that it has replaced: until the watch shows something else, it
    /// is newer than what the watch shows.
    written: Option<(Arc<EtcdCluster>, Vec<String>)>,
    /// Who led when last seen.
    pub leader: Option<Serial>,
    /// The alarm that was raised when etcd last spoke of alarms.
    alarm: Option<Alarm>,
    /// The term as a leader in which that was heard.
    heard_in: Option<u64>,
    /// What was seen at its pods when last looked at.
    pub seen: BTreeMap<Serial, Seen>,
    /// When that was, and in which term as a leader.
    looked: Option<(Instant, Option<u64>)>,
    /// The last round touched no voter, and nothing in it failed: what these said in it, and launchers, may stand for a moment.
    pub left_voters_alone: bool,
    /// What the sidecars of its continuous backup said when last asked.
    pub archives: Archives,
    /// What came of proving that backup when last looked for.
    pub proofs: Proofs,
    /// Whether the addresses of newcomers are published.
    pub endpoints: Endpoints,
    /// Pods that were labelled, and the version they had until then.
    labelled: BTreeMap<Uid, String>,
    /// Which of its claims Kubernetes did not let grow.
    pub ungrown: Ungrown,
    /// What is known of its certificates.
    pub wallet: Wallet,
    /// For which pods Kubernetes was urged.
    pub urged: Urged,
    /// What was refused in the last round, as it was told, and of which generation of the spec.
    refused: Option<(Option<i64>, (Reason, String))>,
    /// How many rounds in a row have failed.
    pub failures: u32,
    /// The object is gone, as we let it go: nothing is worth remembering.
    pub is_over: bool,
    /// Since when it has been looked at in haste without anything coming of it.
    hasty_since: Option<Instant>,
    silent_since: Option<Instant>,
    /// Since when a pod goes at once.
    going_since: Option<Instant>,
    /// When an etcd was seen to have ended that its kubelet starts again.
    ended_since: Option<Instant>,
    /// For how long only somebody else could have helped.
    pub helpless: Helpless,
    troubled_since: Option<Instant>,
    /// It was as asked for once, so that its bootstrap is over, and what ails it since then is a fault.
    has_run: bool,
}

impl Memo {
    /// Nothing is remembered of this cluster.
    pub fn new(cluster: &EtcdCluster) -> Self {
        Self {
            uid: cluster.uid(),
            written: None,
            leader: None,
            alarm: None,
            heard_in: None,
            seen: BTreeMap::new(),
            looked: None,
            left_voters_alone: false,
            archives: Archives::default(),
            proofs: Proofs::default(),
            endpoints: Endpoints::default(),
            labelled: BTreeMap::new(),
            ungrown: Ungrown::default(),
            wallet: Wallet::default(),
            urged: Urged::default(),
            refused: None,
            failures: 0,
            is_over: false,
            hasty_since: None,
            silent_since: None,
            going_since: None,
            ended_since: None,
            helpless: Helpless::default(),
            troubled_since: None,
            has_run: cluster.status.as_ref().is_some_and(has_run),
        }
    }

    /// Whether it is of this very object, and not of an earlier one of its name.
    pub fn is_of(&self, cluster: &EtcdCluster) -> bool {
        self.uid == cluster.uid()
    }

    /// What was refused in the last round, if of this very spec: another one may be what mends it.
    pub fn refused(&self, cluster: &EtcdCluster) -> Option<(Reason, String)> {
        let (generation, refusal) = self.refused.as_ref()?;
        (*generation == cluster.metadata.generation).then(|| refusal.clone())
    }

    /// This was refused in the round that ends, or nothing.
    pub fn was_refused(&mut self, cluster: &EtcdCluster, refusal: Option<(Reason, String)>) {
        self.refused = refusal.map(|refusal| (cluster.metadata.generation, refusal));
    }

    /// The newer of what the watch shows and what we wrote.
    pub fn newest(&mut self, watched: Arc<EtcdCluster>) -> Arc<EtcdCluster> {
        match &self.written {
            Some((written, replaced)) if watched.resource_version().is_some_and(|v| replaced.contains(&v)) => {
                written.clone()
            }
            Some(_) | None => {
                self.written = None;
                watched
            }
        }
    }

    /// We replaced one version of the object by another.
    pub fn wrote(&mut self, before: &EtcdCluster, after: &Arc<EtcdCluster>) {
        let (Some(old), Some(new)) = (before.resource_version(), after.resource_version()) else { return };
        if old == new {
            return;
        }
        let mut replaced = self.written.take().map(|(_, replaced)| replaced).unwrap_or_default();
        replaced.push(old);
        let excess = replaced.len().saturating_sub(ON_THEIR_WAY);
        replaced.drain(..excess);
        self.written = Some((after.clone(), replaced));
    }

    /// Forgets what was seen at its pods when that is too old, or from another `term` as a leader, to be gone on with: who was
    /// silent then may have spoken since, and come further.
    pub fn forget_what_is_old(&mut self, term: Option<u64>) {
        if self.looked.is_some_and(|(at, of)| at.elapsed() > GOES_ON_FOR || of != term) {
            self.seen.clear();
        }
    }

    /// Remembers what was seen at its pods, now and in this `term`.
    pub fn saw(&mut self, seen: &BTreeMap<Serial, Seen>, term: Option<u64>) {
        self.seen.clone_from(seen);
        self.looked = Some((Instant::now(), term));
    }

    /// Leaves out the labels of pods that were labelled already and that the watch still shows as they were before: while
    /// a watch is away, each round would write them again.
    pub fn leave_out_labels(&self, observed: &Observed, plan: &mut Plan) {
        plan.steps.retain(|step| {
            let Some((serial, pod)) = labelled_by(step) else { return true };
            let shown = observed.pods.get(&serial).map(|shown| &shown.resource_version);
            shown.is_none() || shown != self.labelled.get(pod)
        });
    }

    /// Tells of the alarm that was raised when etcd last spoke of alarms, where it does not: a call without an answer is no
    /// word that it was disarmed. Of a cluster that sleeps or goes nothing is kept: one that wakes is asked anew. Nor is
    /// anything kept from one `term` as a leader to the next: another operator led meanwhile, and the status is its word.
    pub fn recall_alarm(&mut self, term: Option<u64>, observed: &Observed, plan: &mut Plan) {
        if term != self.heard_in {
            self.heard_in = term;
            self.alarm = observed.cluster.status.as_ref().and_then(alarm_in);
        }
        match observed.world.overall {
            Overall::Known { alarm, downgrade: _ } | Overall::OfAlarms(alarm) => self.alarm = alarm,
            Overall::Unknown if sleeps_or_goes(plan.phase) => self.alarm = None,
            Overall::Unknown => {
                if let (Membership::Known(_), Some(alarm)) = (&observed.world.membership, self.alarm) {
                    plan.findings.entry(None).or_default().insert(Finding::Alarm(alarm));
                }
            }
        }
    }

    /// Remembers which pods were labelled. Those that are gone are forgotten.
    pub fn labelled(&mut self, observed: &Observed, done: &[Step]) {
        self.labelled.retain(|uid, _| observed.pods.values().any(|pod| pod.uid == *uid));
        for step in done {
            if let Some((serial, pod)) = labelled_by(step)
                && let Some(shown) = observed.pods.get(&serial)
            {
                self.labelled.insert(pod.clone(), shown.resource_version.clone());
            }
        }
    }

    /// Whether all that is wrong with a cluster that was at rest is that somebody has been silent for a moment.
    pub fn is_moment_of_silence(&mut self, observed: &Observed, plan: &Plan) -> bool {
        let was = observed.cluster.status.as_ref().and_then(|status| status.phase);
        let unlike_before = plan.phase != Phase::Running || observed.world.membership == Membership::Unknown;
        let nothing_to_do = plan.steps.is_empty() && plan.ledger.is_none() && unlike_before;
        let at_rest = was == Some(quorate_crds::Phase::Running) && nothing_to_do;
        let current = observed.cluster.status.as_ref().and_then(|status| status.observed_generation);
        if !at_rest || !somebody_is_silent(observed) || current != observed.cluster.metadata.generation {
            self.silent_since = None;
            return false;
        }
        self.silent_since.get_or_insert_with(Instant::now).elapsed() < SILENCE
    }

    /// Whether nobody is to be asked now, given whether a pod `goes` at once: in a moment the watch says that it is gone, and a
    /// round that began before would hold up the one that can do something about it.
    pub fn awaits_who_goes(&mut self, goes: bool) -> bool {
        if !goes {
            self.going_since = None;
        }
        goes && self.going_since.get_or_insert_with(Instant::now).elapsed() < GOING
    }

    /// Whether nobody is to be asked now, given whether an etcd has `ended` that its kubelet starts again: there is nothing to do
    /// for it but not to be in its way, also once it runs.
    pub fn awaits_who_ended(&mut self, ended: bool) -> bool {
        let Some(since) = self.ended_since.or_else(|| ended.then(Instant::now)) else { return false };
        let awaits = since.elapsed() < RESTARTS;
        self.ended_since = (awaits || ended).then_some(since);
        awaits
    }

    /// When to look again, given whether anything `moved`: in haste only as long as that can help.
    pub fn without_haste(&mut self, look_again: LookAgain, moved: bool) -> LookAgain {
        match look_again {
            LookAgain::AtOnce | LookAgain::Soon if !moved => {
                let hasty = self.hasty_since.get_or_insert_with(Instant::now).elapsed();
                if hasty < HASTE { look_again } else { LookAgain::Later }
            }
            LookAgain::AtOnce | LookAgain::Soon | LookAgain::Later | LookAgain::AtRest => {
                self.hasty_since = None;
                look_again
            }
        }
    }

    /// Takes the time of a bootstrap, and of a fault until it is mended.
    pub fn take_time(&mut self, observed: &Observed, plan: &Plan, metrics: &Metrics) {
        match plan.phase {
            Phase::Running => {
                let created = observed.cluster.creation_timestamp().map(|time| time.0);
                if let (false, Some(created)) = (self.has_run, created) {
                    metrics.bootstrapped(Timestamp::now().duration_since(created).unsigned_abs());
                }
                self.has_run = true;
                if let Some(since) = self.troubled_since.take() {
                    metrics.healed(since.elapsed());
                }
            }
            Phase::Healing | Phase::QuorumLost if self.has_run => {
                self.troubled_since.get_or_insert_with(Instant::now);
            }
            // No fault begins here, and none ends: one that there was lasts.
            Phase::Healing
            | Phase::QuorumLost
            | Phase::Pending
            | Phase::Restoring
            | Phase::Seeding
            | Phase::Growing
            | Phase::Scaling
            | Phase::Restarting
            | Phase::Upgrading
            | Phase::Hibernated
            | Phase::Paused
            | Phase::Deleting
            | Phase::Failed => (),
        }
    }
}

/// Which pod of which member a step labels.
fn labelled_by(step: &Step) -> Option<(Serial, &Uid)> {
    match step {
        Step::LabelPod { serial, pod, label: _ } => Some((*serial, pod)),
        Step::CreateClaim(_)
        | Step::CreatePod { .. }
        | Step::IssueTicket { .. }
        | Step::DeletePod { .. }
        | Step::DeleteClaim { .. }
        | Step::AddLearner { .. }
        | Step::Promote { .. }
        | Step::Remove { .. }
        | Step::MoveLeader { .. }
        | Step::SwitchRelease { .. }
        | Step::ResizePod { .. }
        | Step::TryRelease { .. }
        | Step::EndTrial { .. }
        | Step::TakeSnapshot(_)
        | Step::EnableDowngrade(_)
        | Step::CancelDowngrade
        | Step::ReleaseFinalizer => None,
    }
}

/// Whether a cluster in this phase has no etcd that could be asked, nor is to have one.
fn sleeps_or_goes(phase: Phase) -> bool {
    match phase {
        Phase::Hibernated | Phase::Deleting => true,
        Phase::Pending
        | Phase::Restoring
        | Phase::Seeding
        | Phase::Growing
        | Phase::Running
        | Phase::Scaling
        | Phase::Healing
        | Phase::Restarting
        | Phase::Upgrading
        | Phase::QuorumLost
        | Phase::Paused
        | Phase::Failed => false,
    }
}

/// Whether a cluster was as asked for once, as its status tells another operator than the one that saw it. All conditions are
/// there from the first status on, so a Ready that never was has not turned since the oldest of them. The phase alone does
/// not say it: a cluster that is given more members grows again.
fn has_run(status: &EtcdClusterStatus) -> bool {
    let Some(ready) = ConditionType::Ready.among(&status.conditions) else { return false };
    let oldest = status.conditions.iter().map(|condition| condition.last_transition_time.0).min();
    let turned = oldest.is_some_and(|oldest| ready.last_transition_time.0 > oldest);
    status.phase == Some(quorate_crds::Phase::Running) || ready.status == "True" || turned
}

/// The alarm that a status tells of, to another operator than the one that heard of it.
fn alarm_in(status: &EtcdClusterStatus) -> Option<Alarm> {
    let available = ConditionType::Available.among(&status.conditions)?;
    let told = |alarm: &Alarm| available.reason == report::sentences::of_alarm(*alarm).reason.as_str();
    [Alarm::NoSpace, Alarm::Corrupt].into_iter().find(told)
}

fn somebody_is_silent(observed: &Observed) -> bool {
    let silent_pod = |pod: &quorate_statemachine::Pod| {
        pod.sight == Sight::Unknown && pod.stage == PodStage::Running && !pod.terminating
    };
    observed.world.membership == Membership::Unknown
        || observed.pods.values().any(|pod| pod.leaving == Leaving::AtOnce)
        || observed.world.seats.values().filter_map(|seat| seat.pod.as_ref()).any(silent_pod)
}

#[cfg(test)]
#[path = "memo_tests.rs"]
mod tests;
