//! Restores of a backup that is known event by event: to every revision, of damaged parts, stopped in the middle.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use prost::Message;
use quorate_backup::bolt::mvcc::{
    ALARM, BucketKey, FINISHED_COMPACT, KeyValue, LEASE, Lease, META, SCHEDULED_COMPACT, lease_of,
};
use quorate_backup::bolt::{self, Appender};
use quorate_backup::format::{Choice, Target};
use quorate_backup::restore::{self, Damaged, Restored, Wanted};

use crate::agent::{Ended, command, run_in_little_room};
use crate::database::{alarms, events_after, leases, tail};
use crate::real::{Binaries, each_version};
use crate::recorded::{FIRST, IDLE, KNOWN, Recorded, UNKNOWN, address, revision};

/// Everything here takes milliseconds; this is for machines that are very busy.
const PATIENCE: Duration = Duration::from_secs(30);

async fn restored(recorded: &Recorded, at: u64, folder: &Path) -> PathBuf {
    let path = folder.join(format!("{at}.db"));
    let choice = Choice { chain: recorded.chain.clone(), revision: revision(at), seam: None };
    let restored = restore::database_file(&recorded.store, &choice, &path, &|_| {}).await.unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((restored.revision.get(), restored.bytes), (at, metadata.len()));
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "nobody else may read it");
    path
}

#[tokio::test]
async fn every_revision_comes_back_as_it_was() {
    let recorded = Recorded::with_deltas(&[10, 11, 40, 60]).await;
    let folder = tempfile::tempdir().unwrap();
    // The ends of the deltas, their neighbours, and some between.
    for at in (FIRST..=14).chain([25, 26, 39, 40, 41, 42, 52, 59, 60]) {
        let database = restored(&recorded, at, folder.path()).await;
        assert!(events_after(&database, 0) == recorded.entries_until(at), "revision {at}");
        assert_eq!(tail(&database).revision, at);
        fs::remove_file(&database).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A generation whose snapshot has in its history what was recorded in deltas before, and in which no lease is left.
async fn with_history_until(last: u64, folder: &Path) -> Recorded {
    let mut recorded = Recorded::with_deltas(&[last]).await;
    let database = restored(&recorded, last, folder).await;
    let file = bolt::open(&database).unwrap();
    let mut appender = Appender::new(&file).unwrap();
    let gone = leases(&database).into_keys().map(|id| (id.to_be_bytes().to_vec(), None)).collect();
    appender.change(LEASE, &gone).unwrap();
    appender.commit().unwrap();
    recorded.goes_on_with(&database, last).await;
    fs::remove_file(&database).unwrap();
    recorded
}

#[tokio::test]
async fn every_revision_before_a_full_snapshot_comes_out_of_it_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorded = with_history_until(40, folder.path()).await;
    recorded.record(50).await;
    for at in (1..=14).chain([25, 38, 39, 40, 41, 50]) {
        let database = restored(&recorded, at, folder.path()).await;
        assert!(events_after(&database, 0) == recorded.entries_until(at), "revision {at}");
        assert_eq!(tail(&database).revision, at);
        // Those that its events name, though the snapshot has none of them any more.
        let puts = recorded.entries_until(at).into_iter().filter(|(event, _)| !event.tombstone);
        let named: BTreeSet<_> = puts.filter_map(|(_, value)| lease_of(&value).filter(|lease| *lease != 0)).collect();
        let found = leases(&database);
        if at < 40 {
            assert!(found.values().all(|ttl| *ttl == restore::UNKNOWN_TTL), "{at}: {found:?}");
            assert_eq!(found.into_keys().collect::<BTreeSet<_>>(), named, "{at}");
        } else {
            assert!(at == 40 || found.len() > 1, "{at}: what was learned since is there: {found:?}");
        }
        fs::remove_file(&database).unwrap();
    }
}

/// The database of a cluster that was begun anew from its state at revision 10, up to this one.
async fn of_another_history(until: u64, folder: &Path) -> PathBuf {
    let database = restored(&Recorded::with_deltas(&[10]).await, 10, folder).await;
    let file = bolt::open(&database).unwrap();
    let mut appender = Appender::new(&file).unwrap();
    for main in 11..=until {
        let value = KeyValue { key: b"other".to_vec(), value: b"x".to_vec(), ..KeyValue::default() }.encode_to_vec();
        appender.push(BucketKey { main, sub: 0, tombstone: false }, &value).unwrap();
    }
    appender.commit().unwrap();
    database
}

#[tokio::test]
async fn what_comes_out_of_a_later_snapshot_is_of_the_history_that_was_recorded_before_it() {
    let folder = tempfile::tempdir().unwrap();
    for encrypted in [false, true] {
        let recorded = || async move {
            if encrypted { Recorded::encrypted(&[20]).await } else { Recorded::with_deltas(&[20]).await }
        };
        let found = async |recorded: &Recorded, generation| {
            let lineage = "blue".parse().unwrap();
            let target = Target::Revision(revision(30));
            let wanted = Wanted { lineage, cluster: None, generation, target, manifest: None };
            restore::find(&recorded.store, &wanted, Damaged::Fails).await.unwrap()
        };
        let path = folder.path().join("30.db");
        // It went on, and nobody recorded that.
        let later = Recorded::with_deltas(&[40]).await;
        let database = restored(&later, 40, folder.path()).await;
        let mut same = recorded().await;
        let before = same.chain.key.clone();
        same.goes_on_with(&database, 40).await;
        let choice = found(&same, None).await;
        let seam = choice.seam.as_ref().unwrap();
        assert_eq!((&choice.chain.key, &seam.recorded, seam.revision.get()), (&same.chain.key, &before, 20));
        let Restored { later: left_out, .. } =
            restore::database_file(&same.store, &choice, &path, &|_| {}).await.unwrap();
        assert!(events_after(&path, 0) == later.entries_until(30));
        assert_eq!(left_out, (later.entries_until(40).len() - later.entries_until(30).len()) as u64);
        fs::remove_file(&path).unwrap();
        fs::remove_file(&database).unwrap();

        // It was begun anew from an earlier state.
        let database = of_another_history(40, folder.path()).await;
        let mut forked = recorded().await;
        forked.goes_on_with(&database, 40).await;
        let choice = found(&forked, None).await;
        let error = restore::database_file(&forked.store, &choice, &path, &|_| {}).await.unwrap_err().to_string();
        assert!(error.contains("another history") && error.contains("other events of revision 20"), "{error}");
        // Who names it means it.
        let choice = found(&forked, Some(forked.chain.key.name.clone())).await;
        restore::database_file(&forked.store, &choice, &path, &|_| {}).await.unwrap();
        assert_eq!(tail(&path).revision, 30);
        fs::remove_file(&path).unwrap();
        fs::remove_file(&database).unwrap();
    }
}

#[tokio::test]
async fn what_comes_out_of_a_later_snapshot_is_proved_with_every_lease_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = with_history_until(40, folder.path()).await;
    let name = recorded.chain.key.name.as_str();
    let arguments = ["--generation", name, "--to", "30", "--scratch", folder.path().to_str().unwrap()];
    let proved = recorded.run("verify", &arguments).json();
    assert_eq!(proved["revision"], 30, "{proved}");
}

#[tokio::test]
async fn a_snapshot_that_was_compacted_further_than_it_says_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // Also one that is ordered and has not ended: etcd goes on with it when it starts.
    for note in [FINISHED_COMPACT, SCHEDULED_COMPACT] {
        compacted_further(note, folder.path()).await;
    }
}

async fn compacted_further(note: &[u8], folder: &Path) {
    let mut recorded = with_history_until(40, folder).await;
    let database = restored(&recorded, 40, folder).await;
    let file = bolt::open(&database).unwrap();
    let mut appender = Appender::new(&file).unwrap();
    let revision_30 = BucketKey { main: 30, sub: 0, tombstone: false }.encode().as_bytes().to_vec();
    appender.change(META, &[(note.to_vec(), Some(revision_30))].into()).unwrap();
    appender.commit().unwrap();
    recorded.goes_on_with(&database, 40).await;
    let path = folder.join("29.db");
    let choice = Choice { chain: recorded.chain.clone(), revision: revision(29), seam: None };
    let error = restore::database_file(&recorded.store, &choice, &path, &|_| {}).await.unwrap_err().to_string();
    assert!(error.contains("compacted up to 30") && error.contains(recorded.chain.key.full().as_str()), "{error}");
    assert!(!path.exists());
    fs::remove_file(&database).unwrap();
    let at_its_begin = restored(&recorded, 30, folder).await;
    assert_eq!(tail(&at_its_begin).revision, 30);
    fs::remove_file(&at_its_begin).unwrap();
}

#[tokio::test]
async fn every_lease_that_a_key_names_is_there_and_no_alarm() {
    let mut recorded = Recorded::with_deltas(&[10, 11, 40]).await;
    let folder = tempfile::tempdir().unwrap();
    // Revision 8 names none, 9 the one that is known, and 11 the one that is not.
    for (at, wanted) in [
        (FIRST, vec![]),
        (8, vec![KNOWN, IDLE]),
        (9, vec![KNOWN, IDLE]),
        (11, vec![(UNKNOWN, restore::UNKNOWN_TTL), KNOWN, IDLE]),
    ] {
        let database = restored(&recorded, at, folder.path()).await;
        assert_eq!(leases(&database).into_iter().collect::<Vec<_>>(), wanted, "revision {at}");
        fs::remove_file(&database).unwrap();
    }

    // A snapshot with an alarm, and with leases of which one was granted anew after it, for longer, and one is not known.
    let database = restored(&recorded, FIRST, folder.path()).await;
    let file = bolt::open(&database).unwrap();
    let mut appender = Appender::new(&file).unwrap();
    appender.change(ALARM, &[(vec![8, 3, 16, 1], Some(Vec::new()))].into()).unwrap();
    let entry = |id: i64| (id.to_be_bytes().to_vec(), Some(Lease { id, ttl: 5, remaining_ttl: 3 }.encode_to_vec()));
    appender.change(LEASE, &[entry(KNOWN.0), entry(UNKNOWN)].into()).unwrap();
    appender.commit().unwrap();
    assert_eq!(alarms(&database), 1);
    recorded.replace_full(&database).await;
    recorded.record(20).await;
    let database = restored(&recorded, 20, folder.path()).await;
    assert_eq!(alarms(&database), 0);
    let leases = leases(&database);
    assert_eq!((leases[&KNOWN.0], leases[&UNKNOWN]), (KNOWN.1, 5));
}

#[tokio::test]
async fn a_time_is_restored_as_far_as_it_was_recorded() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    for (seconds, wanted) in [(0, FIRST), (9, FIRST), (10, 8), (25, 9), (330, 40)] {
        let at = recorded.chain.full.taken + jiff::SignedDuration::from_secs(seconds);
        assert_eq!(
            Choice::of(recorded.chain.clone(), Target::Time(at), None).unwrap().revision.get(),
            wanted,
            "{seconds} s"
        );
    }
    let (before, after) = (recorded.chain.full.taken - jiff::SignedDuration::from_secs(1), recorded.moment(41));
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("db");
    for (at, wanted) in [(before, "no backup is as old as"), (after, "was not recorded: the record ends at")] {
        let ended = recorded.run("restore", &["--to", &at.to_string(), "--database", target.to_str().unwrap()]);
        assert!(ended.error().contains(wanted), "{}", ended.stderr);
    }
    let ended = recorded.run("restore", &["--to", "41", "--database", target.to_str().unwrap()]);
    assert!(ended.error().contains("no backup holds revision 41; there are: 1 to 40"), "{}", ended.stderr);
    let at = recorded.moment(12).to_string();
    let json = recorded.run("restore", &["--to", &at, "--database", target.to_str().unwrap()]).json();
    assert_eq!((json["revision"].as_u64(), json["events"].as_u64()), (Some(12), Some(10)), "{json}");
    assert_eq!(tail(&target).revision, 12);
}

/// Whether the double of etcdutl has begun to make `data` in this folder.
pub fn etcdutl_is_at_work(folder: &Path) -> bool {
    let made = fs::read_dir(folder.join(".data.restoring")).into_iter().flatten().flatten();
    made.map(|entry| entry.path()).any(|path| path.join("begun").exists())
}

/// What befalls an object.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Flipped,
    Truncated,
    Missing,
    /// Another sound object lies under its name.
    Swapped,
}

fn damage(object: &Path, other: &Path, how: Damage) {
    match how {
        Damage::Flipped => {
            let mut bytes = fs::read(object).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            let mut file = fs::OpenOptions::new().write(true).open(object).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.write_all(&bytes).unwrap();
        }
        Damage::Truncated => {
            let file = fs::OpenOptions::new().write(true).open(object).unwrap();
            file.set_len(fs::metadata(object).unwrap().len() - 1).unwrap();
        }
        Damage::Missing => fs::remove_file(object).unwrap(),
        Damage::Swapped => drop(fs::copy(other, object).unwrap()),
    }
}

#[tokio::test]
async fn a_damaged_missing_or_swapped_part_is_named_and_nothing_appears() {
    let recorded = Recorded::with_deltas(&[20, 40]).await;
    let full = recorded.data_folder().join(recorded.chain.full.data.name.as_str());
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("db");
    for object in [&full, &recorded.data_of(0), &recorded.data_of(1)] {
        let name = object.file_name().unwrap().to_str().unwrap();
        let other = if *object == full { recorded.data_of(0) } else { full.clone() };
        let sound = fs::read(object).unwrap();
        for how in [Damage::Flipped, Damage::Truncated, Damage::Missing, Damage::Swapped] {
            damage(object, &other, how);
            let ended = recorded.run("restore", &["--database", target.to_str().unwrap()]);
            assert!(ended.error().contains(name), "{how:?}: {}", ended.stderr);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{how:?}");
            let ended = recorded.run("verify", &["--scratch", folder.path().to_str().unwrap()]);
            assert!(ended.error().contains(name), "{how:?}: {}", ended.stderr);
            fs::write(object, &sound).unwrap();
        }
    }
    let json = recorded.run("verify", &["--scratch", folder.path().to_str().unwrap()]).json();
    assert_eq!((json["revision"].as_u64(), json["entries"].as_u64()), (Some(40), Some(recorded.entries.len() as u64)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A member's data directory, made by a stand-in for etcdutl.
struct Place {
    recorded: Recorded,
    folder: tempfile::TempDir,
}

impl Place {
    async fn new() -> Self {
        Self { recorded: Recorded::with_deltas(&[20]).await, folder: tempfile::tempdir().unwrap() }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn arguments(&self, token: &str) -> Vec<String> {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/etcdutl");
        let (store, data) = (address(self.recorded.folder.path()), self.data());
        let texts = [
            "restore",
            "--store",
            &store,
            "--lineage=blue",
            "--output=json",
            "--data-dir",
            data.to_str().unwrap(),
            "--etcdutl",
            tool.to_str().unwrap(),
            "--initial-cluster-token",
            token,
        ];
        texts.map(str::to_owned).to_vec()
    }

    fn run(&self, token: &str) -> Ended {
        crate::agent::run(&self.arguments(token).iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// One that is in the middle, until it is killed.
    fn in_the_middle(&self) -> Child {
        let child = command(&self.arguments("hangs").iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap();
        let begun = Instant::now();
        while !etcdutl_is_at_work(self.folder.path()) {
            assert!(begun.elapsed() < PATIENCE, "the restore does not get there");
            thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn a_killed_restore_is_repeated_and_a_living_one_is_left_alone() {
    let place = Place::new().await;
    let mut first = place.in_the_middle();
    assert!(!place.data().exists());
    let second = place.run("whole");
    assert!(second.error().contains("another restore is at work there"), "{}", second.stderr);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(place.names(), [".data.restoring"]);

    let json = place.run("whole").json();
    assert_eq!(json["revision"].as_u64(), Some(20), "{json}");
    assert_eq!(place.names(), ["data"]);
    assert_eq!(tail(&place.data().join("member/snap/db")).revision, 20);

    let again = place.run("whole");
    assert!(again.error().contains("exists already"), "{}", again.stderr);
    assert_eq!(place.names(), ["data"]);
}

#[tokio::test]
async fn a_restore_that_is_told_to_stop_leaves_nothing() {
    let place = Place::new().await;
    let mut child = place.in_the_middle();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(place.names(), [""; 0]);
}

#[tokio::test]
async fn what_etcdutl_refuses_is_told_and_leaves_nothing() {
    let place = Place::new().await;
    let ended = place.run("fails");
    assert!(ended.error().contains("no space left on device"), "{}", ended.stderr);
    assert_eq!(place.names(), [""; 0]);
    // An empty folder is as good as none; one with something in it is not touched.
    fs::create_dir(place.data()).unwrap();
    fs::write(place.data().join("mine"), "x").unwrap();
    let ended = place.run("whole");
    assert!(ended.error().contains("exists already"), "{}", ended.stderr);
    fs::remove_file(place.data().join("mine")).unwrap();
    place.run("whole").json();
}

#[tokio::test]
async fn without_room_it_says_so_and_leaves_nothing() {
    let place = Place::new().await;
    let (store, database) = (address(place.recorded.folder.path()), place.folder.path().join("db"));
    let to_file = ["restore", "--store", &store, "--lineage=blue", "--database", database.to_str().unwrap()];
    let to_folder = place.arguments("whole");
    let to_folder: Vec<_> = to_folder.iter().map(String::as_str).collect();
    // The full snapshot has 40 blocks, and what is restored some 500: there is room for neither, and for the first alone.
    for blocks in [20, 200] {
        for arguments in [&to_file[..], &to_folder] {
            let ended = run_in_little_room(blocks, arguments);
            let told = ended.error().contains("failed to write") && ended.stderr.contains("File too large");
            assert!(told, "{blocks}: {}", ended.stderr);
            assert_eq!(place.names(), [""; 0], "{blocks}");

            let SmallDisk { ended, left, words } = run_on_small_disk(place.folder.path(), blocks * 512, arguments);
            let told = ended.error().contains("failed to write") && ended.stderr.contains(words);
            assert!(told, "{blocks}: {}", ended.stderr);
            assert_eq!(left, [""; 0], "{blocks}");
        }
    }
    place.run("whole").json();
    assert_eq!(place.names(), ["data"]);
}

/// How the agent ended on a small disk.
pub struct SmallDisk {
    pub ended: Ended,
    /// The paths of what it left there.
    pub left: Vec<String>,
    /// What it is told there that writes too much.
    pub words: &'static str,
}

/// Runs the agent where `folder` has room for so many bytes: a file system of its own, which goes with the process.
/// Where nobody may mount one, no file gets larger than that instead, which is another error of the same kind.
pub fn run_on_small_disk(folder: &Path, bytes: u64, arguments: &[&str]) -> SmallDisk {
    let (mut shell, begin, words) = if let Some(flags) = namespace() {
        let mut unshare = Command::new("unshare");
        unshare.args(flags).arg("/bin/sh");
        (unshare, r#"mount -t tmpfs -o size="$1" tmpfs "$2""#, "No space left on device")
    } else {
        eprintln!("nothing can be mounted here, in no namespace either: a limit for files stands for a full disk");
        (Command::new("/bin/sh"), r#"trap '' XFSZ; ulimit -f "$(($1 / 512))""#, "File too large")
    };
    // What is left can't be seen from outside.
    let script =
        format!(r#"{{ {begin}; }} && cd "$2" || exit 99; shift 2; "$@"; ended=$?; find . ! -name .; exit $ended"#);
    let agent = command(arguments);
    shell.args(["-c", &script, "sh", &bytes.to_string()]).arg(folder).arg(agent.get_program()).args(agent.get_args());
    shell.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    let output = shell.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    let left = stdout.lines().map(str::to_owned).collect();
    SmallDisk { ended: Ended { success: output.status.success(), stdout, stderr, most_rss_anon: 0 }, left, words }
}

/// How `unshare` makes a namespace in which one may mount: for root, and for others, who are root in one of users where the
/// kernel lets them make that.
const NAMESPACES: [&[&str]; 2] = [&["--mount"], &["--map-root-user", "--mount"]];

/// The one that works here, if any does.
fn namespace() -> Option<&'static [&'static str]> {
    let folder = tempfile::tempdir().unwrap();
    NAMESPACES.into_iter().find(|flags| {
        let mount = ["mount", "-t", "tmpfs", "tmpfs"];
        let tried = Command::new("unshare").args(*flags).args(mount).arg(folder.path()).output();
        tried.is_ok_and(|output| output.status.success())
    })
}

/// Room for what is fetched and for the deltas, and none for the log that etcdutl makes.
const WITHOUT_LOG: u64 = 8 << 20;

async fn log_without_room(binaries: &Binaries) {
    let recorded = Recorded::with_deltas(&[20]).await;
    let folder = tempfile::tempdir().unwrap();
    let (store, data, tool) = (address(recorded.folder.path()), folder.path().join("data"), binaries.tool("etcdutl"));
    let arguments = ["restore", "--store", &store, "--lineage=blue", "--data-dir", data.to_str().unwrap()];
    let arguments = [&arguments[..], &["--etcdutl", tool.to_str().unwrap()]].concat();
    let SmallDisk { ended, left, words } = run_on_small_disk(folder.path(), WITHOUT_LOG, &arguments);
    // The words by which a restore onto a volume tells what is the matter.
    let told =
        ended.error().contains("etcdutl snapshot restore failed") && ended.stderr.contains(&words.to_lowercase());
    assert!(told, "{}", ended.stderr);
    assert_eq!(left, [""; 0]);
}

#[test]
fn that_etcdutl_has_no_room_for_its_log_is_told_and_leaves_nothing() {
    each_version(log_without_room);
}
