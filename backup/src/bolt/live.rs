//! Writes a database without its history: of each key the newest revision, and nothing of one that was deleted. That is what
//! etcd's own compaction at the last revision leaves, and the file is as small as that. Whether the history may go is others'
//! business.
//!
//! Memory is bounded whatever the database's size: the history is walked several times, each time for a part of the keys.

use std::collections::HashMap;
use std::fs::File;

use super::append::AppendError;
use super::mvcc::{self, BucketKey};
use super::{BoltError, Bucket, Database, Pages, anew};

/// About so many keys are remembered at a time, with 25 bytes for each: as many as fit a table of 2^20 places.
const KEYS_AT_ONCE: u64 = 900_000;
/// The bytes by which a key is remembered: more than enough that no two are ever taken for one.
const NAME: usize = 16;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinned {
    /// The size of the new file, in bytes.
    pub bytes: u64,
    /// Events that are not in it.
    pub left_out: u64,
}

/// Writes `database` to `file`, which is empty, with no more of the history than is live. The very last event stays even if it
/// is a deletion: it says where the history ends. `report` is told how many entries of how many have been gone over.
pub fn write_live<P: Pages>(
    database: &Database<P>,
    file: &File,
    report: &mut dyn FnMut(u64, u64),
) -> Result<Thinned, AppendError> {
    thin(database, file, KEYS_AT_ONCE, report)
}

fn thin<P: Pages>(
    database: &Database<P>,
    file: &File,
    keys_at_once: u64,
    report: &mut dyn FnMut(u64, u64),
) -> Result<Thinned, AppendError> {
    let history = database.bucket(mvcc::KEY)?;
    let events = count(database, &history)?;
    let walks = events.div_ceil(keys_at_once).max(1);
    let mut tally = Tally { done: 0, total: events.saturating_mul(walks + 1), report };
    let mut live = Marks::of(events);
    for walk in 0..walks {
        mark(database, &history, (walk, walks), &mut live, &mut tally)?;
    }
    if let Some(last) = events.checked_sub(1) {
        live.set(last);
    }
    let mut left_out = 0;
    let bytes = anew::write(database, file, |name, mut cursor, filler| {
        if name != mvcc::KEY {
            return filler.take_all(cursor);
        }
        let (mut more, mut number) = (cursor.first()?, 0);
        while more {
            if live.has(number) {
                filler.take(&cursor)?;
            } else {
                left_out += 1;
            }
            tally.one_more();
            number += 1;
            more = cursor.forward()?;
        }
        Ok(())
    })?;
    Ok(Thinned { bytes, left_out })
}

fn count<P: Pages>(database: &Database<P>, history: &Bucket) -> Result<u64, BoltError> {
    let mut cursor = database.cursor(history);
    let (mut more, mut events) = (cursor.first()?, 0);
    while more {
        events += 1;
        more = cursor.forward()?;
    }
    Ok(events)
}

/// Marks what is live of one part of the keys.
fn mark<P: Pages>(
    database: &Database<P>,
    history: &Bucket,
    (part, parts): (u64, u64),
    live: &mut Marks,
    tally: &mut Tally<'_>,
) -> Result<(), BoltError> {
    let mut newest: HashMap<[u8; NAME], u64> = HashMap::new();
    let mut cursor = database.cursor(history);
    let (mut more, mut number) = (cursor.first()?, 0);
    while more {
        let (event, value) = cursor.pair()?;
        let event = BucketKey::decode(event).map_err(|_| cursor.fault("an entry of the history is no event"))?;
        let key = mvcc::key_of(value).ok_or_else(|| cursor.fault("the value of an event is none of etcd's"))?;
        let (name, falls_to) = name_of(key, parts);
        if falls_to == part {
            if event.tombstone {
                newest.remove(&name)
            } else {
                newest.insert(name, number)
            };
        }
        tally.one_more();
        number += 1;
        more = cursor.forward()?;
    }
    for number in newest.into_values() {
        live.set(number);
    }
    Ok(())
}

/// By what a key is remembered, and to which part of all keys it falls.
fn name_of(key: &[u8], parts: u64) -> ([u8; NAME], u64) {
    let hash = blake3::hash(key);
    let (name, rest) = hash.as_bytes().split_first_chunk().map_or(([0; NAME], &[][..]), |(name, rest)| (*name, rest));
    let number = rest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (name, number % parts)
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
    report: &'r mut dyn FnMut(u64, u64),
}

impl Tally<'_> {
    const EVERY: u64 = 50_000;

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

    use super::super::mvcc::{KEY, KeyValue, LEASE, Lease};
    use super::super::tests::fresh;
    use super::super::{Appender, tests::entries};
    use super::*;

    /// What befalls keys, one event a revision: which key, and whether it is deleted.
    fn history(events: &[(u8, bool)]) -> (File, Vec<(Vec<u8>, Vec<u8>)>) {
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
            keys_at_once in 1_u64..40,
        ) {
            let (file, live) = history(&events);
            let thinner = tempfile::tempfile().unwrap();
            let (mut told, mut count) = (0, 0);
            let thinned = thin(&Database::open(&file).unwrap(), &thinner, keys_at_once, &mut |done, total| {
                (told, count) = (done, total);
            });
            let Thinned { bytes, left_out } = thinned.unwrap();
            prop_assert_eq!(entries(&thinner, KEY), &live[..]);
            prop_assert_eq!(left_out, (events.len() - live.len()) as u64);
            prop_assert_eq!(bytes, thinner.metadata().unwrap().len());
            prop_assert_eq!(entries(&thinner, LEASE), entries(&file, LEASE));
            prop_assert_eq!(Database::open(&thinner).unwrap().buckets().unwrap(), Database::open(&file).unwrap().buckets().unwrap());
            prop_assert!(told <= count);
        }
    }

    #[test]
    fn an_event_that_is_none_of_etcds_is_named_by_its_page() {
        let file = fresh(4096);
        let mut appender = Appender::new(&file).unwrap();
        appender.push(BucketKey { main: 2, sub: 0, tombstone: false }, &[0xff; 20]).unwrap();
        appender.commit().unwrap();
        let error = write_live(&Database::open(&file).unwrap(), &tempfile::tempfile().unwrap(), &mut |_, _| {});
        assert!(error.unwrap_err().to_string().contains("none of etcd's"));
    }
}
