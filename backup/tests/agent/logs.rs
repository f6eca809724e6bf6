//! Write-ahead logs that real etcd left behind, whole, cut and mutated, as the reader sees them.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use quorate_backup::wal::{Content, read_bytes};

const VERSIONS: [&str; 3] = ["3.5.35", "3.6.16", "3.7.3"];
/// What `wal.Create` writes: checksum, metadata, snapshot.
const FRESH_BYTES: usize = 80;

fn log(name: &str, version: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fs::read(folder.join(format!("{name}-{version}.wal"))).unwrap()
}

fn preallocated(mut log: Vec<u8>) -> Vec<u8> {
    log.resize(log.len() + 100_000, 0);
    log
}

/// Where the first entry ends: its frame begins where the fresh log ended.
fn end_of_first_entry(log: &[u8]) -> usize {
    let length = usize::from(log[FRESH_BYTES]) + usize::from(log[FRESH_BYTES + 1]) * 256;
    FRESH_BYTES + 8 + length.next_multiple_of(8)
}

#[test]
fn a_log_of_the_first_moments_is_empty_and_every_later_one_is_not() {
    for version in VERSIONS {
        let fresh = log("fresh", version);
        assert_eq!(fresh.len(), FRESH_BYTES);
        assert_eq!(read_bytes(&fresh), Content::Nothing, "{version}");
        assert_eq!(read_bytes(&preallocated(fresh)), Content::Nothing, "{version}");
        for name in ["seeded", "running"] {
            assert_eq!(read_bytes(&log(name, version)), Content::Entry, "{name} {version}");
            assert_eq!(read_bytes(&preallocated(log(name, version))), Content::Entry, "{name} {version}");
        }
    }
}

#[test]
fn cut_anywhere_after_its_first_entry_it_is_never_empty() {
    for version in VERSIONS {
        for name in ["seeded", "running"] {
            let whole = log(name, version);
            for cut in end_of_first_entry(&whole)..=whole.len() {
                assert_eq!(read_bytes(&whole[..cut]), Content::Entry, "{name} {version} cut at {cut}");
            }
            for cut in FRESH_BYTES + 1..end_of_first_entry(&whole) {
                assert_ne!(read_bytes(&whole[..cut]), Content::Nothing, "{name} {version} cut at {cut}");
            }
        }
    }
}

#[test]
fn with_its_first_entry_taken_out_the_hard_state_is_found() {
    // The checksums no longer fit: a doubt counts as an entry.
    for version in VERSIONS {
        let whole = log("seeded", version);
        let without = [&whole[..FRESH_BYTES], &whole[end_of_first_entry(&whole)..]].concat();
        assert!(matches!(read_bytes(&preallocated(without)), Content::Doubtful(_)), "{version}");
    }
}

proptest! {
    #[test]
    fn with_any_byte_changed_it_is_never_empty(version in prop::sample::select(&VERSIONS[..]), at: prop::sample::Index, to: u8) {
        for name in ["seeded", "running"] {
            let mut log = log(name, version);
            let at = at.index(log.len());
            log[at] = to;
            prop_assert_ne!(read_bytes(&preallocated(log)), Content::Nothing);
        }
    }
}
