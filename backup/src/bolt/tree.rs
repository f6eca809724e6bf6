//! Builds pages of trees from entries that come in order, and writes them one after the other behind everything that is in
//! use. One page of each level is in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::page::{BRANCH, ENTRY, HEADER, LEAF, PageId};

/// Bytes that are gathered before they are written.
const WRITE: usize = 1 << 20;
/// The most entries that a page's header can count.
const MOST_ENTRIES: usize = u16::MAX as usize;

/// Writes new pages at the end of a file's used part.
#[derive(Debug)]
pub(super) struct PageWriter<'a> {
    file: &'a File,
    page_size: usize,
    /// The page that comes next.
    next: PageId,
    /// Where `buffer` belongs.
    offset: u64,
    buffer: Vec<u8>,
}

impl<'a> PageWriter<'a> {
    pub fn new(file: &'a File, page_size: u32, next: PageId) -> Self {
        let offset = next.get() * u64::from(page_size);
        let page_size = usize::try_from(page_size).unwrap_or(usize::MAX);
        Self { file, page_size, next, offset, buffer: Vec::with_capacity(WRITE + page_size) }
    }

    pub fn next(&self) -> PageId {
        self.next
    }

    /// Writes what is gathered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.offset)?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Adds a page of this content.
    fn page(&mut self, flags: u16, filling: &Filling) -> io::Result<PageId> {
        let id = self.next;
        let content = HEADER + filling.entries.len() * ENTRY + filling.bytes.len();
        let pages = content.div_ceil(self.page_size).max(1);
        let overflow = u32::try_from(pages - 1).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let count = u16::try_from(filling.entries.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let end = self.buffer.len() + pages * self.page_size;
        self.buffer.extend_from_slice(&id.get().to_le_bytes());
        self.buffer.extend_from_slice(&flags.to_le_bytes());
        self.buffer.extend_from_slice(&count.to_le_bytes());
        self.buffer.extend_from_slice(&overflow.to_le_bytes());
        // A position counts from the entry that it is in to the key; keys and values follow all entries.
        let mut position = filling.entries.len() * ENTRY;
        for entry in &filling.entries {
            let at = u32::try_from(position).map_err(|_| io::ErrorKind::FileTooLarge)?;
            self.buffer.extend_from_slice(&entry.encode(at));
            position = position + entry.length() - ENTRY;
        }
        self.buffer.extend_from_slice(&filling.bytes);
        self.buffer.resize(end, 0);
        self.next = PageId::new(id.get() + pages as u64);
        if self.buffer.len() >= WRITE {
            self.flush()?;
        }
        Ok(id)
    }
}

/// An entry without its bytes.
#[derive(Debug, Clone, Copy)]
enum Entry {
    Leaf { flags: u32, key: u32, value: u32 },
    Branch { key: u32, child: PageId },
}

impl Entry {
    /// Of its bytes.
    fn length(&self) -> usize {
        let length = match *self {
            Self::Leaf { key, value, .. } => u64::from(key) + u64::from(value),
            Self::Branch { key, .. } => u64::from(key),
        };
        usize::try_from(length).unwrap_or(usize::MAX)
    }

    fn encode(&self, position: u32) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        match *self {
            Self::Leaf { flags, key, value } => {
                for (place, number) in bytes.chunks_exact_mut(4).zip([flags, position, key, value]) {
                    place.copy_from_slice(&number.to_le_bytes());
                }
            }
            Self::Branch { key, child } => {
                bytes[..4].copy_from_slice(&position.to_le_bytes());
                bytes[4..8].copy_from_slice(&key.to_le_bytes());
                bytes[8..].copy_from_slice(&child.get().to_le_bytes());
            }
        }
        bytes
    }
}

/// A page that is being filled.
#[derive(Debug, Default)]
struct Filling {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    first_key: Vec<u8>,
}

impl Filling {
    /// Whether an entry of this many bytes still fits a page. One always fits an empty page: it overflows.
    fn has_room(&self, bytes: usize, page_size: usize) -> bool {
        self.entries.is_empty()
            || (self.entries.len() < MOST_ENTRIES
                && HEADER + (self.entries.len() + 1) * ENTRY + self.bytes.len() + bytes <= page_size)
    }

    fn push(&mut self, entry: Entry, key: &[u8], value: &[u8]) {
        if self.entries.is_empty() {
            self.first_key.clear();
            self.first_key.extend_from_slice(key);
        }
        self.entries.push(entry);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }
}

/// A tree that grows at its right end.
#[derive(Debug, Default)]
pub(super) struct TreeBuilder {
    leaf: Filling,
    /// The branches above the leaves, the lowest first.
    branches: Vec<Filling>,
}

impl TreeBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a child over as it is, at a level above the leaves (zero is the lowest branch). To be called before the
    /// first entry, from the left to the right.
    pub fn adopt(&mut self, out: &mut PageWriter<'_>, level: usize, key: &[u8], child: PageId) -> io::Result<()> {
        while self.branches.len() < level {
            self.branches.push(Filling::default());
        }
        self.child(out, level, key, child)
    }

    /// Adds an entry behind all others.
    pub fn push(&mut self, out: &mut PageWriter<'_>, flags: u32, key: &[u8], value: &[u8]) -> io::Result<()> {
        let lengths = (u32::try_from(key.len()), u32::try_from(value.len()));
        let (Ok(key_length), Ok(value_length)) = lengths else { return Err(io::ErrorKind::FileTooLarge.into()) };
        if !self.leaf.has_room(key.len() + value.len(), out.page_size) {
            self.close_leaf(out)?;
        }
        self.leaf.push(Entry::Leaf { flags, key: key_length, value: value_length }, key, value);
        Ok(())
    }

    /// Ends the tree and tells its root.
    pub fn finish(mut self, out: &mut PageWriter<'_>) -> io::Result<PageId> {
        if self.branches.is_empty() {
            // Also the root of an empty bucket.
            return out.page(LEAF, &self.leaf);
        }
        if !self.leaf.entries.is_empty() {
            self.close_leaf(out)?;
        }
        let mut level = 0;
        loop {
            let top = level + 1 == self.branches.len();
            match (top, self.branches[level].entries.as_slice()) {
                // A branch with one child needs no page of its own.
                (true, [Entry::Branch { child, .. }]) => return Ok(*child),
                (true, _) => return out.page(BRANCH, &self.branches[level]),
                // Nothing came to this level since its last page was closed.
                (false, []) => level += 1,
                (false, _) => {
                    self.close_branch(out, level)?;
                    level += 1;
                }
            }
        }
    }

    fn close_leaf(&mut self, out: &mut PageWriter<'_>) -> io::Result<()> {
        let id = out.page(LEAF, &self.leaf)?;
        let key = std::mem::take(&mut self.leaf.first_key);
        self.leaf.clear();
        self.child(out, 0, &key, id)
    }

    fn close_branch(&mut self, out: &mut PageWriter<'_>, level: usize) -> io::Result<()> {
        let id = out.page(BRANCH, &self.branches[level])?;
        let key = std::mem::take(&mut self.branches[level].first_key);
        self.branches[level].clear();
        self.child(out, level + 1, &key, id)
    }

    fn child(&mut self, out: &mut PageWriter<'_>, level: usize, key: &[u8], child: PageId) -> io::Result<()> {
        if self.branches.len() == level {
            self.branches.push(Filling::default());
        }
        if !self.branches[level].has_room(key.len(), out.page_size) {
            self.close_branch(out, level)?;
        }
        let length = u32::try_from(key.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.branches[level].push(Entry::Branch { key: length, child }, key, &[]);
        Ok(())
    }
}
