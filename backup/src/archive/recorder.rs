//! Turns the events of a watch into records, revision by revision. A revision is closed when it is certain that no event of
//! it will follow: only closed ones may be committed. Pure: no clock, no network.

#[cfg(test)]
mod tests;

use etcd_client::proto::PbEvent;
use jiff::Timestamp;
use prost::Message;

use crate::bolt::mvcc::{BucketKey, KeyValue};
use crate::format::{EventHash, Hash, Hasher, Record, RecordFault, Revision, Sample, split_record, write_record};

/// etcd's number for a deletion (`mvccpb.Event.EventType`).
const DELETE: i32 = 1;
/// The shortest time between two samples: restores are asked for by the second.
const SAMPLE_EVERY: jiff::SignedDuration = jiff::SignedDuration::from_secs(1);

/// What makes a watch useless.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The history is another one than the one that was recorded.
    #[error("revision {0} holds other events than those that were recorded: the cluster has another history")]
    Forked(Revision),
    /// Revisions are missing, or come again.
    #[error("revision {found} came where {expected} was due")]
    Order {
        /// What was due.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// An event without content.
    #[error("an event came without a key")]
    Empty,
    /// A revision that is too large to be held.
    #[error("revision {0} has more events than can be held")]
    Large(u64),
    /// An event that the format can't hold.
    #[error(transparent)]
    Record(#[from] RecordFault),
}

/// The most that is held of one revision, in bytes: some 400,000 deleted keys. etcd limits how large a request is, but one
/// may delete any number of keys. A full snapshot follows, which has the revision.
const MOST_OPEN: usize = 32 << 20;

/// Closed revisions without a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The first one.
    pub from: Revision,
    /// The last one.
    pub to: Revision,
    /// How many events they have.
    pub events: u64,
    /// Their records.
    pub records: Vec<u8>,
    /// The hash of the last revision's records.
    pub last_events: Hash,
    /// Moments by which revisions had been reached.
    pub samples: Vec<Sample>,
}

/// What is expected of the first revision that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// What is before the head is skipped, and then the head itself proved.
    Skipping(Hash),
    /// The head itself, whose events must hash to this.
    Proving(Hash),
    /// What comes after it.
    Recording,
}

/// A revision whose events are coming.
#[derive(Debug)]
struct Open {
    revision: u64,
    events: u64,
    /// When the last of them came: what tells that it was the last may come much later.
    at: Timestamp,
    /// Where its records begin in the recorder's.
    start: usize,
    /// Of its records.
    hasher: Hasher,
}

/// Records from a head on.
#[derive(Debug)]
pub struct Recorder {
    stage: Stage,
    /// How a revision's records are hashed.
    event_hash: EventHash,
    /// The last closed revision.
    head: u64,
    open: Option<Open>,
    /// Those of the closed revisions, then those of the open one.
    records: Vec<u8>,
    closed: Closed,
    /// The latest moment of all.
    latest: Timestamp,
    /// The end of another generation that was recorded, and when it was reached.
    other_end: Option<Sample>,
}

/// What is closed and not yet taken.
#[derive(Debug, Default)]
struct Closed {
    first: Option<u64>,
    events: u64,
    /// Where the records end.
    end: usize,
    last_events: Option<Hash>,
    samples: Vec<Sample>,
}

impl Recorder {
    /// For a watch that was opened at [`Self::watch_from`]. `head` is the last recorded revision, `last_events` the hash of
    /// its records, which `event_hash` makes.
    pub fn new(head: Revision, last_events: Hash, event_hash: EventHash) -> Self {
        // Of a head without any events (a new cluster's first revision, or all were compacted) there is nothing to prove.
        let nothing = last_events == event_hash.of(&[]);
        let stage = if nothing { Stage::Recording } else { Stage::Proving(last_events) };
        let (head, records, closed, latest) = (head.get(), Vec::new(), Closed::default(), Timestamp::UNIX_EPOCH);
        Self { stage, event_hash, head, open: None, records, closed, latest, other_end: None }
    }

    /// For a watch that was opened at `watched_from`, before the full snapshot was taken that ends with `head`.
    pub fn after_full(head: Revision, (last_events, event_hash): (Hash, EventHash), watched_from: Revision) -> Self {
        let mut recorder = Self::new(head, last_events, event_hash);
        // Nothing was written before the snapshot: the watch begins behind the head, which it can't show.
        recorder.stage = match recorder.stage {
            Stage::Proving(hash) if watched_from <= head => Stage::Skipping(hash),
            Stage::Proving(_) | Stage::Skipping(_) | Stage::Recording => Stage::Recording,
        };
        recorder
    }

    /// What is held, and what is closed from now on, is not told to have come before this moment: a clock that was set back, or
    /// another node's that is ahead, must not put what is restored to a time out of order.
    pub fn not_before(&mut self, moment: Timestamp) {
        self.latest = self.latest.max(moment);
        for sample in &mut self.closed.samples {
            sample.at = sample.at.max(moment);
        }
    }

    /// Another generation was left at this end. Once this one comes as far it is not told to have come before that moment: of the
    /// two it is the later one. What came before keeps its moments: while a full snapshot was taken the other one was recorded
    /// into, and a time of then is looked for in this one.
    pub fn goes_beyond(&mut self, other_end: Option<Sample>) {
        self.other_end = other_end;
    }

    /// Where the watch has to begin.
    pub fn watch_from(&self) -> Revision {
        let head = Revision::new(self.head).unwrap_or_default();
        match self.stage {
            Stage::Skipping(_) | Stage::Proving(_) => head,
            Stage::Recording => head.next(),
        }
    }

    /// Whether the watch has shown that its history is the recorded one.
    pub fn proved(&self) -> bool {
        self.stage == Stage::Recording
    }

    /// The last revision that came to its end.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.records.len()
    }

    /// The next event, in the order in which etcd sent them. It tells the lease that a put names.
    pub fn event(&mut self, event: PbEvent, now: Timestamp) -> Result<Option<i64>, Fault> {
        let kv = event.kv.ok_or(Fault::Empty)?;
        let main = u64::try_from(kv.mod_revision).map_err(|_| Fault::Order { expected: self.head + 1, found: 0 })?;
        if let Stage::Skipping(hash) = self.stage {
            if main < self.head {
                return Ok(None);
            }
            self.stage = Stage::Proving(hash);
        }
        if self.open.as_ref().is_some_and(|open| open.revision != main) {
            self.close()?;
        }
        let expected = match (self.stage, &self.open) {
            (_, Some(open)) => open.revision,
            (Stage::Skipping(_) | Stage::Proving(_), None) => self.head,
            (Stage::Recording, None) => self.head + 1,
        };
        if main != expected {
            // The head's own events are gone: they are others by now.
            return Err(match self.stage {
                Stage::Skipping(_) | Stage::Proving(_) => Fault::Forked(self.watch_from()),
                Stage::Recording => Fault::Order { expected, found: main },
            });
        }
        let (begin, event_hash) = (self.records.len(), self.event_hash);
        let open = self.open.get_or_insert_with(|| {
            let hasher = event_hash.hasher();
            Open { revision: main, events: 0, at: now, start: begin, hasher }
        });
        open.at = now;
        let tombstone = event.r#type == DELETE;
        let key = BucketKey { main, sub: open.events, tombstone };
        open.events += 1;
        let lease = (!tombstone && kv.lease != 0).then_some(kv.lease);
        // Of a deletion the database holds nothing but the key.
        let value = if tombstone {
            KeyValue { key: kv.key, ..KeyValue::default() }.encode_to_vec()
        } else {
            kv.encode_to_vec()
        };
        write_record(&mut self.records, Record { key, value: &value })?;
        open.hasher.update(self.records.get(begin..).unwrap_or_default());
        match self.stage {
            Stage::Recording => {}
            // It is stored, and its hash is all that counts, however large it is.
            Stage::Skipping(_) | Stage::Proving(_) => self.records.truncate(begin),
        }
        let held = self.records.len() - open.start;
        if held > MOST_OPEN { Err(Fault::Large(main)) } else { Ok(lease) }
    }

    /// etcd has said that nothing up to this revision will follow.
    pub fn progress(&mut self, revision: u64) -> Result<(), Fault> {
        if self.open.as_ref().is_some_and(|open| open.revision <= revision) { self.close() } else { Ok(()) }
    }

    /// Whether there is something closed that nobody has taken.
    pub fn has_closed(&self) -> bool {
        self.closed.first.is_some()
    }

    /// Another archive has recorded everything up to `to`, whose records have this hash: what is held up to there goes, and
    /// what comes after it stays.
    pub fn forget(&mut self, to: Revision, last_events: Hash) -> Result<(), Fault> {
        let revision = to.get();
        if revision > self.head {
            self.skip_to(revision, last_events);
            return Ok(());
        }
        if self.closed.first.is_none_or(|first| first > revision) {
            return Ok(());
        }
        let closed = self.records.get(..self.closed.end).unwrap_or_default();
        let (mut last, mut events, mut rest) = (self.event_hash.hasher(), 0, closed);
        while let Some((record, after)) = split_record(rest)?.filter(|(record, _)| record.key.main <= revision) {
            if record.key.main == revision {
                last.update(rest.get(..rest.len() - after.len()).unwrap_or_default());
            }
            events += 1;
            rest = after;
        }
        if last.finish() != last_events {
            return Err(Fault::Forked(to));
        }
        let gone = closed.len() - rest.len();
        self.records.drain(..gone);
        if let Some(open) = &mut self.open {
            open.start -= gone;
        }
        let closed = &mut self.closed;
        if revision == self.head {
            *closed = Closed::default();
        } else {
            closed.first = Some(revision + 1);
            closed.events -= events;
            closed.end -= gone;
            closed.samples.retain(|sample| sample.revision > to);
        }
        Ok(())
    }

    /// As [`Self::forget`], for a revision that has not come, or not to its end.
    fn skip_to(&mut self, revision: u64, last_events: Hash) {
        self.closed = Closed::default();
        self.records.clear();
        self.open = self.open.take().filter(|open| open.revision == revision).map(|open| Open { start: 0, ..open });
        self.stage = match self.open {
            Some(_) => Stage::Proving(last_events),
            None => Stage::Skipping(last_events),
        };
        self.head = revision;
    }

    /// Everything that is closed.
    pub fn take(&mut self) -> Option<Batch> {
        let Closed { first, events, end, last_events, samples } = std::mem::take(&mut self.closed);
        let (from, to) = (Revision::new(first?)?, Revision::new(self.head)?);
        let rest = self.records.split_off(end);
        let records = std::mem::replace(&mut self.records, rest);
        if let Some(open) = &mut self.open {
            open.start = 0;
        }
        Some(Batch { from, to, events, records, last_events: last_events?, samples })
    }

    fn close(&mut self) -> Result<(), Fault> {
        let Some(Open { revision, events, at, start: _, hasher }) = self.open.take() else { return Ok(()) };
        let hash = hasher.finish();
        if let Stage::Proving(recorded) = self.stage {
            self.stage = Stage::Recording;
            return if hash == recorded {
                Ok(())
            } else {
                Err(Fault::Forked(Revision::new(revision).unwrap_or_default()))
            };
        }
        self.head = revision;
        let closed = &mut self.closed;
        closed.first.get_or_insert(revision);
        closed.events += events;
        closed.end = self.records.len();
        closed.last_events = Some(hash);
        let other = self.other_end.filter(|other| other.revision.get() <= revision);
        self.latest = self.latest.max(at).max(other.map_or(at, |other| other.at));
        let at = self.latest;
        let sample = Sample { at, revision: Revision::new(revision).unwrap_or_default() };
        match closed.samples.as_mut_slice() {
            // The last of each second stays, and so does the first of all: moments between have an answer.
            [.., before, last] if at.duration_since(before.at) < SAMPLE_EVERY => *last = sample,
            _ => closed.samples.push(sample),
        }
        Ok(())
    }
}
