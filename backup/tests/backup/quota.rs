//! Restores of real etcd that would come near its quota: they come back without their history, as etcd's own compaction would
//! have left them, and etcd takes writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use etcd_client::{AlarmAction, AlarmType, Client, GetOptions};
use quorate_backup::launch::Reason;
use tempfile::TempDir;

use crate::agent::command;
use crate::archive_real::{Archive, recorded};
use crate::real::{Binaries, Etcd, bbolt_check, each_version};
use crate::recorded::address;
use crate::seed::Seed;

/// 16 MiB, the least that a cluster may be given.
const QUOTA: u64 = 16 << 20;
/// Above this part of it only what is live is restored.
const MUCH: u64 = QUOTA / 100 * 60;
/// Small, since bbolt has up to three of them in one page, which it writes anew with each.
const VALUE: usize = 64 << 10;
/// So many values, 11 MiB, are above that part.
const VALUES: u8 = 176;
/// So many more, 6 MiB, have room only where what was overwritten before takes none.
const MORE: u8 = 96;
/// How far each restore moves the revision on, so that they can be compared.
const BUMP: i64 = 1_000_000_000;
const KEY: &str = "large";
const GONE: &str = "gone";

/// A backup of one key that was written again and again, and of one that was deleted.
pub struct Recorded<'b> {
    binaries: &'b Binaries,
    store: TempDir,
    /// The version of the etcd that was backed up.
    version: String,
    last: i64,
}

impl<'b> Recorded<'b> {
    pub async fn new(binaries: &'b Binaries) -> Self {
        let store = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(binaries);
        let archive = Archive::start(&etcd, store.path());
        recorded(store.path(), 1, 1).await;
        let mut client = etcd.connect().await;
        client.put(GONE, "x", None).await.unwrap();
        for byte in 0..VALUES {
            client.put(KEY, vec![byte; VALUE], None).await.unwrap();
        }
        let last = client.delete(GONE, None).await.unwrap().header().unwrap().revision();
        let chain = recorded(store.path(), 1, last).await;
        archive.stop();
        let deltas: u64 = chain.links.iter().map(|link| link.delta.data.plain_bytes).sum();
        assert!(deltas > MUCH, "only {deltas} bytes are in deltas");
        Self { binaries, store, version: chain.full.etcd_version, last }
    }

    fn seed(&self, volume: &Path, quota: u64) -> Seed {
        Seed::of(self.command(volume, quota))
    }

    /// The command of a restore onto a volume, for an etcd with this quota.
    pub fn command(&self, volume: &Path, quota: u64) -> Command {
        let arguments = [
            "seed".to_owned(),
            format!("--store={}", address(self.store.path())),
            "--lineage=blue".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            format!("--volume={}", volume.display()),
            // Nobody brings one.
            format!("--ticket={}", volume.join("ticket").display()),
            "--member=default".to_owned(),
            "--volume-uid=v-1".to_owned(),
            "--peer-url=http://localhost:2380".to_owned(),
            "--token=near-its-quota".to_owned(),
            format!("--etcdutl={}", self.binaries.tool("etcdutl").display()),
            format!("--etcd-version={}", self.version),
            format!("--quota={quota}"),
            format!("--bump-revision={BUMP}"),
        ];
        command(&arguments.each_ref().map(String::as_str))
    }

    /// An etcd with this quota on what was restored for it, and the size of its database before it was started.
    fn restored(&self, quota: u64) -> (Etcd, u64) {
        let volume = tempfile::tempdir().unwrap();
        self.seed(volume.path(), quota).ends();
        bbolt_check(&database(volume.path()));
        let bytes = fs::metadata(database(volume.path())).unwrap().len();
        let mut etcd = Etcd::stopped(self.binaries, volume);
        etcd.resume_with(&[format!("--quota-backend-bytes={quota}").as_str()]);
        (etcd, bytes)
    }

    /// etcd's own hash of all that can be read, and from which revision on that is.
    async fn hash(&self, client: &mut Client) -> (u32, i64) {
        let answer = client.hash_kv(self.last + BUMP).await.unwrap();
        (answer.hash(), answer.compact_version())
    }
}

pub fn database(volume: &Path) -> PathBuf {
    volume.join("data/member/snap/db")
}

async fn near_the_quota(binaries: &Binaries) {
    let recorded = Recorded::new(binaries).await;
    // Below the size of the one value that is live.
    let volume = tempfile::tempdir().unwrap();
    let refused = recorded.seed(volume.path(), u64::try_from(VALUE).unwrap());
    let told = refused.says(Reason::AboveQuota);
    assert!(told.message.contains("make spec.etcd.quota"), "{told:?}");
    refused.killed();
    assert!(!database(volume.path()).exists());

    // All of it, where the quota is far away.
    let (etcd, bytes) = recorded.restored(QUOTA * 2);
    assert!(bytes > MUCH, "only {bytes} bytes are restored");
    let whole = recorded.hash(&mut etcd.connect().await).await;
    assert_eq!(whole.1, recorded.last + BUMP);

    // What is live, where the quota is near, and where the history alone would pass it.
    for quota in [QUOTA, MUCH] {
        let (etcd, bytes) = recorded.restored(quota);
        assert!(bytes < QUOTA / 4, "{bytes} bytes are restored");
        let mut client = etcd.connect().await;
        assert_eq!(recorded.hash(&mut client).await, whole);
        let got = client.get(KEY, None).await.unwrap();
        let [kept] = got.kvs() else { panic!("{} keys", got.count()) };
        assert!(kept.value() == vec![VALUES - 1; VALUE], "it is another value");
        assert_eq!(kept.version(), i64::from(VALUES), "it was written as often");
        assert_eq!(client.get(GONE, None).await.unwrap().count(), 0);
        let before = GetOptions::new().with_revision(recorded.last - 1);
        let error = client.get(KEY, Some(before)).await.unwrap_err();
        assert!(error.to_string().contains("compacted"), "{error}");
        if quota == QUOTA {
            for byte in 0..MORE {
                client.put(KEY, vec![byte; VALUE], None).await.unwrap();
            }
        } else {
            client.put(KEY, "x", None).await.unwrap();
        }
        assert_eq!(client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap().alarms().len(), 0);
    }
}

#[test]
fn what_comes_back_above_sixty_percent_of_the_quota_has_no_history_and_is_written_to_without_an_alarm() {
    each_version(near_the_quota);
}
