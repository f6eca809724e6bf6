//! Keeps the pod of a serial there and fit for what it has to do. Never touches the member list, never another volume.

use crate::{
    Bind, Birth, LookAgain, Millis, Role, Standing, Start, cure,
    draft::Draft,
    member::{Ground, Member, Volume},
    report,
};

/// Sees to it that a serial has a pod on its volume, with a ticket to resume if it has run.
pub fn keep(draft: &mut Draft<'_>, member: &Member<'_>) {
    let votes =
        draft.ledger.members.get(&member.serial).is_some_and(|entry| matches!(entry.standing, Standing::Voter(_)));
    keep_as(draft, member, if votes { Role::Voter } else { Role::Learner });
}

/// The same, where it has this role: by that the budget counts a pod that is made for it.
pub fn keep_as(draft: &mut Draft<'_>, member: &Member<'_>, role: Role) {
    report::troubles(draft, member);
    draft.remember(member);
    let birth = if member.started { Birth::Resuming(role) } else { Birth::Waiting };
    let Some(pod) = member.pod else { return revive(draft, member, birth) };
    if !member.well() && member.is_settling() {
        // Nobody can be asked there before it has an address, and of that the watch tells.
        draft.look(if pod.heard > Millis(0) { LookAgain::Soon } else { LookAgain::Later });
    }
    // On a node that is away it may be running: nothing is to be done but to wait until the node is back, or gone.
    if member.ground() == Ground::Unreachable {
        return;
    }
    match member.volume() {
        // It has gone: not to be mended here. One that goes with its pod is only kept from being created on.
        Volume::Lost(_) => {}
        Volume::Absent | Volume::Blank(_) | Volume::Unfit | Volume::Intact(_) if pod.terminating => {
            draft.look(LookAgain::Soon);
        }
        Volume::Unfit => draft.delete_pod(member),
        Volume::Absent | Volume::Blank(_) | Volume::Intact(_) if member.wants_new_pod() => draft.delete_pod(member),
        Volume::Absent | Volume::Blank(_) | Volume::Intact(_) if restores_for_another(draft, member) => {
            draft.delete_pod(member);
        }
        Volume::Absent | Volume::Blank(_) | Volume::Intact(_) if cure::cure(draft, member) => {}
        Volume::Absent | Volume::Blank(_) | Volume::Intact(_) if prepare_newcomer(draft, member) => {}
        Volume::Absent | Volume::Blank(_) | Volume::Intact(_) | Volume::Going(_) => let_resume(draft, member),
    }
}

/// Makes a new pod for a serial that has none, on the volume it has.
pub fn revive(draft: &mut Draft<'_>, member: &Member<'_>, birth: Birth) {
    let bind = match member.volume() {
        Volume::Absent => return draft.create_seat(member.serial, birth),
        Volume::Blank(uid) | Volume::Intact(uid) => Bind::Claim(uid.clone()),
        Volume::Unfit => return draft.look(LookAgain::Soon),
        Volume::Going(_) | Volume::Lost(_) => return,
    };
    match member.ground_for_new_pod() {
        Ground::Sound => draft.create_pod(member.serial, bind, birth),
        Ground::Unreachable | Ground::Gone => draft.look(LookAgain::Later),
    }
}

/// Whether it restores for another release than is to run: each release's own tool makes its data, and the image of what
/// runs before the launcher is not exchanged in place.
fn restores_for_another(draft: &Draft<'_>, member: &Member<'_>) -> bool {
    let restores = member.pod.is_some_and(|pod| pod.restores);
    restores && is_unspent(member) && member.told() != draft.newcomers.as_ref()
}

/// Whether its pod was never told to start. Somebody may have taken its ticket away: an etcd that answers was.
fn is_unspent(member: &Member<'_>) -> bool {
    member.create.is_none() && member.pod.is_some_and(|pod| pod.ticket.is_none()) && member.alive().is_none()
}

/// A pod that was never told to start is told to run what newcomers run now; false if it does. One that was made for what
/// is wished may stay so, if that is of the same minor: the leader's own image may not be had any more.
fn prepare_newcomer(draft: &mut Draft<'_>, member: &Member<'_>) -> bool {
    if member.started || !is_unspent(member) || may_join(draft, member) {
        return false;
    }
    let Some(release) = draft.newcomers.clone() else { return false };
    draft.switch_release(member, &release);
    true
}

/// Whether a newcomer's pod is told to run what newcomers run, or what is wished and of the same minor.
pub fn may_join(draft: &Draft<'_>, member: &Member<'_>) -> bool {
    let (Some(told), Some(newcomers)) = (member.told(), &draft.newcomers) else { return false };
    let wished = &draft.world.wish.release;
    told == newcomers || (told == wished && told.version.minor == newcomers.version.minor)
}

/// A member that has run and whose etcd does not gets a ticket to resume.
fn let_resume(draft: &mut Draft<'_>, member: &Member<'_>) {
    if member.started && member.alive().is_none() {
        let_only_resume(draft, member);
    }
}

/// Takes a ticket to create back, once it was used, and puts one to resume in its place.
pub fn take_back_create(draft: &mut Draft<'_>, member: &Member<'_>) {
    if member.started && member.alive().is_some() {
        let_only_resume(draft, member);
    }
}

/// Puts a ticket to resume on it, whatever it carries. Should its container come back to an emptied volume, it would start
/// there with nothing otherwise: also on a volume that goes, for as long as the pod that holds it stays.
pub fn let_only_resume(draft: &mut Draft<'_>, member: &Member<'_>) {
    let Some(pod) = member.pod.filter(|pod| !pod.terminating) else { return };
    let (Volume::Intact(volume) | Volume::Going(volume)) = member.volume() else { return };
    let ticket = member.ticket(Start::Resume, volume);
    if pod.ticket.as_ref() != Some(&ticket) {
        draft.issue_ticket(member, Start::Resume, volume);
    }
}
