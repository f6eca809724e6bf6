//! Spares: serials with a volume and a waiting launcher, ready to become members. Never touches a member.

use crate::{
    Birth, Entry, Membership, Seeding, Serial, Standing,
    census::START_PATIENCE_MS,
    draft::Draft,
    keep::{keep, may_join},
    member::{Ground, Member, Volume},
};

/// The spares, the readiest first.
pub fn muster<'w>(draft: &Draft<'w>) -> Vec<Member<'w>> {
    let is_seed = |serial: Serial| draft.ledger.seeding == Seeding::Begun(serial);
    let mut spares: Vec<_> = draft
        .ledger
        .members
        .iter()
        .filter(|(serial, entry)| entry.create.is_none() && entry.standing == Standing::Spare && !is_seed(**serial))
        .map(|(serial, _)| Member::of(draft.world, *serial))
        .collect();
    spares.sort_by_key(|spare| (!is_ready(draft, spare), spare.serial));
    spares
}

/// The spare that restores a backup for who is to be the seed: the one that is furthest, where what runs can be known.
pub fn restoring<'w>(draft: &Draft<'w>) -> Option<Member<'w>> {
    let at_work = |spare: &Member<'_>| spare.pod.is_some_and(|pod| pod.restores) && is_on_sound_ground(spare);
    muster(draft).into_iter().filter(at_work).min_by_key(|spare| (!spare.waits(), spare.serial))
}

/// The first spare that has no pod, and can have one.
pub fn without_pod<'w>(draft: &Draft<'w>) -> Option<Member<'w>> {
    muster(draft).into_iter().find(|spare| spare.pod.is_none() && is_on_sound_ground(spare))
}

/// Strikes out the spares that can never become members: their claim was made for another object, or their pod got a
/// ticket of which the ledger knows nothing.
pub fn strike_out_unfit(draft: &mut Draft<'_>) {
    for spare in muster(draft) {
        let claimed_by_another = spare.claim.is_some_and(|claim| !claim.ours);
        let has_ticket = spare.pod.is_some_and(|pod| pod.ticket.is_some());
        if claimed_by_another || has_ticket {
            strike_out(draft, spare.serial);
        }
    }
}

/// Strikes a serial out of the ledger; it is never handed out again.
pub fn strike_out(draft: &mut Draft<'_>, serial: Serial) {
    draft.ledger.members.remove(&serial);
    draft.ledger.next_serial = draft.ledger.next_serial.max(serial.next());
}

/// Has so many spares, all at once: only the starts of etcd are ordered, and a claim and a waiting launcher cost next
/// to nothing. One that sits where it can't be started doesn't count, one that no node takes yet does.
pub fn furnish(draft: &mut Draft<'_>, wanted: usize) {
    let spares = muster(draft);
    let fit: Vec<_> = spares.iter().filter(|spare| is_fit(draft, spare)).take(wanted).collect();
    for spare in &fit {
        keep(draft, spare);
    }
    for _ in fit.len()..wanted {
        hand_out_serial(draft, Birth::Waiting);
    }
}

/// Lets go the spares that nobody wants: pod, then claim, then entry. Retention speaks of data, and there is none.
pub fn dismiss(draft: &mut Draft<'_>, wanted: usize) {
    let mut kept = 0;
    for spare in &muster(draft) {
        if is_fit(draft, spare) && kept < wanted {
            kept += 1;
        } else if spare.pod.is_some() {
            draft.delete_pod(spare);
        } else if let Some(claim) = spare.claim {
            draft.delete_claim(spare.serial, claim);
        } else {
            strike_out(draft, spare.serial);
        }
    }
}

/// The first spare that can be started now.
pub fn readiest<'w>(draft: &Draft<'w>) -> Option<Member<'w>> {
    ready(draft).next()
}

/// The spares that can be started now.
pub fn ready<'w>(draft: &Draft<'w>) -> impl Iterator<Item = Member<'w>> {
    muster(draft).into_iter().filter(|spare| is_ready(draft, spare))
}

/// Whether it can be started now.
fn is_ready(draft: &Draft<'_>, spare: &Member<'_>) -> bool {
    spare.waits()
        && is_fit(draft, spare)
        && may_join(draft, spare)
        && !spare.wants_new_pod()
        && spare.volume_to_create_on().is_some()
}

/// Whether it is where it can be started, or will be. What a backup was restored onto is no new member's volume.
fn is_fit(draft: &Draft<'_>, spare: &Member<'_>) -> bool {
    is_on_sound_ground(spare) && !spare.pod.is_some_and(|pod| pod.restores) && !is_given_up(draft, spare)
}

/// Whether its launcher still can't use the volume, before there is any ticket, after so long as a learner is given to start.
/// Not before the cluster is seeded: nothing is let go then, and each spare that refuses would be followed by another.
fn is_given_up(draft: &Draft<'_>, spare: &Member<'_>) -> bool {
    let overdue = spare.pod.is_some_and(|pod| draft.world.now.since(pod.created) > START_PATIENCE_MS);
    matches!(draft.ledger.seeding, Seeding::Done(_)) && spare.refusal().is_some() && overdue
}

fn is_on_sound_ground(spare: &Member<'_>) -> bool {
    spare.ground() == Ground::Sound && spare.ground_for_new_pod() == Ground::Sound
}

/// Hands out a serial above every one there is a trace of, and makes its claim and its pod.
pub fn hand_out_serial(draft: &mut Draft<'_>, birth: Birth) {
    let world = draft.world;
    let listed = match &world.membership {
        Membership::Unknown => None,
        Membership::Known(list) => list.members.values().filter_map(|line| line.serial).max(),
    };
    let highest = [world.seats.keys().next_back().copied(), draft.ledger.members.keys().next_back().copied(), listed]
        .into_iter()
        .flatten()
        .map(Serial::next)
        .fold(draft.ledger.next_serial, Serial::max);
    // The last serial of all is never handed out, as there would be none to hand out after it.
    if highest == highest.next() {
        return;
    }
    draft.ledger.next_serial = highest.next();
    draft.ledger.members.insert(highest, Entry::default());
    draft.create_seat(highest, birth);
}

/// Whether there is a spare that waits or will in a moment: on a sound node, in a pod that was made a moment ago.
pub fn one_is_new(draft: &Draft<'_>, within: u64) -> bool {
    muster(draft).iter().any(|spare| is_new(draft, spare, within))
}

/// Whether there is a spare that does not wait yet, and will in a moment.
pub fn one_comes(draft: &Draft<'_>, within: u64) -> bool {
    muster(draft).iter().any(|spare| !is_ready(draft, spare) && is_new(draft, spare, within))
}

fn is_new(draft: &Draft<'_>, spare: &Member<'_>, within: u64) -> bool {
    let Some(pod) = spare.pod.filter(|pod| pod.node.is_some() && pod.trouble.is_none() && !pod.terminating) else {
        return false;
    };
    match spare.volume() {
        Volume::Blank(_) => is_fit(draft, spare) && draft.world.now.since(pod.created) < within,
        Volume::Absent | Volume::Unfit | Volume::Intact(_) | Volume::Going(_) | Volume::Lost(_) => false,
    }
}
