//! Archives to which more comes than they can store in time: while the store is shut, or slow and etcd forgets soon, or long
//! before their next look by the clock, or before they are told to stop.

#[path = "archive/gated.rs"]
pub mod gated;

use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions, WatchOptions};
use jiff::SignedDuration;
use quorate_backup::archive::status::{Report, Role};

use gated::Gated;

use crate::archive_real::{self, chains, recorded, restore};
use crate::archive_roles::{Archive, put, reached};
use crate::programs::get;
use crate::real::{Binaries, Etcd, each_version, newest};
use crate::recorded::address;

/// So many values of a MiB are written while the store is shut. Some 12 of them are about to be stored then, 16 wait in memory,
/// and the rest has to be spilled.
pub const VALUES: u64 = 40;
/// Those that are about to be stored or wait in memory, at least.
pub const HELD: u64 = 20;
/// How many bytes may be spilled where that is too little for the rest, and where it is enough.
const LITTLE: &str = "4194304";
pub const ENOUGH: &str = "67108864";

/// Writes so many values that get no smaller in the store, each a revision. It gives the last one.
pub async fn write(etcd: &Etcd, values: u64, bytes: usize) -> i64 {
    let (mut client, mut rng) = (etcd.connect().await, fastrand::Rng::with_seed(11));
    let (mut value, mut last) = (vec![0; bytes], 0);
    for number in 0..values {
        rng.fill(&mut value);
        let put = client.put(format!("key/{}", number % 7), value.clone(), None).await.unwrap();
        last = put.header().unwrap().revision();
    }
    last
}

/// An archive that has begun, with so much room for what the store does not take.
async fn begun(etcd: &Etcd, store: &Gated, spill_limit: &str) -> (Archive, Report) {
    let arguments = ["--flush-every", "200ms", "--spill-limit", spill_limit];
    let mut archive = Archive::into(etcd, &store.arguments(&arguments));
    let report = archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    (archive, report)
}

/// The store is shut until so many values of so many bytes are written and the archive knows how much that is. It gives the
/// last revision.
async fn written_while_shut(etcd: &Etcd, store: &Gated, archive: &mut Archive, values: u64, bytes: usize) -> i64 {
    store.shut();
    let last = write(etcd, values, bytes).await;
    let behind = |report: &Report| report.lag.is_some_and(|lag| lag.revisions >= values);
    archive.says("so far behind", behind).await;
    store.open();
    last
}

/// What is restored to a revision is what etcd had at it.
pub async fn comes_back(client: &mut Client, store: &Path, revision: i64) {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    restore(store, revision, &database);
    let hash = client.hash_kv(revision).await.unwrap().hash();
    assert_eq!(Binaries::hash(&database, revision.unsigned_abs()), u64::from(hash), "revision {revision}");
}

#[tokio::test]
async fn more_than_may_be_spilled_ends_a_generation_with_what_was_held_and_the_next_has_all() {
    let Some(binaries) = newest() else { return };
    let Some(store) = Gated::start(Duration::ZERO) else { return };
    let etcd = Etcd::start(&binaries);
    let (mut archive, first) = begun(&etcd, &store, LITTLE).await;
    written_while_shut(&etcd, &store, &mut archive, VALUES, 1 << 20).await;
    let another = |report: &Report| report.generation != first.generation;
    archive.says("in another generation", another).await;
    // It goes on there.
    let last = put(&etcd).await;
    let report = archive.says("all of it", |report| another(report) && reached(report, last)).await;
    assert_eq!((report.role, report.fault), (Role::Committer, None));
    archive.kill();

    let all = chains(&store.folder()).await;
    let [old, new] = &all[..] else { panic!("{} generations", all.len()) };
    assert!(old.head() < new.full.revision, "it was not too much");
    let begin = old.full.revision.get();
    assert!(old.head().get() >= begin + HELD, "what was held is lost: {begin} to {}", old.head());
    let mut client = etcd.connect().await;
    let (end, begin) = (old.head().to_etcd(), new.full.revision.to_etcd());
    assert!(end + 1 < begin, "nothing lies between them");
    // What lies between them was recorded by nobody, and is in the history of the next snapshot.
    for revision in [end, end + 1, begin - 1, begin, last] {
        comes_back(&mut client, &store.folder(), revision).await;
    }
}

#[tokio::test]
async fn what_was_spilled_is_stored_in_the_same_generation_when_the_store_is_there_again() {
    let Some(binaries) = newest() else { return };
    let Some(store) = Gated::start(Duration::ZERO) else { return };
    let etcd = Etcd::start(&binaries);
    let (mut archive, first) = begun(&etcd, &store, ENOUGH).await;
    let last = written_while_shut(&etcd, &store, &mut archive, VALUES, 1 << 20).await;
    let report = archive.says("all of it", |report| reached(report, last)).await;
    assert_eq!((report.generation, report.fault), (first.generation, None));
    archive.kill();

    let all = chains(&store.folder()).await;
    let [chain] = &all[..] else { panic!("{} generations", all.len()) };
    let begin = chain.full.revision.to_etcd();
    assert!(begin + VALUES.cast_signed() <= last, "it is in the full snapshot");
    let mut client = etcd.connect().await;
    for revision in [begin + 1, begin + HELD.cast_signed(), last - 1, last] {
        comes_back(&mut client, &store.folder(), revision).await;
    }
}

#[tokio::test]
async fn an_archive_takes_little_memory_whatever_it_holds_and_stores() {
    /// What it may take, in KiB, and more values of a quarter of a MiB than go into that.
    const MOST: u64 = 128 << 10;
    const MUCH: u64 = 640;
    /// More than all of them.
    const ROOM: &str = "268435456";
    let Some(binaries) = newest() else { return };
    let Some(store) = Gated::start(Duration::ZERO) else { return };
    let etcd = Etcd::start(&binaries);
    let (mut archive, first) = begun(&etcd, &store, ROOM).await;
    let memory = archive.memory();
    // It holds all of that, and reads it back.
    let last = written_while_shut(&etcd, &store, &mut archive, MUCH, 1 << 18).await;
    let report = archive.says("all of it", |report| reached(report, last)).await;
    assert_eq!((&report.generation, report.fault), (&first.generation, None));
    // Users and roles are in no watch, so a full snapshot follows, which has as much in it.
    etcd.connect().await.role_add("reader").await.unwrap();
    archive.says("in another generation", |report| report.generation != first.generation).await;
    let most = memory.most();
    archive.kill();
    assert!(most < MOST, "{most} KiB");
    eprintln!("{} MiB are held, stored and snapshotted with {most} KiB", MUCH / 4);

    let all = chains(&store.folder()).await;
    let [old, new] = &all[..] else { panic!("{} generations", all.len()) };
    let deltas: u64 = old.links.iter().map(|link| link.delta.data.plain_bytes).sum();
    assert!(deltas > MOST << 10 && new.full.database_bytes > MOST << 10, "{deltas}, {}", new.full.database_bytes);
    comes_back(&mut etcd.connect().await, &store.folder(), last).await;
}

#[tokio::test]
async fn much_is_stored_long_before_its_time() {
    /// They are 5 MiB, and 4 are stored at once.
    const PUTS: u64 = 80;
    const VALUE: usize = 64 << 10;
    let Some(binaries) = newest() else { return };
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(&binaries);
    let mut archive = Archive::into(&etcd, &["--store", &address(store.path()), "--flush-every", "10m"]);
    archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    let last = write(&etcd, PUTS, VALUE).await;
    let deltas = |report: &Report| report.head.is_some_and(|head| head.revision > head.full_revision);
    archive.says("a delta", deltas).await;
    archive.kill();

    let all = chains(store.path()).await;
    let [chain] = &all[..] else { panic!("{} generations", all.len()) };
    let [link] = &chain.links[..] else { panic!("{} deltas", chain.links.len()) };
    assert!(link.delta.data.plain_bytes > 3 << 20, "{} bytes are not much", link.delta.data.plain_bytes);
    assert!(chain.head().to_etcd() < last, "what is little waits for its time");
    comes_back(&mut etcd.connect().await, store.path(), chain.head().to_etcd()).await;
}

/// How many watches etcd could not tell all that was written at once.
fn slow_watches(etcd: &Etcd) -> u64 {
    let (_, metrics) = get(etcd.client, "/metrics").unwrap();
    let slow = metrics.lines().find_map(|line| line.strip_prefix("etcd_debugging_mvcc_slow_watcher_total "));
    slow.unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_watch_of_an_archive_keeps_up_while_the_store_is_shut() {
    /// Far more than what etcd holds for a watch that is not read: 128 answers, and what is on its way.
    const ROUNDS: u64 = 10;
    const PUTS: u64 = 40;
    const VALUE: usize = 64 << 10;
    let Some(binaries) = newest() else { return };
    let Some(store) = Gated::start(Duration::ZERO) else { return };
    let etcd = Etcd::start(&binaries);
    let (mut archive, first) = begun(&etcd, &store, ENOUGH).await;
    store.shut();
    for round in 0..ROUNDS {
        write(&etcd, PUTS, VALUE).await;
        assert_eq!(slow_watches(&etcd), 0, "round {round}");
    }
    archive.says("so far behind", |report| report.lag.is_some_and(|lag| lag.revisions >= ROUNDS * PUTS)).await;
    assert_eq!(slow_watches(&etcd), 0);

    // One that is opened and never read does not.
    let all = Some(WatchOptions::new().with_all_keys());
    let unread = Box::pin(etcd.connect().await.watch("", all)).await.unwrap();
    let last = write(&etcd, ROUNDS * PUTS, VALUE).await;
    assert_eq!(slow_watches(&etcd), 1, "only that one");
    drop(unread);
    store.open();
    let report = archive.says("all of it", |report| reached(report, last)).await;
    assert_eq!((report.generation, report.fault), (first.generation, None));
}

/// How often an archive looks that has nothing to store, and for how long nobody writes.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
/// What may come beside one entry of the log for each look: the one at the edge, and what etcd itself has to say.
const ENTRIES: u64 = 2;

async fn raft_index(etcd: &Etcd) -> u64 {
    etcd.connect().await.status().await.unwrap().raft_index()
}

/// Users and roles are asked for through the log, which each member writes to its disk.
async fn costs_little(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let [etcd, alone] = [(); 2].map(|()| Etcd::start(binaries));
    for etcd in [&etcd, &alone] {
        put(etcd).await;
    }
    let interval = format!("{}s", IDLE_INTERVAL.as_secs());
    let mut archive = Archive::into(&etcd, &["--store", &address(store.path()), "--flush-every", &interval]);
    archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    let before = [raft_index(&etcd).await, raft_index(&alone).await];
    let begun = Instant::now();
    tokio::time::sleep(IDLE).await;
    let after = [raft_index(&etcd).await, raft_index(&alone).await];
    let looks = begun.elapsed().as_millis().div_ceil(IDLE_INTERVAL.as_millis());
    let [beside, without] = [after[0] - before[0], after[1] - before[1]];
    assert!(beside <= without + u64::try_from(looks).unwrap() + ENTRIES, "{beside} entries instead of {without}");
    // It was there all the time.
    let last = put(&etcd).await;
    let report = archive.says("all of it", |report| reached(report, last)).await;
    assert_eq!((report.role, report.fault), (Role::Committer, None));
}

#[test]
fn one_that_has_nothing_to_store_adds_to_the_log_of_etcd_no_more_than_one_entry_for_each_look() {
    each_version(costs_little);
}

/// How long the store keeps each answer back: from where a full snapshot is read in etcd to its end six of them are waited for.
const PAUSE: Duration = Duration::from_millis(300);
/// What is older than this etcd has forgotten: of a shorter time than a full snapshot takes, and a longer one than it takes etcd
/// to begin a watch.
const KEPT: Duration = Duration::from_secs(1);
const COMPACT_EVERY: Duration = Duration::from_millis(100);
/// How often a full snapshot is taken.
const FULL_EVERY: SignedDuration = SignedDuration::from_secs(2);
/// Generations that are begun while somebody writes.
const GENERATIONS: usize = 3;
/// The writer's rest between two writes.
const REST: Duration = Duration::from_millis(5);
/// How long it may take a process to hear that it is told to stop.
const TOLD: Duration = Duration::from_secs(1);
/// How long it may take until they are begun.
const PATIENCE: Duration = Duration::from_mins(1);

/// Writes until there are so many generations, and has etcd forget what is old. It gives the last revision.
async fn write_and_compact(client: &mut Client, store: &Path) -> i64 {
    let begun = Instant::now();
    let (mut written, mut compacted, mut number) = (Vec::new(), begun, 0);
    loop {
        number += 1;
        let put = client.put(format!("key/{}", number % 20), number.to_string(), None).await.unwrap();
        let revision = put.header().unwrap().revision();
        written.push((Instant::now(), revision));
        if compacted.elapsed() >= COMPACT_EVERY {
            compacted = Instant::now();
            let old = written.partition_point(|(at, _)| at.elapsed() >= KEPT);
            if let Some((_, old)) = written.drain(..old).next_back() {
                client.compact(old, None).await.unwrap();
            }
            let found = chains(store).await.len();
            if found >= GENERATIONS {
                return revision;
            }
            assert!(begun.elapsed() < PATIENCE, "there are only {found} generations");
        }
        tokio::time::sleep(REST).await;
    }
}

async fn keeps_up_with_one_that_forgets(binaries: &Binaries) {
    let Some(store) = Gated::start(PAUSE) else { return };
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let full_every = format!("{}s", FULL_EVERY.as_secs());
    let arguments = ["--flush-every", "200ms", "--full-every", &full_every];
    let mut archive = Archive::into(&etcd, &store.arguments(&arguments));
    let last = write_and_compact(&mut client, &store.folder()).await;
    recorded(&store.folder(), GENERATIONS, last).await;
    archive.kill();

    for pair in chains(&store.folder()).await.windows(2) {
        assert!(pair[0].head() >= pair[1].full.revision, "{} ended before the next one began", pair[0].key);
        let age = pair[1].full.taken.duration_since(pair[0].full.taken);
        assert!(age >= FULL_EVERY, "it was no time for {}: {age}", pair[1].key);
    }
    let all = || Some(GetOptions::new().with_all_keys());
    let wanted = client.get("", all()).await.unwrap().0.kvs;
    let (restored, _) = archive_real::comes_back(binaries, &store.folder(), &last.to_string());
    let found = restored.connect().await.get("", all()).await.unwrap().0.kvs;
    assert!(!wanted.is_empty() && found == wanted);
}

#[tokio::test]
async fn one_that_is_stopped_in_its_first_full_snapshot_takes_back_what_it_has_sent_and_ends() {
    let Some(binaries) = newest() else { return };
    // Between the first part and the manifest there are several answers.
    let Some(store) = Gated::start(PAUSE) else { return };
    let etcd = Etcd::start(&binaries);
    write(&etcd, VALUES, 1 << 20).await;
    let archive = archive_real::Archive::into(&etcd, &store.arguments(&[]));
    let begun = Instant::now();
    while store.parts() == 0 {
        assert!(begun.elapsed() < PATIENCE, "no part arrives");
        tokio::time::sleep(REST).await;
    }
    // What it asks for is answered only when it has been told.
    store.shut();
    let stopped = tokio::task::spawn_blocking(move || archive.stop());
    tokio::time::sleep(TOLD).await;
    store.open();
    stopped.await.unwrap();
    assert_eq!(store.parts(), 0, "parts of its full snapshot are left");
    assert!(chains(&store.folder()).await.is_empty(), "it has gone on");
}

#[test]
fn an_etcd_that_forgets_sooner_than_a_full_snapshot_is_stored_calls_for_no_more_of_them() {
    each_version(keeps_up_with_one_that_forgets);
}
