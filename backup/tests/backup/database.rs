//! What is in a database file, read for comparing.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use prost::Message;
use quorate_backup::bolt::mvcc::{ALARM, BucketKey, KEY, LEASE, Lease};
use quorate_backup::bolt::{Database, Tail};

/// A real database of etcd 3.6.16 whose last revision is 7.
pub fn small() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/databases/small-3.6.16.db")
}

/// All events after a revision.
pub fn events_after(database: &Path, revision: u64) -> Vec<(BucketKey, Vec<u8>)> {
    let mut found = Vec::new();
    each(database, KEY, |key, value| {
        let key = BucketKey::decode(key).unwrap();
        if key.main > revision {
            found.push((key, value.to_vec()));
        }
    });
    found
}

/// All leases, with the seconds for which they were granted.
pub fn leases(database: &Path) -> BTreeMap<i64, i64> {
    let mut found = BTreeMap::new();
    each(database, LEASE, |_, value| {
        let Lease { id, ttl, remaining_ttl: _ } = Lease::decode(value).unwrap();
        found.insert(id, ttl);
    });
    found
}

/// How many alarms there are.
pub fn alarms(database: &Path) -> usize {
    let mut count = 0;
    each(database, ALARM, |_, _| count += 1);
    count
}

/// The keys of a bucket.
pub fn keys(database: &Path, bucket: &[u8]) -> Vec<String> {
    let mut keys = Vec::new();
    each(database, bucket, |key, _| keys.push(String::from_utf8_lossy(key).into_owned()));
    keys
}

/// The end of its history.
pub fn tail(database: &Path) -> Tail {
    Tail::read(&Database::open(File::open(database).unwrap()).unwrap()).unwrap()
}

fn each(database: &Path, bucket: &[u8], mut show: impl FnMut(&[u8], &[u8])) {
    let database = Database::open(File::open(database).unwrap()).unwrap();
    let bucket = database.bucket(bucket).unwrap();
    let mut cursor = database.cursor(&bucket);
    let mut more = cursor.first().unwrap();
    while more {
        let (key, value) = cursor.pair().unwrap();
        show(key, value);
        more = cursor.forward().unwrap();
    }
}
