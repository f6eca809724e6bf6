//! Leases that end while an archive records beside real etcd: what is restored to a moment before has them, and they end there
//! as well.

use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{Client, PutOptions};
use prost::Message;
use quorate_backup::bolt::mvcc::{BucketKey, KeyValue};
use quorate_backup::restore::UNKNOWN_TTL;
use tokio::time::{MissedTickBehavior, interval};

use crate::archive_real::{Archive, chains, comes_back, recorded, restore};
use crate::database::{events_after, leases};
use crate::real::{Binaries, Etcd, each_version};

const KEY: &str = "brief";
/// For how long the lease is granted that runs out, in seconds. It is kept alive for a while, on machines that may be busy.
const BRIEF: i64 = 5;
const KEEP_ALIVE_EVERY: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

async fn keep_alive(mut client: Client, lease: i64) {
    let (mut keeper, mut answers) = Box::pin(client.lease_keep_alive(lease)).await.unwrap();
    let mut ticks = interval(KEEP_ALIVE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        keeper.keep_alive().await.unwrap();
        answers.message().await.unwrap();
    }
}

/// Puts a value, and tells the revision.
async fn put(client: &mut Client, key: &str, options: Option<PutOptions>) -> i64 {
    client.put(key, "x", options).await.unwrap().header().unwrap().revision()
}

/// Writes something else until the key is gone.
async fn write_until_it_is_gone(client: &mut Client) {
    let begun = Instant::now();
    while client.get(KEY, None).await.unwrap().count() > 0 {
        assert!(begun.elapsed() < PATIENCE, "the lease does not run out");
        put(client, "on", None).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The last event of the key in a database.
fn last_event(database: &Path) -> (BucketKey, KeyValue) {
    let events = events_after(database, 0).into_iter();
    let mut read = events.map(|(key, value)| (key, KeyValue::decode(&value[..]).unwrap()));
    read.rfind(|(_, kv)| kv.key == KEY.as_bytes()).unwrap()
}

async fn runs_out(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let lease = client.lease_grant(BRIEF, None).await.unwrap().id();
    let kept = tokio::spawn(keep_alive(client.clone(), lease));
    let first = put(&mut client, KEY, Some(PutOptions::new().with_lease(lease))).await;
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, first).await;
    kept.abort();
    write_until_it_is_gone(&mut client).await;
    let last = put(&mut client, "on", None).await;
    let chain = recorded(store.path(), 1, last).await;
    archive.stop();
    assert_eq!(chains(store.path()).await.len(), 1);

    // When it ran out only the history tells.
    let folder = tempfile::tempdir().unwrap();
    let path = |revision: i64| folder.path().join(revision.to_string());
    restore(store.path(), last, &path(last));
    let (end, _) = last_event(&path(last));
    assert!(end.tombstone, "{end}");
    let end = i64::try_from(end.main).unwrap();
    assert!(chain.full.revision.to_etcd() < end - 1, "it ran out before the full snapshot was taken");
    for (revision, there) in [(end - 1, true), (end, false)] {
        let database = path(revision);
        restore(store.path(), revision, &database);
        let hash = client.hash_kv(revision).await.unwrap().hash();
        assert_eq!(Binaries::hash(&database, revision.unsigned_abs()), u64::from(hash), "revision {revision}");
        let (event, kv) = last_event(&database);
        assert_eq!((event.tombstone, kv.lease), if there { (false, lease) } else { (true, 0) }, "revision {revision}");
        if there {
            assert_eq!(leases(&database).get(&lease), Some(&BRIEF));
        }
    }
    drop(etcd);
    // There it runs out like any other; one that etcd does not know never would.
    let (etcd, _) = comes_back(binaries, store.path(), &(end - 1).to_string());
    write_until_it_is_gone(&mut etcd.connect().await).await;
    let (etcd, _) = comes_back(binaries, store.path(), &end.to_string());
    assert_eq!(etcd.connect().await.get(KEY, None).await.unwrap().count(), 0);
}

#[test]
fn a_lease_that_runs_out_while_it_is_recorded_is_there_before_and_gone_after() {
    each_version(runs_out);
}

/// A lease is granted, used and revoked before the archive can ask for it, which is away meanwhile: beside one that is there it
/// would depend on who is faster.
async fn ends_unseen(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let archive = Archive::start(&etcd, store.path());
    let first = put(&mut client, "before", None).await;
    recorded(store.path(), 1, first).await;
    archive.kill();
    let lease = client.lease_grant(600, None).await.unwrap().id();
    let used = put(&mut client, KEY, Some(PutOptions::new().with_lease(lease))).await;
    client.lease_revoke(lease).await.unwrap();
    let last = put(&mut client, "after", None).await;
    let archive = Archive::start(&etcd, store.path());
    let chain = recorded(store.path(), 1, last).await;
    archive.stop();
    drop(etcd);
    let deltas = || chain.links.iter().map(|link| &link.delta);
    assert!(
        deltas().any(|delta| (delta.from.to_etcd()..delta.to.to_etcd()).contains(&used)),
        "both are not in one flush"
    );
    assert!(deltas().all(|delta| delta.leases.iter().all(|grant| grant.id != lease)), "somebody has learned of it");

    let (mut etcd, told) = comes_back(binaries, store.path(), &used.to_string());
    assert_eq!(told["leasesOfUnknownTtl"].as_u64(), Some(1), "{told}");
    let mut client = etcd.connect().await;
    assert_eq!(client.lease_time_to_live(lease, None).await.unwrap().granted_ttl(), UNKNOWN_TTL);
    for value in ["y", "z"] {
        client.put(KEY, value, Some(PutOptions::new().with_ignore_lease())).await.unwrap();
        // What makes it panic once does so at each start, when the log is read again.
        etcd.kill();
        etcd.resume();
        client = etcd.connect().await;
        let got = client.get(KEY, None).await.unwrap();
        assert_eq!((got.kvs()[0].value(), got.kvs()[0].lease()), (value.as_bytes(), lease));
    }
}

#[test]
fn a_lease_that_nobody_could_learn_of_gets_a_time_and_its_key_can_be_written() {
    each_version(ends_unseen);
}
