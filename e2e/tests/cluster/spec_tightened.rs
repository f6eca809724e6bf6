//! A rule that is tightened blocks nothing that an object from before needs: neither at the root nor below `spec`.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use quorate_crds::names;
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::scene::{PATIENCE, Scene, Stage, Wish, kubectl, play, wait_for};
use serde_json::{Value, json};

/// The definition of an EtcdCluster.
const DEFINITION: &str = "etcdclusters.quorate.dev";
/// Where it keeps the rules that a scene takes out for a while: those of the root, and those of a field below `spec`.
const RULES: [&str; 2] = [
    "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations",
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/etcd/x-kubernetes-validations",
];
/// A name and a count that they forbid, and with which a cluster runs all the same.
const LONG: &str = "a-name-of-forty-one-letters-and-then-some";
const COUNT: &str = "/etcd/snapshotCount";

pub async fn patch_definition(operations: Vec<Value>) -> Result<()> {
    let patch = Value::Array(operations).to_string();
    kubectl(&["patch", "crd", DEFINITION, "--type=json", "-p", &patch], None).await?.well().map(drop)
}

/// What the API server knows of an EtcdCluster.
pub async fn definition() -> Result<Value> {
    let definition = kubectl(&["get", "crd", DEFINITION, "-o", "json"], None).await?.well()?;
    Ok(serde_json::from_str(&definition)?)
}

/// What the operations are that put the rules back.
async fn rules_of_now() -> Result<Vec<Value>> {
    let definition = definition().await?;
    let put_back = |at: &str| -> Result<Value> {
        let rules = definition.pointer(at).with_context(|| format!("the definition has no rules at {at}"))?;
        Ok(json!({ "op": "add", "path": at, "value": rules }))
    };
    RULES.into_iter().map(put_back).collect()
}

/// Demands that an object that breaks one rule alone is refused by it.
async fn is_refused(scene: &Scene, wish: &Wish, field: &str) -> Result<()> {
    let said = scene.apply_dry(&wish.object()).await?.refused()?;
    ensure!(said.contains(field), "{field} is not in {said}");
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_object_from_before_a_tightened_rule_can_still_be_used_and_deleted() -> Result<()> {
    play("spec_tightened", Stage::Alone, async |scene| {
        let tight = rules_of_now().await?;
        // A CRD of before, without these rules: an object comes in that they forbid. No operator has seen it yet, so the
        // finalizer and the status are written after the start of the next one, which brings the CRD up to date.
        let operator = Operator::new(scene.client());
        let created = operator.away_during(async || {
            patch_definition(RULES.map(|at| json!({ "op": "remove", "path": at })).to_vec()).await?;
            wait_for("the looser rules to be in force", PATIENCE, async || {
                scene.create(&Wish::new(LONG, 1).with(COUNT, json!(50))).await
            })
            .await
        });
        let created = created.await;
        // If it does not, the scenes after this one shall not suffer from it.
        let tightened = wait_for("the tightened rules to be in force", PATIENCE, async || {
            is_refused(scene, &Wish::new("a-second-name-of-more-than-forty-letters-here", 1), "metadata.name").await?;
            is_refused(scene, &Wish::new("db", 1).with(COUNT, json!(50)), "spec.etcd.snapshotCount").await
        })
        .await;
        if tightened.is_err() {
            patch_definition(tight).await?;
        }
        let db = created?;
        tightened?;
        db.settles(1).await?;
        let finalizers = db.view().await?.object.metadata.finalizers.unwrap_or_default();
        ensure!(!finalizers.is_empty(), "it has no finalizer");

        // The rest of the spec can be changed, and the status tells that it was.
        let before = db.view().await?.object.metadata.generation;
        db.patch(json!({ "spec": { "service": { "annotations": { "example.com/changed": "true" } } } })).await?;
        db.until("the change to be seen", PATIENCE, |view| {
            ensure!(view.object.metadata.generation > before, "the spec is as it was");
            ensure!(view.is_current(), "the status speaks of the generation before");
            Ok(())
        })
        .await?;
        wait_for("the client Service to be changed", PATIENCE, async || {
            let service = scene.api::<Service>().get(&names::client_service(LONG)).await?;
            let annotations = service.metadata.annotations.unwrap_or_default();
            ensure!(annotations.contains_key("example.com/changed"), "it has {annotations:?}");
            Ok(())
        })
        .await?;

        // What breaks the rule can be mended, and not be made worse.
        let count = async |count: u32| {
            let patch = json!({ "spec": { "etcd": { "snapshotCount": count } } }).to_string();
            scene.kubectl(&["patch", "etcd", LONG, "--type=merge", "--dry-run=server", "-p", &patch]).await
        };
        let said = count(60).await?.refused()?;
        ensure!(said.contains("spec.etcd.snapshotCount"), "another wrong count: {said}");
        count(10_000).await?.well().context("a right count")?;
        db.delete().await
    })
    .await
}
