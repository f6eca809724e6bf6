//! Looking at a store, copying it, and removing what is old.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use indicatif::HumanBytes;
use jiff::{SignedDuration, Timestamp};
use quorate_backup::care::Report;
use quorate_backup::format::{Chain, Delta, GenerationKey, generations};

use crate::agent::{Ended, run};
use crate::database::tail;
use crate::fake::{Mood, Served};
use crate::recorded::{Recorded, address, files};
use crate::snapshot::large;

pub fn texts(json: &serde_json::Value) -> Vec<&str> {
    json.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_store_shows_what_is_in_it_and_what_is_wrong_with_it() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    let taken = recorded.chain.full.taken;
    let damaged = recorded.taken_at(taken - SignedDuration::from_secs(20)).await;
    fs::write(recorded.folder.path().join(damaged.full().as_str()), "{").unwrap();
    let unfinished = recorded.taken_at(taken - SignedDuration::from_secs(10)).await;
    fs::remove_file(recorded.folder.path().join(unfinished.full().as_str())).unwrap();

    let json = recorded.run("list", &[]).json();
    let lines = json.as_array().unwrap();
    let states: Vec<_> = lines.iter().map(|line| line["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["damaged", "incomplete", "whole"], "{json}");
    assert_eq!(lines[0]["generation"].as_str(), Some(damaged.name.as_str()));
    assert!(lines[0]["fault"].as_str().unwrap().contains(damaged.name.as_str()), "{json}");
    let whole = &lines[2]["whole"];
    let numbers = ["firstRevision", "lastRevision", "deltas", "events"].map(|name| whole[name].as_u64().unwrap());
    assert_eq!(numbers, [7, 40, 2, 66], "{json}");

    let json = recorded.run("inspect", &[]).json();
    assert_eq!(json["full"]["revision"].as_u64(), Some(7), "{json}");
    assert_eq!(json["deltas"].as_array().unwrap().len(), 2);
    let ended = recorded.run("inspect", &["--generation", damaged.name.as_str()]);
    assert!(ended.error().contains("is damaged"), "{}", ended.stderr);

    // For people: a line for each, and the fault.
    let text = run(&["list", "--store", &address(recorded.folder.path())]).stdout;
    assert!(text.contains("7..40") && text.contains("is damaged") && text.contains("incomplete"), "{text}");
    let text = run(&["inspect", "--store", &address(recorded.folder.path()), "--lineage", "blue"]).stdout;
    assert!(text.contains("11..40"), "{text}");
    // What it takes to delete it.
    let manifest = std::fs::read(recorded.folder.path().join(recorded.chain.key.full().as_str())).unwrap();
    let hash = blake3::hash(&manifest).to_hex();
    assert_eq!(json["manifestBlake3"].as_str(), Some(hash.as_str()), "{json}");
    assert!(text.contains(&format!("/full with the hash {hash}")), "{text}");

    // The damaged one is in nobody's way, unless it is asked for.
    let folder = tempfile::tempdir().unwrap();
    let scratch = folder.path().to_str().unwrap();
    assert_eq!(recorded.run("verify", &["--scratch", scratch]).json()["revision"].as_u64(), Some(40));
    let ended = recorded.run("verify", &["--scratch", scratch, "--generation", damaged.name.as_str()]);
    assert!(ended.error().contains("is damaged"), "{}", ended.stderr);
}

#[tokio::test]
async fn strictly_the_newest_generation_has_to_restore_and_the_report_says_whether_it_does() {
    let recorded = Recorded::with_deltas(&[10]).await;
    let taken = recorded.chain.full.taken;
    let folder = tempfile::tempdir().unwrap();
    let (scratch, report) = (folder.path().to_str().unwrap(), folder.path().join("report"));
    let arguments = ["--strict", "--scratch", scratch, "--report", report.to_str().unwrap()];
    let verify = || {
        let success = recorded.run("verify", &arguments).success;
        let told: Report = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        assert_eq!(success, matches!(told, Report::Proved(_)), "{told:?}");
        told
    };
    let damage = async |taken: Timestamp| {
        let key = recorded.taken_at(taken).await;
        fs::write(recorded.folder.path().join(key.full().as_str()), "{").unwrap();
    };
    damage(taken - SignedDuration::from_secs(20)).await;
    let Report::Proved(proved) = verify() else { panic!("an older one is damaged") };
    assert_eq!((proved.revision, proved.events_applied > 0), (10, true));
    damage(taken + SignedDuration::from_secs(20)).await;
    let Report::Failed { message } = verify() else { panic!("the newest one is damaged") };
    assert!(message.contains("is damaged"), "{message}");
}

#[tokio::test]
async fn strictly_deltas_whose_full_snapshot_is_gone_are_no_reason_to_prove_an_older_one() {
    let recorded = Recorded::with_deltas(&[10]).await;
    recorded.taken_at(recorded.chain.full.taken - SignedDuration::from_secs(20)).await;
    let full = recorded.chain.key.full();
    fs::remove_file(recorded.folder.path().join(full.as_str())).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["--scratch", scratch.path().to_str().unwrap(), "--strict"];
    let ended = recorded.run("verify", &arguments);
    assert!(ended.error().contains(&format!("{full} is missing")), "{}", ended.stderr);
    let ended = recorded.run("verify", &arguments[..2]);
    assert!(ended.stderr.contains(&format!("{full} is missing")), "{}", ended.stderr);
    assert_eq!(ended.json()["revision"].as_u64(), Some(7));
}

#[tokio::test]
async fn a_delta_whose_manifest_tells_another_number_of_events_is_not_proved() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    let delta = &recorded.chain.links[1].delta;
    let key = recorded.chain.key.delta(delta.from);
    let folder = tempfile::tempdir().unwrap();
    let verify = |events: u64| {
        let told = Delta { events, ..delta.clone() };
        fs::write(recorded.folder.path().join(key.as_str()), told.write()).unwrap();
        recorded.run("verify", &["--scratch", folder.path().to_str().unwrap()])
    };
    for events in [delta.events - 1, delta.events + 1] {
        let words = format!("{key} is damaged: it has {} events instead of {events}", delta.events);
        let ended = verify(events);
        assert!(ended.error().contains(&words), "{}", ended.stderr);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    assert_eq!(verify(delta.events).json()["revision"].as_u64(), Some(40));
}

/// What a command shows people of this store, line by line.
fn shown(recorded: &Recorded, command: &str, more: &[&str]) -> Vec<String> {
    let store = address(recorded.folder.path());
    let ended = run(&[&[command, "--store", &store][..], more].concat());
    assert!(ended.success, "{}", ended.stderr);
    ended.stdout.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn people_are_shown_what_was_copied_proved_and_restored() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    let (key, entries) = (&recorded.chain.key, recorded.entries.len());
    let folder = tempfile::tempdir().unwrap();
    let (scratch, database) = (folder.path().to_str().unwrap(), folder.path().join("db"));
    let stored = |path: &Path| fs::metadata(path).unwrap().len();
    let data: u64 = files(&recorded.data_folder()).iter().map(|path| stored(path)).sum();
    let to = format!("{}/copy", address(folder.path()));
    fs::create_dir(folder.path().join("copy")).unwrap();
    for (copied, present, bytes) in [(3, 0, data), (0, 3, 0)] {
        let lines = shown(&recorded, "copy", &["--lineage", "blue", "--target", &to]);
        let [headings, line] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(headings.split_whitespace().collect::<Vec<_>>(), ["GENERATION", "COPIED", "PRESENT", "SIZE"]);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.join(" "), format!("{key} {copied} {present} {}", HumanBytes(bytes)));
    }

    let lines = shown(&recorded, "restore", &["--lineage", "blue", "--database", database.to_str().unwrap()]);
    let size = HumanBytes(stored(&database));
    let [first, second] = &lines[..] else { panic!("{lines:?}") };
    assert!(first.starts_with(&format!("revision 40 of {key}: {size}, 66 events applied, in ")), "{first}");
    assert_eq!(second, "1 leases got 3600 s: nobody had learned how long they last");

    let lines = shown(&recorded, "verify", &["--lineage", "blue", "--scratch", scratch]);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.starts_with(&format!("{key} restores to revision 40: {entries} entries in {size}, in ")), "{line}");
}

#[tokio::test]
async fn people_are_shown_what_would_go_and_what_is_gone() {
    let (recorded, keys) = days().await;
    let garbage = recorded.data_folder().join("a".repeat(32));
    fs::write(&garbage, "x").unwrap();
    let old = SystemTime::now() - Duration::from_hours(25);
    File::options().write(true).open(&garbage).unwrap().set_modified(old).unwrap();
    let of_generations = keys[..3].iter().flat_map(|key| files(&recorded.folder.path().join(key.folder().as_str())));
    let bytes: u64 = of_generations.map(|path| fs::metadata(path).unwrap().len()).sum();
    let mut lines: Vec<_> = keys[..3].iter().map(|key| format!("generation {key}")).collect();
    lines.push(format!("garbage {}", garbage.strip_prefix(recorded.folder.path()).unwrap().display()));
    let gone = format!("gone: 7 objects, {}", HumanBytes(bytes + 1));
    let rules = ["--lineage", "blue", "--keep-last", "1s", "--keep", "2"];
    for (more, what) in [(&["--dry-run"][..], "would go"), (&[][..], gone.as_str())] {
        let end = format!("3 generations and 1 objects of garbage {what}; 3 generations stay");
        assert_eq!(shown(&recorded, "prune", &[&rules[..], more].concat()), [&lines[..], &[end]].concat());
    }
    let end = "0 generations and 0 objects of garbage gone: 0 objects, 0 B; 3 generations stay";
    assert_eq!(shown(&recorded, "prune", &rules), [end]);

    let hash = Chain::read(&recorded.store, &keys[3]).await.unwrap().full_hash.to_string();
    let bytes = files(&recorded.folder.path().join(keys[3].folder().as_str()));
    let bytes = HumanBytes(bytes.iter().map(|path| fs::metadata(path).unwrap().len()).sum());
    let lines = shown(&recorded, "delete", &[keys[3].full().as_str(), "--hash", &hash]);
    assert_eq!(lines, [format!("gone: 2 objects, {bytes}")]);
}

#[test]
fn a_folder_without_backups_is_not_taken_for_an_empty_store() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["list", "inspect", "verify", "restore"] {
        let store = address(folder.path());
        let mut arguments = vec![command, "--store", &store, "--lineage", "blue"];
        if command == "restore" {
            arguments.extend(["--database", "db"]);
        }
        let ended = run(&arguments);
        assert!(ended.error().contains("no backup has been made to this address"), "{command}: {}", ended.stderr);
    }
}

#[tokio::test]
async fn a_copy_restores_and_is_continued() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    let target = tempfile::tempdir().unwrap();
    let to = address(target.path());

    // What is damaged is not passed on, and what was copied before it is a backup.
    let object = recorded.data_of(1);
    let sound = fs::read(&object).unwrap();
    fs::write(&object, vec![7; sound.len()]).unwrap();
    let ended = recorded.run("copy", &["--target", &to]);
    assert!(ended.error().contains("is damaged or another object"), "{}", ended.stderr);
    let listed = run(&["list", "--store", &to, "-o", "json"]).json();
    assert_eq!(listed[0]["whole"]["lastRevision"].as_u64(), Some(10), "{listed}");

    fs::write(&object, &sound).unwrap();
    let json = recorded.run("copy", &["--target", &to]).json();
    assert_eq!((json[0]["manifests"].as_u64(), json[0]["present"].as_u64()), (Some(1), Some(2)), "{json}");
    let json = recorded.run("copy", &["--target", &to]).json();
    assert_eq!((json[0]["manifests"].as_u64(), json[0]["present"].as_u64()), (Some(0), Some(3)), "{json}");

    // What is committed there and has lost its data, or a part of it, is mended.
    let copied = |path: &Path| target.path().join(path.strip_prefix(recorded.folder.path()).unwrap());
    fs::remove_file(copied(&recorded.data_of(0))).unwrap();
    fs::write(copied(&object), &sound[1..]).unwrap();
    let json = recorded.run("copy", &["--target", &to]).json();
    assert_eq!((json[0]["manifests"].as_u64(), json[0]["present"].as_u64()), (Some(2), Some(1)), "{json}");

    let in_folder = |folder: &Path| {
        files(folder)
            .into_iter()
            .map(|path| (path.strip_prefix(folder).unwrap().to_owned(), fs::read(path).unwrap()))
            .collect::<Vec<_>>()
    };
    assert!(in_folder(target.path()) == in_folder(recorded.folder.path()));
    let database = target.path().join("db");
    let path = database.to_str().unwrap();
    run(&["restore", "--store", &to, "--lineage", "blue", "--database", path, "-o", "json"]).json();
    assert_eq!(tail(&database).revision, 40);
}

#[tokio::test]
async fn a_copy_that_leaves_out_what_is_damaged_copies_the_rest_and_fails() {
    let recorded = Recorded::with_deltas(&[10]).await;
    let before = |seconds| recorded.taken_at(recorded.chain.full.taken - SignedDuration::from_secs(seconds));
    let (damaged, begun) = (before(20).await, before(10).await);
    let path = |key: &GenerationKey| recorded.folder.path().join(key.full().as_str());
    fs::write(path(&damaged), "{").unwrap();
    fs::remove_file(path(&begun)).unwrap();
    let target = tempfile::tempdir().unwrap();
    let to = address(target.path());
    let ended = recorded.run("copy", &["--target", &to]);
    assert!(ended.error().contains("1 damaged generations were left out"), "{}", ended.stderr);
    let listed = run(&["list", "--store", &to, "-o", "json"]).json();
    assert_eq!(listed[0]["whole"]["lastRevision"].as_u64(), Some(10), "{listed}");
    // One that is being taken is none that is missed.
    fs::remove_dir_all(recorded.folder.path().join(damaged.folder().as_str())).unwrap();
    recorded.run("copy", &["--target", &to]).json();
}

/// Five generations, a day apart, the last of them an hour old.
pub async fn days() -> (Recorded, Vec<GenerationKey>) {
    let recorded = Recorded::full().await;
    fs::remove_file(recorded.folder.path().join(recorded.chain.key.full().as_str())).unwrap();
    let mut keys = Vec::new();
    for day in (0..5).rev() {
        let taken = Timestamp::now() - SignedDuration::from_hours(24 * day + 1);
        keys.push(recorded.taken_at(taken).await);
    }
    (recorded, keys)
}

#[tokio::test]
async fn what_no_rule_keeps_goes_and_the_newest_stays() {
    let (recorded, keys) = days().await;
    let name = |key: &GenerationKey| key.to_string();
    // To restore what was 50 hours ago takes the generation that had begun 73 hours ago.
    let plan = recorded.run("prune", &["--keep-last", "50h", "--dry-run"]).json();
    assert_eq!(texts(&plan["generations"]), [name(&keys[0])], "{plan}");
    assert_eq!(recorded.run("list", &[]).json().as_array().unwrap().len(), 6);

    let done = recorded.run("prune", &["--keep-last", "1s", "--keep", "2"]).json();
    assert_eq!(texts(&done["generations"]), [name(&keys[0]), name(&keys[1]), name(&keys[2])], "{done}");
    assert_eq!(done["objects"].as_u64(), Some(6));
    for key in &keys[..3] {
        assert!(!recorded.folder.path().join(key.folder().as_str()).exists());
    }
    // Whatever the rules say, the newest is not given up.
    recorded.run("prune", &["--keep-last", "1s", "--keep", "0"]).json();
    let left = recorded.run("list", &[]).json();
    let whole: Vec<_> = left.as_array().unwrap().iter().filter(|line| line["state"] == "whole").collect();
    assert_eq!(whole.len(), 1, "{left}");
    assert_eq!(whole[0]["generation"].as_str(), Some(keys[4].name.as_str()));
    // What is left restores.
    let folder = tempfile::tempdir().unwrap();
    recorded.run("verify", &["--scratch", folder.path().to_str().unwrap()]).json();
}

#[tokio::test]
async fn only_data_that_nobody_can_refer_to_any_more_is_garbage() {
    let recorded = Recorded::with_deltas(&[10]).await;
    let old = SystemTime::now() - Duration::from_hours(25);
    let put = |name: &str, modified: Option<SystemTime>| {
        let path = recorded.data_folder().join(name);
        fs::write(&path, "x").unwrap();
        if let Some(modified) = modified {
            File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        }
        path
    };
    let (garbage, fresh) = (put(&"a".repeat(32), Some(old)), put(&"b".repeat(32), None));
    // What is referred to stays, however old it is.
    File::options().write(true).open(recorded.data_of(0)).unwrap().set_modified(old).unwrap();
    // An upload writes to such a file, which is all that is left of it if it is killed.
    let (killed, at_work) = (put("c#1", Some(old)), put("d#1", None));
    let names =
        [&garbage, &killed].map(|path| path.strip_prefix(recorded.folder.path()).unwrap().display().to_string());
    let rules = ["--keep-last", "1d"];
    let plan = recorded.run("prune", &[&rules[..], &["--dry-run"]].concat()).json();
    assert_eq!(texts(&plan["garbage"]), names, "{plan}");
    assert!(garbage.exists() && killed.exists());
    let done = recorded.run("prune", &rules).json();
    assert_eq!(texts(&done["garbage"]), names, "{done}");
    assert_eq!((done["objects"].as_u64(), done["bytes"].as_u64()), (Some(2), Some(2)), "{done}");
    assert!(!garbage.exists() && fresh.exists() && recorded.data_of(0).exists());
    assert!(!killed.exists() && at_work.exists());
}

#[tokio::test]
async fn a_record_whose_full_snapshot_is_gone_keeps_what_it_has_till_that_is_put_back() {
    let recorded = Recorded::with_deltas(&[10]).await;
    // Another one is newer, so that no rule speaks for this one.
    recorded.taken_at(recorded.chain.full.taken + SignedDuration::from_secs(1)).await;
    let full = recorded.folder.path().join(recorded.chain.key.full().as_str());
    let manifest = fs::read(&full).unwrap();
    fs::remove_file(&full).unwrap();
    let old = SystemTime::now() - Duration::from_hours(25);
    for path in files(&recorded.data_folder()) {
        File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
    }
    let before = files(recorded.folder.path());
    let done = recorded.run("prune", &["--keep-last", "1d"]).json();
    assert_eq!(texts(&done["garbage"]), [""; 0], "{done}");
    let ended = delete(&recorded, &recorded.chain.key, &recorded.chain.full_hash.to_string());
    assert!(ended.error().contains("a continuous backup has gone on from"), "{}", ended.stderr);
    assert_eq!(files(recorded.folder.path()), before);
    fs::write(&full, manifest).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--scratch", folder.path().to_str().unwrap(), "--generation", recorded.chain.key.name.as_str()];
    assert_eq!(recorded.run("verify", &arguments).json()["revision"].as_u64(), Some(10));
}

fn delete(recorded: &Recorded, key: &GenerationKey, hash: &str) -> Ended {
    let (store, full) = (address(recorded.folder.path()), key.full());
    run(&["delete", full.as_str(), "--hash", hash, "--store", &store, "-o", "json"])
}

#[tokio::test]
async fn one_backup_is_deleted_and_no_other() {
    let (recorded, keys) = days().await;
    let key = &keys[2];
    let folder = recorded.folder.path().join(key.folder().as_str());
    let hash = Chain::read(&recorded.store, key).await.unwrap().full_hash.to_string();
    let ended = delete(&recorded, key, &"0".repeat(64));
    assert!(ended.error().contains("is not the manifest that was named"), "{}", ended.stderr);
    assert_eq!(files(&folder).len(), 2);
    assert_eq!(delete(&recorded, key, &hash).json()["objects"].as_u64(), Some(2));
    assert!(!folder.exists());
    // What is gone is as good as deleted, also what an earlier try has left.
    fs::create_dir_all(folder.join("d")).unwrap();
    fs::write(folder.join("d/left"), "x").unwrap();
    let again = delete(&recorded, key, &hash).json();
    assert_eq!((again["objects"].as_u64(), again["bytes"].as_u64()), (Some(1), Some(1)), "{again}");
    assert!(!folder.exists());
    let left = recorded.run("list", &[]).json();
    assert_eq!(left.as_array().unwrap().iter().filter(|line| line["state"] == "whole").count(), 4, "{left}");
}

#[tokio::test]
async fn a_backup_from_which_a_record_goes_on_is_not_deleted() {
    let recorded = Recorded::with_deltas(&[10]).await;
    let before = files(recorded.folder.path());
    let ended = delete(&recorded, &recorded.chain.key, &recorded.chain.full_hash.to_string());
    assert!(ended.error().contains("a continuous backup has gone on from"), "{}", ended.stderr);
    assert_eq!(files(recorded.folder.path()), before);
}

/// Two restores with one token and the same URLs are clusters of one id: only whose they are tells them apart.
#[tokio::test]
async fn clusters_of_one_id_in_one_store_are_told_apart_by_whose_they_are() {
    let recorded = Recorded::with_deltas(&[20, 40]).await;
    let (member, store) = (Served::start(Mood::Sound, large(0)), address(recorded.folder.path()));
    let of_green = ["--store", &store, "--lineage", "green", "--output", "json"];
    run(&[&["snapshot", "--endpoint", &member.url][..], &of_green].concat()).json();
    let keys = generations(&recorded.store, &"green".parse().unwrap()).await.unwrap();
    let [green] = &keys[..] else { panic!("{keys:?}") };
    assert_eq!(green.cluster, recorded.chain.key.cluster);
    // That of green is the later one.
    let folder = tempfile::tempdir().unwrap();
    for (lineage, revision) in [("blue", 40), ("green", 7)] {
        let database = folder.path().join(lineage);
        let arguments = ["restore", "--store", &store, "--lineage", lineage, "--output", "json", "--database"];
        let told = run(&[&arguments[..], &[database.to_str().unwrap()]].concat()).json();
        assert_eq!((told["revision"].as_u64(), tail(&database).revision), (Some(revision), revision), "{told}");
    }
    let blue = recorded.folder.path().join("blue");
    let before = files(&blue);
    let hash = Chain::read(&recorded.store, green).await.unwrap().full_hash.to_string();
    assert_eq!(delete(&recorded, green, &hash).json()["objects"].as_u64(), Some(2));
    assert_eq!(files(&blue), before);
}
