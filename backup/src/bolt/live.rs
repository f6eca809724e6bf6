//! Writes a database without its history: of each key the newest revision, nothing of one that was deleted, and the very last
//! event, which says where the history ends. That is what etcd's own compaction would leave, in a file that is as small.
//! Whether the history may go is others' business.
//!
//! Memory is bounded by some 50 MiB and one bit for each event: where there are more keys than fit, the history is walked
//! once more for the others.

use std::collections::HashMap;
use std::fs::File;

use super::append::AppendError;
use super::history::event;
use super::mvcc;
use super::{BoltError, Bucket, Database, Pages, anew};

/// So many keys are remembered at a time, with 33 bytes for each: as many as fit a table of 2^20 places.
const KEYS_AT_ONCE: usize = 900_000;
/// The bytes by which a key is remembered: more than enough that no two are ever taken for one.
const NAME: usize = 16;
/// What an entry takes besides its value, in bytes: its key, and its place in a page.
const OF_AN_ENTRY: u64 = 17 + 16;

/// What is live of a history.
pub struct Live {
    marks: Marks,
    events: u64,
    /// How many bytes it takes in a database at least, beside what else there is.
    pub bytes: u64,
    /// Events that are not live.
    pub left_out: u64,
}

/// Who is told how many entries of how many have been gone over.
pub type Report<'r> = &'r mut dyn FnMut(u64, u64);

impl Live {
    /// Finds it.
    pub fn find<P: Pages>(database: &Database<P>, report: Report<'_>) -> Result<Self, BoltError> {
        find(database, KEYS_AT_ONCE, report)
    }

    /// Writes `database` to `file`, which is empty, with no more of its history. Tells the size in bytes.
    pub fn write<P: Pages>(&self, database: &Database<P>, file: &File, report: Report<'_>) -> Result<u64, AppendError> {
        let mut tally = Tally::new(self.events, report);
        anew::write(database, file, |name, mut cursor, filler| {
            if name != mvcc::KEY {
                return filler.take_all(cursor);
            }
            let (mut more, mut number) = (cursor.first()?, 0);
            while more {
                if self.marks.has(number) {
                    filler.take(&cursor)?;
                }
                tally.one_more();
                number += 1;
                more = cursor.forward()?;
            }
            Ok(())
        })
    }

    fn take(&mut self, number: u64, bytes: u32) {
        if !self.marks.has(number) {
            self.marks.set(number);
            self.bytes += u64::from(bytes) + OF_AN_ENTRY;
            self.left_out -= 1;
        }
    }
}

fn find<P: Pages>(database: &Database<P>, keys_at_once: usize, report: Report<'_>) -> Result<Live, BoltError> {
    let history = database.bucket(mvcc::KEY)?;
    let (events, last) = measure(database, &history)?;
    let mut live = Live { marks: Marks::of(events), events, bytes: 0, left_out: events };
    let mut parts = vec![Part::ALL];
    let mut tally = Tally::new(events, report);
    while let Some(part) = parts.pop() {
        let newest = newest(database, &history, (part, keys_at_once), &mut parts, &mut tally)?;
        for Place { number, bytes } in newest.into_values() {
            live.take(number, bytes);
        }
        tally.total = tally.done + events * parts.len() as u64;
    }
    if let Some(number) = events.checked_sub(1) {
        live.take(number, last);
    }
    Ok(live)
}

/// How many events there are, and how long the value of the last is.
fn measure<P: Pages>(database: &Database<P>, history: &Bucket) -> Result<(u64, u32), BoltError> {
    let mut cursor = database.cursor(history);
    let (mut more, mut events, mut last) = (cursor.first()?, 0, 0);
    while more {
        last = length(cursor.pair()?.1);
        events += 1;
        more = cursor.forward()?;
    }
    Ok((events, last))
}

/// Where the newest of a key is, and how long.
#[derive(Clone, Copy)]
struct Place {
    number: u64,
    bytes: u32,
}

/// The newest of the keys that fall to a part and were not deleted. Where there are too many, the half of the part is left to
/// another walk.
fn newest<P: Pages>(
    database: &Database<P>,
    history: &Bucket,
    (mut part, keys_at_once): (Part, usize),
    later: &mut Vec<Part>,
    tally: &mut Tally<'_>,
) -> Result<HashMap<Name, Place>, BoltError> {
    let mut newest: HashMap<Name, Place> = HashMap::new();
    let mut cursor = database.cursor(history);
    let (mut more, mut number) = (cursor.first()?, 0);
    while more {
        let (event, value) = (event(&cursor)?, cursor.pair()?.1);
        let key = mvcc::key_of(value).ok_or_else(|| cursor.fault("the value of an event is none of etcd's"))?;
        let name = name_of(key);
        if event.tombstone {
            newest.remove(&name);
        } else if part.has(&name) {
            while newest.len() >= keys_at_once && !newest.contains_key(&name) && part.has(&name) {
                let Some([half, other]) = part.halves() else { break };
                later.push(other);
                part = half;
                newest.retain(|name, _| part.has(name));
            }
            if part.has(&name) {
                newest.insert(name, Place { number, bytes: length(value) });
            }
        }
        tally.one_more();
        number += 1;
        more = cursor.forward()?;
    }
    Ok(newest)
}

fn length(value: &[u8]) -> u32 {
    u32::try_from(value.len()).unwrap_or(u32::MAX)
}

/// By what a key is remembered.
type Name = [u8; NAME];

fn name_of(key: &[u8]) -> Name {
    blake3::hash(key).as_bytes().first_chunk().copied().unwrap_or_default()
}

/// Those keys whose names begin with these bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    bits: u32,
    value: u64,
}

impl Part {
    const ALL: Self = Self { bits: 0, value: 0 };

    fn has(self, name: &Name) -> bool {
        let first = name.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        first & ((1 << self.bits) - 1) == self.value
    }

    /// None of the very smallest: it has one key.
    fn halves(self) -> Option<[Self; 2]> {
        let bits = self.bits + 1;
        (bits < u64::BITS).then(|| [0, 1 << self.bits].map(|bit| Self { bits, value: self.value | bit }))
    }
}

/// A mark for each event, or none.
struct Marks(Vec<u64>);

impl Marks {
    fn of(events: u64) -> Self {
        Self(vec![0; usize::try_from(events.div_ceil(64)).unwrap_or(usize::MAX)])
    }

    fn place(number: u64) -> (usize, u64) {
        (usize::try_from(number / 64).unwrap_or(usize::MAX), 1 << (number % 64))
    }

    fn set(&mut self, number: u64) {
        let (index, bit) = Self::place(number);
        if let Some(word) = self.0.get_mut(index) {
            *word |= bit;
        }
    }

    fn has(&self, number: u64) -> bool {
        let (index, bit) = Self::place(number);
        self.0.get(index).is_some_and(|word| word & bit != 0)
    }
}

/// Counts entries, and tells now and then.
struct Tally<'r> {
    done: u64,
    total: u64,
    report: Report<'r>,
}

impl<'r> Tally<'r> {
    const EVERY: u64 = 50_000;

    fn new(total: u64, report: Report<'r>) -> Self {
        Self { done: 0, total, report }
    }

    fn one_more(&mut self) {
        self.done += 1;
        if self.done.is_multiple_of(Self::EVERY) {
            (self.report)(self.done, self.total);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use prost::Message;

    use super::super::mvcc::{BucketKey, KEY, KeyValue, LEASE, Lease};
    use super::super::tests::fresh;
    use super::super::{Appender, tests::entries};
    use super::*;

    /// Keys and values of a bucket.
    type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    /// A database with what befalls keys, one event a revision: which key, and whether it is deleted; and what is live of it.
    fn history(events: &[(u8, bool)]) -> (File, Entries) {
        let file = fresh(4096);
        let mut appender = Appender::new(&file).unwrap();
        let (mut all, mut newest) = (Vec::new(), BTreeMap::new());
        for (index, (key, tombstone)) in events.iter().enumerate() {
            let event = BucketKey { main: 2 + index as u64, sub: 0, tombstone: *tombstone };
            let value = vec![*key; if *tombstone { 0 } else { 300 }];
            let value = KeyValue { key: vec![*key], value, ..KeyValue::default() }.encode_to_vec();
            appender.push(event, &value).unwrap();
            if *tombstone {
                newest.remove(key)
            } else {
                newest.insert(*key, index)
            };
            all.push((event.encode().as_bytes().to_vec(), value));
        }
        let lease = Lease { id: 5, ttl: 60, remaining_ttl: 0 }.encode_to_vec();
        appender.change(LEASE, &[(5_i64.to_be_bytes().to_vec(), Some(lease))].into()).unwrap();
        appender.commit().unwrap();
        let last = all.len().checked_sub(1);
        let stays = |index: usize| newest.values().any(|newest| *newest == index) || Some(index) == last;
        let live = all.into_iter().enumerate().filter(|(index, _)| stays(*index)).map(|(_, entry)| entry);
        (file, live.collect())
    }

    proptest! {
        #[test]
        fn of_each_key_the_newest_stays_and_nothing_of_a_deleted_one(
            events in proptest::collection::vec((0_u8..20, prop::bool::weighted(0.2)), 0..200),
            keys_at_once in 1_usize..40,
        ) {
            let (file, expected) = history(&events);
            let (whole, thinner) = (Database::open(&file).unwrap(), tempfile::tempfile().unwrap());
            let live = find(&whole, keys_at_once, &mut |_, _| {}).unwrap();
            let bytes = live.write(&whole, &thinner, &mut |_, _| {}).unwrap();
            prop_assert_eq!(entries(&thinner, KEY), &expected[..]);
            prop_assert_eq!(live.left_out, (events.len() - expected.len()) as u64);
            prop_assert_eq!(bytes, thinner.metadata().unwrap().len());
            prop_assert!(live.bytes <= bytes);
            prop_assert_eq!(entries(&thinner, LEASE), entries(&file, LEASE));
            prop_assert_eq!(Database::open(&thinner).unwrap().buckets().unwrap(), whole.buckets().unwrap());
        }

        #[test]
        fn every_name_falls_to_one_half(name in any::<Name>(), bits in 0_u32..70) {
            let mut part = Part::ALL;
            for _ in 0..bits {
                prop_assert!(part.has(&name));
                let Some(halves) = part.halves() else { return Ok(()) };
                prop_assert_eq!(halves.iter().filter(|half| half.has(&name)).count(), 1);
                part = *halves.iter().find(|half| half.has(&name)).unwrap();
            }
        }
    }

    #[test]
    fn it_is_told_how_far_it_is_and_keys_that_are_written_again_take_no_further_walk() {
        let events: Vec<_> = (0..60_000_u32).map(|number| ((number % 100).to_le_bytes()[0], false)).collect();
        let (file, _) = history(&events);
        for (keys_at_once, walks) in [(100, 1), (60, 2)] {
            let mut told = Vec::new();
            let database = Database::open(&file).unwrap();
            find(&database, keys_at_once, &mut |done, total| told.push((done, total))).unwrap();
            let (done, total) = *told.last().unwrap();
            assert!(done <= total && total >= walks * 60_000 && done > (walks - 1) * 60_000, "{told:?}");
        }
    }

    #[test]
    fn an_event_that_is_none_of_etcds_is_named_by_its_page() {
        let file = fresh(4096);
        let mut appender = Appender::new(&file).unwrap();
        appender.push(BucketKey { main: 2, sub: 0, tombstone: false }, &[0xff; 20]).unwrap();
        appender.commit().unwrap();
        let error = Live::find(&Database::open(&file).unwrap(), &mut |_, _| {}).err().unwrap();
        assert!(error.to_string().contains("none of etcd's"), "{error}");
    }
}
