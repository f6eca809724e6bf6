//! Encrypted backups as users meet them: whole with the identity, refused by name without it, damaged parts found, copied and
//! pruned by who has no key; and nothing of what a database holds in any object.

use std::fs;
use std::path::{Path, PathBuf};

use quorate_backup::format::Choice;
use quorate_backup::restore;

use crate::agent::{Ended, run};
use crate::database::{events_after, tail};
use crate::pair::Pair;
use crate::recorded::{FIRST, Recorded, address, files, revision};

fn with_identity(recorded: &Recorded, command: &str, pair: &Pair, more: &[&str]) -> Ended {
    recorded.run(command, &[&["--identity-file", pair.identity()], more].concat())
}

#[tokio::test]
async fn every_revision_comes_back_as_it_was() {
    let recorded = Recorded::encrypted(&[10, 11, 40, 60]).await;
    let folder = tempfile::tempdir().unwrap();
    for at in (FIRST..=12).chain([39, 40, 41, 60]) {
        let path = folder.path().join(at.to_string());
        let choice = Choice { chain: recorded.chain.clone(), revision: revision(at), seam: None };
        restore::database_file(&recorded.store, &choice, &path, &|_| {}).await.unwrap();
        assert!(events_after(&path, 0) == recorded.entries_until(at), "revision {at}");
        assert_eq!(tail(&path).revision, at);
    }
}

#[tokio::test]
async fn without_the_identity_it_is_refused_by_name_and_nothing_appears() {
    let recorded = Recorded::encrypted(&[20]).await;
    let (pair, other) = (recorded.pair.as_ref().unwrap(), Pair::new());
    let (own, others) = (pair.fingerprint().to_string(), other.fingerprint().to_string());
    let folder = tempfile::tempdir().unwrap();
    let (target, scratch) = (folder.path().join("db"), folder.path().to_str().unwrap());
    for (command, more) in [("restore", ["--database", target.to_str().unwrap()]), ("verify", ["--scratch", scratch])] {
        let ended = recorded.run(command, &more);
        for word in [own.as_str(), "--identity-file", "encryption.secretName"] {
            assert!(ended.error().contains(word), "{command}, {word}: {}", ended.stderr);
        }
        let ended = with_identity(&recorded, command, &other, &more);
        for word in [own.as_str(), others.as_str(), other.identity(), "--identity-file"] {
            assert!(ended.error().contains(word), "{command}, {word}: {}", ended.stderr);
        }
        assert!(!other.is_told_by(&ended.stderr));
        // The public key is not what is asked for.
        let ended = recorded.run(command, &[&["--identity-file", pair.recipients()][..], &more].concat());
        assert!(ended.error().contains("no X25519 private key"), "{}", ended.stderr);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{command}");
        let json = with_identity(&recorded, command, pair, &more).json();
        assert_eq!(json["revision"].as_u64(), Some(20), "{json}");
        let _ = fs::remove_file(&target);
    }
}

#[tokio::test]
async fn what_can_not_be_encrypted_is_not_written() {
    let recorded = Recorded::full().await;
    let pair = Pair::new();
    let before = files(recorded.folder.path());
    for (file, words) in [("/nowhere/recipients", "/nowhere/recipients"), (pair.identity(), "is a private key")] {
        let ended = recorded.run("snapshot", &["--recipients-file", file]);
        assert!(ended.error().contains(words), "{}", ended.stderr);
        assert!(!pair.is_told_by(&ended.stderr));
        let ended = recorded.run("snapshot", &["--recipients-file", file, "--report", "/dev/stdout"]);
        assert!(ended.stdout.contains("KeysUnfit"), "{}", ended.stdout);
    }
    assert_eq!(files(recorded.folder.path()), before);
}

#[tokio::test]
async fn it_is_shown_copied_and_pruned_by_who_has_no_key() {
    let recorded = Recorded::encrypted(&[10, 40]).await;
    let (pair, other) = (recorded.pair.as_ref().unwrap(), Pair::new());
    let fingerprint = pair.fingerprint().to_string();
    let json = recorded.run("list", &[]).json();
    assert_eq!(json[0]["whole"]["encryptedTo"], serde_json::json!([fingerprint]), "{json}");
    let json = recorded.run("inspect", &[]).json();
    assert_eq!(json["full"]["data"]["age"]["recipients"], serde_json::json!([fingerprint]), "{json}");
    for command in ["list", "inspect"] {
        let text = run(&[command, "--store", &address(recorded.folder.path()), "--lineage", "blue"]).stdout;
        assert!(text.contains(&fingerprint), "{text}");
    }
    assert!(with_identity(&recorded, "inspect", pair, &[]).success);
    assert!(with_identity(&recorded, "inspect", &other, &[]).error().contains(&fingerprint));

    let folder = tempfile::tempdir().unwrap();
    let to = address(folder.path());
    recorded.run("copy", &["--target", &to]).json();
    let database = folder.path().join("db");
    let target = ["--database", database.to_str().unwrap(), "--identity-file", pair.identity()];
    run(&[&["restore", "--store", &to, "--lineage", "blue"], &target[..]].concat());
    assert!(events_after(&database, 0) == recorded.entries);

    let older = recorded.taken_at(recorded.chain.full.taken - jiff::SignedDuration::from_hours(50)).await;
    assert_eq!(recorded.run("list", &[]).json().as_array().unwrap().len(), 2, "{}", older.name);
    recorded.run("prune", &["--keep", "1", "--keep-last", "1ms"]).json();
    let left = recorded.run("list", &[]).json();
    let names: Vec<_> = left.as_array().unwrap().iter().map(|one| one["generation"].as_str().unwrap()).collect();
    assert_eq!(names, [recorded.chain.key.name.as_str()]);
}

#[tokio::test]
async fn a_damaged_cut_or_swapped_part_is_named_and_nothing_appears() {
    let recorded = Recorded::encrypted(&[20, 40]).await;
    let pair = recorded.pair.as_ref().unwrap();
    let full = recorded.data_folder().join(recorded.chain.full.data.name.as_str());
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("db");
    for object in [&full, &recorded.data_of(0), &recorded.data_of(1)] {
        let name = object.file_name().unwrap().to_str().unwrap();
        let other = if *object == full { recorded.data_of(0) } else { full.clone() };
        let sound = fs::read(object).unwrap();
        let flipped = |at: usize| {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            bytes
        };
        let mut longer = sound.clone();
        longer.push(0);
        let cases = [
            flipped(0),
            flipped(100),
            flipped(sound.len() / 2),
            flipped(sound.len() - 1),
            sound[..sound.len() - 1].to_vec(),
            Vec::new(),
            fs::read(other).unwrap(),
        ];
        for damaged in cases {
            fs::write(object, damaged).unwrap();
            let ended = with_identity(&recorded, "restore", pair, &["--database", target.to_str().unwrap()]);
            assert!(ended.error().contains(name), "{}", ended.stderr);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        fs::write(object, sound).unwrap();
    }
    let ended = with_identity(&recorded, "restore", pair, &["--database", target.to_str().unwrap()]);
    assert!(ended.success, "{}", ended.stderr);
}

/// Which objects show something: as they are, or decompressed, as whoever finds them would try.
fn showing(store: &Path, known: &[u8]) -> Vec<PathBuf> {
    let holds = |bytes: &[u8]| bytes.windows(known.len()).any(|window| window == known);
    let shows = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        holds(&bytes) || zstd::decode_all(&bytes[..]).is_ok_and(|plain| holds(&plain))
    };
    files(store).into_iter().filter(shows).collect()
}

#[tokio::test]
async fn no_object_shows_a_key_or_a_value() {
    let (open, sealed) = (Recorded::with_deltas(&[12, 40]).await, Recorded::encrypted(&[12, 40]).await);
    // A key of the deltas' events, their values (the low byte of the revision, twenty times), and what any bbolt file begins
    // with: its magic number.
    let magic = 0xED0C_DAED_u32.to_le_bytes();
    for known in [&b"key/1"[..], &[10; 20], &magic] {
        // Planted: whoever looks sees it where it is not encrypted.
        assert!(!showing(open.folder.path(), known).is_empty(), "{known:?} is nowhere");
        assert_eq!(showing(sealed.folder.path(), known), Vec::<PathBuf>::new(), "{known:?}");
    }
    // With the key it is all there, by age and zstd alone.
    let pair = sealed.pair.as_ref().unwrap();
    let plain = zstd::decode_all(&pair.decrypt(&fs::read(sealed.data_of(0)).unwrap())[..]).unwrap();
    assert!(plain.windows(5).any(|window| window == b"key/1"));
    assert_eq!(plain.len() as u64, sealed.chain.links[0].delta.data.plain_bytes);
    // Nor can a guess at the last event be tried on what manifests say.
    let hashes =
        |recorded: &Recorded| recorded.chain.links.iter().map(|link| link.delta.last_events).collect::<Vec<_>>();
    assert!(hashes(&open).iter().all(|hash| !hashes(&sealed).contains(hash)));
    for manifest in files(sealed.folder.path()).iter().filter(|path| !path.to_str().unwrap().contains("/d/")) {
        let text = fs::read_to_string(manifest).unwrap();
        assert!(!pair.is_told_by(&text) && !text.contains("age1"), "{text}");
    }
}

#[tokio::test]
async fn a_manifest_whose_last_events_are_others_is_refused_also_where_that_takes_the_recipients() {
    let recorded = Recorded::encrypted(&[20]).await;
    let path = recorded.folder.path().join(recorded.chain.key.delta(revision(FIRST + 1)).as_str());
    let mut delta = recorded.chain.links[0].delta.clone();
    delta.last_events = recorded.chain.full.last_events;
    fs::write(path, delta.write()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let pair = recorded.pair.as_ref().unwrap();
    let ended = with_identity(&recorded, "verify", pair, &["--scratch", scratch.path().to_str().unwrap()]);
    assert!(ended.error().contains("the events of its last revision have another hash"), "{}", ended.stderr);
}
