//! A backup that is being deleted is led to its end: what was decided is done and shown, and last of all the finalizer goes.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use quorate_crds::{BackupPhase, DeletionPolicy, EtcdBackup, EtcdCluster, names};

use super::controller::{Driver, Error, SOON, is_settled, obstacle};
use super::delete;
use super::job::{self, Order};
use super::status::{Now, Told, going_away};
use crate::ownership::is_owned;
use crate::{jobs, store_secrets};

impl Driver {
    /// Leads a backup that is being deleted to its end.
    pub async fn let_go(&self, backup: &EtcdBackup) -> Result<Action, Error> {
        let namespace = backup.namespace().unwrap_or_default();
        if backup.spec.deletion_policy == DeletionPolicy::Delete && !is_settled(backup) {
            let looked = Box::pin(self.look(backup)).await?;
            // Only when its Job has ended it is known what there is to delete.
            if looked.own_job(backup).is_some() {
                return Box::pin(self.go_on(backup, &looked)).await;
            }
        }
        let name = names::deletion_job(&backup.name_any());
        let cluster = self.kube.get::<EtcdCluster>(&namespace, &backup.spec.cluster).await?;
        let job = self.kube.get::<Job>(&namespace, &name).await?;
        let (mut pods, mut restored_by, mut missing) = (Vec::new(), None, None);
        if let Some(own) = job.as_ref().filter(|job| is_owned(*job, backup)) {
            pods = jobs::pods(&self.kube, own).await?;
        } else {
            let clusters = self.kube.list::<EtcdCluster>(&namespace, "").await?;
            restored_by =
                clusters.iter().find(|cluster| delete::begins_with(cluster, backup)).map(ResourceExt::name_any);
            missing = store_secrets::missing(&self.kube, &namespace, &backup.spec.store).await?;
        }
        let (cluster, job, restored_by) = (cluster.as_ref(), job.as_ref(), restored_by.as_deref());
        let now = Timestamp::now();
        let seen = delete::Seen { backup, cluster, restored_by, missing, job, pods: &pods, now };
        self.carry_out(seen, delete::decide(seen)).await
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

/// Whether the finalizer is off, or may be: then it is told now or never. Otherwise the next look takes it off.
fn may_be_done<T>(released: &Result<T, Error>) -> bool {
    match released {
        Ok(_) => true,
        Err(Error::Kube(error)) => error.is_unanswered(),
        Err(Error::Nameless | Error::Panic(_)) => false,
    }
}
