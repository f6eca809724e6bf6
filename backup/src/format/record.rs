//! Records: the entries of etcd's `key` bucket, one after the other, as they are stored in data objects of deltas. Each is
//! kept byte for byte as etcd writes it, so that applying one is a copy.

use crate::bolt::mvcc::{BucketKey, BucketKeyFault};

/// The largest value that a record may have, in bytes. etcd takes requests of 1.5 MiB unless told otherwise, and its
/// documentation advises against more than 10; what is set higher than this can't be archived.
pub const MAX_RECORD: usize = 64 << 20;

/// One entry of the `key` bucket: one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its key: revision, and whether it is a tombstone.
    pub key: BucketKey,
    /// Its value: a `mvccpb.KeyValue`, serialised.
    pub value: &'a [u8],
}

/// What is wrong with a stream of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// A key is no revision.
    #[error("a record's key is no revision: {0}")]
    Key(#[from] BucketKeyFault),
    /// A value is larger than allowed.
    #[error("a record of {0} bytes is larger than any can be")]
    TooLarge(usize),
    /// The bytes end within a record.
    #[error("the records end in the middle of one")]
    Cut,
}

/// Appends a record: the key's length in one byte, the key, the value's length in four bytes (little endian), the value.
pub fn write_record(into: &mut Vec<u8>, record: Record<'_>) -> Result<(), RecordFault> {
    let Record { key, value } = record;
    let length = u32::try_from(value.len()).ok().filter(|_| value.len() <= MAX_RECORD);
    let length = length.ok_or(RecordFault::TooLarge(value.len()))?;
    let key = key.encode();
    into.push(key.length());
    into.extend_from_slice(key.as_bytes());
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(value);
    Ok(())
}

/// The first record of these bytes, and what comes after it; nothing if they end before it does.
pub fn split_record(bytes: &[u8]) -> Result<Option<(Record<'_>, &[u8])>, RecordFault> {
    let Some((length, rest)) = bytes.split_first() else { return Ok(None) };
    let Some((key, rest)) = rest.split_at_checked(usize::from(*length)) else { return Ok(None) };
    let key = BucketKey::decode(key)?;
    let Some((size, rest)) = rest.split_first_chunk() else { return Ok(None) };
    let size = usize::try_from(u32::from_le_bytes(*size)).unwrap_or(usize::MAX);
    if size > MAX_RECORD {
        return Err(RecordFault::TooLarge(size));
    }
    Ok(rest.split_at_checked(size).map(|(value, after)| (Record { key, value }, after)))
}

/// Takes records out of bytes that arrive in pieces cut anywhere.
#[derive(Debug, Default)]
pub struct RecordReader {
    buffer: Vec<u8>,
    at: usize,
}

impl RecordReader {
    /// Without any bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next piece.
    pub fn feed(&mut self, piece: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(piece);
    }

    /// The next record, or nothing until another piece has come.
    pub fn take(&mut self) -> Result<Option<Record<'_>>, RecordFault> {
        let rest = self.buffer.get(self.at..).unwrap_or_default();
        let Some((record, after)) = split_record(rest)? else { return Ok(None) };
        self.at = self.buffer.len() - after.len();
        Ok(Some(record))
    }

    /// At the end: whether all bytes were used.
    pub fn finish(&self) -> Result<(), RecordFault> {
        if self.at == self.buffer.len() { Ok(()) } else { Err(RecordFault::Cut) }
    }
}
