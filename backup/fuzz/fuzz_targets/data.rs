//! Any bytes as the records of a delta, and as a frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_backup::format::{RecordReader, decompress, write_record};

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = input;
    let mut reader = RecordReader::new();
    let mut again = Vec::new();
    let mut sound = true;
    for piece in bytes.chunks(usize::from(piece).max(1)) {
        reader.feed(piece);
        loop {
            match reader.take() {
                Ok(Some(record)) => write_record(&mut again, record).unwrap(),
                Ok(None) => break,
                Err(_) => sound = false,
            }
            if !sound {
                break;
            }
        }
        if !sound {
            break;
        }
    }
    assert!(bytes.starts_with(&again));
    assert!(!sound || reader.finish().is_err() || again == bytes);
    let _ = decompress(bytes, &mut Vec::new(), 1 << 20);
});
