//! Founds a cluster: chooses the seed and starts it. A cluster is seeded at most once in its life.

use crate::{
    Finding, Origin, Phase, Seeding, Serial, Start,
    cure::has_failed,
    draft::Draft,
    keep::keep,
    member::{Ground, Member, Volume},
    report, restore, spares,
};

/// No seed yet: spares for the whole cluster are made, and the first one whose launcher waits becomes the seed, so that
/// a pod no node takes holds up nobody.
pub fn choose_seed(draft: &mut Draft<'_>) -> Phase {
    run_what_is_wished(draft);
    spares::strike_out_unfit(draft);
    match draft.world.wish.origin {
        Origin::Nothing => {}
        Origin::Backup(readiness) => return restore::restore_seed(draft, readiness),
    }
    let wished = usize::from(draft.world.wish.replicas);
    let Some((seed, volume)) = spares::readiest(draft).and_then(|seed| Some((seed, seed.volume_to_create_on()?)))
    else {
        spares::furnish(draft, wished);
        return Phase::Pending;
    };
    draft.ledger.seeding = Seeding::Begun(seed.serial);
    draft.issue_ticket(&seed, Start::Seed, volume);
    spares::furnish(draft, wished.saturating_sub(1));
    Phase::Seeding
}

/// The seed is chosen and does not serve yet. It is brought to serve on the volume it was given, and on no other: it
/// may have served, and acknowledged writes, unseen.
pub fn await_seed(draft: &mut Draft<'_>, serial: Serial) -> Phase {
    run_what_is_wished(draft);
    let seed = Member::of(draft.world, serial);
    match seed.volume() {
        Volume::Intact(_) | Volume::Going(_) => {}
        Volume::Absent | Volume::Blank(_) | Volume::Unfit | Volume::Lost(_) => {
            report::troubles(draft, &seed);
            draft.tell(Finding::QuorumLost);
            return Phase::QuorumLost;
        }
    }
    keep(draft, &seed);
    start_seed(draft, &seed);
    spares::strike_out_unfit(draft);
    spares::furnish(draft, usize::from(draft.world.wish.replicas).saturating_sub(1));
    Phase::Seeding
}

/// Nothing has run yet, as far as is known: what is wished now is what everybody may be told to run, unless somebody has failed on
/// it. If somebody says all the same that the cluster runs at a higher minor, who is down is left at what it was told.
fn run_what_is_wished(draft: &mut Draft<'_>) {
    let wished = &draft.world.wish.release;
    let runs_higher = draft.highest_cluster_version().is_some_and(|minor| minor > wished.version.minor);
    draft.newcomers = Some(wished.clone());
    draft.cure = (!runs_higher && !has_failed(draft, wished)).then(|| wished.clone());
    draft.majority_is_down = true;
}

fn start_seed(draft: &mut Draft<'_>, seed: &Member<'_>) {
    let (Some(pod), Some(volume)) = (seed.pod, seed.volume_to_create_on()) else { return };
    let ticket = seed.ticket(Start::Seed, volume);
    let changes = seed.wants_new_pod() || draft.switches_release(seed.serial);
    let is_due = pod.ticket.as_ref() != Some(&ticket) && !pod.terminating && seed.alive().is_none() && !changes;
    if is_due && pod.node.is_some() && seed.ground() == Ground::Sound {
        draft.issue_ticket(seed, Start::Seed, volume);
    }
}
