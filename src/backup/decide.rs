//! What has to be done for an EtcdBackup, and what its status says, from what was seen. Pure and total: it is asked again
//! after each change, and whatever was interrupted is found as it is.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use quorate_backup::snapshot::{self, Complete, Failure, Progress, Report};
use quorate_crds::{BackupPhase, ConditionType, EtcdBackup, EtcdBackupStatus, EtcdCluster, MemberRole, Reason};

use super::status::{Now, Told, ended, going_on, progress};
use crate::events::{LONGEST_QUOTE, cut};
use crate::jobs::{self, End};
use crate::ownership::{Holder, holder, is_owned};
use crate::store_secrets::Needed;

/// The shortest time that a Job gets, whatever was waited for before.
const SHORTEST: SignedDuration = SignedDuration::from_mins(1);
/// For how long after the time is over its Job is waited for: Kubernetes ends it, and waits for its pods. One that is
/// suspended, or whose pod was on a node that died, may never end.
const GRACE: SignedDuration = SignedDuration::from_mins(10);
/// How long a Job may be without a pod until that is told: Kubernetes makes one within moments, or is refused it.
const FIRST_POD: SignedDuration = SignedDuration::from_secs(10);
/// How many links of a chain of causes are told of a failure that may pass, from the outermost.
const OUTER_CAUSES: usize = 3;

/// What was seen.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The backup that is asked for.
    pub backup: &'a EtcdBackup,
    /// Its cluster.
    pub cluster: Option<&'a EtcdCluster>,
    /// A Secret that its store names is not there.
    pub missing: Option<Needed<'a>>,
    /// The Job of its name.
    pub job: Option<&'a Job>,
    /// That Job's pods, if it is this backup's.
    pub pods: &'a [Pod],
    /// How far the one that runs is, if it says so.
    pub progress: Option<Progress>,
    /// The time.
    pub now: Timestamp,
}

impl<'a> Seen<'a> {
    fn at(self) -> Now<'a> {
        Now { backup: self.backup, time: self.now }
    }
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing by us: to wait for a change.
    Wait,
    /// To create the Job.
    Create {
        /// The members that may be read, by their names.
        voters: Vec<String>,
        /// For how long the Job may run.
        deadline: SignedDuration,
    },
    /// To delete the object, whose time is over.
    Delete,
}

/// What has to be done, and what is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What has to be done.
    pub step: Step,
    /// The status as it should be.
    pub status: EtcdBackupStatus,
}

/// Decides.
pub fn decide(seen: Seen<'_>) -> Decision {
    let before = seen.backup.status.clone().unwrap_or_default();
    if let Some(late) = seen.job.filter(|job| may_have_job(&before) && is_owned(*job, seen.backup)) {
        return of_job(seen, late);
    }
    match before.phase {
        Some(BackupPhase::Complete | BackupPhase::Failed | BackupPhase::Deleting) => {
            let over = ends_at(seen.backup, &before).is_some_and(|end| end <= seen.now);
            // The deletion policy may have been changed.
            let status = EtcdBackupStatus { observed_generation: seen.backup.metadata.generation, ..before };
            Decision { step: if over { Step::Delete } else { Step::Wait }, status }
        }
        Some(BackupPhase::Pending | BackupPhase::Running) | None => {
            match seen.job.map(|job| (holder(job, seen.backup), job)) {
                Some((Holder::Us, job)) => of_job(seen, job),
                Some((Holder::Stranger, job)) => failed(
                    seen,
                    &Told::new(
                        Reason::NameTaken,
                        format!(
                            "There is another Job {} in this namespace. Delete it, or give the backup another name.",
                            job.name_any()
                        ),
                    ),
                ),
                Some((Holder::Nobody, _)) | None if before.phase == Some(BackupPhase::Running) => failed(
                    seen,
                    &Told::new(
                        Reason::JobGone,
                        "The Job was deleted before its result was seen. Create another EtcdBackup.",
                    ),
                ),
                Some((Holder::Nobody, job)) => {
                    let words = format!("An earlier Job {} is still being deleted. It is waited for.", job.name_any());
                    waiting(seen, Told::new(Reason::NameTaken, words))
                }
                // Nobody would see what came of it.
                None if seen.backup.metadata.deletion_timestamp.is_some() => {
                    Decision { step: Step::Wait, status: before }
                }
                None => without_job(seen),
            }
        }
    }
}

/// Whether a Job may turn up for what has failed: none was seen, and a creation that was not answered may be carried out at
/// any later time.
pub fn may_have_job(status: &EtcdBackupStatus) -> bool {
    status.phase == Some(BackupPhase::Failed) && status.started_at.is_none()
}

/// When the object is to be deleted, if ever.
pub fn ends_at(backup: &EtcdBackup, status: &EtcdBackupStatus) -> Option<Timestamp> {
    let ttl = backup.spec.ttl_minutes?;
    Some(later(status.ended_at.as_ref()?.0, SignedDuration::from_mins(i64::from(ttl))))
}

/// A time so much later, or the last one that there is: what objects say may be anything.
fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// How much time is left until the backup has failed.
fn left(seen: Seen<'_>) -> SignedDuration {
    let created = seen.backup.metadata.creation_timestamp.as_ref().map_or(seen.now, |created| created.0);
    let all = SignedDuration::from_mins(i64::from(seen.backup.spec.timeout_minutes));
    later(created, all).duration_since(seen.now)
}

/// Whether a Job should have ended by its own deadline, which counts from its begin: it may have been made late. Whoever has
/// changed that deadline has said how long it may run.
fn is_overdue(seen: Seen<'_>, job: &Job) -> bool {
    let deadline = job.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    let allowed = deadline.map_or_else(|| left(seen).max(SHORTEST), SignedDuration::from_secs);
    age(seen, job) >= allowed.saturating_add(GRACE)
}

/// For how long there has been a Job.
fn age(seen: Seen<'_>, job: &Job) -> SignedDuration {
    seen.now.duration_since(created(seen, job))
}

fn created(seen: Seen<'_>, job: &Job) -> Timestamp {
    job.metadata.creation_timestamp.as_ref().map_or(seen.now, |created| created.0)
}

fn without_job(seen: Seen<'_>) -> Decision {
    match readable(seen) {
        Ok(voters) => {
            let told = Told::new(Reason::SnapshotRunning, "The snapshot is being taken.");
            let status = going_on(seen.at(), BackupPhase::Running, &told);
            Decision { step: Step::Create { voters, deadline: left(seen).max(SHORTEST) }, status }
        }
        Err(told) => waiting(seen, told),
    }
}

/// What is decided when Kubernetes did not create the Job, and why.
pub fn hindered(seen: Seen<'_>, why: &str) -> Decision {
    let words = format!("Its Job can't be created. {}", sentence(why));
    waiting(seen, Told::new(Reason::ObjectRefused, words).quoting())
}

/// While there can't be a Job: to wait, and when the time is over no more.
fn waiting(seen: Seen<'_>, told: Told) -> Decision {
    if left(seen).is_positive() {
        return Decision { step: Step::Wait, status: going_on(seen.at(), BackupPhase::Pending, &told) };
    }
    failed(seen, &told.after_timeout(seen.backup.spec.timeout_minutes))
}

/// The members that may be read, or why there are none.
fn readable(seen: Seen<'_>) -> Result<Vec<String>, Told> {
    let name = &seen.backup.spec.cluster;
    let cluster = seen.cluster.ok_or_else(|| {
        Told::new(Reason::ClusterMissing, format!("There is no EtcdCluster {name} in this namespace."))
    })?;
    let status = cluster.status.clone().unwrap_or_default();
    let available = ConditionType::Available.among(&status.conditions);
    // Above its quota etcd takes no writes, and can be read all the same.
    let full = |available: &Condition| available.reason == Reason::NoSpace.as_str();
    if available.is_none_or(|available| available.status != "True" && !full(available)) {
        let why = available.map(|available| cut(available.message.clone(), LONGEST_QUOTE)).unwrap_or_default();
        return Err(Told::new(Reason::NoHealthyMember, format!("EtcdCluster {name} does not serve. {why}")));
    }
    if let Some(Needed { name, holds }) = seen.missing {
        let words = format!("There is no Secret {name}, which spec.store.{} names.", holds.field());
        return Err(Told::new(Reason::SecretMissing, words));
    }
    let voters: Vec<_> =
        status.members.into_iter().filter(|one| one.role == Some(MemberRole::Voter)).map(|one| one.name).collect();
    if voters.is_empty() {
        return Err(Told::new(Reason::NoHealthyMember, format!("EtcdCluster {name} shows no voting member.")));
    }
    Ok(voters)
}

/// What is decided of a backup whose Job was seen. Also one that has ended by then has begun: no Job is looked for again.
fn of_job(seen: Seen<'_>, job: &Job) -> Decision {
    let Decision { step, mut status } = as_told(seen, job);
    status.started_at.get_or_insert_with(|| Time(created(seen, job)));
    Decision { step, status }
}

/// What is decided by what a Job and its pods tell.
fn as_told(seen: Seen<'_>, job: &Job) -> Decision {
    let report = jobs::report(seen.pods, |report| matches!(report, Report::Complete(_)));
    match (jobs::end(job), report) {
        (_, Some(Report::Complete(complete))) => completed(seen, &complete),
        (Some((End::Complete, _)), _) => failed(
            seen,
            &Told::new(
                Reason::ResultUnknown,
                "The Job has ended well, and its pod is gone before it could be read. See with quorate-agent list whether \
                 the backup is there.",
            ),
        ),
        (Some((End::Failed, _)), Some(Report::Failed(Failure { reason, message }))) => {
            failed(seen, &Told::new(word(reason), sentence(&message)))
        }
        (Some((End::Failed, why)), None) => {
            let trouble = jobs::trouble(seen.pods).unwrap_or_else(|| why.message.clone().unwrap_or_default());
            let told = if why.reason.as_deref() == Some("DeadlineExceeded") {
                Told::new(Reason::TimedOut, format!("{} {}", sentence(&trouble), how_far(seen.backup)))
            } else {
                Told::new(Reason::JobFailed, sentence(&trouble))
            };
            failed(seen, &told)
        }
        (None, report) if is_overdue(seen, job) => {
            let said = report.and_then(|report| match report {
                Report::Failed(Failure { reason: _, message }) => Some(message),
                Report::Complete(_) => None,
            });
            let words = said.or_else(|| jobs::trouble(seen.pods)).map(|words| format!(" {}", sentence(&words)));
            let told = format!(
                "Job {} has not ended, though its time is over. See with quorate-agent list whether it stored the backup \
                 nonetheless.{}",
                job.name_any(),
                words.unwrap_or_default()
            );
            failed(seen, &Told::new(Reason::TimedOut, told))
        }
        (None, Some(Report::Failed(Failure { reason, message }))) => {
            let told = Told::new(word(reason), format!("It is tried again. {}", sentence(&message)));
            Decision { step: Step::Wait, status: going_on(seen.at(), BackupPhase::Running, &told) }
        }
        (None, None) => {
            let told = match jobs::trouble(seen.pods) {
                Some(trouble) => Told::new(Reason::PodWaiting, sentence(&trouble)),
                // Why, as a quota, only the Job's events say.
                None if seen.pods.is_empty() && age(seen, job) >= FIRST_POD => {
                    Told::new(Reason::PodWaiting, format!("Job {} has no pod yet: see its events.", job.name_any()))
                }
                None => Told::new(Reason::SnapshotRunning, "The snapshot is being taken."),
            };
            let status = going_on(seen.at(), BackupPhase::Running, &told);
            Decision {
                step: Step::Wait,
                status: EtcdBackupStatus { progress: progress(seen.at(), seen.progress), ..status },
            }
        }
    }
}

/// How far one was that was ended in its first try, and has said nothing of what it waited for.
fn how_far(backup: &EtcdBackup) -> String {
    let shown = backup.status.as_ref().and_then(|status| status.progress.as_ref());
    shown.map_or_else(
        || "Nothing of the database was seen to come by then; the store is asked before the members are.".to_owned(),
        |progress| format!("Of the database {} had come by then.", progress.shown),
    )
}

/// A text of another program's as a sentence of ours, of bounded length.
pub fn sentence(text: &str) -> String {
    let whole = text.trim();
    let told = cut(whole.to_owned(), LONGEST_QUOTE);
    let mut letters = told.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let text = first + letters.as_str();
    if told.len() < whole.len() {
        return text + "...";
    }
    if text.is_empty() || text.ends_with(['.', '!', '?']) { text } else { text + "." }
}

/// The outer links of a chain of causes as Kubernetes tells it. The inner ones may have ports and times in them, and a
/// status that changes with each try would wake the operator for the next one at once.
pub fn outermost(text: &str) -> String {
    text.split(": ").take(OUTER_CAUSES).collect::<Vec<_>>().join(": ")
}

fn word(reason: snapshot::Reason) -> Reason {
    match reason {
        snapshot::Reason::StoreInvalid => Reason::StoreInvalid,
        snapshot::Reason::BucketMissing => Reason::BucketMissing,
        snapshot::Reason::StoreRefused => Reason::StoreRefused,
        snapshot::Reason::KeysUnfit => Reason::KeysUnfit,
        snapshot::Reason::StoreUnfit => Reason::StoreUnfit,
        snapshot::Reason::StoreFull => Reason::StoreFull,
        snapshot::Reason::StoreFailed => Reason::StoreFailed,
        snapshot::Reason::NoHealthyMember => Reason::NoHealthyMember,
        snapshot::Reason::SnapshotBroken => Reason::SnapshotBroken,
    }
}

fn completed(seen: Seen<'_>, complete: &Complete) -> Decision {
    Decision { step: Step::Wait, status: ended(seen.at(), Ok(complete)) }
}

fn failed(seen: Seen<'_>, told: &Told) -> Decision {
    Decision { step: Step::Wait, status: ended(seen.at(), Err(told)) }
}
