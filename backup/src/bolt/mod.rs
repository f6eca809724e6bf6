//! etcd's database file, in the format of bbolt: read page by page, and extended by appending. It keeps to the file's
//! bytes: which ones they should be is others' business.
//!
//! What is read may be damaged or hostile. Every number in it is held against the file before it is used.

mod anew;
mod append;
mod cursor;
mod history;
mod live;
mod meta;
pub mod mvcc;
mod outline;
mod page;
mod rewind;
#[cfg(test)]
pub(crate) mod tests;
mod tree;

pub use append::{AppendError, Appender, open};
pub use cursor::Cursor;
pub use history::{Tail, auth_revision, events_of_last};
pub use live::Live;
pub use meta::Meta;
pub use outline::write_outline;
pub use page::{MOST_IN_PAGE, PageId, Pages};
pub use rewind::rewind;

/// Why a database can't be read.
#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    /// The file can't be read.
    #[error("failed to read the database: {0}")]
    Read(#[from] std::io::Error),
    /// It does not begin with a valid meta page: it is no database of bbolt, or its begin is damaged.
    #[error("the database has no valid meta page")]
    NoMeta,
    /// It ends before its last page.
    #[error("the database has {got} bytes, and its pages reach up to {wanted}")]
    Cut {
        /// The file's size.
        got: u64,
        /// Where its last page ends.
        wanted: u64,
    },
    /// A page is not what it should be.
    #[error("page {page} of the database is damaged: {fault}")]
    Page {
        /// Which.
        page: u64,
        /// What is wrong.
        fault: &'static str,
    },
    /// One of etcd's notes is not of its form.
    #[error("the database's note {0:?} is no revision")]
    NoRevision(String),
    /// A bucket that etcd always makes is not there.
    #[error("the database has no bucket {0:?}: it is not etcd's")]
    NoBucket(String),
}

impl BoltError {
    fn page(page: PageId, fault: &'static str) -> Self {
        Self::Page { page: page.get(), fault }
    }
}

/// A database that can be read.
#[derive(Debug)]
pub struct Database<P> {
    pages: P,
    meta: Meta,
}

/// Where a bucket's tree begins, and the number that bbolt keeps with it.
#[derive(Debug, Clone)]
pub struct Bucket {
    root: Root,
    sequence: u64,
}

#[derive(Debug, Clone)]
enum Root {
    /// A page of its own.
    Page(PageId),
    /// A small bucket lies within its parent's page.
    Inline(Vec<u8>),
}

/// The size of a bucket's header: its root's page and its sequence.
const BUCKET_HEADER: usize = 16;
/// Marks an entry of the root tree as a bucket.
const BUCKET_FLAG: u32 = 1;

impl<P: Pages> Database<P> {
    /// Opens it: finds the newest valid meta page.
    pub fn open(pages: P) -> Result<Self, BoltError> {
        let meta = Meta::read(&pages)?;
        let (got, wanted) = (pages.length()?, meta.end());
        if got < wanted { Err(BoltError::Cut { got, wanted }) } else { Ok(Self { pages, meta }) }
    }

    /// Its meta page.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The names of its buckets, in order.
    pub fn buckets(&self) -> Result<Vec<Vec<u8>>, BoltError> {
        let mut names = Vec::new();
        let mut cursor = self.root_cursor();
        let mut more = cursor.first()?;
        while more {
            let (flags, name, _) = cursor.entry()?;
            if flags & BUCKET_FLAG != 0 {
                names.push(name.to_vec());
            }
            more = cursor.forward()?;
        }
        Ok(names)
    }

    /// A bucket by its name.
    pub fn bucket(&self, name: &[u8]) -> Result<Bucket, BoltError> {
        self.find_bucket(name)?.ok_or_else(|| BoltError::NoBucket(String::from_utf8_lossy(name).into_owned()))
    }

    /// A bucket by its name, if there is one.
    pub fn find_bucket(&self, name: &[u8]) -> Result<Option<Bucket>, BoltError> {
        let mut cursor = self.root_cursor();
        let mut more = cursor.first()?;
        while more {
            let (flags, key, value) = cursor.entry()?;
            if key == name && flags & BUCKET_FLAG != 0 {
                return Bucket::read(value)
                    .map(Some)
                    .ok_or_else(|| BoltError::page(self.meta.root, "a bucket's header is cut"));
            }
            more = cursor.forward()?;
        }
        Ok(None)
    }

    /// Walks a bucket's entries.
    pub fn cursor(&self, bucket: &Bucket) -> Cursor<'_, P> {
        Cursor::new(&self.pages, &self.meta, bucket.root.clone())
    }

    /// Walks the buckets themselves.
    fn root_cursor(&self) -> Cursor<'_, P> {
        Cursor::new(&self.pages, &self.meta, Root::Page(self.meta.root))
    }
}

impl Bucket {
    fn read(value: &[u8]) -> Option<Self> {
        let (root, rest) = value.split_first_chunk()?;
        let (sequence, inline) = rest.split_first_chunk()?;
        let root = match u64::from_le_bytes(*root) {
            0 => Root::Inline(inline.to_vec()),
            page => Root::Page(PageId::new(page)),
        };
        Some(Self { root, sequence: u64::from_le_bytes(*sequence) })
    }

    /// The header of a bucket with a page of its own.
    fn header(root: PageId, sequence: u64) -> [u8; BUCKET_HEADER] {
        let mut header = [0; BUCKET_HEADER];
        header[..8].copy_from_slice(&root.get().to_le_bytes());
        header[8..].copy_from_slice(&sequence.to_le_bytes());
        header
    }
}
