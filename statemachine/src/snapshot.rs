//! Has a snapshot taken before the first member goes to another minor: afterwards the way back leads through etcd's own
//! downgrade alone. Orders it and waits for it; switches nothing.

use crate::{Finding, LookAgain, Release, Saved, Step, World, census::Census, draft::Draft, trial::Verdict};

/// Whether nobody may be told to run this release yet, for want of a snapshot. None is wanted for the minor that the
/// cluster runs at, nor where a member was told to run the new one already.
pub fn is_due(world: &World, census: &Census<'_>, release: &Release) -> bool {
    let to = release.version.minor;
    let there = |told: Option<&Release>| told.is_some_and(|told| told.version.minor == to);
    world.wish.snapshot_first
        && world.snapshots.get(&to) != Some(&Saved::Taken)
        && census.cluster_version() != Some(to)
        && !census.voters.iter().any(|voter| there(voter.member.told()))
}

/// Has the snapshot before this release taken, if it is due, and says what came of that.
pub fn before(draft: &mut Draft<'_>, census: &Census<'_>, release: &Release) -> Verdict {
    if !is_due(draft.world, census, release) {
        return Verdict::Passed;
    }
    let to = release.version.minor;
    let (finding, verdict) = match draft.world.snapshots.get(&to) {
        Some(Saved::Failed) => (Finding::SnapshotFailed, Verdict::Failed),
        Some(Saved::UnderWay | Saved::Taken) => (Finding::SnapshotOpen, Verdict::Open),
        // One that is refused must not hold up anything else.
        None if draft.is_idle() => {
            draft.step(Step::TakeSnapshot(to));
            (Finding::SnapshotOpen, Verdict::Open)
        }
        None => {
            draft.look(LookAgain::Soon);
            (Finding::SnapshotOpen, Verdict::Open)
        }
    };
    draft.tell(finding);
    verdict
}
