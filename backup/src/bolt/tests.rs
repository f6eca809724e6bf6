//! The database against a model of it, against crashes, and against any bytes at all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use proptest::prelude::*;

use super::mvcc::{ALARM, BucketKey, KEY, LEASE, META};
use super::page::{HEADER, LEAF, PageId};
use super::*;

/// A database as etcd makes it: these buckets, empty and inline, on the root's page.
pub(crate) fn fresh(page_size: u32) -> File {
    let names: [&[u8]; 6] = [ALARM, b"auth", KEY, LEASE, b"members", META];
    let mut file = tempfile::tempfile().unwrap();
    for transaction in [0, 1] {
        let meta = Meta { page_size, root: PageId::new(3), sequence: 0, high_water: PageId::new(4), transaction };
        file.write_all(&meta.encode().1).unwrap();
    }
    let size = usize::try_from(page_size).unwrap();
    file.write_all(&vec![0; size]).unwrap();
    let mut root = vec![0; size];
    root[..8].copy_from_slice(&3_u64.to_le_bytes());
    root[8..10].copy_from_slice(&LEAF.to_le_bytes());
    root[10..12].copy_from_slice(&u16::try_from(names.len()).unwrap().to_le_bytes());
    let mut position = names.len() * 16;
    let mut bytes = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let mut value = [0; 32];
        value[24..26].copy_from_slice(&LEAF.to_le_bytes());
        let at = HEADER + index * 16;
        let numbers = [1, position - index * 16, name.len(), value.len()];
        for (number, place) in numbers.iter().zip(root[at..at + 16].chunks_exact_mut(4)) {
            place.copy_from_slice(&u32::try_from(*number).unwrap().to_le_bytes());
        }
        position += name.len() + value.len();
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&value);
    }
    let start = HEADER + names.len() * 16;
    root[start..start + bytes.len()].copy_from_slice(&bytes);
    file.write_all(&root).unwrap();
    file
}

pub(crate) fn entries(file: &File, bucket: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let database = Database::open(file).unwrap();
    let bucket = database.bucket(bucket).unwrap();
    let mut cursor = database.cursor(&bucket);
    let mut found = Vec::new();
    let mut more = cursor.first().unwrap();
    while more {
        let (key, value) = cursor.pair().unwrap();
        found.push((key.to_vec(), value.to_vec()));
        more = cursor.forward().unwrap();
    }
    let mut backwards = Vec::new();
    let mut more = cursor.last().unwrap();
    while more {
        let (key, value) = cursor.pair().unwrap();
        backwards.push((key.to_vec(), value.to_vec()));
        more = cursor.back().unwrap();
    }
    backwards.reverse();
    assert_eq!(found, backwards);
    found
}

/// Adds this many events with values of these sizes, from this revision on.
fn extend(file: &File, first: u64, count: u64, size: impl Fn(u64) -> usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut appender = Appender::new(file).unwrap();
    let mut added = Vec::new();
    for main in first..first + count {
        let key = BucketKey { main, sub: main % 3, tombstone: main % 5 == 0 };
        let value = vec![main.to_le_bytes()[0]; size(main)];
        appender.push(key, &value).unwrap();
        added.push((key.encode().as_bytes().to_vec(), value));
    }
    appender.commit().unwrap();
    added
}

#[test]
fn appending_gives_what_was_appended() {
    for page_size in [1024, 4096, 65536] {
        let file = fresh(page_size);
        let mut all = Vec::new();
        assert!(entries(&file, KEY).is_empty());
        // Ever larger, so that the tree goes through all its shapes, and again on top of each.
        for count in [1, 0, 2, 40, 1, 3_000, 1, 20_000, 7] {
            let first = all.len() as u64 + 1;
            all.extend(extend(&file, first, count, |main| usize::try_from(main % 50).unwrap()));
            assert_eq!(entries(&file, KEY), all, "{page_size} {count}");
        }
        assert!(entries(&file, META).is_empty());
    }
}

#[test]
fn a_value_larger_than_a_page_overflows() {
    let file = fresh(4096);
    let mut all = extend(&file, 1, 30, |main| if main % 7 == 3 { 100_000 } else { 10 });
    all.extend(extend(&file, 31, 2, |_| 3 << 20));
    all.extend(extend(&file, 33, 2, |_| 0));
    assert_eq!(entries(&file, KEY), all);
}

#[test]
fn a_crash_before_the_end_leaves_the_state_before() {
    let file = fresh(4096);
    let before = extend(&file, 1, 500, |_| 40);
    let mut appender = Appender::new(&file).unwrap();
    for main in 501..9_000 {
        appender.push(BucketKey { main, sub: 0, tombstone: false }, &[7; 300]).unwrap();
    }
    // Some of it is in the file by now; it is never committed.
    drop(appender);
    assert!(file.metadata().unwrap().len() > Database::open(&file).unwrap().meta().end());
    assert_eq!(entries(&file, KEY), before);
    let mut all = before;
    all.extend(extend(&file, 501, 10, |_| 9));
    assert_eq!(entries(&file, KEY), all);
}

#[test]
fn newer_events_in_free_pages_do_not_count() {
    let file = fresh(4096);
    extend(&file, 1, 500, |_| 40);
    let mut appender = Appender::new(&file).unwrap();
    for main in 501..9_000 {
        appender.push(BucketKey { main, sub: 0, tombstone: false }, &[7; 300]).unwrap();
    }
    drop(appender);
    let newer = BucketKey { main: 600, sub: 0, tombstone: false }.encode();
    let newer = newer.as_bytes();
    assert!(bytes_of(&file).windows(newer.len()).any(|window| window == newer), "nothing newer is left over");
    let tail = || Tail::read(&Database::open(&file).unwrap()).unwrap();
    let wanted = Tail { revision: 500, compact_revision: 0 };
    assert_eq!(tail(), wanted);
    // The same where those pages are free ones among those that were used, as in a file of etcd's.
    let old = *Database::open(&file).unwrap().meta();
    let length = file.metadata().unwrap().len();
    let high_water = PageId::new(length / u64::from(old.page_size));
    let (offset, page) = Meta { high_water, transaction: old.transaction + 1, ..old }.encode();
    // Not imported: its `read_at` would be taken for that of pages.
    std::os::unix::fs::FileExt::write_all_at(&file, &page, offset).unwrap();
    assert_eq!(Database::open(&file).unwrap().meta().end(), length);
    assert_eq!(tail(), wanted);
}

#[test]
fn leases_are_merged_and_alarms_go() {
    let file = fresh(4096);
    let named = |number: u64| number.to_be_bytes().to_vec();
    let mut model = BTreeMap::new();
    for round in 0..4_u64 {
        let mut changes = BTreeMap::new();
        for number in (0..3_000).step_by(usize::try_from(round).unwrap() + 1) {
            let value = (number % 4 != round).then(|| vec![number.to_le_bytes()[0]; 11]);
            changes.insert(named(number), value);
        }
        let mut appender = Appender::new(&file).unwrap();
        appender.change(LEASE, &changes).unwrap();
        appender.change(ALARM, &BTreeMap::from([(vec![1], Some(vec![]))])).unwrap();
        appender.commit().unwrap();
        assert_eq!(entries(&file, ALARM).len(), 1);
        for (key, change) in changes {
            match change {
                Some(value) => model.insert(key, value),
                None => model.remove(&key),
            };
        }
        assert_eq!(entries(&file, LEASE), model.clone().into_iter().collect::<Vec<_>>());
    }
    let mut appender = Appender::new(&file).unwrap();
    appender.clear(ALARM).unwrap();
    appender.clear(b"no such bucket").unwrap();
    appender.commit().unwrap();
    assert!(entries(&file, ALARM).is_empty());
    assert_eq!(entries(&file, LEASE).len(), model.len());
}

#[test]
fn an_event_out_of_order_is_refused() {
    let file = fresh(4096);
    extend(&file, 5, 1, |_| 1);
    let mut appender = Appender::new(&file).unwrap();
    assert_eq!(appender.last().map(|last| last.main), Some(5));
    for key in [BucketKey { main: 4, sub: 9, tombstone: false }, BucketKey { main: 5, sub: 2, tombstone: true }] {
        assert!(matches!(appender.push(key, &[]), Err(AppendError::Order { .. })), "{key}");
    }
}

#[test]
fn the_tail_is_the_last_event_or_what_was_compacted() {
    let file = fresh(4096);
    let tail = || Tail::read(&Database::open(&file).unwrap()).unwrap();
    let events = |revision| {
        let mut found = Vec::new();
        let database = Database::open(&file).unwrap();
        events_of_last(&database, revision, |key, value| {
            found.push((key, value.to_vec()));
            Ok::<_, BoltError>(())
        })
        .unwrap();
        found
    };
    assert_eq!(tail(), Tail { revision: 1, compact_revision: 0 });
    assert!(events(1).is_empty());
    extend(&file, 2, 300, |_| 20);
    let mut appender = Appender::new(&file).unwrap();
    let last = [0, 1, 2].map(|sub| BucketKey { main: 302, sub, tombstone: sub == 2 });
    for key in last {
        appender.push(key, &[9; 1500]).unwrap();
    }
    appender.commit().unwrap();
    assert_eq!(tail(), Tail { revision: 302, compact_revision: 0 });
    assert_eq!(events(302).iter().map(|(key, _)| *key).collect::<Vec<_>>(), last);
    assert!(events(303).is_empty());
    assert_eq!(events(0).len(), 303);

    let note = |name: &[u8], main| {
        let value = BucketKey { main, sub: 0, tombstone: false }.encode().as_bytes().to_vec();
        let mut appender = Appender::new(&file).unwrap();
        appender.change(META, &BTreeMap::from([(name.to_vec(), Some(value))])).unwrap();
        appender.commit().unwrap();
    };
    note(mvcc::FINISHED_COMPACT, 200);
    assert_eq!(tail(), Tail { revision: 302, compact_revision: 200 });
    note(mvcc::SCHEDULED_COMPACT, 400);
    assert_eq!(tail(), Tail { revision: 400, compact_revision: 400 });
}

/// Reads everything that can be read, however it ends.
pub(crate) fn read_all(bytes: &[u8]) -> Result<usize, BoltError> {
    let database = Database::open(bytes)?;
    let mut count = 0;
    for name in [KEY, LEASE, ALARM] {
        let Some(bucket) = database.find_bucket(name)? else { continue };
        let mut cursor = database.cursor(&bucket);
        let mut more = cursor.last()?;
        while more && count < 100_000 {
            cursor.pair()?;
            count += 1;
            more = cursor.back()?;
        }
    }
    Ok(count)
}

pub(crate) fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn sample() -> Vec<u8> {
    let file = fresh(1024);
    extend(&file, 1, 200, |main| if main == 77 { 3000 } else { 30 });
    bytes_of(&file)
}

/// The same with leases that take some pages, and with the state before them to fall back to.
fn sample_with_leases() -> Vec<u8> {
    let file = fresh(1024);
    extend(&file, 1, 200, |main| if main == 77 { 3000 } else { 30 });
    let leases: BTreeMap<_, _> = (0..300_u64).map(|id| (id.to_be_bytes().to_vec(), Some(vec![1; 11]))).collect();
    let mut appender = Appender::new(&file).unwrap();
    appender.change(LEASE, &leases).unwrap();
    appender.commit().unwrap();
    bytes_of(&file)
}

/// Later than any other event.
const LATEST: BucketKey = BucketKey { main: i64::MAX.unsigned_abs(), sub: 0, tombstone: false };

/// Does to a database what a restore does.
fn add_to(file: &File) -> Result<(), AppendError> {
    let mut appender = Appender::new(file)?;
    appender.push(LATEST, &[7; 2000])?;
    appender.change(LEASE, &BTreeMap::from([(vec![1; 8], Some(vec![9; 11]))]))?;
    appender.clear(ALARM)?;
    appender.commit().map(drop)
}

proptest! {
    #[test]
    fn no_damage_makes_the_reader_panic_or_run_forever(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = sample();
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = read_all(&bytes);
    }

    #[test]
    fn a_damaged_file_is_added_to_or_refused(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8_u32), 1..6),
    ) {
        let mut bytes = sample_with_leases();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        if add_to(&file).is_ok() {
            prop_assert_eq!(Appender::new(&file).unwrap().last(), Some(LATEST));
            // What was damaged before may still be, in pages that were taken over unread.
            let _ = read_all(&bytes_of(&file));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        prop_assert!(read_all(&bytes).is_err());
    }
}

#[test]
fn a_circle_of_pages_ends() {
    let mut bytes = sample();
    let database = Database::open(&bytes[..]).unwrap();
    let Root::Page(root) = database.bucket(KEY).unwrap().root else { panic!("the bucket is not inline") };
    let at = usize::try_from(root.get()).unwrap() * 1024;
    // Every child of the root is the root.
    let count = usize::from(u16::from_le_bytes([bytes[at + 10], bytes[at + 11]]));
    for index in 0..count {
        let child = at + HEADER + index * 16 + 8;
        bytes[child..child + 8].copy_from_slice(&root.get().to_le_bytes());
    }
    let error = read_all(&bytes).unwrap_err();
    assert!(error.to_string().contains("circle"), "{error}");
}
