//! The etcd processes on all nodes of the local cluster, found by what their command line says they are. The nodes share
//! one process table, so nothing that runs anywhere can hide, however cut off its node is. It only reads.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The flag by which a process says which member it is: peer URLs are unique over all clusters.
const IDENTITY_FLAG: &str = "--initial-advertise-peer-urls=";

/// A process that runs etcd as a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EtcdProcess {
    /// Its process id.
    pub pid: i32,
    /// Its peer URL: `https://<member>.<cluster>.<namespace>.svc...:2380`, or `http` in plain text.
    pub identity: String,
}

/// The database in etcd's data directory.
const DATABASE: &str = "member/snap/db";
/// What the kernel says after the name of an open file that was deleted (proc_pid_fd(5)).
const DELETED: &[u8] = b" (deleted)";

impl EtcdProcess {
    /// The process with this id, if it runs etcd as a member. A process that has ended but was not yet waited for has no
    /// command line any more.
    pub fn read(pid: i32) -> Option<Self> {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let identity = identity(&line)?;
        Some(Self { pid, identity })
    }

    /// Whether it has its database open: etcd locks it before it does anything with raft, and lets it go after it has
    /// stopped that.
    pub fn has_database(&self) -> bool {
        let folder = PathBuf::from(format!("/proc/{}", self.pid));
        let handles = fs::read_dir(folder.join("fd")).into_iter().flatten().filter_map(Result::ok);
        let of_database = handles.filter(|handle| fs::read_link(handle.path()).is_ok_and(|file| is_database(&file)));
        let locked =
            |name| fs::read_to_string(folder.join("fdinfo").join(name)).is_ok_and(|info| info.contains("FLOCK"));
        of_database.map(|handle| handle.file_name()).any(locked)
    }

    /// The member's name: the first label of its host name.
    pub fn member(&self) -> &str {
        host(&self.identity).split('.').next().unwrap_or_default()
    }

    /// The namespace: the third label of its host name.
    pub fn namespace(&self) -> &str {
        host(&self.identity).split('.').nth(2).and_then(|label| label.split(':').next()).unwrap_or_default()
    }
}

/// The members that run in this namespace, on any node.
pub fn etcd_processes(namespace: &str) -> Vec<EtcdProcess> {
    let found = pids().into_iter().filter_map(EtcdProcess::read);
    found.filter(|process| process.namespace() == namespace).collect()
}

/// Whether this process is a launcher, which may become etcd.
pub fn is_launcher(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with("quorate-agent"))
}

/// The ids of all processes of this machine.
pub fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether an open file is a database, also one that was deleted since: whoever has it open may still run on it.
fn is_database(file: &Path) -> bool {
    let name = file.as_os_str().as_bytes();
    Path::new(OsStr::from_bytes(name.strip_suffix(DELETED).unwrap_or(name))).ends_with(DATABASE)
}

fn identity(line: &[u8]) -> Option<String> {
    let mut arguments = line.split(|byte| *byte == 0);
    let flag = arguments.find_map(|argument| argument.strip_prefix(IDENTITY_FLAG.as_bytes()))?;
    Some(String::from_utf8_lossy(flag).into_owned())
}

/// What follows the scheme of the first of these URLs.
pub(super) fn host(url: &str) -> &str {
    let after = url.split_once("://").map_or(url, |(_, rest)| rest);
    after.split(',').next().unwrap_or(after)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const URL: &str = "https://db-3.db.scene-1.svc:2380";

    #[test]
    fn a_member_is_known_by_its_peer_url() {
        let line = format!("/usr/local/bin/etcd\0--name=db-3\0{IDENTITY_FLAG}{URL}\0");
        let process = EtcdProcess { pid: 1, identity: identity(line.as_bytes()).unwrap() };
        assert_eq!((process.member(), process.namespace()), ("db-3", "scene-1"));
        assert_eq!(identity(b"/quorate/quorate-agent\0launch\0"), None);
        assert_eq!(identity(b""), None);
    }

    #[test]
    fn a_database_that_was_deleted_under_its_process_is_still_one() {
        let path = |name: &str| PathBuf::from(format!("/var/lib/etcd/data/{name}"));
        assert!(is_database(&path("member/snap/db")) && is_database(&path("member/snap/db (deleted)")));
        assert!(!is_database(&path("member/snap/db.tmp")) && !is_database(&path("member/wal/0.wal (deleted)")));
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("member/snap")).unwrap();
        let file = fs::File::create(folder.path().join(DATABASE)).unwrap();
        file.lock().unwrap();
        let own = EtcdProcess { pid: i32::try_from(std::process::id()).unwrap(), identity: URL.into() };
        assert!(own.has_database());
        fs::remove_file(folder.path().join(DATABASE)).unwrap();
        assert!(own.has_database(), "it has it open");
        drop(file);
        assert!(!own.has_database());
    }

    proptest! {
        #[test]
        fn any_command_line_is_read_without_a_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(identity) = identity(&line) {
                let process = EtcdProcess { pid: 1, identity };
                let _ = (process.member(), process.namespace());
            }
        }
    }
}
