//! Restores of real etcd that come near its quota: most of what they hold is history, and etcd takes writes all the same.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmType, Client};
use quorate_backup::launch::Reason;

use crate::agent::command;
use crate::archive_real::{Archive, recorded};
use crate::real::{Binaries, Etcd, each_version};
use crate::recorded::address;
use crate::seed::Seed;

/// 16 MiB, the least that a cluster may be given.
const QUOTA: u64 = 16 << 20;
/// Above this part of it only live revisions should be restored, or what is restored has to be as good: design, section 7.
const MUCH: u64 = QUOTA / 100 * 60;
/// Small, since bbolt has up to three of them in one page, which it writes anew with each.
const VALUE: usize = 64 << 10;
/// So many values, 11 MiB, are above that part, and below the quota.
const VALUES: u8 = 176;
/// With so many more, 6 MiB, the database would be above the quota, if none of what was overwritten gave up its place.
const MORE: u8 = 96;
const KEY: &str = "large";
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A restore onto a volume, for an etcd with this quota.
fn seed(binaries: &Binaries, store: &Path, (volume, version): (&Path, &str), quota: u64) -> Seed {
    let arguments = [
        "seed".to_owned(),
        format!("--store={}", address(store)),
        "--lineage=blue".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        format!("--volume={}", volume.display()),
        // Nobody brings one.
        format!("--ticket={}", volume.join("ticket").display()),
        "--member=default".to_owned(),
        "--volume-uid=v-1".to_owned(),
        "--peer-url=http://localhost:2380".to_owned(),
        "--token=near-its-quota".to_owned(),
        format!("--etcdutl={}", binaries.tool("etcdutl").display()),
        format!("--etcd-version={version}"),
        format!("--quota={quota}"),
    ];
    Seed::of(command(&arguments.each_ref().map(String::as_str)))
}

/// Waits until what etcd uses of its database is less than a quarter of the quota. It has forgotten the history then.
async fn forgets(client: &mut Client) {
    let begun = Instant::now();
    loop {
        // What a transaction frees is counted when a later one is done.
        client.put("on", "x", None).await.unwrap();
        let used = client.status().await.unwrap().raft_used_db_size();
        if used.unsigned_abs() < QUOTA / 4 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{used} bytes are in use");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn near_the_quota(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    let mut client = etcd.connect().await;
    let mut last = 0;
    for byte in 0..VALUES {
        last = client.put(KEY, vec![byte; VALUE], None).await.unwrap().header().unwrap().revision();
    }
    let chain = recorded(store.path(), 1, last).await;
    archive.stop();
    drop(etcd);
    let deltas: u64 = chain.links.iter().map(|link| link.delta.data.plain_bytes).sum();
    assert!(deltas > MUCH, "only {deltas} bytes are in deltas");

    // Where it would be above the quota that is known, and nothing is fetched.
    let volume = tempfile::tempdir().unwrap();
    let place = (volume.path(), chain.full.etcd_version.as_str());
    let refused = seed(binaries, store.path(), place, MUCH);
    let told = refused.says(Reason::AboveQuota);
    assert!(told.message.contains("make spec.etcd.quota larger"), "{told:?}");
    refused.killed();
    let database = volume.path().join("data/member/snap/db");
    assert!(!database.exists());

    seed(binaries, store.path(), place, QUOTA).ends();
    let bytes = fs::metadata(&database).unwrap().len();
    assert!(bytes > MUCH, "only {bytes} bytes are restored");
    let (mut etcd, flag) = (Etcd::stopped(binaries, volume), format!("--quota-backend-bytes={QUOTA}"));
    etcd.resume_with(&[flag.as_str()]);
    let mut client = etcd.connect().await;
    let got = client.get(KEY, None).await.unwrap();
    let value = got.kvs()[0].value();
    assert!(value.len() == VALUE && value.iter().all(|byte| *byte == VALUES - 1), "it is another value");
    forgets(&mut client).await;
    for byte in 0..MORE {
        client.put(KEY, vec![byte; VALUE], None).await.unwrap();
    }
    assert_eq!(client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap().alarms().len(), 0);
}

#[test]
fn what_comes_back_above_sixty_percent_of_the_quota_is_written_to_without_an_alarm() {
    each_version(near_the_quota);
}
