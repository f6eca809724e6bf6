//! Restores onto a seed's volume: done once, repeated when killed, never onto a volume on which etcd was started; and what it
//! says at the launcher's port while something is wrong.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use quorate_backup::launch::{Reason, Report, State};

use crate::agent::command;
use crate::database::tail;
use crate::pair::Pair;
use crate::recorded::{Recorded, address};
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
struct Seed {
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
        let mut child = self.command(token, more).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("listening on ")));
        // What it says later must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        let address = line.unwrap().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        Seed { child, address }
    }

    /// Runs it to its end.
    fn run(&self, more: &[&str]) {
        let ended = self.command("whole", more).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

impl Seed {
    fn report(&self) -> Option<Report> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.write_all(b"GET /quorate HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    fn says(&self, reason: Reason) -> Report {
        until(&format!("it says {reason}"), || self.report().filter(|report| report.reason == reason))
    }

    fn ends(mut self) {
        assert!(until("it ends", || self.child.try_wait().unwrap()).success());
    }

    fn killed(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
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
async fn each_fault_has_its_word() {
    let place = Place::new().await;
    let empty = tempfile::tempdir().unwrap();
    let nothing = format!("--store={}", address(empty.path()));
    let nowhere = format!("--store={}", address(&empty.path().join("nowhere")));
    let cases: [(&[&str], Reason, &str); 7] = [
        (&["--to=41"], Reason::BackupMissing, "no backup holds revision 41"),
        (&["--lineage=green"], Reason::BackupMissing, "no complete backup"),
        (&[&nothing], Reason::BackupMissing, "no backup has been made to this address"),
        (&[&nowhere], Reason::StoreInvalid, "nowhere"),
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
