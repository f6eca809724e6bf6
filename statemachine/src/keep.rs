//! Keeps the pod of a serial there and fit for what it has to do. Never touches the member list, never another volume.

use crate::{
    Bind, LookAgain, Start, Step, Ticket,
    draft::Draft,
    member::{Ground, Member, Volume},
    report,
};

/// Sees to it that a serial has a pod on its volume, with a ticket to resume if it has run.
pub fn keep(draft: &mut Draft<'_>, member: &Member<'_>) {
    report::troubles(draft, member);
    draft.remember(member);
    let Some(pod) = member.pod else { return revive(draft, member) };
    if !member.well() && member.is_settling() {
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

/// A member that has run and whose etcd does not gets a ticket to resume.
fn let_resume(draft: &mut Draft<'_>, member: &Member<'_>) {
    if member.alive().is_none() {
        issue_resume(draft, member);
    }
}

/// Takes a ticket to create back, once it was used, and puts one to resume in its place. Should the container come back
/// to an emptied volume, it would start there with nothing otherwise.
pub fn take_back_create(draft: &mut Draft<'_>, member: &Member<'_>) {
    if member.alive().is_some() {
        issue_resume(draft, member);
    }
}

fn issue_resume(draft: &mut Draft<'_>, member: &Member<'_>) {
    if let (true, Volume::Intact(volume), Some(pod)) = (member.started, member.volume(), member.pod) {
        let ticket = Ticket { start: Start::Resume, volume: volume.clone() };
        if pod.ticket.as_ref() != Some(&ticket) {
            draft.issue_ticket(member, Start::Resume, volume);
        }
    }
}
