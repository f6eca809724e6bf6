//! Writes a database anew into an empty file, bucket by bucket, behind one meta page for each state there could be. What of
//! a bucket comes along is others' business.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::append::AppendError;
use super::meta::Meta;
use super::page::PageId;
use super::tree::{PageWriter, TreeBuilder};
use super::{BUCKET_FLAG, BUCKET_HEADER, Bucket, Cursor, Database, Pages};

/// The first page behind the two meta pages.
const FIRST: u64 = 2;

/// Writes to `file`, which is empty, what `choose` takes of each bucket of `database`. Tells the size in bytes.
pub(super) fn write<P: Pages>(
    database: &Database<P>,
    file: &File,
    mut choose: impl FnMut(&[u8], Cursor<'_, P>, &mut Filler<'_, '_>) -> Result<(), AppendError>,
) -> Result<u64, AppendError> {
    let page_size = database.meta().page_size;
    let mut out = PageWriter::new(file, page_size, PageId::new(FIRST));
    let mut root = TreeBuilder::new();
    for name in database.buckets()? {
        let bucket = database.bucket(&name)?;
        let mut filler = Filler::new(&mut out);
        choose(&name, database.cursor(&bucket), &mut filler)?;
        let header = filler.finish(&bucket)?;
        root.push(&mut out, BUCKET_FLAG, &name, &header)?;
    }
    let root = root.finish(&mut out)?;
    out.flush()?;
    let meta = |transaction| Meta { page_size, root, sequence: 0, high_water: out.next(), transaction };
    for transaction in [0, 1] {
        let (offset, page) = meta(transaction).encode();
        file.write_all_at(&page, offset)?;
    }
    Ok(meta(1).end())
}

/// A bucket that is being written.
pub(super) struct Filler<'w, 'f> {
    tree: TreeBuilder,
    out: &'w mut PageWriter<'f>,
}

impl<'w, 'f> Filler<'w, 'f> {
    pub fn new(out: &'w mut PageWriter<'f>) -> Self {
        Self { tree: TreeBuilder::new(), out }
    }

    /// Tells what the root tree holds for it, in the place of this bucket.
    pub fn finish(self, instead_of: &Bucket) -> io::Result<[u8; BUCKET_HEADER]> {
        Ok(Bucket::header(self.tree.finish(self.out)?, instead_of.sequence))
    }

    /// Takes the entry at which the cursor is.
    pub fn take<P: Pages>(&mut self, cursor: &Cursor<'_, P>) -> Result<(), AppendError> {
        let (flags, key, value) = cursor.entry()?;
        Ok(self.tree.push(self.out, flags, key, value)?)
    }

    /// Takes all entries.
    pub fn take_all<P: Pages>(&mut self, mut cursor: Cursor<'_, P>) -> Result<(), AppendError> {
        let mut more = cursor.first()?;
        while more {
            self.take(&cursor)?;
            more = cursor.forward()?;
        }
        Ok(())
    }
}
