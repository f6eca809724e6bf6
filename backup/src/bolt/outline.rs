//! Writes the outline of a database: a small one that has all its buckets, but of those that may be large no more than the
//! last entry. What it is good for is others' business.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::append::{AppendError, copy};
use super::meta::Meta;
use super::page::PageId;
use super::tree::{PageWriter, TreeBuilder};
use super::{BUCKET_FLAG, Bucket, Database, Pages};

/// The first page behind the two meta pages.
const FIRST: u64 = 2;

/// Writes the outline of `database` to `file`, which is empty. Of the buckets in `bulk` it has the last entry alone.
pub fn write_outline(database: &Database<impl Pages>, bulk: &[&[u8]], file: &File) -> Result<(), AppendError> {
    let page_size = database.meta().page_size;
    let mut out = PageWriter::new(file, page_size, PageId::new(FIRST));
    let mut root = TreeBuilder::new();
    for name in database.buckets()? {
        let bucket = database.bucket(&name)?;
        let header = if bulk.contains(&name.as_slice()) {
            last_of(&bucket, database, &mut out)?
        } else {
            copy(&bucket, database, &mut out)?
        };
        root.push(&mut out, BUCKET_FLAG, &name, &header)?;
    }
    let root = root.finish(&mut out)?;
    out.flush()?;
    for transaction in [0, 1] {
        let (offset, page) = Meta { page_size, root, sequence: 0, high_water: out.next(), transaction }.encode();
        file.write_all_at(&page, offset)?;
    }
    Ok(())
}

fn last_of(bucket: &Bucket, from: &Database<impl Pages>, out: &mut PageWriter<'_>) -> Result<Vec<u8>, AppendError> {
    let mut tree = TreeBuilder::new();
    let mut cursor = from.cursor(bucket);
    if cursor.last()? {
        let (flags, key, value) = cursor.entry()?;
        tree.push(out, flags, key, value)?;
    }
    let root = tree.finish(out)?;
    Ok(Bucket::header(root, bucket.sequence).to_vec())
}
