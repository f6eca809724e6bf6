//! Moves the leadership off a node that is about to be drained. Touches no pod.

use crate::{Step, census::Census, draft::Draft};

/// Moves it to a voter that is well on a node that stays, if there is one. At a drain etcd hands over by itself when it is
/// told to end; done before, no write waits for it.
pub fn evade(draft: &mut Draft<'_>, census: &Census<'_>) {
    if !draft.is_idle() {
        return;
    }
    let Some(leader) = census.leader().filter(|leader| census.is_cordoned(leader)) else { return };
    let heir = census.heirs(leader).find(|heir| !census.is_cordoned(heir) && census.has_caught_up(heir));
    if let Some(heir) = heir {
        draft.step(Step::MoveLeader { from: leader.id, to: heir.id });
    }
}
