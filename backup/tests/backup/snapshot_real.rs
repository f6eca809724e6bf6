//! Snapshots of real etcd: what etcd's own tools say of what lies in the store.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmType, Client, CompactionOptions, Txn, TxnOp};
use quorate_backup::bolt::mvcc::CLUSTER;
use quorate_backup::snapshot::{Reason, Report};

use crate::agent::run;
use crate::archive_real::comes_back;
use crate::database::{alarms, keys};
use crate::fake::Served;
use crate::programs::get;
use crate::real::{Binaries, Etcd, each_version, newest};
use crate::restore::{SmallDisk, run_on_small_disk};
use crate::snapshot::small;

/// Writes some history: keys, versions, deletions, a transaction, and a lease.
pub async fn write_some(client: &mut Client) -> i64 {
    for number in 0..50 {
        client.put(format!("key/{number}"), vec![7; 100], None).await.unwrap();
    }
    client.delete("key/3", None).await.unwrap();
    let puts: Vec<_> = (0..300).map(|number| TxnOp::put(format!("txn/{number}"), "x", None)).collect();
    let last = client.txn(Txn::new().and_then(puts)).await.unwrap();
    last.header().unwrap().revision()
}

/// The database in a store, decompressed by zstd's own decoder.
pub fn stored_database(store: &Path, manifest: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let manifest = store.join(manifest);
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let object = manifest.parent().unwrap().join("d").join(json["data"]["name"].as_str().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("snapshot.db");
    fs::write(&database, zstd::decode_all(fs::File::open(object).unwrap()).unwrap()).unwrap();
    (folder, database)
}

async fn take(binaries: &Binaries) {
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let store = tempfile::tempdir().unwrap();
    let address = format!("file://{}", store.path().display());
    let arguments =
        ["snapshot", "--endpoint", &etcd.url(), "--store", &address, "--lineage", "blue", "--output", "json"];

    // A new cluster, whose history has nothing in it yet.
    let taken = run(&arguments).json();
    assert_eq!((taken["revision"].as_i64(), taken["compactRevision"].as_i64()), (Some(1), Some(0)), "{taken}");

    let last = write_some(&mut client).await;
    let taken = run(&arguments).json();
    assert_eq!(taken["revision"].as_i64(), Some(last), "{taken}");
    let version = taken["etcdVersion"].as_str().unwrap();
    assert!(binaries.run("etcd", &["--version"]).contains(version), "{version}");

    // What lies in the store is what etcdctl would have saved: etcdutl takes it with its hash.
    let (folder, database) = stored_database(store.path(), taken["manifest"].as_str().unwrap());
    let status = binaries.status(&database);
    assert_eq!(status["revision"].as_i64(), Some(last), "{status}");
    let restored = folder.path().join("restored");
    binaries
        .run("etcdutl", &["snapshot", "restore", database.to_str().unwrap(), "--data-dir", restored.to_str().unwrap()]);

    // The last event may have been compacted away: the revision stays.
    let gone = client.delete("txn/", Some(etcd_client::DeleteOptions::new().with_prefix())).await.unwrap();
    let gone = gone.header().unwrap().revision();
    client.compact(gone, Some(CompactionOptions::new().with_physical())).await.unwrap();
    let taken = run(&arguments).json();
    assert_eq!((taken["revision"].as_i64(), taken["compactRevision"].as_i64()), (Some(gone), Some(gone)), "{taken}");
}

#[tokio::test]
async fn a_follower_that_does_not_show_that_it_has_all_there_is_is_not_read() {
    let Some(binaries) = newest() else { return };
    let etcd = Etcd::start(&binaries);
    let last = write_some(&mut etcd.connect().await).await;
    // By its status it has as much as the other.
    let lagging = Served::following(small());
    let store = tempfile::tempdir().unwrap();
    let (address, both) = (format!("file://{}", store.path().display()), format!("{},{}", lagging.url, etcd.url()));
    let taken = run(&["snapshot", "--endpoint", &both, "--store", &address, "--lineage", "blue", "-o", "json"]).json();
    assert_eq!((taken["endpoint"].as_str(), taken["revision"].as_i64()), (Some(&*etcd.url()), Some(last)), "{taken}");
    let error =
        run(&["snapshot", "--endpoint", &format!("{0},{0}", lagging.url), "--store", &address, "--lineage", "blue"]);
    assert!(error.error().contains("failed to find a member to read"), "{}", error.stderr);
}

#[test]
fn etcds_own_tools_accept_what_was_stored() {
    each_version(take);
}

/// How long a new etcd may take until it can change versions: it agrees on its own with the others first, each four seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

async fn amid_a_downgrade(binaries: &Binaries) {
    let version = binaries.run("etcd", &["--version"]);
    let lower = match version.lines().next().and_then(|line| line.rsplit_once("3.")?.1.split('.').next()) {
        Some("7") => "3.6",
        Some("6") => "3.5",
        // It has no such call.
        Some("5") => return,
        other => panic!("{other:?} of {version}"),
    };
    let etcd = Etcd::start(binaries);
    let url = etcd.url();
    let begun = Instant::now();
    // Asked before the cluster has a version, etcd's `allowedDowngradeVersion` ends the process: it takes one for granted.
    while get(etcd.client, "/version").is_none_or(|(_, versions)| versions.contains("not_decided")) {
        assert!(begun.elapsed() < PATIENCE, "etcd has no version");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    binaries.run("etcdctl", &["--endpoints", &url, "downgrade", "enable", lower]);
    let store = tempfile::tempdir().unwrap();
    let address = format!("file://{}", store.path().display());
    let of_store = ["--store", &address, "--lineage", "blue", "--output", "json"];
    let taken = run(&[&["snapshot", "--endpoint", &url][..], &of_store].concat()).json();
    let (folder, saved) = stored_database(store.path(), taken["manifest"].as_str().unwrap());
    assert!(keys(&saved, CLUSTER).contains(&"downgrade".to_owned()), "{:?}", keys(&saved, CLUSTER));
    let restored = folder.path().join("restored");
    run(&[&["restore", "--database", restored.to_str().unwrap()][..], &of_store].concat()).json();
    let wanted: Vec<_> = keys(&saved, CLUSTER).into_iter().filter(|key| key != "downgrade").collect();
    assert_eq!(keys(&restored, CLUSTER), wanted);
    binaries.status(&restored);
}

#[test]
fn a_downgrade_that_was_enabled_does_not_come_back() {
    each_version(amid_a_downgrade);
}

/// How many alarms a cluster says that it has.
async fn raised(client: &mut Client) -> usize {
    client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap().alarms().len()
}

async fn without_space(binaries: &Binaries) {
    let mut etcd = Etcd::stopped(binaries, tempfile::tempdir().unwrap());
    // 16 MiB, the least that a cluster may be given.
    etcd.resume_with(&["--quota-backend-bytes=16777216"]);
    let mut client = etcd.connect().await;
    let begun = Instant::now();
    let refusal = loop {
        assert!(begun.elapsed() < PATIENCE, "etcd takes whatever comes");
        if let Err(error) = client.put("large", vec![7; 1 << 20], None).await {
            break error.to_string();
        }
    };
    assert!(refusal.contains("database space exceeded"), "{refusal}");
    while raised(&mut client).await == 0 {
        assert!(begun.elapsed() < PATIENCE, "no alarm is raised");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let store = tempfile::tempdir().unwrap();
    let address = format!("file://{}", store.path().display());
    let of_store = ["--store", &address, "--lineage", "blue", "--output", "json"];
    let taken = run(&[&["snapshot", "--endpoint", &etcd.url()][..], &of_store].concat()).json();
    let (_folder, saved) = stored_database(store.path(), taken["manifest"].as_str().unwrap());
    assert_eq!(alarms(&saved), 1);
    let wanted = client.get("large", None).await.unwrap();
    drop(etcd);

    // With etcd's usual quota, which is larger.
    let (etcd, told) = comes_back(binaries, store.path(), "latest");
    assert_eq!(told["alarms"].as_u64(), Some(1), "{told}");
    let mut client = etcd.connect().await;
    assert_eq!(raised(&mut client).await, 0);
    let got = client.get("large", None).await.unwrap();
    assert_eq!(got.kvs()[0].version(), wanted.kvs()[0].version());
    client.put("large", vec![8; 1 << 20], None).await.unwrap();
}

#[test]
fn a_cluster_that_had_no_space_comes_back_without_its_alarm_and_is_written_to() {
    each_version(without_space);
}

async fn onto_a_full_volume(binaries: &Binaries) {
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let mut random = fastrand::Rng::with_seed(5);
    // Nothing of it can be compressed, and it is stored in more than one part.
    for number in 0..4 {
        let mut value = vec![0; 3 << 20];
        random.fill(&mut value);
        client.put(format!("random/{number}"), value, None).await.unwrap();
    }
    let (store, told) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (url, address, report) = (etcd.url(), format!("file://{}", store.path().display()), told.path().join("report"));
    let arguments = ["snapshot", "--endpoint", &url, "--store", &address, "--lineage", "blue", "--output", "json"];
    let arguments = [&arguments[..], &["--report", report.to_str().unwrap()]].concat();
    let SmallDisk { ended, left, words } = run_on_small_disk(store.path(), 1 << 20, &arguments);
    let remedy = if words == "File too large" { "raise the limit" } else { "make the volume larger" };
    assert!(ended.error().contains(words) && ended.stderr.contains(remedy), "{}", ended.stderr);
    let Report::Failed(failure) = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap() else {
        panic!("{}", ended.stderr)
    };
    assert_eq!(failure.reason, Reason::StoreFull, "{}", failure.message);
    // No data, and no manifest.
    assert!(!left.iter().any(|path| path.contains("/d/") || path.ends_with("/full")), "{left:?}");
    // With room it is taken.
    run(&arguments).json();
}

#[test]
fn a_volume_that_is_full_is_told_in_a_word_and_keeps_nothing_of_the_snapshot() {
    each_version(onto_a_full_volume);
}
