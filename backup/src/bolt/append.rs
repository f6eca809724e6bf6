//! Extends a database in place: new events behind the last one, other buckets written anew. Nothing that is in use is
//! touched until one meta page is written at the end. It never waits for the disk: who gives the file a name that counts
//! syncs it first.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::anew::Filler;
use super::meta::Meta;
use super::mvcc::{self, BucketKey, BucketKeyFault};
use super::page::{HEADER, LEAF};
use super::tree::{PageWriter, TreeBuilder};
use super::{BUCKET_FLAG, BUCKET_HEADER, BoltError, Bucket, Database, Pages, Root};

/// Why a database can't be extended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// It can't be read.
    #[error(transparent)]
    Bolt(#[from] BoltError),
    /// It can't be written.
    #[error("failed to write the database: {0}")]
    Write(#[from] io::Error),
    /// Its last entry is no event.
    #[error("the database's last event is none: {0}")]
    LastKey(#[from] BucketKeyFault),
    /// An event is not later than the one before it.
    #[error("event {event} does not come after {last}")]
    Order {
        /// The event.
        event: BucketKey,
        /// The last one in the database.
        last: BucketKey,
    },
}

/// A database that is being extended. Dropped without being committed, it is as it was.
#[derive(Debug)]
pub struct Appender<'a> {
    file: &'a File,
    database: Database<&'a File>,
    out: PageWriter<'a>,
    history: TreeBuilder,
    history_sequence: u64,
    last: Option<BucketKey>,
    /// Buckets that were replaced, by name: what the root tree holds for them.
    replaced: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Opens a file for [`Appender::new`].
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

impl<'a> Appender<'a> {
    /// Begins to extend the database in `file`, which nobody else may have open.
    pub fn new(file: &'a File) -> Result<Self, AppendError> {
        let database = Database::open(file)?;
        let meta = *database.meta();
        let mut out = PageWriter::new(file, meta.page_size, meta.high_water);
        let bucket = database.bucket(mvcc::KEY)?;
        let mut history = TreeBuilder::new();
        let mut cursor = database.cursor(&bucket);
        let mut last = None;
        if cursor.last()? {
            last = Some(BucketKey::decode(cursor.pair()?.0)?);
            adopt(&bucket, cursor.path(), &mut history, &mut out)?;
        }
        let history_sequence = bucket.sequence;
        Ok(Self { file, database, out, history, history_sequence, last, replaced: BTreeMap::new() })
    }

    /// The database as it is until the end.
    pub fn database(&self) -> &Database<&'a File> {
        &self.database
    }

    /// The last event in it.
    pub fn last(&self) -> Option<BucketKey> {
        self.last
    }

    /// The size that the file has by now, in bytes.
    pub fn size(&self) -> u64 {
        self.out.next().get() * u64::from(self.database.meta().page_size)
    }

    /// Adds an event.
    pub fn push(&mut self, event: BucketKey, value: &[u8]) -> Result<(), AppendError> {
        if let Some(last) = self.last.filter(|last| *last >= event) {
            return Err(AppendError::Order { event, last });
        }
        self.history.push(&mut self.out, 0, event.encode().as_bytes(), value)?;
        self.last = Some(event);
        Ok(())
    }

    /// Changes entries of another bucket: each key gets its value, or goes. The bucket is written anew.
    pub fn change(&mut self, bucket: &[u8], changes: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Result<(), AppendError> {
        let old = self.database.bucket(bucket)?;
        let mut tree = TreeBuilder::new();
        let mut changes = changes.iter().peekable();
        let mut cursor = self.database.cursor(&old);
        let mut more = cursor.first()?;
        while more {
            let (flags, key, value) = cursor.entry()?;
            while let Some((new, change)) = changes.next_if(|(new, _)| new.as_slice() < key) {
                insert(&mut tree, &mut self.out, new, change.as_deref())?;
            }
            match changes.next_if(|(new, _)| new.as_slice() == key) {
                Some((new, change)) => insert(&mut tree, &mut self.out, new, change.as_deref())?,
                None => tree.push(&mut self.out, flags, key, value)?,
            }
            more = cursor.forward()?;
        }
        for (new, change) in changes {
            insert(&mut tree, &mut self.out, new, change.as_deref())?;
        }
        let root = tree.finish(&mut self.out)?;
        self.replaced.insert(bucket.to_vec(), Bucket::header(root, old.sequence).to_vec());
        Ok(())
    }

    /// Takes a bucket over from another database, whether there is such a one here or not. That of the history can't be.
    pub fn take_over(&mut self, name: &[u8], from: &Database<impl Pages>) -> Result<(), AppendError> {
        let bucket = from.bucket(name)?;
        let mut filler = Filler::new(&mut self.out);
        filler.take_all(from.cursor(&bucket))?;
        self.replaced.insert(name.to_vec(), filler.finish(&bucket)?.to_vec());
        Ok(())
    }

    /// Empties a bucket, if there is such a one. Tells how many entries it had.
    pub fn clear(&mut self, bucket: &[u8]) -> Result<u64, AppendError> {
        let mut entries = 0;
        if let Some(old) = self.database.find_bucket(bucket)? {
            let mut cursor = self.database.cursor(&old);
            let mut more = cursor.first()?;
            while more {
                entries += 1;
                more = cursor.forward()?;
            }
            self.replaced.insert(bucket.to_vec(), empty_bucket(old.sequence));
        }
        Ok(entries)
    }

    /// Makes it all valid at once, and tells the size of the database in bytes. It is not on the disk yet.
    pub fn commit(mut self) -> Result<u64, AppendError> {
        let root = self.history.finish(&mut self.out)?;
        self.replaced.insert(mvcc::KEY.to_vec(), Bucket::header(root, self.history_sequence).to_vec());
        let mut tree = TreeBuilder::new();
        let mut replaced = self.replaced.iter().peekable();
        let mut cursor = self.database.root_cursor();
        let mut more = cursor.first()?;
        while more {
            let (flags, name, old) = cursor.entry()?;
            while let Some((new, bucket)) = replaced.next_if(|(new, _)| new.as_slice() < name) {
                tree.push(&mut self.out, BUCKET_FLAG, new, bucket)?;
            }
            let new = replaced.next_if(|(new, _)| new.as_slice() == name).filter(|_| flags & BUCKET_FLAG != 0);
            tree.push(&mut self.out, flags, name, new.map_or(old, |(_, bucket)| bucket))?;
            more = cursor.forward()?;
        }
        for (new, bucket) in replaced {
            tree.push(&mut self.out, BUCKET_FLAG, new, bucket)?;
        }
        let root = tree.finish(&mut self.out)?;
        self.out.flush()?;
        let old = self.database.meta();
        let meta = Meta { root, high_water: self.out.next(), transaction: old.transaction + 1, ..*old };
        let (offset, page) = meta.encode();
        self.file.write_all_at(&page, offset)?;
        Ok(meta.end())
    }
}

fn insert(tree: &mut TreeBuilder, out: &mut PageWriter<'_>, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
    match value {
        Some(value) => tree.push(out, 0, key, value),
        None => Ok(()),
    }
}

/// Lets the new tree begin with what the old one has: its leaves stay where they are, and only the branches at its right
/// edge are written anew.
fn adopt(
    bucket: &Bucket,
    path: &[(super::page::Page, usize)],
    tree: &mut TreeBuilder,
    out: &mut PageWriter<'_>,
) -> Result<(), AppendError> {
    let Some(((leaf, _), branches)) = path.split_last() else { return Ok(()) };
    if matches!(bucket.root, Root::Inline(_)) {
        // It lies within a page that is written anew.
        for index in 0..leaf.count {
            let (flags, key, value) = leaf.leaf(index)?;
            tree.push(out, flags, key, value)?;
        }
        return Ok(());
    }
    if branches.is_empty() {
        let (_, key, _) = leaf.leaf(0)?;
        tree.adopt(out, 0, key, leaf.id)?;
        return Ok(());
    }
    // From the top down: a branch that had to be closed would go behind its left neighbours.
    for (depth, (branch, _)) in branches.iter().enumerate() {
        let height = branches.len() - 1 - depth;
        // The last child of the lowest branch is the last leaf, which stays. Those above are the next lower branch.
        let kept = if height == 0 { branch.count } else { branch.count - 1 };
        for index in 0..kept {
            let (key, child) = branch.branch(index)?;
            tree.adopt(out, height, key, child)?;
        }
    }
    Ok(())
}

/// The value of a bucket without entries: its header, and an empty leaf within.
fn empty_bucket(sequence: u64) -> Vec<u8> {
    let mut value = vec![0; BUCKET_HEADER + HEADER];
    value[8..BUCKET_HEADER].copy_from_slice(&sequence.to_le_bytes());
    value[BUCKET_HEADER + 8..BUCKET_HEADER + 10].copy_from_slice(&LEAF.to_le_bytes());
    value
}
