//! The first segment of etcd's write-ahead log: frames, the chain of checksums, and where it ends. It stops at the first thing
//! that is no proof of emptiness.
//!
//! The form (etcd, server/storage/wal/{encoder,decoder}.go): eight bytes of length, little endian, whose top byte is
//! `0x80 | padding` when the record is padded to eight bytes; then a `walpb.Record`, then the padding. The checksum of a
//! record is CRC-32C over the data of all records so far. A segment is preallocated with zeros: a length of zero ends it.

use std::io::{self, BufReader, Read};

use super::record::{self, Record};

/// Segments are cut at 64 MB, at the first record beyond. Larger ones are none of a member's first moments.
const MAX_SEGMENT: u64 = 256 << 20;

/// The most of one record that is held in memory. A log without entries holds only some 100 bytes of cluster and member
/// id, so a larger record is none of an empty log.
const MAX_RECORD: usize = 1 << 20;

/// etcd's unit of torn writes (`minSectorSize`): what a disk writes at once.
const SECTOR: usize = 512;

/// The length before each record.
const FRAME: usize = 8;

/// What a segment holds: the first thing found that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Neither an entry nor a hard state, down to the last byte.
    Nothing,
    /// A whole entry.
    Entry,
    /// A hard state with a term, a vote or a commit.
    HardState,
    /// A mark that a snapshot was taken or received.
    Snapshot,
    /// Something that may have been an entry.
    Doubtful(Doubt),
}

/// What can't be proven to be nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The segment is too large to be a fresh one.
    Size,
    /// A length that etcd never writes, or a record that is too large.
    Frame,
    /// A record that is whole, and whose bytes or checksum are wrong.
    Record,
    /// The file ends within a record. etcd sizes a segment before it gives it its name, so this is no mere crash.
    Cut,
    /// A record of a type that is not known, or that a fresh log doesn't have in this place.
    Order,
    /// Bytes after the end.
    Tail,
}

/// Reads a segment of `size` bytes.
pub fn read(source: impl Read, size: u64) -> io::Result<Content> {
    if size > MAX_SEGMENT {
        return Ok(Content::Doubtful(Doubt::Size));
    }
    let mut segment = Segment { source: BufReader::new(source.take(size)), offset: 0, crc: 0 };
    for position in 0_u64.. {
        if let Some(content) = segment.next(position)? {
            return Ok(content);
        }
    }
    Ok(Content::Doubtful(Doubt::Size))
}

struct Segment<R> {
    source: R,
    /// How many bytes have been read.
    offset: usize,
    /// The checksum over all data so far.
    crc: u32,
}

impl<R: Read> Segment<R> {
    /// Reads a record: an answer, or nothing as long as all was empty.
    fn next(&mut self, position: u64) -> io::Result<Option<Content>> {
        let frame = self.up_to(FRAME)?;
        if frame.is_empty() {
            return Ok(Some(Content::Nothing));
        }
        let Ok(frame) = <[u8; FRAME]>::try_from(frame.as_slice()) else {
            return Ok(Some(Content::Doubtful(Doubt::Cut)));
        };
        if frame == [0; FRAME] {
            return self.end().map(Some);
        }
        let Some((length, padding)) = lengths(frame) else {
            return Ok(Some(Content::Doubtful(Doubt::Frame)));
        };
        let start = self.offset;
        let bytes = self.up_to(length + padding)?;
        if bytes.len() < length + padding {
            return Ok(Some(Content::Doubtful(Doubt::Cut)));
        }
        let bytes = &bytes[..length];
        match self.verified(bytes) {
            Some(record) => Ok(judge(position, &record)),
            None if is_torn(bytes, start) => self.end().map(Some),
            None => Ok(Some(Content::Doubtful(Doubt::Record))),
        }
    }

    /// The record, if its checksum continues the chain.
    fn verified<'a>(&mut self, bytes: &'a [u8]) -> Option<Record<'a>> {
        let record = Record::read(bytes).ok()?;
        if record.kind != kind::CRC {
            self.crc = crc32c::crc32c_append(self.crc, record.data);
        }
        // A checksum record hands the chain over from the last segment; there is none before the first.
        (record.crc == self.crc).then_some(record)
    }

    /// Demands that nothing but zeros follows.
    fn end(&mut self) -> io::Result<Content> {
        let mut chunk = vec![0; 64 << 10];
        loop {
            match self.source.read(&mut chunk) {
                Ok(0) => return Ok(Content::Nothing),
                Ok(read) if chunk[..read].iter().all(|byte| *byte == 0) => (),
                Ok(_) => return Ok(Content::Doubtful(Doubt::Tail)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next bytes: fewer only at the end of the file.
    fn up_to(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let limit = u64::try_from(count).unwrap_or(u64::MAX);
        self.offset += self.source.by_ref().take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The types of records (etcd, server/storage/wal/wal.go).
mod kind {
    pub const METADATA: u64 = 1;
    pub const ENTRY: u64 = 2;
    pub const STATE: u64 = 3;
    pub const CRC: u64 = 4;
    pub const SNAPSHOT: u64 = 5;
}

/// What a sound record says; nothing if it proves nothing. `wal.Create` writes a checksum, the metadata and a snapshot of
/// index 0 and term 0. The type is not under the checksum, so nothing of the first two types is believed elsewhere: it
/// may have been an entry.
fn judge(position: u64, record: &Record<'_>) -> Option<Content> {
    let zero = record::is_all_zero(record.data);
    match (position, record.kind) {
        (_, kind::ENTRY) => Some(Content::Entry),
        (_, kind::STATE) if !zero => Some(Content::HardState),
        (_, kind::SNAPSHOT) if !zero => Some(Content::Snapshot),
        (0, kind::CRC) | (1, kind::METADATA) | (2, kind::SNAPSHOT) | (_, kind::STATE) => None,
        _ => Some(Content::Doubtful(Doubt::Order)),
    }
}

/// The lengths of a record and of its padding, if etcd writes such a frame and it is small enough to be looked at.
fn lengths(frame: [u8; FRAME]) -> Option<(usize, usize)> {
    let [length @ .., top] = frame;
    let length = length.iter().rev().try_fold(0_usize, |sum, byte| Some(sum.checked_mul(256)? + usize::from(*byte)))?;
    if length == 0 || length > MAX_RECORD {
        return None;
    }
    let padding = length.next_multiple_of(FRAME) - length;
    let expected = if padding == 0 { 0 } else { 0x80 | padding };
    (usize::from(top) == expected).then_some((length, padding))
}

/// Whether a broken record that begins at `offset` was torn by a crash while it was written: its last sector is still of
/// preallocated zeros, and what is before that fits its length. It was never synced, so nobody was told of it. (etcd
/// takes any sector of zeros for a tear, also the one with the length in it, and doesn't compare the lengths: a spoilt
/// length, which reaches into the zeros behind, would pass for one. The fewer logs are called empty the better.)
fn is_torn(record: &[u8], offset: usize) -> bool {
    let last_sector = (offset + record.len()).saturating_sub(1) / SECTOR * SECTOR;
    let Some((written, lost)) = last_sector.checked_sub(offset).and_then(|start| record.split_at_checked(start)) else {
        return false;
    };
    lost.iter().all(|byte| *byte == 0)
        && (written.iter().all(|byte| *byte == 0) || record::declared_length(written) == Some(record.len()))
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
