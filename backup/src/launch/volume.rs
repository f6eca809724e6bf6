//! The volume: whose it is, what is on it, and what that lets a ticket do. The decision is a pure table; the only data it
//! ever deletes is a data directory of this very member whose write-ahead log provably holds neither an entry nor a vote.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};

use super::{Identity, Reason, Refusal};
use crate::ticket::{DATA_FOLDER, MemberName, Start, VolumeUid};
use crate::wal::{self, Wal};

/// The file by which a volume says whose it is.
const MARKER: &str = "quorate.json";
/// The marker while it is written.
const MARKER_UNFINISHED: &str = "quorate.json.new";
/// The data directory while it is deleted: a crash in the middle must not leave a half of it under its name.
const DATA_DISCARDED: &str = "data.discarded";
/// What a fresh ext4 file system holds.
const LOST_AND_FOUND: &str = "lost+found";
/// The marker's form, to be raised when an older launcher must not read a newer marker.
const MARKER_FORMAT: u32 = 1;
/// No marker is longer; a larger file is not read.
const MARKER_MAX_BYTES: u64 = 4096;
/// etcd's database in its data directory, which it locks as long as it has it open.
const DATABASE: &str = "member/snap/db";
/// As etcd creates it.
const DATA_MODE: u32 = 0o700;

/// What the marker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Marker {
    format: u32,
    member: MemberName,
    volume: VolumeUid,
}

/// What is on the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Contents {
    /// No marker, and the name of the first thing that is data, if any.
    Unmarked(Option<String>),
    /// The marker of another member or volume.
    Foreign(Marker),
    /// This member's marker, and this log.
    Own(Wal),
}

/// What has to be done before etcd may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Write the marker on a new volume.
    Mark,
    /// Delete the data of a start that came to nothing.
    Discard,
    /// Nothing.
    Go,
}

/// A volume that is ready for etcd, locked as far as nobody else still holds it.
#[derive(Debug)]
pub struct Held(File);

impl Held {
    /// Lets the lock pass over to the program that this process becomes, so that it lasts as long as that lives.
    pub fn keep_across_exec(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.0, FdFlags::empty())?)
    }
}

/// Whether nobody else holds a lock on it; this handle does then. Some network file systems can't lock a folder: etcd's
/// own lock on its files remains.
fn is_free(file: &File) -> bool {
    match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(fault)) => {
            tracing::warn!("failed to lock the volume: {fault}");
            true
        }
    }
}

/// A member's volume.
#[derive(Debug, Clone)]
pub struct Volume {
    root: PathBuf,
    identity: Identity,
}

impl Volume {
    /// The volume of this member, mounted there.
    pub fn new(root: PathBuf, identity: Identity) -> Self {
        Self { root, identity }
    }

    /// The folder that etcd gets as its data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.root.join(DATA_FOLDER)
    }

    /// Makes the volume ready for this start, or says why it must not be used.
    pub fn admit(&self, start: Start) -> Result<Held, Refusal> {
        let held = self.lock(start)?;
        match decide(start, &self.look()?, &self.identity)? {
            Step::Mark => {
                self.mark().map_err(|fault| self.unreadable("write the marker on", &fault))?;
                tracing::info!(member = %self.identity.member, volume = %self.identity.volume, "marked the new volume");
            }
            Step::Discard => {
                self.discard().map_err(|fault| self.unreadable("delete the data without an entry from", &fault))?;
                tracing::info!("deleted the data of an earlier start, which held neither an entry nor a vote");
            }
            Step::Go => (),
        }
        Ok(held)
    }

    /// Locks the volume against a process of an older container that has not ended yet, after a forced deletion of its
    /// pod: it must not lose what it still writes. etcd inherits the lock and holds it to its end. To resume, it is enough
    /// that etcd has closed its database: it stops raft before that (server/etcdserver/server.go, run), and then waits up
    /// to a second more for its peers' connections.
    fn lock(&self, start: Start) -> Result<Held, Refusal> {
        let root = File::open(&self.root).map_err(|fault| self.unreadable("open", &fault))?;
        let free = is_free(&root);
        let closed = self.database_is_closed().map_err(|fault| self.unreadable("look at the database on", &fault))?;
        let admitted = match start {
            Start::Create => free && closed != Some(false),
            Start::Resume => closed.unwrap_or(free),
        };
        if admitted { Ok(Held(root)) } else { Err(self.in_use()) }
    }

    /// Whether the last etcd has closed its database; `None` if there is none.
    fn database_is_closed(&self) -> io::Result<Option<bool>> {
        match File::open(self.data_dir().join(DATABASE)) {
            Ok(database) => Ok(Some(is_free(&database))),
            Err(fault) if matches!(fault.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn in_use(&self) -> Refusal {
        let (root, member) = (self.root.display(), &self.identity.member);
        let message = format!("another process holds the volume {root}: the last etcd of {member} has not ended yet");
        Refusal::new(Reason::VolumeInUse, message)
    }

    fn look(&self) -> Result<Contents, Refusal> {
        let Some(marker) = self.read_marker()? else {
            return Ok(Contents::Unmarked(self.first_data().map_err(|fault| self.unreadable("list", &fault))?));
        };
        let Marker { format: _, member, volume } = &marker;
        if *member != self.identity.member || *volume != self.identity.volume {
            return Ok(Contents::Foreign(marker));
        }
        let data_dir = self.data_dir();
        if fs::symlink_metadata(&data_dir).is_ok_and(|metadata| !metadata.is_dir()) {
            let message = format!("{} is not a folder; clear the volume or replace the member", data_dir.display());
            return Err(Refusal::new(Reason::VolumeUnreadable, message));
        }
        let wal = wal::inspect(&data_dir).map_err(|fault| Refusal::new(Reason::VolumeUnreadable, fault.to_string()))?;
        Ok(Contents::Own(wal))
    }

    fn read_marker(&self) -> Result<Option<Marker>, Refusal> {
        let path = self.root.join(MARKER);
        let odd = |problem: &dyn std::fmt::Display| {
            Refusal::new(Reason::VolumeUnreadable, format!("the marker {}: {problem}", path.display()))
        };
        match fs::metadata(&path) {
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(fault) => return Err(odd(&fault)),
            Ok(metadata) if !metadata.is_file() || metadata.len() > MARKER_MAX_BYTES => {
                return Err(odd(&"not a marker"));
            }
            Ok(_) => (),
        }
        let bytes = fs::read(&path).map_err(|fault| odd(&fault))?;
        let marker: Marker = serde_json::from_slice(&bytes).map_err(|fault| odd(&fault))?;
        if marker.format != MARKER_FORMAT {
            return Err(odd(&format!("of format {}, this launcher reads {MARKER_FORMAT}", marker.format)));
        }
        Ok(Some(marker))
    }

    /// The name of the first thing on the volume that is data. An empty data directory is none.
    fn first_data(&self) -> io::Result<Option<String>> {
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name();
            let empty_data = name == DATA_FOLDER && is_empty_folder(&self.data_dir())?;
            if name != LOST_AND_FOUND && name != MARKER_UNFINISHED && !empty_data {
                return Ok(Some(name.to_string_lossy().into_owned()));
            }
        }
        Ok(None)
    }

    /// Writes the marker whole or not at all, and lasting.
    fn mark(&self) -> io::Result<()> {
        let Identity { member, volume } = self.identity.clone();
        let marker = serde_json::to_vec(&Marker { format: MARKER_FORMAT, member, volume })?;
        let unfinished = self.root.join(MARKER_UNFINISHED);
        let mut file = File::create(&unfinished)?;
        file.write_all(&marker)?;
        file.sync_all()?;
        fs::rename(&unfinished, self.root.join(MARKER))?;
        self.make_data_dir()
    }

    fn discard(&self) -> io::Result<()> {
        let discarded = self.root.join(DATA_DISCARDED);
        absent_is_fine(fs::remove_dir_all(&discarded))?;
        absent_is_fine(fs::rename(self.data_dir(), &discarded))?;
        absent_is_fine(fs::remove_dir_all(&discarded))?;
        self.make_data_dir()
    }

    /// Makes the data directory now, so that one sync of the root covers marker and directory: etcd would not sync it.
    fn make_data_dir(&self) -> io::Result<()> {
        match DirBuilder::new().mode(DATA_MODE).create(self.data_dir()) {
            Err(fault) if fault.kind() != io::ErrorKind::AlreadyExists => return Err(fault),
            Ok(()) | Err(_) => (),
        }
        File::open(&self.root)?.sync_all()
    }

    fn unreadable(&self, what: &str, fault: &io::Error) -> Refusal {
        let message = format!("failed to {what} the volume {}: {fault}", self.root.display());
        Refusal::new(Reason::VolumeUnreadable, message)
    }
}

/// What a ticket may do with a volume.
fn decide(start: Start, contents: &Contents, own: &Identity) -> Result<Step, Refusal> {
    let refuse = |reason, message| Err(Refusal::new(reason, message));
    let Identity { member, volume } = own;
    match (start, contents) {
        (Start::Create, Contents::Unmarked(None)) => Ok(Step::Mark),
        (Start::Create, Contents::Own(Wal::Absent | Wal::Empty)) => Ok(Step::Discard),
        (Start::Create | Start::Resume, Contents::Own(Wal::HasEntry)) => Ok(Step::Go),
        (Start::Create | Start::Resume, Contents::Unmarked(Some(name))) => refuse(
            Reason::VolumeHasOtherData,
            format!(
                "the volume holds {name:?} and no marker; nothing of it is touched: clear it, or replace the member"
            ),
        ),
        (Start::Create | Start::Resume, Contents::Foreign(Marker { format: _, member: other, volume: on })) => refuse(
            Reason::VolumeHasOtherData,
            format!("the volume carries the marker of member {other} on volume {on}, not of {member} on {volume}"),
        ),
        (Start::Resume, Contents::Unmarked(None)) => {
            refuse(Reason::VolumeIsEmpty, format!("the volume is empty: what {member} had is not on it"))
        }
        (Start::Resume, Contents::Own(Wal::Absent)) => refuse(
            Reason::VolumeIsEmpty,
            format!("the volume carries the marker of {member} and no write-ahead log: what it had is not on it"),
        ),
        (Start::Resume, Contents::Own(Wal::Empty)) => refuse(
            Reason::VolumeHasNoEntry,
            format!("the write-ahead log of {member} holds neither an entry nor a vote: only a create may start on it"),
        ),
    }
}

fn is_empty_folder(path: &Path) -> io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.is_dir() && fs::read_dir(path)?.next().is_none())
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
