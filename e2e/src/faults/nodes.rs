//! Faults of nodes that last while a scene's body runs, and are taken back however that ends; and images that some have.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::lab::{Lab, LabError, NodeHandle};
use crate::scene::Scene;

fn handle(node: &str) -> Result<NodeHandle> {
    let lab = Lab::from_env().context("faults of nodes need the local cluster")?;
    Ok(lab.node_named(node)?)
}

/// Runs `body` while a node is switched off; afterwards it is on and Ready.
pub async fn stopped_during<T>(scene: &Scene, node: &str, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let handle = handle(node)?;
    let begun = handle.stop().await;
    once_begun(scene, &handle, begun, body).await
}

/// Runs `body` while a node's cable is out, with everything on it running on; afterwards it is in and the node Ready.
pub async fn cut_off_during<T>(scene: &Scene, node: &str, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let handle = handle(node)?;
    let begun = handle.cut().await;
    once_begun(scene, &handle, begun, body).await
}

/// Runs `body` while all processes of a node stand still; afterwards they go on and the node is Ready.
pub async fn frozen_during<T>(scene: &Scene, node: &str, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let handle = handle(node)?;
    handle.freeze();
    let outcome = body().await;
    handle.thaw();
    afterwards(scene, &handle, outcome).await
}

/// Runs `body` while a node has no kubelet, of which the control plane hears some seconds later; its pods go on meanwhile.
pub async fn without_kubelet_during<T>(scene: &Scene, node: &str, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let handle = handle(node)?;
    let begun = handle.kill_kubelet().await;
    once_begun(scene, &handle, begun, body).await
}

/// Has a node know an image by another name besides; it keeps it.
pub async fn tag_image(node: &str, image: &str, name: &str) -> Result<()> {
    Ok(handle(node)?.tag_image(image, name).await?)
}

/// Runs `body`, which may cordon a node; afterwards it takes pods again.
pub async fn cordoned_during<T>(scene: &Scene, node: &str, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let outcome = body().await;
    scene.kubectl(&["uncordon", node]).await?.well()?;
    outcome
}

/// Runs `body` if the fault has begun; afterwards the node is back, however much of it had.
async fn once_begun<T>(
    scene: &Scene,
    handle: &NodeHandle,
    begun: Result<(), LabError>,
    body: impl AsyncFnOnce() -> Result<T>,
) -> Result<T> {
    let outcome = match begun {
        Ok(()) => body().await,
        Err(error) => Err(error.into()),
    };
    afterwards(scene, handle, outcome).await
}

/// Brings a node back. What went wrong in the scene counts for more than what goes wrong here.
async fn afterwards<T>(scene: &Scene, handle: &NodeHandle, outcome: Result<T>) -> Result<T> {
    match (outcome, back(scene, handle).await) {
        (Err(error), Err(further)) => {
            eprintln!("failed to bring {} back: {further:#}", handle.name());
            Err(error)
        }
        (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
        (Ok(outcome), Ok(())) => Ok(outcome),
    }
}

async fn back(scene: &Scene, handle: &NodeHandle) -> Result<()> {
    handle.heal().await?;
    let nodes: Api<Node> = Api::all(scene.client().clone());
    if nodes.get_opt(&handle.name()).await?.is_none() {
        // A kubelet registers its node only when it starts.
        handle.kill_kubelet().await?;
    }
    handle.start().await?;
    handle.wait_ready().await?;
    Ok(())
}
