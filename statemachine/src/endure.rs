//! Keeps the members that are known from the ledger running while etcd can't be asked, or can't be trusted to be ours
//! alone. Changes no membership, deletes no claim, forgets nothing.

use crate::{
    Finding, LookAgain, Phase, Role, Standing,
    census::quorum,
    cure,
    draft::Draft,
    keep::keep_as,
    member::{Member, Volume},
    report,
};

/// Brings back every member on its own volume, all at once: they can't have a quorum one after the other.
pub fn endure(draft: &mut Draft<'_>, why: Finding) -> Phase {
    draft.tell(why);
    let members = members(draft);
    // Until it answers after a start; after that, what changes in Kubernetes wakes us.
    if members.iter().any(|(member, _)| member.is_settling()) {
        draft.look(LookAgain::Soon);
    }
    let voters: Vec<_> = members.iter().filter(|(_, votes)| *votes).map(|(member, _)| member).collect();
    // One that is only not heard may well serve.
    let may_serve = |voter: &&&Member<'_>| !voter.fails_on_release() && !voter.surely_down();
    draft.majority_is_down = voters.iter().filter(may_serve).count() < quorum(voters.len());
    for (member, _) in &members {
        match member.volume() {
            Volume::Intact(_) | Volume::Going(_) => {
                draft.cure = cure::without_etcd(draft, member);
                keep_as(draft, member, Role::Voter);
            }
            Volume::Absent | Volume::Blank(_) | Volume::Unfit | Volume::Lost(_) => report::troubles(draft, member),
        }
    }
    // Nobody can say which of them vote by now, so none can be spared.
    if members.iter().any(|(_, votes)| !votes) {
        draft.set_budget(members.len());
    }
    let intact = voters.iter().filter(|voter| !matches!(voter.volume(), Volume::Lost(_))).count();
    if intact < quorum(voters.len()) {
        draft.tell(Finding::QuorumLost);
        return Phase::QuorumLost;
    }
    let as_wished = voters.len() == usize::from(draft.world.wish.replicas);
    if as_wished && voters.iter().all(|voter| voter.well()) { Phase::Running } else { Phase::Healing }
}

/// The members the ledger knows that may have run, and whether they vote. A learner may have been promoted since, so it
/// is resumed, and counted by the budget, like the others; one that was never told to join has nothing to resume.
fn members<'w>(draft: &Draft<'w>) -> Vec<(Member<'w>, bool)> {
    let ledger = draft.ledger.members.iter();
    ledger
        .filter_map(|(serial, entry)| match entry.standing {
            Standing::Voter(_) => Some((Member::of(draft.world, *serial).having_run(), true)),
            Standing::Learner(_) if entry.create.is_some() => {
                Some((Member::of(draft.world, *serial).having_run(), false))
            }
            Standing::Learner(_) | Standing::Spare => None,
        })
        .collect()
}
