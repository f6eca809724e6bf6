//! The status of an EtcdBackup, kstatus-clean: its conditions are always there, and dated by when they turned. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use quorate_backup::snapshot::{Complete, Progress};
use quorate_crds::{
    BackupPhase, BackupProgress, BackupStore, ConditionType, EtcdBackup, EtcdBackupStatus, HexId, Reason,
};

use crate::events::News;

/// How often the progress is written at most.
const PROGRESS_EVERY: SignedDuration = SignedDuration::from_secs(5);

/// A backup at some time.
#[derive(Debug, Clone, Copy)]
pub struct Now<'a> {
    /// The backup, with the status that it has.
    pub backup: &'a EtcdBackup,
    /// The time.
    pub time: Timestamp,
}

impl Now<'_> {
    fn before(self) -> EtcdBackupStatus {
        self.backup.status.clone().unwrap_or_default()
    }
}

/// Why it is as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    reason: Reason,
    sentence: String,
    quotes: bool,
}

impl Told {
    /// In a word and in a sentence.
    pub fn new(reason: Reason, sentence: impl Into<String>) -> Self {
        Self { reason, sentence: sentence.into(), quotes: false }
    }

    /// The same, if the sentence has an answer of Kubernetes' to the last try in it: what differs in numbers only is shown as
    /// it was. A status that is written anew with each try would wake the operator for the next one at once.
    pub fn quoting(self) -> Self {
        Self { quotes: true, ..self }
    }

    /// The same for an event.
    pub fn news(&self) -> News {
        let warning = self.reason == Reason::BackupLeft;
        News { warning, reason: self.reason, note: self.sentence.clone(), member: None }
    }

    /// The same, as the reason for which it was given up.
    pub fn after_timeout(self, minutes: i32) -> Self {
        let sentence = format!("{} It was given up after spec.timeoutMinutes ({minutes}).", self.sentence);
        Self { sentence, ..self }
    }
}

/// While it waits or runs.
pub fn going_on(now: Now<'_>, phase: BackupPhase, told: &Told) -> EtcdBackupStatus {
    let started = now.before().started_at.unwrap_or(Time(now.time));
    let started = (phase == BackupPhase::Running).then_some(started);
    EtcdBackupStatus { started_at: started, ended_at: None, progress: None, ..going_away(now, phase, told) }
}

/// How far it is: what was said now, but what is shown already for some seconds, and while nothing is said.
pub fn progress(now: Now<'_>, said: Option<Progress>) -> Option<BackupProgress> {
    let shown = now.before().progress;
    let fresh = shown.as_ref().is_some_and(|shown| now.time.duration_since(shown.at.0) < PROGRESS_EVERY);
    let Some(Progress { read, total, stored }) = said.filter(|_| !fresh) else { return shown };
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let of = total.map(|total| format!(" of {}", size(total))).unwrap_or_default();
    Some(BackupProgress {
        at: Time(now.time),
        read_bytes: number(read),
        total_bytes: total.map(number),
        stored_bytes: number(stored),
        shown: size(read) + &of,
    })
}

/// While it is being deleted.
pub fn going_away(now: Now<'_>, phase: BackupPhase, told: &Told) -> EtcdBackupStatus {
    EtcdBackupStatus {
        phase: Some(phase),
        observed_generation: now.backup.metadata.generation,
        conditions: conditions(now, ["False", "True", "False"], told),
        ..now.before()
    }
}

/// For good: with what is in the store, or why nothing is.
pub fn ended(now: Now<'_>, result: Result<&Complete, &Told>) -> EtcdBackupStatus {
    let before = EtcdBackupStatus {
        observed_generation: now.backup.metadata.generation,
        ended_at: Some(Time(now.time)),
        progress: None,
        ..now.before()
    };
    match result {
        Err(told) => EtcdBackupStatus {
            phase: Some(BackupPhase::Failed),
            conditions: conditions(now, ["False", "False", "True"], told),
            ..before
        },
        Ok(complete) => {
            let told = Told::new(Reason::BackupComplete, "The backup is in the store, whole and proved.");
            EtcdBackupStatus {
                phase: Some(BackupPhase::Complete),
                conditions: conditions(now, ["True", "False", "False"], &told),
                ..described(now.backup, before, complete)
            }
        }
    }
}

fn described(backup: &EtcdBackup, before: EtcdBackupStatus, complete: &Complete) -> EtcdBackupStatus {
    let Complete {
        location,
        manifest,
        endpoint,
        etcd_version,
        cluster_id,
        revision,
        compact_revision,
        database_bytes,
        stored_bytes,
        blake3: _,
        manifest_blake3,
        encrypted_to,
        taken: _,
        seconds,
    } = complete;
    // A volume is mounted somewhere else by whoever reads it.
    let location = claim_of(&backup.spec.store).unwrap_or_else(|| location.clone());
    let number = |value: u64| i64::try_from(value).ok();
    EtcdBackupStatus {
        revision: number(*revision),
        compact_revision: number(*compact_revision),
        etcd_version: Some(etcd_version.clone()),
        cluster_id: u64::from_str_radix(cluster_id, 16).ok().map(HexId::new),
        endpoint: Some(endpoint.clone()),
        database_bytes: number(*database_bytes),
        stored_bytes: number(*stored_bytes),
        size: Some(size(*stored_bytes)),
        duration: Some(format!("{seconds:.1}s")),
        location: Some(location),
        lineage: manifest.split('/').next().map(str::to_owned),
        manifest: Some(manifest.clone()),
        hash: Some(manifest_blake3.clone()),
        encrypted_to: encrypted_to.iter().map(ToString::to_string).collect(),
        ..before
    }
}

fn claim_of(store: &BackupStore) -> Option<String> {
    store.volume_claim.as_ref().map(|claim| format!("volume claim {}", claim.name))
}

/// The store of a backup for people, also of one that is not described.
pub fn place(backup: &EtcdBackup) -> String {
    let described = backup.status.as_ref().and_then(|status| status.location.clone());
    let store = &backup.spec.store;
    described.or_else(|| claim_of(store)).or_else(|| store.address.clone()).unwrap_or_else(|| "its store".to_owned())
}

/// A size for people, with the units of Kubernetes.
fn size(bytes: u64) -> String {
    let units = [("Gi", 30_u32), ("Mi", 20), ("Ki", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    unit.map_or_else(
        || format!("{bytes}"),
        |(name, shift)| {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{}{name}", tenths / 10, tenths % 10)
        },
    )
}

/// Ready, Reconciling and Stalled, in this order.
fn conditions(now: Now<'_>, truths: [&str; 3], told: &Told) -> Vec<Condition> {
    let old = now.backup.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let kinds = [ConditionType::Ready, ConditionType::Reconciling, ConditionType::Stalled];
    kinds.into_iter().zip(truths).map(|(kind, truth)| dated(kind, truth, told, now, old)).collect()
}

fn dated(kind: ConditionType, truth: &str, told: &Told, now: Now<'_>, old: &[Condition]) -> Condition {
    let unturned = kind.among(old).filter(|before| before.status == truth);
    // The deletion begins when it is first told, also while a snapshot is being taken.
    let begins = |shown: &Condition| told.reason == Reason::BackupDeleting && shown.reason != told.reason.as_str();
    let since = unturned.filter(|shown| kind != ConditionType::Reconciling || !begins(shown));
    let repeated = unturned.filter(|shown| is_repeated(shown, told));
    Condition {
        type_: kind.as_str().to_owned(),
        status: truth.to_owned(),
        reason: told.reason.as_str().to_owned(),
        message: repeated.map_or_else(|| told.sentence.clone(), |shown| shown.message.clone()),
        observed_generation: now.backup.metadata.generation,
        last_transition_time: since.map_or(Time(now.time), |one| one.last_transition_time.clone()),
    }
}

/// Whether Kubernetes says again what is shown, but for numbers.
fn is_repeated(shown: &Condition, Told { reason, sentence, quotes }: &Told) -> bool {
    *quotes && shown.reason == reason.as_str() && lasting(&shown.message).eq(lasting(sentence))
}

/// The words of an answer that say what is the matter: another cause has other ones. What differs with each try, as a time, a
/// port, the number of a request, or how much of a quota is used just then, has digits in it.
fn lasting(answer: &str) -> impl Iterator<Item = &str> {
    answer.split_whitespace().filter(|word| !word.contains(|letter: char| letter.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_one_digit_after_the_point() {
        for (bytes, wanted) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0Ki"),
            (1_600_000, "1.5Mi"),
            (5 << 30, "5.0Gi"),
            (u64::MAX, "17179869183.9Gi"),
        ] {
            assert_eq!(size(bytes), wanted);
        }
    }
}
