//! Data objects: written as they come and read as they are needed, several frames at work at once, in bounded memory, with
//! every byte proved by the manifest's hash.

use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;
use std::thread::available_parallelism;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use super::frames::{FRAME, FrameFault, compress, decompress};
use super::hash::{EventHash, Hasher};
use super::manifest::Data;
use super::names::{GenerationKey, Nonce};
use super::seal::{Age, Seal, SealFault, Sealer};
use super::unseal::{Layout, OpenPart, Opener, SealedPart, event_hash, opened_by};
use crate::keys::{Identities, KeysError};
use crate::store::{Key, Store, StoreError, Upload};

/// The most frames that are compressed at once, however many cores there are: each takes some 16 MiB.
const MOST_AT_WORK: usize = 3;
/// Frames that are fetched by one request.
const FRAMES_TOGETHER: usize = 2;
/// Requests on their way at once.
const REQUESTS: usize = 3;

/// Why data could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A frame is damaged, or can't be made.
    #[error("frame {frame} of {key}: {fault}")]
    Frame {
        /// The object.
        key: Key,
        /// Which frame, counted from zero.
        frame: usize,
        /// What is wrong.
        fault: FrameFault,
    },
    /// It is damaged where it is encrypted, or can't be encrypted.
    #[error("{key}: {fault}")]
    Seal {
        /// The object.
        key: Key,
        /// What is wrong.
        fault: SealFault,
    },
    /// The keys can't be read, or are others.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The object is not the one that the manifest means.
    #[error("{0} is damaged or another object: its BLAKE3 hash is not the one in the manifest")]
    Hash(Key),
    /// A thread ended unexpectedly.
    #[error("failed to compress or decompress: {0}")]
    Thread(#[from] JoinError),
}

/// Writes a data object.
#[derive(Debug)]
pub struct DataWriter {
    name: Nonce,
    upload: Upload,
    filling: Vec<u8>,
    at_work: VecDeque<JoinHandle<Result<Vec<u8>, FrameFault>>>,
    most_at_work: usize,
    sealer: Option<Sealer>,
    hasher: Hasher,
    frames: Vec<u32>,
    plain_bytes: u64,
}

impl DataWriter {
    /// A new object of this generation.
    pub fn new(store: &Store, generation: &GenerationKey, seal: &Seal) -> Result<Self, DataError> {
        let name = Nonce::random();
        let key = generation.data(&name);
        let sealer = seal.sealer().map_err(|fault| DataError::Seal { key: key.clone(), fault })?;
        Ok(Self {
            upload: store.upload(&key),
            name,
            filling: Vec::new(),
            at_work: VecDeque::new(),
            most_at_work: available_parallelism().map_or(1, NonZero::get).min(MOST_AT_WORK),
            sealer,
            hasher: Hasher::new(),
            frames: Vec::new(),
            plain_bytes: 0,
        })
    }

    /// What was taken so far, in bytes.
    pub fn plain_bytes(&self) -> u64 {
        self.plain_bytes
    }

    /// What was handed to the store so far, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.upload.written()
    }

    /// Takes the next bytes. It waits while compressing or sending is behind.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), DataError> {
        self.plain_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.filling.capacity() == 0 {
                self.filling.reserve_exact(FRAME);
            }
            let (now, later) = bytes.split_at(bytes.len().min(FRAME - self.filling.len()));
            self.filling.extend_from_slice(now);
            bytes = later;
            if self.filling.len() == FRAME {
                self.cut().await?;
            }
        }
        Ok(())
    }

    /// Ends the object. From here on it can be read; nothing refers to it yet.
    pub async fn finish(mut self) -> Result<Data, DataError> {
        if !self.filling.is_empty() {
            self.cut().await?;
        }
        while let Some(frame) = self.at_work.pop_front() {
            self.send(frame).await?;
        }
        let mut recipients = None;
        if let Some(sealer) = self.sealer.take() {
            let (rest, named) = sealer.finish().map_err(|fault| self.seal_fault(fault))?;
            recipients = Some(named);
            self.store(rest).await?;
        }
        let Self { name, upload, hasher, frames, plain_bytes, .. } = self;
        let age = recipients.map(|recipients| Age { recipients, bytes: upload.written() });
        upload.finish().await?;
        Ok(Data { name, blake3: hasher.finish(), plain_bytes, frames, age })
    }

    /// Gives up, and takes back what was sent.
    pub async fn abort(self) {
        self.upload.abort().await;
    }

    async fn cut(&mut self) -> Result<(), DataError> {
        while self.at_work.len() >= self.most_at_work
            && let Some(frame) = self.at_work.pop_front()
        {
            self.send(frame).await?;
        }
        let plain = std::mem::take(&mut self.filling);
        self.at_work.push_back(spawn_blocking(move || compress(&plain)));
        Ok(())
    }

    async fn send(&mut self, frame: JoinHandle<Result<Vec<u8>, FrameFault>>) -> Result<(), DataError> {
        let frame = frame.await?.map_err(|fault| DataError::Frame {
            key: self.upload.key().clone(),
            frame: self.frames.len(),
            fault,
        })?;
        self.frames.push(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        let Some(mut sealer) = self.sealer.take() else { return self.store(frame).await };
        let pushed = spawn_blocking(move || sealer.push(&frame).map(|encrypted| (sealer, encrypted))).await?;
        let (sealer, encrypted) = pushed.map_err(|fault| self.seal_fault(fault))?;
        self.sealer = Some(sealer);
        self.store(encrypted).await
    }

    async fn store(&mut self, bytes: Vec<u8>) -> Result<(), DataError> {
        self.hasher.update(&bytes);
        self.upload.write(bytes.into()).await?;
        Ok(())
    }

    fn seal_fault(&self, fault: SealFault) -> DataError {
        DataError::Seal { key: self.upload.key().clone(), fault }
    }
}

/// A data object that lies in a store, with what opens it.
#[derive(Debug, Clone)]
pub struct DataObject {
    store: Store,
    key: Key,
    data: Arc<Data>,
    opener: Option<Opener>,
    event_hash: Option<EventHash>,
}

impl DataObject {
    /// One of this generation. If it is encrypted, the store's keys have to open it.
    pub fn new(store: &Store, generation: &GenerationKey, data: &Data) -> Result<Self, DataError> {
        let key = generation.data(&data.name);
        let identities = opened_by(store.keys(), data, &key.to_string())?;
        Ok(Self::opened(store, key, data, identities))
    }

    /// One that its writer reads itself.
    pub fn of_writer(store: &Store, generation: &GenerationKey, data: &Data, own: Identities) -> Self {
        Self::opened(store, generation.data(&data.name), data, Some(own))
    }

    fn opened(store: &Store, key: Key, data: &Data, identities: Option<Identities>) -> Self {
        let event_hash = event_hash(data, identities.as_ref());
        let opener = Layout::of(data).zip(identities).map(|(layout, identities)| Opener::new(layout, identities));
        Self { store: store.clone(), key, data: Arc::new(data.clone()), opener, event_hash }
    }

    /// How the manifest's `lastEvents` was made, if that can be told.
    pub fn event_hash(&self) -> Option<EventHash> {
        self.event_hash
    }

    /// One frame alone, checked by zstd's own sum, and by age if it is encrypted.
    pub async fn frame(&self, frame: usize) -> Result<Option<Vec<u8>>, DataError> {
        let Some(group) = all_frames(&self.data).nth(frame) else { return Ok(None) };
        Ok(Some(self.clone().fetch(group).await?.plain))
    }

    async fn fetch(self, group: Group) -> Result<Fetched, DataError> {
        let Group { first, range, sizes } = group;
        let (begin, stored, frames) = if let Some(opener) = &self.opener {
            let (begin, stored, part) = opener.fetch(&self.store, &self.key, &range).await?;
            (begin, stored, Frames::Sealed(Box::new(part)))
        } else {
            let stored = self.store.read_range(&self.key, range.clone()).await?;
            (range.start, stored.clone(), Frames::Open(stored))
        };
        let plain = spawn_blocking(move || plain(&self.key, frames, first, sizes)).await??;
        Ok(Fetched { begin, stored, plain })
    }
}

/// Some frames that lie one after the other.
#[derive(Debug, Clone)]
struct Group {
    /// The number of the first.
    first: usize,
    /// Where they lie among all frames, in bytes.
    range: Range<u64>,
    /// The compressed and the plain size of each.
    sizes: Vec<(usize, usize)>,
}

/// What a group came to.
struct Fetched {
    /// Where it begins in the object.
    begin: u64,
    stored: Bytes,
    plain: Vec<u8>,
}

/// Compressed frames.
enum Frames {
    /// As they are.
    Open(Bytes),
    /// Encrypted.
    Sealed(Box<SealedPart>),
}

/// The same, from which one after the other is taken.
enum Taking {
    Open(Bytes),
    Sealed(Box<OpenPart>),
}

impl Taking {
    fn new(frames: Frames) -> Result<Self, SealFault> {
        Ok(match frames {
            Frames::Open(bytes) => Self::Open(bytes),
            Frames::Sealed(part) => Self::Sealed(Box::new(part.open()?)),
        })
    }

    fn take(&mut self, bytes: usize) -> Result<Bytes, SealFault> {
        match self {
            Self::Open(rest) => Ok(rest.split_to(bytes.min(rest.len()))),
            Self::Sealed(part) => part.take(bytes).map(Bytes::from),
        }
    }

    fn end(self) -> Result<(), SealFault> {
        match self {
            Self::Open(_) => Ok(()),
            Self::Sealed(part) => part.end(),
        }
    }
}

/// Reads a data object from its begin to its end.
pub struct DataReader {
    key: Key,
    data: Arc<Data>,
    groups: BoxStream<'static, Result<Fetched, DataError>>,
    hasher: Hasher,
    /// How many bytes of the object were hashed.
    hashed: u64,
}

impl DataReader {
    /// Reads this object. Fetching begins with the first call of [`Self::next`].
    pub fn new(object: &DataObject) -> Self {
        let object = object.clone();
        let (key, data) = (object.key.clone(), Arc::clone(&object.data));
        let groups =
            stream::iter(groups(&data)).map(move |group| object.clone().fetch(group)).buffered(REQUESTS).boxed();
        Self { key, data, groups, hasher: Hasher::new(), hashed: 0 }
    }

    /// The next plain bytes; `None` once all were read and their hash was found to be right. What came before is not
    /// proved until then.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, DataError> {
        match self.groups.next().await {
            Some(fetched) => {
                let Fetched { begin, stored, plain } = fetched?;
                // The groups of an encrypted object share the chunk in which one ends and the next begins.
                let known = usize::try_from(self.hashed - begin.min(self.hashed)).unwrap_or(usize::MAX);
                self.hasher.update(stored.get(known..).unwrap_or_default());
                self.hashed = begin + stored.len() as u64;
                Ok(Some(plain))
            }
            None if self.hasher.finish() == self.data.blake3 => Ok(None),
            None => Err(DataError::Hash(self.key.clone())),
        }
    }
}

fn all_frames(data: &Data) -> impl Iterator<Item = Group> + '_ {
    let (mut begin, mut left) = (0, data.plain_bytes);
    data.frames.iter().enumerate().map(move |(first, stored)| {
        let plain = usize::try_from(left).unwrap_or(FRAME).min(FRAME);
        left -= plain as u64;
        let range = begin..begin + u64::from(*stored);
        begin = range.end;
        Group { first, range, sizes: vec![(usize::try_from(*stored).unwrap_or(usize::MAX), plain)] }
    })
}

fn groups(data: &Data) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for frame in all_frames(data) {
        match groups.last_mut() {
            Some(group) if group.sizes.len() < FRAMES_TOGETHER => {
                group.range.end = frame.range.end;
                group.sizes.extend(frame.sizes);
            }
            _ => groups.push(frame),
        }
    }
    groups
}

/// Decompresses frames that are numbered from `first` on.
fn plain(key: &Key, frames: Frames, first: usize, sizes: Vec<(usize, usize)>) -> Result<Vec<u8>, DataError> {
    let sealed = |fault| DataError::Seal { key: key.clone(), fault };
    let mut frames = Taking::new(frames).map_err(sealed)?;
    let mut all = Vec::with_capacity(sizes.iter().map(|(_, plain)| plain).sum());
    for (number, (compressed, plain)) in sizes.into_iter().enumerate() {
        let frame = frames.take(compressed).map_err(sealed)?;
        decompress(&frame, &mut all, plain).map_err(|fault| DataError::Frame {
            key: key.clone(),
            frame: first + number,
            fault,
        })?;
    }
    frames.end().map_err(sealed)?;
    Ok(all)
}
