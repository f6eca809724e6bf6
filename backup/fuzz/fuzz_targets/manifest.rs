//! Any bytes as a manifest: refused, or consistent with the place that it was found in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_backup::format::{Delta, Full, GenerationKey, Revision};

fuzz_target!(|bytes: &[u8]| {
    let place = GenerationKey {
        lineage: "blue".parse().unwrap(),
        cluster: "00000000000000ab".parse().unwrap(),
        name: "20261121T142536Z-0123456789abcdef".parse().unwrap(),
    };
    if let Ok(full) = Full::read(bytes, &place) {
        assert!(full.compact_revision <= full.revision);
        assert_eq!(Full::read(&full.write(), &place).unwrap(), full);
    }
    let from = Revision::new(11).unwrap();
    if let Ok(delta) = Delta::read(bytes, &place, from) {
        assert!(delta.from == from && delta.to >= from);
        assert_eq!(Delta::read(&delta.write(), &place, from).unwrap(), delta);
    }
});
