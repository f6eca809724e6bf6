//! Whether the continuous backup was proved to restore, in the status. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use quorate_crds::{EtcdCluster, Reason, Verification, VerificationResult, names};

use super::sentences::Told;
use crate::cluster::observe::Observed;
use crate::cluster::observe::verify::{Attempt, Outcome};

/// What is told of an attempt that has ended well and said nothing that was read.
const UNREAD: &str = "The Job has ended well, and its pod was gone before its result was read.";

/// What the status tells of the last attempt.
fn told(cluster: &EtcdCluster) -> Option<&Verification> {
    cluster.status.as_ref()?.backup.as_ref()?.last_verified.as_ref()
}

/// What came of the last attempt: of the newest one that was found, or of the one that is told of.
pub fn state(observed: &Observed) -> Option<Verification> {
    observed.cluster.spec.backup.as_ref()?.verify.as_ref()?;
    let before = told(&observed.cluster);
    let Some(Attempt { ended, outcome }) = &observed.proofs.newest else { return before.cloned() };
    if before.is_some_and(|before| before.time.as_ref().is_some_and(|time| time.0 >= *ended)) {
        return before.cloned();
    }
    let time = Some(Time(*ended));
    let earlier = |result, message| Verification {
        time: time.clone(),
        result: Some(result),
        message: Some(message),
        proved_at: before.and_then(|before| before.proved_at.clone()),
        revision: before.and_then(|before| before.revision),
    };
    Some(match outcome {
        Outcome::Proved(proved) => Verification {
            result: Some(VerificationResult::Proved),
            message: None,
            proved_at: time.clone(),
            revision: i64::try_from(proved.revision).ok(),
            time,
        },
        Outcome::Failed(message) => earlier(VerificationResult::Failed, message.clone()),
        Outcome::Unread => earlier(VerificationResult::Unknown, UNREAD.into()),
    })
}

/// What is wrong with the backup, by the last attempt, or keeps it from being tried.
pub fn fault(observed: &Observed) -> Option<Told> {
    last_fault(observed).or_else(|| {
        let name = observed.proofs.name_taken.then(|| names::verification(&observed.cluster.name_any()))?;
        let sentence = format!(
            "The continuous backup is not proved by schedule: CronJob {name} is there and does not belong to this cluster. \
             Rename or delete it."
        );
        Some(Told { reason: Reason::NameTaken, sentence })
    })
}

fn last_fault(observed: &Observed) -> Option<Told> {
    let Verification { time, result, message, proved_at, revision: _ } = state(observed)?;
    match result? {
        VerificationResult::Proved | VerificationResult::Unknown => None,
        VerificationResult::Failed => {
            let at = time.map(|time| format!(" at {}", time.0)).unwrap_or_default();
            let last =
                proved_at.map_or_else(|| "It has never been".to_owned(), |last| format!("It last was at {}", last.0));
            let message = message.unwrap_or_default();
            let sentence = format!("The continuous backup could not be restored{at}: {message}. {last}.");
            Some(Told { reason: Reason::BackupUnproved, sentence })
        }
    }
}

/// When the backup was last proved, if it is to be.
pub fn proved_at(observed: &Observed) -> Option<Timestamp> {
    Some(state(observed)?.proved_at?.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorate_backup::care::Proved;
    use quorate_crds::{BackupState, BackupStore, BackupVerification, ContinuousBackup, EtcdClusterStatus};

    use super::super::fixture::{after, healthy};
    use super::*;

    /// An attempt that ended in this second: well, with a revision that is 0 if nobody has read it, or not.
    fn observed(found: Option<(i64, Result<u64, &str>)>) -> Observed {
        let mut observed = healthy();
        let mut object = (*observed.cluster).clone();
        let verify = Some(BackupVerification { schedule: "30 3 * * *".into() });
        object.spec.backup = Some(ContinuousBackup { verify, ..ContinuousBackup::to(BackupStore::default()) });
        observed.cluster = Arc::new(object);
        observed.proofs.newest = found.map(|(second, result)| Attempt {
            ended: Timestamp::constant(second, 0),
            outcome: match result {
                Ok(0) => Outcome::Unread,
                Ok(revision) => Outcome::Proved(Proved {
                    generation: "a/b/c".into(),
                    revision,
                    entries: 1,
                    events_applied: 0,
                    database_bytes: 1,
                    seconds: 1.0,
                }),
                Err(message) => Outcome::Failed(message.into()),
            },
        });
        observed
    }

    /// The same, once what was found before has been written.
    fn then(first: &Observed, found: Option<(i64, Result<u64, &str>)>) -> Observed {
        let backup = BackupState { last_verified: state(first), ..BackupState::default() };
        after(observed(found), EtcdClusterStatus { backup: Some(backup), ..EtcdClusterStatus::default() })
    }

    #[test]
    fn a_failure_is_told_and_what_was_proved_before_is_not_forgotten() {
        assert_eq!((state(&observed(None)), fault(&observed(None)).is_some()), (None, false));
        let proved = observed(Some((10, Ok(41))));
        assert!(fault(&proved).is_none());
        let failed = then(&proved, Some((20, Err("a/b/c/full is damaged"))));
        let shown = state(&failed).unwrap();
        assert_eq!((shown.result, shown.revision), (Some(VerificationResult::Failed), Some(41)));
        assert_eq!(proved_at(&failed), Some(Timestamp::constant(10, 0)));
        let told = fault(&failed).unwrap();
        assert!(told.reason == Reason::BackupUnproved && told.sentence.contains("damaged. It last was at"), "{told:?}");
        // It stays until another attempt has ended, whatever an older look brings.
        for silent in [None, Some((10, Ok(41)))] {
            assert_eq!(state(&then(&failed, silent)), Some(shown.clone()));
        }
        assert!(fault(&then(&failed, Some((30, Ok(50))))).is_none());
    }

    #[test]
    fn what_was_not_read_neither_proves_nor_fails() {
        let proved = observed(Some((10, Ok(41))));
        let unread = then(&proved, Some((20, Ok(0))));
        let shown = state(&unread).unwrap();
        assert_eq!((shown.result, shown.revision), (Some(VerificationResult::Unknown), Some(41)));
        assert_eq!((proved_at(&unread), fault(&unread).is_some()), (Some(Timestamp::constant(10, 0)), false));
        // It did end well, so an earlier failure is over; when it is proved next is not known.
        let failed = observed(Some((10, Err("no"))));
        let unread = then(&failed, Some((20, Ok(0))));
        assert_eq!((proved_at(&unread), fault(&unread).is_some()), (None, false));
        assert!(fault(&then(&unread, Some((30, Err("no"))))).is_some());
    }

    #[test]
    fn a_cron_job_of_somebody_else_is_named() {
        let mut kept_from = observed(None);
        kept_from.proofs.name_taken = true;
        let told = fault(&kept_from).unwrap();
        assert!(told.reason == Reason::NameTaken && told.sentence.contains("CronJob db-verify is"), "{told:?}");
        // What did not restore is worse.
        let mut failed = observed(Some((10, Err("no"))));
        failed.proofs.name_taken = true;
        assert_eq!(fault(&failed).unwrap().reason, Reason::BackupUnproved);
    }

    #[test]
    fn what_is_not_asked_for_any_more_is_forgotten() {
        let mut failed = then(&observed(Some((20, Err("no")))), None);
        let mut object = (*failed.cluster).clone();
        object.spec.backup.as_mut().unwrap().verify = None;
        failed.cluster = Arc::new(object);
        assert_eq!((state(&failed), fault(&failed).is_some()), (None, false));
    }
}
