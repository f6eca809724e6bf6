//! Moves the leadership where it is in nobody's way: off a node that is about to be drained, and off a member that would
//! refuse a change of the list. Touches no pod.

use crate::{
    Step,
    census::{Census, Peer},
    draft::Draft,
    grow,
};

/// Moves it to a voter that is well on a node that stays, if there is one. At a drain etcd hands over by itself when it is
/// told to end; done before, no write waits for it.
pub fn evade(draft: &mut Draft<'_>, census: &Census<'_>) {
    if !draft.is_idle() {
        return;
    }
    let Some(leader) = census.leader().filter(|leader| census.is_cordoned(leader)) else { return };
    // For a newcomer's sake it was moved off a log of the old form, and stays off it.
    let fit = |heir: &Peer<'_>| {
        !grow::wants_clean_log(draft, census) || !grow::runs_without_old_log(leader) || grow::runs_without_old_log(heir)
    };
    let heir = census.heirs(leader).find(|heir| !census.is_cordoned(heir) && census.has_caught_up(heir) && fit(heir));
    if let Some(heir) = heir {
        draft.step(Step::MoveLeader { from: leader.id, to: heir.id });
    }
}

/// A change of the member list; or first the leadership to a voter that counts all others as connected, if the leader
/// does not: it would refuse to add anybody, and to remove a live voter, for as long as it leads.
pub fn with_a_leader_who_counts_all(census: &Census<'_>, change: Step) -> Step {
    match change {
        Step::AddLearner { .. } | Step::Remove { .. } => {
            let Some(leader) = census.leader().filter(|leader| leader.overlooks_somebody()) else { return change };
            let heir = census.heirs(leader).find(|heir| !heir.overlooks_somebody() && census.has_caught_up(heir));
            heir.map_or(change, |heir| Step::MoveLeader { from: leader.id, to: heir.id })
        }
        other => other,
    }
}
