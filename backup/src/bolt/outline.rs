//! Writes the outline of a database: a small one that has all its buckets, but of those that may be large no more than the
//! last entry. What it is good for is others' business.

use std::fs::File;

use super::append::AppendError;
use super::{Database, Pages, anew};

/// Writes the outline of `database` to `file`, which is empty. Of the buckets in `bulk` it has the last entry alone.
pub fn write_outline(database: &Database<impl Pages>, bulk: &[&[u8]], file: &File) -> Result<(), AppendError> {
    anew::write(database, file, |name, mut cursor, filler| {
        if !bulk.contains(&name) {
            return filler.take_all(cursor);
        }
        if cursor.last()? { filler.take(&cursor) } else { Ok(()) }
    })?;
    Ok(())
}
