//! Why a seed's volume was not filled, told apart by who can do what about it.

use std::io;
use std::path::{Path, PathBuf};

use super::is_full;
use crate::bolt::AppendError;
use crate::format::{ChainError, DataError};
use crate::launch::marker::MarkerError;
use crate::launch::{Reason, Refusal};
use crate::restore::RestoreError;
use crate::store::StoreError;
use crate::ticket::{EtcdVersion, MemberName, VolumeUid};
use crate::wal::WalError;

/// What etcdutl says when a disk has no room, or a user or a file has no more of it: Go's words for ENOSPC, EDQUOT and EFBIG.
const NO_ROOM: [&str; 3] = ["no space left on device", "disk quota exceeded", "file too large"];

/// Why the volume was not filled.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// The backup could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The volume's marker can't be understood.
    #[error(transparent)]
    Marker(#[from] MarkerError),
    /// The ticket's file can't be read.
    #[error("{0}")]
    Ticket(String),
    /// The volume can't be read or written.
    #[error("failed to {what} the volume {}: {source}", volume.display())]
    Volume {
        /// What was to be done.
        what: &'static str,
        /// Where it is mounted.
        volume: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// Another process works on it.
    #[error("another process holds the volume: an earlier restore has not ended yet")]
    InUse,
    /// There is data without a marker.
    #[error("the volume holds {0:?} and no marker; nothing of it is touched: clear it")]
    OtherData(String),
    /// It is another's.
    #[error("the volume carries the marker of member {member} on volume {volume}; nothing of it is touched: clear it")]
    OtherMarker {
        /// Of which member.
        member: MemberName,
        /// On which volume.
        volume: VolumeUid,
    },
    /// The volume is too small.
    #[error(
        "the volume has {free} bytes free, and the restore needs {needed}: the database (twice, to leave out what came later), and its log; make \
         spec.storage.size larger"
    )]
    NoRoom {
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// A later line of etcd made the backup.
    #[error(
        "the backup is of etcd {backup}, and {version} is to run, which can't read what a later line wrote; create the \
         cluster anew with spec.version of that line or a later one"
    )]
    Later {
        /// What made it.
        backup: String,
        /// What is to run.
        version: EtcdVersion,
    },
    /// The log can't be read.
    #[error(transparent)]
    Log(#[from] WalError),
    /// etcdutl has made no log.
    #[error("etcdutl has made no write-ahead log with an entry")]
    NoLog,
}

impl SeedError {
    pub(super) fn volume(what: &'static str, volume: &Path, source: io::Error) -> Self {
        Self::Volume { what, volume: volume.to_owned(), source }
    }

    /// The same for the notice board.
    pub(super) fn refusal(&self) -> Refusal {
        let reason = match self {
            Self::Restore(error) => of_restore(error),
            Self::Marker(_) => Reason::VolumeUnreadable,
            Self::Ticket(_) => Reason::BadTicket,
            Self::Volume { source, .. } => or_no_room(source, Reason::VolumeUnreadable),
            Self::InUse => Reason::VolumeInUse,
            Self::OtherData(_) | Self::OtherMarker { .. } => Reason::VolumeHasOtherData,
            Self::NoRoom { .. } => Reason::NoRoom,
            Self::Later { .. } | Self::Log(_) | Self::NoLog => Reason::RestoreFailed,
        };
        Refusal::new(reason, self.to_string())
    }
}

impl From<crate::store::StoreError> for SeedError {
    fn from(error: StoreError) -> Self {
        Self::Restore(error.into())
    }
}

fn or_no_room(fault: &io::Error, otherwise: Reason) -> Reason {
    if is_full(fault) { Reason::NoRoom } else { otherwise }
}

fn of_store(error: &StoreError) -> Reason {
    match error {
        StoreError::Address(_)
        | StoreError::Options(_)
        | StoreError::Credentials(_)
        | StoreError::Certificates { .. }
        | StoreError::Open { .. }
        | StoreError::OtherRegion { .. } => Reason::StoreInvalid,
        StoreError::NoBucket(_) => Reason::BucketMissing,
        StoreError::Refused { .. } => Reason::StoreRefused,
        StoreError::OtherFormat { .. } => Reason::BackupMissing,
        // Of a manifest or a data object, whose name was read in the store.
        StoreError::Missing(_) | StoreError::Short { .. } | StoreError::TooLarge { .. } => Reason::BackupDamaged,
        // Of these a restore, which only reads, meets the second alone.
        StoreError::Full { .. }
        | StoreError::Failed { .. }
        | StoreError::Overwrites { .. }
        | StoreError::Unlinked { .. }
        | StoreError::Locked { .. } => Reason::StoreFailed,
    }
}

fn of_chain(fault: &ChainError) -> Reason {
    match fault {
        ChainError::Store(error) => of_store(error),
        ChainError::NoFull(_) => Reason::BackupMissing,
        ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. } => Reason::BackupDamaged,
    }
}

fn of_restore(error: &RestoreError) -> Reason {
    match error {
        RestoreError::Store(error) | RestoreError::Data(DataError::Store(error)) => of_store(error),
        RestoreError::Chain(fault) => of_chain(fault),
        RestoreError::BrokenOff(damage) => of_chain(&damage.fault),
        RestoreError::AboveQuota { .. } => Reason::AboveQuota,
        RestoreError::NoRoom { .. } => Reason::NoRoom,
        RestoreError::Keys(_) | RestoreError::Data(DataError::Keys(_)) => Reason::KeysUnfit,
        RestoreError::Choice(_) => Reason::BackupMissing,
        RestoreError::Headless(_)
        | RestoreError::OtherManifest { .. }
        | RestoreError::Data(DataError::Frame { .. } | DataError::Seal { .. } | DataError::Hash(_))
        | RestoreError::Delta { .. }
        | RestoreError::Full { .. }
        | RestoreError::Compacted { .. }
        | RestoreError::Bolt(_)
        | RestoreError::Append(AppendError::Bolt(_) | AppendError::LastKey(_) | AppendError::Order { .. }) => {
            Reason::BackupDamaged
        }
        RestoreError::Append(AppendError::Write(source)) | RestoreError::Write { source, .. } => {
            or_no_room(source, Reason::RestoreFailed)
        }
        RestoreError::Etcdutl { stderr, .. } if NO_ROOM.iter().any(|words| stderr.contains(words)) => Reason::NoRoom,
        RestoreError::Data(DataError::Thread(_))
        | RestoreError::OtherHistory { .. }
        | RestoreError::Exists(_)
        | RestoreError::Busy(_)
        | RestoreError::Run { .. }
        | RestoreError::Etcdutl { .. }
        | RestoreError::Thread(_) => Reason::RestoreFailed,
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn that_etcdutl_finds_no_room_is_told_as_that() {
        let told = |words: &str| {
            let stderr = format!("panic: write /volume/data/member/wal/0.tmp: {words}");
            SeedError::from(RestoreError::Etcdutl { status: ExitStatus::default(), stderr }).refusal().reason
        };
        for words in ["no space left on device", "disk quota exceeded", "file too large"] {
            assert_eq!(told(words), Reason::NoRoom, "{words}");
        }
        assert_eq!(told("input/output error"), Reason::RestoreFailed);
    }
}
