//! The continuous backup in the status: whether every write reaches it in time, and how far it has come. Pure.

use std::iter;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use quorate_backup::archive::status::{self, Head, Lag, Report, Role};
use quorate_crds::{BackupState, ConditionType, ContinuousBackup, EtcdClusterStatus, Phase, Reason};
use quorate_statemachine::LookAgain;

use super::conditions::Truth;
use super::sentences::Told;
use super::verify;
use crate::cluster::observe::Observed;
use crate::cluster::observe::facts::to_seconds;
use crate::metrics::Archive;

/// How many flush intervals a write may take to the store, and how much longer: a hand-over, a slow answer.
const FLUSHES: i64 = 3;
const MARGIN: SignedDuration = SignedDuration::from_secs(20);
/// How often the state is brought up to date while the cluster is written to.
const STATE_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// How long a write may take to the store.
fn limit(backup: &ContinuousBackup) -> SignedDuration {
    SignedDuration::from_secs(i64::from(backup.flush_interval_seconds) * FLUSHES) + MARGIN
}

/// The report that speaks for all: of the one that records, or the one that has seen most in the store.
fn best(observed: &Observed) -> Option<&Report> {
    let reports = observed.archives.reports.values().flatten();
    reports.max_by_key(|report| (report.role == Role::Committer, report.head.map(|head| head.revision)))
}

/// Whether every write reaches the store in time, and can be restored from there as far as that was tried.
pub fn verdict(observed: &Observed, now: Timestamp) -> (Truth, Told) {
    let (truth, told) = recorded(observed, now);
    match (truth, verify::fault(observed)) {
        (Truth::True, Some(fault)) => (Truth::False, fault),
        (Truth::True, None) | (Truth::False | Truth::Unknown, Some(_) | None) => (truth, told),
    }
}

/// Whether every write reaches the store in time.
fn recorded(observed: &Observed, now: Timestamp) -> (Truth, Told) {
    let told = |truth, reason, sentence: String| (truth, Told { reason, sentence });
    let Some(backup) = &observed.cluster.spec.backup else {
        return told(Truth::False, Reason::BackupOff, "spec.backup is not set: there is no continuous backup.".into());
    };
    let Some(report) = best(observed) else {
        let sentence = "No sidecar of a member tells how the continuous backup is.".into();
        return told(Truth::Unknown, Reason::ArchiveUnknown, sentence);
    };
    let limit = limit(backup);
    let fault = report.fault.as_ref();
    let behind = report.lag.and_then(|lag| behind(limit, lag));
    let fault_told = |fault: &status::Fault| {
        let lag = behind.map(|lag| format!("; it is behind by more than {lag:#}")).unwrap_or_default();
        Told { reason: word(fault.reason), sentence: format!("{}{lag}", fault.message) }
    };
    if report.head.is_none() {
        return match fault {
            Some(fault) => (Truth::False, fault_told(fault)),
            None => told(Truth::False, Reason::ArchiveBegins, "The first full snapshot is being taken.".into()),
        };
    }
    match (behind, fault) {
        (_, Some(fault)) if behind.is_some() || now.duration_since(fault.since) > limit => {
            (Truth::False, fault_told(fault))
        }
        (Some(lag), _) => {
            let sentence = format!(
                "The continuous backup is behind by more than {lag:#}. Look at the log of the container archive of the member \
                 that leads."
            );
            told(Truth::False, Reason::ArchiveBehind, sentence)
        }
        (None, _) if report.lag.is_none() => {
            let sentence = "How far the continuous backup is behind is not known: its member does not answer.".into();
            told(Truth::Unknown, Reason::ArchiveUnknown, sentence)
        }
        (None, _) => {
            let interval = backup.flush_interval_seconds;
            let sentence = format!("What is written is in {} after {interval} s or soon after.", report.location);
            told(Truth::True, Reason::Archiving, sentence)
        }
    }
}

/// How far it is behind, where that is more than the limit: the limit, or two, four, eight times as much. A lag that grows
/// all the time is told ever more seldom, as each change of a sentence is a write.
fn behind(limit: SignedDuration, Lag { revisions: _, seconds }: Lag) -> Option<SignedDuration> {
    let doubled = |told: &SignedDuration| told.is_positive().then(|| told.checked_mul(2)).flatten();
    let is_less = |told: &SignedDuration| i128::from(seconds) > i128::from(told.as_secs());
    iter::successors(Some(limit), doubled).take_while(is_less).last()
}

/// The reason as conditions write it.
fn word(reason: status::Reason) -> Reason {
    match reason {
        status::Reason::StoreInvalid => Reason::StoreInvalid,
        status::Reason::BucketMissing => Reason::BucketMissing,
        status::Reason::StoreRefused => Reason::StoreRefused,
        status::Reason::KeysUnfit => Reason::KeysUnfit,
        status::Reason::StoreUnfit => Reason::StoreUnfit,
        status::Reason::StoreFailed => Reason::StoreFailed,
        status::Reason::MemberUnreadable => Reason::NoHealthyMember,
        status::Reason::SnapshotBroken => Reason::SnapshotBroken,
        status::Reason::HistoryBroken | status::Reason::Other => Reason::ArchiveBehind,
    }
}

/// How far it has come, and whether it restores.
pub fn state(observed: &Observed, conditions: &[Condition], now: Timestamp) -> Option<BackupState> {
    let last_verified = verify::state(observed);
    progress(observed, conditions, now).map(|state| BackupState { last_verified, ..state })
}

/// How far it has come. While nothing else turns, it is brought up to date only now and then.
fn progress(observed: &Observed, conditions: &[Condition], now: Timestamp) -> Option<BackupState> {
    let old = observed.cluster.status.clone().unwrap_or_default();
    let backup = observed.cluster.spec.backup.as_ref()?;
    let found = best(observed).and_then(of);
    let (Some(old_state), Some(state)) = (&old.backup, &found) else { return found.or(old.backup) };
    let BackupState {
        location,
        lineage,
        generation,
        head_revision,
        committed_at: _,
        full_revision: _,
        full_at: _,
        last_verified: _,
    } = state;
    let same_place =
        (location, lineage, generation) == (&old_state.location, &old_state.lineage, &old_state.generation);
    let turned = truth(&old.conditions) != truth(conditions);
    let every = STATE_EVERY.max(SignedDuration::from_secs(i64::from(backup.flush_interval_seconds)));
    let due = old_state.committed_at.as_ref().is_none_or(|at| now.duration_since(at.0) >= every);
    if same_place && (*head_revision == old_state.head_revision || !(turned || due)) { old.backup } else { found }
}

fn of(report: &Report) -> Option<BackupState> {
    let Report { role: _, location, lineage, generation, head, lag: _, fault: _ } = report;
    let Head { revision, committed_at, full_revision, full_taken } = (*head)?;
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    Some(BackupState {
        location: location.clone(),
        lineage: lineage.clone(),
        generation: generation.clone()?,
        head_revision: number(revision),
        committed_at: Some(Time(to_seconds(committed_at))),
        full_revision: number(full_revision),
        full_at: Some(Time(to_seconds(full_taken))),
        last_verified: None,
    })
}

fn truth(conditions: &[Condition]) -> Option<&str> {
    ConditionType::BackupHealthy.among(conditions).map(|healthy| healthy.status.as_str())
}

/// When to look again: while the backup is not well, no watch tells when it is.
pub fn look_again(observed: &Observed, status: &EtcdClusterStatus, planned: LookAgain) -> LookAgain {
    let off = observed.cluster.spec.backup.is_none();
    let healthy = ConditionType::BackupHealthy.among(&status.conditions);
    // What could not be restored is tried again when that is due, and not sooner.
    let well = healthy.is_some_and(|own| own.status == "True" || own.reason == Reason::BackupUnproved.as_str());
    match planned {
        LookAgain::AtRest if !off && !well => LookAgain::Later,
        LookAgain::AtOnce | LookAgain::Soon | LookAgain::Later | LookAgain::AtRest => planned,
    }
}

/// How it is, for the metrics; `None` if there is none, or the cluster sleeps: then there is nothing to store, and nobody who
/// could.
pub fn of_metrics(observed: &Observed, status: &EtcdClusterStatus) -> Option<Archive> {
    observed.cluster.spec.backup.as_ref().filter(|_| status.phase != Some(Phase::Hibernated))?;
    let health = match truth(&status.conditions) {
        Some("True") => "healthy",
        Some("False") => "unhealthy",
        Some(_) | None => "unknown",
    };
    let lag_seconds = best(observed).and_then(|report| report.lag).map(|lag| lag.seconds);
    // The last backups are those of the status: what the sidecars said last stays while they are silent.
    let state = status.backup.as_ref();
    let committed_at = state.and_then(|state| state.committed_at.as_ref()).map(|at| at.0);
    let full_at = state.and_then(|state| state.full_at.as_ref()).map(|at| at.0);
    Some(Archive { health, lag_seconds, committed_at, full_at, proved_at: verify::proved_at(observed) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorate_crds::BackupStore;
    use quorate_statemachine::Serial;

    use super::super::fixture::{after, healthy};
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_000_000, 0);

    fn report(role: Role, revision: u64, seconds: u64) -> Report {
        let head = Head { revision, committed_at: NOW, full_revision: 3, full_taken: NOW };
        Report {
            role,
            location: "s3://bucket/etcd".into(),
            lineage: "uid".into(),
            generation: Some("c/g".into()),
            head: Some(head),
            lag: Some(Lag { revisions: seconds, seconds }),
            fault: None,
        }
    }

    fn fault(ago: i64) -> status::Fault {
        let since = NOW - SignedDuration::from_secs(ago);
        status::Fault { reason: status::Reason::StoreFailed, message: "the store is away".into(), since }
    }

    fn observed(reports: &[Option<Report>]) -> Observed {
        let mut observed = healthy();
        let mut object = (*observed.cluster).clone();
        object.spec.backup = Some(ContinuousBackup::to(BackupStore::default()));
        observed.cluster = Arc::new(object);
        observed.archives.reports = (0..).map(Serial).zip(reports.iter().cloned()).collect();
        observed
    }

    fn of_all(reports: &[Option<Report>]) -> (Truth, Reason) {
        let (truth, told) = verdict(&observed(reports), NOW);
        (truth, told.reason)
    }

    #[test]
    fn without_a_backup_there_is_none_and_that_is_no_news() {
        assert_eq!(verdict(&healthy(), NOW).1.reason, Reason::BackupOff);
        assert_eq!(state(&healthy(), &[], NOW), None);
        assert_eq!(look_again(&healthy(), &EtcdClusterStatus::default(), LookAgain::AtRest), LookAgain::AtRest);
    }

    #[test]
    fn silence_is_not_a_verdict() {
        assert_eq!(of_all(&[]), (Truth::Unknown, Reason::ArchiveUnknown));
        assert_eq!(of_all(&[None, None, None]), (Truth::Unknown, Reason::ArchiveUnknown));
        let silent = Report { lag: None, ..report(Role::Committer, 9, 0) };
        assert_eq!(of_all(&[Some(silent)]), (Truth::Unknown, Reason::ArchiveUnknown));
    }

    #[test]
    fn the_one_that_records_speaks_for_all_and_without_it_the_one_that_knows_most() {
        let (behind, fine) = (report(Role::Standby, 5, 900), report(Role::Committer, 9, 3));
        assert_eq!(of_all(&[Some(behind.clone()), Some(fine.clone()), None]), (Truth::True, Reason::Archiving));
        // In the middle of a hand-over nobody records.
        let follows = Report { role: Role::Standby, ..fine };
        assert_eq!(of_all(&[Some(behind.clone()), Some(follows), None]), (Truth::True, Reason::Archiving));
        assert_eq!(of_all(&[Some(behind)]), (Truth::False, Reason::ArchiveBehind));
    }

    #[test]
    fn the_lag_is_told_in_steps_that_double() {
        let told = |seconds, fault: Option<status::Fault>| {
            let told = verdict(&observed(&[Some(Report { fault, ..report(Role::Committer, 9, seconds) })]), NOW);
            told.1.sentence
        };
        let is_behind = |seconds, lag: &str| told(seconds, None).contains(&format!("behind by more than {lag}."));
        assert!(is_behind(51, "50s") && is_behind(100, "50s") && is_behind(101, "1m 40s") && is_behind(201, "3m 20s"));
        assert_eq!(told(101, Some(fault(5))), "the store is away; it is behind by more than 1m 40s");
        assert_eq!(told(10, Some(fault(51))), "the store is away");
        // What no clock shows ends, too.
        assert!(told(u64::MAX, None).contains("behind by more than"));
    }

    #[test]
    fn a_fault_counts_when_it_lasts_or_when_the_backup_falls_behind() {
        let with = |ago, seconds| Report { fault: Some(fault(ago)), ..report(Role::Committer, 9, seconds) };
        assert_eq!(of_all(&[Some(with(5, 10))]), (Truth::True, Reason::Archiving));
        assert_eq!(of_all(&[Some(with(51, 10))]), (Truth::False, Reason::StoreFailed));
        assert_eq!(of_all(&[Some(with(5, 51))]), (Truth::False, Reason::StoreFailed));
        let begins = Report { head: None, generation: None, ..report(Role::Committer, 0, 0) };
        assert_eq!(of_all(&[Some(begins.clone())]), (Truth::False, Reason::ArchiveBegins));
        let refused = Report { fault: Some(fault(0)), ..begins };
        assert_eq!(of_all(&[Some(refused)]), (Truth::False, Reason::StoreFailed));
    }

    #[test]
    fn the_state_is_written_when_something_turns_and_else_once_a_minute() {
        let later = |seconds: i64| NOW + SignedDuration::from_secs(seconds);
        let write = |observed: &Observed, now| {
            let plan = quorate_statemachine::plan(&observed.world);
            super::super::status(observed, &plan, now)
        };
        let first = write(&observed(&[Some(report(Role::Committer, 9, 0))]), NOW);
        assert_eq!(first.backup.as_ref().unwrap().head_revision, 9);
        let next = |report: Report, now| {
            let before = after(observed(&[Some(report)]), first.clone());
            write(&before, now).backup.unwrap()
        };
        assert_eq!(next(report(Role::Committer, 10, 0), later(59)).head_revision, 9);
        assert_eq!(next(report(Role::Committer, 10, 0), later(60)).head_revision, 10);
        assert_eq!(next(report(Role::Committer, 10, 900), later(1)).head_revision, 10, "it is not healthy any more");
        let other = Report { generation: Some("c/h".into()), ..report(Role::Committer, 10, 0) };
        assert_eq!(next(other, later(1)).head_revision, 10);
        // What the sidecars said last stays while they are silent.
        let silent = after(observed(&[None]), first.clone());
        assert_eq!(write(&silent, later(600)).backup, first.backup);
        // And at rest nothing is written.
        let rest = after(observed(&[Some(report(Role::Committer, 9, 0))]), first.clone());
        assert_eq!(write(&rest, later(600)), first);
    }

    #[test]
    fn the_metrics_tell_of_the_last_backup_as_the_status_does() {
        let told = |observed: &Observed, now| {
            let plan = quorate_statemachine::plan(&observed.world);
            let status = super::super::status(observed, &plan, now);
            (of_metrics(observed, &status), status)
        };
        assert_eq!(told(&healthy(), NOW).0, None);
        let begins = Report { head: None, generation: None, ..report(Role::Committer, 0, 0) };
        let archive = told(&observed(&[Some(begins)]), NOW).0.unwrap();
        assert_eq!((archive.committed_at, archive.full_at), (None, None));
        let full_taken = NOW - SignedDuration::from_hours(1);
        let head = Head { revision: 9, committed_at: NOW, full_revision: 3, full_taken };
        let (archive, status) =
            told(&observed(&[Some(Report { head: Some(head), ..report(Role::Committer, 9, 0) })]), NOW);
        let wanted = Archive {
            health: "healthy",
            lag_seconds: Some(0),
            committed_at: Some(NOW),
            full_at: Some(full_taken),
            proved_at: None,
        };
        assert_eq!(archive, Some(wanted));
        // Silence makes no backup undone.
        let silent = after(observed(&[None]), status);
        let (archive, mut status) = told(&silent, NOW + SignedDuration::from_mins(10));
        assert_eq!(archive, Some(Archive { health: "unknown", lag_seconds: None, ..wanted }));
        // Nor is anything undone of a cluster that sleeps.
        status.phase = Some(Phase::Hibernated);
        assert_eq!(of_metrics(&silent, &status), None);
    }
}
