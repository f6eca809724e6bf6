//! What befalls the trial of an image without being the image's fault.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use quorate_e2e::faults::{nodes, processes};
use quorate_e2e::scene::{EtcdProcess, Scene, Stage, Wish, play};
use rustix::process::Signal;

use super::upgrade::{V3_6, V3_7, arrives, no_trial_is_left, wish_for};

/// A node is switched off amid a trial. That it ended with an exit code says nothing of the image: it is tried again, and the
/// way is gone to its end.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_node_that_is_switched_off_says_nothing_of_the_image_it_tried() -> Result<()> {
    play("upgrade_trial_off", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_6)).await?;
        db.settles(3).await?;
        db.put("hello", "world").await?;
        let nobody = BTreeSet::new();
        let (trial, ()) =
            tokio::try_join!(processes::at_birth(scene, &nobody, Duration::ZERO, Signal::STOP), wish_for(&db, V3_7))?;
        let node = node_of(scene, &trial).await?;
        eprintln!("{node} is switched off, on which the image was tried for {}", trial.member());
        nodes::stopped_during(scene, &node, async || Ok(())).await?;
        arrives(&db).await?;
        db.settles(3).await?;
        db.reads("hello", "world").await?;
        no_trial_is_left(scene, &db).await
    })
    .await
}

/// The node of the trial that this process is part of.
async fn node_of(scene: &Scene, process: &EtcdProcess) -> Result<String> {
    let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
    let of = |pod: &&Pod| pod.metadata.uid.as_deref().is_some_and(|uid| processes::of_pod(uid).contains(&process.pid));
    let pod = pods.iter().find(of).with_context(|| format!("{process:?} belongs to no pod"))?;
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    ensure!(name != process.member(), "{name} was started, no trial");
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).context("a pod without a node")
}
