//! Archives that look whether their member leads: what one of them does while another records, and when what it needs is
//! not there. How they hand over to each other is tried on a real cluster.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quorate_backup::archive::status::{Reason, Report, Role};
use quorate_backup::format::{Chain, generations};

use crate::agent::{Memory, command};
use crate::archive_real::chains;
use crate::ports::free_address;
use crate::programs::get;
use crate::real::{Etcd, each_version};
use crate::recorded::{address, open};

const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// An archive as a process.
pub struct Archive {
    process: Child,
    answers: SocketAddr,
}

impl Archive {
    fn start(etcd: &Etcd, store: &Path, more: &[&str]) -> Self {
        Self::storing_every("200ms", etcd, store, more)
    }

    fn storing_every(interval: &str, etcd: &Etcd, store: &Path, more: &[&str]) -> Self {
        let store = address(store);
        Self::into(etcd, &[&["--store", &store, "--flush-every", interval][..], more].concat())
    }

    /// Into the store that these arguments are about.
    pub fn into(etcd: &Etcd, more: &[&str]) -> Self {
        Self::beside(&etcd.url(), more)
    }

    /// The same beside whatever member answers at this URL.
    pub fn beside(endpoint: &str, more: &[&str]) -> Self {
        Self::by(command, endpoint, more)
    }

    /// The same by the command that this makes of its arguments.
    pub fn by(make: impl FnOnce(&[&str]) -> Command, endpoint: &str, more: &[&str]) -> Self {
        let answers = free_address();
        let listen = format!("--listen={answers}");
        let arguments = ["archive", "--beside-leader", "--endpoint", endpoint, "--lineage", "blue", &listen];
        let arguments = [&arguments[..], more].concat();
        let process = make(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { process, answers }
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        get(self.answers, path)
    }

    /// Whether it has lost twice, and shows that it stands by.
    fn stands_by(&self) -> bool {
        self.commits_lost() >= 2 && self.report().unwrap().role == Role::Standby
    }

    /// How many commits it says that it has lost to another one.
    pub fn commits_lost(&self) -> u64 {
        let (_, metrics) = self.get("/metrics").unwrap();
        let lost = metrics.lines().find_map(|line| line.strip_prefix("quorate_archive_commits_lost_total "));
        lost.and_then(|lost| lost.trim().parse().ok()).unwrap_or_default()
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Looks from now on how much memory it has.
    pub fn memory(&self) -> Memory {
        Memory::of(self.process.id())
    }

    /// Whether it says that it records, or could.
    pub fn is_ready(&self) -> bool {
        self.get("/readyz").unwrap().0 == 200
    }

    fn report(&self) -> Option<Report> {
        serde_json::from_str(&self.get("/status")?.1).ok()
    }

    /// Waits until it says so.
    pub async fn says(&mut self, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let begun = Instant::now();
        loop {
            assert!(self.process.try_wait().unwrap().is_none(), "it has ended");
            let report = self.report();
            if let Some(report) = report.as_ref().filter(|report| wanted(report)) {
                return report.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "not {what}: {report:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        // Of one that has ended this is an error that says so.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn reached(report: &Report, revision: i64) -> bool {
    report.head.is_some_and(|head| i64::try_from(head.revision).unwrap() >= revision)
}

pub async fn put(etcd: &Etcd) -> i64 {
    etcd.connect().await.put("key", "value", None).await.unwrap().header().unwrap().revision()
}

/// Two beside the same leader: the one that stores, and the one that stands by.
async fn two(etcd: &Etcd, store: &Path) -> (Archive, Archive) {
    let mut first = Archive::start(etcd, store, &[]);
    first.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    let mut second = Archive::start(etcd, store, &[]);
    second.says("beside the first", |report| report.head.is_some()).await;
    // They race for each range, until one has lost twice.
    let begun = Instant::now();
    loop {
        put(etcd).await;
        tokio::time::sleep(LOOK_EVERY).await;
        // Whoever has lost only once shows itself standing by as well, for a moment.
        match (first.stands_by(), second.stands_by()) {
            (false, true) => break (first, second),
            (true, false) => break (second, first),
            (false, false) | (true, true) => {}
        }
        assert!(begun.elapsed() < PATIENCE, "nobody gives in");
    }
}

/// Deletes the full snapshot's manifest of the generation that this report names.
fn delete_full(store: &Path, report: &Report) -> String {
    let generation = report.generation.clone().unwrap();
    fs::remove_file(store.join("blue").join(&generation).join("full")).unwrap();
    generation
}

#[test]
fn one_of_two_beside_the_same_leader_stands_by_until_the_other_is_gone() {
    each_version(async |binaries| {
        let store = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(binaries);
        let (mut committer, mut standby) = two(&etcd, store.path()).await;
        let revision = put(&etcd).await;
        committer.says("all of it", |report| reached(report, revision)).await;
        standby.says("what the other has stored", |report| reached(report, revision)).await;
        committer.kill();
        let revision = put(&etcd).await;
        let report =
            standby.says("a committer", |report| report.role == Role::Committer && reached(report, revision)).await;
        assert_eq!(report.fault, None);
        assert_eq!(generations(&open(store.path()), &"blue".parse().unwrap()).await.unwrap().len(), 1);
    });
}

#[test]
fn nobody_goes_on_in_a_generation_whose_full_snapshot_was_deleted() {
    each_version(async |binaries| {
        let store = tempfile::tempdir().unwrap();
        let mut etcd = Etcd::start(binaries);
        let (mut committer, mut standby) = two(&etcd, store.path()).await;
        let revision = put(&etcd).await;
        let report = standby.says("what the other has stored", |report| reached(report, revision)).await;
        // Who takes over looks.
        committer.kill();
        let gone = delete_full(store.path(), &report);
        let revision = put(&etcd).await;
        let another = |report: &Report| report.generation.as_ref() != Some(&gone) && reached(report, revision);
        let report = standby.says("in another generation", another).await;
        // So does who finds its member again.
        etcd.kill();
        standby.says("of a silent member", |report| report.lag.is_none()).await;
        let gone = delete_full(store.path(), &report);
        etcd.resume();
        let revision = put(&etcd).await;
        // The fault is told until what ends it is done.
        let another = |report: &Report| {
            report.generation.as_ref() != Some(&gone) && reached(report, revision) && report.fault.is_none()
        };
        let report = standby.says("in another generation again, and well", another).await;
        assert_eq!(report.role, Role::Committer);
    });
}

#[test]
fn it_waits_for_a_store_and_a_member_that_are_not_there() {
    each_version(async |binaries| {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("later");
        let mut etcd = Etcd::start(binaries);
        let mut archive = Archive::start(&etcd, &store, &[]);
        let report = archive.says("a fault", |report| report.fault.is_some()).await;
        assert_eq!(report.fault.unwrap().reason, Reason::StoreInvalid);
        assert_eq!(archive.get("/readyz").unwrap().0, 503);
        fs::create_dir(&store).unwrap();
        let revision = put(&etcd).await;
        archive.says("well", |report| report.fault.is_none() && reached(report, revision)).await;
        assert_eq!(archive.get("/readyz").unwrap().0, 200);
        assert!(archive.get("/metrics").unwrap().1.contains("quorate_archive_committer 1"));
        assert_eq!(archive.get("/else").unwrap().0, 404);

        etcd.kill();
        let silent = archive.says("of a silent member", |report| report.lag.is_none()).await;
        assert_eq!(silent.role, Role::Standby);
        etcd.resume();
        let revision = put(&etcd).await;
        archive.says("well again", |report| report.fault.is_none() && reached(report, revision)).await;
    });
}

#[test]
fn what_no_rule_keeps_goes_and_the_rest_stays() {
    each_version(async |binaries| {
        let store = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(binaries);
        let mut archive = Archive::start(&etcd, store.path(), &["--keep=2"]);
        let mut last = None;
        for round in 0..3 {
            // Users and roles are in no watch, so a full snapshot follows.
            etcd.connect().await.role_add(format!("role-{round}")).await.unwrap();
            let other = |report: &Report| report.generation.is_some() && report.generation != last;
            last = archive.says("of a new generation", other).await.generation;
        }
        let begun = Instant::now();
        loop {
            let left = generations(&open(store.path()), &"blue".parse().unwrap()).await.unwrap();
            assert!(left.iter().any(|key| last.as_deref().is_some_and(|last| last.ends_with(key.name.as_str()))));
            if left.len() == 2 {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{left:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
}

/// One beside the leader, which has stored a full snapshot, and one beside the follower, which would store that often.
async fn beside_each((leader, follower): (&Etcd, &Etcd), store: &Path, interval: &str) -> (Archive, Archive) {
    let mut first = Archive::start(leader, store, &[]);
    first.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    let mut second = Archive::storing_every(interval, follower, store, &[]);
    second.says("beside the first", |report| report.head.is_some()).await;
    (first, second)
}

#[test]
fn one_beside_a_follower_stores_in_the_stead_of_one_that_is_away() {
    each_version(async |binaries| {
        let store = tempfile::tempdir().unwrap();
        let (leader, follower) = Etcd::pair(binaries).await;
        let (mut first, mut second) = beside_each((&leader, &follower), store.path(), "200ms").await;
        first.kill();
        let revision = put(&leader).await;
        let report = second.says("what nobody else has stored", |report| reached(report, revision)).await;
        assert_eq!(report.fault, None);
        // One that comes back goes on after it.
        let mut first = Archive::start(&leader, store.path(), &[]);
        let revision = put(&leader).await;
        first.says("a committer again", |report| report.role == Role::Committer && reached(report, revision)).await;
        assert_eq!(chains(store.path()).await.len(), 1);
    });
}

/// From where to where each of them goes.
fn ends(chains: &[Chain]) -> String {
    let end = |chain: &Chain| format!("{}: {}..{}", chain.key.name, chain.full.revision, chain.head());
    chains.iter().map(end).collect::<Vec<_>>().join(", ")
}

#[test]
fn what_one_that_was_away_has_missed_is_stored_by_another() {
    each_version(async |binaries| {
        let store = tempfile::tempdir().unwrap();
        let (leader, follower) = Etcd::pair(binaries).await;
        // It would stand in after hours only.
        let (mut first, second) = beside_each((&leader, &follower), store.path(), "1h").await;
        first.kill();
        let client = leader.connect().await;
        // More than an archive goes on after.
        for _ in 0..101 {
            let puts = (0..100).map(|key| {
                let mut client = client.clone();
                async move { client.put(format!("key-{key}"), "value", None).await.map(drop) }
            });
            futures::future::try_join_all(puts).await.unwrap();
        }
        let begun = Instant::now();
        let _first = Archive::start(&leader, store.path(), &[]);
        loop {
            put(&leader).await;
            let chains = chains(store.path()).await;
            if let [old, new] = &chains[..]
                && old.head() >= new.full.revision
            {
                break;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "what lies between is in neither: {}, {:?}",
                ends(&chains),
                second.report()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
        drop(second);
    });
}
