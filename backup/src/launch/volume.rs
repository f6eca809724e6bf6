//! The volume: whose it is, what is on it, and what that lets a ticket do. The decision is a pure table; the only data it
//! ever deletes is a data directory of this very member whose write-ahead log provably holds neither an entry nor a vote.
//! While its launcher waits, an empty volume is marked, so that it is told from itself once it was emptied.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::FdFlags;

use super::marker::{self, Marker, Restore};
use super::{Identity, Reason, Refusal};
use crate::ticket::{DATA_FOLDER, Start, VolumeMark};
use crate::wal::{self, Wal};

/// etcd's database in its data directory, which it locks as long as it has it open.
const DATABASE: &str = "member/snap/db";

/// What is on the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Contents {
    /// No marker, and the name of the first thing that is data, if any.
    Unmarked(Option<String>),
    /// The marker of another member or volume.
    Foreign(Marker),
    /// This member's marker, a restore that has not come to its end, and whatever that has left.
    Restoring,
    /// This member's marker, and what was restored for it, on which no etcd was started yet: this log.
    Restored(Wal),
    /// This member's marker, with this mark, and this log.
    Own(Wal, Option<VolumeMark>),
}

/// What has to be done before etcd may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Write the marker on a new volume.
    Mark,
    /// Delete the data of a start that came to nothing.
    Discard,
    /// Write down that from now on what was restored has been started: it is never restored here again.
    Spend,
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

/// Opens a file as etcd opens it, for NFS, whose locks for one alone take a file that may be written to; as it can be, where
/// it may not.
fn open_to_lock(path: &Path) -> io::Result<File> {
    match File::options().read(true).write(true).open(path) {
        Err(fault) if matches!(fault.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            File::open(path)
        }
        opened => opened,
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

    /// Tells the volume's mark, and marks it if it is empty. What else may be there is held against the ticket when it comes.
    pub fn greet(&self) -> Result<Option<VolumeMark>, Refusal> {
        let mut held = None;
        loop {
            match (self.look()?, &held) {
                // An older container's launcher may be marking it at this moment: it is looked at again under the lock.
                (Contents::Unmarked(None), None) => held = Some(self.lock(Start::Create)?),
                (Contents::Unmarked(None), Some(_)) => return self.mark_anew().map(Some),
                // Who wrote the mark may have died before it was lasting.
                (Contents::Own(Wal::Absent | Wal::Empty, Some(mark)), _) => {
                    let lasting = marker::make_data_dir(&self.root);
                    return lasting.map(|()| Some(mark)).map_err(|fault| self.unreadable("sync", &fault));
                }
                (Contents::Own(_, mark), _) => return Ok(mark),
                (
                    Contents::Unmarked(Some(_)) | Contents::Foreign(_) | Contents::Restoring | Contents::Restored(_),
                    _,
                ) => return Ok(None),
            }
        }
    }

    fn mark_anew(&self) -> Result<VolumeMark, Refusal> {
        let mark = VolumeMark::random();
        let marker = Marker::of(&self.identity).with_mark(mark.clone());
        self.write(&marker).map_err(|fault| self.unreadable("write the marker on", &fault))?;
        tracing::info!(member = %self.identity.member, volume = %self.identity.volume, %mark, "marked the empty volume");
        Ok(mark)
    }

    /// Makes the volume ready for this start, or says why it must not be used. `mark` is what it has to be marked with to
    /// create on it.
    pub fn admit(&self, start: Start, mark: Option<&VolumeMark>) -> Result<Held, Refusal> {
        let held = self.lock(start)?;
        match decide((start, mark), &self.look()?, &self.identity)? {
            Step::Mark => {
                self.mark().map_err(|fault| self.unreadable("write the marker on", &fault))?;
                tracing::info!(member = %self.identity.member, volume = %self.identity.volume, "marked the new volume");
            }
            Step::Discard => {
                let deleted = marker::discard(&self.root);
                if deleted.map_err(|fault| self.unreadable("delete the data without an entry from", &fault))? {
                    tracing::info!("deleted the data of an earlier start, which held neither an entry nor a vote");
                }
            }
            Step::Spend => {
                self.mark().map_err(|fault| self.unreadable("write the marker on", &fault))?;
                tracing::info!("starts on what was restored");
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
            Start::Create | Start::Restored => free && closed != Some(false),
            Start::Resume => closed.unwrap_or(free),
        };
        if admitted { Ok(Held(root)) } else { Err(self.in_use()) }
    }

    /// Whether the last etcd has closed its database; `None` if there is none.
    fn database_is_closed(&self) -> io::Result<Option<bool>> {
        match open_to_lock(&self.data_dir().join(DATABASE)) {
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
        let marker = Marker::read(&self.root);
        let Some(marker) = marker.map_err(|fault| Refusal::new(Reason::VolumeUnreadable, fault.to_string()))? else {
            let data = marker::first_data(&self.root);
            return Ok(Contents::Unmarked(data.map_err(|fault| self.unreadable("list", &fault))?));
        };
        if !marker.is_of(&self.identity) {
            let was_waited_on = marker.is_of_a_wait(&self.root, &self.identity);
            let was_waited_on = was_waited_on.map_err(|fault| self.unreadable("list", &fault))?;
            return Ok(if was_waited_on { Contents::Unmarked(None) } else { Contents::Foreign(marker) });
        }
        let data_dir = self.data_dir();
        if fs::symlink_metadata(&data_dir).is_ok_and(|metadata| !metadata.is_dir()) {
            let message = format!("{} is not a folder; clear the volume or replace the member", data_dir.display());
            return Err(Refusal::new(Reason::VolumeUnreadable, message));
        }
        let log = || wal::inspect(&data_dir).map_err(|fault| Refusal::new(Reason::VolumeUnreadable, fault.to_string()));
        Ok(match marker.restore {
            Some(Restore::Begun) => Contents::Restoring,
            Some(Restore::Done(_)) => Contents::Restored(log()?),
            None => Contents::Own(log()?, marker.mark),
        })
    }

    fn mark(&self) -> io::Result<()> {
        self.write(&Marker::of(&self.identity))
    }

    fn write(&self, marker: &Marker) -> io::Result<()> {
        marker.write(&self.root)?;
        marker::make_data_dir(&self.root)
    }

    fn unreadable(&self, what: &str, fault: &io::Error) -> Refusal {
        let message = format!("failed to {what} the volume {}: {fault}", self.root.display());
        Refusal::new(Reason::VolumeUnreadable, message)
    }
}

/// What a ticket may do with a volume.
fn decide((start, wanted): (Start, Option<&VolumeMark>), contents: &Contents, own: &Identity) -> Result<Step, Refusal> {
    let refuse = |reason, message| Err(Refusal::new(reason, message));
    let Identity { member, volume } = own;
    match (start, contents) {
        (Start::Create, Contents::Unmarked(None)) if wanted.is_none() => Ok(Step::Mark),
        (Start::Create, Contents::Own(Wal::Absent | Wal::Empty, mark))
            if wanted.is_none() || mark.as_ref() == wanted =>
        {
            Ok(Step::Discard)
        }
        (Start::Create, Contents::Unmarked(None) | Contents::Own(Wal::Absent | Wal::Empty, _)) => refuse(
            Reason::VolumeIsEmpty,
            format!("the volume was emptied after {member} had been told to create on it: what it had is not on it"),
        ),
        (Start::Restored, Contents::Restored(Wal::HasEntry)) => Ok(Step::Spend),
        (Start::Create | Start::Restored | Start::Resume, Contents::Own(Wal::HasEntry, _)) => Ok(Step::Go),
        (Start::Create | Start::Restored | Start::Resume, Contents::Unmarked(Some(name))) => refuse(
            Reason::VolumeHasOtherData,
            format!(
                "the volume holds {name:?} and no marker; nothing of it is touched: clear it, or replace the member"
            ),
        ),
        (Start::Create | Start::Restored | Start::Resume, Contents::Foreign(foreign)) => refuse(
            Reason::VolumeHasOtherData,
            format!(
                "the volume carries the marker of member {} on volume {}, not of {member} on {volume}",
                foreign.member, foreign.volume
            ),
        ),
        // An older state than this member has had, or another than it may begin with.
        (Start::Create | Start::Resume, Contents::Restoring | Contents::Restored(_)) => refuse(
            Reason::VolumeHasOtherData,
            format!(
                "a backup was restored onto the volume, and {member} is not the one to start on it: clear the volume"
            ),
        ),
        (Start::Restored, Contents::Unmarked(None) | Contents::Restoring) => refuse(
            Reason::VolumeNotRestored,
            format!("the backup has not been restored onto the volume of {member}, or is not there any more"),
        ),
        (
            Start::Restored,
            Contents::Restored(Wal::Absent | Wal::Empty) | Contents::Own(Wal::Absent | Wal::Empty, _),
        ) => refuse(
            Reason::VolumeNotRestored,
            format!("a backup was restored onto the volume of {member}, and its log is not there any more"),
        ),
        (Start::Resume, Contents::Unmarked(None)) => {
            refuse(Reason::VolumeIsEmpty, format!("the volume is empty: what {member} had is not on it"))
        }
        // Also where etcd ended before its log was there: what is said of one must not be said of the other, as the next
        // ticket may be to create, with the mark that is still on it.
        (Start::Resume, Contents::Own(Wal::Absent | Wal::Empty, _)) => refuse(
            Reason::VolumeHasNoEntry,
            format!(
                "the volume carries the marker of {member} and no write-ahead log with an entry or a vote: what it had is \
                 not on it, or it had nothing, and only a create may start on it"
            ),
        ),
    }
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
