//! A record of which one delta's manifest is damaged or missing, as people meet it: what comes before that is shown, restored,
//! proved and copied, and nobody is given it for all of it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::agent::run;
use crate::care::texts;
use crate::database::{events_after, tail};
use crate::recorded::{FIRST, Recorded, address, revision};

/// A record with deltas up to these revisions, and the manifest of the second.
async fn broken() -> (Recorded, PathBuf) {
    let recorded = Recorded::with_deltas(&[20, 30, 40]).await;
    let manifest = recorded.folder.path().join(recorded.chain.key.delta(revision(21)).as_str());
    (recorded, manifest)
}

fn says_how_far(said: &str) {
    assert!(said.contains("00000000000000000021"), "{said}");
    assert!(said.contains("revisions 1 to 20 of") && said.contains("and times up to"), "{said}");
}

#[tokio::test]
async fn what_comes_before_one_damaged_or_missing_manifest_is_restored_and_the_rest_is_told() {
    let (recorded, manifest) = broken().await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    let name = recorded.chain.key.name.as_str();
    let restore = |more: &[&str]| {
        let database = ["--database", database.to_str().unwrap()];
        recorded.run("restore", &[&database[..], more].concat())
    };
    for missing in [false, true] {
        if missing {
            fs::remove_file(&manifest).unwrap();
        } else {
            fs::write(&manifest, "{").unwrap();
        }
        for to in [FIRST, 12, 20] {
            for generation in [&["--generation", name][..], &[]] {
                let json = restore(&[generation, &["--to", &to.to_string()]].concat()).json();
                assert_eq!(json["revision"].as_u64(), Some(to), "{json}");
                assert!(events_after(&database, 0) == recorded.entries_until(to));
                fs::remove_file(&database).unwrap();
            }
        }
        let json = restore(&["--to", &recorded.moment(15).to_string()]).json();
        assert_eq!(json["revision"].as_u64(), Some(15), "{json}");
        fs::remove_file(&database).unwrap();
        let beyond = recorded.moment(25).to_string();
        for more in [&["--to", "21"][..], &["--to", &beyond], &[], &["--generation", name]] {
            says_how_far(restore(more).error());
            assert!(!database.exists(), "{more:?}");
        }
        // A proof is one of the state that is named, and never one of a part in the stead of all.
        let scratch = ["--scratch", folder.path().to_str().unwrap(), "--generation", name];
        let proved = recorded.run("verify", &[&scratch[..], &["--to", "20"]].concat()).json();
        assert_eq!(proved["revision"].as_u64(), Some(20), "{proved}");
        says_how_far(recorded.run("verify", &scratch).error());
    }
}

#[tokio::test]
async fn it_is_shown_up_to_where_a_damaged_record_can_be_restored() {
    let (recorded, manifest) = broken().await;
    fs::write(&manifest, "{").unwrap();
    let lines = recorded.run("list", &[]).json();
    let (line, sound) = (&lines[0], &lines[0]["sound"]);
    assert_eq!((line["state"].as_str(), line.get("whole")), (Some("damaged"), None), "{lines}");
    assert_eq!((sound["firstRevision"].as_u64(), sound["lastRevision"].as_u64()), (Some(FIRST), Some(20)), "{lines}");
    says_how_far(line["fault"].as_str().unwrap());
    let store = address(recorded.folder.path());
    says_how_far(&run(&["list", "--store", &store]).stdout);
    let shown = run(&["inspect", "--store", &store, "--lineage", "blue"]);
    says_how_far(shown.error());
    assert!(shown.stdout.contains("8..20") && !shown.stdout.contains("31..40"), "{}", shown.stdout);
}

#[tokio::test]
async fn a_damaged_record_is_copied_up_to_the_damage_and_goes_on_when_it_is_mended() {
    let (recorded, manifest) = broken().await;
    let sound = fs::read(&manifest).unwrap();
    fs::write(&manifest, "{").unwrap();
    let target = tempfile::tempdir().unwrap();
    let to = address(target.path());
    let copied = |to_: u64| {
        let database = target.path().join("db");
        let path = database.to_str().unwrap();
        run(&["restore", "--store", &to, "--lineage", "blue", "--database", path, "-o", "json"]).json();
        assert_eq!(tail(&database).revision, to_);
        fs::remove_file(&database).unwrap();
    };
    let ended = recorded.run("copy", &["--target", &to]);
    assert!(ended.error().contains("1 damaged generations were copied only up to the damage"), "{}", ended.stderr);
    copied(20);
    fs::write(&manifest, sound).unwrap();
    let json = recorded.run("copy", &["--target", &to]).json();
    assert_eq!((json[0]["manifests"].as_u64(), json[0]["present"].as_u64()), (Some(2), Some(2)), "{json}");
    copied(40);
}

#[tokio::test]
async fn nothing_of_a_damaged_record_is_pruned() {
    let (recorded, manifest) = broken().await;
    fs::write(&manifest, "{").unwrap();
    recorded.taken_at(recorded.moment(100)).await;
    let (old, data) = (SystemTime::now() - Duration::from_hours(25), recorded.data_of(2));
    fs::File::options().write(true).open(&data).unwrap().set_modified(old).unwrap();
    let done = recorded.run("prune", &["--keep-last", "1s"]).json();
    assert_eq!((texts(&done["generations"]), texts(&done["garbage"])), (vec![""; 0], vec![""; 0]), "{done}");
    assert!(data.exists());
}
