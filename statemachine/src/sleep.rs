//! Hibernates a cluster: its pods go, its volumes and its ledger stay. Changes no membership.

use crate::{
    Finding, LookAgain, Phase, Storage,
    draft::Draft,
    member::{Member, Volume},
};

/// Deletes all pods but those whose volume would go with them.
pub fn hibernate(draft: &mut Draft<'_>) -> Phase {
    let would_lose_all = match draft.world.wish.storage {
        Storage::Claims { .. } => false,
        Storage::Ephemeral => draft.ledger.members.values().any(|entry| entry.create.is_some()),
    };
    if would_lose_all {
        draft.look(LookAgain::Later);
        return Phase::Failed;
    }
    let sleepers: Vec<_> = draft.world.seats.keys().map(|serial| Member::of(draft.world, *serial)).collect();
    let mut awake = 0;
    for member in sleepers.iter().filter(|member| member.pod.is_some()) {
        awake += 1;
        match member.volume() {
            Volume::Going(_) => draft.tell_of(member.serial, Finding::VolumeGoing),
            Volume::Absent | Volume::Blank(_) | Volume::Unfit | Volume::Intact(_) | Volume::Lost(_) => {
                draft.remember(member);
                draft.delete_pod(member);
            }
        }
    }
    if awake == 0 { Phase::Hibernated } else { Phase::Scaling }
}
