//! What a watch has brought and nobody has taken yet: first in memory, then in a file, both bounded. The order stays.

#[cfg(test)]
mod fault_tests;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::proto::{PbEvent, PbResponseHeader, PbWatchResponse};
use jiff::Timestamp;
use prost::Message;
use rustix::fs::{FallocateFlags, fallocate};
use tokio::sync::Notify;

use super::feed::FeedError;

/// What may wait in memory, in bytes.
const MEMORY: usize = 16 << 20;
/// What an event takes in memory beside its key and value.
const EVENT_OVERHEAD: usize = 160;

/// The file is written and read no slower than this on a disk on which etcd lives well. Nothing is received meanwhile.
const SLOW: Duration = Duration::from_millis(500);

/// What is before each of the news in the file: a BLAKE3 hash of the rest, its length and its moment.
const BEFORE: u64 = (HASH + 16) as u64;
/// The first of that.
const HASH: usize = blake3::OUT_LEN;
/// Why something that was put aside can't be used.
const DAMAGED: &str = "what was put aside in a file is damaged";

/// So much of the file that was read is given back to the disk at a time, and in such blocks.
const GIVEN_BACK: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// What comes of a watch.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum News {
    /// Events, in order.
    Events(Vec<PbEvent>),
    /// Nothing up to this revision will follow.
    Progress(u64),
}

/// News, and when they came: what waits long is not to be taken for later than it is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Heard {
    pub at: Timestamp,
    pub news: News,
}

/// A queue between the one who receives and the one who records.
#[derive(Debug)]
pub(super) struct Backlog {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    memory: VecDeque<(Heard, usize)>,
    held: usize,
    spill: Spill,
    ended: Option<FeedError>,
}

/// A file that is written at its end and read from its begin, which is given back to the disk then. It has no name: it is gone
/// with the process.
#[derive(Debug)]
struct Spill {
    file: File,
    room: Room,
    written: u64,
    read: u64,
    /// Up to where its room was given back.
    given_back: u64,
}

/// How many bytes more may lie in the files of all backlogs together. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Room {
    limit: u64,
    left: Arc<AtomicU64>,
    /// What is left to the others.
    spared: u64,
}

impl Room {
    pub fn new(limit: u64) -> Self {
        Self { limit, left: Arc::new(AtomicU64::new(limit)), spared: 0 }
    }

    /// The same, of which half is left to the others.
    pub fn sparing(&self) -> Self {
        Self { spared: self.limit / 2, ..self.clone() }
    }

    /// Whether there was so much, which is taken then.
    fn take(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes).filter(|left| *left >= self.spared);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Backlog {
    /// With a file in this folder, as long as there is room.
    pub fn new(folder: &Path, room: Room) -> io::Result<Self> {
        let spill = Spill { file: tempfile::tempfile_in(folder)?, room, written: 0, read: 0, given_back: 0 };
        let inner = Inner { memory: VecDeque::new(), held: 0, spill, ended: None };
        Ok(Self { inner: Mutex::new(inner), changed: Notify::new() })
    }

    /// Adds news; false if there is no room, after which nothing more may be added.
    pub fn push(&self, news: News) -> bool {
        let heard = Heard { at: Timestamp::now(), news };
        let begun = Instant::now();
        let mut inner = self.lock();
        let size = size(&heard.news);
        // What is in the file is older than this, so it goes there too.
        let fits = inner.spill.is_empty() && (inner.memory.is_empty() || inner.held + size <= MEMORY);
        let done = if fits {
            inner.held += size;
            inner.memory.push_back((heard, size));
            true
        } else {
            if inner.spill.is_empty() {
                tracing::info!(
                    "more comes than is held in memory: it is put aside in a file until what came before has been stored"
                );
            }
            match inner.spill.push(heard) {
                Ok(()) => true,
                Err(error) => {
                    inner.ended = Some(FeedError::Overflow(error));
                    false
                }
            }
        };
        drop(inner);
        self.changed.notify_one();
        let took = begun.elapsed();
        if took > SLOW {
            tracing::warn!("what waits was not put aside for {took:.1?}: what came meanwhile is noted so much later");
        }
        done
    }

    /// Nothing more will come.
    pub fn end(&self, error: FeedError) {
        self.lock().ended.get_or_insert(error);
        self.changed.notify_one();
    }

    /// Whether nothing more comes, though something may wait.
    pub fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let inner = self.lock();
        inner.memory.is_empty() && inner.spill.is_empty()
    }

    /// From now on nothing is left to others.
    pub fn take_all_room(&self) {
        self.lock().spill.room.spared = 0;
    }

    /// The oldest news; the reason why nothing more comes once all were taken.
    pub async fn next(&self) -> Result<Heard, FeedError> {
        loop {
            let changed = self.changed.notified();
            if let Some(result) = self.try_next() {
                return result;
            }
            changed.await;
        }
    }

    fn try_next(&self) -> Option<Result<Heard, FeedError>> {
        let mut inner = self.lock();
        if let Some((heard, size)) = inner.memory.pop_front() {
            inner.held -= size;
            return Some(Ok(heard));
        }
        match inner.spill.pop() {
            Ok(Some(heard)) => Some(Ok(heard)),
            Ok(None) => inner.ended.take().map(Err),
            Err(error) => Some(Err(FeedError::Overflow(error))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(news: &News) -> usize {
    match news {
        News::Progress(_) => 0,
        News::Events(events) => events
            .iter()
            .map(|event| EVENT_OVERHEAD + event.kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len()))
            .sum(),
    }
}

impl Spill {
    fn is_empty(&self) -> bool {
        self.read == self.written
    }

    /// Each of the news as etcd's own message, with its length and its moment before it, and a hash of all that: a disk that
    /// changes a bit must not change what is recorded.
    fn push(&mut self, Heard { at, news }: Heard) -> io::Result<()> {
        let message = match news {
            News::Events(events) => PbWatchResponse { events, ..PbWatchResponse::default() },
            News::Progress(revision) => {
                let revision = i64::try_from(revision).unwrap_or(i64::MAX);
                let header = Some(PbResponseHeader { revision, ..PbResponseHeader::default() });
                PbWatchResponse { header, ..PbWatchResponse::default() }
            }
        };
        let length = message.encoded_len() as u64;
        if !self.room.take(BEFORE + length) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the spill file is full"));
        }
        let mut piece = vec![0; HASH];
        piece.extend(length.to_le_bytes());
        piece.extend(at.as_microsecond().to_le_bytes());
        message.encode(&mut piece).map_err(io::Error::other)?;
        let hash = blake3::hash(&piece[HASH..]);
        piece[..HASH].copy_from_slice(hash.as_bytes());
        let put_aside = self.file.write_all_at(&piece, self.written);
        // What is half there is not there.
        match put_aside {
            Ok(()) => self.written += BEFORE + length,
            Err(_) => self.room.give_back(BEFORE + length),
        }
        put_aside
    }

    fn pop(&mut self) -> io::Result<Option<Heard>> {
        if self.is_empty() {
            return Ok(None);
        }
        let mut before = [0; HASH + 16];
        self.file.read_exact_at(&mut before, self.read)?;
        let (hash, described) = before.split_at(HASH);
        let length = u64::from_le_bytes(described.first_chunk().copied().unwrap_or_default());
        if length > self.written - self.read {
            return Err(io::Error::new(io::ErrorKind::InvalidData, DAMAGED));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, self.read + BEFORE)?;
        if blake3::Hasher::new().update(described).update(&bytes).finalize().as_bytes() != hash {
            return Err(io::Error::new(io::ErrorKind::InvalidData, DAMAGED));
        }
        self.read += BEFORE + length;
        self.give_back();
        let at = i64::from_le_bytes(described.last_chunk().copied().unwrap_or_default());
        let at = Timestamp::from_microsecond(at).map_err(io::Error::other)?;
        let PbWatchResponse { header, events, .. } = PbWatchResponse::decode(&bytes[..]).map_err(io::Error::other)?;
        let revision = header.and_then(|header| u64::try_from(header.revision).ok());
        Ok(Some(Heard { at, news: revision.map_or(News::Events(events), News::Progress) }))
    }

    /// Gives back the room of what was read: a store that is just as fast as what comes never lets the file become empty.
    fn give_back(&mut self) {
        if self.is_empty() {
            // Where that fails the disk has it back with the file, and what comes is written over it.
            let _ = self.file.set_len(0);
            self.room.give_back(self.written - self.given_back);
            (self.read, self.written, self.given_back) = (0, 0, 0);
            return;
        }
        let end = self.read - self.read % BLOCK;
        let bytes = end - self.given_back;
        let a_hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Where a file can't have holes its room comes back once all was read.
        if bytes >= GIVEN_BACK && fallocate(&self.file, a_hole, self.given_back, bytes).is_ok() {
            self.room.give_back(bytes);
            self.given_back = end;
        }
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        self.room.give_back(self.written - self.given_back);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use etcd_client::proto::PbKeyValue;

    use super::*;

    fn news(number: i64, bytes: usize) -> News {
        let kv = PbKeyValue { mod_revision: number, value: vec![7; bytes], ..PbKeyValue::default() };
        News::Events(vec![PbEvent { r#type: 0, kv: Some(kv), prev_kv: None }])
    }

    #[tokio::test]
    async fn order_stays_through_memory_and_file() {
        let folder = tempfile::tempdir().unwrap();
        let backlog = Backlog::new(folder.path(), Room::new(1 << 30)).unwrap();
        let mut all = Vec::new();
        let (mut taken, mut moments) = (Vec::new(), Vec::new());
        let begun = Timestamp::now();
        for round in 0..6 {
            for number in 0..30 {
                let one = if number % 7 == 0 { News::Progress(number) } else { news(round, 1 << 20) };
                assert!(backlog.push(one.clone()));
                all.push(one);
            }
            let pushed = Timestamp::now();
            // Once less than what came, once all of it.
            let until = if round % 2 == 0 { taken.len() + 17 } else { all.len() };
            while taken.len() < until
                && let Some(one) = backlog.try_next()
            {
                let Heard { at, news } = one.unwrap();
                assert!(at <= pushed, "it came before it was taken");
                moments.push(at);
                taken.push(news);
            }
        }
        assert_eq!(taken.len(), all.len());
        assert!(taken == all);
        // In the file a moment has microseconds.
        let begun = begun - jiff::SignedDuration::from_micros(1);
        assert!(moments.iter().all(|at| *at >= begun));
        assert_eq!(backlog.lock().spill.file.metadata().unwrap().len(), 0);
    }

    #[tokio::test]
    async fn when_the_file_is_full_what_was_held_still_comes_and_then_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let backlog = Backlog::new(folder.path(), Room::new(3 << 20)).unwrap();
        let held = (0..100).take_while(|number| backlog.push(news(*number, 1 << 20))).count();
        backlog.end(FeedError::Canceled("later".into()));
        for number in 0..held {
            assert!(backlog.next().await.unwrap().news == news(i64::try_from(number).unwrap(), 1 << 20));
        }
        assert!((17..=19).contains(&held), "{held}");
        assert!(matches!(backlog.next().await, Err(FeedError::Overflow(_))));
    }

    /// As while a store is just as fast as what comes, after it was away for a while.
    #[tokio::test]
    async fn what_was_read_of_the_file_leaves_its_room_to_what_comes() {
        const WAITING: i64 = 20;
        // What is in memory is taken first, while all that comes goes to the file.
        const LIMIT: u64 = 24 << 20;
        let folder = tempfile::tempdir().unwrap();
        let backlog = Backlog::new(folder.path(), Room::new(LIMIT)).unwrap();
        for number in 0..WAITING {
            assert!(backlog.push(news(number, 1 << 20)));
        }
        let begun = backlog.lock().spill.written;
        assert!(begun > 0, "nothing is in the file");
        for number in WAITING..120 {
            assert!(backlog.push(news(number, 1 << 20)), "no room for number {number}");
            assert!(backlog.next().await.unwrap().news == news(number - WAITING, 1 << 20));
        }
        let spill = &backlog.lock().spill;
        assert!(spill.written > 3 * LIMIT, "the file was empty meanwhile: {}", spill.written);
        // In units of 512 bytes, whatever the file system.
        let blocks = spill.file.metadata().unwrap().blocks();
        assert!(blocks * 512 <= LIMIT + GIVEN_BACK, "{blocks} blocks are taken");
    }

    #[test]
    fn two_backlogs_share_their_room_and_give_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(8 << 20);
        let [one, other] = [(); 2].map(|()| Backlog::new(folder.path(), room.clone()).unwrap());
        let fill = |backlog: &Backlog| (0..100).take_while(|number| backlog.push(news(*number, 1 << 20))).count();
        let first = fill(&one);
        let second = fill(&other);
        assert!(second < first && second > 0, "{first} {second}: what is in memory is each one's own");
        // One that spares the others takes half of it at most.
        drop(one);
        drop(other);
        let sparing = Backlog::new(folder.path(), room.sparing()).unwrap();
        let half = fill(&sparing);
        assert!(half < first, "{half}");
        sparing.take_all_room();
        let begun_anew = Backlog::new(folder.path(), room.clone()).unwrap();
        assert!(fill(&begun_anew) > second, "half of it was left");
        drop((sparing, begun_anew));
        let third = Backlog::new(folder.path(), room).unwrap();
        assert_eq!(fill(&third), first);
    }
}
