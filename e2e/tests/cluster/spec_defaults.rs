//! Other defaults: an operator that fills in other values than the one before, or values where that one had no field,
//! restarts no member. What a cluster was created with stays with it.

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::scene::{Cluster, PATIENCE, Scene, Stage, Wish, kubectl, play, wait_for};
use serde_json::{Value, json};

use super::tightened::{definition, patch_definition};
use crate::operator::looks_and_restarts_nothing;
use crate::roll;

/// Where the definition describes the spec.
const SPEC: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
/// What the operator of before fills in, each time in two places: for the field, and for all of `etcd` where that is left
/// out.
const SNAPSHOT_COUNT: [&str; 2] = ["/etcd/properties/snapshotCount/default", "/etcd/default/snapshotCount"];
/// The count of before.
const COUNT: u32 = 20_000;
/// A field that came later, with all that speaks of it.
const LATER: [&str; 3] = [
    "/etcd/properties/heartbeatIntervalMillis",
    "/etcd/default/heartbeatIntervalMillis",
    "/etcd/x-kubernetes-validations",
];

/// The definition as an operator of before had it.
fn earlier() -> Vec<Value> {
    let at = |path: &str| format!("{SPEC}{path}");
    let counts = SNAPSHOT_COUNT.map(|path| json!({ "op": "replace", "path": at(path), "value": COUNT }));
    let resources = json!({ "op": "replace", "path": at("/resources/default"), "value": {} });
    let later = LATER.map(|path| json!({ "op": "remove", "path": at(path) }));
    counts.into_iter().chain([resources]).chain(later).collect()
}

/// What the API server has in a cluster's spec.
async fn held(db: &Cluster, field: &str) -> Result<Option<Value>> {
    let object = db.scene().kubectl(&["get", "etcd", db.name(), "-o", "json"]).await?.well()?;
    let object: Value = serde_json::from_str(&object)?;
    Ok(object.pointer(&format!("/spec{field}")).cloned())
}

/// A cluster of the time before: what it was filled with is not what it would be filled with now.
async fn created_before(scene: &Scene) -> Result<Cluster> {
    patch_definition(earlier()).await?;
    let (wish, filled) = (serde_json::to_vec(&Wish::new("db", 3).object())?, json!(COUNT));
    wait_for("the earlier defaults to be in force", PATIENCE, async || {
        let arguments = ["create", "-n", scene.namespace(), "--dry-run=server", "-o", "json", "-f", "-"];
        let said = kubectl(&arguments, Some(wish.clone())).await?.well()?;
        let object: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        ensure!(object.pointer("/spec/etcd/snapshotCount") == Some(&filled), "{said}");
        Ok(())
    })
    .await?;
    let db = scene.create(&Wish::new("db", 3)).await?;
    db.settles(3).await?;
    ensure!(held(&db, "/resources").await? == Some(json!({})), "it asks for resources");
    ensure!(held(&db, "/etcd/heartbeatIntervalMillis").await?.is_none(), "it has a field of later");
    Ok(db)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_operator_with_other_defaults_restarts_nothing() -> Result<()> {
    play("spec_defaults", Stage::Alone, async |scene| {
        let operator = Operator::new(scene.client());
        let db = created_before(scene).await;
        // The next operator brings the definition up to date, also if there is no cluster to show it with.
        operator.away_during(async || Ok(())).await?;
        operator.is_ready().await?;
        wait_for("the defaults of now", PATIENCE, async || {
            let now = definition().await?;
            let count = now.pointer(&format!("{SPEC}{}", SNAPSHOT_COUNT[0])).context("the definition has no count")?;
            ensure!(*count != json!(COUNT), "it is still that of before");
            Ok(())
        })
        .await?;
        let db = db?;
        let (before, pods) = (db.identities().await?, roll::pods(&db.view().await?));
        looks_and_restarts_nothing(&db, &before, &pods).await?;
        ensure!(held(&db, "/etcd/snapshotCount").await? == Some(json!(COUNT)), "its own count is gone");
        ensure!(held(&db, "/etcd/heartbeatIntervalMillis").await?.is_some(), "the field of later is not filled in");
        let rolls = roll::times_told(&db, "SpecChanged").await?;
        ensure!(rolls == 0, "{rolls} times a changed spec was told");
        // Who comes now has what is filled in now.
        let later = scene.create(&Wish::new("later", 1)).await?;
        ensure!(held(&later, "/etcd/snapshotCount").await? != Some(json!(COUNT)), "the defaults are those of before");
        later.settles(1).await.map(drop)
    })
    .await
}
