//! Leases that end while an archive records beside real etcd: what is restored to a moment before has them, and they end there
//! as well.

use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{Client, LeaseGrantOptions, PutOptions};
use prost::Message;
use quorate_backup::bolt::mvcc::{BucketKey, KeyValue};
use quorate_backup::format::LeaseGrant;
use quorate_backup::restore::UNKNOWN_TTL;
use tokio::time::{MissedTickBehavior, interval};

use crate::archive_real::{Archive, chains, comes_back, recorded, restore};
use crate::archive_roles::{self, reached};
use crate::database::{events_after, leases};
use crate::programs::get;
use crate::real::{Binaries, Etcd, each_version};
use crate::recorded::address;

const KEY: &str = "brief";
/// For how long the lease is granted that runs out, in seconds. It is kept alive for a while, on machines that may be busy.
const BRIEF: i64 = 5;
const KEEP_ALIVE_EVERY: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
/// Long before an archive stores that does so twice a minute.
const SOON: Duration = Duration::from_secs(10);
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

/// How many questions for a lease etcd has answered.
fn leases_told(etcd: &Etcd) -> u64 {
    let (_, metrics) = get(etcd.client, "/metrics").unwrap();
    let is_it = |line: &&str| {
        line.starts_with("grpc_server_handled_total{")
            && line.contains("grpc_code=\"OK\"")
            && line.contains("grpc_method=\"LeaseTimeToLive\"")
    };
    metrics.lines().find(is_it).map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

/// A lease is revoked as soon as the archive was told of it, long before it stores anything; and once more, when the same id was
/// granted for another time.
async fn is_learned_at_first_sight(binaries: &Binaries) {
    const ID: i64 = 4711;
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let mut archive = archive_roles::Archive::into(&etcd, &["--store", &address(store.path()), "--flush-every", "30s"]);
    archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    let mut rounds = Vec::new();
    for ttl in [700, 900] {
        let told = leases_told(&etcd);
        let lease = client.lease_grant(ttl, Some(LeaseGrantOptions::new().with_id(ID))).await.unwrap().id();
        let used = put(&mut client, KEY, Some(PutOptions::new().with_lease(lease))).await;
        let begun = Instant::now();
        while leases_told(&etcd) == told {
            assert!(begun.elapsed() < SOON, "nobody asks for the lease");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        client.lease_revoke(lease).await.unwrap();
        let last = put(&mut client, "after", None).await;
        archive.says("all of it", |report| reached(report, last)).await;
        rounds.push((used, ttl));
    }
    archive.kill();
    drop(etcd);
    let all = chains(store.path()).await;
    let [chain] = &all[..] else { panic!("{} generations", all.len()) };
    for (used, ttl) in rounds {
        let delta = chain.links.iter().map(|link| &link.delta).find(|delta| delta.to.to_etcd() >= used).unwrap();
        assert!(delta.from.to_etcd() <= used && delta.to.to_etcd() > used + 1, "it was stored before it was revoked");
        assert_eq!(delta.leases, [LeaseGrant { id: ID, ttl }]);
        let (etcd, told) = comes_back(binaries, store.path(), &used.to_string());
        assert_eq!(told["leasesOfUnknownTtl"].as_u64(), Some(0), "{told}");
        let lease = etcd.connect().await.lease_time_to_live(ID, None).await.unwrap();
        assert_eq!(lease.granted_ttl(), ttl);
    }
}

#[test]
fn a_lease_that_ends_before_anything_is_stored_is_asked_for_at_its_first_sight() {
    each_version(is_learned_at_first_sight);
}

/// How long a lease has still to live, in seconds.
async fn left(client: &mut Client, lease: i64) -> i64 {
    client.lease_time_to_live(lease, None).await.unwrap().ttl()
}

async fn begins_anew(binaries: &Binaries) {
    const TTL: i64 = 600;
    /// So much is left of it when it is recorded, at most, and when the restored etcd has just begun to serve, at least.
    const RUN_DOWN: i64 = 590;
    const FRESH: i64 = 592;
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    // One is in the full snapshot, and of the other only a delta tells.
    let early = client.lease_grant(TTL, None).await.unwrap().id();
    put(&mut client, "early", Some(PutOptions::new().with_lease(early))).await;
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    let late = client.lease_grant(TTL, None).await.unwrap().id();
    put(&mut client, "late", Some(PutOptions::new().with_lease(late))).await;
    let begun = Instant::now();
    while left(&mut client, late).await >= RUN_DOWN {
        assert!(begun.elapsed() < PATIENCE, "the leases do not run down");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let last = put(&mut client, "after", None).await;
    recorded(store.path(), 1, last).await;
    archive.stop();
    drop(etcd);
    let (etcd, _) = comes_back(binaries, store.path(), &last.to_string());
    let mut client = etcd.connect().await;
    for lease in [early, late] {
        let left = left(&mut client, lease).await;
        assert!((FRESH..=TTL).contains(&left), "{left} s are left of {TTL}");
    }
}

#[test]
fn leases_that_have_run_down_begin_anew_where_they_are_restored() {
    each_version(begins_anew);
}
