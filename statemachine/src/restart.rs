//! Brings outdated pods up to date by restarting them, one at a time. Never while anything else is going on.

use crate::{
    Finding, Storage,
    census::{Census, Peer},
    draft::Draft,
    shrink,
};

/// Restarts the next outdated member once all is well: the followers from the highest serial down, then the leader,
/// which hands over first.
pub fn roll(draft: &mut Draft<'_>, census: &Census<'_>) {
    for outdated in census.peers().filter(|peer| peer.member.outdated()) {
        draft.tell_of(outdated.member.serial, Finding::PodOutdated);
    }
    let last_in_turn = |voter: &&Peer<'_>| (!census.leads(voter), voter.member.serial);
    let Some(next) = census.voters.iter().filter(|voter| voter.member.outdated()).max_by_key(last_in_turn) else {
        return;
    };
    if !draft.is_idle() || !is_calm(draft, census) {
        return;
    }
    if census.leads(next) && census.voters.len() > 1 {
        if let Some(step) = shrink::hand_over(draft, census, next) {
            draft.step(step);
        }
    } else {
        draft.delete_pod(&next.member);
    }
}

/// Whether a member can be spared for the moment: all voters are there, ready and caught up, and nobody comes or goes.
fn is_calm(draft: &Draft<'_>, census: &Census<'_>) -> bool {
    let survives_its_pod = match draft.world.wish.storage {
        Storage::Claims { .. } => true,
        Storage::Ephemeral => false,
    };
    let all_there = census.voters.iter().all(|voter| {
        let ready = voter.member.pod.is_some_and(|pod| pod.ready);
        ready && !voter.leaving && voter.member.well() && census.has_caught_up(voter)
    });
    survives_its_pod && all_there && census.learners.is_empty() && census.voters.len() == census.wished
}
