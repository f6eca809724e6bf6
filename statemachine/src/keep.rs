//! Keeps the pod of a serial there and fit for what it has to do. Never touches the member list, never another volume.

use crate::{
    Bind, LookAgain, Start, Step, Ticket,
    draft::Draft,
    member::{Ground, Member, Volume},
    report,
};

/// How long a pod may take to come up before it is only looked at every few seconds: its own changes wake us anyway.
const SETTLING_MS: u64 = 60_000;

/// Sees to it that a serial has a pod on its volume, with a ticket to resume if it has run.
pub fn keep(draft: &mut Draft<'_>, member: &Member<'_>) {
    report::troubles(draft, member);
    draft.remember_node(member);
    let Some(pod) = member.pod else { return revive(draft, member) };
    if member.alive().is_none() && draft.world.now.since(pod.created.max(pod.ticket_since)) < SETTLING_MS {
        draft.look(LookAgain::Soon);
    }
    // On a node that is away it may be running: nothing is to be done but to wait until the node is back, or gone.
    if member.ground() == Ground::Unreachable {
        return;
    }
    match member.volume() {
        // The volume goes with its pod, or has gone: not to be mended here.
        Volume::Going(_) | Volume::Lost(_) => {}
        Volume::Absent | Volume::Blank(_) | Volume::Unfit | Volume::Intact(_) if pod.terminating => {
            draft.look(LookAgain::Soon);
        }
        Volume::Unfit => draft.delete_pod(member),
        Volume::Absent | Volume::Blank(_) | Volume::Intact(_) if member.wants_new_pod() => draft.delete_pod(member),
        Volume::Absent | Volume::Blank(_) | Volume::Intact(_) => let_resume(draft, member),
    }
}

/// Makes a new pod for a serial that has none, on the volume it has.
fn revive(draft: &mut Draft<'_>, member: &Member<'_>) {
    let bind = match member.volume() {
        Volume::Absent => return draft.create_seat(member.serial),
        Volume::Blank(uid) | Volume::Intact(uid) => Bind::Claim(uid.clone()),
        Volume::Unfit => return draft.look(LookAgain::Soon),
        Volume::Going(_) | Volume::Lost(_) => return,
    };
    match member.ground_for_new_pod() {
        Ground::Sound => draft.step(Step::CreatePod { serial: member.serial, bind, resume: member.started }),
        Ground::Unreachable | Ground::Gone => draft.look(LookAgain::Later),
    }
}

/// A member that has run gets a ticket to resume, also in place of the one it was created with: should its container
/// come back to an emptied volume, a ticket to create would let it start there with nothing.
fn let_resume(draft: &mut Draft<'_>, member: &Member<'_>) {
    if let (true, Volume::Intact(volume), Some(pod)) = (member.started, member.volume(), member.pod) {
        let ticket = Ticket { start: Start::Resume, volume: volume.clone() };
        if pod.ticket.as_ref() != Some(&ticket) {
            draft.issue_ticket(member, Start::Resume, volume);
        }
    }
}
