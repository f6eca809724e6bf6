//! Removes voters: those whose volume is lost, those replaced, those too many. Never so that healthy voters fall below
//! a quorum, never a live one while another is down.

use crate::{
    Finding, LookAgain, Step,
    census::{Census, Peer, quorum},
    draft::Draft,
};

/// How long nothing may be heard of a voter that leaves until it counts as down, where nothing else says so. One that serves
/// and was slow once goes when its successor is there.
const BURIAL_SILENCE_MS: u64 = 5_000;

/// Removes a voter that is down and can't come back. This comes before its successor is added: of three voters with
/// one down, etcd refuses even a learner.
pub fn bury(draft: &mut Draft<'_>, census: &Census<'_>) -> Option<Step> {
    let dead: Vec<_> =
        census.voters.iter().filter(|voter| voter.leaving && voter.member.is_down_for(BURIAL_SILENCE_MS)).collect();
    let goes = dead.iter().find(|voter| may_go(census, voter));
    if goes.is_none()
        && let Some(waits) = dead.last()
    {
        wait(draft, census, waits);
    }
    goes.map(|voter| census.removal_of(voter))
}

/// Removes a voter too many, once no learner is in the way: one that was replaced, else one that is ill, else the one
/// with the highest serial. The leader hands over first: removed directly, it cost up to 2 s of writes.
pub fn shed(draft: &mut Draft<'_>, census: &Census<'_>) -> Option<Step> {
    let victim = victim(census).filter(|_| census.learners.is_empty())?;
    if !may_go(census, victim) {
        wait(draft, census, victim);
        None
    } else if census.leads(victim) {
        hand_over(draft, census, victim)
    } else if census.leader().is_some() {
        Some(census.removal_of(victim))
    } else {
        draft.look(LookAgain::Soon);
        None
    }
}

fn victim<'c, 'w>(census: &'c Census<'w>) -> Option<&'c Peer<'w>> {
    let too_many = census.staying_voters().count() > census.wished;
    let replaced = census.staying_voters().count() >= census.wished;
    let candidates = census.voters.iter().filter(|voter| if voter.leaving { replaced } else { too_many });
    candidates.max_by_key(|voter| (voter.leaving, !voter.member.well(), voter.member.serial))
}

/// Moves the leadership to the first of those who can take it over now: raft takes no writes while it waits for one that lags,
/// for an election timeout, and then gives the transfer up (`stepLeader` in etcd's `raft.go`).
pub fn hand_over(draft: &mut Draft<'_>, census: &Census<'_>, from: &Peer<'_>) -> Option<Step> {
    let heir = census.heirs(from).find(|heir| census.has_caught_up(heir) || !from.member.well());
    if heir.is_none() {
        draft.tell(Finding::QuorumTooThin);
        draft.look(LookAgain::Soon);
    }
    heir.map(|heir| Step::MoveLeader { from: from.id, to: heir.id })
}

/// Says why a voter stays for now. That its connections end is nothing that Kubernetes would tell.
fn wait(draft: &mut Draft<'_>, census: &Census<'_>, voter: &Peer<'_>) {
    draft.tell_of(voter.member.serial, Finding::QuorumTooThin);
    if census.runs_without_pod(voter) {
        draft.look(LookAgain::Soon);
    }
}

/// Whether a voter may be removed. One that may be alive, or come back before it is removed, goes only if all others are
/// well. One that stays down, also without its pod, and leads nobody, goes if those that are well are a quorum of those that
/// remain.
fn may_go(census: &Census<'_>, victim: &Peer<'_>) -> bool {
    let others = census.voters.len().saturating_sub(1);
    let well = census.voters.iter().filter(|voter| voter.id != victim.id && voter.member.well()).count();
    let stays_down = victim.member.stays_down() && !census.runs_without_pod(victim);
    if stays_down && !census.leads(victim) { well >= quorum(others) } else { others > 0 && well == others }
}
