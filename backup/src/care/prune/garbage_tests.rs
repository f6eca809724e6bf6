//! Garbage on a volume: data that is written anew before its turn comes, and what killed uploads have left.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::*;
use crate::format::tests::{generation, stored};
use crate::keys::KeyFiles;
use crate::store::Settings;

const KEEP: Keep = Keep { newest: 1, last: Duration::ZERO };

fn open(folder: &Path) -> Store {
    let address = format!("file://{}", folder.display()).parse().unwrap();
    Store::open(&Settings { address, options: BTreeMap::new(), credentials: None, ca: None, keys: KeyFiles::default() })
        .unwrap()
}

fn touch(path: &Path, hours_ago: u64) {
    let then = SystemTime::now() - Duration::from_hours(hours_ago);
    File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
}

fn put(path: PathBuf, content: &str, hours_ago: u64) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    touch(&path, hours_ago);
    path
}

async fn planned(store: &Store) -> Plan {
    plan(store, &generation(1).lineage, KEEP, Timestamp::now(), &|_, _| {}).await.unwrap()
}

fn key(folder: &Path, path: &Path) -> Key {
    Key::new(path.strip_prefix(folder).unwrap().to_str().unwrap())
}

#[tokio::test]
async fn data_that_is_written_anew_before_its_turn_comes_is_no_garbage() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let chain = stored(&store, 100, &[]).await;
    let data = folder.path().join(chain.key.data_folder().as_str());
    let [anew, longer, gone, left] = ["a", "b", "c", "d"].map(|name| put(data.join(name.repeat(32)), "x", 25));
    let plan = planned(&store).await;
    assert_eq!(plan.removals.len(), 4, "{plan:?}");
    // A copy that goes on uses its names again.
    touch(&anew, 0);
    put(longer.clone(), "xx", 30);
    fs::remove_file(gone).unwrap();
    let pruned = prune(&store, &plan).await.unwrap();
    assert!(anew.exists() && longer.exists() && !left.exists());
    assert_eq!((pruned.objects, pruned.bytes, pruned.anew.len(), pruned.failed.len()), (1, 1, 3, 0));
}

#[tokio::test]
async fn what_a_killed_upload_has_left_on_a_volume_goes_when_it_is_old() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let whole = stored(&store, 100, &[]).await.key;
    let at = |key: &GenerationKey, name: &str| folder.path().join(key.folder().as_str()).join(name);
    // The first snapshot of all may have been killed, and then no listing shows that anything was begun.
    let begun = generation(200);
    let old =
        [put(at(&whole, "d/a#1"), "xx", 25), put(at(&whole, "m/b#12"), "xxx", 30), put(at(&begun, "d/c#1"), "x", 25)];
    let touched = put(at(&whole, "d/d#1"), "x", 25);
    let others = [
        put(at(&whole, "d/e#1"), "x", 23),
        put(at(&whole, "d/f#1x"), "x", 0),
        put(at(&whole, "d/g#"), "x", 0),
        put(folder.path().join(whole.lineage.as_str()).join("notes#2"), "x", 100),
        put(folder.path().join("green/7#1"), "x", 100),
    ];
    let plan = planned(&store).await;
    let named = plan.removals.iter().map(|removal| match removal {
        Removal::Staged(listed) => listed.key.clone(),
        Removal::Generation(_) | Removal::Garbage(_) => panic!("{removal:?}"),
    });
    let mut wanted: Vec<_> = old.iter().chain([&touched]).map(|path| key(folder.path(), path)).collect();
    wanted.sort();
    assert_eq!(named.collect::<Vec<_>>(), wanted);
    touch(&touched, 0);
    let pruned = prune(&store, &plan).await.unwrap();
    assert_eq!(pruned, Pruned { objects: 3, bytes: 6, anew: vec![key(folder.path(), &touched)], failed: Vec::new() });
    assert!(!old.iter().any(|path| path.exists()) && touched.exists() && others.iter().all(|path| path.exists()));
    assert!(!folder.path().join(begun.folder().as_str()).exists(), "nothing is left of it");
}

#[tokio::test]
async fn what_filled_a_volume_may_be_the_newest_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let left = put(folder.path().join(generation(1).data_folder().as_str()).join("a#1"), "x", 25);
    let pruned = prune(&store, &planned(&store).await).await.unwrap();
    assert_eq!((pruned.objects, left.exists()), (1, false));
}
