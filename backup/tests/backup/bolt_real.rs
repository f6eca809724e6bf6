//! Databases that were extended offline, held against etcd's own tools and etcd itself.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use etcd_client::{DeleteOptions, GetOptions, PutOptions, Txn, TxnOp};
use prost::Message;
use quorate_backup::bolt::mvcc::{BucketKey, KeyValue, LEASE, Lease};
use quorate_backup::bolt::{self, Appender};

use crate::agent::run;
use crate::database::{events_after, tail};
use crate::real::{Binaries, Etcd, bbolt_check, each_version};
use crate::snapshot_real::{stored_database, write_some};

/// The database of a snapshot, without etcd's hash, in a folder that goes with it.
fn saved(etcd: &Etcd, store: &Path) -> (tempfile::TempDir, PathBuf) {
    let address = format!("file://{}", store.display());
    let taken =
        run(&["snapshot", "--endpoint", &etcd.url(), "--store", &address, "--lineage", "blue", "-o", "json"]).json();
    let (folder, database) = stored_database(store, taken["manifest"].as_str().unwrap());
    let file = OpenOptions::new().write(true).open(&database).unwrap();
    file.set_len(taken["databaseBytes"].as_u64().unwrap()).unwrap();
    (folder, database)
}

async fn extend(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    write_some(&mut client).await;
    let (_early_folder, early) = saved(&etcd, store.path());

    // One with every kind of event, and enough of them that the tree grows a level.
    let lease = client.lease_grant(7000, None).await.unwrap().id();
    client.put("leased", "x", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    client.put("large", vec![5; 3 << 20], None).await.unwrap();
    for round in 0..20 {
        let puts: Vec<_> =
            (0..1000).map(|number| TxnOp::put(format!("more/{number}"), format!("{round}"), None)).collect();
        client.txn(Txn::new().and_then(puts)).await.unwrap();
    }
    client.delete("more/1", Some(DeleteOptions::new().with_prefix())).await.unwrap();
    client.delete("leased", None).await.unwrap();
    client.put("leased", "y", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    let wanted = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap();
    let (_late_folder, late) = saved(&etcd, store.path());

    let until = tail(&late).revision;
    let events = events_after(&late, tail(&early).revision);
    assert!(events.len() > 20_000);
    let file = bolt::open(&early).unwrap();
    let mut appender = Appender::new(&file).unwrap();
    for (key, value) in &events {
        let message = KeyValue::decode(&value[..]).unwrap();
        assert_eq!(message.encode_to_vec(), *value, "what we encode is what etcd encodes");
        appender.push(*key, value).unwrap();
    }
    let entry = Lease { id: lease, ttl: 7000, remaining_ttl: 0 }.encode_to_vec();
    appender.change(LEASE, &BTreeMap::from([(lease.to_be_bytes().to_vec(), Some(entry))])).unwrap();
    appender.commit().unwrap();

    bbolt_check(&early);
    assert_eq!(tail(&early), tail(&late));
    assert_eq!(Binaries::hash(&early, until), Binaries::hash(&late, until));
    let [ours, theirs] = [&early, &late].map(|database| binaries.status(database));
    assert_eq!((&ours["revision"], &ours["totalKey"]), (&theirs["revision"], &theirs["totalKey"]));
    drop(etcd);
    serves(binaries, &early, &wanted, lease).await;
}

/// etcd runs on it, shows what the original showed, and goes on.
async fn serves(binaries: &Binaries, database: &Path, wanted: &etcd_client::GetResponse, lease: i64) {
    let data = tempfile::tempdir().unwrap();
    let target = data.path().join("data");
    binaries.run(
        "etcdutl",
        &[
            "snapshot",
            "restore",
            database.to_str().unwrap(),
            "--skip-hash-check",
            "--data-dir",
            target.to_str().unwrap(),
        ],
    );
    let etcd = Etcd::on(binaries, data);
    let mut client = etcd.connect().await;
    let all = GetOptions::new().with_all_keys();
    let got = client.get("", Some(all)).await.unwrap();
    assert_eq!(got.0.kvs, wanted.0.kvs);
    let left = client.lease_time_to_live(lease, None).await.unwrap();
    assert_eq!(left.granted_ttl(), 7000);
    let kept = Some(PutOptions::new().with_ignore_lease());
    client.put("leased", "z", kept).await.unwrap();
    client.delete("", Some(DeleteOptions::new().with_all_keys())).await.unwrap();
    client.put("again", "x", None).await.unwrap();
}

#[test]
fn etcd_and_its_tools_accept_what_was_extended_offline() {
    each_version(extend);
}

#[test]
fn a_large_database_is_sound_to_bbolt() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/databases/small-3.6.16.db"), &database)
        .unwrap();
    let mut next = 8;
    // Trees of up to four levels, extended at each height.
    for count in [0, 1, 5, 300, 20_000, 1, 200_000, 3] {
        let file = bolt::open(&database).unwrap();
        let mut appender = Appender::new(&file).unwrap();
        for main in next..next + count {
            let size = if main % 1000 == 0 { 9000 } else { 40 };
            appender.push(BucketKey { main, sub: 0, tombstone: false }, &vec![9; size]).unwrap();
        }
        appender.commit().unwrap();
        next += count;
        bbolt_check(&database);
        assert_eq!(tail(&database).revision, next - 1);
    }
    assert_eq!(events_after(&database, 7).len() as u64, next - 8);
}
