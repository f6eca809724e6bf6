//! What has to be done for an EtcdBackup that is being deleted and has the finalizer: a Job deletes from the store what the
//! status names, and the finalizer goes, whatever came of that, within a time that is bounded. Pure and total.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use quorate_backup::store::Address;
use quorate_crds::{
    BackupPhase, BackupStore, ConditionType, DeletionPolicy, EtcdBackup, EtcdBackupStatus, EtcdCluster, Reason, Restore,
};

use super::decide::sentence;
use super::status::{Now, Told, going_away, place};
use crate::jobs::{self, End};
use crate::ownership::{Holder, holder, is_owned};
use crate::store_secrets::{Holds, Needed};

/// How long is waited for what a Job needs, and how long it may try then. An object that can't be deleted blocks the
/// deletion of its namespace.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(10);
/// How long all of it may take: [`PATIENCE`] for what the Job needs and once more for the Job, and as long for Kubernetes to
/// end it. One that is suspended, or whose pod was on a node that died, may never end.
pub const LONGEST: SignedDuration = PATIENCE.saturating_mul(3);

/// The reasons of failures after which the backup may be in the store, and why.
const UNSEEN_ENDS: [(Reason, &str); 4] = [
    (Reason::ResultUnknown, "Its Job has ended well, and its pod was gone before it could be read."),
    (Reason::TimedOut, "Its Job did not end in time."),
    (Reason::JobGone, "Its Job was deleted before its result was seen."),
    (Reason::JobFailed, "Its Job failed without a word of what had come of it."),
];

/// What was seen.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The backup that is being deleted.
    pub backup: &'a EtcdBackup,
    /// Its cluster.
    pub cluster: Option<&'a EtcdCluster>,
    /// A cluster that begins with this backup, and has not begun.
    pub restored_by: Option<&'a str>,
    /// A Secret that its store names is not there.
    pub missing: Option<Needed<'a>>,
    /// The Job that deletes, or has its name.
    pub job: Option<&'a Job>,
    /// That Job's pods.
    pub pods: &'a [Pod],
    /// Something of this, or of the Job that takes the backup, can't be read, and why. What is not seen may be there then.
    pub unread: Option<&'a str>,
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
    if let Some(told) = farewell(&status) {
        return Step::Release(Some(told));
    }
    let (Some(manifest), Some(hash)) = (&status.manifest, &status.hash) else { return of_nameless(seen, &status) };
    let (manifest, hash) = (manifest.clone(), hash.clone());
    if let Some(job) = seen.job.filter(|job| is_owned(*job, seen.backup)) {
        return of_job(seen, job, &manifest);
    }
    if let Some(why) = seen.unread {
        return unseen(seen, &manifest, why);
    }
    if seen.backup.spec.deletion_policy == DeletionPolicy::Retain {
        // Its Job may be gone again.
        let begun = status.phase == Some(BackupPhase::Deleting);
        return if begun { kept_late(seen, &manifest) } else { Step::Release(None) };
    }
    if is_recorded_on(seen) {
        let why = "The continuous backup of its cluster is at the same address and may go on from it.";
        return left(seen, &manifest, why);
    }
    if let Some(obstacle) = obstacle(seen) {
        return hindered(seen, &manifest, &obstacle);
    }
    let told = Told::new(Reason::BackupDeleting, "The backup is being deleted from its store.");
    let deleting = going_away(seen.at(), BackupPhase::Deleting, &told);
    // Its Job is gone again, and perhaps not for the first time.
    if status.phase == Some(BackupPhase::Deleting) && waited(seen, &deleting) >= LONGEST {
        return left(seen, &manifest, "Its Job was deleted before it had ended.");
    }
    Step::Create { manifest, hash, status: deleting }
}

/// What the status says of its end already: but for the finalizer, and the event, all is done.
fn farewell(status: &EtcdBackupStatus) -> Option<Told> {
    let ready = ready(status)?;
    let ends = [Reason::BackupDeleted, Reason::BackupLeft];
    let reason = ends.into_iter().find(|reason| reason.as_str() == ready.reason)?;
    Some(Told::new(reason, ready.message.clone()))
}

fn ready(status: &EtcdBackupStatus) -> Option<&Condition> {
    ConditionType::Ready.among(&status.conditions)
}

/// What the status does not name can't be deleted. If it may be in the store all the same, that is told.
fn of_nameless(seen: Seen<'_>, status: &EtcdBackupStatus) -> Step {
    match seen.backup.spec.deletion_policy {
        DeletionPolicy::Retain => Step::Release(None),
        DeletionPolicy::Delete => match seen.unread {
            Some(why) => untold(seen, why),
            None => Step::Release(unseen_end(status).map(|why| perhaps_left(seen, why))),
        },
    }
}

/// Whether the status names what there is to delete.
pub fn is_named(backup: &EtcdBackup) -> bool {
    backup.status.as_ref().is_some_and(|status| status.manifest.is_some() && status.hash.is_some())
}

/// Why nobody knows whether there is a backup, if nobody does. A failure that the agent has told of is known.
fn unseen_end(status: &EtcdBackupStatus) -> Option<&'static str> {
    match status.phase {
        Some(BackupPhase::Running) => Some("Its Job was deleted before its result was seen."),
        Some(BackupPhase::Failed) => {
            let reason = &ready(status)?.reason;
            UNSEEN_ENDS.into_iter().find(|(unseen, _)| unseen.as_str() == reason).map(|(_, why)| why)
        }
        Some(BackupPhase::Complete | BackupPhase::Deleting) => Some("The status does not name its manifest."),
        Some(BackupPhase::Pending) | None => None,
    }
}

fn of_job(seen: Seen<'_>, job: &Job, manifest: &str) -> Step {
    let words = jobs::last_words(seen.pods).or_else(|| jobs::trouble(seen.pods));
    let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    match jobs::end(job) {
        Some((End::Complete, _)) => {
            let sentence = format!("The backup {manifest} was deleted from its store.");
            Step::Release(Some(Told::new(Reason::BackupDeleted, sentence)))
        }
        Some((End::Failed, why)) => left(seen, manifest, &words.or_else(|| why.message.clone()).unwrap_or_default()),
        None if seen.backup.spec.deletion_policy == DeletionPolicy::Retain => kept_late(seen, manifest),
        None => {
            let words = match words {
                _ if suspended => format!(" Job {} is suspended.", job.name_any()),
                Some(words) => format!(" It is tried again. {}", sentence(&words)),
                None => String::new(),
            };
            let told = Told::new(Reason::BackupDeleting, format!("The backup is being deleted from its store.{words}"));
            let waiting = going_away(seen.at(), BackupPhase::Deleting, &told);
            if waited(seen, &waiting) < LONGEST {
                return Step::Wait(waiting);
            }
            let why = format!("Job {} has not ended within {LONGEST:#}.{words}", job.name_any());
            left(seen, manifest, &why)
        }
    }
}

/// What keeps a Job from being made, and may pass.
fn obstacle(seen: Seen<'_>) -> Option<String> {
    if let Some(job) = seen.job {
        let name = job.name_any();
        return Some(match holder(job, seen.backup) {
            Holder::Stranger => format!("There is another Job {name} in this namespace: delete it."),
            Holder::Nobody | Holder::Us => format!("An earlier Job {name} is still being deleted."),
        });
    }
    if let Some(cluster) = seen.restored_by {
        return Some(format!("EtcdCluster {cluster} is to begin with it."));
    }
    match seen.missing? {
        Needed { name, holds: Holds::Credentials } => {
            Some(format!("There is no Secret {name}, which spec.store.credentials names."))
        }
        // What is deleted need not be read.
        Needed { name: _, holds: Holds::Keys } => None,
    }
}

/// While there can't be a Job: to wait, and after some time no more.
fn hindered(seen: Seen<'_>, manifest: &str, why: &str) -> Step {
    patient(seen, &not_yet(why), PATIENCE).unwrap_or_else(|| left(seen, manifest, why))
}

/// The same while Kubernetes does not create it, and why.
pub fn refused(seen: Seen<'_>, manifest: &str, why: &str) -> Step {
    patient(seen, &not_yet(why).quoting(), PATIENCE).unwrap_or_else(|| left(seen, manifest, why))
}

/// While it can't be seen how the deletion goes, or what stands in its way: once its Job may be there, as long as that may take.
fn unseen(seen: Seen<'_>, manifest: &str, why: &str) -> Step {
    let begun = seen.backup.status.as_ref().is_some_and(|status| status.phase == Some(BackupPhase::Deleting));
    let longest = if begun { LONGEST } else { PATIENCE };
    let told = held_up("It can't be seen how the backup is to be deleted from its store.", why, longest).quoting();
    patient(seen, &told, longest).unwrap_or_else(|| left(seen, manifest, why))
}

/// While it can't be seen whether a snapshot is being taken, which would be waited for.
fn untold(seen: Seen<'_>, why: &str) -> Step {
    let told = held_up("It can't be seen whether the snapshot is still being taken.", why, PATIENCE).quoting();
    patient(seen, &told, PATIENCE).unwrap_or_else(|| Step::Release(Some(perhaps_left(seen, why))))
}

fn not_yet(why: &str) -> Told {
    held_up("The backup is not being deleted from its store yet.", why, PATIENCE)
}

fn held_up(what: &str, why: &str, longest: SignedDuration) -> Told {
    let words = format!("{what} {} It is waited, for {longest:#} at most.", sentence(why));
    Told::new(Reason::BackupDeleting, words)
}

/// To wait, if that does not take too long already.
fn patient(seen: Seen<'_>, told: &Told, longest: SignedDuration) -> Option<Step> {
    let phase = seen.backup.status.as_ref().and_then(|status| status.phase).unwrap_or(BackupPhase::Pending);
    let waiting = going_away(seen.at(), phase, told);
    (waited(seen, &waiting) < longest).then_some(Step::Wait(waiting))
}

/// How long it has been waited already: not since the deletion, at which no operator may have been there.
fn waited(seen: Seen<'_>, waiting: &EtcdBackupStatus) -> SignedDuration {
    let since = ConditionType::Reconciling.among(&waiting.conditions).map(|told| told.last_transition_time.0);
    since.map(|since| seen.now.duration_since(since)).unwrap_or_default()
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
    let location = seen.location();
    let words = format!(
        "The backup {manifest}{} was not deleted, or not whole, from {location}. {}",
        seen.hash(),
        sentence(why)
    );
    Step::Release(Some(Told::new(Reason::BackupLeft, words)))
}

/// The object goes, and nobody knows whether what it stood for has come about.
fn perhaps_left(seen: Seen<'_>, why: &str) -> Told {
    let location = seen.location();
    let below = seen.lineage().map(|lineage| format!(", below {lineage}/")).unwrap_or_default();
    let words = format!(
        "A backup of EtcdCluster {} may be in {location}{below}, and was not deleted: the manifest is not known. {} See with \
         quorate-agent list whether it is there; quorate-agent delete removes it.",
        seen.backup.spec.cluster,
        sentence(why)
    );
    Told::new(Reason::BackupLeft, words)
}

/// The object goes, and what it stood for is to stay after all. Its Job deletes the manifest first, and goes with the object.
fn kept_late(seen: Seen<'_>, manifest: &str) -> Step {
    let location = seen.location();
    let words = format!(
        "The backup {manifest}{} may be gone from {location}, in whole or in part: spec.deletionPolicy was set to Retain when \
         a Job had begun to delete it. See with quorate-agent list whether it is there; what is left of one that is not, \
         quorate-agent delete removes.",
        seen.hash()
    );
    Step::Release(Some(Told::new(Reason::BackupLeft, words)))
}

impl<'a> Seen<'a> {
    fn location(self) -> String {
        place(self.backup)
    }

    /// By which `quorate-agent delete` knows it, once this object is gone.
    fn hash(self) -> String {
        let hash = self.backup.status.as_ref().and_then(|status| status.hash.as_deref());
        hash.map(|hash| format!(" (hash {hash})")).unwrap_or_default()
    }

    /// Whose backup it would be: its cluster's, if that is the one for which the Job was made.
    fn lineage(self) -> Option<&'a str> {
        let status = self.backup.status.as_ref()?;
        let cluster = self.cluster.filter(|cluster| cluster.metadata.creation_timestamp <= status.started_at);
        status.lineage.as_deref().or_else(|| cluster?.metadata.uid.as_deref())
    }

    fn at(self) -> Now<'a> {
        Now { backup: self.backup, time: self.now }
    }
}
