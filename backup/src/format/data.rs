//! Data objects: written as they come and read as they are needed, several frames at work at once, in bounded memory, with
//! every byte proved by the manifest's hash.

use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::thread::available_parallelism;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use super::frames::{FRAME, FrameFault, compress, decompress};
use super::hash::Hasher;
use super::manifest::Data;
use super::names::{GenerationKey, Nonce};
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
    hasher: Hasher,
    frames: Vec<u32>,
    plain_bytes: u64,
}

impl DataWriter {
    /// A new object of this generation.
    pub fn new(store: &Store, generation: &GenerationKey) -> Self {
        let name = Nonce::random();
        Self {
            upload: store.upload(&generation.data(&name)),
            name,
            filling: Vec::new(),
            at_work: VecDeque::new(),
            most_at_work: available_parallelism().map_or(1, NonZero::get).min(MOST_AT_WORK),
            hasher: Hasher::new(),
            frames: Vec::new(),
            plain_bytes: 0,
        }
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
        let Self { name, upload, hasher, frames, plain_bytes, .. } = self;
        upload.finish().await?;
        Ok(Data { name, blake3: hasher.finish(), plain_bytes, frames })
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
        self.hasher.update(&frame);
        self.frames.push(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        self.upload.write(frame.into()).await?;
        Ok(())
    }
}

/// Some frames that lie one after the other.
#[derive(Debug, Clone)]
struct Group {
    /// The number of the first.
    first: usize,
    /// Where they lie in the object.
    range: Range<u64>,
    /// The stored and the plain size of each.
    sizes: Vec<(usize, usize)>,
}

/// What a group came to.
struct Fetched {
    stored: Bytes,
    plain: Vec<u8>,
}

/// Reads a data object from its begin to its end.
pub struct DataReader {
    key: Key,
    data: Data,
    groups: BoxStream<'static, Result<Fetched, DataError>>,
    hasher: Hasher,
}

impl DataReader {
    /// Reads this object of this generation. Fetching begins with the first call of [`Self::next`].
    pub fn new(store: &Store, generation: &GenerationKey, data: &Data) -> Self {
        let key = generation.data(&data.name);
        let (from, object) = (store.clone(), key.clone());
        let groups = stream::iter(groups(data))
            .map(move |group| fetch(from.clone(), object.clone(), group))
            .buffered(REQUESTS)
            .boxed();
        Self { key, data: data.clone(), groups, hasher: Hasher::new() }
    }

    /// The next plain bytes; `None` once all were read and their hash was found to be right. What came before is not
    /// proved until then.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, DataError> {
        match self.groups.next().await {
            Some(fetched) => {
                let Fetched { stored, plain } = fetched?;
                self.hasher.update(&stored);
                Ok(Some(plain))
            }
            None if self.hasher.finish() == self.data.blake3 => Ok(None),
            None => Err(DataError::Hash(self.key.clone())),
        }
    }

    /// One frame alone, checked by zstd's own sum only.
    pub async fn frame(
        store: &Store,
        generation: &GenerationKey,
        data: &Data,
        frame: usize,
    ) -> Result<Option<Vec<u8>>, DataError> {
        let Some(group) = all_frames(data).nth(frame) else { return Ok(None) };
        Ok(Some(fetch(store.clone(), generation.data(&data.name), group).await?.plain))
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

async fn fetch(store: Store, key: Key, group: Group) -> Result<Fetched, DataError> {
    let Group { first, range, sizes } = group;
    let stored = store.read_range(&key, range).await?;
    let frames = stored.clone();
    let plain = spawn_blocking(move || {
        let mut rest = &frames[..];
        let mut all = Vec::new();
        for (number, (stored, plain)) in sizes.into_iter().enumerate() {
            let (frame, others) = rest.split_at_checked(stored).unwrap_or((rest, &[]));
            rest = others;
            let piece = decompress(frame, plain).map_err(|fault| DataError::Frame {
                key: key.clone(),
                frame: first + number,
                fault,
            })?;
            if all.is_empty() {
                all = piece;
            } else {
                all.extend_from_slice(&piece);
            }
        }
        Ok::<_, DataError>(all)
    })
    .await??;
    Ok(Fetched { stored, plain })
}
