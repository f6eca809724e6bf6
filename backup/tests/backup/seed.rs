//! Restores onto a seed's volume: done once, repeated when killed, never onto a volume on which etcd was started; and what it
//! says at the launcher's port while something is wrong.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use quorate_backup::format::Delta;
use quorate_backup::launch::{Reason, Report, State};

use crate::agent::command;
use crate::database::{events_after, leases, tail};
use crate::pair::Pair;
use crate::recorded::{FIRST, Recorded, address};
use crate::restore::etcdutl_is_at_work;

/// Everything here takes some seconds at most; this is for machines that are very busy.
const PATIENCE: Duration = Duration::from_mins(1);
const OWN: &str = r#"{"format":1,"member":"blue-0","volume":"v-1"}"#;
const DONE: &str = r#"{"format":1,"member":"blue-0","volume":"v-1","restore":{"done":"3.6.16"}}"#;

/// A seed's volume, and the backup for it.
struct Place {
    recorded: Recorded,
    folder: tempfile::TempDir,
}

/// A restore at work.
pub struct Seed {
    child: Child,
    address: SocketAddr,
}

impl Drop for Seed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Place {
    async fn new() -> Self {
        Self::of(Recorded::with_deltas(&[20, 40]).await)
    }

    fn of(recorded: Recorded) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("volume")).unwrap();
        Self { recorded, folder }
    }

    fn volume(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    fn ticket(&self) -> PathBuf {
        self.folder.path().join("ticket")
    }

    fn marker(&self) -> String {
        fs::read_to_string(self.volume().join("quorate.json")).unwrap()
    }

    fn database(&self) -> PathBuf {
        self.volume().join("data/member/snap/db")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.volume()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Whether it has made no more than its marker and an empty folder.
    fn has_fetched_nothing(&self) -> bool {
        let mut data = fs::read_dir(self.volume().join("data")).unwrap();
        self.names() == ["data", "quorate.json"] && data.next().is_none()
    }

    /// Its command; `more` has arguments instead of, or beside, the usual ones, each as `--name=value`.
    fn command(&self, token: &str, more: &[&str]) -> Command {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/etcdutl");
        let usual = [
            format!("--store={}", address(self.recorded.folder.path())),
            "--lineage=blue".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            format!("--volume={}", self.volume().display()),
            format!("--ticket={}", self.ticket().display()),
            "--member=blue-0".to_owned(),
            "--volume-uid=v-1".to_owned(),
            "--peer-url=http://blue-0:2380".to_owned(),
            format!("--token={token}"),
            format!("--etcdutl={}", tool.display()),
            "--etcd-version=3.6.16".to_owned(),
        ];
        let name = |argument: &str| argument.split('=').next().unwrap_or_default().to_owned();
        let kept = usual.iter().map(String::as_str).filter(|usual| !more.iter().any(|one| name(one) == name(usual)));
        let arguments: Vec<&str> = ["seed"].into_iter().chain(kept).chain(more.iter().copied()).collect();
        let mut command = command(&arguments);
        command.env("PATH", "/usr/bin:/bin");
        command
    }

    /// Starts it.
    fn start(&self, token: &str, more: &[&str]) -> Seed {
        Seed::of(self.command(token, more))
    }

    /// Starts it where no file may have more than so many blocks of 512 bytes: as on a volume that gets full while it works.
    fn start_in_little_room(&self, blocks: u64) -> Seed {
        let agent = self.command("whole", &[]);
        let mut shell = Command::new("/bin/sh");
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        shell.args(["-c", &script, "sh"]).arg(agent.get_program()).args(agent.get_args());
        shell.env_clear().env("PATH", "/usr/bin:/bin");
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Seed::of(shell)
    }

    /// Runs it to its end.
    fn run(&self, more: &[&str]) {
        let ended = self.command("whole", more).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

impl Seed {
    pub fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("listening on ")));
        // What it says later must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        let address = line.unwrap().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        Self { child, address }
    }

    fn report(&self) -> Option<Report> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.write_all(b"GET /quorate HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    pub fn says(&self, reason: Reason) -> Report {
        until(&format!("it says {reason}"), || self.report().filter(|report| report.reason == reason))
    }

    pub fn ends(self) {
        assert!(self.ended().success());
    }

    /// How it ended, by itself.
    pub fn ended(mut self) -> ExitStatus {
        until("it ends", || self.child.try_wait().unwrap())
    }

    pub fn killed(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn a_seed_is_filled_once_and_for_the_version_that_will_run() {
    let place = Place::new().await;
    place.run(&["--to=20"]);
    assert_eq!((place.names(), place.marker().as_str()), (vec!["data".to_owned(), "quorate.json".to_owned()], DONE));
    assert_eq!(tail(&place.database()).revision, 20);
    // It is done: also another target is none any more.
    place.run(&[]);
    assert_eq!(tail(&place.database()).revision, 20);
    // etcd of another version will run: its own tool makes the data.
    place.run(&["--etcd-version=3.7.3"]);
    assert_eq!(tail(&place.database()).revision, 40);
    assert!(place.marker().contains(r#"{"done":"3.7.3"}"#));
}

#[tokio::test]
async fn nothing_is_restored_where_etcd_was_started_or_told_to() {
    let place = Place::new().await;
    // The launcher has spent what was restored, and the files are gone: that is the end of this member, not a new start.
    fs::write(place.volume().join("quorate.json"), OWN).unwrap();
    place.run(&[]);
    assert_eq!((place.names(), place.marker().as_str()), (vec!["quorate.json".to_owned()], OWN));
    // The pod has a ticket, and its volume is empty: whatever it had is lost.
    fs::remove_file(place.volume().join("quorate.json")).unwrap();
    fs::write(place.ticket(), "{}").unwrap();
    place.run(&[]);
    assert_eq!(place.names(), [""; 0]);
}

#[tokio::test]
async fn a_killed_restore_is_repeated_and_what_it_left_is_never_taken_for_whole() {
    let place = Place::new().await;
    let first = place.start("hangs", &[]);
    until("etcdutl is at work", || etcdutl_is_at_work(&place.volume()).then_some(()));
    assert!(place.marker().contains(r#""restore":"begun""#));
    first.says(Reason::Restoring);
    first.killed();
    place.run(&[]);
    assert_eq!((place.names(), place.marker().as_str()), (vec!["data".to_owned(), "quorate.json".to_owned()], DONE));
    assert_eq!(tail(&place.database()).revision, 40);
    // Killed between the data and the marker.
    fs::write(place.volume().join("quorate.json"), DONE.replace(r#"{"done":"3.6.16"}"#, r#""begun""#)).unwrap();
    fs::write(place.database(), "half of it").unwrap();
    place.run(&[]);
    assert_eq!(tail(&place.database()).revision, 40);
}

#[tokio::test]
async fn what_is_wrong_is_told_and_once_it_is_mended_it_goes_on() {
    let place = Place::new().await;
    let object = place.recorded.data_of(1);
    let name = object.file_name().unwrap().to_str().unwrap();
    let sound = fs::read(&object).unwrap();
    fs::remove_file(&object).unwrap();
    let seed = place.start("whole", &[]);
    let told = seed.says(Reason::BackupDamaged);
    assert!(told.message.contains(name) && told.state == State::Restoring, "{told:?}");
    assert!(place.marker().contains("begun") && !place.database().exists());
    let mut flipped = sound.clone();
    flipped[0] ^= 1;
    fs::write(&object, flipped).unwrap();
    until("the damage is named", || seed.report().filter(|report| report.message.contains("frame 0 of")));
    fs::write(&object, sound).unwrap();
    seed.ends();
    assert_eq!(place.marker(), DONE);
}

#[tokio::test]
async fn an_identity_that_is_missing_or_another_is_named_and_once_it_is_there_it_goes_on() {
    let place = Place::of(Recorded::encrypted(&[20, 40]).await);
    let (own, other) = (place.recorded.pair.as_ref().unwrap(), Pair::new());
    // As the kubelet shows a key of a Secret: it is not there, or changes, while the container runs.
    let shown = place.folder.path().join("identity");
    let seed = place.start("whole", &["--identity-file", shown.to_str().unwrap()]);
    let told = seed.says(Reason::KeysUnfit);
    assert!(told.message.contains("the key identity of the Secret") && told.state == State::Restoring, "{told:?}");
    fs::copy(other.identity(), &shown).unwrap();
    let fingerprint = own.fingerprint().to_string();
    let words = format!("is encrypted to {fingerprint}, and the identity in");
    until("the other identity is named", || seed.report().filter(|report| report.message.contains(&words)));
    assert!(!place.database().exists());
    fs::copy(own.identity(), &shown).unwrap();
    seed.ends();
    assert_eq!(place.marker(), DONE);
}

#[tokio::test]
async fn a_damaged_manifest_is_not_passed_over_for_an_older_backup() {
    let place = Place::new().await;
    let newer = place.recorded.taken_at(place.recorded.moment(60)).await.full();
    fs::write(place.recorded.folder.path().join(newer.as_str()), "{}").unwrap();
    let seed = place.start("whole", &[]);
    assert!(seed.says(Reason::BackupDamaged).message.contains(newer.as_str()));
    seed.killed();
}

#[tokio::test]
async fn a_backup_that_is_named_is_restored_whatever_has_become_of_what_went_on_from_it() {
    let place = Place::new().await;
    let chain = &place.recorded.chain;
    let delta = chain.key.delta(chain.full.revision.next());
    fs::write(place.recorded.folder.path().join(delta.as_str()), "{").unwrap();
    let generation = format!("--generation={}", chain.key.name);
    let seed = place.start("whole", &[&generation]);
    let told = seed.says(Reason::BackupDamaged).message;
    assert!(told.contains(delta.as_str()) && told.contains("revisions 1 to 7 of"), "{told}");
    seed.killed();
    let (to, manifest) = (format!("--to={FIRST}"), format!("--manifest-blake3={}", chain.full_hash));
    place.start("whole", &[&generation, &to, &manifest]).ends();
    assert_eq!(place.marker(), DONE);
    assert_eq!(tail(&place.database()).revision, FIRST);
}

/// What stands in it could not be told from what was stored otherwise: nothing else holds a hash of the last manifest.
#[tokio::test]
async fn another_backup_in_the_place_of_the_one_that_was_taken_is_refused() {
    let place = Place::of(Recorded::with_deltas(&[]).await);
    let taken = format!("--manifest-blake3={}", place.recorded.chain.full_hash);
    let path = place.recorded.folder.path().join(place.recorded.chain.key.full().as_str());
    let sound = fs::read_to_string(&path).unwrap();
    let other = sound.replacen("\"3.6.16\"", "\"3.6.10\"", 1);
    assert_ne!(sound, other);
    fs::write(&path, &other).unwrap();
    let seed = place.start("whole", &[&taken]);
    let told = seed.says(Reason::BackupDamaged);
    assert!(told.message.contains("another backup was put in its place"), "{told:?}");
    assert!(place.has_fetched_nothing());
    // It goes on when the manifest is what it was.
    fs::write(&path, &sound).unwrap();
    seed.ends();
    assert_eq!(place.marker(), DONE);
}

#[tokio::test]
async fn each_fault_has_its_word() {
    let place = Place::new().await;
    let empty = tempfile::tempdir().unwrap();
    let nothing = format!("--store={}", address(empty.path()));
    let nowhere = format!("--store={}", address(&empty.path().join("nowhere")));
    let cases: [(&[&str], Reason, &str); 8] = [
        (&["--to=41"], Reason::BackupMissing, "no backup holds revision 41"),
        (&["--lineage=green"], Reason::BackupMissing, "no complete backup"),
        (&[&nothing], Reason::BackupMissing, "no backup has been made to this address"),
        (&[&nowhere], Reason::StoreInvalid, "nowhere"),
        (&["--store-option=endpont=x"], Reason::StoreInvalid, "unknown option \"endpont\""),
        (&["--quota=4096"], Reason::AboveQuota, "spec.etcd.quota"),
        (&["--etcd-version=3.1.0"], Reason::RestoreFailed, "spec.version"),
        (&["--etcdutl=/nonexistent"], Reason::RestoreFailed, "/nonexistent"),
    ];
    for (more, reason, words) in cases {
        let seed = place.start("whole", more);
        let told = seed.says(reason);
        assert!(told.message.contains(words), "{told:?}");
        seed.killed();
        assert!(!place.database().exists());
    }
    let full = place.start("fails", &[]);
    full.says(Reason::NoRoom);
    full.killed();
    // What is not this member's is never touched.
    fs::remove_dir_all(place.volume()).unwrap();
    fs::create_dir(place.volume()).unwrap();
    fs::write(place.volume().join("photo.jpg"), "x").unwrap();
    let seed = place.start("whole", &[]);
    assert!(seed.says(Reason::VolumeHasOtherData).message.contains("photo.jpg"));
    seed.killed();
    assert_eq!(place.names(), ["photo.jpg"]);
    fs::rename(place.volume().join("photo.jpg"), place.volume().join("quorate.json")).unwrap();
    fs::write(place.volume().join("quorate.json"), OWN.replace("blue-0", "blue-1")).unwrap();
    let seed = place.start("whole", &[]);
    assert!(seed.says(Reason::VolumeHasOtherData).message.contains("blue-1"));
    seed.killed();
}

/// More than what is live at the end takes, and less than what its history does.
const BELOW_THE_HISTORY: &str = "--quota=720896";

#[tokio::test]
async fn what_comes_near_the_quota_is_restored_without_its_history() {
    let place = Place::of(Recorded::with_deltas(&[10, 40, 60]).await);
    let volume = |place: &Place| {
        let database = place.database();
        (events_after(&database, 0), tail(&database).revision, fs::metadata(&database).unwrap().len())
    };
    place.run(&["--quota=2147483648"]);
    let (events, revision, whole) = volume(&place);
    assert!(events == place.recorded.entries_until(60) && revision == 60);
    assert!(whole > 720_896, "{whole} bytes");
    let granted = leases(&place.database());

    // Another version is restored anew.
    place.run(&[BELOW_THE_HISTORY, "--etcd-version=3.7.3"]);
    let (events, revision, thinned) = volume(&place);
    assert!(events == place.recorded.live_at(60) && revision == 60, "{} events", events.len());
    assert!(events.last().unwrap().0.tombstone, "the last event says where the history ends, whatever it is");
    assert!(thinned < 720_896 * 6 / 10, "{thinned} bytes");
    assert_eq!(leases(&place.database()), granted);

    // For looking at, all that there was is there, or else nothing: etcd would not know that the history is gone.
    let seed = place.start("whole", &[BELOW_THE_HISTORY, "--etcd-version=3.6.16", "--bump-revision=0"]);
    seed.says(Reason::AboveQuota);
    seed.killed();
    place.run(&["--quota=1100000", "--etcd-version=3.6.16", "--bump-revision=0"]);
    assert!(volume(&place).0 == place.recorded.entries_until(60));
}

#[tokio::test]
async fn what_is_above_the_quota_even_without_its_history_is_told_and_leaves_nothing() {
    let place = Place::of(Recorded::with_deltas(&[10, 40, 60]).await);
    let seed = place.start("whole", &["--quota=102400"]);
    let told = seed.says(Reason::AboveQuota);
    assert!(told.message.contains("no more than the newest of each key"), "{told:?}");
    assert!(told.message.contains("make spec.etcd.quota"), "{told:?}");
    seed.killed();
    assert!(place.has_fetched_nothing() && !place.database().exists());
    place.run(&[BELOW_THE_HISTORY]);
    assert!(events_after(&place.database(), 0) == place.recorded.live_at(60));
}

#[tokio::test]
async fn that_the_volume_is_too_small_is_known_before_anything_is_fetched() {
    let place = Place::new().await;
    let Recorded { folder, chain, .. } = &place.recorded;
    // No volume is as large as what this manifest tells of.
    let delta = Delta { events: 1 << 50, ..chain.links[1].delta.clone() };
    fs::write(folder.path().join(chain.key.delta(delta.from).as_str()), delta.write()).unwrap();
    let seed = place.start("whole", &[]);
    let told = seed.says(Reason::NoRoom);
    assert!(told.message.contains("make spec.storage.size larger"), "{told:?}");
    seed.killed();
    assert!(place.has_fetched_nothing());
    // There is room for what comes before it.
    place.run(&["--to=20"]);
    assert_eq!(tail(&place.database()).revision, 20);
}

#[tokio::test]
async fn a_volume_that_gets_full_meanwhile_is_told_and_with_room_it_goes_on() {
    let place = Place::new().await;
    // More than the full snapshot has, and less than what is restored.
    let seed = place.start_in_little_room(200);
    let told = seed.says(Reason::NoRoom);
    assert!(told.message.contains("File too large"), "{told:?}");
    seed.killed();
    assert!(!place.database().exists() && place.marker().contains("begun"));
    place.run(&[]);
    assert_eq!((place.names(), place.marker().as_str()), (vec!["data".to_owned(), "quorate.json".to_owned()], DONE));
}
