//! Faults of pods, claims and volumes, done through the Kubernetes API as a user or a mishap would, or on the folder that
//! a volume is.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Api, DeleteParams, Preconditions};
use serde::de::DeserializeOwned;

use crate::scene::{Cluster, PATIENCE, longest, wait_for};

/// How long the look before a loss of volumes may take: nothing has begun yet, and what it was to hit may be another later.
const LOOK_WITHIN: Duration = Duration::from_secs(10);
/// How long [`lose_volumes`] takes at most: a look, and three waits. Whoever stops it before leaves claims half deleted.
pub const LOSS_WITHIN: Duration = LOOK_WITHIN.saturating_add(longest(PATIENCE).saturating_mul(3));
/// How long a volume may take to be emptied under a process that runs on it.
const EMPTY_WITHIN: Duration = Duration::from_secs(5);

/// Deletes pods without grace, all at once: their objects are gone at once, their processes soon after.
pub async fn delete_by_force(cluster: &Cluster, names: &[&str]) -> Result<()> {
    let pods = cluster.pods();
    let now = DeleteParams::default().grace_period(0);
    try_join_all(names.iter().map(|name| pods.delete(name, &now))).await.context("failed to delete the pods")?;
    Ok(())
}

/// Deletes claims and pods, all claims first: with both gone, the volumes are lost. Once it has begun it goes on until that
/// is so, also where the API server is away for a while: a claim that is left half deleted would take its volume along when
/// its pod goes, whenever that is.
pub async fn lose_volumes(cluster: &Cluster, names: &[&str]) -> Result<()> {
    let (claims, pods) = (cluster.claims(), cluster.pods());
    let (params, now) = (DeleteParams::default(), DeleteParams::default().grace_period(0));
    let before = tokio::time::timeout(LOOK_WITHIN, cluster.view()).await.context("failed to look in time")??;
    let volumes = names.iter().copied().map(|name| {
        let volume = before.volume(name).map(|volume| (name, volume));
        volume.with_context(|| format!("there is no claim {name}"))
    });
    let volumes: Vec<(&str, &str)> = volumes.collect::<Result<_>>()?;
    delete_these("the claims to be deleted", &claims, &volumes, &params).await?;
    let uid = |name: &str| before.pods.get(name)?.metadata.uid.as_deref();
    let pods_of: Vec<_> = names.iter().copied().filter_map(|name| Some((name, uid(name)?))).collect();
    delete_these("the pods to be deleted", &pods, &pods_of, &now).await?;
    wait_for("the claims to be gone", PATIENCE, async || {
        let now = cluster.view().await?;
        for name in names {
            ensure!(now.volume(name) != before.volume(name), "the claim {name} is there");
        }
        Ok(())
    })
    .await
}

/// Deletes objects, each by its name and UID, all at once, and goes on until the API server has heard of all.
async fn delete_these<K>(what: &str, of: &Api<K>, these: &[(&str, &str)], params: &DeleteParams) -> Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    wait_for(what, PATIENCE, async || {
        let all = these.iter().map(|(name, uid)| async move { deleted(of.delete(name, &only(params, uid)).await) });
        try_join_all(all).await.map(drop)
    })
    .await
}

/// What deletes only the object that had this UID: what has come in its place stays.
fn only(params: &DeleteParams, uid: &str) -> DeleteParams {
    let these = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(these), ..params.clone() }
}

/// What is gone, or another one by now, need not be deleted.
fn deleted<T>(answer: kube::Result<T>) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        answer => answer.map(drop).context("failed to delete an object"),
    }
}

/// Takes everything off a member's volume, as if its disk had been exchanged for an empty one. A process that runs on it
/// keeps what it has open; what is started after it finds nothing. While it runs it makes and removes files itself: then its
/// folder is gone through once more, since what is left would be half a volume.
pub async fn empty_volume(cluster: &Cluster, name: &str) -> Result<()> {
    let folder = folder(cluster, name).await?;
    wait_for(&format!("the volume of {name} to be empty"), EMPTY_WITHIN, async || emptied(&folder)).await
}

fn emptied(folder: &Path) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        remove(&path).with_context(|| format!("failed to remove {}", path.display()))?;
    }
    Ok(())
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}

/// A disk that is not mounted where a member's volume is.
#[derive(Debug)]
#[must_use = "it is mounted again only when that is asked for"]
pub struct Unmounted {
    /// Where it belongs, and an empty folder is now.
    volume: PathBuf,
    /// Where it is meanwhile.
    aside: PathBuf,
}

/// Takes the disk of a member's volume away, as where it is mounted late after a node's start: a pod that is made meanwhile is
/// given the empty folder that it would be mounted on, and keeps that.
pub async fn unmount_disk(cluster: &Cluster, name: &str) -> Result<Unmounted> {
    let volume = folder(cluster, name).await?;
    let unmounted = Unmounted { aside: volume.with_extension("disk"), volume };
    unmounted.leave_empty().with_context(|| format!("failed to unmount {}", unmounted.volume.display()))?;
    Ok(unmounted)
}

impl Unmounted {
    fn leave_empty(&self) -> std::io::Result<()> {
        let permissions = std::fs::metadata(&self.volume)?.permissions();
        std::fs::rename(&self.volume, &self.aside)?;
        std::fs::create_dir(&self.volume)?;
        std::fs::set_permissions(&self.volume, permissions)
    }

    /// Mounts it: pods that are there do not see it.
    pub fn mount(self) -> Result<()> {
        let Self { volume, aside } = self;
        let mounted = std::fs::remove_dir_all(&volume).and_then(|()| std::fs::rename(&aside, &volume));
        mounted.with_context(|| format!("failed to mount {}", volume.display()))
    }
}

/// The folder on this machine that is a member's volume.
pub async fn folder(cluster: &Cluster, name: &str) -> Result<PathBuf> {
    let claim = cluster.claims().get(name).await.context("the member has no claim")?;
    let volume = claim.spec.and_then(|spec| spec.volume_name).context("the claim is not bound")?;
    let volumes: Api<PersistentVolume> = Api::all(cluster.scene().client().clone());
    let spec = volumes.get(&volume).await?.spec.context("the volume has no spec")?;
    let path = spec.local.map(|local| local.path).context("the volume is no folder of this machine")?;
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_mounted_again_has_what_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(volume.join("data"), "x").unwrap();
        let unmounted = Unmounted { aside: volume.with_extension("disk"), volume: volume.clone() };
        unmounted.leave_empty().unwrap();
        assert_eq!(std::fs::read_dir(&volume).unwrap().count(), 0);
        std::fs::write(volume.join("marker"), "").unwrap();
        unmounted.mount().unwrap();
        assert_eq!(std::fs::read_to_string(volume.join("data")).unwrap(), "x");
        assert!(!volume.join("marker").exists());
    }

    #[test]
    fn a_folder_is_emptied_of_all_that_it_holds_and_may_be_emptied_again() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("member/wal")).unwrap();
        std::fs::write(folder.path().join("member/wal/0.wal"), "entry").unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        for _ in 0..2 {
            emptied(folder.path()).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        folder.close().unwrap();
        assert!(emptied(Path::new("/nowhere")).is_err());
    }
}
