//! The wiring: an EtcdBackup is looked at when it or its Job changes; what was decided is done and shown. Each round reads
//! what it needs by quorum reads, and none of them is needed once the end of the backup is certain.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Preconditions;
use kube::runtime::controller::{Action, Config, Error as ControllerError};
use kube::runtime::{Controller, watcher};
use kube::{Api, ResourceExt};
use quorate_backup::snapshot::Progress;
use quorate_crds::{BackupPhase, DeletionPolicy, EtcdBackup, EtcdBackupStatus, EtcdCluster, names};
use serde_json::json;
use tokio::sync::watch;
use tracing::Instrument;

use super::decide::{Decision, Seen, Step, decide, ends_at, hindered, may_have_job, outermost};
use super::job::{self, Order};
use super::{delete, progress};
use crate::api::{self, Cause, Kube, WATCH_SECONDS};
use crate::events::Teller;
use crate::lease::Claim;
use crate::metrics::Metrics;
use crate::ownership::is_owned;
use crate::stop::turned;
use crate::store_secrets::Needed;
use crate::telemetry::chain;
use crate::{guard, jobs, store_secrets};

/// How many are looked at at once: each round is a few short calls.
const CONCURRENCY: u16 = 8;
/// How many objects a list asks for at a time.
const PAGE: u32 = 100;
/// While it waits for its cluster, or its pod runs: neither wakes it.
pub const SOON: Duration = Duration::from_secs(2);
/// After a failed call.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The longest time until an object whose end is known is looked at again.
const AT_REST: Duration = Duration::from_hours(1);
/// How soon it is looked again whether a cluster still needs one whose time is over.
const WHILE_NEEDED: Duration = Duration::from_mins(1);

/// Why a round failed. The next one comes after a pause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kubernetes failed.
    #[error(transparent)]
    Kube(#[from] api::Error),
    /// The Job can't be made.
    #[error("failed to make a Job: the object has no name or UID")]
    Nameless,
    /// The round ended in a panic.
    #[error(transparent)]
    Panic(#[from] guard::Panic),
}

/// What a round needs.
pub struct Driver {
    /// The Kubernetes API, with the gate for writes.
    pub kube: Kube,
    /// Sends events.
    pub teller: Teller,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The agent's image.
    pub agent_image: String,
}

/// Looks after the backups of one namespace, or of all, until `stop` turns true.
pub async fn run(driver: Driver, claim: Claim, namespace: Option<String>, stop: watch::Receiver<bool>) {
    let client = driver.kube.client();
    let (backups, jobs) = match &namespace {
        Some(namespace) => {
            (Api::<EtcdBackup>::namespaced(client.clone(), namespace), Api::namespaced(client, namespace))
        }
        None => (Api::all(client.clone()), Api::<Job>::all(client)),
    };
    let config = watcher::Config::default().page_size(PAGE).timeout(WATCH_SECONDS);
    let stopped = tokio::spawn(turned(stop));
    Controller::new(backups, config.clone())
        .owns(jobs, config.labels(names::LABEL_BACKUP))
        // Whoever begins to lead looks at every backup.
        .reconcile_all_on(claim.begins())
        .graceful_shutdown_on(async { drop(stopped.await) })
        .with_config(Config::default().concurrency(CONCURRENCY))
        .run(
            |backup, driver| Box::pin(guarded_round(backup, driver)),
            |backup, error, _| after_failure(&backup, error),
            Arc::new(driver),
        )
        .for_each(async |round| match round {
            // Told by the policy, or a backup that has gone.
            Ok(_) | Err(ControllerError::ReconcilerFailed(..) | ControllerError::ObjectNotFound(_)) => (),
            Err(error) => tracing::warn!(error = %chain(&error), "a watch of backups failed; it is tried again"),
        })
        .await;
}

fn after_failure(backup: &EtcdBackup, error: &Error) -> Action {
    let (namespace, name) = (backup.namespace().unwrap_or_default(), backup.name_any());
    tracing::warn!(backup = format!("{namespace}/{name}"), error = %chain(error), "a round failed");
    Action::requeue(AFTER_FAILURE)
}

/// One look at one backup, which can end nothing but itself.
async fn guarded_round(backup: Arc<EtcdBackup>, driver: Arc<Driver>) -> Result<Action, Error> {
    let metrics = driver.metrics.clone();
    // Its lines in the log name the object by the span that kube has opened.
    guard::guarded(&metrics, round(backup, driver).in_current_span()).await
}

/// One look at one backup.
pub async fn round(backup: Arc<EtcdBackup>, driver: Arc<Driver>) -> Result<Action, Error> {
    if !driver.kube.writes().open() {
        return Ok(Action::await_change());
    }
    let looked = match backup.metadata.deletion_timestamp {
        None => Box::pin(driver.drive(&backup)).await,
        Some(_) if is_marked(&backup) => Box::pin(driver.let_go(&backup)).await,
        Some(_) => return Ok(Action::await_change()),
    };
    match looked {
        // Another look is all that it takes.
        Err(Error::Kube(error)) if error.is_surprise() => Ok(Action::requeue(SOON)),
        result => result,
    }
}

/// What a round has read, once: what is decided and done by it is done by one picture.
#[derive(Default)]
pub struct Looked<'a> {
    cluster: Option<EtcdCluster>,
    missing: Option<Needed<'a>>,
    job: Option<Job>,
    pods: Vec<Pod>,
    progress: Option<Progress>,
}

impl Looked<'_> {
    /// The Job that takes this backup.
    pub fn own_job(&self, backup: &EtcdBackup) -> Option<&Job> {
        self.job.as_ref().filter(|job| is_owned(*job, backup))
    }

    fn seen<'a>(&'a self, backup: &'a EtcdBackup) -> Seen<'a> {
        let Self { cluster, missing, job, pods, progress } = self;
        let (cluster, job, now) = (cluster.as_ref(), job.as_ref(), Timestamp::now());
        Seen { backup, cluster, missing: *missing, job, pods, progress: *progress, now }
    }
}

impl Driver {
    async fn drive(&self, backup: &EtcdBackup) -> Result<Action, Error> {
        let backup = &*self.marked(backup).await?;
        let looked = Box::pin(self.look(backup)).await?;
        Box::pin(self.go_on(backup, &looked)).await
    }

    /// Reads what is needed to decide about a backup.
    pub async fn look<'a>(&self, backup: &'a EtcdBackup) -> Result<Looked<'a>, api::Error> {
        let mut looked = Looked::default();
        if is_settled(backup) {
            return Ok(looked);
        }
        let namespace = backup.namespace().unwrap_or_default();
        looked.job = self.kube.get::<Job>(&namespace, &backup.name_any()).await?;
        if let Some(own) = looked.own_job(backup) {
            looked.pods = jobs::pods(&self.kube, own).await?;
            looked.progress = progress::ask(&looked.pods).await;
        } else if looked.job.is_none() && !has_ended(backup) && backup.metadata.deletion_timestamp.is_none() {
            looked.cluster = self.kube.get::<EtcdCluster>(&namespace, &backup.spec.cluster).await?;
            looked.missing = store_secrets::missing(&self.kube, &namespace, &backup.spec.store).await?;
        }
        Ok(looked)
    }

    /// Does what follows from what was read.
    pub async fn go_on(&self, backup: &EtcdBackup, looked: &Looked<'_>) -> Result<Action, Error> {
        let namespace = backup.namespace().unwrap_or_default();
        let name = backup.name_any();
        let seen = looked.seen(backup);
        let Decision { step, mut status } = decide(seen);
        match step {
            Step::Wait => {}
            Step::Create { voters, deadline } => {
                let order = Order { backup, cluster: seen.cluster, deadline, image: &self.agent_image };
                let taking = job::taking(order, &voters).ok_or(Error::Nameless)?;
                if let Err(error) = self.kube.create(&namespace, &taking).await {
                    status = hindered(seen, &obstacle(error)?).status;
                    // It may have been created without an answer, and need not be given up.
                    if ended(&status) && self.kube.get::<Job>(&namespace, &name).await?.is_some() {
                        return Ok(Action::requeue(SOON));
                    }
                }
            }
            Step::Delete if self.is_needed(backup).await? => return Ok(Action::requeue(WHILE_NEEDED)),
            Step::Delete => {
                let (uid, resource_version) = (backup.uid(), backup.resource_version());
                self.kube.delete::<EtcdBackup>(&namespace, &name, Preconditions { uid, resource_version }).await?;
                return Ok(Action::await_change());
            }
        }
        Ok(pause(&*self.show(backup, status).await?))
    }

    /// Whether a cluster is to begin with this very object, and has not begun: without it, or with another one of its name, it
    /// would begin with something else, or never.
    async fn is_needed(&self, backup: &EtcdBackup) -> Result<bool, Error> {
        if backup.status.as_ref().and_then(|status| status.phase) != Some(BackupPhase::Complete) {
            return Ok(false);
        }
        let clusters = self.kube.list::<EtcdCluster>(&backup.namespace().unwrap_or_default(), "").await?;
        Ok(clusters.iter().any(|cluster| delete::begins_with(cluster, backup)))
    }

    /// The backup with the finalizer if its policy asks for it, and without it if not.
    async fn marked<'a>(&self, backup: &'a EtcdBackup) -> Result<Cow<'a, EtcdBackup>, Error> {
        let wanted = backup.spec.deletion_policy == DeletionPolicy::Delete;
        if wanted == is_marked(backup) {
            return Ok(Cow::Borrowed(backup));
        }
        self.mark(backup, wanted).await.map(Cow::Owned)
    }

    /// The backup with the finalizer, or without it.
    pub async fn mark(&self, backup: &EtcdBackup, wanted: bool) -> Result<EtcdBackup, Error> {
        let mut finalizers = backup.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != names::FINALIZER_BACKUP);
        finalizers.extend(wanted.then(|| names::FINALIZER_BACKUP.to_owned()));
        let change = json!({ "metadata": { "uid": backup.uid(), "resourceVersion": backup.resource_version(),
            "finalizers": finalizers } });
        let namespace = backup.namespace().unwrap_or_default();
        Ok(self.kube.merge::<EtcdBackup>(&namespace, &backup.name_any(), &change).await?)
    }

    /// The backup with this status. A write by an old picture is refused: the next look has a newer one.
    pub async fn show<'a>(
        &self,
        backup: &'a EtcdBackup,
        status: EtcdBackupStatus,
    ) -> Result<Cow<'a, EtcdBackup>, Error> {
        if backup.status.as_ref() == Some(&status) {
            return Ok(Cow::Borrowed(backup));
        }
        let shown = EtcdBackup { status: Some(status), ..backup.clone() };
        let shown = self.kube.replace_status(&backup.namespace().unwrap_or_default(), &shown).await?;
        if let Some(outcome) = turned_to(backup, &shown) {
            self.metrics.backed_up(outcome);
        }
        Ok(Cow::Owned(shown))
    }
}

/// Why Kubernetes did not create a Job, to be shown and waited for no longer than was promised. What the next look mends,
/// and what was not sent, stays an error.
pub fn obstacle(error: api::Error) -> Result<String, Error> {
    if error.is_surprise() || error.is_shut() {
        return Err(error.into());
    }
    let cause = cause(&error);
    tracing::warn!(%error, cause, "a Job was not created");
    Ok(if error.refusal().is_some() { cause } else { outermost(&cause) })
}

/// What Kubernetes answered, or why it did not.
pub fn cause(error: &api::Error) -> String {
    match &error.cause {
        Cause::Kube(cause) => match cause.as_ref() {
            kube::Error::Api(status) => status.message.trim().to_owned(),
            other => other.to_string(),
        },
        Cause::Shut(_) | Cause::Deadline(_) => error.cause.to_string(),
    }
}

fn is_marked(backup: &EtcdBackup) -> bool {
    backup.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::FINALIZER_BACKUP)
}

fn has_ended(backup: &EtcdBackup) -> bool {
    backup.status.as_ref().is_some_and(ended)
}

/// Whether it has ended, and no Job of its own can turn up.
pub fn is_settled(backup: &EtcdBackup) -> bool {
    backup.status.as_ref().is_some_and(|status| ended(status) && !may_have_job(status))
}

/// What came of a backup, if that is shown for the first time.
fn turned_to(before: &EtcdBackup, after: &EtcdBackup) -> Option<&'static str> {
    let [before, after] = [before, after].map(|backup| backup.status.as_ref().and_then(|status| status.phase));
    match after {
        _ if before == after => None,
        Some(BackupPhase::Complete) => Some("complete"),
        Some(BackupPhase::Failed) => Some("failed"),
        Some(BackupPhase::Pending | BackupPhase::Running | BackupPhase::Deleting) | None => None,
    }
}

fn ended(status: &EtcdBackupStatus) -> bool {
    match status.phase {
        Some(BackupPhase::Complete | BackupPhase::Failed | BackupPhase::Deleting) => true,
        Some(BackupPhase::Pending | BackupPhase::Running) | None => false,
    }
}

fn pause(backup: &EtcdBackup) -> Action {
    if !has_ended(backup) {
        return Action::requeue(SOON);
    }
    let end = backup.status.as_ref().and_then(|status| ends_at(backup, status));
    end.map_or_else(Action::await_change, |end| {
        let left = Duration::try_from(end.duration_since(Timestamp::now())).unwrap_or_default();
        Action::requeue(left.clamp(SOON, AT_REST))
    })
}
