//! The archive beside real etcd: what it recorded restores to every moment, whatever happened to it and to etcd meanwhile.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp};
use quorate_backup::format::{Chain, generations};
use serde_json::Value;

use crate::agent::{command, run};
use crate::database::leases;
use crate::real::{Binaries, Etcd, bbolt_check, each_version};
use crate::recorded::{address, open};

/// How long the archive may take to record what was written: it is told to store five times a second.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Where a member has its database, in the folder that its process is started on.
const DATABASE: &str = "data/member/snap/db";

/// The archive as a process.
pub struct Archive(Child);

impl Archive {
    pub fn start(etcd: &Etcd, store: &Path) -> Self {
        Self::into(etcd, &["--store", &address(store)])
    }

    /// Into the store that these arguments are about.
    pub fn into(etcd: &Etcd, store: &[&str]) -> Self {
        let endpoint = etcd.url();
        let arguments = ["archive", "--endpoint", &endpoint, "--lineage", "blue", "--flush-every", "200ms"];
        let child =
            command(&[&arguments[..], store].concat()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self(child)
    }

    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Tells it to end, and waits until it has.
    pub fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        // Of one that has ended this is an error that says so.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All generations that can be read, the oldest first.
pub async fn chains(store: &Path) -> Vec<Chain> {
    let store = open(store);
    let mut chains = Vec::new();
    for key in generations(&store, &"blue".parse().unwrap()).await.unwrap() {
        match Chain::read(&store, &key).await {
            Ok(chain) => chains.push(chain),
            Err(quorate_backup::format::ChainError::NoFull(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    chains.sort_by_key(|chain| chain.full.taken);
    chains
}

/// The newest generation, once there are so many and it has got so far.
pub async fn recorded(store: &Path, generations: usize, revision: i64) -> Chain {
    let begun = Instant::now();
    loop {
        let mut found = chains(store).await;
        if found.len() >= generations
            && let Some(newest) = found.pop()
            && newest.head().to_etcd() >= revision
        {
            return newest;
        }
        assert!(begun.elapsed() < PATIENCE, "{generations} generations up to revision {revision} are not recorded");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A moment of the history: a revision, and etcd's own hash of all up to it.
pub struct Moment {
    pub revision: i64,
    pub hash: u32,
}

/// Writes with every kind of event: puts, transactions, deletions, leases used and revoked at once, large values.
pub async fn write(client: &mut Client, round: usize, rng: &mut fastrand::Rng) -> Moment {
    for _ in 0..40 {
        let key = format!("key/{}", rng.u8(..30));
        match rng.u8(..5) {
            0 => drop(client.delete(key, None).await.unwrap()),
            1 => {
                let ops = (0..rng.usize(1..20)).map(|number| TxnOp::put(format!("txn/{number}"), "x", None));
                client.txn(Txn::new().and_then(ops.collect::<Vec<_>>())).await.unwrap();
            }
            _ => drop(client.put(key, vec![rng.u8(..); rng.usize(..300)], None).await.unwrap()),
        }
    }
    if round == 0 {
        client.put("large", vec![5; 3 << 20], None).await.unwrap();
    }
    let lease = client.lease_grant(5000, None).await.unwrap().id();
    client.put("kept", "x", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    let lease = client.lease_grant(6000, None).await.unwrap().id();
    client.put(format!("brief/{round}"), "x", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    let revision = client.put("last", "x", None).await.unwrap().header().unwrap().revision();
    let hash = client.hash_kv(revision).await.unwrap().hash();
    client.lease_revoke(lease).await.unwrap();
    Moment { revision, hash }
}

/// Restores a database file.
pub fn restore(store: &Path, revision: i64, database: &Path) {
    let (store, revision) = (address(store), revision.to_string());
    let database = database.to_str().unwrap();
    run(&["restore", "--store", &store, "--lineage", "blue", "--to", &revision, "--database", database, "-o", "json"])
        .json();
}

async fn survives_kills(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(binaries);
    let mut archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut moments = Vec::new();
    for round in 0..5 {
        match round {
            // Killed at any moment, also in the middle of storing.
            2 => {
                archive.kill();
                archive = Archive::start(&etcd, store.path());
            }
            // etcd itself is killed, and comes back.
            4 => {
                etcd.kill();
                etcd.resume();
            }
            _ => {}
        }
        // Two at once: each range is recorded by one of them.
        let second = (round == 3).then(|| Archive::start(&etcd, store.path()));
        let mut client = etcd.connect().await;
        let moment = write(&mut client, round, &mut rng).await;
        recorded(store.path(), 1, moment.revision).await;
        moments.push(moment);
        drop(second);
    }
    archive.stop();
    let all = chains(store.path()).await;
    assert_eq!(all.len(), 1, "nothing called for a second full snapshot");

    let folder = tempfile::tempdir().unwrap();
    for Moment { revision, hash } in &moments {
        let database = folder.path().join(revision.to_string());
        restore(store.path(), *revision, &database);
        assert_eq!(Binaries::hash(&database, revision.unsigned_abs()), u64::from(*hash), "revision {revision}");
        // The brief lease was there at that moment, and etcd panics on a key whose lease it doesn't know.
        assert!(leases(&database).values().any(|ttl| *ttl == 6000 || *ttl == quorate_backup::restore::UNKNOWN_TTL));
    }
    let mut client = etcd.connect().await;
    let wanted = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap();
    drop(etcd);
    serves(binaries, store.path(), &moments, wanted.0.kvs.len()).await;
}

/// etcd on what is restored to this, and what the agent says of that.
pub fn comes_back(binaries: &Binaries, store: &Path, to: &str) -> (Etcd, Value) {
    comes_back_from(binaries, store, &["--to", to])
}

/// The same, from what these arguments name.
pub fn comes_back_from(binaries: &Binaries, store: &Path, which: &[&str]) -> (Etcd, Value) {
    let data = tempfile::tempdir().unwrap();
    let (store, target, tool) = (address(store), data.path().join("data"), binaries.tool("etcdutl"));
    let (target, tool) = (target.to_str().unwrap(), tool.to_str().unwrap());
    let arguments = ["restore", "--store", &store, "--lineage", "blue", "--etcdutl", tool];
    let json = run(&[&arguments[..], which, &["--data-dir", target, "-o", "json"]].concat()).json();
    accepted(binaries, data.path());
    (Etcd::on(binaries, data), json)
}

/// What etcdutl says of a member's database, which it and bbolt's own tool find sound.
fn accepted(binaries: &Binaries, folder: &Path) -> Value {
    let database = folder.join(DATABASE);
    bbolt_check(&database);
    binaries.status(&database)
}

/// etcd runs on what was restored, ahead of every revision that there was.
async fn serves(binaries: &Binaries, store: &Path, moments: &[Moment], keys: usize) {
    let middle = &moments[moments.len() / 2];
    let last = moments.last().unwrap();
    for to in [middle.revision.to_string(), "latest".to_owned()] {
        let (etcd, _) = comes_back(binaries, store, &to);
        let mut client = etcd.connect().await;
        let got = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap();
        assert!(got.header().unwrap().revision() > last.revision + 1_000_000);
        if to == "latest" {
            assert_eq!(got.kvs().len(), keys);
        }
        // Each key with a lease can be written without naming it: etcd knows them all.
        for kv in got.kvs().iter().filter(|kv| kv.lease() != 0) {
            let keep = PutOptions::new().with_ignore_lease();
            client.put(kv.key(), "y", Some(keep)).await.unwrap();
        }
        client.put("on", "x", None).await.unwrap();
    }
}

#[test]
fn every_moment_restores_whoever_was_killed_meanwhile() {
    each_version(survives_kills);
}

/// Nothing is written after its full snapshot, and so nothing more will come.
async fn ends_soon(binaries: &Binaries) {
    /// Far less than it waits for what was written.
    const SOON: Duration = Duration::from_secs(5);
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    let begun = Instant::now();
    archive.stop();
    assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
}

#[test]
fn one_that_has_heard_nothing_since_its_full_snapshot_ends_soon() {
    each_version(ends_soon);
}

/// What etcdutl leaves at the revision to which it bumps is shown by no watch.
async fn goes_on_in_a_restored_cluster(binaries: &Binaries) {
    let (before, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let etcd = Etcd::start(binaries);
    etcd.connect().await.put("key", "x", None).await.unwrap();
    let at = address(before.path());
    assert!(run(&["snapshot", "--endpoint", &etcd.url(), "--store", &at, "--lineage", "blue"]).success);
    drop(etcd);
    let (etcd, _) = comes_back(binaries, before.path(), "latest");
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    archive.kill();
    let archive = Archive::start(&etcd, store.path());
    let put = etcd.connect().await.put("key", "y", None).await.unwrap();
    recorded(store.path(), 1, put.header().unwrap().revision()).await;
    archive.stop();
    assert_eq!(chains(store.path()).await.len(), 1, "nothing called for a second full snapshot");
}

#[test]
fn the_first_write_of_a_restored_cluster_is_recorded_behind_the_full_snapshot_before_it() {
    each_version(goes_on_in_a_restored_cluster);
}

/// A deletion of many keys is one revision, however large its events are.
async fn records_a_large_revision(binaries: &Binaries) {
    /// With keys of a kilobyte these are more bytes in one revision than the archive holds of closed ones.
    const KEYS: usize = 12_000;
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    let mut client = etcd.connect().await;
    let keys: Vec<_> = (0..KEYS).map(|number| format!("many/{number:0>1000}")).collect();
    for some in keys.chunks(120) {
        let puts: Vec<_> = some.iter().map(|key| TxnOp::put(key.as_str(), "x", None)).collect();
        client.txn(Txn::new().and_then(puts)).await.unwrap();
    }
    let all = Some(DeleteOptions::new().with_prefix());
    assert_eq!(usize::try_from(client.delete("many/", all).await.unwrap().deleted()), Ok(KEYS));
    let revision = client.put("last", "x", None).await.unwrap().header().unwrap().revision();
    let hash = client.hash_kv(revision).await.unwrap().hash();
    let chain = recorded(store.path(), 1, revision).await;
    assert!(chain.full.revision.to_etcd() < revision, "it is in another full snapshot");
    archive.stop();
    assert_eq!(chains(store.path()).await.len(), 1);
    let database = store.path().join("restored");
    restore(store.path(), revision, &database);
    assert_eq!(Binaries::hash(&database, revision.unsigned_abs()), u64::from(hash));
}

#[test]
fn a_revision_of_many_megabytes_does_not_stop_the_record() {
    each_version(records_a_large_revision);
}

/// A member's folder that etcdutl makes of an outline for the agent, and one that it makes of the whole database by itself.
async fn is_what_etcdutl_makes(binaries: &Binaries) {
    /// How far both move the revision on.
    const BUMP: i64 = 1_000_000;
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    let moment = write(&mut etcd.connect().await, 0, &mut fastrand::Rng::with_seed(3)).await;
    recorded(store.path(), 1, moment.revision).await;
    archive.stop();
    drop(etcd);

    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [ours, theirs] = folders.each_ref().map(|folder| folder.path().join("data").to_str().unwrap().to_owned());
    let (from, tool, to) = (address(store.path()), binaries.tool("etcdutl"), moment.revision.to_string());
    let (bump, tool) = (BUMP.to_string(), tool.to_str().unwrap());
    let arguments = ["restore", "--store", &from, "--lineage", "blue", "--to", &to, "--etcdutl", tool, "-o", "json"];
    run(&[&arguments[..], &["--data-dir", &ours, "--bump-revision", &bump]].concat()).json();
    let database = folders[1].path().join("db");
    restore(store.path(), moment.revision, &database);
    let arguments = ["snapshot", "restore", database.to_str().unwrap(), "--skip-hash-check", "--mark-compacted"];
    binaries.run("etcdutl", &[&arguments[..], &["--data-dir", &theirs, "--bump-revision", &bump]].concat());

    let mut seen = Vec::new();
    for folder in folders {
        let mut status = accepted(binaries, folder.path());
        // With its hash of all buckets; how many pages they take is nobody's matter.
        status["totalSize"] = Value::Null;
        let etcd = Etcd::on(binaries, folder);
        let mut client = etcd.connect().await;
        let history = client.hash_kv(0).await.unwrap();
        let keys = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap().0.kvs;
        seen.push(((status, history.hash(), history.compact_version()), keys));
    }
    let last = moment.revision + BUMP;
    assert_eq!((seen[0].0.0["revision"].as_i64(), seen[0].0.2), (Some(last), last));
    assert_eq!(seen[0].0, seen[1].0);
    assert!(!seen[0].1.is_empty() && seen[0].1 == seen[1].1);
}

#[test]
fn what_is_restored_equals_what_etcdutl_restores_of_the_same_database() {
    each_version(is_what_etcdutl_makes);
}
