//! Says of an etcd data directory whether its write-ahead log could hold a vote or an entry. It reads and never repairs;
//! whatever can't be proven to be empty counts as holding one, because the answer `Empty` lets the launcher delete it.

mod record;
mod segment;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

pub use segment::{Content, Doubt};

/// The only segment of a log that was never cut: sequence 0, first index 0. A cut needs 64 MB of entries.
const FIRST_SEGMENT: &str = "0000000000000000-0000000000000000.wal";

/// What the log of a data directory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wal {
    /// There is no log: etcd would bootstrap.
    Absent,
    /// There is a log with neither an entry nor a hard state: etcd would load it, and then neither elect nor exit.
    Empty,
    /// There is a log, and it holds an entry or a hard state, or can't be proven to hold none.
    HasEntry,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The file system failed.
    #[error("failed to read {}: {source}", path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// Raft snapshots are only written by a member that has a log, so somebody took the log away.
    #[error("{} is there without a write-ahead log: the log was taken away", .0.display())]
    SnapshotWithoutLog(PathBuf),
}

/// Reads the log of the etcd data directory `data_dir`, which need not exist.
pub fn inspect(data_dir: &Path) -> Result<Wal, WalError> {
    let member = data_dir.join("member");
    let folder = member.join("wal");
    // As etcd's `wal.Exist`: every file of this ending counts, however it is named. Logs being made (`wal.tmp`, renamed
    // when complete) and preallocated segments (`0.tmp`) have another one.
    let segments = files_ending(&folder, ".wal")?;
    match segments.as_slice() {
        [] => match files_ending(&member.join("snap"), ".snap")?.into_iter().next() {
            Some(snapshot) => Err(WalError::SnapshotWithoutLog(snapshot)),
            None => Ok(Wal::Absent),
        },
        [only] if only.file_name().is_some_and(|name| name == FIRST_SEGMENT) => Ok(match read_segment(only)? {
            Content::Nothing => Wal::Empty,
            Content::Entry | Content::HardState | Content::Snapshot | Content::Doubtful(_) => Wal::HasEntry,
        }),
        _ => Ok(Wal::HasEntry),
    }
}

/// Reads one segment, given its bytes: for tests and fuzzing.
pub fn read_bytes(bytes: &[u8]) -> Content {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    segment::read(bytes, size).unwrap_or(Content::Doubtful(Doubt::Size))
}

fn read_segment(path: &Path) -> Result<Content, WalError> {
    let fault = |source| WalError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(fault)?;
    let metadata = file.metadata().map_err(fault)?;
    if !metadata.is_file() {
        return Err(fault(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")));
    }
    segment::read(file, metadata.len()).map_err(fault)
}

/// The entries of a folder whose names end so; none if there is no such folder.
fn files_ending(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, WalError> {
    let fault = |source| WalError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fault(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fault)?;
        if entry.file_name().as_encoded_bytes().ends_with(ending.as_bytes()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        folder
    }

    #[test]
    fn no_log_is_absent() {
        let nowhere = folder(&[]);
        assert_eq!(inspect(&nowhere.path().join("data")).unwrap(), Wal::Absent);
        let unfinished = folder(&[
            ("member/wal.tmp/0000000000000000-0000000000000000.wal", b"x"),
            ("member/wal/0.tmp", b"x"),
            ("member/snap/db", b"x"),
        ]);
        assert_eq!(inspect(unfinished.path()).unwrap(), Wal::Absent);
    }

    #[test]
    fn an_empty_first_segment_is_empty_and_no_other_is() {
        let first = format!("member/wal/{FIRST_SEGMENT}");
        assert_eq!(inspect(folder(&[(&first, b"")]).path()).unwrap(), Wal::Empty);
        assert_eq!(inspect(folder(&[(&first, &[0; 4096])]).path()).unwrap(), Wal::Empty);
        let second = "member/wal/0000000000000001-0000000000000000.wal";
        for others in [vec![(second, &b""[..])], vec![(&first, b""), (second, b"")], vec![("member/wal/odd.wal", b"")]]
        {
            assert_eq!(inspect(folder(&others).path()).unwrap(), Wal::HasEntry, "{others:?}");
        }
    }

    #[test]
    fn a_snapshot_without_a_log_and_a_folder_as_a_segment_are_unreadable() {
        let snapshot = folder(&[("member/snap/0000000000000002-0000000000000064.snap", b"x")]);
        assert!(matches!(inspect(snapshot.path()), Err(WalError::SnapshotWithoutLog(_))));
        let nested = folder(&[(&format!("member/wal/{FIRST_SEGMENT}/x"), b"x")]);
        assert!(matches!(inspect(nested.path()), Err(WalError::Read { .. })));
        let flat = folder(&[("member", b"x")]);
        assert!(matches!(inspect(flat.path()), Err(WalError::Read { .. })));
    }
}
