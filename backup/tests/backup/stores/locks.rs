//! Objects that are locked in a bucket of a real server. One that refuses to delete them is told of, with all else removed, and
//! is in no archive's way; one that keeps versions takes the deletion, shows nothing any more, and keeps the bytes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_backup::archive::status::{Report, Role};
use quorate_backup::format::{Chain, GenerationKey};
use quorate_backup::store::{Creation, Key, StoreError};
use serde_json::Value;

use super::place::Place;
use super::s3::VersityGw;
use crate::agent::Ended;
use crate::archive_roles::{Archive, put, reached};
use crate::care::{days, texts};
use crate::real::{Etcd, newest};
use crate::recorded::{address, files};

const BUCKET: &str = "locked";
const PREFIX: &str = "kept/backups";
/// How long an archive may take to remove what it can: it looks with each full snapshot.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Of five generations, the three oldest go.
const RULES: [&str; 6] = ["--lineage", "blue", "--keep-last", "1s", "--keep", "2"];

/// Five generations a day apart in a bucket in which objects can be locked.
async fn filled(server: &VersityGw) -> (Place, Vec<GenerationKey>) {
    server.owner().create_bucket(BUCKET);
    let place = server.in_bucket(BUCKET, PREFIX);
    let (recorded, keys) = days().await;
    let copied = Place::at(address(recorded.folder.path())).copy("blue", &place);
    assert_eq!(copied.as_array().unwrap().len(), keys.len(), "{copied}");
    (place, keys)
}

fn lock(server: &VersityGw, key: &Key) {
    server.owner().lock(BUCKET, &format!("{PREFIX}/{key}"));
}

fn names(keys: &[GenerationKey]) -> Vec<String> {
    keys.iter().map(ToString::to_string).collect()
}

/// The generations that `list` shows as whole.
fn whole(place: &Place) -> Vec<Value> {
    let listed = place.run("list", &[]).json();
    let whole = listed.as_array().unwrap().iter().filter(|line| line["state"] == "whole");
    whole.map(|line| line["generation"].clone()).collect()
}

fn delete(place: &Place, chain: &Chain) -> Ended {
    place.run("delete", &[chain.key.full().as_str(), "--hash", &chain.full_hash.to_string()])
}

pub async fn that_refuse_are_told_and_the_rest_goes(server: &VersityGw) {
    let (place, keys) = filled(server).await;
    let chain = Chain::read(&place.open(), &keys[1]).await.unwrap();
    let (manifest, data) = (keys[0].full(), keys[1].data(&chain.full.data.name));
    lock(server, &manifest);
    lock(server, &data);
    let before = place.content().await;

    let ended = place.run("prune", &RULES);
    assert!(ended.error().contains("2 objects could not be removed"), "{}", ended.stderr);
    let pruned: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(texts(&pruned["generations"]), names(&keys[..3]), "{pruned}");
    let failed = texts(&pruned["failed"]);
    assert_eq!((failed.len(), pruned["objects"].as_u64()), (2, Some(3)), "{pruned}");
    for (told, kept) in failed.iter().zip([&manifest, &data]) {
        assert!(told.contains(kept.as_str()) && told.contains("the object is locked"), "{told}");
        assert!(told.contains("protected by object lock") && !told.contains("credentials"), "{told}");
    }
    // Who would only create one is told that it is there, and who would overwrite one that it is locked.
    let store = place.open();
    assert_eq!(store.create(&manifest, Bytes::from_static(b"x")).await.unwrap(), Creation::Exists);
    let mut upload = store.upload(&data);
    upload.write(Bytes::from_static(b"x")).await.unwrap();
    let error = upload.finish().await.unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    // Of the first one nothing goes, since it would be no backup any more; of the second one what is not locked.
    let mut left = before;
    let gone = [format!("{}/", keys[1].folder()), format!("{}/", keys[2].folder())];
    left.retain(|name, _| name == data.as_str() || !gone.iter().any(|folder| name.starts_with(folder)));
    assert!(place.content().await == left);
    assert_eq!(whole(&place), [&keys[0], &keys[3], &keys[4]].map(|key| key.name.as_str()));
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["--lineage", "blue", "--scratch", scratch.path().to_str().unwrap(), "--generation"];
    let proved = place.run("verify", &[&arguments[..], &[keys[0].name.as_str()]].concat()).json();
    assert_eq!(proved["revision"].as_u64(), Some(7), "{proved}");

    let ended = delete(&place, &Chain::read(&place.open(), &keys[0]).await.unwrap());
    assert!(ended.error().contains(manifest.as_str()), "{}", ended.stderr);
    assert!(place.content().await == left);
}

/// Of four generations an archive keeps the two newest, and the first one is locked.
pub async fn are_left_by_an_archive_that_records_on(server: &VersityGw) {
    let Some(binaries) = newest() else { return };
    server.owner().create_bucket(BUCKET);
    let (place, etcd) = (server.in_bucket(BUCKET, PREFIX), Etcd::start(&binaries));
    let store = place.arguments();
    let rules = ["--flush-every", "200ms", "--keep", "2"];
    let mut archive = Archive::into(&etcd, &store.iter().map(String::as_str).chain(rules).collect::<Vec<_>>());
    let first = archive.says("of a generation", |report| report.generation.is_some()).await.generation.unwrap();
    lock(server, &Key::new(format!("blue/{first}/full")));
    let mut names = vec![first];
    for round in 0..3 {
        // Users and roles are in no watch, so a full snapshot follows.
        etcd.connect().await.role_add(format!("role-{round}")).await.unwrap();
        let other = |report: &Report| report.generation.as_ref().is_some_and(|name| Some(name) != names.last());
        let report = archive.says("of a new generation", other).await;
        names.push(report.generation.unwrap());
    }
    let names: Vec<_> = names.iter().map(|name| name.rsplit_once('/').unwrap().1).collect();
    let begun = Instant::now();
    // The second one is tried after the first. Of one second they are listed in any order.
    let mut left = [names[0], names[2], names[3]];
    left.sort_unstable();
    while whole(&place) != left {
        assert!(begun.elapsed() < PATIENCE, "{:?} of {names:?} are left", whole(&place));
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let last = put(&etcd).await;
    let report = archive.says("all of it", |report| reached(report, last)).await;
    assert_eq!((report.role, report.fault), (Role::Committer, None));
    assert!(report.generation.is_some_and(|name| name.ends_with(names[3])), "it has begun anew");
    archive.kill();
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["--lineage", "blue", "--scratch", scratch.path().to_str().unwrap(), "--generation", names[0]];
    place.run("verify", &arguments).json();
}

pub async fn that_are_kept_as_versions_are_shown_no_more(server: &VersityGw) {
    let (place, keys) = filled(server).await;
    let manifest = keys[0].full();
    lock(server, &manifest);
    let content = place.content().await;
    let bytes = &content[manifest.as_str()];
    assert!(!is_kept(server.versions(), bytes), "it is a deletion that makes it an older version");

    let pruned = place.run("prune", &RULES).json();
    assert_eq!((texts(&pruned["failed"]), pruned["objects"].as_u64()), (Vec::new(), Some(6)), "{pruned}");
    assert_eq!(whole(&place), [&keys[3], &keys[4]].map(|key| key.name.as_str()));
    let mut left = content.clone();
    left.retain(|name, _| !keys[..3].iter().any(|key| name.starts_with(&format!("{}/", key.folder()))));
    assert!(place.content().await == left);
    assert!(is_kept(server.versions(), bytes), "the lock has kept nothing");
}

/// Whether some file below this folder has these bytes.
fn is_kept(folder: &Path, bytes: &[u8]) -> bool {
    files(folder).iter().any(|path| fs::read(path).unwrap() == bytes)
}
