//! Brings the database of a full snapshot back to a revision before it. A snapshot holds its history from its compaction on, so
//! what nobody recorded in deltas, as while the store was away for long, can be restored from the next snapshot all the same.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::{Progress, RestoreError, scratch, unwritable};
use crate::bolt::{BoltError, Database, Live, Tail, mvcc, rewind};
use crate::format::{Chain, Revision};

/// What a rewound database says of itself.
#[derive(Debug, Default)]
pub(super) struct Rewound {
    /// Events that came after the revision.
    pub later: u64,
    /// Leases that live keys name: some may have ended before the snapshot.
    pub named: BTreeSet<i64>,
}

/// Rewinds the database of the full snapshot at `path` to a revision before that.
pub(super) async fn full(
    chain: &Chain,
    revision: Revision,
    path: &Path,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Rewound, RestoreError> {
    let (reached, mut seen) = watch::channel(0);
    let (path, key, target) = (path.to_owned(), chain.key.full(), revision.get());
    let writing = spawn_blocking(move || {
        let whole = File::open(&path).map_err(unwritable(&path))?;
        let whole = Database::open(&whole)?;
        let compacted = Tail::read(&whole)?.compact_revision;
        if compacted > target {
            return Err(RestoreError::Compacted { key, revision, compacted });
        }
        replace(&whole, &path, target, &reached)
    });
    let reporting = async {
        while seen.changed().await.is_ok() {
            report(Progress::Rewinding { reached: *seen.borrow_and_update(), target });
        }
    };
    let (written, ()) = tokio::join!(writing, reporting);
    written?
}

fn replace(
    whole: &Database<&File>,
    path: &Path,
    revision: u64,
    reached: &watch::Sender<u64>,
) -> Result<Rewound, RestoreError> {
    let earlier = path.with_extension("earlier");
    let file = scratch::create(&earlier).map_err(unwritable(&earlier))?;
    let later = rewind(whole, &file, revision, &mut |main| {
        reached.send_replace(main);
    })?;
    let named = named(&Database::open(&file)?)?;
    fs::rename(&earlier, path).map_err(unwritable(path))?;
    Ok(Rewound { later, named })
}

/// The leases that live keys name.
fn named(database: &Database<&File>) -> Result<BTreeSet<i64>, BoltError> {
    let mut named = BTreeSet::new();
    let live = Live::find(database, &mut |_, _| ())?;
    live.each(database, |value| named.extend(mvcc::lease_of(value)))?;
    Ok(named)
}
