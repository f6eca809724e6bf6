//! Sound records of any type and content in any order, then one changed byte: an entry or a vote is never overlooked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_backup::wal::{Content, read_bytes};

const METADATA: u8 = 1;
const ENTRY: u8 = 2;
const STATE: u8 = 3;
const CRC: u8 = 4;
const SNAPSHOT: u8 = 5;

/// As etcd's encoder writes them.
struct Log {
    bytes: Vec<u8>,
    crc: u32,
}

impl Log {
    fn push(&mut self, kind: u8, data: &[u8]) {
        if kind != CRC {
            self.crc = crc32c::crc32c_append(self.crc, data);
        }
        let mut record = vec![8, kind, 16];
        varint(u64::from(self.crc), &mut record);
        record.push(26);
        varint(data.len() as u64, &mut record);
        record.extend(data);
        let padding = record.len().next_multiple_of(8) - record.len();
        let top = if padding == 0 { 0 } else { (0x80 | padding as u64) << 56 };
        self.bytes.extend((record.len() as u64 | top).to_le_bytes());
        self.bytes.extend(record);
        self.bytes.extend(vec![0; padding]);
    }
}

fn varint(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    into.push(number.to_le_bytes()[0]);
}

fuzz_target!(|input: (Vec<(u8, Vec<u8>)>, u16, u8)| {
    let (records, at, to) = input;
    let mut log = Log { bytes: Vec::new(), crc: 0 };
    log.push(CRC, &[]);
    log.push(METADATA, b"metadata");
    log.push(SNAPSHOT, &[8, 0, 16, 0]);
    let mut matters = false;
    for (kind, data) in &records {
        let kind = kind % 7;
        let data = match kind {
            // A broken record whose last sector is of zeros is a torn one, so entries here have none.
            ENTRY => data.iter().map(|byte| byte | 1).collect(),
            STATE => match data.as_slice() {
                [term, vote, commit, ..] => vec![8, term & 0x7f, 16, vote & 0x7f, 24, commit & 0x7f],
                _ => vec![8, 0, 16, 0, 24, 0],
            },
            _ => data.clone(),
        };
        matters |= kind == ENTRY || (kind == STATE && [1, 3, 5].iter().any(|at| data[*at] != 0));
        log.push(kind, &data);
    }
    let end = log.bytes.len();
    log.bytes.resize(end + 4096, 0);
    let found = read_bytes(&log.bytes);
    if matters {
        assert_ne!(found, Content::Nothing);
        let mut changed = log.bytes.clone();
        changed[usize::from(at) % end] = to;
        if records.iter().all(|(kind, _)| kind % 7 == ENTRY) {
            assert_ne!(read_bytes(&changed), Content::Nothing);
        }
    }
});
