//! Reads what a pod's launcher says of itself: what it waits for, what it refuses. What can't be read is silence.

use quorate_backup::launch::{Reason, Report};
use quorate_statemachine::{Mark, Millis, Refusal, Restore, Sight, Uid};

use super::said::Complaint;
use super::trouble::one_line;

/// How long a launcher may find its volume in use: the kubelet kills what has not ended after a pod's grace, 30 s.
const IN_USE_PATIENCE_MS: u64 = 35_000;

/// How long a launcher may find that its image has another version than its ticket: both are changed in one write, and the
/// ticket's file follows when the kubelet next looks at the pod.
const OTHER_VERSION_PATIENCE_MS: u64 = 5_000;

/// A launcher's report in the state machine's words, and its complaint. `volume` is the one whose pod was asked.
pub fn read(report: &[u8], volume: &Uid, now: Millis) -> (Sight, Option<Complaint>) {
    let Ok(report) = serde_json::from_slice::<Report>(report) else { return (Sight::Unknown, None) };
    // Another pod's, which has this address by now.
    if report.volume.as_ref().is_some_and(|told| told.as_str() != volume.as_str()) {
        return (Sight::Unknown, None);
    }
    // No launcher marks a volume like that, or tells a mark and not of what.
    if report.mark.as_ref().is_some_and(|mark| report.volume.is_none() || !mark.is_well_formed()) {
        return (Sight::Unknown, None);
    }
    // Agents of before it was told say only since when, by the clock of their node.
    let lasts = report.for_millis.unwrap_or_else(|| now.since(Millis(report.since)));
    let sight = match report.reason {
        Reason::NoTicket => return (Sight::Waiting(report.mark.map(|mark| Mark::new(mark.as_str()))), None),
        Reason::Restoring => return (Sight::Restoring(Restore::UnderWay), None),
        // After a forced deletion the member's last etcd still runs: that is no refusal yet, and it is not down either.
        Reason::VolumeInUse if lasts < IN_USE_PATIENCE_MS => return (Sight::Unknown, None),
        Reason::WrongVersion if lasts < OTHER_VERSION_PATIENCE_MS => return (Sight::Unknown, None),
        // Also that nothing was restored: it was, before the seed was told to start.
        Reason::VolumeIsEmpty | Reason::VolumeNotRestored => Sight::Refused(Refusal::VolumeLost),
        Reason::VolumeHasNoEntry => Sight::Refused(Refusal::NoEntry),
        Reason::VolumeHasOtherData => Sight::Refused(Refusal::VolumeForeign),
        Reason::OtherMember
        | Reason::OtherVolume
        | Reason::VolumeInUse
        | Reason::VolumeUnreadable
        | Reason::BadTicket => Sight::Refused(Refusal::Other),
        Reason::WrongVersion | Reason::BinaryMissing => Sight::Refused(Refusal::Binary),
        Reason::StoreInvalid
        | Reason::BucketMissing
        | Reason::StoreRefused
        | Reason::KeysUnfit
        | Reason::StoreFailed
        | Reason::BackupMissing
        | Reason::BackupDamaged
        | Reason::NoRoom
        | Reason::AboveQuota
        | Reason::RestoreFailed => Sight::Restoring(Restore::Fails),
    };
    (sight, Some(Complaint { reason: report.reason, message: one_line(&report.message) }))
}

#[cfg(test)]
mod tests {
    use quorate_backup::ticket::VolumeMark;
    use serde_json::json;

    use super::*;

    const MARK: &str = "00000000000000a1";

    fn refusing(reason: Reason, since: u64) -> Report {
        let volume = Some("claim-uid".into());
        let (state, message) = (reason.state(), "m".into());
        Report { state, reason, message, since, for_millis: None, volume, mark: Some(MARK.into()) }
    }

    fn told(report: &Report, now: Millis) -> (Sight, Option<Complaint>) {
        read(&serde_json::to_vec(report).unwrap(), &Uid::new("claim-uid"), now)
    }

    fn report(reason: Reason) -> (Sight, Option<Complaint>) {
        told(&refusing(reason, 1), Millis(1 + IN_USE_PATIENCE_MS))
    }

    #[test]
    fn a_volume_whose_last_user_is_ending_is_no_refusal_yet() {
        let report = refusing(Reason::VolumeInUse, 100);
        assert_eq!(told(&report, Millis(99)), (Sight::Unknown, None));
        assert_eq!(told(&report, Millis(99 + IN_USE_PATIENCE_MS)), (Sight::Unknown, None));
        assert_eq!(told(&report, Millis(100 + IN_USE_PATIENCE_MS)).0, Sight::Refused(Refusal::Other));
    }

    #[test]
    fn how_long_it_lasts_is_told_by_the_launchers_own_clock() {
        for (since, now) in [(0, u64::MAX), (u64::MAX, 0)] {
            let lasting = |for_millis| Report { for_millis: Some(for_millis), ..refusing(Reason::VolumeInUse, since) };
            assert_eq!(told(&lasting(IN_USE_PATIENCE_MS - 1), Millis(now)), (Sight::Unknown, None));
            assert_eq!(told(&lasting(IN_USE_PATIENCE_MS), Millis(now)).0, Sight::Refused(Refusal::Other));
        }
    }

    #[test]
    fn a_ticket_that_is_not_there_yet_is_no_refusal_yet() {
        let report = refusing(Reason::WrongVersion, 100);
        assert_eq!(told(&report, Millis(99 + OTHER_VERSION_PATIENCE_MS)), (Sight::Unknown, None));
        assert_eq!(told(&report, Millis(100 + OTHER_VERSION_PATIENCE_MS)).0, Sight::Refused(Refusal::Binary));
    }

    #[test]
    fn only_what_speaks_of_lost_data_counts_as_lost() {
        assert_eq!(report(Reason::NoTicket), (Sight::Waiting(Some(Mark::new(MARK))), None));
        assert_eq!(report(Reason::VolumeHasNoEntry).0, Sight::Refused(Refusal::NoEntry));
        assert_eq!(report(Reason::VolumeIsEmpty).0, Sight::Refused(Refusal::VolumeLost));
        assert_eq!(report(Reason::VolumeHasOtherData).0, Sight::Refused(Refusal::VolumeForeign));
        for other in [Reason::VolumeInUse, Reason::VolumeUnreadable, Reason::BadTicket] {
            assert_eq!(report(other).0, Sight::Refused(Refusal::Other));
        }
        for binary in [Reason::WrongVersion, Reason::BinaryMissing] {
            assert_eq!(report(binary).0, Sight::Refused(Refusal::Binary));
        }
        assert_eq!(report(Reason::BadTicket).1.unwrap().to_string(), "BadTicket: m");
    }

    #[test]
    fn a_restore_is_at_work_or_says_what_is_wrong() {
        assert_eq!(report(Reason::Restoring), (Sight::Restoring(Restore::UnderWay), None));
        let (sight, complaint) = report(Reason::StoreRefused);
        assert_eq!((sight, complaint.unwrap().reason), (Sight::Restoring(Restore::Fails), Reason::StoreRefused));
        assert_eq!(report(Reason::VolumeNotRestored).0, Sight::Refused(Refusal::VolumeLost));
    }

    #[test]
    fn a_report_that_cannot_be_read_is_silence() {
        for odd in [json!({}), json!({ "state": "waiting", "reason": "New", "message": "", "since": 0 })] {
            assert_eq!(read(odd.to_string().as_bytes(), &Uid::new("u"), Millis(0)), (Sight::Unknown, None));
        }
        assert_eq!(read(b"<html>", &Uid::new("u"), Millis(0)), (Sight::Unknown, None));
    }

    #[test]
    fn a_report_of_another_pods_is_silence() {
        let waiting = refusing(Reason::NoTicket, 1);
        assert_eq!(told(&waiting, Millis(1)).0, Sight::Waiting(Some(Mark::new(MARK))));
        let other = Report { volume: Some("another".into()), ..waiting.clone() };
        assert_eq!(told(&other, Millis(1)), (Sight::Unknown, None));
        // One of an agent that says neither whose it is, nor what is marked.
        assert_eq!(told(&Report { volume: None, mark: None, ..waiting.clone() }, Millis(1)).0, Sight::Waiting(None));
        assert_eq!(told(&Report { volume: None, ..waiting }, Millis(1)), (Sight::Unknown, None));
    }

    #[test]
    fn a_mark_that_no_launcher_makes_is_silence() {
        for odd in ["", "a1", "00000000000000g1", &"a".repeat(100_000)] {
            let report = Report { mark: Some(odd.into()), ..refusing(Reason::NoTicket, 1) };
            assert_eq!(told(&report, Millis(1)), (Sight::Unknown, None));
        }
        assert!(VolumeMark::random().is_well_formed());
    }
}
