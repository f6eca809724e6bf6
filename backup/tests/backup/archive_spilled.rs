//! Faults of the file in which an archive puts aside what its store does not take: a bit of it flips, its end or all of it is lost,
//! its disk is full, its folder is gone. What was harmed is stored by nobody: the next full snapshot has it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use quorate_backup::archive::status::{Report, Role};
use tempfile::TempDir;

use crate::agent::{command, in_little_room};
use crate::archive_pressure::gated::Gated;
use crate::archive_pressure::{ENOUGH, HELD, VALUES, comes_back, write};
use crate::archive_real::chains;
use crate::archive_roles::{Archive, put, reached};
use crate::real::{Etcd, newest};

const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Of the values, a MiB each, some 28 are about to be stored or wait in memory: so much at least is put aside.
const PUT_ASIDE: u64 = 8 << 20;

/// The file in which this archive puts aside what comes, below this folder, and its length. It has no other name.
pub fn put_aside(archive: &Archive, folder: &Path) -> Option<(PathBuf, u64)> {
    let folder = folder.canonicalize().unwrap();
    let open = fs::read_dir(format!("/proc/{}/fd", archive.id())).unwrap().map(|entry| entry.unwrap().path());
    let there = open.filter(|file| fs::read_link(file).is_ok_and(|target| target.starts_with(&folder)));
    // Any that is not the archive's may be closed meanwhile.
    let lengths = there.filter_map(|file| Some((file.clone(), fs::metadata(file).ok()?.len())));
    lengths.max_by_key(|(_, length)| *length)
}

/// The same, once so much was put aside.
pub async fn once_put_aside(archive: &Archive, folder: &Path, bytes: u64) -> (PathBuf, u64) {
    let begun = Instant::now();
    loop {
        let found = put_aside(archive, folder);
        if let Some(found) = found.clone().filter(|(_, length)| *length >= bytes) {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "too little is put aside: {found:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// An archive that has put aside a part of what was written, for its store is shut.
struct Spilling {
    etcd: Etcd,
    store: Gated,
    archive: Archive,
    /// What it said before.
    first: Report,
    folder: TempDir,
    /// The last revision that was written.
    last: i64,
}

impl Spilling {
    /// By this command of the agent. `None` where the servers are not there.
    async fn by(make: impl FnOnce(&[&str]) -> Command, put_aside: u64) -> Option<Self> {
        let (binaries, store) = (newest()?, Gated::start(Duration::ZERO)?);
        let (etcd, folder) = (Etcd::start(&binaries), tempfile::tempdir().unwrap());
        let spill = folder.path().to_str().unwrap();
        let arguments = ["--flush-every", "200ms", "--spill-limit", ENOUGH, "--spill", spill];
        let mut archive = Archive::by(make, &etcd.url(), &store.arguments(&arguments));
        let first = archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
        store.shut();
        let last = write(&etcd, VALUES, 1 << 20).await;
        once_put_aside(&archive, folder.path(), put_aside).await;
        Some(Self { etcd, store, archive, first, folder, last })
    }

    async fn start() -> Option<Self> {
        Self::by(command, PUT_ASIDE).await
    }

    /// What is put aside, to be harmed.
    fn file(&self) -> File {
        let (path, _) = put_aside(&self.archive, self.folder.path()).unwrap();
        File::options().read(true).write(true).open(path).unwrap()
    }

    /// The store is there again. What was held is stored, and all of the rest is in the generation that is begun then: each
    /// revision is what etcd has of it.
    async fn begins_anew(mut self) {
        self.store.open();
        let written = self.last;
        self.archive.says("all that was written", |report| reached(report, written)).await;
        let last = put(&self.etcd).await;
        let report = self.archive.says("what came next", |report| reached(report, last)).await;
        assert_eq!((report.role, report.fault), (Role::Committer, None));
        self.archive.kill();

        let (all, mut client) = (chains(&self.store.folder()).await, self.etcd.connect().await);
        for chain in &all {
            comes_back(&mut client, &self.store.folder(), chain.head().to_etcd()).await;
        }
        let [old, new] = &all[..] else { panic!("{} generations", all.len()) };
        let begin = old.full.revision.get();
        assert!(old.head().get() >= begin + HELD, "what was held is lost: {begin} to {}", old.head());
        let (end, begin) = (old.head().to_etcd(), new.full.revision.to_etcd());
        assert!(end + 1 < begin, "nothing lies between {end} and {begin}");
        for revision in [end + 1, begin - 1, begin, last] {
            comes_back(&mut client, &self.store.folder(), revision).await;
        }
    }
}

#[tokio::test]
async fn a_value_of_which_a_bit_has_flipped_where_it_was_put_aside_is_stored_by_nobody() {
    let Some(spilling) = Spilling::start().await else { return };
    let (file, mut byte) = (spilling.file(), [0]);
    // It is in the middle of the first value.
    file.read_exact_at(&mut byte, 1 << 19).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1 << 19).unwrap();
    spilling.begins_anew().await;
}

#[tokio::test]
async fn what_was_put_aside_and_has_lost_its_end_is_stored_by_nobody() {
    let Some(spilling) = Spilling::start().await else { return };
    let file = spilling.file();
    // In the middle of the third value. It gets longer again: also while nothing is written etcd says how far it is.
    file.set_len(5 << 19).unwrap();
    spilling.begins_anew().await;
}

#[tokio::test]
async fn what_was_put_aside_and_is_lost_is_in_the_next_full_snapshot() {
    let Some(spilling) = Spilling::start().await else { return };
    spilling.file().set_len(0).unwrap();
    spilling.begins_anew().await;
}

#[tokio::test]
async fn what_a_full_disk_has_no_room_for_is_in_the_next_full_snapshot() {
    /// So many blocks of 512 bytes hold four of the values, and a part of the fifth.
    const BLOCKS: u64 = 9_000;
    let little = |arguments: &[&str]| in_little_room(BLOCKS, arguments);
    let Some(spilling) = Spilling::by(little, BLOCKS * 512).await else { return };
    spilling.begins_anew().await;
}

#[tokio::test]
async fn what_was_put_aside_outlives_its_folder_and_the_next_session_begins_when_that_is_there_again() {
    let Some(spilling) = Spilling::start().await else { return };
    let Spilling { mut etcd, store, mut archive, first, folder, last } = spilling;
    // The file has no name in it.
    fs::remove_dir(folder.path()).unwrap();
    store.open();
    let report = archive.says("all of it", |report| reached(report, last)).await;
    assert_eq!((report.generation, report.fault), (first.generation, None));
    // The next session needs a file of its own.
    etcd.kill();
    etcd.resume();
    let missing = |report: &Report| report.fault.as_ref().is_some_and(|fault| fault.message.contains("No such file"));
    archive.says("that its folder is missing", missing).await;
    let later = put(&etcd).await;
    fs::create_dir(folder.path()).unwrap();
    archive.says("all of it, and well", |report| reached(report, later) && report.fault.is_none()).await;
    archive.kill();

    let mut client = etcd.connect().await;
    for revision in [last - 1, last, later] {
        comes_back(&mut client, &store.folder(), revision).await;
    }
}
