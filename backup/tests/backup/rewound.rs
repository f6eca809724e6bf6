//! One snapshot of real etcd restores every revision that it still has in its history: as etcd itself hashed it, with its leases,
//! and etcd runs on it.

use etcd_client::{Client, CompactionOptions, GetOptions, PutOptions, Txn, TxnOp};
use quorate_backup::restore::UNKNOWN_TTL;

use crate::agent::run;
use crate::archive_real::{comes_back, restore};
use crate::database::leases;
use crate::real::{Binaries, Etcd, bbolt_check, each_version};
use crate::recorded::address;

/// Before this many writes etcd forgets, and after it as many follow.
const WRITES: i64 = 30;
/// For how many seconds a lease is granted that is revoked before the snapshot, and one that is not.
const TTL: i64 = 500;

async fn put(client: &mut Client, key: &str, value: String, lease: Option<i64>) -> i64 {
    let options = lease.map(|lease| PutOptions::new().with_lease(lease));
    client.put(key, value, options).await.unwrap().header().unwrap().revision()
}

/// Puts, deletes and transactions, over and over a few keys. It gives the last revision.
async fn write(client: &mut Client, round: i64) -> i64 {
    let mut last = 0;
    for number in 0..WRITES {
        let key = format!("key/{}", number % 7);
        last = match number % 5 {
            0 => client.delete(key, None).await.unwrap().header().unwrap().revision(),
            1 => {
                let both = [TxnOp::put(key, "both", None), TxnOp::put("other", number.to_string(), None)];
                client.txn(Txn::new().and_then(both)).await.unwrap().header().unwrap().revision()
            }
            _ => put(client, &key, format!("{round}/{number}"), None).await,
        };
    }
    last
}

async fn rewinds(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let forgotten = write(&mut client, 1).await;
    let kept = client.lease_grant(TTL, None).await.unwrap().id();
    let revoked = client.lease_grant(TTL, None).await.unwrap().id();
    put(&mut client, "kept", "x".into(), Some(kept)).await;
    let leased = put(&mut client, "revoked", "x".into(), Some(revoked)).await;
    write(&mut client, 2).await;
    client.lease_revoke(revoked).await.unwrap();
    let last = write(&mut client, 3).await;
    client.compact(forgotten, Some(CompactionOptions::new().with_physical())).await.unwrap();
    let at = address(store.path());
    assert!(run(&["snapshot", "--endpoint", &etcd.url(), "--store", &at, "--lineage", "blue"]).success);

    let folder = tempfile::tempdir().unwrap();
    for revision in [forgotten, leased - 1, leased, leased + 3, last - 1, last] {
        let database = folder.path().join(revision.to_string());
        restore(store.path(), revision, &database);
        bbolt_check(&database);
        binaries.status(&database);
        // Of the revision that it was compacted to etcd tells the hash of before.
        if revision > forgotten {
            let hash = client.hash_kv(revision).await.unwrap();
            assert_eq!(hash.compact_version(), forgotten);
            assert_eq!(Binaries::hash(&database, revision.unsigned_abs()), u64::from(hash.hash()), "{revision}");
        }
        let named = (leased..last).contains(&revision).then_some((revoked, UNKNOWN_TTL));
        let wanted = [Some((kept, TTL)), named].into_iter().flatten().collect();
        assert_eq!(leases(&database), wanted, "{revision}");
    }
    let before = run(&["restore", "--store", &at, "--lineage", "blue", "--to", &(forgotten - 1).to_string()]
        .into_iter()
        .chain(["--database", folder.path().join("before").to_str().unwrap()])
        .collect::<Vec<_>>());
    assert!(before.error().contains(&format!("{forgotten} to {last}")), "{}", before.error());

    // etcd takes it, and knows the lease that had been revoked when the snapshot was taken.
    let was = GetOptions::new().with_all_keys().with_revision(leased);
    let was = client.get("", Some(was)).await.unwrap().0.kvs;
    let (restored, json) = comes_back(binaries, store.path(), &leased.to_string());
    assert!(json["later"].as_i64().unwrap() > WRITES && json["leasesOfUnknownTtl"] == 1, "{json}");
    let mut client = restored.connect().await;
    let now = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap();
    assert!(now.0.kvs == was, "other keys than there were");
    assert!(now.header().unwrap().revision() > last);
    client.put("revoked", "y", Some(PutOptions::new().with_ignore_lease())).await.unwrap();
    client.lease_revoke(revoked).await.unwrap();
    assert_eq!(client.get("revoked", None).await.unwrap().count(), 0);
    put(&mut client, "on", "x".into(), None).await;
}

#[test]
fn every_revision_that_a_snapshot_has_not_forgotten_comes_out_of_it() {
    each_version(rewinds);
}
