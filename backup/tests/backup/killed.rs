//! Restores onto a seed's volume that die when part of what they make is there, at ever more of it: the last one makes what one
//! makes that nobody disturbs, with the etcdutl of each version, and etcd runs on it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use etcd_client::GetOptions;
use etcd_client::proto::PbKeyValue;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::agent::dying_at;
use crate::quota::{Recorded, database};
use crate::real::{Binaries, Etcd, bbolt_check, each_version};
use crate::seed::{Seed, until};

/// Far above what is restored.
const QUOTA: u64 = 1 << 30;
/// At so many sizes it dies, each as much larger than the one before.
const SIZES: u64 = 8;
const BLOCK: u64 = 512;
/// Where a restore works, on its volume.
const SCRATCH: &str = ".data.restoring";

/// What there is of a member: what etcdutl says of its database, and etcd itself of the history and of every key.
async fn seen(binaries: &Binaries, volume: TempDir) -> (Value, (u32, i64), Vec<PbKeyValue>) {
    let place = database(volume.path());
    bbolt_check(&place);
    let mut status = binaries.status(&place);
    // How many pages it takes is nobody's matter.
    status["totalSize"] = Value::Null;
    let etcd = Etcd::on(binaries, volume);
    let mut client = etcd.connect().await;
    let history = client.hash_kv(0).await.unwrap();
    let keys = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap().0.kvs;
    (status, (history.hash(), history.compact_version()), keys)
}

fn has_begun(volume: &Path) -> bool {
    fs::read_to_string(volume.join("quorate.json")).unwrap().contains(r#""restore":"begun""#)
}

/// Whether etcdutl is at work, or has been.
fn makes_the_rest(volume: &Path) -> bool {
    let mut entries = fs::read_dir(volume.join(SCRATCH)).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().is_dir()) || database(volume).exists()
}

async fn repeated(binaries: &Binaries) {
    let recorded = Recorded::new(binaries).await;
    let (whole, disturbed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Seed::of(recorded.command(whole.path(), QUOTA)).ends();
    let blocks = fs::metadata(database(whole.path())).unwrap().len() / BLOCK;
    let command = || recorded.command(disturbed.path(), QUOTA);
    let mut before = 0;
    for size in 1..=SIZES {
        let limit = blocks * size / (SIZES + 1);
        let died = Seed::of(dying_at(limit, &command())).ended();
        assert_eq!(died.signal(), Some(Signal::XFSZ.as_raw()), "{died}");
        let left = fs::metadata(disturbed.path().join(SCRATCH).join("db")).unwrap().len();
        assert!(before < left && left <= limit * BLOCK, "{left} bytes after {before}, of {limit} blocks");
        assert!(has_begun(disturbed.path()) && !database(disturbed.path()).exists(), "{left} bytes are taken for all");
        before = left;
    }
    // And one that dies when all is applied: etcdutl goes on for a moment without it.
    let last = Seed::of(command());
    until("etcdutl is at work", || makes_the_rest(disturbed.path()).then_some(()));
    last.killed();
    Seed::of(command()).ends();

    let names = |volume: &TempDir| -> BTreeSet<OsString> {
        fs::read_dir(volume.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(&disturbed), names(&whole));
    let (wanted, found) = (seen(binaries, whole).await, seen(binaries, disturbed).await);
    assert_eq!((&found.0, found.1), (&wanted.0, wanted.1));
    assert!(!wanted.2.is_empty() && found.2 == wanted.2, "other keys than there were");
}

#[test]
fn a_restore_that_died_with_any_part_of_the_data_there_is_repeated_and_makes_the_same() {
    each_version(repeated);
}
