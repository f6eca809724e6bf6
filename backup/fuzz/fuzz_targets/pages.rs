//! Any bytes as a database: every bucket is walked in both directions, however damaged it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_backup::bolt::{Database, mvcc};

/// A page may be reached by many ways in a damaged file.
const STEPS: usize = 10_000;

fuzz_target!(|bytes: &[u8]| {
    let Ok(database) = Database::open(bytes) else { return };
    for name in [mvcc::KEY, mvcc::LEASE, mvcc::ALARM, mvcc::META] {
        let Ok(bucket) = database.bucket(name) else { continue };
        let mut cursor = database.cursor(&bucket);
        let mut steps = 0;
        let mut more = cursor.first();
        while let Ok(true) = more
            && steps < STEPS
        {
            let _ = cursor.pair();
            steps += 1;
            more = cursor.forward();
        }
        let mut more = cursor.last();
        while let Ok(true) = more
            && steps < 2 * STEPS
        {
            let _ = cursor.pair();
            steps += 1;
            more = cursor.back();
        }
    }
});
