//! Gives pods other compute resources while they run. Restarts nothing: a pod that Kubernetes does not resize counts as
//! out of date, and is replaced when its turn comes.

use crate::{Finding, Resize, Step, census::Census, draft::Draft};

/// Resizes the next pod, the leader's last; none while one waits for room on its node.
pub fn resize(draft: &mut Draft<'_>, census: &Census<'_>) {
    for peer in census.peers() {
        let serial = peer.member.serial;
        match peer.member.pod.map(|pod| pod.resize) {
            Some(Resize::NoRoom) => draft.tell_of(serial, Finding::NoRoomToResize),
            Some(Resize::Settled | Resize::Refused) | None => {}
        }
        if peer.member.wants_resources() && !peer.member.outdated() {
            draft.tell_of(serial, Finding::ResourcesOutdated);
        }
    }
    let waits = census.peers().any(|peer| peer.member.pod.is_some_and(|pod| pod.resize == Resize::NoRoom));
    let due = census.voters.iter().filter(|voter| voter.member.wants_resources() && !voter.member.outdated());
    let next = due.max_by_key(|voter| (!census.leads(voter), voter.member.serial));
    let (false, true, Some(next)) = (waits, draft.is_idle() && census.is_calm(), next) else { return };
    if let Some(pod) = next.member.pod {
        draft.step(Step::ResizePod { serial: next.member.serial, pod: pod.uid.clone() });
    }
}
