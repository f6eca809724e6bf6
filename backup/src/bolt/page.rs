//! Pages: their headers, the entries of leaves and branches, and where a file's pages come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::BoltError;
use super::meta::Meta;
use crate::format::MAX_RECORD;

/// The most bytes that one page with its overflow may have. bbolt splits no node of fewer than five entries, and leaves two on
/// each side (`splitTwo` in node.go), so that a leaf may hold four of the largest entries. Those are bounded by the largest
/// request that etcd takes (1.5 MiB by default; more than 10 MiB is advised against), and for us by what a record may hold.
pub const MOST_IN_PAGE: u64 = (MOST_UNSPLIT * MAX_RECORD as u64) + (1 << 20);

/// So many entries bbolt leaves in one node however large they are.
const MOST_UNSPLIT: u64 = 4;

/// The size of a page's header, and of an entry of a leaf or a branch.
pub(super) const HEADER: usize = 16;
pub(super) const ENTRY: usize = 16;
pub(super) const BRANCH: u16 = 0x01;
pub(super) const LEAF: u16 = 0x02;

/// The number of a page: its place in the file, counted in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(u64);

impl PageId {
    pub(super) fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Where the bytes of a database come from.
pub trait Pages {
    /// Fills `into` with what lies at this place, or fails.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// How many bytes there are.
    fn length(&self) -> io::Result<u64>;
}

impl Pages for File {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Pages for &[u8] {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let found = start.and_then(|start| self.get(start..)?.get(..into.len()));
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl<P: Pages + ?Sized> Pages for &P {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, into)
    }

    fn length(&self) -> io::Result<u64> {
        (**self).length()
    }
}

/// What a page of a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Branch,
    Leaf,
}

/// A page of a tree, with its overflow.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub id: PageId,
    pub kind: Kind,
    pub count: usize,
    bytes: Vec<u8>,
}

impl Page {
    /// Reads a page of the file.
    pub fn load(pages: &impl Pages, meta: &Meta, id: PageId) -> Result<Self, BoltError> {
        let fault = |fault| BoltError::page(id, fault);
        if id.get() < 2 || id.get() >= meta.high_water.get() {
            return Err(fault("it lies outside of the file"));
        }
        let size = u64::from(meta.page_size);
        let mut bytes = vec![0; usize::try_from(meta.page_size).unwrap_or(usize::MAX)];
        pages.read_at(id.get() * size, &mut bytes)?;
        let overflow = u64::from(u32_at(&bytes, 12).unwrap_or(0));
        if overflow > 0 {
            if overflow >= meta.high_water.get() - id.get() {
                return Err(fault("its overflow lies outside of the file"));
            }
            let whole = (overflow + 1) * size;
            if whole > MOST_IN_PAGE {
                return Err(fault("it is larger than any value can be"));
            }
            let first = bytes.len();
            bytes.resize(usize::try_from(whole).unwrap_or(usize::MAX), 0);
            pages.read_at((id.get() + 1) * size, &mut bytes[first..])?;
        }
        Self::read(id, bytes)
    }

    /// Takes bytes for a page. `id` is for messages, but has to fit unless the page lies within another (then it is zero).
    pub fn read(id: PageId, bytes: Vec<u8>) -> Result<Self, BoltError> {
        let fault = |fault| BoltError::page(id, fault);
        let (Some(own), Some(flags), Some(count)) = (u64_at(&bytes, 0), u16_at(&bytes, 8), u16_at(&bytes, 10)) else {
            return Err(fault("it is cut"));
        };
        if own != id.get() {
            return Err(fault("it says that it is another one"));
        }
        let kind = match flags {
            BRANCH => Kind::Branch,
            LEAF => Kind::Leaf,
            _ => return Err(fault("it is neither a branch nor a leaf")),
        };
        let count = usize::from(count);
        if HEADER + count * ENTRY > bytes.len() {
            return Err(fault("it has more entries than fit"));
        }
        if kind == Kind::Branch && count == 0 {
            return Err(fault("it is a branch without children"));
        }
        Ok(Self { id, kind, count, bytes })
    }

    /// An entry of a leaf: its flags, key and value.
    pub fn leaf(&self, index: usize) -> Result<(u32, &[u8], &[u8]), BoltError> {
        let at = self.entry(index, Kind::Leaf)?;
        let (flags, position) = (self.number(at)?, self.number(at + 4)?);
        let (key, value) = (self.number(at + 8)?, self.number(at + 12)?);
        let start = self.position(at, position);
        let end = start.and_then(|start| start.checked_add(usize::try_from(key).ok()?));
        let last = end.and_then(|end| end.checked_add(usize::try_from(value).ok()?));
        match (start, end, last) {
            (Some(start), Some(end), Some(last)) if last <= self.bytes.len() => {
                Ok((flags, &self.bytes[start..end], &self.bytes[end..last]))
            }
            _ => Err(BoltError::page(self.id, "an entry lies outside of it")),
        }
    }

    /// An entry of a branch: the first key of a child, and the child.
    pub fn branch(&self, index: usize) -> Result<(&[u8], PageId), BoltError> {
        let at = self.entry(index, Kind::Branch)?;
        let (position, key) = (self.number(at)?, self.number(at + 4)?);
        let child = u64_at(&self.bytes, at + 8).ok_or_else(|| BoltError::page(self.id, "it is cut"))?;
        let start = self.position(at, position);
        let end = start.and_then(|start| start.checked_add(usize::try_from(key).ok()?));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.bytes.len() => Ok((&self.bytes[start..end], PageId(child))),
            _ => Err(BoltError::page(self.id, "an entry lies outside of it")),
        }
    }

    fn entry(&self, index: usize, kind: Kind) -> Result<usize, BoltError> {
        if self.kind != kind || index >= self.count {
            return Err(BoltError::page(self.id, "it has no such entry"));
        }
        Ok(HEADER + index * ENTRY)
    }

    /// Positions count from the entry that they are in, and point behind all entries.
    fn position(&self, at: usize, position: u32) -> Option<usize> {
        let start = at.checked_add(usize::try_from(position).ok()?)?;
        (start >= HEADER + self.count * ENTRY).then_some(start)
    }

    fn number(&self, at: usize) -> Result<u32, BoltError> {
        u32_at(&self.bytes, at).ok_or_else(|| BoltError::page(self.id, "it is cut"))
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
