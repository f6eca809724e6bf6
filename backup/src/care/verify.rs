//! Proves that a backup restores: does it, into scratch space, and reads every entry of what came out.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::task::{JoinError, spawn_blocking};

use crate::bolt::mvcc::{BucketKey, KEY, KeyValue, LEASE};
use crate::bolt::{BoltError, Database};
use crate::format::{Choice, Revision};
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
    choice: &Choice,
    scratch: &Path,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Verified, VerifyError> {
    let begun = Instant::now();
    let folder = tempfile::tempdir_in(scratch).map_err(VerifyError::Scratch)?;
    let path = folder.path().join("db");
    let restored = restore::database(store, choice, &path, report).await?;
    let base = if choice.rewinds() { 0 } else { choice.chain.full.revision.get() };
    let wanted = choice.revision;
    let read = move || read(File::open(path).map_err(VerifyError::Scratch)?, base, wanted);
    let entries = spawn_blocking(read).await??;
    Ok(Verified { restored, entries, took: begun.elapsed() })
}

/// Reads every entry of the history, and counts them.
fn read(file: File, base: u64, wanted: Revision) -> Result<u64, VerifyError> {
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
        // Of the full snapshot's own entries only those of live keys need have one, and etcd wrote both. Of one that was
        // brought back to an earlier revision all have.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::bolt::Appender;
    use crate::bolt::tests::{bytes_of, fresh};

    const LAST: u64 = 3;
    const LEASED: i64 = 0x77;

    fn key(main: u64) -> BucketKey {
        BucketKey { main, sub: 0, tombstone: false }
    }

    /// A database with one entry of each revision up to the last, whose key has a lease.
    fn restored() -> File {
        let file = fresh(4096);
        let mut appender = Appender::new(&file).unwrap();
        for main in 1..=LAST {
            let lease = if main == LAST { LEASED } else { 0 };
            let value = KeyValue { key: main.to_string().into(), lease, ..KeyValue::default() }.encode_to_vec();
            appender.push(key(main), &value).unwrap();
        }
        let lease = BTreeMap::from([(LEASED.to_be_bytes().to_vec(), Some(b"ttl".to_vec()))]);
        appender.change(LEASE, &lease).unwrap();
        appender.commit().unwrap();
        file
    }

    fn found(file: File, base: u64) -> Result<u64, String> {
        read(file, base, Revision::new(LAST).unwrap()).map_err(|error| error.to_string())
    }

    /// Writes other bytes over the last of such bytes, as nothing of a database is checked by a sum.
    fn overwrite(file: &File, old: &[u8], new: &[u8]) {
        let bytes = bytes_of(file);
        let at = bytes.windows(old.len()).rposition(|window| window == old).unwrap();
        file.write_all_at(new, at as u64).unwrap();
    }

    #[test]
    fn each_fault_that_is_planted_is_told() {
        assert_eq!(found(restored(), 0), Ok(LAST));

        let elsewhere = read(restored(), 0, Revision::new(LAST + 1).unwrap());
        assert!(matches!(elsewhere, Err(VerifyError::Revision { found: LAST, .. })), "{elsewhere:?}");

        let file = restored();
        overwrite(&file, key(1).encode().as_bytes(), key(2).encode().as_bytes());
        assert_eq!(found(file, 0).unwrap_err(), "failed to read what was restored: entry 1 of its history is damaged");

        let file = restored();
        let value = KeyValue { key: b"2".into(), ..KeyValue::default() }.encode_to_vec();
        overwrite(&file, &value, &vec![0xff; value.len()]);
        assert_eq!(found(file, 0).unwrap_err(), "failed to read what was restored: entry 1 of its history is damaged");

        let without_lease = || {
            let file = restored();
            let mut appender = Appender::new(&file).unwrap();
            appender.change(LEASE, &BTreeMap::from([(LEASED.to_be_bytes().to_vec(), None)])).unwrap();
            appender.commit().unwrap();
            file
        };
        assert_eq!(
            found(without_lease(), 0).unwrap_err(),
            "an entry of what was restored names lease 77, which is not there"
        );
        assert_eq!(found(without_lease(), LAST), Ok(LAST), "of the full snapshot's own, etcd wrote both");
    }
}
