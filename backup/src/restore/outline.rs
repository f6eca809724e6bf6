//! Lets etcdutl work on an outline of the database, and takes over what it has made of that: what it changes is small (the
//! membership, its notes, one revision behind the last), and a database of gigabytes is neither copied nor walked for it.

use std::fs::{self, File};
use std::path::Path;

use super::{RestoreError, scratch, unwritable};
use crate::bolt::mvcc::{BucketKey, KEY, LEASE};
use crate::bolt::{self, Appender, Database, write_outline};

/// What may be large. Of the history etcdutl looks for the end, behind which it puts a later revision; leases it leaves alone
/// (`Restore` in etcdutl/snapshot/v3_snapshot.go, the same in 3.5, 3.6 and 3.7).
const BULK: [&[u8]; 2] = [KEY, LEASE];

/// Writes the outline of the database at `path` to `outline`, which must not exist.
pub(super) fn write(path: &Path, outline: &Path) -> Result<(), RestoreError> {
    let whole = File::open(path).map_err(unwritable(path))?;
    let file = scratch::create(outline).map_err(unwritable(outline))?;
    Ok(write_outline(&Database::open(&whole)?, &BULK, &file)?)
}

/// Takes over into the database at `path` what etcdutl has made of its outline, and puts it into the outline's place. Tells
/// its size in bytes.
pub(super) fn put_back(outline: &Path, path: &Path) -> Result<u64, RestoreError> {
    let (made, whole) =
        (File::open(outline).map_err(unwritable(outline))?, bolt::open(path).map_err(unwritable(path))?);
    let made = Database::open(&made)?;
    let mut appender = Appender::new(&whole)?;
    for name in made.buckets()? {
        if !BULK.contains(&name.as_slice()) {
            appender.take_over(&name, &made)?;
        }
    }
    let last = appender.last();
    let history = made.bucket(KEY)?;
    let mut cursor = made.cursor(&history);
    let mut more = cursor.first()?;
    while more {
        let (key, value) = cursor.pair()?;
        let event = BucketKey::decode(key).map_err(bolt::AppendError::LastKey)?;
        if last.is_none_or(|last| event > last) {
            appender.push(event, value)?;
        }
        more = cursor.forward()?;
    }
    let bytes = appender.commit()?;
    fs::rename(path, outline).map_err(unwritable(outline))?;
    Ok(bytes)
}
