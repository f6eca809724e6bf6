//! Brings the database of a full snapshot back to a revision before it. A snapshot holds its history from its compaction on, so
//! what nobody recorded in deltas, as while the store was away for long, can be restored from the next snapshot all the same.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::{Progress, RestoreError, scratch, unwritable};
use crate::bolt::{Database, Tail, mvcc, rewind};
use crate::format::{Chain, Record, Revision, Seam, write_record};

/// After how many events it is told how far it is.
const REPORT_EVERY: u64 = 50_000;

/// What a rewound database says of itself.
#[derive(Debug, Default)]
pub(super) struct Rewound {
    /// Events that came after the revision.
    pub later: u64,
    /// Leases that its events name: some may have ended before the snapshot.
    pub named: BTreeSet<i64>,
}

/// Rewinds the database of the full snapshot at `path` to a revision before that. Where a seam is known, its history has to be
/// the one that was recorded up to there.
pub(super) async fn full(
    chain: &Chain,
    (revision, seam): (Revision, Option<&Seam>),
    path: &Path,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Rewound, RestoreError> {
    let (reached, mut seen) = watch::channel(0);
    let (path, key, target, seam) = (path.to_owned(), chain.key.full(), revision.get(), seam.cloned());
    let writing = spawn_blocking(move || {
        let whole = File::open(&path).map_err(unwritable(&path))?;
        let whole = Database::open(&whole)?;
        let compacted = Tail::read(&whole)?.compact_revision;
        if compacted > target {
            return Err(RestoreError::Compacted { key, revision, compacted });
        }
        let (needed, free) = (whole.meta().end(), scratch::free(&path).map_err(unwritable(&path))?);
        if needed > free {
            return Err(RestoreError::NoRoom { needed, free });
        }
        let (rewound, events) = replace(&whole, &path, (target, seam.as_ref()), &reached)?;
        match seam.filter(|seam| seam.hash.of(&events) != seam.events) {
            Some(Seam { recorded, revision: at, .. }) => {
                Err(RestoreError::OtherHistory { key, recorded, at, revision })
            }
            None => Ok(rewound),
        }
    });
    let reporting = async {
        while seen.changed().await.is_ok() {
            report(Progress::Rewinding { reached: *seen.borrow_and_update(), target });
        }
    };
    let (written, ()) = tokio::join!(writing, reporting);
    written?
}

/// Also gives the records of the seam's revision.
fn replace(
    whole: &Database<&File>,
    path: &Path,
    (revision, seam): (u64, Option<&Seam>),
    reached: &watch::Sender<u64>,
) -> Result<(Rewound, Vec<u8>), RestoreError> {
    let earlier = path.with_extension("earlier");
    let file = scratch::create(&earlier).map_err(unwritable(&earlier))?;
    let (mut rewound, mut kept, mut records) = (Rewound::default(), 0_u64, Vec::new());
    rewound.later = rewind(whole, &file, revision, |key, value| {
        if !key.tombstone {
            rewound.named.extend(mvcc::lease_of(value));
        }
        if seam.is_some_and(|seam| seam.revision.get() == key.main) {
            // What is too long to be recorded is none of what was.
            let _ = write_record(&mut records, Record { key, value });
        }
        kept += 1;
        if kept.is_multiple_of(REPORT_EVERY) {
            reached.send_replace(key.main);
        }
    })?;
    fs::rename(&earlier, path).map_err(unwritable(path))?;
    Ok((rewound, records))
}
