//! The wiring: an EtcdBackup is looked at when it or its Job changes; what was decided is done and shown. Each round reads
//! what it needs by quorum reads, and none of them is needed once the backup has ended.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::Preconditions;
use kube::runtime::controller::{Action, Config, Error as ControllerError};
use kube::runtime::{Controller, watcher};
use kube::{Api, ResourceExt};
use quorate_crds::{BackupPhase, EtcdBackup, EtcdCluster, names};
use tokio::sync::watch;

use super::decide::{Decision, Seen, Step, decide, ends_at};
use super::job::{Order, job};
use crate::api::{self, Kube};
use crate::lease::Claim;

/// How many are looked at at once: each round is a few short calls.
const CONCURRENCY: u16 = 8;
/// How many objects a list asks for at a time.
const PAGE: u32 = 100;
/// While it waits for its cluster, or its pod runs: neither wakes it.
const SOON: Duration = Duration::from_secs(2);
/// After a failed call.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The longest time until an object whose end is known is looked at again.
const AT_REST: Duration = Duration::from_hours(1);

/// Why a round failed. The next one comes after a pause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kubernetes failed.
    #[error(transparent)]
    Kube(#[from] api::Error),
    /// The Job can't be made.
    #[error("failed to make a Job: the object has no name or UID")]
    Nameless,
}

/// What a round needs.
pub struct Driver {
    /// The Kubernetes API, with the gate for writes.
    pub kube: Kube,
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
    let config = watcher::Config::default().page_size(PAGE);
    let stopped = tokio::spawn(turned(stop));
    Controller::new(backups, config.clone())
        .owns(jobs, config.labels(names::LABEL_BACKUP))
        .reconcile_all_on(on_leading(claim))
        .graceful_shutdown_on(async { drop(stopped.await) })
        .with_config(Config::default().concurrency(CONCURRENCY))
        .run(
            |backup, driver| Box::pin(round(backup, driver)),
            |backup, error, _| after_failure(&backup, error),
            Arc::new(driver),
        )
        .for_each(async |round| match round {
            // Told by the policy, or a backup that has gone.
            Ok(_) | Err(ControllerError::ReconcilerFailed(..) | ControllerError::ObjectNotFound(_)) => (),
            Err(error) => tracing::warn!(%error, "a watch of backups failed; it is tried again"),
        })
        .await;
}

fn after_failure(backup: &EtcdBackup, error: &Error) -> Action {
    let (namespace, name) = (backup.namespace().unwrap_or_default(), backup.name_any());
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    tracing::warn!(backup = format!("{namespace}/{name}"), %error, cause, "a round failed");
    Action::requeue(AFTER_FAILURE)
}

/// Resolves when it turns true, or nobody can turn it any more.
async fn turned(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Whoever begins to lead looks at every backup.
fn on_leading(claim: Claim) -> impl Stream<Item = ()> + Send + 'static {
    stream::unfold(claim, async |mut claim| {
        loop {
            if claim.changed().await? {
                return Some(((), claim));
            }
        }
    })
}

/// One look at one backup.
pub async fn round(backup: Arc<EtcdBackup>, driver: Arc<Driver>) -> Result<Action, Error> {
    if !driver.kube.writes().open() || backup.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    match driver.drive(&backup).await {
        // Another look is all that it takes.
        Err(Error::Kube(error)) if error.is_surprise() => Ok(Action::requeue(SOON)),
        result => result,
    }
}

impl Driver {
    async fn drive(&self, backup: &EtcdBackup) -> Result<Action, Error> {
        let namespace = backup.namespace().unwrap_or_default();
        let name = backup.name_any();
        let (mut cluster, mut job, mut pods, mut secret_missing) = (None, None, Vec::new(), false);
        if !has_ended(backup) {
            job = self.kube.get::<Job>(&namespace, &name).await?;
            if job.is_some() {
                pods = self.kube.list::<Pod>(&namespace, &format!("{}={name}", names::LABEL_BACKUP)).await?;
            } else {
                cluster = self.kube.get::<EtcdCluster>(&namespace, &backup.spec.cluster).await?;
                if let Some(secret) = &backup.spec.store.credentials {
                    secret_missing = !self.kube.exists::<Secret>(&namespace, &secret.name).await?;
                }
            }
        }
        let (seen_cluster, seen_job) = (cluster.as_ref(), job.as_ref());
        let now = Timestamp::now();
        let seen = Seen { backup, cluster: seen_cluster, secret_missing, job: seen_job, pods: &pods, now };
        let Decision { step, status } = decide(seen);
        match step {
            Step::Wait => {}
            Step::Create { voters, deadline } => {
                let cluster = cluster.as_ref().ok_or(Error::Nameless)?;
                let order = Order { backup, cluster, voters: &voters, deadline, image: &self.agent_image };
                self.kube.create(&namespace, &job_of(order)?).await?;
            }
            Step::Delete => {
                let (uid, resource_version) = (backup.uid(), backup.resource_version());
                self.kube.delete::<EtcdBackup>(&namespace, &name, Preconditions { uid, resource_version }).await?;
                return Ok(Action::await_change());
            }
        }
        let mut shown = backup.clone();
        if shown.status.as_ref() != Some(&status) {
            shown.status = Some(status);
            // A write by an old picture is refused: the next look has a newer one.
            shown = self.kube.replace_status(&namespace, &shown).await?;
        }
        Ok(pause(&shown))
    }
}

fn job_of(order: Order<'_>) -> Result<Job, Error> {
    job(order).ok_or(Error::Nameless)
}

fn has_ended(backup: &EtcdBackup) -> bool {
    match backup.status.as_ref().and_then(|status| status.phase) {
        Some(BackupPhase::Complete | BackupPhase::Failed) => true,
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
