//! Cuts the end off a member's write-ahead log, as a disk does that lied about what it had written. Knows only how records
//! follow each other, not what they say.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::pods;
use crate::scene::Cluster;

/// Where the log lies on a member's volume.
const FOLDER: &str = "data/member/wal";
/// The length field before each record: its lower 56 bits are the length of the data, and if the highest bit is set, the
/// lowest three of the upper byte are the length of the padding (go.etcd.io/etcd/server/storage/wal/decoder.go).
const LENGTH_BYTES: usize = 8;

/// Keeps the first half of the records of a member's log and clears the rest, so that it looks as if never written.
/// Nothing may write it meanwhile. Says how many records are left of how many.
pub async fn cut(cluster: &Cluster, name: &str) -> Result<(usize, usize)> {
    let folder = pods::folder(cluster, name).await?.join(FOLDER);
    let path = last_file(&folder)?;
    let mut log = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let records = records(&log);
    let kept = records.len() / 2;
    let end = *records.get(kept).context("the log has no record to cut off")?;
    log[end..].fill(0);
    std::fs::write(&path, log).with_context(|| format!("failed to write {}", path.display()))?;
    Ok((kept, records.len()))
}

/// The file that is written to: the last by name.
fn last_file(folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    files.sort();
    ensure!(
        files.len() == 1,
        "{} has {} files: cutting the last would leave the ones before",
        folder.display(),
        files.len()
    );
    files.pop().context("there is no log")
}

/// Where each record begins. The log ends with the first length of 0, or with its file.
fn records(log: &[u8]) -> Vec<usize> {
    let mut begins = Vec::new();
    let mut at = 0;
    while let Some(size) = log.get(at..).and_then(size) {
        begins.push(at);
        at = at.saturating_add(size);
    }
    begins
}

/// The size of the record at the beginning of these bytes, with its length field and padding.
fn size(bytes: &[u8]) -> Option<usize> {
    let (field, data) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let field = u64::from_le_bytes(*field);
    let length = usize::try_from(field & 0x00ff_ffff_ffff_ffff).ok()?;
    let padding = if field >> 63 == 1 { usize::try_from((field >> 56) & 0x7).ok()? } else { 0 };
    let whole = length.checked_add(padding)?;
    (length > 0 && whole <= data.len()).then_some(LENGTH_BYTES + whole)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(length: u8, padding: u8) -> Vec<u8> {
        let upper = if padding > 0 { 0x80 | padding } else { 0 };
        let mut bytes = vec![length, 0, 0, 0, 0, 0, 0, upper];
        bytes.extend(vec![7; usize::from(length + padding)]);
        bytes
    }

    #[test]
    fn records_follow_each_other_up_to_the_first_of_no_length() {
        let log = [record(3, 5), record(8, 0), record(1, 7), vec![0; 64]].concat();
        assert_eq!(records(&log), [0, 16, 32]);
        assert_eq!(records(&[]), [0_usize; 0]);
        assert_eq!(records(&log[..20]), [0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let begins = records(&bytes);
            prop_assert!(begins.iter().all(|begin| *begin < bytes.len()));
        }
    }
}
