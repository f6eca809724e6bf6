//! Begins a cluster with a backup: has it restored onto the volume of one pod, which then becomes the seed. It restores
//! nothing once a seed is chosen, and never starts one whose restore is not done.

use crate::{
    Birth, Finding, Phase, Readiness, Restore, Seeding, Sight, Start,
    draft::Draft,
    keep::{keep, revive},
    member::Member,
    spares,
};

/// One pod restores, the first that is made: a second one would fetch everything once more for nothing. The others wait
/// until a node has taken it, so that it is not the one for which there is no room.
pub fn restore_seed(draft: &mut Draft<'_>, backup: Readiness) -> Phase {
    let others = usize::from(draft.world.wish.replicas).saturating_sub(1);
    let Some(seed) = spares::restoring(draft) else {
        match backup {
            Readiness::Ready => make(draft),
            Readiness::Awaited => draft.tell(Finding::BackupAwaited),
            Readiness::Unfit => draft.tell(Finding::BackupUnfit),
        }
        return Phase::Restoring;
    };
    if let Some(volume) = seed.volume_to_create_on().filter(|_| is_restored(draft, &seed)) {
        draft.ledger.seeding = Seeding::Begun(seed.serial);
        draft.issue_ticket(&seed, Start::Seed, volume);
        spares::furnish(draft, others);
        return Phase::Seeding;
    }
    keep(draft, &seed);
    if seed.pod.is_some_and(|pod| pod.sight == Sight::Restoring(Restore::Fails)) {
        draft.tell_of(seed.serial, Finding::RestoreFails);
    }
    if seed.pod.is_some_and(|pod| pod.node.is_some()) {
        spares::furnish(draft, others);
    }
    Phase::Restoring
}

/// Its launcher waits, which it does only after the restore; and it is told to run what is wished, whose own tool has made
/// the data.
fn is_restored(draft: &Draft<'_>, seed: &Member<'_>) -> bool {
    seed.waits() && !seed.wants_new_pod() && seed.told() == draft.newcomers.as_ref()
}

/// A pod that restores: on the volume of a spare that has no pod, as after its deletion, or for a new serial.
fn make(draft: &mut Draft<'_>) {
    match spares::without_pod(draft) {
        Some(spare) => revive(draft, &spare, Birth::Restoring),
        None => spares::hand_out_serial(draft, Birth::Restoring),
    }
}
