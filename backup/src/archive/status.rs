//! What an archive says of itself at `GET /status`: pure types, shared with the operator.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ArchiveError;
use super::feed::FeedError;
use super::flush::FlushError;
use crate::format::{ChainError, CommitError};
use crate::snapshot;
use crate::store::StoreError;

/// Where the archive beside a member answers.
pub const PORT: u16 = 2382;

/// The path of the report.
pub const PATH: &str = "/status";

/// The longest message of a fault, in characters. What fails says so at its begin.
const LONGEST_MESSAGE: usize = 600;

/// What an archive does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// It follows what another one records, ready to go on from there.
    Standby,
    /// It records.
    Committer,
}

/// Why it can't do what it should: a closed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// The address, an option, or the form of the credentials is wrong.
    StoreInvalid,
    /// The bucket does not exist.
    BucketMissing,
    /// The store refuses the credentials.
    StoreRefused,
    /// The public keys to which is to be encrypted are missing, or are none.
    KeysUnfit,
    /// The store can't do what backups need, or its prefix holds something else.
    StoreUnfit,
    /// The store does not answer, or fails.
    StoreFailed,
    /// The member can't be read.
    MemberUnreadable,
    /// A full snapshot did not arrive whole, or is no sound database.
    SnapshotBroken,
    /// What was recorded can't be gone on with: a new full snapshot is needed.
    HistoryBroken,
    /// One of a later version.
    #[serde(other)]
    Other,
}

/// Something that keeps it from doing what it should.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// In a word.
    pub reason: Reason,
    /// In a sentence.
    pub message: String,
    /// Since when it has been this reason.
    pub since: Timestamp,
}

/// Up to where all is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// The last revision.
    pub revision: u64,
    /// When it was recorded.
    pub committed_at: Timestamp,
    /// The last revision of the full snapshot that the generation began with.
    pub full_revision: u64,
    /// When that was taken.
    pub full_taken: Timestamp,
}

/// How far the store is behind the member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// In revisions.
    pub revisions: u64,
    /// For how many seconds the member has had something that is not in the store.
    pub seconds: u64,
}

/// What `GET /status` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What it does.
    pub role: Role,
    /// The address of the store.
    pub location: String,
    /// Whose record it is.
    pub lineage: String,
    /// The generation that is recorded into, as `<cluster>/<name>`; `None` before there is one.
    pub generation: Option<String>,
    /// Its end.
    pub head: Option<Head>,
    /// How far the store is behind. `None` if that is not known: there is no generation, or the member does not answer.
    pub lag: Option<Lag>,
    /// What is wrong.
    pub fault: Option<Fault>,
}

impl Reason {
    /// Its name, as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StoreInvalid => "StoreInvalid",
            Self::BucketMissing => "BucketMissing",
            Self::StoreRefused => "StoreRefused",
            Self::KeysUnfit => "KeysUnfit",
            Self::StoreUnfit => "StoreUnfit",
            Self::StoreFailed => "StoreFailed",
            Self::MemberUnreadable => "MemberUnreadable",
            Self::SnapshotBroken => "SnapshotBroken",
            Self::HistoryBroken => "HistoryBroken",
            Self::Other => "Other",
        }
    }

    pub(super) fn of_store(error: &StoreError) -> Self {
        snapshot::Reason::of_store(error).into()
    }

    pub(super) fn of(error: &ArchiveError) -> Self {
        match error {
            ArchiveError::Access(_)
            | ArchiveError::Etcd(_)
            | ArchiveError::Silent
            | ArchiveError::TooOld(_)
            | ArchiveError::Feed(FeedError::Etcd(_) | FeedError::Canceled(_)) => Self::MemberUnreadable,
            ArchiveError::Feed(FeedError::Compacted(_))
            | ArchiveError::Fault(_)
            | ArchiveError::Chain(
                ChainError::NoFull(_) | ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. },
            )
            | ArchiveError::Flush(
                FlushError::OtherRecipients
                | FlushError::Chain(
                    ChainError::NoFull(_)
                    | ChainError::Manifest { .. }
                    | ChainError::Broken(_)
                    | ChainError::Gap { .. },
                ),
            ) => Self::HistoryBroken,
            // Of the first, more came than could be stored in time.
            ArchiveError::Feed(FeedError::Overflow(_))
            | ArchiveError::Task(_)
            | ArchiveError::Flush(FlushError::Commit(CommitError::Lost(_) | CommitError::Inconsistent(_))) => {
                Self::StoreFailed
            }
            ArchiveError::Store(error)
            | ArchiveError::Chain(ChainError::Store(error))
            | ArchiveError::Flush(FlushError::Chain(ChainError::Store(error))) => Self::of_store(error),
            ArchiveError::Flush(FlushError::Commit(CommitError::Store { source, .. })) => Self::of_store(source),
            ArchiveError::Keys(_) => Self::KeysUnfit,
            ArchiveError::Take(error) => snapshot::Reason::of(error).into(),
        }
    }
}

impl From<snapshot::Reason> for Reason {
    fn from(reason: snapshot::Reason) -> Self {
        match reason {
            snapshot::Reason::StoreInvalid => Self::StoreInvalid,
            snapshot::Reason::BucketMissing => Self::BucketMissing,
            snapshot::Reason::StoreRefused => Self::StoreRefused,
            snapshot::Reason::KeysUnfit => Self::KeysUnfit,
            snapshot::Reason::StoreUnfit => Self::StoreUnfit,
            snapshot::Reason::StoreFailed | snapshot::Reason::StoreFull => Self::StoreFailed,
            snapshot::Reason::NoHealthyMember => Self::MemberUnreadable,
            snapshot::Reason::SnapshotBroken => Self::SnapshotBroken,
        }
    }
}

/// A message in the length that a report has room for.
pub(super) fn cut(message: &str) -> String {
    message.chars().take(LONGEST_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_is_the_agreed_one_and_a_later_reason_is_read() {
        let text = r#"{"role":"committer","location":"s3://b/p","lineage":"u","generation":"c/g","head":{"revision":9,"committedAt":"2026-11-21T14:25:36Z","fullRevision":3,"fullTaken":"2026-11-21T14:00:00Z"},"lag":{"revisions":2,"seconds":1},"fault":{"reason":"StoreFailed","message":"m","since":"2026-11-21T14:25:36Z"}}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        let later: Report = serde_json::from_str(&text.replace("StoreFailed", "StoreHaunted")).unwrap();
        assert_eq!(later.fault.unwrap().reason, Reason::Other);
    }

    #[test]
    fn reasons_are_written_as_they_are_spelled() {
        for reason in [Reason::StoreInvalid, Reason::MemberUnreadable, Reason::HistoryBroken, Reason::Other] {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }
}
