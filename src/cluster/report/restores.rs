//! The words for restores of backups into new clusters. Only words; when they are told is decided elsewhere.

use quorate_backup::launch;
use quorate_crds::Reason;

use super::sentences::Told;
use crate::cluster::observe::Observed;
use crate::cluster::observe::backup::Backup;
use crate::cluster::observe::said::Complaint;

/// What keeps a restore from being tried.
pub fn of_backup(observed: &Observed) -> Told {
    match &observed.backup {
        Some(Backup::Awaited(words)) => Told { reason: Reason::BackupAwaited, sentence: words.clone() },
        Some(Backup::Unfit(reason, words)) => Told { reason: *reason, sentence: words.clone() },
        Some(Backup::Ready(_)) | None => {
            Told { reason: Reason::Restoring, sentence: "The backup is about to be restored.".into() }
        }
    }
}

/// Why a restore fails, in the words of what restores.
pub fn failing(complaint: Option<&Complaint>, member: &str) -> Told {
    let Some(Complaint { reason, message }) = complaint else {
        let sentence = format!("{member}: the backup can't be restored: see the log of the container restore.");
        return Told { reason: Reason::RestoreFailed, sentence };
    };
    let sentence = format!("{member}: the backup can't be restored, which is tried again: {message}");
    Told { reason: word(*reason), sentence }
}

fn word(reason: launch::Reason) -> Reason {
    match reason {
        launch::Reason::StoreInvalid => Reason::StoreInvalid,
        launch::Reason::BucketMissing => Reason::BucketMissing,
        launch::Reason::StoreRefused => Reason::StoreRefused,
        launch::Reason::KeysUnfit => Reason::KeysUnfit,
        launch::Reason::StoreFailed => Reason::StoreFailed,
        launch::Reason::BackupMissing => Reason::BackupMissing,
        launch::Reason::BackupDamaged => Reason::BackupDamaged,
        launch::Reason::NoRoom => Reason::NoRoomToRestore,
        launch::Reason::AboveQuota => Reason::AboveQuota,
        launch::Reason::Restoring => Reason::Restoring,
        launch::Reason::RestoreFailed
        | launch::Reason::NoTicket
        | launch::Reason::OtherMember
        | launch::Reason::OtherVolume
        | launch::Reason::VolumeIsEmpty
        | launch::Reason::VolumeHasOtherData
        | launch::Reason::VolumeHasNoEntry
        | launch::Reason::VolumeNotRestored
        | launch::Reason::VolumeInUse
        | launch::Reason::VolumeUnreadable
        | launch::Reason::WrongVersion
        | launch::Reason::BadTicket
        | launch::Reason::BinaryMissing => Reason::RestoreFailed,
    }
}
