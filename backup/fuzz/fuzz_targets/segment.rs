//! Any bytes as a segment: no panic, and what has been found is not lost by what follows or by preallocation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_backup::wal::{Content, read_bytes};

fuzz_target!(|bytes: &[u8]| {
    let found = read_bytes(bytes);
    let preallocated = read_bytes(&[bytes, &[0; 4096]].concat());
    let followed = read_bytes(&[bytes, b"followed"].concat());
    match found {
        Content::Entry | Content::HardState | Content::Snapshot => {
            assert_eq!((preallocated, followed), (found, found));
        }
        // Of nothing, only zeros may be behind.
        Content::Nothing => assert_ne!(followed, Content::Nothing),
        Content::Doubtful(_) => (),
    }
});
