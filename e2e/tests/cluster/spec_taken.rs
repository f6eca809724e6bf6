//! Services of somebody else that have the names of a cluster's own: they are left as they are and told, and the cluster goes
//! on by itself once the names are free.

use anyhow::{Context as _, Result, ensure};
use quorate_crds::{ConditionType, Reason};
use quorate_e2e::scene::{Cluster, PATIENCE, Scene, Stage, Wish, play, wait_for};
use serde_json::json;

use super::{CONDITIONS, shows};

const TAKEN: &str = Reason::NameTaken.as_str();

/// What changes when anybody writes to a Service, or puts another in its place.
async fn version(scene: &Scene, name: &str) -> Result<String> {
    let columns = "jsonpath={.metadata.uid} {.metadata.resourceVersion} {.metadata.ownerReferences}";
    scene.kubectl(&["get", "service", name, "-o", columns]).await?.well()
}

/// Makes a Service that has nothing to do with etcd.
async fn made_by_a_user(scene: &Scene, name: &str) -> Result<String> {
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "selector": { "app": "of-a-user" }, "ports": [{ "port": 80 }] } });
    scene.apply(&service).await?.well()?;
    version(scene, name).await
}

/// Demands that a condition names the Service.
async fn is_told(db: &Cluster, name: &str) -> Result<()> {
    let named = format!("Service {name} ");
    db.until(&format!("a condition that names the {named}"), PATIENCE, |view| {
        let told: Vec<_> = CONDITIONS.into_iter().filter_map(|of| view.condition(of)).collect();
        ensure!(told.iter().any(|told| told.reason == TAKEN && told.message.contains(&named)), "{told:?}");
        Ok(())
    })
    .await
    .map(drop)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn services_of_somebody_else_are_left_alone_and_told() -> Result<()> {
    play("spec_taken", Stage::Shared, async |scene| {
        let before = [made_by_a_user(scene, "db").await?, made_by_a_user(scene, "db-client").await?];
        let db = shows(scene, &Wish::new("db", 1), TAKEN).await?;
        is_told(&db, "db").await?;
        let after = [version(scene, "db").await?, version(scene, "db-client").await?];
        ensure!(after == before, "{before:?} became {after:?}");
        // Members need their own Service, and not that of the clients.
        scene.kubectl(&["delete", "service", "db"]).await?.well()?;
        is_told(&db, "db-client").await?;
        db.until("a member that serves", PATIENCE, |view| {
            let available = view.condition(ConditionType::Available).context("it is not said whether it serves")?;
            ensure!(available.reason == Reason::ClusterReady.as_str(), "{available:?}");
            Ok(())
        })
        .await?;
        ensure!(version(scene, "db-client").await? == before[1], "the clients' Service was written to");
        scene.kubectl(&["delete", "service", "db-client"]).await?.well()?;
        wait_for("a Service of the cluster's own for clients", PATIENCE, async || {
            let of = ["get", "service", "db-client", "-o", "jsonpath={.metadata.ownerReferences[0].name}"];
            let owner = scene.kubectl(&of).await?.well()?;
            ensure!(owner == "db", "its owner is {owner:?}");
            Ok(())
        })
        .await?;
        db.settles(1).await.map(drop)
    })
    .await
}
