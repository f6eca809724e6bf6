//! Snapshots of a member that fails as told: what is not whole is never reported as a backup, and leaves nothing behind.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use quorate_backup::snapshot::{self, Progress};

use crate::agent::{Ended, command, run};
use crate::fake::{Mood, Pieces, Served};
use crate::pair::Pair;
use crate::ports::free_address;
use crate::recorded::files;

/// The size of a piece of the stream, as etcd sends it.
const PIECE: usize = 32 << 10;

/// A small real database, in pieces.
pub fn small() -> Pieces {
    let file =
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/databases/small-3.6.16.db")).unwrap();
    Arc::new(move |number| file.chunks(PIECE).nth(number).map(<[u8]>::to_vec))
}

/// A real database, and behind its last page as much as makes up this size, half of it compressible.
pub fn large(bytes: usize) -> Pieces {
    let first = small();
    // More than what one compressed frame holds, so that none repeats itself.
    let mut pool = vec![0; 8 << 20];
    let mut random = fastrand::Rng::with_seed(1);
    pool.chunks_mut(512).for_each(|part| random.fill(&mut part[..256]));
    Arc::new(move |number| {
        let start = (number * PIECE) % pool.len();
        let mut piece = pool[start..start + PIECE].to_vec();
        if number == 0 {
            let database = first(0).unwrap();
            piece[..database.len()].copy_from_slice(&database);
        }
        (number == 0 || number * PIECE < bytes).then_some(piece)
    })
}

fn take(member: &Served, store: &Path) -> Ended {
    take_with(member, store, &[])
}

fn take_with(member: &Served, store: &Path, more: &[&str]) -> Ended {
    let store = format!("file://{}", store.display());
    let arguments = ["snapshot", "--endpoint", &member.url, "--store", &store, "--lineage", "blue", "-o", "json"];
    run(&[&arguments[..], more].concat())
}

#[test]
fn a_sound_snapshot_is_a_backup() {
    let store = tempfile::tempdir().unwrap();
    let member = Served::start(Mood::Sound, small());
    let taken = take(&member, store.path()).json();
    assert_eq!((taken["revision"].as_u64(), taken["etcdVersion"].as_str()), (Some(7), Some("3.6.16")));
    let manifest = store.path().join(taken["manifest"].as_str().unwrap());
    assert!(manifest.starts_with(store.path().join("blue/00000000000000ab")), "{}", manifest.display());
    assert!(manifest.is_file());
    assert_eq!(files(store.path()).len(), 3);
}

#[test]
fn a_stream_that_is_not_whole_is_no_backup_and_leaves_nothing() {
    let moods = [
        Mood::Nothing,
        Mood::ErrorAfter(0),
        Mood::ErrorAfter(1),
        Mood::ErrorAfter(300),
        Mood::EndsAfter(1),
        Mood::EndsAfter(300),
        Mood::WithoutHash,
        Mood::FlippedIn(0),
        Mood::FlippedIn(300),
    ];
    for mood in moods {
        let store = tempfile::tempdir().unwrap();
        // Of some parts, so that uploading has begun when it fails.
        let member = Served::start(mood, large(24 << 20));
        let ended = take(&member, store.path());
        assert!(ended.error().contains("failed to read the snapshot"), "{mood:?}: {}", ended.stderr);
        let left = files(store.path());
        assert_eq!(left, [store.path().join("quorate-backups.json")], "{mood:?}");
    }
}

#[test]
fn a_large_snapshot_and_its_restore_take_little_memory_also_encrypted() {
    const SIZE: usize = 300 << 20;
    let pair = Pair::new();
    for more in [vec![], vec!["--recipients-file", pair.recipients()]] {
        let store = tempfile::tempdir().unwrap();
        let member = Served::start(Mood::Sound, large(SIZE));
        let ended = take_with(&member, store.path(), &more);
        assert_eq!(ended.json()["databaseBytes"].as_u64(), Some(SIZE as u64));
        assert!(ended.most_rss_anon < 128 << 10, "{more:?}: {} KiB", ended.most_rss_anon);
        eprintln!("{more:?}: {} MiB with {} KiB of anonymous memory", SIZE >> 20, ended.most_rss_anon);
        // And so does bringing it back.
        let (store, database) = (format!("file://{}", store.path().display()), store.path().join("db"));
        let arguments = ["restore", "--store", &store, "--lineage", "blue", "-o", "json", "--database"];
        let keys = [database.to_str().unwrap(), "--identity-file", pair.identity()];
        let ended = run(&[&arguments[..], &keys].concat());
        assert_eq!(ended.json()["revision"].as_u64(), Some(7));
        assert!(ended.most_rss_anon < 128 << 10, "{more:?}: {} KiB", ended.most_rss_anon);
        eprintln!("{more:?}: restored with {} KiB", ended.most_rss_anon);
    }
}

#[test]
fn it_says_how_far_it_is_while_it_is_being_taken() {
    let store = tempfile::tempdir().unwrap();
    let (go_on, wait) = mpsc::channel::<()>();
    let (pieces, wait) = (large(16 << 20), Mutex::new(wait));
    let halfway = (8 << 20) / PIECE;
    let member = Served::start(
        Mood::Sound,
        Arc::new(move |number| {
            if number == halfway {
                let _ = wait.lock().unwrap().recv();
            }
            pieces(number)
        }),
    );
    let port = free_address();
    let (listen, store) = (port.to_string(), format!("file://{}", store.path().display()));
    let arguments =
        ["snapshot", "--endpoint", &member.url, "--store", &store, "--lineage", "blue", "--listen", &listen];
    let mut child = command(&arguments).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_mins(1);
    let progress = loop {
        assert!(Instant::now() < deadline, "it says nothing");
        if let Some(progress) = progress(port).filter(|progress| progress.read >= 4 << 20) {
            break progress;
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(progress.read <= 8 << 20, "{progress:?}");
    drop(go_on);
    assert!(child.wait().unwrap().success());
}

fn progress(address: SocketAddr) -> Option<Progress> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {} HTTP/1.1\r\nHost: x\r\n\r\n", snapshot::PATH).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

#[test]
fn what_can_not_work_says_why() {
    let store = tempfile::tempdir().unwrap();
    let member = Served::start(Mood::Sound, small());
    let nowhere = take(&member, &store.path().join("not-mounted"));
    assert!(nowhere.error().contains("not-mounted"), "{}", nowhere.stderr);
    let port = free_address();
    let nobody = run(&[
        "snapshot",
        "--endpoint",
        &format!("http://{port}"),
        "--store",
        &format!("file://{}", store.path().display()),
        "--lineage",
        "blue",
    ]);
    assert!(nobody.error().contains(&port.to_string()) || nobody.stderr.contains("status"), "{}", nobody.stderr);
}
