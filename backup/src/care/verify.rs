//! Proves that a backup restores: does it, into scratch space, and reads every entry of what came out.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::task::{JoinError, spawn_blocking};

use crate::bolt::mvcc::{BucketKey, KEY, KeyValue, LEASE};
use crate::bolt::{BoltError, Database};
use crate::format::{Chain, Revision};
use crate::restore::{self, Progress, RestoreError, Restored};
use crate::store::Store;

/// What was found right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// What was restored.
    pub restored: Restored,
    /// Entries of the history in it.
    pub entries: u64,
    /// How long it took.
    pub took: Duration,
}

/// Why a backup is not proved.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It can't be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// There is no scratch space.
    #[error("failed to make scratch space: {0}")]
    Scratch(#[source] std::io::Error),
    /// What was restored can't be read.
    #[error("failed to read what was restored: {0}")]
    Bolt(#[from] BoltError),
    /// An entry is none of etcd's.
    #[error("failed to read what was restored: entry {0} of its history is damaged")]
    Entry(u64),
    /// It ends elsewhere.
    #[error("what was restored ends with revision {found} instead of {wanted}")]
    Revision {
        /// Where it ends.
        found: u64,
        /// Where it should.
        wanted: Revision,
    },
    /// An event of the deltas names a lease that is not there.
    #[error("an entry of what was restored names lease {0:x}, which is not there")]
    Lease(i64),
    /// A thread ended unexpectedly.
    #[error("failed to read what was restored: {0}")]
    Thread(#[from] JoinError),
}

/// Restores a generation at a revision to a file in `scratch`, reads it whole, and removes it again.
pub async fn verify(
    store: &Store,
    chain: &Chain,
    revision: Revision,
    scratch: &Path,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Verified, VerifyError> {
    let begun = Instant::now();
    let folder = tempfile::tempdir_in(scratch).map_err(VerifyError::Scratch)?;
    let path = folder.path().join("db");
    let restored = restore::database(store, chain, revision, &path, report).await?;
    let (base, wanted) = (chain.full.revision.get(), revision);
    let entries = spawn_blocking(move || read(&path, base, wanted)).await??;
    Ok(Verified { restored, entries, took: begun.elapsed() })
}

/// Reads every entry of the history, and counts them.
fn read(path: &Path, base: u64, wanted: Revision) -> Result<u64, VerifyError> {
    let file = File::open(path).map_err(VerifyError::Scratch)?;
    let database = Database::open(file)?;
    let leases = leases(&database)?;
    let found = crate::bolt::Tail::read(&database)?.revision;
    if found != wanted.get() {
        return Err(VerifyError::Revision { found, wanted });
    }
    let bucket = database.bucket(KEY)?;
    let mut cursor = database.cursor(&bucket);
    let mut entries = 0;
    let mut last = None;
    let mut more = cursor.first()?;
    while more {
        let (key, value) = cursor.pair()?;
        let fault = || VerifyError::Entry(entries);
        let key = BucketKey::decode(key).map_err(|_| fault())?;
        if last >= Some(key) {
            return Err(fault());
        }
        last = Some(key);
        let message = KeyValue::decode(value).map_err(|_| fault())?;
        // Of the full snapshot's own entries only those of live keys need have one, and etcd wrote both.
        if key.main > base && message.lease != 0 && !leases.contains(&message.lease) {
            return Err(VerifyError::Lease(message.lease));
        }
        entries += 1;
        more = cursor.forward()?;
    }
    Ok(entries)
}

fn leases(database: &Database<File>) -> Result<BTreeSet<i64>, BoltError> {
    let bucket = database.bucket(LEASE)?;
    let mut cursor = database.cursor(&bucket);
    let mut found = BTreeSet::new();
    let mut more = cursor.first()?;
    while more {
        if let Some(id) = cursor.pair()?.0.first_chunk() {
            found.insert(i64::from_be_bytes(*id));
        }
        more = cursor.forward()?;
    }
    Ok(found)
}
