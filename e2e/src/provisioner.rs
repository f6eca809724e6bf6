//! Makes volumes for the lab's StorageClasses: each a folder of its own, as a `local` PersistentVolume of the node that the
//! scheduler chose, or of every node if its class is `quorate-network`; of no more than the size that was asked for if its class
//! is `quorate-bounded`. Must delete a folder only when its volume was released and its policy says so.

mod bounded;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use quorate_crds::{Quantity, QuantityError};
use serde_json::{Value, json};

use crate::lab::{
    BOUNDED_STORAGE_CLASS, Folders, Lab, LabError, NETWORK_STORAGE_CLASS, NodeNumber, STORAGE_CLASS, remove_folder,
};

/// The name by which a StorageClass asks for us.
pub const PROVISIONER: &str = "quorate.dev/local";
/// Where the scheduler writes the node it chose.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Where Kubernetes writes who is to make the volume.
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Where we write that a volume is ours.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The label with a node's name.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// When to try again what failed.
const RETRY: Duration = Duration::from_secs(1);

/// Why a volume can't be made or deleted.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The API server said no.
    #[error("failed to {what}")]
    Kube {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// A folder can't be made or deleted.
    #[error("failed to {what} {}", path.display())]
    Folder {
        /// What was tried.
        what: &'static str,
        /// Which folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A released folder can't be removed.
    #[error(transparent)]
    Removal(#[from] LabError),
    /// A claim asks for a size that is none.
    #[error(transparent)]
    Size(#[from] QuantityError),
}

/// Which nodes can use a volume.
#[derive(Clone, Copy)]
enum Reach {
    /// This one.
    Node(NodeNumber),
    /// Every one.
    AllNodes,
}

impl Reach {
    /// Of the volume for a claim for whose pod the scheduler chose this node.
    fn of(claim: &PersistentVolumeClaim, chosen: NodeNumber) -> Self {
        match class_of(claim) {
            Some(NETWORK_STORAGE_CLASS) => Self::AllNodes,
            Some(_) | None => Self::Node(chosen),
        }
    }

    /// Where its folder lies.
    fn folder(self, folders: &Folders) -> PathBuf {
        match self {
            Self::Node(node) => folders.volumes(node),
            Self::AllNodes => folders.network_volumes(),
        }
    }

    /// What it asks of a node. A `local` volume has to ask for something: all nodes have a name.
    fn requirement(self) -> Value {
        match self {
            Self::Node(node) => json!({ "key": HOSTNAME, "operator": "In", "values": [node.to_string()] }),
            Self::AllNodes => json!({ "key": HOSTNAME, "operator": "Exists" }),
        }
    }
}

struct Context {
    client: Client,
    folders: Folders,
}

/// Serves claims until the process is killed.
pub async fn run(lab: &Lab) -> Result<(), LabError> {
    let client = lab.client().await?;
    let context = Arc::new(Context { client: client.clone(), folders: Folders::of(lab.name()) });
    let claims = Controller::new(Api::<PersistentVolumeClaim>::all(client.clone()), watcher::Config::default());
    let volumes = Controller::new(Api::<PersistentVolume>::all(client), watcher::Config::default());
    let claims = claims.run(serve_claim, retry, Arc::clone(&context)).for_each(|outcome| async { report(outcome) });
    let volumes = volumes.run(serve_volume, retry, context).for_each(|outcome| async { report(outcome) });
    futures::join!(claims, volumes);
    Ok(())
}

fn report<T, E: std::error::Error + 'static>(outcome: Result<T, E>) {
    if let Err(error) = outcome {
        tracing::warn!(error = &error as &dyn std::error::Error, "failed to serve a volume");
    }
}

fn retry<K>(_: Arc<K>, _: &ProvisionError, _: Arc<Context>) -> Action {
    Action::requeue(RETRY)
}

async fn serve_claim(claim: Arc<PersistentVolumeClaim>, context: Arc<Context>) -> Result<Action, ProvisionError> {
    let Some(spec) = claim.spec.as_ref().filter(|_| is_ours(&claim)) else {
        return Ok(Action::await_change());
    };
    let selected = claim.annotations().get(SELECTED_NODE).and_then(|node| node.parse::<NodeNumber>().ok());
    match (&spec.volume_name, selected) {
        (Some(volume), _) => grow(&claim, volume, &context).await?,
        (None, Some(node)) => provision(&claim, node, &context).await?,
        // The scheduler has not chosen yet.
        (None, None) => {}
    }
    Ok(Action::await_change())
}

/// Whether the claim's class is the default one, or another that names us: Kubernetes then writes our name on the claim.
fn is_ours(claim: &PersistentVolumeClaim) -> bool {
    let asked = claim.annotations().get(STORAGE_PROVISIONER).is_some_and(|provisioner| provisioner == PROVISIONER);
    class_of(claim) == Some(STORAGE_CLASS) || asked
}

fn class_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref()
}

async fn provision(claim: &PersistentVolumeClaim, node: NodeNumber, context: &Context) -> Result<(), ProvisionError> {
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    let reach = Reach::of(claim, node);
    let path = reach.folder(&context.folders).join(&name);
    fs::create_dir_all(&path).map_err(folder_error("create", &path))?;
    bound(claim, &path)?;
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    match volumes.create(&PostParams::default(), &volume(claim, &name, reach, &path)).await {
        Ok(_) => tracing::info!(volume = name, %node, claim = claim.name_any(), "made"),
        // Made by an earlier try.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(source) => return Err(kube_error("create a volume")(source)),
    }
    Ok(())
}

/// Keeps the volume of a claim of that class to the size that is asked for.
fn bound(claim: &PersistentVolumeClaim, path: &Path) -> Result<(), ProvisionError> {
    match (class_of(claim), requested(claim)) {
        (Some(BOUNDED_STORAGE_CLASS), Some(size)) => {
            bounded::bound(path, Quantity::new(size).bytes()?).map_err(folder_error("bound", path))
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// The volume for a claim: bound to it from the start, so that no other claim can take it.
fn volume(claim: &PersistentVolumeClaim, name: &str, reach: Reach, path: &Path) -> PersistentVolume {
    let spec = claim.spec.as_ref();
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": name, "annotations": { PROVISIONED_BY: PROVISIONER } },
        "spec": {
            "accessModes": spec.and_then(|spec| spec.access_modes.clone()).unwrap_or_default(),
            "capacity": { "storage": requested(claim) },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(), "name": claim.name_any(), "uid": claim.uid(),
            },
            "local": { "path": path },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [reach.requirement()] }] } },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": class_of(claim),
            "volumeMode": "Filesystem",
        },
    });
    // All values above are of the types that the fields have.
    serde_json::from_value(volume).unwrap_or_default()
}

fn requested(claim: &PersistentVolumeClaim) -> Option<String> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(|quantity| quantity.0.clone())
}

/// A folder is as large as its disk, so growing is writing it down, but for one that is kept to a size.
async fn grow(claim: &PersistentVolumeClaim, volume: &str, context: &Context) -> Result<(), ProvisionError> {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let (Some(wanted), Some(capacity)) = (requested(claim), capacity) else { return Ok(()) };
    if wanted == capacity.0 {
        return Ok(());
    }
    let capacity = json!({ "storage": wanted });
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let patch = Patch::Merge(json!({ "spec": { "capacity": capacity } }));
    let grown = volumes.patch(volume, &PatchParams::default(), &patch).await.map_err(kube_error("grow a volume"))?;
    if let Some(local) = grown.spec.and_then(|spec| spec.local) {
        bound(claim, Path::new(&local.path))?;
    }
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), &claim.namespace().unwrap_or_default());
    let patch = Patch::Merge(json!({ "status": { "capacity": capacity } }));
    let patched = claims.patch_status(&claim.name_any(), &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(kube_error("write down a claim's new size"))
}

async fn serve_volume(volume: Arc<PersistentVolume>, context: Arc<Context>) -> Result<Action, ProvisionError> {
    if let Some(path) = abandoned(&volume) {
        remove_folder(&path)?;
        let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
        match volumes.delete(&volume.name_any(), &DeleteParams::default()).await {
            Ok(_) => tracing::info!(volume = volume.name_any(), "deleted"),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(source) => return Err(kube_error("delete a volume")(source)),
        }
    }
    Ok(Action::await_change())
}

/// The folder of a volume of ours whose claim is gone and whose policy is Delete.
fn abandoned(volume: &PersistentVolume) -> Option<PathBuf> {
    let ours = volume.annotations().get(PROVISIONED_BY).is_some_and(|by| by == PROVISIONER);
    let released = volume.status.as_ref()?.phase.as_deref() == Some("Released");
    let spec = volume.spec.as_ref()?;
    let delete = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    (ours && released && delete).then(|| spec.local.as_ref().map(|local| PathBuf::from(&local.path))).flatten()
}

fn kube_error(what: &'static str) -> impl FnOnce(kube::Error) -> ProvisionError {
    move |source| ProvisionError::Kube { what, source: Box::new(source) }
}

fn folder_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProvisionError {
    let path = path.to_path_buf();
    move |source| ProvisionError::Folder { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "data", "namespace": "default", "uid": "u-1" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE_CLASS,
                      "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .unwrap()
    }

    fn made() -> PersistentVolume {
        made_for(&claim())
    }

    fn made_for(claim: &PersistentVolumeClaim) -> PersistentVolume {
        volume(claim, "pvc-u-1", Reach::of(claim, "node2".parse().unwrap()), "/volumes/pvc-u-1".as_ref())
    }

    #[test]
    fn a_volume_is_bound_to_its_claim_and_node() {
        let spec = made().spec.unwrap();
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u-1"));
        assert_eq!(spec.local.unwrap().path, "/volumes/pvc-u-1");
        assert_eq!(spec.capacity.unwrap()["storage"].0, "1Gi");
        let affinity = serde_json::to_string(&spec.node_affinity).unwrap();
        assert!(affinity.contains(r#""values":["node2"]"#), "{affinity}");
    }

    #[test]
    fn a_volume_of_the_network_is_bound_to_its_claim_and_no_node() {
        let mut claim = claim();
        claim.spec.as_mut().unwrap().storage_class_name = Some(NETWORK_STORAGE_CLASS.into());
        let spec = made_for(&claim).spec.unwrap();
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u-1"));
        assert_eq!(spec.storage_class_name.as_deref(), Some(NETWORK_STORAGE_CLASS));
        let affinity = serde_json::to_string(&spec.node_affinity).unwrap();
        assert!(affinity.contains(r#""operator":"Exists""#) && !affinity.contains("node2"), "{affinity}");
    }

    #[test]
    fn claims_of_our_class_or_addressed_to_us_are_ours() {
        let mut other = claim();
        other.spec.as_mut().unwrap().storage_class_name = Some("other".into());
        assert!(is_ours(&claim()) && !is_ours(&other));
        other.annotations_mut().insert(STORAGE_PROVISIONER.into(), PROVISIONER.into());
        assert!(is_ours(&other));
    }

    #[test]
    fn only_a_released_volume_of_ours_with_policy_delete_is_deleted() {
        let with = |phase: &str, policy: &str, by: &str| {
            let mut volume = made();
            volume.status = serde_json::from_value(json!({ "phase": phase })).unwrap();
            volume.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some(policy.into());
            volume.annotations_mut().insert(PROVISIONED_BY.into(), by.into());
            abandoned(&volume)
        };
        assert_eq!(with("Released", "Delete", PROVISIONER), Some("/volumes/pvc-u-1".into()));
        assert_eq!(with("Bound", "Delete", PROVISIONER), None);
        assert_eq!(with("Released", "Retain", PROVISIONER), None);
        assert_eq!(with("Released", "Delete", "example.org/other"), None);
    }
}
