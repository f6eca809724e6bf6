//! The API server's audit log: what it notes, how large it may get, and its lines. Knows nothing of what they say.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::LabError;
use crate::rbac::ACCOUNT;

/// How large a file of the log may get, in MiB.
const FILE_MIB: u32 = 100;
/// How many full files are kept beside the one that is being written: room for more than a million calls in all, which
/// is hours of scenes, and a bound for a lab that is up for weeks.
const FULL_FILES: usize = 20;

/// Notes each call of the operator, without what was sent. A watch is noted when it begins too: it may never end.
pub fn policy() -> String {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "Metadata", "users": [ACCOUNT] },
            { "level": "None" },
        ],
    });
    format!("{policy:#}\n")
}

/// What kube-apiserver has to be told.
pub fn flags(policy: &Path, log: &Path) -> [String; 5] {
    [
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        // No call waits for the log. Each line is still written at once.
        "--audit-log-mode=batch".into(),
        format!("--audit-log-maxsize={FILE_MIB}"),
        format!("--audit-log-maxbackup={FULL_FILES}"),
    ]
}

/// The log's files as they were when it was opened.
#[derive(Debug)]
pub struct AuditLog {
    /// The oldest first.
    files: Vec<File>,
    may_be_cut_off: bool,
}

/// Up to where a log was written at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditEnd {
    /// The file, which keeps its number when it gets another name.
    inode: u64,
    /// How long it was.
    length: u64,
}

impl AuditLog {
    /// Opens the log that is written to this file.
    pub(super) fn open(path: &Path) -> Result<Self, LabError> {
        // This one first: when it is full meanwhile, it is found again among the others under its new name.
        let newest = File::open(path).map_err(LabError::io("open", path))?;
        let inode = newest.metadata().map_err(LabError::io("open", path))?.ino();
        let full = full_files(path)?;
        let may_be_cut_off = full.len() >= FULL_FILES;
        let mut files = vec![];
        for path in full {
            match File::open(&path) {
                Ok(file) if file.metadata().is_ok_and(|metadata| metadata.ino() == inode) => (),
                Ok(file) => files.push(file),
                // It was the oldest, and is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                Err(error) => return Err(LabError::io("open", &path)(error)),
            }
        }
        files.push(newest);
        Ok(Self { files, may_be_cut_off })
    }

    /// Whether there may have been older lines that are gone.
    pub const fn may_be_cut_off(&self) -> bool {
        self.may_be_cut_off
    }

    /// Up to where it is written now.
    pub fn end(&self) -> io::Result<AuditEnd> {
        let newest = self.files.last().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.metadata()?;
        Ok(AuditEnd { inode: newest.ino(), length: newest.len() })
    }

    /// Only what was written after that.
    pub fn after(mut self, end: AuditEnd) -> io::Result<Self> {
        let mut inodes = vec![];
        for file in &self.files {
            inodes.push(file.metadata()?.ino());
        }
        // If that file is gone already, all that is there was written later.
        if let Some(number) = inodes.iter().position(|inode| *inode == end.inode) {
            self.files = self.files.split_off(number);
            if let Some(mut first) = self.files.first() {
                first.seek(SeekFrom::Start(end.length))?;
            }
        }
        Ok(self)
    }

    /// Its lines, the oldest first: each a JSON object, except that the last may be half written.
    pub fn lines(self) -> impl Iterator<Item = io::Result<Vec<u8>>> {
        self.files.into_iter().flat_map(|file| BufReader::new(file).split(b'\n'))
    }
}

/// The files that were full, the oldest first: kube-apiserver puts the time into the name, as in
/// `audit-2026-05-01T10-00-00.000.log`.
fn full_files(path: &Path) -> Result<Vec<PathBuf>, LabError> {
    let folder = path.parent().unwrap_or(path);
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let entries = fs::read_dir(folder).map_err(LabError::io("list", folder))?;
    let mut files = vec![];
    for entry in entries {
        let found = entry.map_err(LabError::io("list", folder))?.path();
        let name = found.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let ours = name.strip_prefix(stem).is_some_and(|time| time.starts_with('-'));
        files.extend((ours && found.extension() == path.extension()).then_some(found));
    }
    files.sort_unstable();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(log: AuditLog) -> Vec<String> {
        log.lines().map(|line| String::from_utf8(line.unwrap()).unwrap()).collect()
    }

    #[test]
    fn all_files_are_read_the_oldest_first() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let path = folder.path().join("audit.log");
        assert!(AuditLog::open(&path).unwrap_err().to_string().starts_with("failed to open"));
        write("audit.log", "e\nhal");
        write("audit-2026-05-02T00-00-00.000.log", "c\nd\n");
        write("audit-2026-05-01T23-59-59.999.log", "a\nb\n");
        write("auditor.log", "not of it\n");
        write("audit-2026-05-01T23-59-59.999.txt", "not of it\n");
        let log = AuditLog::open(&path).unwrap();
        assert!(!log.may_be_cut_off());
        assert_eq!(lines(log), ["a", "b", "c", "d", "e", "hal"]);
    }

    #[test]
    fn what_was_written_after_an_end_is_found_also_under_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let path = folder.path().join("audit.log");
        write("audit-2026-05-01T23-59-59.999.log", "long ago\n");
        write("audit.log", "before\n");
        let end = AuditLog::open(&path).unwrap().end().unwrap();
        let after = |end| lines(AuditLog::open(&path).unwrap().after(end).unwrap());
        assert_eq!(after(end), [""; 0]);
        write("audit.log", "before\nafter\n");
        assert_eq!(after(end), ["after"]);
        fs::rename(&path, folder.path().join("audit-2026-05-02T00-00-00.000.log")).unwrap();
        write("audit.log", "newest\n");
        assert_eq!(after(end), ["after", "newest"]);
        fs::remove_file(folder.path().join("audit-2026-05-01T23-59-59.999.log")).unwrap();
        fs::remove_file(folder.path().join("audit-2026-05-02T00-00-00.000.log")).unwrap();
        assert_eq!(after(end), ["newest"]);
    }

    #[test]
    fn a_file_under_two_names_is_read_once_and_many_files_may_hide_older_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        fs::write(&path, "now\n").unwrap();
        fs::hard_link(&path, folder.path().join("audit-2026-05-01T10-00-00.000.log")).unwrap();
        for day in 1..FULL_FILES {
            fs::write(folder.path().join(format!("audit-2026-04-{day:02}T10-00-00.000.log")), "").unwrap();
        }
        let log = AuditLog::open(&path).unwrap();
        assert!(log.may_be_cut_off());
        assert_eq!(lines(log), ["now"]);
    }

    #[test]
    fn the_policy_notes_the_operator_and_nobody_else() {
        let policy: serde_json::Value = serde_json::from_str(&policy()).unwrap();
        let rules = policy["rules"].as_array().unwrap();
        assert_eq!(rules[0], json!({ "level": "Metadata", "users": ["system:serviceaccount:quorate-system:quorate"] }));
        assert_eq!(rules[1..], [json!({ "level": "None" })]);
        assert_eq!(policy["omitStages"], json!(["RequestReceived"]));
    }
}
