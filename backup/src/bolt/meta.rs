//! The two meta pages at a file's begin. The valid one with the larger transaction number says where everything is; the
//! other one is the state before, to which a crash falls back.

use super::BoltError;
use super::page::{HEADER, PageId, Pages, u32_at, u64_at};

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const META_FLAG: u16 = 0x04;
/// The bytes of a meta page's content, the last eight of which are a checksum of the others.
const CONTENT: usize = 64;
const SUMMED: usize = CONTENT - 8;
/// The page sizes that there are: from the smallest that bbolt tries to what the largest pages of any architecture have.
const SMALLEST_PAGE: u32 = 1 << 10;
const LARGEST_PAGE: u32 = 1 << 16;
/// Says that no list of free pages is stored: they are found by walking when the file is opened. etcd's own files have
/// this too (`NoFreelistSync` in `server/storage/backend/config_unix.go`).
const NO_FREELIST: u64 = u64::MAX;

/// What a meta page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// The size of a page, in bytes. It is that of the machine on which the file was made.
    pub page_size: u32,
    /// Where the tree of buckets begins.
    pub(super) root: PageId,
    pub(super) sequence: u64,
    /// The first page that was never used.
    pub(super) high_water: PageId,
    /// The number of the transaction.
    pub transaction: u64,
}

impl Meta {
    /// Finds the newest valid one.
    pub(super) fn read(pages: &impl Pages) -> Result<Self, BoltError> {
        let first = Self::at(pages, 0);
        // Where the second one is depends on the page's size, which only a valid meta page tells.
        let second = match &first {
            Some(first) => Self::at(pages, u64::from(first.page_size)),
            None => (SMALLEST_PAGE.ilog2()..=LARGEST_PAGE.ilog2())
                .map(|bits| 1_u64 << bits)
                .find_map(|size| Self::at(pages, size).filter(|meta| u64::from(meta.page_size) == size)),
        };
        first.into_iter().chain(second).max_by_key(|meta| meta.transaction).ok_or(BoltError::NoMeta)
    }

    fn at(pages: &impl Pages, offset: u64) -> Option<Self> {
        let mut bytes = [0; HEADER + CONTENT];
        pages.read_at(offset, &mut bytes).ok()?;
        Self::decode(&bytes)
    }

    fn decode(page: &[u8; HEADER + CONTENT]) -> Option<Self> {
        let content = &page[HEADER..];
        let page_size = u32_at(content, 8)?;
        let valid = u32_at(content, 0)? == MAGIC
            && u32_at(content, 4)? == VERSION
            && u64_at(content, SUMMED)? == checksum(&content[..SUMMED])
            && page_size.is_power_of_two()
            && (SMALLEST_PAGE..=LARGEST_PAGE).contains(&page_size);
        let meta = Self {
            page_size,
            root: PageId::new(u64_at(content, 16)?),
            sequence: u64_at(content, 24)?,
            high_water: PageId::new(u64_at(content, 40)?),
            transaction: u64_at(content, 48)?,
        };
        // Beyond this, a page's offset would not fit 63 bits, and no transaction could follow.
        (valid && meta.high_water.get() < 1 << 46 && meta.transaction < u64::MAX).then_some(meta)
    }

    /// The page for the file, and its offset. Transactions take turns between the two.
    pub(super) fn encode(&self) -> (u64, Vec<u8>) {
        let Self { page_size, root, sequence, high_water, transaction } = *self;
        let slot = transaction % 2;
        let mut page = vec![0; usize::try_from(page_size).unwrap_or(0).max(HEADER + CONTENT)];
        page[..8].copy_from_slice(&slot.to_le_bytes());
        page[8..10].copy_from_slice(&META_FLAG.to_le_bytes());
        let content = &mut page[HEADER..HEADER + CONTENT];
        content[..4].copy_from_slice(&MAGIC.to_le_bytes());
        content[4..8].copy_from_slice(&VERSION.to_le_bytes());
        content[8..12].copy_from_slice(&page_size.to_le_bytes());
        let numbers = [root.get(), sequence, NO_FREELIST, high_water.get(), transaction];
        for (place, number) in content[16..SUMMED].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = checksum(&content[..SUMMED]);
        content[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        (slot * u64::from(page_size), page)
    }

    /// Where the last page ends, in bytes.
    pub fn end(&self) -> u64 {
        self.high_water.get() * u64::from(self.page_size)
    }
}

/// FNV-1a with 64 bits, as Go's `hash/fnv`.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_valid_meta_page_counts() {
        let meta = |transaction, root| Meta {
            page_size: 4096,
            root: PageId::new(root),
            sequence: 0,
            high_water: PageId::new(9),
            transaction,
        };
        let mut file = vec![0; 3 * 4096];
        for meta in [meta(6, 3), meta(7, 4)] {
            let (offset, page) = meta.encode();
            let offset = usize::try_from(offset).unwrap();
            file[offset..offset + page.len()].copy_from_slice(&page);
        }
        assert_eq!(Meta::read(&&file[..]).unwrap(), meta(7, 4));
        let mut torn = file.clone();
        torn[4096 + 40] ^= 1;
        assert_eq!(Meta::read(&&torn[..]).unwrap(), meta(6, 3), "a torn write falls back");
        let mut begin_lost = file.clone();
        begin_lost[..4096].fill(0);
        assert_eq!(Meta::read(&&begin_lost[..]).unwrap(), meta(7, 4));
        begin_lost[4096 + 40] ^= 1;
        assert!(matches!(Meta::read(&&begin_lost[..]), Err(BoltError::NoMeta)));
    }
}
