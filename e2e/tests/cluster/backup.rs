//! Backups as a user takes and deletes them: an EtcdBackup to a volume while somebody writes, proved by the agent from that
//! volume, how far one is, what failures say, and what becomes of the store when the object goes.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use quorate_crds::{BackupPhase, BackupProgress, ConditionType, EtcdBackup, EtcdBackupStatus, Phase};
use quorate_e2e::lab::BOUNDED_STORAGE_CLASS;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Scene, Stage, Wish, Writer, play, wait_for};
use serde_json::{Value, json};

use crate::archive::{leader, states};
use crate::rest::is_in;

const MEBIBYTE: usize = 1 << 20;

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
    volume_of(scene, None, "1Gi").await
}

/// The same of this class and size; of the default class without one.
async fn volume_of(scene: &Scene, class: Option<&str>, size: &str) -> Result<Value> {
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "backups" },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": { "requests": { "storage": size } },
        },
    });
    scene.apply(&claim).await?.well()?;
    Ok(json!({ "volumeClaim": { "name": "backups" } }))
}

/// Makes the history of a cluster 64 MiB larger, which can't be compressed: what is uploaded and fetched in many parts.
pub async fn grow(db: &Cluster) -> Result<()> {
    db.ask_patiently(async |client| {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..64 {
            let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(MEBIBYTE).collect();
            client.put("large", value, None).await?;
        }
        Ok(())
    })
    .await
}

/// Demands that a snapshot was taken from a member that does not lead, by who led before it and after it: each write waits
/// for the leader.
fn is_of_a_follower(taken: &EtcdBackupStatus, before: &str, after: &str) -> Result<()> {
    let endpoint = taken.endpoint.as_deref().context("the status has no endpoint")?;
    let member = endpoint.strip_prefix("https://").and_then(|host| host.split('.').next());
    let member = member.filter(|member| member.starts_with("db-")).with_context(|| endpoint.to_owned())?;
    // Where the leadership has moved meanwhile each of the two was a follower for a time.
    ensure!(before != after || member != before, "it was taken from {member}, which leads");
    Ok(())
}

async fn status(scene: &Scene, name: &str) -> Result<EtcdBackupStatus> {
    Ok(scene.api::<EtcdBackup>().get(name).await?.status.unwrap_or_default())
}

/// Waits until a backup is shown with this phase and reason.
pub async fn shows(scene: &Scene, name: &str, phase: BackupPhase, reason: &str) -> Result<EtcdBackupStatus> {
    wait_for(&format!("backup {name} to be {phase} with {reason}"), PATIENCE, async || {
        let status = status(scene, name).await?;
        let ready = ConditionType::Ready.among(&status.conditions).context("there is no condition")?;
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
pub async fn agent(scene: &Scene, name: &str, arguments: &[&str]) -> Result<Value> {
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

/// Demands that a status says how large a complete backup is, how long it took, where it lies and which hash it has, and that
/// `kubectl get` shows what people look for.
fn is_told_whole(status: &EtcdBackupStatus, shown: &str) -> Result<()> {
    let told = || format!("{status:?}");
    let (size, took) = (status.size.as_deref().with_context(told)?, status.duration.as_deref().with_context(told)?);
    let bytes = [status.database_bytes, status.stored_bytes].map(Option::unwrap_or_default);
    ensure!(bytes.iter().all(|bytes| *bytes > 0), "{status:?}");
    ensure!(status.location.as_deref() == Some("volume claim backups"), "{status:?}");
    ensure!(status.manifest.as_deref().is_some_and(|name| name.ends_with("/full")), "{status:?}");
    // 32 bytes in hexadecimal.
    ensure!(status.hash.as_deref().is_some_and(|hash| hash.len() == 64), "{status:?}");
    let revision = status.revision.with_context(told)?.to_string();
    for part in [size, took, &revision] {
        ensure!(shown.contains(part), "{part} is not shown: {shown}");
    }
    Ok(())
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
        let leads = leader(&db).await?;
        scene.apply(&backup("late", &store)).await?.well()?;
        let late = shows(scene, "late", BackupPhase::Complete, "BackupComplete").await?;
        is_of_a_follower(&late, &leads, &leader(&db).await?)?;
        writer.stop().await?.check(&db).await?;
        ensure!(late.revision > early.revision, "{:?} is not after {:?}", late.revision, early.revision);

        // By the columns, and by the agent, which restores it from the volume.
        let shown = scene.kubectl(&["get", "etcdb", "late"]).await?.well()?;
        ensure!(shown.contains("Complete"), "{shown}");
        is_told_whole(&late, &shown)?;
        let lineage = late.lineage.context("the status has no lineage")?;
        let whose = format!("--lineage={lineage}");
        let listed = agent(scene, "list", &["list", &whose]).await?;
        let states = states(&listed);
        ensure!(states == [Some("whole"), Some("whole")], "{listed}");
        let proved = agent(scene, "verify", &["verify", &whose, "--scratch=/scratch"]).await?;
        ensure!(proved["revision"].as_i64() == late.revision, "{proved}: {:?}", late.revision);
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_backup_that_can_not_be_taken_says_why() -> Result<()> {
    play("backup_refused", Stage::Shared, async |scene| {
        let nowhere = json!({ "address": "s3://bucket/x", "credentials": { "name": "s3" },
            "options": { "endpoint": "http://127.0.0.1:9", "region": "x" } });
        scene.apply(&backup("too-soon", &nowhere)).await?.well()?;
        shows(scene, "too-soon", BackupPhase::Pending, "ClusterMissing").await?;
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        // The Secret is missing; then it is there, and wrong; then it is right, and an option is wrong, or nobody is at the
        // endpoint.
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
        // An option that there is not. The API server can't know: each kind of store has its own.
        let mut misspelt = nowhere.clone();
        misspelt["options"] = json!({ "endpont": "http://127.0.0.1:9", "region": "x" });
        scene.apply(&backup("misspelt", &misspelt)).await?.well()?;
        let failed = shows(scene, "misspelt", BackupPhase::Failed, "StoreInvalid").await?;
        let message = &failed.conditions[0].message;
        let known = "known are: endpoint, region, addressing, payload, kms-key";
        ensure!(message.contains("\"endpont\"") && message.contains(known), "{message}");
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

#[tokio::test]
#[ignore = "make e2e"]
async fn a_real_store_that_refuses_says_why_and_a_cluster_that_sleeps_is_waited_for() -> Result<()> {
    play("backup_unfit", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("right", true)).await?.well()?;
        scene.apply(&Gateway::credentials("wrong", false)).await?.well()?;
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let says = async |name: &str, reason: &str, part: &str| -> Result<()> {
            let failed = shows(scene, name, BackupPhase::Failed, reason).await?;
            let message = &failed.conditions[0].message;
            ensure!(message.contains(part), "{message}");
            Ok(())
        };
        let mut elsewhere = gateway.store("right");
        elsewhere["address"] = json!("s3://nowhere/etcd");
        scene.apply(&backup("unknown", &gateway.store("wrong"))).await?.well()?;
        scene.apply(&backup("no-bucket", &elsewhere)).await?.well()?;
        says("unknown", "StoreRefused", "the store refuses the credentials").await?;
        says("no-bucket", "BucketMissing", "nowhere").await?;
        ensure!(gateway.objects("/d/")?.is_empty(), "there is data of what was refused");

        // Nobody can be read: it waits, and is taken when somebody can.
        db.scale(0).await?;
        is_in(&db, Phase::Hibernated).await?;
        scene.apply(&backup("asleep", &gateway.store("right"))).await?.well()?;
        let waits = shows(scene, "asleep", BackupPhase::Pending, "NoHealthyMember").await?;
        ensure!(waits.conditions[0].message.contains("db does not serve"), "{:?}", waits.conditions[0]);
        db.scale(1).await?;
        shows(scene, "asleep", BackupPhase::Complete, "BackupComplete").await?;
        Ok(())
    })
    .await
}

/// The same with a deletion policy.
fn with_policy(mut backup: Value, policy: &str) -> Value {
    backup["spec"]["deletionPolicy"] = json!(policy);
    backup
}

/// Waits until it is gone, and an event of this reason says what became of what it stood for.
async fn is_gone(scene: &Scene, name: &str, reason: &str) -> Result<()> {
    wait_for(&format!("backup {name} to be gone"), 2 * PATIENCE, async || {
        let found = scene.api::<EtcdBackup>().get_opt(name).await?;
        let status = found.and_then(|backup| backup.status.unwrap_or_default().conditions.into_iter().next());
        ensure!(status.is_none(), "{status:?}");
        Ok(())
    })
    .await?;
    let columns = "custom-columns=R:.reason,O:.involvedObject.name,N:.message";
    let events = scene.kubectl(&["get", "events", "-o", columns]).await?.well()?;
    let told = |line: &str| line.starts_with(reason) && line.contains(&format!(" {name} "));
    ensure!(events.lines().any(told), "{events}");
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_backup_goes_with_its_object_if_that_is_asked_for_and_the_object_always_goes() -> Result<()> {
    play("backup_deletion", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let store = gateway.store("s3");
        let mut manifests = Vec::new();
        for (name, policy) in [("goes", "Delete"), ("stays", "Retain"), ("other", "Delete")] {
            scene.apply(&with_policy(backup(name, &store), policy)).await?.well()?;
            let status = shows(scene, name, BackupPhase::Complete, "BackupComplete").await?;
            manifests.push(status.manifest.context("the status names no manifest")?);
        }
        let [goes, stays, other] = manifests.as_slice() else { unreachable!("there are three") };
        let folder = |manifest: &str| manifest.trim_end_matches("/full").to_owned();
        ensure!(gateway.objects(&folder(goes))?.len() == 2, "a manifest and its data");

        // While the store refuses, it is tried again; with the right key it goes, and no other.
        scene.apply(&Gateway::credentials("s3", false)).await?.well()?;
        scene.kubectl(&["delete", "etcdbackup", "goes", "--wait=false"]).await?.well()?;
        wait_for("a try that failed", PATIENCE, async || {
            let status = status(scene, "goes").await?;
            let message = status.conditions.first().map(|one| one.message.clone()).unwrap_or_default();
            let told = ["It is tried again.", "the store refuses the credentials"];
            ensure!(told.iter().all(|words| message.contains(words)), "{message}");
            Ok(())
        })
        .await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        is_gone(scene, "goes", "BackupDeleted").await?;
        ensure!(gateway.objects(&folder(goes))?.is_empty(), "{:?}", gateway.objects(&folder(goes))?);
        gateway.object(stays)?;
        gateway.object(other)?;

        // What is to be kept is kept; and what is not what the status names is not deleted, while the object goes.
        scene.kubectl(&["delete", "etcdbackup", "stays"]).await?.well()?;
        gateway.object(stays)?;
        std::fs::write(gateway.object(other)?, "{}")?;
        scene.kubectl(&["delete", "etcdbackup", "other", "--wait=false"]).await?.well()?;
        is_gone(scene, "other", "BackupLeft").await?;
        ensure!(gateway.objects(&folder(other))?.len() == 2, "nothing of it was touched");
        Ok(())
    })
    .await
}

/// Begins a backup of a database that has grown, and stops the store where some of it is there, and not all; how far it is.
pub async fn half_taken(scene: &Scene, gateway: &Gateway, name: &str) -> Result<BackupProgress> {
    // Whole objects pass there as well, but not as parts.
    let parts = || gateway.objects(".sgwtmp/multipart");
    let before = parts()?;
    scene.apply(&backup(name, &gateway.store("s3"))).await?.well()?;
    wait_for("the upload to begin", PATIENCE, async || {
        ensure!(parts()?.iter().any(|part| !before.contains(part)), "nothing more is there than {before:?}");
        Ok(())
    })
    .await?;
    gateway.pause(true)?;
    let shown = wait_for("the progress to be shown", PATIENCE, async || {
        status(scene, name).await?.progress.context("there is none")
    })
    .await?;
    eprintln!("{shown:?}");
    ensure!(shown.read_bytes > 0 && Some(shown.read_bytes) < shown.total_bytes, "{shown:?}");
    Ok(shown)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_backup_that_is_being_taken_shows_how_far_it_is() -> Result<()> {
    play("backup_progress", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        grow(&db).await?;
        let shown = half_taken(scene, &gateway, "large").await?;
        let columns = scene.kubectl(&["get", "etcdb", "large"]).await?.well()?;
        ensure!(columns.contains(&shown.shown), "{columns}");
        gateway.pause(false)?;
        let complete = shows(scene, "large", BackupPhase::Complete, "BackupComplete").await?;
        ensure!(complete.progress.is_none(), "{:?}", complete.progress);
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_backup_whose_time_is_over_goes_by_itself_and_what_it_stored_stays() -> Result<()> {
    play("backup_ttl", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        scene.create(&Wish::new("db", 1)).await?.settles(1).await?;
        let mut brief = backup("brief", &gateway.store("s3"));
        brief["spec"]["ttlMinutes"] = json!(1);
        scene.apply(&brief).await?.well()?;
        let status = shows(scene, "brief", BackupPhase::Complete, "BackupComplete").await?;
        let manifest = status.manifest.context("the status names no manifest")?;
        wait_for("the object to be gone", PATIENCE, async || {
            ensure!(scene.api::<EtcdBackup>().get_opt("brief").await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        gateway.object(&manifest).map(drop)
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_backup_for_which_the_volume_has_no_room_says_so_and_with_more_room_it_is_taken() -> Result<()> {
    play("backup_full", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        grow(&db).await?;
        let store = volume_of(scene, Some(BOUNDED_STORAGE_CLASS), "32Mi").await?;
        scene.apply(&backup("much", &store)).await?.well()?;
        let failed = shows(scene, "much", BackupPhase::Failed, "StoreFull").await?;
        let message = &failed.conditions[0].message;
        ensure!(message.contains("make the volume larger"), "{message}");
        let larger = json!({ "spec": { "resources": { "requests": { "storage": "256Mi" } } } }).to_string();
        scene.kubectl(&["patch", "pvc", "backups", "--patch", &larger]).await?.well()?;
        scene.apply(&backup("again", &store)).await?.well()?;
        let complete = shows(scene, "again", BackupPhase::Complete, "BackupComplete").await?;
        let lineage = complete.lineage.as_deref().context("the status has no lineage")?;
        let listed = agent(scene, "listed", &["list"]).await?;
        // Of the first one a volume keeps folders, and nothing in them.
        let whole = states(&listed).into_iter().filter(|state| *state == Some("whole")).count();
        ensure!(whole == 1, "{listed}, and not {complete:?} alone");
        let proved = agent(scene, "proved", &["verify", &format!("--lineage={lineage}"), "--scratch=/scratch"]).await?;
        ensure!(proved["revision"].as_i64() == complete.revision, "{proved}, and not {complete:?}");
        Ok(())
    })
    .await
}
