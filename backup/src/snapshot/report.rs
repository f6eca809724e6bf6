//! What a snapshot came to, as the agent tells it to whoever started it: JSON, small enough for the message with which a
//! container ends.

use jiff::Timestamp;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{TakeError, Taken};
use crate::format::{CommitError, DataError};
use crate::keys::Fingerprint;
use crate::store::{Act, Store, StoreError};

/// Kubernetes keeps 4096 bytes of a container's last message. What fails says so at its begin.
const LONGEST_MESSAGE: usize = 2000;
/// What Linux says when a file system has no room, or a user or a file has no more of it.
const NO_ROOM: [Errno; 3] = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
/// How every address of a volume begins.
const VOLUME: &str = "file:";
/// What helps then.
const MAKE_ROOM: &str = "; make the volume larger, or remove old backups from it (quorate-agent prune)";

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub enum Report {
    /// The backup is in the store.
    Complete(Box<Complete>),
    /// There is none.
    Failed(Failure),
}

/// A backup that is in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Complete {
    /// The store's address.
    pub location: String,
    /// The manifest's key in it.
    pub manifest: String,
    /// The member that was read: its client URL.
    pub endpoint: String,
    /// Its version.
    pub etcd_version: String,
    /// etcd's id of the cluster, as 16 hexadecimal digits.
    pub cluster_id: String,
    /// The last revision.
    pub revision: u64,
    /// Up to where the history was compacted.
    pub compact_revision: u64,
    /// The size of the database, in bytes.
    pub database_bytes: u64,
    /// The size of the data object, in bytes.
    pub stored_bytes: u64,
    /// The hash of the data object.
    pub blake3: String,
    /// The hash of the manifest.
    pub manifest_blake3: String,
    /// To whom it is encrypted: fingerprints of public keys. Empty: it is not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encrypted_to: Vec<Fingerprint>,
    /// When the database was in this state.
    pub taken: Timestamp,
    /// How long it took.
    pub seconds: f64,
}

/// Why there is no backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// In a word.
    pub reason: Reason,
    /// In a sentence.
    pub message: String,
}

/// Why there is no backup, told apart by who can do what about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The address, an option, or the form of the credentials is wrong.
    StoreInvalid,
    /// The bucket does not exist.
    BucketMissing,
    /// The store refuses the credentials.
    StoreRefused,
    /// The public keys to which it is to be encrypted are missing, or are none.
    KeysUnfit,
    /// The store can't do what backups need, or its prefix holds something else.
    StoreUnfit,
    /// The store is a volume, and has no room.
    StoreFull,
    /// The store does not answer, or fails.
    StoreFailed,
    /// No member can be read.
    NoHealthyMember,
    /// The snapshot did not arrive whole, or is no sound database.
    SnapshotBroken,
}

impl Reason {
    /// Whether a repetition would end the same way, until somebody has done something about it.
    pub fn is_final(self) -> bool {
        match self {
            Self::StoreInvalid
            | Self::BucketMissing
            | Self::StoreRefused
            | Self::KeysUnfit
            | Self::StoreUnfit
            | Self::StoreFull => true,
            Self::StoreFailed | Self::NoHealthyMember | Self::SnapshotBroken => false,
        }
    }

    pub(crate) fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::Address(_)
            | StoreError::Options(_)
            | StoreError::Credentials(_)
            | StoreError::Certificates { .. }
            | StoreError::Open { .. } => Self::StoreInvalid,
            StoreError::NoBucket(_) => Self::BucketMissing,
            StoreError::Refused { .. } => Self::StoreRefused,
            StoreError::Overwrites { .. } | StoreError::OtherFormat { .. } => Self::StoreUnfit,
            StoreError::Failed { failure, detail }
                if failure.act == Act::Write && failure.address.starts_with(VOLUME) && is_no_room(detail) =>
            {
                Self::StoreFull
            }
            StoreError::Missing(_)
            | StoreError::Failed { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Short { .. } => Self::StoreFailed,
        }
    }

    pub(crate) fn of(error: &TakeError) -> Self {
        match error {
            TakeError::Member(_) | TakeError::Access(_) | TakeError::Status(_) => Self::NoHealthyMember,
            TakeError::Store(error) | TakeError::Data(DataError::Store(error)) => Self::of_store(error),
            TakeError::Keys(_) | TakeError::Data(DataError::Keys(_)) => Self::KeysUnfit,
            TakeError::Commit(CommitError::Store { source, .. }) => Self::of_store(source),
            TakeError::Commit(CommitError::Lost(_) | CommitError::Inconsistent(_)) | TakeError::TooLate(_) => {
                Self::StoreFailed
            }
            TakeError::Snapshot(_)
            | TakeError::Data(
                DataError::Frame { .. } | DataError::Seal { .. } | DataError::Hash(_) | DataError::Thread(_),
            )
            | TakeError::Database(_)
            | TakeError::Record(_)
            | TakeError::Revision(_)
            | TakeError::Thread(_) => Self::SnapshotBroken,
        }
    }
}

impl Failure {
    /// Of a store that can't be opened.
    pub fn of_store(error: &StoreError) -> Self {
        Self::new(Reason::of_store(error), &error.to_string())
    }

    /// Of a snapshot that failed.
    pub fn of(error: &TakeError) -> Self {
        Self::new(Reason::of(error), &error.to_string())
    }

    fn new(reason: Reason, message: &str) -> Self {
        let remedy = if reason == Reason::StoreFull { MAKE_ROOM } else { "" };
        Self { reason, message: message.chars().take(LONGEST_MESSAGE).chain(remedy.chars()).collect() }
    }
}

/// Whether these are the words of such a fault. They name its number, and the library says nothing else of it.
fn is_no_room(detail: &str) -> bool {
    NO_ROOM.iter().any(|fault| detail.contains(&format!("(os error {})", fault.raw_os_error())))
}

impl Complete {
    /// Of a snapshot in this store.
    pub fn of(store: &Store, taken: &Taken) -> Self {
        let Taken { generation, full, hash, event_hash: _, endpoint, took } = taken;
        Self {
            location: store.address().to_string(),
            manifest: generation.full().to_string(),
            endpoint: endpoint.clone(),
            etcd_version: full.etcd_version.clone(),
            cluster_id: generation.cluster.to_string(),
            revision: full.revision.get(),
            compact_revision: full.compact_revision.get(),
            database_bytes: full.database_bytes,
            stored_bytes: full.data.stored_bytes(),
            blake3: full.data.blake3.to_string(),
            manifest_blake3: hash.to_string(),
            encrypted_to: full.data.recipients().to_vec(),
            taken: full.taken,
            seconds: took.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::store::{self, Key};

    /// As a store tells that something failed, with these words of the library.
    fn failed(act: Act, address: &str, detail: String) -> StoreError {
        let failure = store::Failure { act, key: "blue/full".into(), address: address.into() };
        StoreError::Failed { failure: Box::new(failure), detail }
    }

    fn words(fault: Errno) -> String {
        format!("Generic LocalFileSystem error: Unable to copy data to file: {}", io::Error::from(fault))
    }

    #[test]
    fn a_volume_without_room_has_a_word_of_its_own_and_is_told_with_what_helps() {
        let full = |fault| failed(Act::Write, "file:///backups", words(fault));
        for fault in NO_ROOM {
            let commit = CommitError::Store { key: Key::new("blue/full"), source: Box::new(full(fault)) };
            let failures = [
                Failure::of_store(&full(fault)),
                Failure::of(&TakeError::Store(full(fault))),
                Failure::of(&TakeError::Data(DataError::Store(full(fault)))),
                Failure::of(&TakeError::Commit(commit)),
            ];
            for Failure { reason, message } in failures {
                assert_eq!(reason, Reason::StoreFull, "{message}");
                assert!(message.contains("in file:///backups") && message.ends_with(MAKE_ROOM), "{message}");
            }
        }
        assert!(Reason::StoreFull.is_final());
        let long = Failure::new(Reason::StoreFull, &"x".repeat(10_000));
        assert!(long.message.ends_with(MAKE_ROOM) && long.message.len() < 4096);
    }

    #[test]
    fn what_else_fails_is_tried_again() {
        let others = [
            failed(Act::Write, "file:///backups", words(Errno::IO)),
            // It is the number that counts, all of it.
            failed(Act::Write, "file:///backups", "odd (os error 281)".into()),
            failed(Act::Read, "file:///backups", words(Errno::NOSPC)),
            // What a server tells of its own disk is not about a volume of ours.
            failed(Act::Write, "s3://bucket/prefix", words(Errno::NOSPC)),
        ];
        for error in others {
            let Failure { reason, message } = Failure::of_store(&error);
            assert!(reason == Reason::StoreFailed && !reason.is_final() && !message.contains(MAKE_ROOM), "{message}");
        }
    }
}
