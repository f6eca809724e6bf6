//! Moments in and around the change from one generation to the next, while somebody writes all the time beside real etcd: each
//! comes back as it was.

use std::path::Path;
use std::time::Duration;

use etcd_client::Client;
use jiff::{SignedDuration, Timestamp};
use quorate_backup::format::Chain;

use crate::agent::run;
use crate::archive_real::{Archive, chains, recorded};
use crate::real::{Binaries, Etcd, each_version};
use crate::recorded::address;

/// How often a full snapshot is taken.
const FULL_EVERY: &str = "2s";
/// Generations that are begun while somebody writes.
const GENERATIONS: usize = 4;
/// The writer's rest between two writes.
const REST: Duration = Duration::from_millis(3);
/// How far what comes back may lie behind a moment: one second between two moments that are noted, and as much for an event
/// to be heard of on a busy machine.
const LAG: SignedDuration = SignedDuration::from_secs(2);
/// Moments and revisions that are tried on each side of a change.
const TRIED: u64 = 3;

/// A write: what it was answered, and between which moments.
struct Put {
    begun: Timestamp,
    answered: Timestamp,
    revision: i64,
}

/// Writes until there are so many generations, and a little longer.
async fn write_on(client: &mut Client, store: &Path) -> Vec<Put> {
    let mut puts = Vec::new();
    let mut left = 200;
    while left > 0 {
        let (begun, key) = (Timestamp::now(), format!("key/{}", puts.len() % 50));
        let put = client.put(key, puts.len().to_string(), None).await.unwrap();
        let revision = put.header().unwrap().revision();
        puts.push(Put { begun, answered: Timestamp::now(), revision });
        // Looking at the store with each write would leave it nothing else to do.
        if puts.len() % 50 == 0 && chains(store).await.len() >= GENERATIONS || left < 200 {
            left -= 1;
        }
        tokio::time::sleep(REST).await;
    }
    puts
}

/// Restores to this, and demands that it is what etcd held at the revision that the agent tells.
async fn comes_back(client: &mut Client, store: &Path, to: &str) -> i64 {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    let store = address(store);
    let arguments = ["restore", "--store", &store, "--lineage", "blue", "--to", to, "-o", "json"];
    let json = run(&[&arguments[..], &["--database", database.to_str().unwrap()]].concat()).json();
    let revision = json["revision"].as_i64().unwrap();
    let hash = client.hash_kv(revision).await.unwrap().hash();
    assert_eq!(Binaries::hash(&database, revision.unsigned_abs()), u64::from(hash), "{to}, revision {revision}");
    revision
}

/// Revisions and moments on both sides of where each generation but the first begins, as far as the record goes.
fn around(all: &[Chain]) -> (Vec<i64>, Vec<Timestamp>) {
    let (head, last_moment) = all.last().map(|chain| (chain.head().to_etcd(), chain.last_moment())).unwrap();
    let begins = || all[1..].iter().map(|chain| (chain.full.revision.to_etcd(), chain.full.taken));
    let sides = || (1..=TRIED).flat_map(|step| [-(step.cast_signed()), step.cast_signed()]);
    let revisions = begins().flat_map(|(revision, _)| sides().map(move |side| revision + side * side.abs()));
    let moments = begins().flat_map(|(_, at)| sides().map(move |side| at + SignedDuration::from_millis(side * 70)));
    let mut moments: Vec<_> = moments.chain(begins().map(|(_, at)| at)).filter(|at| *at <= last_moment).collect();
    moments.sort();
    let revisions = revisions.chain(begins().map(|(revision, _)| revision)).filter(|revision| *revision <= head);
    (revisions.collect(), moments)
}

async fn rotates_under_a_writer(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let archive = Archive::into(&etcd, &["--store", &address(store.path()), "--full-every", FULL_EVERY]);
    let puts = write_on(&mut client, store.path()).await;
    recorded(store.path(), GENERATIONS, puts.last().unwrap().revision).await;
    archive.stop();

    let all = chains(store.path()).await;
    for pair in all.windows(2) {
        assert!(pair[0].head() >= pair[1].full.revision, "what lies between the two is in neither");
    }
    let (revisions, moments) = around(&all);
    for revision in revisions {
        assert_eq!(comes_back(&mut client, store.path(), &revision.to_string()).await, revision);
    }
    let mut before = 0;
    for moment in moments {
        let revision = comes_back(&mut client, store.path(), &moment.to_string()).await;
        let surely = puts.iter().filter(|put| put.answered + LAG <= moment).map(|put| put.revision).max();
        let at_most = puts.iter().filter(|put| put.begun <= moment).map(|put| put.revision).max();
        let range = surely.unwrap_or(1)..=at_most.unwrap_or(1);
        assert!(range.contains(&revision), "at {moment} it was in {range:?}, and {revision} comes back");
        assert!(revision >= before, "{before} came back for an earlier moment than {moment}, and {revision} for that");
        before = revision;
    }
}

#[test]
fn a_moment_in_the_change_of_generations_comes_back_as_it_was() {
    each_version(rotates_under_a_writer);
}
