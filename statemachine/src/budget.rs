//! How many voters a drain has to leave: what the disruption budget says. Takes no step; comes last, as it follows from the
//! steps that were planned.

use crate::{
    RoleLabel,
    census::{Census, Peer},
    draft::Draft,
    leave,
    member::{Ground, Member},
};

/// The budget lets a drain take one voter where that leaves a quorum, and the only one there is. While the pods that it
/// counts are not just those of the voters, and while that changes, it lets none go: of two voters and a learner that is
/// about to vote, one less is no quorum, and etcd has removed a member before the kubelet knows that it serves no more.
///
/// None either from the step on by which a voter is stopped: the kubelet reports it as ready until its container has ended,
/// and a deletion is heard of later by who counts. The eviction API refuses until the new number is counted by
/// (`pkg/registry/core/pod/storage/eviction.go`, `ObservedGeneration`). It stays so until those that were stopped are back, and
/// for a whole roll: then it is written twice in it, and not twice for each member. A single voter gains nothing by that.
pub fn leave_a_quorum(draft: &mut Draft<'_>, census: &Census<'_>, rolls: bool) {
    let labelled =
        |member: &Member<'_>| member.pod.is_some_and(|pod| pod.label != RoleLabel::Absent && !pod.terminating);
    let strays = leave::strays(draft, census).iter().filter(|stray| labelled(stray)).count();
    let learners = census.learners.iter().map(|learner| &learner.member);
    let learners = learners.filter(|learner| labelled(learner) || draft.promotes(learner.serial)).count();
    let counted = census.voters.len() + learners + strays;
    let settled = learners + strays == 0 && !draft.removes_a_member();
    let stops = counted > 1 && census.voters.iter().any(|voter| is_stopped(draft, voter));
    if !settled || counted == 2 || stops {
        draft.set_budget(counted);
    } else if counted == 1 || !may_be_away(draft, census, rolls) {
        draft.set_budget(counted.saturating_sub(1));
    }
}

/// Whether this plan stops a voter that Kubernetes may count.
fn is_stopped(draft: &Draft<'_>, voter: &Peer<'_>) -> bool {
    let serial = voter.member.serial;
    let is_shown = voter.member.well() || voter.member.pod.is_some_and(|pod| pod.ready);
    is_shown && (draft.deletes_pod(serial) || draft.switches_release(serial))
}

/// Whether a voter may have been stopped that Kubernetes counts, or is on its way back, or another one follows it: then the
/// budget stays as it is. Once Kubernetes itself shows that one is down, and that lasts, it counts as it should; were all asked
/// for then, no drain could take that one's own pod.
fn may_be_away(draft: &Draft<'_>, census: &Census<'_>, rolls: bool) -> bool {
    let members = || census.voters.iter().map(|voter| &voter.member);
    let is_shown_down = |member: &Member<'_>| member.pod.is_some_and(|pod| !pod.ready) && !is_coming(draft, member);
    census.leader().is_none()
        || members().any(|member| is_coming(draft, member))
        || (rolls && !members().any(is_shown_down))
}

/// Whether it ends now, or is expected back in a moment. One that is told to run another image ends as soon as its kubelet hears
/// of that: also one whose node is away, and which counts again for a moment when the node is back.
fn is_coming(draft: &Draft<'_>, member: &Member<'_>) -> bool {
    match member.pod {
        None => draft.creates_pod(member.serial),
        Some(pod) if pod.terminating => member.ground() == Ground::Sound,
        Some(pod) => pod.switching || (!pod.ready && member.is_settling()),
    }
}
