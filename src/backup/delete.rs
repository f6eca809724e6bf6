//! What has to be done for an EtcdBackup that is being deleted and has the finalizer: a Job deletes from the store what the
//! status names, and the finalizer goes, whatever came of that, within a time that is bounded. Pure and total.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use quorate_backup::store::Address;
use quorate_crds::{
    BackupPhase, BackupStore, DeletionPolicy, EtcdBackup, EtcdBackupStatus, EtcdCluster, Reason, Restore,
};

use super::decide::{is_ours, over, sentence};
use super::pods;
use super::status::{Now, Told, going_away};

/// How long is waited for what a Job needs, and how long it may try then. An object that can't be deleted blocks the
/// deletion of its namespace.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(10);

/// What was seen.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The backup that is being deleted.
    pub backup: &'a EtcdBackup,
    /// Its cluster.
    pub cluster: Option<&'a EtcdCluster>,
    /// A cluster that begins with this backup, and has not begun.
    pub restored_by: Option<&'a str>,
    /// The Secret that its store names is not there.
    pub secret_missing: bool,
    /// The Job that deletes, or has its name.
    pub job: Option<&'a Job>,
    /// That Job's pods.
    pub pods: &'a [Pod],
    /// The time.
    pub now: Timestamp,
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// To show this status, and to wait.
    Wait(EtcdBackupStatus),
    /// To create the Job, and to show this status.
    Create {
        /// What it deletes.
        manifest: String,
        /// The hash of that.
        hash: String,
        /// The status.
        status: EtcdBackupStatus,
    },
    /// To tell this, and to take the finalizer away.
    Release(Option<Told>),
}

/// Decides.
pub fn decide(seen: Seen<'_>) -> Step {
    let status = seen.backup.status.clone().unwrap_or_default();
    let (DeletionPolicy::Delete, Some(manifest), Some(hash)) =
        (seen.backup.spec.deletion_policy, status.manifest, status.hash)
    else {
        return Step::Release(None);
    };
    if let Some(job) = seen.job.filter(|job| is_ours(job, seen.backup)) {
        return of_job(seen, job, &manifest);
    }
    if is_recorded_on(seen) {
        let why = "The continuous backup of its cluster is at the same address and may go on from it.";
        return left(seen, &manifest, why);
    }
    if let Some(obstacle) = obstacle(seen) {
        return hindered(seen, &manifest, &obstacle);
    }
    let told = Told::new(Reason::BackupDeleting, "The backup is being deleted from its store.");
    Step::Create { manifest, hash, status: going_away(seen.at(), BackupPhase::Deleting, &told) }
}

fn of_job(seen: Seen<'_>, job: &Job, manifest: &str) -> Step {
    let words = pods::last_words(seen.pods).or_else(|| pods::trouble(seen.pods));
    if over(job, "Complete").is_some() {
        let sentence = format!("The backup {manifest} was deleted from its store.");
        Step::Release(Some(Told::new(Reason::BackupDeleted, sentence)))
    } else if let Some(why) = over(job, "Failed") {
        left(seen, manifest, &words.or_else(|| why.message.clone()).unwrap_or_default())
    } else {
        let words = words.map(|words| format!(" It is tried again. {}", sentence(&words))).unwrap_or_default();
        let told = Told::new(Reason::BackupDeleting, format!("The backup is being deleted from its store.{words}"));
        Step::Wait(going_away(seen.at(), BackupPhase::Deleting, &told))
    }
}

/// What keeps a Job from being made, and may pass.
fn obstacle(seen: Seen<'_>) -> Option<String> {
    if seen.job.is_some() {
        return Some("There is another Job of the name that its Job would have.".into());
    }
    if let Some(cluster) = seen.restored_by {
        return Some(format!("EtcdCluster {cluster} is to begin with it."));
    }
    let secret = seen.backup.spec.store.credentials.as_ref().filter(|_| seen.secret_missing)?;
    Some(format!("There is no Secret {}, which spec.store.credentials names.", secret.name))
}

/// While there can't be a Job: to wait, and after some time no more.
pub fn hindered(seen: Seen<'_>, manifest: &str, why: &str) -> Step {
    let words = format!(
        "The backup is not being deleted from its store yet. {} It is waited, for {PATIENCE:#} at most.",
        sentence(why)
    );
    let phase = seen.backup.status.as_ref().and_then(|status| status.phase).unwrap_or(BackupPhase::Complete);
    let waiting = going_away(seen.at(), phase, &Told::new(Reason::BackupDeleting, words));
    // Since when it is waited: not since the deletion, at which no operator may have been there.
    let since = waiting.conditions.iter().find(|one| one.type_ == "Reconciling").map(|one| one.last_transition_time.0);
    if since.is_some_and(|since| seen.now.duration_since(since) >= PATIENCE) {
        return left(seen, manifest, why);
    }
    Step::Wait(waiting)
}

/// Whether the sidecars of its cluster record at the same place. They go on in the newest generation that they find, so
/// this one may be theirs now, and only their own retention knows.
fn is_recorded_on(seen: Seen<'_>) -> bool {
    let lineage = seen.backup.status.as_ref().and_then(|status| status.lineage.as_ref());
    let Some(cluster) = seen.cluster.filter(|cluster| cluster.metadata.uid.as_ref() == lineage) else { return false };
    cluster.spec.backup.as_ref().is_some_and(|recorded| is_same_place(&recorded.store, &seen.backup.spec.store))
}

/// Whether a cluster is to begin with this backup, or may be, and has not begun.
pub fn begins_with(cluster: &EtcdCluster, backup: &EtcdBackup) -> bool {
    let begun = cluster.status.as_ref().and_then(|status| status.ledger.as_ref()).is_some_and(|ledger| ledger.seeded);
    let restore = cluster.spec.bootstrap.as_ref().map(|bootstrap| &bootstrap.restore);
    restore.is_some_and(|restore| may_take(restore, backup)) && !begun && cluster.metadata.deletion_timestamp.is_none()
}

/// Whether a restore names the backup, or a store in which it would find it. Which one fits a revision or a time is known
/// only to who reads the store, so of a lineage each may.
fn may_take(
    Restore { backup: named, store, lineage, generation, revision: _, time: _ }: &Restore,
    backup: &EtcdBackup,
) -> bool {
    if let Some(named) = named {
        return named.name == backup.name_any();
    }
    let (Some(store), Some(status)) = (store, &backup.status) else { return false };
    let own = status.manifest.as_deref().and_then(|manifest| manifest.split('/').nth(2));
    is_same_place(store, &backup.spec.store)
        && *lineage == status.lineage
        && generation.as_deref().is_none_or(|generation| Some(generation) == own)
}

/// Whether two stores of one namespace keep what they have at the same place. Their options are not looked at: none of them
/// proves that it is another, because one server has several names, and what is left for nothing can be deleted later.
fn is_same_place(one: &BackupStore, other: &BackupStore) -> bool {
    let address = |store: &BackupStore| store.address.as_deref().and_then(|text| text.parse::<Address>().ok());
    match (address(one), address(other)) {
        (Some(one), Some(other)) => one == other,
        (Some(_), None) | (None, Some(_)) => false,
        (None, None) => one.volume_claim.is_some() && one.volume_claim == other.volume_claim,
    }
}

/// The object goes, and what it stood for stays.
pub fn left(seen: Seen<'_>, manifest: &str, why: &str) -> Step {
    let location = seen.backup.status.as_ref().and_then(|status| status.location.as_deref()).unwrap_or("its store");
    let words = format!("The backup {manifest} was not deleted, or not whole, from {location}. {}", sentence(why));
    Step::Release(Some(Told::new(Reason::BackupLeft, words)))
}

impl<'a> Seen<'a> {
    fn at(self) -> Now<'a> {
        Now { backup: self.backup, time: self.now }
    }
}
