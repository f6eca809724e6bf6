//! A backup that is being deleted is led to its end: what was decided is done and shown, and last of all the finalizer goes.
//! What can't be read ends no round: how long that may hold the object is decided, too.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use quorate_crds::{BackupPhase, DeletionPolicy, EtcdBackup, EtcdCluster, names};

use super::controller::{Driver, Error, SOON, cause, is_settled, obstacle};
use super::decide::outermost;
use super::delete;
use super::job::{self, Order};
use super::status::{Now, Told, going_away};
use crate::ownership::is_owned;
use crate::store_secrets::Needed;
use crate::{api, jobs, store_secrets};

/// What was read of what the end of a backup depends on. After what can't be read nothing more is.
#[derive(Default)]
struct Sights<'a> {
    cluster: Option<EtcdCluster>,
    restored_by: Option<String>,
    missing: Option<Needed<'a>>,
    job: Option<Job>,
    pods: Vec<Pod>,
    unread: Option<String>,
}

impl Sights<'_> {
    fn seen<'a>(&'a self, backup: &'a EtcdBackup) -> delete::Seen<'a> {
        let Self { cluster, restored_by, missing, job, pods, unread } = self;
        let (cluster, job, now) = (cluster.as_ref(), job.as_ref(), Timestamp::now());
        let (restored_by, unread) = (restored_by.as_deref(), unread.as_deref());
        delete::Seen { backup, cluster, restored_by, missing: *missing, job, pods, unread, now }
    }
}

impl Driver {
    /// Leads a backup that is being deleted to its end.
    pub async fn let_go(&self, backup: &EtcdBackup) -> Result<Action, Error> {
        let mut sights = Sights::default();
        if backup.spec.deletion_policy == DeletionPolicy::Delete && !is_settled(backup) {
            match Box::pin(self.look(backup)).await {
                // Only when its Job has ended it is known what there is to delete.
                Ok(looked) if looked.own_job(backup).is_some() => {
                    return Box::pin(self.go_on(backup, &looked)).await;
                }
                Ok(_) => {}
                Err(error) => sights.unread = Some(trouble(&error)),
            }
        }
        if sights.unread.is_none() {
            let read = Box::pin(self.see(backup, &mut sights)).await;
            sights.unread = read.err().as_ref().map(trouble);
        }
        let seen = sights.seen(backup);
        self.carry_out(seen, delete::decide(seen)).await
    }

    /// Reads what the end of a backup depends on that is not being taken any more.
    async fn see<'a>(&self, backup: &'a EtcdBackup, sights: &mut Sights<'a>) -> Result<(), api::Error> {
        let namespace = backup.namespace().unwrap_or_default();
        let cluster = &backup.spec.cluster;
        if !delete::is_named(backup) {
            // It only tells where a backup would be.
            sights.cluster = self.kube.get::<EtcdCluster>(&namespace, cluster).await.unwrap_or_default();
            return Ok(());
        }
        sights.job = self.kube.get::<Job>(&namespace, &names::deletion_job(&backup.name_any())).await?;
        if let Some(own) = sights.job.as_ref().filter(|job| is_owned(*job, backup)) {
            // They only tell why it has not ended yet.
            sights.pods = jobs::pods(&self.kube, own).await.unwrap_or_default();
            return Ok(());
        }
        if backup.spec.deletion_policy == DeletionPolicy::Retain {
            return Ok(());
        }
        sights.cluster = self.kube.get::<EtcdCluster>(&namespace, cluster).await?;
        let clusters = self.kube.list::<EtcdCluster>(&namespace, "").await?;
        sights.restored_by =
            clusters.iter().find(|cluster| delete::begins_with(cluster, backup)).map(ResourceExt::name_any);
        sights.missing = store_secrets::missing(&self.kube, &namespace, &backup.spec.store).await?;
        Ok(())
    }

    async fn carry_out(&self, seen: delete::Seen<'_>, step: delete::Step) -> Result<Action, Error> {
        let delete::Seen { backup, cluster, .. } = seen;
        match step {
            delete::Step::Wait(status) => {
                self.show(backup, status).await?;
                Ok(Action::requeue(SOON))
            }
            delete::Step::Release(told) => self.release(backup, told).await,
            delete::Step::Create { manifest, hash, status } => {
                let order = Order { backup, cluster, deadline: delete::PATIENCE, image: &self.agent_image };
                let job = job::deleting(order, &manifest, &hash).ok_or(Error::Nameless)?;
                let next = match self.kube.create(&backup.namespace().unwrap_or_default(), &job).await {
                    Ok(_) => delete::Step::Wait(status),
                    Err(error) if error.is_of_a_namespace_that_goes() => {
                        delete::left(seen, &manifest, "Its namespace is being deleted, so no Job can be created.")
                    }
                    Err(error) => delete::refused(seen, &manifest, &obstacle(error)?),
                };
                Box::pin(self.carry_out(seen, next)).await
            }
        }
    }

    /// Lets Kubernetes delete the object, and tells what there is to tell of its end.
    async fn release(&self, backup: &EtcdBackup, told: Option<Told>) -> Result<Action, Error> {
        let mut last = Cow::Borrowed(backup);
        if let Some(told) = &told {
            let now = Now { backup, time: Timestamp::now() };
            last = self.show(backup, going_away(now, BackupPhase::Deleting, told)).await?;
        }
        let released = self.mark(&last, false).await;
        if may_be_done(&released) {
            let news = told.iter().map(Told::news).collect();
            self.teller.tell(self.kube.writes(), backup.object_ref(&()), news);
        }
        released.map(|_| Action::await_change())
    }
}

/// What could not be read, and why.
fn trouble(error: &api::Error) -> String {
    let cause = cause(error);
    tracing::warn!(%error, cause, "what a deletion depends on can't be read");
    // A list may have no name.
    format!("{}: {}", error.to_string().trim_end(), outermost(&cause))
}

/// Whether the finalizer is off, or may be: then it is told now or never. Otherwise the next look takes it off.
fn may_be_done<T>(released: &Result<T, Error>) -> bool {
    match released {
        Ok(_) => true,
        Err(Error::Kube(error)) => error.is_unanswered(),
        Err(Error::Nameless | Error::Panic(_)) => false,
    }
}
