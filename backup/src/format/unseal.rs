//! Reads sealed data objects: any part of one, by itself, so that several are at work at once. It proves each chunk as age does;
//! that the whole is the one that the manifest means is proved by its hash, elsewhere.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use age::Decryptor;
use age::stream::StreamReader;
use bytes::Bytes;
use tokio::sync::OnceCell;

use super::hash::EventHash;
use super::manifest::Data;
use super::names::GenerationKey;
use super::seal::{Age, SealFault};
use crate::keys::{Identities, KeyFiles, KeysError};
use crate::store::{Key, Store, StoreError};

/// age encrypts in chunks of this size, each with a tag behind it (age-encryption.org/v1, "Payload").
const CHUNK: u64 = 64 << 10;
const TAG: u64 = 16;
/// The largest header that is read, in bytes: a hundred for each recipient, of which there are 32 at most.
const LARGEST_PREFACE: u64 = 16 << 10;

/// Where what lies in an encrypted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// The size of what comes before the chunks: age's header and a nonce.
    preface: u64,
    /// The size of all frames.
    compressed: u64,
    /// The size of the object.
    bytes: u64,
}

impl Layout {
    /// `None` if it is not encrypted, or its sizes can't be.
    pub fn of(data: &Data) -> Option<Self> {
        let Age { recipients: _, bytes } = data.age.as_ref()?;
        let compressed = data.compressed_bytes();
        let payload = compressed.div_ceil(CHUNK) * TAG + compressed;
        let preface = bytes.checked_sub(payload).filter(|preface| (1..=LARGEST_PREFACE).contains(preface))?;
        (compressed > 0).then_some(Self { preface, compressed, bytes: *bytes })
    }

    /// Where the frames of a part begin to be read. age asks for the last chunk when it is sent to the begin of one, so it is
    /// sent to the byte before.
    fn begin(part: &Range<u64>) -> u64 {
        if part.start.is_multiple_of(CHUNK) { part.start.saturating_sub(1) } else { part.start }
    }

    /// The stored bytes that a part of the frames takes. The first one has the header, so that parts cover all of the object.
    fn stored(&self, part: &Range<u64>) -> Range<u64> {
        let chunk = |number: u64| self.preface + number * (CHUNK + TAG);
        let first = Self::begin(part) / CHUNK;
        let begin = if part.start == 0 { 0 } else { chunk(first) };
        begin..chunk(part.end.div_ceil(CHUNK)).min(self.bytes)
    }
}

/// What opens one data object.
#[derive(Debug, Clone)]
pub(super) struct Opener {
    layout: Layout,
    identities: Arc<Identities>,
    preface: Arc<OnceCell<Bytes>>,
}

impl Opener {
    pub fn new(layout: Layout, identities: Identities) -> Self {
        Self { layout, identities: Arc::new(identities), preface: Arc::default() }
    }

    /// Fetches a part of the frames: where it begins in the object, what is stored there, and what opens it.
    pub async fn fetch(
        &self,
        store: &Store,
        key: &Key,
        part: &Range<u64>,
    ) -> Result<(u64, Bytes, SealedPart), StoreError> {
        let preface = self.preface.get_or_try_init(|| store.read_range(key, 0..self.layout.preface)).await?.clone();
        let range = self.layout.stored(part);
        let stored = store.read_range(key, range.clone()).await?;
        let skipped = self.layout.preface.saturating_sub(range.start);
        let chunks = stored.slice(usize::try_from(skipped).unwrap_or(usize::MAX).min(stored.len())..);
        let window = Window { preface, chunks, begin: range.start + skipped, at: 0 };
        let is_last = part.end == self.layout.compressed;
        let sealed = SealedPart { window, identities: Arc::clone(&self.identities), start: part.start, is_last };
        Ok((range.start, stored, sealed))
    }
}

/// A part of an encrypted object that was fetched.
pub(super) struct SealedPart {
    window: Window,
    identities: Arc<Identities>,
    /// Where its frames begin, counted in compressed bytes.
    start: u64,
    is_last: bool,
}

impl SealedPart {
    /// Reads its frames, one after the other.
    pub fn open(self) -> Result<OpenPart, SealFault> {
        let Self { window, identities, start, is_last } = self;
        let mut stream = Decryptor::new(window)?.decrypt(identities.keys())?;
        let begin = Layout::begin(&(start..start));
        stream.seek(SeekFrom::Start(begin)).map_err(SealFault::Read)?;
        io::copy(&mut (&mut stream).take(start - begin), &mut io::sink()).map_err(SealFault::Read)?;
        Ok(OpenPart { stream, is_last })
    }
}

/// Such a part, opened.
pub(super) struct OpenPart {
    stream: StreamReader<Window>,
    is_last: bool,
}

impl OpenPart {
    /// The next bytes, as many as these.
    pub fn take(&mut self, bytes: usize) -> Result<Vec<u8>, SealFault> {
        let mut taken = vec![0; bytes];
        self.stream.read_exact(&mut taken).map_err(SealFault::Read)?;
        Ok(taken)
    }

    /// Demands that nothing is left where the object ends, and that age says so too: a file that was cut has no last chunk.
    pub fn end(mut self) -> Result<(), SealFault> {
        match self.is_last.then(|| self.stream.read(&mut [0])) {
            None | Some(Ok(0)) => Ok(()),
            Some(Ok(_)) => Err(SealFault::TooLong),
            Some(Err(source)) => Err(SealFault::Read(source)),
        }
    }
}

/// An object of which only its begin and some chunks are there.
struct Window {
    preface: Bytes,
    chunks: Bytes,
    /// Where those chunks begin in the object.
    begin: u64,
    at: u64,
}

impl Read for Window {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let index = |begin: u64| usize::try_from(self.at.checked_sub(begin)?).ok();
        let rest = match (index(0), index(self.begin)) {
            (Some(at), _) if at < self.preface.len() => &self.preface[at..],
            (_, Some(at)) => self.chunks.get(at..).unwrap_or_default(),
            (_, None) => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        self.at += length as u64;
        Ok(length)
    }
}

impl Seek for Window {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            // Nobody knows here where the object ends.
            SeekFrom::End(_) => None,
        };
        self.at = at.ok_or(io::ErrorKind::Unsupported)?;
        Ok(self.at)
    }
}

/// Demands an identity that reads each of these data objects, if they are encrypted: before anything is fetched.
pub fn demand_identity<'a>(
    keys: &KeyFiles,
    generation: &GenerationKey,
    objects: impl IntoIterator<Item = &'a Data>,
) -> Result<(), KeysError> {
    let mut opened: Option<&Age> = None;
    for age in objects.into_iter().filter_map(|data| data.age.as_ref()) {
        // A generation's objects have the same recipients, so the files are read once.
        if opened.is_none_or(|opened| opened.recipients != age.recipients) {
            keys.identities_for(&age.recipients, &generation.to_string())?;
            opened = Some(age);
        }
    }
    Ok(())
}

/// The identity that opens a data object; `None` if it is not encrypted.
pub fn opened_by(keys: &KeyFiles, data: &Data, what: &str) -> Result<Option<Identities>, KeysError> {
    data.age.as_ref().map(|age| keys.identities_for(&age.recipients, what)).transpose()
}

/// How `lastEvents` was made in the manifest of this data; `None` if it was encrypted also to others, whose public keys are not
/// known to who has this identity.
pub(super) fn event_hash(data: &Data, identities: Option<&Identities>) -> Option<EventHash> {
    match (&data.age, identities) {
        (None, _) => Some(EventHash::Plain),
        (Some(age), Some(own)) => Some(EventHash::Keyed(own.recipients().only(&age.recipients)?.hash_key())),
        (Some(_), None) => None,
    }
}
