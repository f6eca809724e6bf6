//! Takes a plan's steps in their order, each by who has its guard; those in a row that concern one member each at once. It asks
//! nobody itself, and ends at the first surprise. A claim or pod that can't be made holds up nobody else.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use quorate_statemachine::{Bind, MemberId, Role, RoleLabel, Serial, Step, Uid};
use tokio::time::Instant;

use super::{Acting, Stop, both};

/// For how long those are awaited in a round that were told to begin: an etcd takes some 0.3 s for that. After it they are left
/// to later rounds, and with them the rest of the plan, but for what is written meanwhile.
const COMES_UP_WITHIN: Duration = Duration::from_secs(1);

impl Acting<'_> {
    /// The steps in their order; those in a row that concern one member's objects each are done for all these members at once.
    /// A claim or pod that Kubernetes refuses is told when the others are done.
    pub(super) async fn steps(&self, steps: &[Step], done: &mut Vec<Step>) -> Result<(), Stop> {
        let mut unmade = Vec::new();
        let taken = self.take(steps, done, &mut unmade).await;
        unmade.into_iter().fold(taken, or_graver)
    }

    async fn take(&self, steps: &[Step], done: &mut Vec<Step>, unmade: &mut Vec<Stop>) -> Result<(), Stop> {
        let (mut rest, mut made, patience) = (steps, Made::default(), Instant::now() + COMES_UP_WITHIN);
        while let Some(first) = rest.first() {
            let (at_once, after) = row(rest);
            if !unmade.is_empty() && self.stops_a_voter(first) {
                rest = &rest[1..];
            } else if at_once.is_empty() {
                let step = after_addition(first, made.learner.as_ref())?;
                self.step(&step, &mut made).await?;
                self.finished(&step, done);
                rest = &rest[1..];
                if let Step::IssueTicket { serial, .. } = &*step {
                    rest = self.as_it_begins(*serial, rest, patience, done, unmade).await?;
                }
            } else {
                self.for_each_member(at_once, done, unmade).await?;
                rest = after;
            }
        }
        Ok(())
    }

    /// Awaits one that was told to begin, and writes meanwhile what comes next and concerns one member each, whether it comes up or
    /// not: that takes nothing from it. Says what is left to do.
    async fn as_it_begins<'s>(
        &self,
        serial: Serial,
        rest: &'s [Step],
        patience: Instant,
        done: &mut Vec<Step>,
        unmade: &mut Vec<Stop>,
    ) -> Result<&'s [Step], Stop> {
        let (meanwhile, after) = row(rest);
        let begins = self.begins(serial, patience, after.is_empty());
        let (begun, written) = tokio::join!(begins, self.for_each_member(meanwhile, done, unmade));
        both(begun, written)?;
        if !after.is_empty() {
            // Somebody may have asked for something else meanwhile.
            self.object_is_untouched().await?;
        }
        Ok(after)
    }

    /// Whether it takes a voter's pod away, the next one of which might be refused as the one before it in the plan was.
    fn stops_a_voter(&self, step: &Step) -> bool {
        matches!(step, Step::DeletePod { serial, .. } if self.is_voter(*serial))
    }

    /// Says, with all guards behind it, that it asks Kubernetes for what takes a member or its volume away: chaos runs judge that
    /// also of an operator that was killed before it could say that it did.
    pub(super) fn asks(&self, step: &Step) {
        tracing::info!(cluster = %self.cluster.name, ?step, "asks Kubernetes");
    }

    fn finished(&self, step: &Step, done: &mut Vec<Step>) {
        tracing::info!(cluster = %self.cluster.name, ?step, "did");
        self.actor.metrics.acted(name_of(step));
        done.push(step.clone());
    }

    /// Takes steps for several members at once; for each member in order. What could not be made, and holds up nobody else, is
    /// left in `unmade`.
    async fn for_each_member(&self, steps: &[Step], done: &mut Vec<Step>, unmade: &mut Vec<Stop>) -> Result<(), Stop> {
        let mut by_member: BTreeMap<Option<Serial>, Vec<&Step>> = BTreeMap::new();
        for step in steps {
            by_member.entry(step.of_one_member()).or_default().push(step);
        }
        let taken = join_all(by_member.into_values().map(|steps| self.for_member(steps))).await;
        let mut all = Ok(());
        for (taken, ended) in taken {
            for step in taken {
                self.finished(step, done);
            }
            match ended {
                Some((at, stop)) if holds_up_nobody_else(at, &stop) => unmade.push(stop),
                Some((_, stop)) => all = or_graver(all, stop),
                None => {}
            }
        }
        all
    }

    /// Takes these steps for one member, and says which of them are done, and at which it ended before it had taken them all.
    async fn for_member<'s>(&self, steps: Vec<&'s Step>) -> (Vec<&'s Step>, Option<(&'s Step, Stop)>) {
        let (mut taken, mut made) = (Vec::new(), Made::default());
        let mut rest = steps.into_iter().peekable();
        while let Some(step) = rest.next() {
            let along = rest.next_if(|next| is_written_along(step, next));
            let result = match (step, along) {
                (Step::IssueTicket { serial, pod, ticket }, Some(Step::LabelPod { label, .. })) => {
                    self.issue_ticket(*serial, pod, ticket, Some(*label)).await
                }
                (step, _) => self.step(step, &mut made).await,
            };
            if let Err(stop) = result {
                return (taken, Some((step, stop)));
            }
            taken.extend([step].into_iter().chain(along));
        }
        (taken, None)
    }

    async fn step(&self, step: &Step, made: &mut Made) -> Result<(), Stop> {
        match step {
            Step::CreateClaim(serial) => {
                let (claim, secret) = tokio::join!(self.create_claim(*serial), self.certify_member(*serial));
                made.claim = Some(claim?);
                secret
            }
            Step::CreatePod { serial, bind, birth, release } => {
                let volume = self.volume_of(*serial, bind, made.claim.as_ref()).await?;
                self.certify_member(*serial).await?;
                self.create_pod(*serial, volume.as_ref(), *birth, release).await
            }
            Step::LabelPod { serial, pod, label } => self.label_pod(*serial, pod, *label).await,
            Step::IssueTicket { serial, pod, ticket } => self.issue_ticket(*serial, pod, ticket, None).await,
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

/// The steps in a row that concern one member each, and those after them.
fn row(steps: &[Step]) -> (&[Step], &[Step]) {
    steps.split_at(steps.iter().take_while(|step| step.of_one_member().is_some()).count())
}

/// Whether others are tended as if this step had not been planned: nothing but the same member's rests on a new claim or pod, and
/// a quota or a policy that refuses it may do so for days. What is not as it was observed is looked at first.
fn holds_up_nobody_else(at: &Step, stop: &Stop) -> bool {
    let makes = matches!(at, Step::CreateClaim(_) | Step::CreatePod { .. });
    makes && stop.is_of_one_object() && !stop.is_surprise()
}

/// What came of several things, of which one more has failed.
fn or_graver(all: Result<(), Stop>, stop: Stop) -> Result<(), Stop> {
    both::<_, ()>(all, Err(stop)).map(drop)
}

/// What a step has made that one after it needs.
#[derive(Default)]
struct Made {
    /// The claim of the member whose steps these are.
    claim: Option<Uid>,
    /// The last learner that was added.
    learner: Option<(Serial, MemberId)>,
}

/// Whether a label is written along with the ticket before it: of one write the pod's kubelet and all who watch it hear once.
fn is_written_along(step: &Step, next: &Step) -> bool {
    let (Step::IssueTicket { pod, .. }, Step::LabelPod { pod: labelled, label, .. }) = (step, next) else {
        return false;
    };
    pod == labelled && *label == RoleLabel::Returning
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
mod tests {
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
}
