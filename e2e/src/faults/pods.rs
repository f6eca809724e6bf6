//! Faults of pods, claims and volumes, done through the Kubernetes API as a user or a mishap would, or on the folder that
//! a volume is.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Api, DeleteParams};

use crate::scene::{Cluster, PATIENCE, wait_for};

/// Deletes pods without grace, all at once: their objects are gone at once, their processes soon after.
pub async fn delete_by_force(cluster: &Cluster, names: &[&str]) -> Result<()> {
    let pods = cluster.pods();
    let now = DeleteParams::default().grace_period(0);
    try_join_all(names.iter().map(|name| pods.delete(name, &now))).await.context("failed to delete the pods")?;
    Ok(())
}

/// Deletes claims and pods, all claims first: with both gone, the volumes are lost.
pub async fn lose_volumes(cluster: &Cluster, names: &[&str]) -> Result<()> {
    let claims = cluster.claims();
    let params = DeleteParams::default();
    let before = cluster.view().await?;
    try_join_all(names.iter().map(|name| claims.delete(name, &params))).await.context("failed to delete the claims")?;
    delete_by_force(cluster, names).await?;
    wait_for("the claims to be gone", PATIENCE, async || {
        let now = cluster.view().await?;
        for name in names {
            ensure!(now.volume(name) != before.volume(name), "the claim {name} is there");
        }
        Ok(())
    })
    .await
}

/// Takes everything off a member's volume, as if its disk had been exchanged for an empty one. A process that runs on it
/// keeps what it has open; what is started after it finds nothing.
pub async fn empty_volume(cluster: &Cluster, name: &str) -> Result<()> {
    let folder = folder(cluster, name).await?;
    let entries = std::fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        remove(&path).with_context(|| format!("failed to remove {}", path.display()))?;
    }
    Ok(())
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}

/// The folder on this machine that is a member's volume.
pub(super) async fn folder(cluster: &Cluster, name: &str) -> Result<PathBuf> {
    let claim = cluster.claims().get(name).await.context("the member has no claim")?;
    let volume = claim.spec.and_then(|spec| spec.volume_name).context("the claim is not bound")?;
    let volumes: Api<PersistentVolume> = Api::all(cluster.scene().client().clone());
    let spec = volumes.get(&volume).await?.spec.context("the volume has no spec")?;
    let path = spec.local.map(|local| local.path).context("the volume is no folder of this machine")?;
    Ok(path.into())
}
