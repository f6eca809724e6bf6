//! Has a snapshot taken before the first member goes to another minor: afterwards the way back leads through etcd's own
//! downgrade alone. Orders it and waits for it; switches nothing.

use crate::{Finding, Minor, Release, Saved, Step, census::Census, draft::Draft, trial::Verdict};

/// What came of the snapshot before this release, if one is wanted and no member is told to run its minor yet.
pub fn before(draft: &mut Draft<'_>, census: &Census<'_>, release: &Release) -> Verdict {
    let to = release.version.minor;
    let there = |told: Option<&Release>| told.is_some_and(|told| told.version.minor == to);
    if !draft.world.wish.snapshot_first || census.voters.iter().any(|voter| there(voter.member.told())) {
        return Verdict::Passed;
    }
    let (finding, verdict) = match saved(draft, to) {
        Some(Saved::Taken) => return Verdict::Passed,
        Some(Saved::Failed) => (Finding::SnapshotFailed, Verdict::Failed),
        Some(Saved::UnderWay) => (Finding::SnapshotOpen, Verdict::Open),
        None => {
            draft.step(Step::TakeSnapshot(to));
            (Finding::SnapshotOpen, Verdict::Open)
        }
    };
    draft.tell(finding);
    verdict
}

fn saved(draft: &Draft<'_>, to: Minor) -> Option<Saved> {
    draft.world.snapshots.get(&to).copied()
}
