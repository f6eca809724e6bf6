//! A Kubernetes that writes other names of images into pods, as where all images come from a mirror.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use quorate_e2e::scene::{PATIENCE, Scene, Stage, Wish, play, wait_for};
use serde_json::{Value, json};

use super::upgrade::{V3_6, V3_7, arrives, no_trial_is_left, wish_for};
use super::upgrade_lost::image;

/// Where images are asked for, and where they are brought from.
const ASKED: &str = "registry.example/coreos/etcd";
const GIVEN: &str = "quay.io/coreos/etcd";

/// Image names of pods are rewritten when they are made and when they are changed: the cluster is begun, changes its version and
/// comes to rest all the same.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_whose_images_are_renamed_is_begun_and_changes_its_version() -> Result<()> {
    play("mirror", Stage::Shared, async |scene| {
        let mirror = Mirror::make(scene).await?;
        let played = async {
            is_in_force(scene).await?;
            begins_and_changes(scene).await
        };
        let played = played.await;
        mirror.close().await?;
        played
    })
    .await
}

async fn begins_and_changes(scene: &Scene) -> Result<()> {
    let wish = Wish::new("db", 3).version(V3_6).with("/image", json!({ "repository": ASKED }));
    let db = scene.create(&wish).await?;
    db.settles(3).await?;
    db.put("hello", "world").await?;
    wish_for(&db, V3_7).await?;
    arrives(&db).await?;
    db.settles(3).await?;
    db.reads("hello", "world").await?;
    no_trial_is_left(scene, &db).await?;
    for pod in scene.api::<Pod>().list(&ListParams::default()).await?.items {
        ensure!(image(&pod) == Some(&format!("{GIVEN}:v{V3_7}")), "{:?} runs {:?}", pod.metadata.name, image(&pod));
    }
    Ok(())
}

/// A policy that renames the images of a scene's pods.
struct Mirror {
    policies: Api<DynamicObject>,
    bindings: Api<DynamicObject>,
    name: String,
}

impl Mirror {
    async fn make(scene: &Scene) -> Result<Self> {
        let api = |kind: &str| {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind));
            (Api::all_with(scene.client().clone(), &kind), kind)
        };
        let (policies, policy) = api("MutatingAdmissionPolicy");
        let (bindings, binding) = api("MutatingAdmissionPolicyBinding");
        let name = format!("mirror-{}", scene.namespace());
        let named = "object.spec.containers[0].image";
        let spec = json!({
            "matchConstraints": {
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": scene.namespace() } },
                "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                    "resources": ["pods"] }],
            },
            "matchConditions": [{ "name": "asked", "expression": format!("{named}.startsWith('{ASKED}')") }],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": format!(
                "[JSONPatch{{op: 'replace', path: '/spec/containers/0/image', value: {named}.replace('{ASKED}', '{GIVEN}')}}]"
            ) } }],
        });
        make(&policies, &policy, &name, spec).await?;
        make(&bindings, &binding, &name, json!({ "policyName": name })).await?;
        Ok(Self { policies, bindings, name })
    }

    async fn close(&self) -> Result<()> {
        self.bindings.delete(&self.name, &DeleteParams::default()).await.context("failed to delete the binding")?;
        self.policies.delete(&self.name, &DeleteParams::default()).await.context("failed to delete the policy")?;
        Ok(())
    }
}

/// Waits until a pod would get another name of its image.
async fn is_in_force(scene: &Scene) -> Result<()> {
    let only_tried = PostParams { dry_run: true, ..PostParams::default() };
    let probe: Pod = serde_json::from_value(json!({ "metadata": { "name": "probe" },
        "spec": { "containers": [{ "name": "etcd", "image": format!("{ASKED}:v1") }] } }))?;
    wait_for("images to be renamed", PATIENCE, async || {
        let tried = scene.api::<Pod>().create(&only_tried, &probe).await?;
        ensure!(image(&tried).is_some_and(|image| image.starts_with(GIVEN)), "{:?}", image(&tried));
        Ok(())
    })
    .await
}

async fn make(objects: &Api<DynamicObject>, kind: &ApiResource, name: &str, spec: Value) -> Result<()> {
    let object = DynamicObject::new(name, kind).data(json!({ "spec": spec }));
    objects
        .create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("failed to make the {}", kind.kind))?;
    Ok(())
}
