//! Clears away what members leave behind that etcd's list holds no more. Never touches a listed member or a spare.

use crate::{Retention, Serial, Storage, census::Census, draft::Draft, member::Member};

/// The pods and claims of nobody: first the pod, then the claim, if it is not to be retained.
///
/// A serial this ledger never handed out is none of its business: somebody knows more than this ledger does.
pub fn clear_away(draft: &mut Draft<'_>, census: &Census<'_>) {
    for stray in strays(draft, census) {
        match (stray.pod, stray.claim, draft.world.wish.storage) {
            (Some(_), _, _) => draft.delete_pod(&stray),
            (None, Some(claim), Storage::Claims { on_scale_down: Retention::Delete, .. }) if claim.ours => {
                draft.delete_claim(stray.serial, claim);
            }
            (None, _, Storage::Claims { .. } | Storage::Ephemeral) => {}
        }
    }
}

/// The serials of nobody.
pub fn strays<'w>(draft: &Draft<'w>, census: &Census<'_>) -> Vec<Member<'w>> {
    let is_stray = |serial: &Serial| {
        *serial < draft.ledger.next_serial && !draft.ledger.members.contains_key(serial) && !census.lists(*serial)
    };
    draft.world.seats.keys().filter(|serial| is_stray(serial)).map(|serial| Member::of(draft.world, *serial)).collect()
}
