//! Gives pods other compute resources while they run. Restarts nothing: a pod that Kubernetes does not resize counts as
//! out of date, and is replaced when its turn comes.

use crate::{Finding, Resize, Step, census::Census, draft::Draft};

/// Resizes the next pod, the leader's last; none while one that was given what is wished waits for room on its node.
pub fn resize(draft: &mut Draft<'_>, census: &Census<'_>) {
    let waits_for_room = |resize: Option<Resize>| match resize {
        Some(Resize::NoRoom) => true,
        Some(Resize::Settled | Resize::Refused) | None => false,
    };
    let mut held_up = false;
    for peer in census.peers() {
        let serial = peer.member.serial;
        let wants = peer.member.wants_resources();
        if waits_for_room(peer.member.pod.map(|pod| pod.resize)) && !wants {
            draft.tell_of(serial, Finding::NoRoomToResize);
            held_up = true;
        }
        if wants && !peer.member.outdated() {
            draft.tell_of(serial, Finding::ResourcesOutdated);
        }
    }
    let due = census.voters.iter().filter(|voter| voter.member.wants_resources() && !voter.member.outdated());
    let next = due.max_by_key(|voter| (!census.leads(voter), voter.member.serial));
    let (false, true, Some(next)) = (held_up, draft.is_idle() && census.is_calm(), next) else { return };
    if let Some(pod) = next.member.pod {
        draft.step(Step::ResizePod { serial: next.member.serial, pod: pod.uid.clone() });
    }
}
