//! What follows from the member list: the tickets and labels that its members' pods carry. Makes and deletes nothing.

use crate::{RoleLabel, Step, census::Census, draft::Draft, keep, member::Member};

/// Puts tickets and labels right.
pub fn settle(draft: &mut Draft<'_>, census: &Census<'_>) {
    for peer in census.peers() {
        if !peer.leaving && !draft.changes_members() && stays(draft, &peer.member) {
            keep::take_back_create(draft, &peer.member);
        }
        label(draft, &peer.member, census.voters.iter().any(|voter| voter.id == peer.id));
    }
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
