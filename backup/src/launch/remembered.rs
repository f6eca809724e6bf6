//! What an etcd binary said its version is, kept for the pod's next start. It is only a shortcut: what is missing, damaged or
//! of another binary is not there, and what can't be kept is not.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ticket::EtcdVersion;

const FILE: &str = "quorate-etcd-version.json";
/// The record while it is written.
const UNFINISHED: &str = "quorate-etcd-version.json.new";
/// No record is longer; a larger file is not read.
const MAX_BYTES: u64 = 4096;
/// How much of a binary's beginning tells it from others: with its sections' places and sizes, and the id of its build.
const HEAD_BYTES: u64 = 64 << 10;
/// What a program begins with. A script is never remembered: what it starts may change while it stays the same.
const PROGRAM: &[u8] = b"\x7fELF";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Record {
    binary: Fingerprint,
    version: EtcdVersion,
}

/// By which a binary is told from that of another image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fingerprint {
    path: PathBuf,
    bytes: u64,
    modified: i64,
    head: String,
}

impl Fingerprint {
    /// That of the program there; nothing if it can't be read or is a script.
    pub fn of(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let metadata = file.metadata().ok()?;
        let mut head = Vec::new();
        file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
        head.starts_with(PROGRAM).then(|| Self {
            path: path.to_owned(),
            bytes: metadata.len(),
            modified: metadata.mtime(),
            head: blake3::hash(&head).to_hex().to_string(),
        })
    }
}

/// What this binary said before, in this folder.
pub fn recall(folder: &Path, binary: &Fingerprint) -> Option<EtcdVersion> {
    let mut bytes = Vec::new();
    File::open(folder.join(FILE)).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let record: Record = serde_json::from_slice(&bytes).ok()?;
    (record.binary == *binary).then_some(record.version)
}

/// Keeps what a binary says, in place of what another said; whole or not at all.
pub fn keep(folder: &Path, binary: Fingerprint, version: EtcdVersion) -> io::Result<()> {
    let unfinished = folder.join(UNFINISHED);
    fs::write(&unfinished, serde_json::to_vec(&Record { binary, version })?)?;
    fs::rename(unfinished, folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn program(folder: &TempDir, rest: &[u8]) -> Fingerprint {
        let path = folder.path().join("etcd");
        fs::write(&path, [PROGRAM, rest].concat()).unwrap();
        Fingerprint::of(&path).unwrap()
    }

    #[test]
    fn what_a_binary_said_is_recalled_for_that_binary_only() {
        let folder = tempfile::tempdir().unwrap();
        let binary = program(&folder, b"one");
        assert_eq!(recall(folder.path(), &binary), None);
        keep(folder.path(), binary.clone(), "3.6.16".into()).unwrap();
        assert_eq!(recall(folder.path(), &binary), Some("3.6.16".into()));

        let Fingerprint { path, bytes, modified, head } = binary.clone();
        let others = [
            Fingerprint { path: "/bin/etcd".into(), ..binary.clone() },
            Fingerprint { bytes: bytes + 1, ..binary.clone() },
            Fingerprint { modified: modified + 1, ..binary.clone() },
            Fingerprint { head: head.replace(|digit| digit != '0', "0"), ..binary.clone() },
        ];
        for other in others {
            assert_eq!(recall(folder.path(), &other), None, "{other:?}");
        }
        assert_eq!(Fingerprint::of(&path), Some(binary));
    }

    #[test]
    fn a_binary_that_was_exchanged_has_another_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = [b"one", b"two"].map(|rest| program(&folder, rest));
        assert_ne!(one.head, two.head);
        keep(folder.path(), one, "3.6.16".into()).unwrap();
        keep(folder.path(), two.clone(), "3.7.3".into()).unwrap();
        assert_eq!(recall(folder.path(), &two), Some("3.7.3".into()));
    }

    #[test]
    fn a_script_has_no_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd");
        fs::write(&path, "#!/bin/sh\nexec /opt/etcd \"$@\"\n").unwrap();
        assert_eq!(Fingerprint::of(&path), None);
        assert_eq!(Fingerprint::of(&folder.path().join("none")), None);
    }

    #[test]
    fn a_damaged_record_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let binary = program(&folder, b"one");
        keep(folder.path(), binary.clone(), "3.6.16".into()).unwrap();
        let whole = fs::read(folder.path().join(FILE)).unwrap();
        let padded = [vec![b' '; usize::try_from(MAX_BYTES).unwrap()], whole.clone()].concat();
        for bytes in [&whole[..whole.len() - 1], b"", b"\xff\0", b"{}", &padded] {
            fs::write(folder.path().join(FILE), bytes).unwrap();
            assert_eq!(recall(folder.path(), &binary), None);
        }
    }

    #[test]
    fn where_nothing_can_be_kept_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let binary = program(&folder, b"one");
        keep(&folder.path().join("none"), binary, "3.6.16".into()).unwrap_err();
    }
}
