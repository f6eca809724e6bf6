//! What follows from the member list: the tickets and labels that its members' pods carry, and the disruption budget. Makes
//! and deletes nothing.

use crate::{RoleLabel, Step, census::Census, draft::Draft, keep, leave, member::Member};

/// Puts tickets, labels and the budget right.
pub fn settle(draft: &mut Draft<'_>, census: &Census<'_>) {
    for peer in census.peers() {
        if !peer.leaving && !draft.changes_members() && stays(draft, &peer.member) {
            keep::take_back_create(draft, &peer.member);
        }
        label(draft, &peer.member, census.voters.iter().any(|voter| voter.id == peer.id));
    }
    leave_a_quorum(draft, census);
}

fn stays(draft: &Draft<'_>, member: &Member<'_>) -> bool {
    member.pod.is_some_and(|pod| !pod.terminating) && !draft.deletes_pod(member.serial)
}

/// The label by which the budget counts a voter. One that is about to vote has it already.
///
/// The kubelet asks a pod's readiness anew when the pod changes (`prober_manager.go`, `UpdatePodStatus`): a label that comes
/// when the voter serves spares it the rest of a probe's second.
fn label(draft: &mut Draft<'_>, member: &Member<'_>, votes: bool) {
    let Some(pod) = member.pod.filter(|_| stays(draft, member) && !draft.promotes(member.serial)) else { return };
    let label = match (votes, pod.label) {
        (false, _) => RoleLabel::Absent,
        (true, _) if member.well() => RoleLabel::Voter,
        (true, as_it_is) => as_it_is,
    };
    if pod.label != label {
        draft.step(Step::LabelPod { serial: member.serial, pod: pod.uid.clone(), label });
    }
}

/// The budget lets a drain take one voter where that leaves a quorum, and the only one there is. While the pods that it
/// counts are not just those of the voters, and while that changes, it lets none go: of two voters and a learner that is
/// about to vote, one less is no quorum, and etcd has removed a member before the kubelet knows that it serves no more.
fn leave_a_quorum(draft: &mut Draft<'_>, census: &Census<'_>) {
    let labelled =
        |member: &Member<'_>| member.pod.is_some_and(|pod| pod.label != RoleLabel::Absent && !pod.terminating);
    let strays = leave::strays(draft, census).iter().filter(|stray| labelled(stray)).count();
    let learners = census.learners.iter().map(|learner| &learner.member);
    let learners = learners.filter(|learner| labelled(learner) || draft.promotes(learner.serial)).count();
    let counted = census.voters.len() + learners + strays;
    let settled = learners + strays == 0 && !draft.removes_a_member();
    draft.set_budget(if settled && counted != 2 { counted.saturating_sub(1) } else { counted });
}
