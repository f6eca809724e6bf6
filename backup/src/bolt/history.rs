//! What a database says of its own history: where it ends, and up to where it was compacted.

use super::mvcc::{self, BucketKey};
use super::{BoltError, Cursor, Database, Pages};

/// The end of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// The last revision. etcd's first is 1, with nothing in it.
    pub revision: u64,
    /// Up to where the history was compacted, or was ordered to be; zero if never.
    pub compact_revision: u64,
}

impl Tail {
    /// Finds it as etcd does when it opens the database (`restore` in `server/storage/mvcc/kvstore.go`): a compaction may
    /// have taken the last events away, so the last event alone does not tell.
    pub fn read<P: Pages>(database: &Database<P>) -> Result<Self, BoltError> {
        let compacted = [mvcc::FINISHED_COMPACT, mvcc::SCHEDULED_COMPACT].map(|name| note(database, name));
        let mut compact_revision = 0;
        for revision in compacted {
            compact_revision = compact_revision.max(revision?.unwrap_or(0));
        }
        let bucket = database.bucket(mvcc::KEY)?;
        let mut cursor = database.cursor(&bucket);
        let last = if cursor.last()? { event(&cursor)?.main } else { 0 };
        Ok(Self { revision: last.max(compact_revision).max(1), compact_revision })
    }
}

/// Shows the events of one revision at the end of the history, in order. None are left if they were compacted.
pub fn events_of_last<P: Pages, E: From<BoltError>>(
    database: &Database<P>,
    revision: u64,
    mut show: impl FnMut(BucketKey, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let bucket = database.bucket(mvcc::KEY)?;
    let mut cursor = database.cursor(&bucket);
    let mut more = cursor.last()?;
    let mut before = false;
    while more {
        before = event(&cursor)?.main < revision;
        if before {
            break;
        }
        more = cursor.back()?;
    }
    more = if before { cursor.forward()? } else { cursor.first()? };
    while more {
        let (_, value) = cursor.pair()?;
        show(event(&cursor)?, value)?;
        more = cursor.forward()?;
    }
    Ok(())
}

/// The event at which the cursor is.
pub(super) fn event<P: Pages>(cursor: &Cursor<'_, P>) -> Result<BucketKey, BoltError> {
    BucketKey::decode(cursor.pair()?.0).map_err(|_| cursor.fault("an entry of the history is no event"))
}

/// The revision of users and roles, which count for themselves.
pub fn auth_revision<P: Pages>(database: &Database<P>) -> Result<u64, BoltError> {
    let Some(value) = find(database, mvcc::AUTH, mvcc::AUTH_REVISION)? else { return Ok(0) };
    Ok(value.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)))
}

/// A revision among etcd's notes.
fn note<P: Pages>(database: &Database<P>, name: &[u8]) -> Result<Option<u64>, BoltError> {
    let Some(value) = find(database, mvcc::META, name)? else { return Ok(None) };
    // Written by `RevToBytes`, as the keys of events are.
    match BucketKey::decode(&value) {
        Ok(revision) => Ok(Some(revision.main)),
        Err(_) => Err(BoltError::NoRevision(String::from_utf8_lossy(name).into_owned())),
    }
}

/// An entry of a small bucket.
fn find<P: Pages>(database: &Database<P>, bucket: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>, BoltError> {
    let bucket = database.bucket(bucket)?;
    let mut cursor = database.cursor(&bucket);
    let mut more = cursor.first()?;
    while more {
        let (key, value) = cursor.pair()?;
        if key == name {
            return Ok(Some(value.to_vec()));
        }
        more = cursor.forward()?;
    }
    Ok(None)
}
