//! Acts: the only writer. The ledger first, by compare-and-swap; then what every cluster has; then the plan's steps in
//! their order, each guarded where it is done, and those in a row that concern one member each at once for all these members.
//! The first surprise ends it: the next round observes again.

mod certify;
mod claims;
mod courier;
mod etcd;
mod furnish;
mod objects;
mod release;
mod taken;
mod urge;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use kube::ResourceExt;
use quorate_crds::{EtcdCluster, EtcdClusterStatus, Reason, names};
use quorate_etcd::{CallError, Pool, Refusal};
use quorate_statemachine::{Bind, Life, MemberId, Phase, Plan, Role, Serial, Step, Uid};
use serde_json::json;
use tokio::time::Instant;

pub use self::certify::Renewed;
pub use self::claims::Ungrown;
pub use self::courier::Courier;
pub use self::urge::Urged;
use super::observe::Observed;
use super::pki::{Duties, IssueError, Wallet};
use super::render;
use crate::api::{self, Kube};
use crate::metrics::Metrics;

/// For how long those are awaited in a round that were told to begin: an etcd takes some 0.3 s for that. After it they are left
/// to later rounds, and with them the rest of the plan.
const COMES_UP_WITHIN: Duration = Duration::from_secs(1);

/// Why the rest of a plan was not done.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The world is not as it was planned from, or etcd is not ready for a change: observe again.
    #[error("{0}")]
    Surprise(String),
    /// Kubernetes failed.
    #[error(transparent)]
    Kube(#[from] api::Error),
    /// A call to a member failed; whether it had its effect shows in the member list.
    #[error(transparent)]
    Etcd(#[from] CallError),
    /// What is asked for can't be rendered.
    #[error(transparent)]
    Render(#[from] render::RenderError),
    /// What is asked for can't be done before the user corrects something.
    #[error("{1}")]
    Refused(Reason, String),
    /// A certificate could not be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// This operator may not write any more.
    #[error("{0}")]
    Shut(&'static str),
}

impl Stop {
    /// Whether what Kubernetes was asked for may have been done all the same.
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Kube(error) => error.is_unanswered(),
            Self::Surprise(_)
            | Self::Etcd(_)
            | Self::Render(_)
            | Self::Refused(..)
            | Self::Issue(_)
            | Self::Shut(_) => false,
        }
    }

    /// Whether another look is all that it takes: no fault of anybody's.
    pub fn is_surprise(&self) -> bool {
        match self {
            // It would be refused again at once, till somebody does something about it.
            Self::Etcd(error) if matches!(error.refusal(), Some(Refusal::Forbidden | Refusal::Corrupt)) => false,
            // etcd refuses changes for some seconds after each start and election, and a call whose answer was lost
            // shows its effect in the next list.
            Self::Surprise(_) | Self::Etcd(_) => true,
            Self::Kube(error) => error.is_surprise(),
            Self::Render(_) | Self::Refused(..) | Self::Issue(_) | Self::Shut(_) => false,
        }
    }

    /// Of two, the one to be told: what passes by itself does not hide what somebody has to mend.
    fn or_graver(self, other: Self) -> Self {
        if self.is_surprise() { other } else { self }
    }

    /// Whether it says something of the one object that was to be written, so that others may well be written after it: the
    /// API server has answered, or was not even asked.
    pub fn is_of_one_object(&self) -> bool {
        match self {
            Self::Surprise(_) | Self::Render(_) | Self::Refused(..) | Self::Issue(_) => true,
            Self::Kube(error) => error.is_surprise() || error.refusal().is_some(),
            Self::Etcd(_) | Self::Shut(_) => false,
        }
    }
}

/// What was done of a plan.
#[derive(Debug)]
pub struct Acted {
    /// The object as it was last written or read.
    pub cluster: Arc<EtcdCluster>,
    /// The status that was written along with the ledger.
    pub status_written: bool,
    /// The steps that were done.
    pub done: Vec<Step>,
    /// The certificates that were renewed.
    pub renewed: Vec<Renewed>,
    /// Why the rest was not.
    pub stop: Option<Stop>,
    /// What Kubernetes refused of that which no step needs, or failed at.
    pub refused: Option<Stop>,
}

/// Who acts.
#[derive(Clone)]
pub struct Actor {
    /// The Kubernetes API.
    pub kube: Kube,
    /// Connections to members.
    pub pool: Arc<Pool>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The agent that pods are given.
    pub agent: render::Agent,
    /// Who sends tickets to launchers; nobody does if no key could be made.
    pub courier: Option<Arc<Courier>>,
    /// The domain of the Kubernetes cluster, in certificates.
    pub domain: Arc<str>,
}

/// One plan being carried out.
struct Acting<'a> {
    actor: &'a Actor,
    observed: &'a Observed,
    cluster: render::Cluster<'a>,
    wallet: &'a Wallet,
    /// The object's version as it was last read or written in this round.
    version: Option<String>,
    /// What was renewed in this round, along with a step or not.
    renewed: Mutex<Vec<Renewed>>,
}

impl Actor {
    /// Carries out a plan. `status` is what the status will be; it is written here if the ledger has to be.
    pub async fn act(
        &self,
        observed: &Observed,
        plan: &Plan,
        status: &EtcdClusterStatus,
        ungrown: &mut Ungrown,
        wallet: &Wallet,
    ) -> Acted {
        let mut acted = Acted {
            cluster: observed.cluster.clone(),
            status_written: false,
            done: Vec::new(),
            renewed: Vec::new(),
            stop: None,
            refused: None,
        };
        if let Err(stop) = self.perform(observed, plan, status, ungrown, wallet, &mut acted).await {
            acted.stop = Some(stop);
        }
        acted
    }

    async fn perform(
        &self,
        observed: &Observed,
        plan: &Plan,
        status: &EtcdClusterStatus,
        ungrown: &mut Ungrown,
        wallet: &Wallet,
        acted: &mut Acted,
    ) -> Result<(), Stop> {
        let Some(cluster) = render::Cluster::of(&observed.cluster) else {
            return Err(Stop::Surprise("the object has no UID".into()));
        };
        let mut acting = Acting { actor: self, observed, cluster, wallet, version: None, renewed: Mutex::default() };
        if observed.world.wish.life == Life::Wanted {
            acting.hold_with_finalizer(acted).await?;
        }
        let result = match acting.may_start(plan) {
            Ok(()) => Box::pin(acting.carry_out(plan, status, ungrown, acted)).await,
            Err(refused) => both::<(), _>(Err(refused), Box::pin(acting.renew(plan)).await).map(drop),
        };
        acted.renewed = acting.renewed.into_inner().unwrap_or_else(PoisonError::into_inner);
        result
    }

    /// Writes the status of an object, if it is still the one that was observed.
    pub async fn write_status(
        &self,
        cluster: &EtcdCluster,
        status: &EtcdClusterStatus,
    ) -> Result<EtcdCluster, api::Error> {
        let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
        let written = EtcdCluster { status: Some(status.clone()), ..cluster.clone() };
        self.kube.replace_status(namespace, &written).await
    }
}

/// What came of two things, or of which of them somebody has to hear.
fn both<A, B>(one: Result<A, Stop>, other: Result<B, Stop>) -> Result<(A, B), Stop> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) => Err(one.or_graver(other)),
        (Err(stop), Ok(_)) | (Ok(_), Err(stop)) => Err(stop),
    }
}

impl Acting<'_> {
    /// Writes the ledger, furnishes, and then takes the steps and renews what is due beside them.
    async fn carry_out(
        &mut self,
        plan: &Plan,
        status: &EtcdClusterStatus,
        ungrown: &mut Ungrown,
        acted: &mut Acted,
    ) -> Result<(), Stop> {
        if plan.ledger.is_some() {
            acted.cluster = Arc::new(self.actor.write_status(&acted.cluster, status).await?);
            acted.status_written = true;
        }
        // What has failed is left as it is: it may be somebody else's.
        let (mut duties, mut prepared) = (Duties::default(), Ok(()));
        if self.observed.world.wish.life == Life::Wanted && plan.phase != Phase::Failed {
            duties = self.certificate_duties(plan).await?;
            let furnish = Box::pin(self.furnish(plan, ungrown));
            let (furnished, authorities) = tokio::join!(furnish, Box::pin(self.make_authorities(&duties)));
            prepared = furnished.map(|refused| acted.refused = refused).and(authorities);
        }
        self.version = acted.cluster.resource_version();
        // Certificates run out also where something in a Service's place keeps any step from being done.
        let steps = Box::pin(async {
            match prepared {
                Ok(()) => self.steps(&plan.steps, &mut acted.done).await,
                Err(stop) => Err(stop),
            }
        });
        let certify = Box::pin(self.certify(plan, &duties));
        let (steps, certified) = tokio::join!(steps, certify);
        both(steps, certified).map(drop)
    }

    /// Puts our finalizer on the object before anything is made for it.
    async fn hold_with_finalizer(&self, acted: &mut Acted) -> Result<(), Stop> {
        let metadata = &acted.cluster.metadata;
        let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|finalizer| finalizer == names::FINALIZER) {
            return Ok(());
        }
        finalizers.push(names::FINALIZER.into());
        let change = json!({ "metadata": { "uid": metadata.uid, "resourceVersion": metadata.resource_version,
            "finalizers": finalizers } });
        let held = self.actor.kube.merge::<EtcdCluster>(self.cluster.namespace, self.cluster.name, &change).await?;
        acted.cluster = Arc::new(held);
        Ok(())
    }

    /// The steps in their order; those in a row that concern one member's objects each are done for all these members at once.
    async fn steps(&self, steps: &[Step], done: &mut Vec<Step>) -> Result<(), Stop> {
        let (mut rest, mut made, patience) = (steps, Made::default(), Instant::now() + COMES_UP_WITHIN);
        while let Some(first) = rest.first() {
            let row = rest.iter().take_while(|step| step.of_one_member().is_some()).count();
            if row > 0 {
                let (at_once, after) = rest.split_at(row);
                self.for_each_member(at_once, done).await?;
                rest = after;
            } else {
                let step = after_addition(first, made.learner.as_ref())?;
                self.step(&step, &mut made).await?;
                self.finished(&step, done);
                rest = &rest[1..];
                if let Step::IssueTicket { serial, .. } = &*step {
                    self.comes_up(*serial, patience).await?;
                    if !rest.is_empty() {
                        // Somebody may have asked for something else meanwhile.
                        self.object_is_untouched().await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Says, with all guards behind it, that it asks Kubernetes for what takes a member or its volume away: chaos runs judge that
    /// also of an operator that was killed before it could say that it did.
    fn asks(&self, step: &Step) {
        tracing::info!(cluster = %self.cluster.name, ?step, "asks Kubernetes");
    }

    fn finished(&self, step: &Step, done: &mut Vec<Step>) {
        tracing::info!(cluster = %self.cluster.name, ?step, "did");
        self.actor.metrics.acted(name_of(step));
        done.push(step.clone());
    }

    /// Takes steps for several members at once; for each member in order.
    async fn for_each_member(&self, steps: &[Step], done: &mut Vec<Step>) -> Result<(), Stop> {
        let mut by_member: BTreeMap<Option<Serial>, Vec<&Step>> = BTreeMap::new();
        for step in steps {
            by_member.entry(step.of_one_member()).or_default().push(step);
        }
        let taken = join_all(by_member.into_values().map(|steps| self.for_member(steps))).await;
        let mut all = Ok(());
        for (taken, result) in taken {
            for step in taken {
                self.finished(step, done);
            }
            all = both(all, result).map(drop);
        }
        all
    }

    /// Takes these steps for one member, and says which of them are done.
    async fn for_member<'s>(&self, steps: Vec<&'s Step>) -> (Vec<&'s Step>, Result<(), Stop>) {
        let (mut taken, mut made) = (Vec::new(), Made::default());
        for step in steps {
            if let Err(stop) = self.step(step, &mut made).await {
                return (taken, Err(stop));
            }
            taken.push(step);
        }
        (taken, Ok(()))
    }

    async fn step(&self, step: &Step, made: &mut Made) -> Result<(), Stop> {
        match step {
            Step::CreateClaim(serial) => {
                let (claim, secret) = tokio::join!(self.create_claim(*serial), self.certify_member(*serial));
                both(claim, secret).map(|(uid, ())| made.claim = Some(uid))
            }
            Step::CreatePod { serial, bind, birth, release } => {
                let volume = self.volume_of(*serial, bind, made.claim.as_ref()).await;
                let (volume, ()) = both(volume, self.certify_member(*serial).await)?;
                self.create_pod(*serial, volume.as_ref(), *birth, release).await
            }
            Step::LabelPod { serial, pod, label } => self.label_pod(*serial, pod, *label).await,
            Step::IssueTicket { serial, pod, ticket } => self.issue_ticket(*serial, pod, ticket).await,
            Step::DeletePod { serial, pod } => self.delete_pod(step, *serial, pod).await,
            Step::DeleteClaim { serial, claim } => self.delete_claim(step, *serial, claim).await,
            Step::AddLearner { serial, expect, after: _ } => {
                self.certificates_fit()?;
                made.learner = Some((*serial, self.add_learner(step, *serial, expect).await?));
                Ok(())
            }
            Step::Promote { serial, id, expect } => self.promote(step, *serial, *id, expect).await,
            Step::Remove { serial, id, expect } => self.remove(step, *serial, *id, expect).await,
            Step::MoveLeader { from, to } => self.move_leader(step, *from, *to).await,
            Step::SwitchRelease { serial, pod, release, ticket } => {
                self.switch_release(step, *serial, pod, release, ticket.as_ref()).await
            }
            Step::ResizePod { serial, pod } => self.resize_pod(*serial, pod).await,
            Step::TryRelease { serial, node, release } => self.try_release(*serial, node, release).await,
            Step::EndTrial { serial, trial } => self.end_trial(*serial, trial).await,
            Step::TakeSnapshot(to) => self.take_snapshot(*to).await,
            Step::EnableDowngrade(to) => self.enable_downgrade(step, *to).await,
            Step::CancelDowngrade => self.cancel_downgrade(step).await,
            Step::ReleaseFinalizer => self.release_finalizer().await,
        }
    }

    /// The claim that a new pod is to be bound to; `made` is that of a step before.
    async fn volume_of(&self, serial: Serial, bind: &Bind, made: Option<&Uid>) -> Result<Option<Uid>, Stop> {
        match bind {
            Bind::Claim(uid) => self.still_claimed(serial, uid).await.map(Some),
            Bind::NewClaim => match made {
                Some(uid) => Ok(Some(uid.clone())),
                None => Err(Stop::Surprise(format!("the claim of {serial} was not made"))),
            },
            Bind::Ephemeral => Ok(None),
        }
    }
}

/// What a step has made that one after it needs.
#[derive(Default)]
struct Made {
    /// The claim of the member whose steps these are.
    claim: Option<Uid>,
    /// The last learner that was added.
    learner: Option<(Serial, MemberId)>,
}

/// A step with the id of the learner that was `added` before it, if it expects that in the member list.
fn after_addition<'s>(step: &'s Step, added: Option<&(Serial, MemberId)>) -> Result<Cow<'s, Step>, Stop> {
    let Step::AddLearner { serial, expect, after: Some(after) } = step else { return Ok(Cow::Borrowed(step)) };
    let Some((_, id)) = added.filter(|(added, _)| added == after) else {
        return Err(Stop::Surprise(format!("{after} was not added before {serial}")));
    };
    let mut expect = expect.clone();
    expect.insert(*id, Role::Learner);
    Ok(Cow::Owned(Step::AddLearner { serial: *serial, expect, after: None }))
}

/// A step's name, for the metrics.
fn name_of(step: &Step) -> &'static str {
    match step {
        Step::CreateClaim(_) => "CreateClaim",
        Step::CreatePod { .. } => "CreatePod",
        Step::IssueTicket { .. } => "IssueTicket",
        Step::DeletePod { .. } => "DeletePod",
        Step::DeleteClaim { .. } => "DeleteClaim",
        Step::LabelPod { .. } => "LabelPod",
        Step::AddLearner { .. } => "AddLearner",
        Step::Promote { .. } => "Promote",
        Step::Remove { .. } => "Remove",
        Step::MoveLeader { .. } => "MoveLeader",
        Step::SwitchRelease { .. } => "SwitchRelease",
        Step::ResizePod { .. } => "ResizePod",
        Step::TryRelease { .. } => "TryRelease",
        Step::EndTrial { .. } => "EndTrial",
        Step::TakeSnapshot(_) => "TakeSnapshot",
        Step::EnableDowngrade(_) => "EnableDowngrade",
        Step::CancelDowngrade => "CancelDowngrade",
        Step::ReleaseFinalizer => "ReleaseFinalizer",
    }
}

#[cfg(test)]
mod foreign_tests;
#[cfg(test)]
mod furnish_tests;

#[cfg(test)]
mod tests {
    use quorate_etcd::Call;
    use quorate_statemachine::Roster;

    use super::*;

    #[test]
    fn the_second_of_two_additions_expects_the_first_in_the_list() {
        let roster = |learner: Option<u64>| {
            let learner = learner.map(|id| (MemberId(id), Role::Learner));
            [(MemberId(1), Role::Voter)].into_iter().chain(learner).collect::<Roster>()
        };
        let add = |expect, after| Step::AddLearner { serial: Serial(8), expect, after };
        let (alone, second) = (add(roster(None), None), add(roster(None), Some(Serial(7))));
        let bound = |step: &Step, added| after_addition(step, added).map(Cow::into_owned).ok();
        assert_eq!(bound(&alone, None), Some(alone.clone()));
        assert_eq!(bound(&second, Some(&(Serial(7), MemberId(2)))), Some(add(roster(Some(2)), None)));
        assert_eq!(bound(&second, Some(&(Serial(6), MemberId(2)))), None, "another one was added");
        assert_eq!(bound(&second, None), None);
    }

    #[test]
    fn what_passes_by_itself_does_not_hide_what_somebody_has_to_mend() {
        let passes = || Stop::Surprise("it is still being deleted".into());
        let stays = || Stop::Refused(Reason::ObjectRefused, "quota".into());
        for (one, other) in [(passes(), stays()), (stays(), passes())] {
            let told = both::<(), ()>(Err(one), Err(other)).unwrap_err();
            assert_eq!(told.to_string(), stays().to_string());
        }
        assert!(both::<(), _>(Err(passes()), Ok(1)).is_err_and(|stop| stop.is_surprise()));
        assert!(both::<_, ()>(Ok(1), Err(passes())).is_err_and(|stop| stop.is_surprise()));
        assert_eq!(both(Ok(1), Ok(2)).ok(), Some((1, 2)));
    }

    #[test]
    fn what_etcd_refuses_till_somebody_acts_is_not_asked_again_at_once() {
        let refused =
            |refusal| Stop::Etcd(CallError::Refused { call: Call::AddLearner, refusal, message: "no".into() });
        for (refusal, at_once) in [
            (Refusal::Forbidden, false),
            (Refusal::Corrupt, false),
            (Refusal::UnhealthyCluster, true),
            (Refusal::LearnerNotReady, true),
            (Refusal::NotLeader, true),
        ] {
            assert_eq!(refused(refusal).is_surprise(), at_once, "{refusal:?}");
        }
    }
}
