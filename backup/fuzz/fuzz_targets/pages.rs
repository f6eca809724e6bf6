//! Any bytes as a database: every bucket is walked in both directions, however damaged it is; and it is added to, and written
//! anew without its history and as it was earlier, each of which is refused, or gives what can be opened again.
#![no_main]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use quorate_backup::bolt::mvcc::{self, BucketKey};
use quorate_backup::bolt::{AppendError, Appender, Database, Live, Pages, rewind};

/// A page may be reached by many ways in a damaged file.
const STEPS: usize = 10_000;
/// The most bytes of a bucket that is written anew: for the same reason it may seem to have more than any file.
const MOST_BYTES: usize = 1 << 20;
const BUCKETS: [&[u8]; 4] = [mvcc::KEY, mvcc::LEASE, mvcc::ALARM, mvcc::META];
/// Later than any other event.
const LATEST: BucketKey = BucketKey { main: i64::MAX.unsigned_abs(), sub: 0, tombstone: false };
/// In the middle of a small database.
const EARLIER: u64 = 4;

/// A file without a name: nothing of it stays, however this process ends.
static FILE: LazyLock<File> = LazyLock::new(|| nameless("pages"));
/// Another one.
static THINNER: LazyLock<File> = LazyLock::new(|| nameless("thinner"));

fn nameless(what: &str) -> File {
    let path = std::env::temp_dir().join(format!("quorate-fuzz-{what}-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    file
}

/// Walks a bucket, and tells how many bytes it has if the way through it is sound and not too long.
fn walk(database: &Database<impl Pages>, name: &[u8]) -> Option<usize> {
    let bucket = database.bucket(name).ok()?;
    let mut cursor = database.cursor(&bucket);
    let (mut steps, mut bytes) = (0, 0);
    let mut more = cursor.first();
    while let Ok(true) = more
        && steps < STEPS
    {
        bytes += cursor.pair().map_or(0, |(key, value)| key.len() + value.len());
        steps += 1;
        more = cursor.forward();
    }
    let whole = matches!(more, Ok(false));
    let mut more = cursor.last();
    while let Ok(true) = more
        && steps < 2 * STEPS
    {
        let _ = cursor.pair();
        steps += 1;
        more = cursor.back();
    }
    whole.then_some(bytes)
}

/// Does to a database what a restore does.
fn add_to(file: &File) -> Result<(), AppendError> {
    let mut appender = Appender::new(file)?;
    appender.push(LATEST, &[7; 2000])?;
    if walk(appender.database(), mvcc::LEASE).is_some_and(|bytes| bytes <= MOST_BYTES) {
        appender.change(mvcc::LEASE, &BTreeMap::from([(vec![1; 8], Some(vec![9; 11]))]))?;
    }
    appender.clear(mvcc::ALARM)?;
    appender.commit().map(drop)
}

/// Whether it is written anew in a moment.
fn is_small(database: &Database<impl Pages>) -> bool {
    let Ok(names) = database.buckets() else { return false };
    names.len() <= 2 * BUCKETS.len()
        && names.iter().all(|name| walk(database, name).is_some_and(|bytes| bytes <= MOST_BYTES))
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(database) = Database::open(bytes) else { return };
    for name in BUCKETS {
        walk(&database, name);
    }
    let thinner = &*THINNER;
    thinner.set_len(0).unwrap();
    if is_small(&database)
        && let Ok(live) = Live::find(&database, &mut |_, _| {})
        && live.write(&database, thinner, &mut |_, _| {}).is_ok()
    {
        let database = Database::open(thinner).unwrap();
        assert!(walk(&database, mvcc::KEY).is_some());
    }
    thinner.set_len(0).unwrap();
    if is_small(&database) && rewind(&database, thinner, EARLIER, |_, _| ()).is_ok() {
        assert!(walk(&Database::open(thinner).unwrap(), mvcc::KEY).is_some());
    }
    let file = &*FILE;
    file.set_len(0).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    if add_to(file).is_ok() {
        let database = Database::open(file).unwrap();
        for name in BUCKETS {
            walk(&database, name);
        }
    }
});
