//! A store that fails for a moment, as each does now and then: who takes, lists, proves or restores a backup does not notice.
//! From one that does not get well nothing wrong comes.

use std::fs;
use std::time::Duration;

use http::StatusCode;
use quorate_backup::archive::status::{self, Report, Role};
use quorate_backup::snapshot::Reason;

use super::Server;
use super::google::{Double, Trouble};
use super::place::Place;
use super::slow::until;
use super::volume::Volume;
use crate::archive_roles::{Archive, put, reached};
use crate::database::{events_after, small, tail};
use crate::fake::{Mood, Served};
use crate::real::{Etcd, newest};
use crate::snapshot::large;

/// What is stored of it are two parts, and it is read in several.
const LARGE: usize = 24 << 20;
/// What has its place in one part.
const SMALL: usize = 0;

const PATIENCE: Duration = Duration::from_mins(1);

/// Takes a backup of a database of this size.
fn take(place: &Place, bytes: usize) {
    let member = Served::start(Mood::Sound, large(bytes));
    let taken = place.snapshot(&member, &[]).json();
    assert_eq!(taken["revision"].as_u64(), Some(7), "{taken}");
}

fn is_listed_once(place: &Place) {
    let listed = place.run("list", &[]).json();
    assert_eq!((listed[0]["state"].as_str(), listed.as_array().unwrap().len()), (Some("whole"), 1), "{listed}");
}

fn proves(place: &Place) {
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["--lineage", "blue", "--strict", "--scratch", scratch.path().to_str().unwrap()];
    let proved = place.run("verify", &arguments).json();
    assert_eq!(proved["revision"].as_u64(), Some(7), "{proved}");
}

fn restores(place: &Place) {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    place.run("restore", &["--lineage", "blue", "--database", database.to_str().unwrap()]).json();
    assert_eq!(tail(&database), tail(&small()));
    assert!(events_after(&database, 0) == events_after(&small(), 0));
}

/// A server whose requests meet what it is told.
pub trait Troubling: Server {
    /// Whether such a server has this trouble at all.
    fn knows(&self, trouble: Trouble) -> bool;

    /// Whether it shows parts of uploads that are not complete.
    fn shows_parts(&self) -> bool;

    /// From now on its requests meet this, and none has met it yet.
    fn turn_to(&self, trouble: Trouble);

    /// How many requests have met it.
    fn troubled_requests(&self) -> usize;

    /// Does now what was sent while each put came late. It tells how each ended.
    fn carry_out_late(&self) -> Vec<StatusCode>;

    /// How many objects of a place have this in their names.
    fn count(&self, prefix: &str, part: &str) -> usize;
}

impl Troubling for Double {
    fn knows(&self, _: Trouble) -> bool {
        true
    }

    fn shows_parts(&self) -> bool {
        true
    }

    fn turn_to(&self, trouble: Trouble) {
        self.turn_to(trouble);
    }

    fn troubled_requests(&self) -> usize {
        self.troubled_requests()
    }

    fn carry_out_late(&self) -> Vec<StatusCode> {
        self.carry_out_late()
    }

    fn count(&self, _: &str, part: &str) -> usize {
        self.count(part)
    }
}

pub fn are_passed_over(server: &dyn Troubling, trouble: Trouble) {
    server.turn_to(trouble);
    let place = server.place("troubled");
    take(&place, LARGE);
    assert!(server.troubled_requests() >= 2, "there was no trouble");
    assert_eq!(server.parts_left(), server.shows_parts().then_some(0));
    is_listed_once(&place);
    proves(&place);
    restores(&place);
}

/// Of a put that only creates.
pub fn leave_one_backup(server: &dyn Troubling, trouble: Trouble) {
    if !server.knows(trouble) {
        return;
    }
    server.turn_to(trouble);
    let place = server.place("troubled");
    take(&place, SMALL);
    // What says the format, and the manifest: all that is put in this way.
    assert_eq!(server.troubled_requests(), 2);
    assert_eq!(["/full", "/d/", ""].map(|part| server.count("troubled", part)), [1, 1, 3]);
    is_listed_once(&place);
    proves(&place);
    restores(&place);
}

fn archive_into(place: &Place, etcd: &Etcd) -> Archive {
    let store = place.arguments();
    let arguments: Vec<_> = store.iter().map(String::as_str).chain(["--flush-every", "200ms"]).collect();
    Archive::into(etcd, &arguments)
}

/// An archive that records what is put into etcd, and what it said as soon as it did.
async fn recording(server: &dyn Troubling) -> Option<(Etcd, Place, Archive, Report)> {
    let etcd = Etcd::start(&newest()?);
    let place = server.place("troubled");
    let mut archive = archive_into(&place, &etcd);
    let first = archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    Some((etcd, place, archive, first))
}

/// Of puts while an archive records: each delta is committed once, and by it.
pub async fn of_a_record_are_passed_over(server: &dyn Troubling) {
    let Some((etcd, place, mut archive, first)) = recording(server).await else { return };
    let mut last = 0;
    let mut troubles = vec![Trouble::Refused, Trouble::AnswerLost, Trouble::Conflict];
    troubles.retain(|trouble| server.knows(*trouble));
    for trouble in &troubles {
        server.turn_to(*trouble);
        last = put(&etcd).await;
        let report = archive.says("all of it", |report| reached(report, last)).await;
        assert_eq!((report.role, &report.generation), (Role::Committer, &first.generation), "{trouble:?}");
        assert!(server.troubled_requests() >= 1, "there was no trouble of {trouble:?}");
    }
    assert_eq!(archive.commits_lost(), 0, "it takes its own manifest for another's");
    archive.kill();
    server.turn_to(Trouble::None);
    let chain = place.only_chain().await;
    assert!(chain.links.len() >= troubles.len() && chain.head().to_etcd() >= last, "{} deltas", chain.links.len());
}

/// What is written now is about to be recorded, by a put that comes late.
async fn is_on_its_way(server: &dyn Troubling, etcd: &Etcd) -> i64 {
    server.turn_to(Trouble::Late);
    let revision = put(etcd).await;
    until("a put on its way", PATIENCE, || server.troubled_requests() > 0).await;
    revision
}

/// Of puts that are done when who sent them has sent them anew, or is gone: there is one history, and nothing is missing in it.
pub async fn of_a_record_that_come_late_are_passed_over(server: &dyn Troubling) {
    let Some((etcd, place, mut archive, first)) = recording(server).await else { return };
    let mut ends_of_late = Vec::new();
    for (dies, late_is_first) in [(false, false), (true, true), (true, false)] {
        let on_its_way = is_on_its_way(server, &etcd).await;
        if dies {
            archive.kill();
        }
        server.turn_to(Trouble::None);
        if late_is_first {
            ends_of_late.push(server.carry_out_late());
        }
        if dies {
            archive = archive_into(&place, &etcd);
        }
        archive.says("what was on its way", |report| reached(report, on_its_way)).await;
        if !late_is_first {
            ends_of_late.push(server.carry_out_late());
        }
        let next = put(&etcd).await;
        let report = archive.says("what came next", |report| reached(report, next)).await;
        assert_eq!((report.role, &report.generation), (Role::Committer, &first.generation));
        assert_eq!(archive.commits_lost(), 0, "it takes its own manifest for another's");
    }
    archive.kill();
    let done = |late: &Vec<StatusCode>| late.iter().filter(|status| status.is_success()).count();
    assert_eq!(ends_of_late.iter().map(done).collect::<Vec<_>>(), [0, 1, 0], "{ends_of_late:?}");
    assert!(ends_of_late.iter().all(|late| !late.is_empty()), "{ends_of_late:?}");
    assert_eq!(place.only_chain().await.links.len(), 2 * ends_of_late.len());
}

/// Of a read: it goes on where it broke off.
pub fn of_reads_are_passed_over(server: &dyn Troubling) {
    let place = server.place("troubled");
    take(&place, LARGE);
    for reads in [proves, restores] {
        server.turn_to(Trouble::HalfRead);
        reads(&place);
        // What says the format and the manifest, each of which is cut once more where it goes on, and four parts.
        assert!(server.troubled_requests() >= 8, "{} requests had trouble", server.troubled_requests());
    }
}

/// Of a read that never comes to its end.
pub fn of_reads_that_last_are_told() {
    let server = Double::start();
    let place = server.place("troubled");
    take(&place, SMALL);
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    let targets = [["--scratch", folder.path().to_str().unwrap()], ["--database", database.to_str().unwrap()]];
    for (command, target) in ["verify", "restore"].into_iter().zip(targets) {
        server.turn_to(Trouble::NeverRead);
        let ended = place.run(command, &[&["--lineage", "blue"], &target[..]].concat());
        assert!(ended.error().contains("failed to read") && ended.stderr.contains("/d/"), "{}", ended.stderr);
        assert_eq!(server.troubled_requests(), 1);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{command}");
    }
    server.turn_to(Trouble::None);
    proves(&place);
    restores(&place);
}

/// Of a read whose backup is copied: it goes on where it broke off.
pub async fn of_a_copy_are_passed_over(server: &dyn Troubling) {
    let (place, volume) = (server.place("troubled"), Volume::new());
    take(&place, LARGE);
    let target = volume.place("copy");
    server.turn_to(Trouble::HalfRead);
    let copied = place.copy("blue", &target);
    assert_eq!((copied[0]["manifests"].as_u64(), copied.as_array().unwrap().len()), (Some(1), 1), "{copied}");
    // As where it is proved or restored, with three parts.
    assert!(server.troubled_requests() >= 7, "{} requests had trouble", server.troubled_requests());
    server.turn_to(Trouble::None);
    assert!(target.content().await == place.content().await);
    restores(&target);
}

/// Of a read whose backup is copied that never comes to its end.
pub fn of_a_copy_that_last_are_told() {
    let (server, volume) = (Double::start(), Volume::new());
    let (place, target) = (server.place("troubled"), volume.place("copy"));
    take(&place, SMALL);
    server.turn_to(Trouble::NeverRead);
    let ended = place.try_to_copy("blue", &target);
    assert!(ended.error().contains("failed to read") && ended.stderr.contains("/d/"), "{}", ended.stderr);
    assert_eq!(server.troubled_requests(), 1);
    let listed = target.run("list", &[]).json();
    assert!(listed.as_array().unwrap().iter().all(|line| line["state"] != "whole"), "{listed}");
    assert_eq!(volume.parts_left(), Some(0));
    server.turn_to(Trouble::None);
    place.copy("blue", &target);
    proves(&target);
    restores(&target);
}

/// Of a store that does not know of puts that only create: nothing is written but what finds that out, each time.
pub fn of_a_store_that_overwrites_are_told(server: &dyn Troubling) {
    server.turn_to(Trouble::Overwrites);
    let place = server.place("troubled");
    let member = Served::start(Mood::Sound, large(SMALL));
    for _ in 0..2 {
        let failure = place.failure(&member);
        assert_eq!(failure.reason, Reason::StoreUnfit, "{}", failure.message);
        assert!(failure.message.contains("it does not support create-only puts"), "{}", failure.message);
        assert_eq!((server.troubled_requests(), server.count("troubled", "")), (1, 1));
    }
}

/// The same by an archive, which asks again and again and records nothing.
pub async fn of_a_store_that_overwrites_are_told_by_an_archive(server: &dyn Troubling) {
    let Some(binaries) = newest() else { return };
    let etcd = Etcd::start(&binaries);
    server.turn_to(Trouble::Overwrites);
    let place = server.place("troubled");
    let mut archive = archive_into(&place, &etcd);
    for _ in 0..2 {
        put(&etcd).await;
        let report = archive.says("what is wrong", |report| report.fault.is_some()).await;
        let fault = report.fault.unwrap();
        assert_eq!(fault.reason, status::Reason::StoreUnfit, "{}", fault.message);
        assert!(fault.message.contains("it does not support create-only puts"), "{}", fault.message);
        assert!(report.generation.is_none() && report.head.is_none());
        assert_eq!(server.count("troubled", ""), 1);
    }
}
