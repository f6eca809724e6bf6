//! Backups as a user takes them: an EtcdBackup to a volume while somebody writes, proved by the agent from that volume, and
//! what failures say.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use quorate_crds::{BackupPhase, EtcdBackup, EtcdBackupStatus};
use quorate_e2e::scene::{PATIENCE, Scene, Stage, Wish, Writer, play, wait_for};
use serde_json::{Value, json};

/// An EtcdBackup of the cluster `db`.
pub fn backup(name: &str, store: &Value) -> Value {
    json!({
        "apiVersion": "quorate.dev/v1alpha1",
        "kind": "EtcdBackup",
        "metadata": { "name": name },
        "spec": { "cluster": "db", "store": store },
    })
}

/// Makes the claim `backups`: a store.
pub async fn volume(scene: &Scene) -> Result<Value> {
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "backups" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    scene.apply(&claim).await?.well()?;
    Ok(json!({ "volumeClaim": { "name": "backups" } }))
}

async fn status(scene: &Scene, name: &str) -> Result<EtcdBackupStatus> {
    Ok(scene.api::<EtcdBackup>().get(name).await?.status.unwrap_or_default())
}

/// Waits until a backup is shown with this phase and reason.
pub async fn shows(scene: &Scene, name: &str, phase: BackupPhase, reason: &str) -> Result<EtcdBackupStatus> {
    wait_for(&format!("backup {name} to be {phase} with {reason}"), PATIENCE, async || {
        let status = status(scene, name).await?;
        let ready = status.conditions.iter().find(|one| one.type_ == "Ready").context("there is no condition")?;
        ensure!(
            status.phase == Some(phase) && ready.reason == reason,
            "it is {:?}, {}: {}",
            status.phase,
            ready.reason,
            ready.message
        );
        Ok(status)
    })
    .await
}

/// Runs the agent in a pod with the volume `backups`, and returns its JSON.
async fn agent(scene: &Scene, name: &str, arguments: &[&str]) -> Result<Value> {
    let command: Vec<&str> = [&["/quorate-agent"], arguments, &["--store=file:///backups", "--output=json"]].concat();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never",
            "securityContext": { "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532 },
            "containers": [{
                "name": "agent",
                "image": "quorate.dev/agent:dev",
                "imagePullPolicy": "IfNotPresent",
                "command": command,
                "volumeMounts": [
                    { "name": "backups", "mountPath": "/backups" }, { "name": "scratch", "mountPath": "/scratch" },
                ],
            }],
            "volumes": [
                { "name": "backups", "persistentVolumeClaim": { "claimName": "backups" } },
                { "name": "scratch", "emptyDir": {} },
            ],
        },
    });
    scene.apply(&pod).await?.well()?;
    let pods = scene.api::<Pod>();
    wait_for(&format!("pod {name} to end"), PATIENCE, async || {
        let phase = pods.get(name).await?.status.and_then(|status| status.phase).unwrap_or_default();
        ensure!(["Succeeded", "Failed"].contains(&phase.as_str()), "it is {phase}");
        Ok(())
    })
    .await?;
    let log = pods.logs(name, &LogParams::default()).await?;
    serde_json::from_str(&log).with_context(|| log)
}

#[tokio::test]
async fn a_backup_is_taken_while_somebody_writes_and_restores() -> Result<()> {
    play("backup_volume", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let store = volume(scene).await?;
        // Before the cluster serves, a backup waits for it.
        scene.apply(&backup("early", &store)).await?.well()?;
        db.settles(3).await?;
        let early = shows(scene, "early", BackupPhase::Complete, "BackupComplete").await?;
        let writer = Writer::start(&db, "during").await?;
        writer.writes(200).await?;
        scene.apply(&backup("late", &store)).await?.well()?;
        let late = shows(scene, "late", BackupPhase::Complete, "BackupComplete").await?;
        writer.stop().await?.check(&db).await?;
        ensure!(late.revision > early.revision, "{:?} is not after {:?}", late.revision, early.revision);

        // By the columns, and by the agent, which restores it from the volume.
        let shown = scene.kubectl(&["get", "etcdb", "late"]).await?.well()?;
        ensure!(shown.contains("Complete"), "{shown}");
        let lineage = late.lineage.context("the status has no lineage")?;
        let whose = format!("--lineage={lineage}");
        let listed = agent(scene, "list", &["list", &whose]).await?;
        let states: Vec<_> = listed.as_array().into_iter().flatten().map(|one| one["state"].as_str()).collect();
        ensure!(states == [Some("whole"), Some("whole")], "{listed}");
        let proved = agent(scene, "verify", &["verify", &whose, "--scratch=/scratch"]).await?;
        ensure!(proved["revision"].as_i64() == late.revision, "{proved}: {:?}", late.revision);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_backup_that_can_not_be_taken_says_why() -> Result<()> {
    play("backup_refused", Stage::Shared, async |scene| {
        let nowhere = json!({ "address": "s3://bucket/x", "credentials": { "name": "s3" },
            "options": { "endpoint": "http://127.0.0.1:9", "region": "x" } });
        scene.apply(&backup("too-soon", &nowhere)).await?.well()?;
        shows(scene, "too-soon", BackupPhase::Pending, "ClusterMissing").await?;
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        // The Secret is missing; then it is there, and wrong; then it is right, and nobody is at the endpoint.
        shows(scene, "too-soon", BackupPhase::Pending, "SecretMissing").await?;
        let secret = |keys: Value| {
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s3" }, "stringData": keys })
        };
        scene.apply(&secret(json!({ "access_key_id": "a" }))).await?.well()?;
        let failed = shows(scene, "too-soon", BackupPhase::Failed, "StoreInvalid").await?;
        let message = &failed.conditions[0].message;
        ensure!(message.contains("access_key_id") && message.contains("access-key-id"), "{message}");
        scene.kubectl(&["delete", "secret", "s3"]).await?.well()?;
        scene.apply(&secret(json!({ "access-key-id": "a", "secret-access-key": "b" }))).await?.well()?;
        scene.apply(&backup("nobody-there", &nowhere)).await?.well()?;
        let trying = shows(scene, "nobody-there", BackupPhase::Running, "StoreFailed").await?;
        ensure!(trying.conditions[0].message.starts_with("It is tried again."), "{:?}", trying.conditions[0]);
        // What is taken once can't be changed, and the message says so.
        let changed = scene.apply(&backup("nobody-there", &json!({ "volumeClaim": { "name": "b" } }))).await?;
        let refused = changed.refused()?;
        ensure!(refused.contains("create another EtcdBackup"), "{refused}");
        scene.kubectl(&["delete", "etcdbackups", "--all"]).await?.well()?;
        Ok(())
    })
    .await
}
