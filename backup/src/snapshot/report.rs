//! What a snapshot came to, as the agent tells it to whoever started it: JSON, small enough for the message with which a
//! container ends.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{TakeError, Taken};
use crate::format::{CommitError, DataError};
use crate::keys::Fingerprint;
use crate::store::{Store, StoreError};

/// Kubernetes keeps 4096 bytes of a container's last message. What fails says so at its begin.
const LONGEST_MESSAGE: usize = 2000;

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

/// The exit code of a failure that a repetition would not mend. The one of all others is 1. Jobs go by it.
pub const FINAL: u8 = 3;

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
            | StoreError::Open { .. }
            | StoreError::OtherRegion { .. } => Self::StoreInvalid,
            StoreError::NoBucket(_) => Self::BucketMissing,
            StoreError::Refused { .. } => Self::StoreRefused,
            StoreError::Overwrites { .. } | StoreError::Unlinked { .. } | StoreError::OtherFormat { .. } => {
                Self::StoreUnfit
            }
            StoreError::Full { .. } => Self::StoreFull,
            // A snapshot overwrites nothing, and takes back only what it has just written.
            StoreError::Locked { .. }
            | StoreError::Missing(_)
            | StoreError::Failed { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Short { .. } => Self::StoreFailed,
        }
    }

    pub(crate) fn of(error: &TakeError) -> Self {
        match error {
            TakeError::Member(_) | TakeError::Access(_) | TakeError::Status(_) | TakeError::Silent(_) => {
                Self::NoHealthyMember
            }
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
        Self { reason, message: message.chars().take(LONGEST_MESSAGE).collect() }
    }
}

impl Complete {
    /// Of a snapshot in this store.
    pub fn of(store: &Store, taken: &Taken) -> Self {
        let Taken { generation, full, hash, seal: _, endpoint, took } = taken;
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
    use super::*;
    use crate::store::{self, Act, Key};

    /// Of a write to a volume.
    fn failure() -> store::Failure {
        store::Failure { act: Act::Write, key: "blue/full".into(), address: "file:///backups".into() }
    }

    #[test]
    fn a_volume_without_room_has_a_word_of_its_own_and_is_told_with_what_helps() {
        let detail = "make the volume larger: no space";
        let full = || StoreError::Full { failure: Box::new(failure()), detail: detail.into() };
        let commit = CommitError::Store { key: Key::new("blue/full"), source: Box::new(full()) };
        let failures = [
            Failure::of_store(&full()),
            Failure::of(&TakeError::Store(full())),
            Failure::of(&TakeError::Data(DataError::Store(full()))),
            Failure::of(&TakeError::Commit(commit)),
        ];
        for Failure { reason, message } in failures {
            assert!(reason == Reason::StoreFull && reason.is_final(), "{message}");
            assert!(message.ends_with(&format!("in file:///backups: {detail}")), "{message}");
        }
    }

    #[test]
    fn what_else_fails_is_tried_again_and_told_in_bounds() {
        let error = StoreError::Failed { failure: Box::new(failure()), detail: "x".repeat(10_000) };
        let Failure { reason, message } = Failure::of_store(&error);
        assert!(reason == Reason::StoreFailed && !reason.is_final() && message.len() == LONGEST_MESSAGE, "{message}");
    }
}
