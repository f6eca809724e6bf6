//! Turns the events of a watch into records, revision by revision. A revision is closed when it is certain that no event of
//! it will follow: only closed ones may be committed. Pure: no clock, no network.

use etcd_client::proto::PbEvent;
use jiff::Timestamp;
use prost::Message;

use crate::bolt::mvcc::{BucketKey, KeyValue};
use crate::format::{EventHash, Hash, Record, RecordFault, Revision, Sample, split_record, write_record};

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
        let (records, latest) = (Vec::new(), Timestamp::UNIX_EPOCH);
        Self { stage, event_hash, head: head.get(), open: None, records, closed: Closed::default(), latest }
    }

    /// For a watch that was opened at `watched_from`, before the full snapshot was taken that ends with `head`.
    pub fn after_full(head: Revision, (last_events, event_hash): (Hash, EventHash), watched_from: Revision) -> Self {
        let mut recorder = Self::new(head, last_events, event_hash);
        // Nothing was written before the snapshot: the watch begins behind the head, which it can't show.
        recorder.stage = match recorder.stage {
            Stage::Proving(hash) if watched_from <= head => Stage::Skipping(hash),
            _ => Stage::Recording,
        };
        recorder
    }

    /// What is closed from now on is not told to have come before this moment: a clock that was set back, or another node's
    /// that is ahead, must not put what is restored to a time out of order.
    pub fn not_before(&mut self, moment: Timestamp) {
        self.latest = self.latest.max(moment);
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
        let start = self.records.len();
        let open = self.open.get_or_insert(Open { revision: main, events: 0, at: now, start });
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
        let start = self.open.as_ref().filter(|open| open.revision == revision).map(|open| open.start);
        if let (Some(start), Some(open)) = (start, &mut self.open) {
            self.records.drain(..start);
            open.start = 0;
            self.stage = Stage::Proving(last_events);
        } else {
            self.records.clear();
            self.open = None;
            self.stage = Stage::Skipping(last_events);
        }
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
        let Some(Open { revision, events, at, start }) = self.open.take() else { return Ok(()) };
        let hash = self.event_hash.of(self.records.get(start..).unwrap_or_default());
        if let Stage::Proving(recorded) = self.stage {
            self.stage = Stage::Recording;
            self.records.truncate(start);
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
        self.not_before(at);
        let at = self.latest;
        let closed = &mut self.closed;
        let sample = Sample { at, revision: Revision::new(revision).unwrap_or_default() };
        match closed.samples.as_mut_slice() {
            // The last of each second stays, and so does the first of all: moments between have an answer.
            [.., before, last] if at.duration_since(before.at) < SAMPLE_EVERY => *last = sample,
            _ => closed.samples.push(sample),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use etcd_client::proto::PbKeyValue;
    use proptest::prelude::*;

    use super::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    fn event(revision: i64, key: &str, kind: i32) -> PbEvent {
        let kv = PbKeyValue { key: key.into(), mod_revision: revision, lease: 7, ..PbKeyValue::default() };
        PbEvent { r#type: kind, kv: Some(kv), prev_kv: None }
    }

    fn revision(number: u64) -> Revision {
        Revision::new(number).unwrap()
    }

    fn new(head: u64) -> Recorder {
        Recorder::new(revision(head), Hash::of(&[]), EventHash::Plain)
    }

    #[test]
    fn a_revision_too_large_to_be_held_is_told_in_bounded_memory() {
        let mut recorder = new(10);
        let key = "k".repeat(1 << 20);
        let fault = (0..).find_map(|_| recorder.event(event(11, &key, DELETE), at(0)).err());
        assert!(matches!(fault, Some(Fault::Large(11))), "{fault:?}");
        assert!((MOST_OPEN..MOST_OPEN + (2 << 20)).contains(&recorder.bytes()));
    }

    #[test]
    fn a_clock_that_is_set_back_puts_no_moment_out_of_order() {
        for (clock, moments) in [
            ([5_000, 5_400, 3_900], vec![5_000, 5_400]),
            ([5_000, 3_900, 7_000], vec![5_000, 7_000]),
            ([500, 1_000, 6_000], vec![4_000, 6_000]),
        ] {
            let mut recorder = new(10);
            recorder.not_before(at(4_000));
            for (revision, now) in (11..).zip(clock) {
                recorder.event(event(revision, "a", 0), at(now)).unwrap();
                recorder.progress(revision.unsigned_abs()).unwrap();
            }
            let samples = recorder.take().unwrap().samples;
            assert!(samples.is_sorted_by_key(|sample| sample.at), "{samples:?}");
            let mut told: Vec<_> = samples.iter().map(|sample| sample.at.as_millisecond()).collect();
            told.dedup();
            assert_eq!(told, moments, "{clock:?}");
            assert_eq!(samples.last().map(|sample| sample.revision), Some(revision(13)));
        }
    }

    #[test]
    fn a_revision_is_of_the_moment_at_which_it_came_however_late_it_is_closed() {
        let mut recorder = new(10);
        recorder.event(event(11, "a", 0), at(1_000)).unwrap();
        recorder.event(event(11, "b", 0), at(1_500)).unwrap();
        recorder.event(event(12, "a", 0), at(60_000)).unwrap();
        recorder.progress(12).unwrap();
        let samples = recorder.take().unwrap().samples;
        let told: Vec<_> = samples.iter().map(|sample| (sample.at.as_millisecond(), sample.revision.get())).collect();
        assert_eq!(told, [(1_500, 11), (60_000, 12)]);
    }

    #[test]
    fn only_what_is_closed_is_taken() {
        let mut recorder = new(10);
        assert_eq!(recorder.watch_from(), revision(11));
        assert_eq!(recorder.event(event(11, "a", 0), at(0)).unwrap(), Some(7));
        assert_eq!(recorder.event(event(11, "b", DELETE), at(0)).unwrap(), None);
        assert_eq!(recorder.take(), None);
        recorder.progress(10).unwrap();
        assert_eq!(recorder.take(), None);
        recorder.event(event(12, "a", 0), at(1)).unwrap();
        let batch = recorder.take().unwrap();
        assert_eq!((batch.from, batch.to, batch.events), (revision(11), revision(11), 2));
        assert_eq!(batch.last_events, Hash::of(&batch.records));
        recorder.progress(12).unwrap();
        let batch = recorder.take().unwrap();
        assert_eq!((batch.from, batch.to, batch.events), (revision(12), revision(12), 1));
        assert_eq!((recorder.take(), recorder.bytes()), (None, 0));
    }

    #[test]
    fn the_head_is_proved_and_not_recorded_again() {
        let mut first = new(10);
        first.event(event(11, "a", 0), at(0)).unwrap();
        first.progress(11).unwrap();
        let batch = first.take().unwrap();

        let mut same = Recorder::new(revision(11), batch.last_events, EventHash::Plain);
        assert_eq!((same.watch_from(), same.proved()), (revision(11), false));
        same.event(event(11, "a", 0), at(0)).unwrap();
        same.event(event(12, "a", 0), at(0)).unwrap();
        assert!(same.proved());
        same.progress(12).unwrap();
        assert_eq!(same.take().unwrap().from, revision(12));

        let mut other = Recorder::new(revision(11), batch.last_events, EventHash::Plain);
        other.event(event(11, "b", 0), at(0)).unwrap();
        assert!(matches!(other.progress(11), Err(Fault::Forked(_))));
        let mut gone = Recorder::new(revision(11), batch.last_events, EventHash::Plain);
        assert!(matches!(gone.event(event(12, "a", 0), at(0)), Err(Fault::Forked(_))));
    }

    #[test]
    fn what_a_full_snapshot_holds_is_not_recorded_again() {
        let mut first = new(10);
        first.event(event(11, "a", 0), at(0)).unwrap();
        first.progress(11).unwrap();
        let hash = first.take().unwrap().last_events;
        // Events before the snapshot's last, that one, and then others.
        let mut recorder = Recorder::after_full(revision(11), (hash, EventHash::Plain), revision(9));
        for number in 9..14 {
            recorder.event(event(number, "a", 0), at(0)).unwrap();
        }
        let batch = recorder.take().unwrap();
        assert_eq!((batch.from, batch.to), (revision(12), revision(12)));
        // Nothing came between: the watch begins behind it.
        let mut recorder = Recorder::after_full(revision(11), (hash, EventHash::Plain), revision(12));
        recorder.event(event(12, "a", 0), at(0)).unwrap();
        // Something came, and the snapshot's last is not as the watch shows it.
        let mut recorder = Recorder::after_full(revision(11), (hash, EventHash::Plain), revision(10));
        recorder.event(event(10, "a", 0), at(0)).unwrap();
        recorder.event(event(11, "b", 0), at(0)).unwrap();
        assert!(matches!(recorder.progress(11), Err(Fault::Forked(_))));
    }

    #[test]
    fn a_gap_and_a_step_back_are_faults() {
        for wrong in [10, 11, 13] {
            let mut recorder = new(10);
            recorder.event(event(11, "a", 0), at(0)).unwrap();
            recorder.progress(11).unwrap();
            assert!(matches!(recorder.event(event(wrong, "a", 0), at(0)), Err(Fault::Order { .. })), "{wrong}");
        }
        assert!(matches!(new(10).event(event(12, "a", 0), at(0)), Err(Fault::Order { expected: 11, found: 12 })));
        assert!(matches!(new(1).event(PbEvent::default(), at(0)), Err(Fault::Empty)));
    }

    /// Events of revisions 11 to 30, some of which have several.
    fn history() -> Vec<PbEvent> {
        let events = |number: i64| (0..=number % 3).map(move |at| event(number, &format!("{number}/{at}"), 0));
        (11..=30).flat_map(events).collect()
    }

    fn hash_of(events: &[PbEvent], revision: u64) -> Hash {
        let mut recorder = new(revision - 1);
        for event in events.iter().filter(|event| event.kv.as_ref().unwrap().mod_revision.cast_unsigned() == revision) {
            recorder.event(event.clone(), at(0)).unwrap();
        }
        recorder.progress(revision).unwrap();
        recorder.take().unwrap().last_events
    }

    proptest! {
        /// Whoever forgets what another has recorded ends with the same as whoever begins after it, whenever that is.
        #[test]
        fn what_another_recorded_goes_and_the_rest_stays(came in 0_usize..40, to in 11_u64..30, closes: bool) {
            let events = history();
            let mut recorder = new(10);
            let (before, after) = events.split_at(came.min(events.len()));
            for event in before {
                recorder.event(event.clone(), at(0)).unwrap();
            }
            if closes && let Some(last) = before.last() && after.first().is_none_or(|next| {
                next.kv.as_ref().unwrap().mod_revision != last.kv.as_ref().unwrap().mod_revision
            }) {
                recorder.progress(last.kv.as_ref().unwrap().mod_revision.cast_unsigned()).unwrap();
            }
            recorder.forget(revision(to), hash_of(&events, to)).unwrap();
            for event in after {
                recorder.event(event.clone(), at(0)).unwrap();
            }
            recorder.progress(30).unwrap();
            let kept = recorder.take().unwrap();
            let mut late = new(to);
            for event in events.iter().filter(|one| one.kv.as_ref().unwrap().mod_revision.cast_unsigned() > to) {
                late.event(event.clone(), at(0)).unwrap();
            }
            late.progress(30).unwrap();
            let samples = kept.samples.clone();
            prop_assert!(samples.iter().all(|sample| sample.revision > revision(to)));
            prop_assert_eq!(samples.last().map(|sample| sample.revision), Some(revision(30)));
            prop_assert_eq!(kept, Batch { samples, ..late.take().unwrap() });
            prop_assert_eq!(recorder.bytes(), 0);
        }

        /// Also if it comes to light only later.
        #[test]
        fn what_another_recorded_otherwise_is_another_history(came in 0_usize..40, to in 11_u64..30) {
            let events = history();
            let mut recorder = new(10);
            let mut other = events.clone();
            for event in &mut other {
                event.kv.as_mut().unwrap().key.push(b'x');
            }
            let mut faults = 0;
            for (number, event) in events.iter().enumerate() {
                if number == came {
                    faults += u32::from(recorder.forget(revision(to), hash_of(&other, to)).is_err());
                }
                faults += u32::from(matches!(recorder.event(event.clone(), at(0)), Err(Fault::Forked(_))));
            }
            if came < events.len() {
                prop_assert!(faults > 0);
            }
        }
    }

    #[test]
    fn samples_are_thinned_to_seconds_and_end_with_the_last_revision() {
        let mut recorder = new(0);
        for number in 1..=5000 {
            recorder.event(event(number, "a", 0), at(number)).unwrap();
        }
        recorder.progress(5000).unwrap();
        let samples = recorder.take().unwrap().samples;
        assert!((5..=8).contains(&samples.len()), "{samples:?}");
        assert_eq!(samples.last().map(|sample| sample.revision), Some(revision(5000)));
        assert!(samples.is_sorted_by(|one, next| one.at <= next.at && one.revision < next.revision));
    }
}
