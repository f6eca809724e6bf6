//! What a launcher that has not started etcd says of itself at `GET /quorate`: pure types, shared with the operator.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ticket::{VolumeMark, VolumeUid};

/// Where the launcher serves its report: the port on which etcd itself serves its metrics afterwards.
pub const PORT: u16 = 2381;

/// The path of the report. etcd answers 404 there, so a 404 means that the launcher has become etcd.
pub const PATH: &str = "/quorate";

/// Whether there is something to be mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Waiting for the operator; nothing is wrong.
    Waiting,
    /// A ticket was there and was not followed.
    Refused,
    /// A backup is being restored onto the volume, before the launcher: at work, or trying again.
    Restoring,
}

/// Why etcd has not been started: a closed set. Those of a restore are told by what runs before the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// No ticket has arrived.
    NoTicket,
    /// The ticket is for another member than this pod's.
    OtherMember,
    /// The ticket is for another volume than this pod's.
    OtherVolume,
    /// A `resume` found neither a marker nor data; or a `create` did not find its mark, nor data: what the member had is lost.
    VolumeIsEmpty,
    /// The volume holds data without a marker, or carries the marker of another member or volume.
    VolumeHasOtherData,
    /// A `resume` found this member's marker, and no write-ahead log or one that holds neither an entry nor a vote: an earlier
    /// `create` died in its first milliseconds, or the data is lost. Only a `create` may start here.
    VolumeHasNoEntry,
    /// Another process holds the volume: this member's last etcd has not ended yet. Says nothing about the data.
    VolumeInUse,
    /// The volume can't be read or written, or what is on it can't be understood.
    VolumeUnreadable,
    /// The image's etcd is not of the ticket's version.
    WrongVersion,
    /// The annotation is no ticket, or its flags don't fit.
    BadTicket,
    /// There is no etcd in the image, or it can't be run.
    BinaryMissing,
    /// A ticket to start on a restored backup found none on the volume.
    VolumeNotRestored,
    /// A backup is being restored.
    Restoring,
    /// The store's address, an option, or the form of its credentials is wrong.
    StoreInvalid,
    /// The bucket does not exist.
    BucketMissing,
    /// The store refuses the credentials.
    StoreRefused,
    /// The backup is encrypted, and the private key that reads it is missing, or is none, or another's.
    KeysUnfit,
    /// The store does not answer, or fails.
    StoreFailed,
    /// The store holds no backup that is what was asked for.
    BackupMissing,
    /// A part of the backup is missing or damaged.
    BackupDamaged,
    /// The volume has no room for the backup.
    NoRoom,
    /// What is live in the backup is larger than etcd's quota.
    AboveQuota,
    /// The restore failed for another reason.
    RestoreFailed,
}

impl Reason {
    /// Whether this is a mere wait or a refusal.
    pub fn state(self) -> State {
        match self {
            Self::NoTicket => State::Waiting,
            Self::OtherMember
            | Self::OtherVolume
            | Self::VolumeIsEmpty
            | Self::VolumeHasOtherData
            | Self::VolumeHasNoEntry
            | Self::VolumeInUse
            | Self::VolumeUnreadable
            | Self::WrongVersion
            | Self::BadTicket
            | Self::BinaryMissing
            | Self::VolumeNotRestored => State::Refused,
            Self::Restoring
            | Self::StoreInvalid
            | Self::KeysUnfit
            | Self::BucketMissing
            | Self::StoreRefused
            | Self::StoreFailed
            | Self::BackupMissing
            | Self::BackupDamaged
            | Self::NoRoom
            | Self::AboveQuota
            | Self::RestoreFailed => State::Restoring,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its name is its form on the wire, as serde derives it.
        fmt::Debug::fmt(self, f)
    }
}

/// What `GET /quorate` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Waiting or refused.
    pub state: State,
    /// Why etcd has not been started.
    pub reason: Reason,
    /// The same for people: what was found and what would help.
    pub message: String,
    /// Since when the reason has been this one, in milliseconds since 1970.
    pub since: u64,
    /// For how long by then, in milliseconds: who asks may have another clock. Agents of before it was told say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_millis: Option<u64>,
    /// On which volume: the UID of the claim, or of the pod if the storage is ephemeral. At an address that another pod has
    /// by now, it is another one. Agents of before it was told say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeUid>,
    /// What that volume is marked with, if it was empty when the launcher began to wait: to be named on a ticket to create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<VolumeMark>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_is_the_agreed_one() {
        let report = Report {
            state: Reason::VolumeIsEmpty.state(),
            reason: Reason::VolumeIsEmpty,
            message: "m".into(),
            since: 1_700_000_000_000,
            for_millis: Some(7),
            volume: Some("claim-uid".into()),
            mark: Some("a1".into()),
        };
        let text = r#"{"state":"refused","reason":"VolumeIsEmpty","message":"m","since":1700000000000,"forMillis":7,"volume":"claim-uid","mark":"a1"}"#;
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        assert_eq!(serde_json::from_str::<Report>(text).unwrap(), report);
        let older = text.replace(r#","forMillis":7,"volume":"claim-uid","mark":"a1""#, "");
        let told = Report { for_millis: None, volume: None, mark: None, ..report };
        assert_eq!(serde_json::from_str::<Report>(&older).unwrap(), told);
        assert_eq!(Reason::NoTicket.state(), State::Waiting);
        assert_eq!(Reason::VolumeIsEmpty.to_string(), "VolumeIsEmpty");
    }
}
