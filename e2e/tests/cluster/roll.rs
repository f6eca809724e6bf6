//! Changes of settings and of compute resources: one member after the other, a leader only once it has handed over, and
//! the clients hardly notice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::faults::nodes;
use quorate_e2e::scene::{Cluster, PATIENCE, Stage, View, Wish, Writer, Written, play, thorough, wait_for};
use serde_json::json;

/// The longest that writes may fail while members are restarted as planned, where nothing else runs on the machine.
const LONGEST_PLANNED_GAP: Duration = Duration::from_secs(1);

/// Tells how the writes fared, and demands that none is lost and that none failed for long.
pub async fn judge(what: &str, written: &Written, db: &Cluster) -> Result<()> {
    let gap = written.longest_gap;
    eprintln!(
        "{what}: {} writes acknowledged, {} tried again, longest gap {:.2} s",
        written.acknowledged,
        written.failed,
        gap.as_secs_f64()
    );
    written.check(db).await?;
    written.was_never_long_without()?;
    ensure!(!thorough() || gap <= LONGEST_PLANNED_GAP, "no write was acknowledged for {:.2} s", gap.as_secs_f64());
    Ok(())
}

/// The UIDs of the pods, by name.
pub fn pods(view: &View) -> BTreeMap<String, String> {
    let uid = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.uid.clone().unwrap_or_default();
    view.pods.iter().map(|(name, pod)| (name.clone(), uid(pod))).collect()
}

/// Waits for an event of this reason whose note has these words.
pub async fn is_told(db: &Cluster, reason: &str, words: &[&str]) -> Result<()> {
    wait_for(&format!("an event {reason}"), PATIENCE, async || {
        let columns = "custom-columns=R:.reason,N:.message";
        let events = db.scene().kubectl(&["get", "events", "-o", columns]).await?.well()?;
        let told = events.lines().any(|line| line.starts_with(reason) && words.iter().all(|word| line.contains(word)));
        ensure!(told, "the events are\n{events}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn members_are_restarted_one_by_one_when_settings_change_under_a_writer() -> Result<()> {
    play("roll_settings", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let before = db.identities().await?;
        let pods_before = pods(&db.view().await?);
        let writer = Writer::start_hasty(&db, "w").await?;
        writer.writes(20).await?;
        let etcd = json!({ "snapshotCount": 5000, "extraFlags": { "log-level": "warn" } });
        db.patch(json!({ "spec": { "etcd": etcd } })).await?;
        db.settles(3).await?;
        let written = writer.stop().await?;
        judge("settings changed", &written, &db).await?;
        db.is_the_same_as(&before).await?;
        let pods_after = pods(&db.view().await?);
        for (name, uid) in &pods_before {
            ensure!(pods_after.get(name).is_some_and(|now| now != uid), "the pod of {name} is the same");
        }
        is_told(&db, "SpecChanged", &["spec.etcd.extraFlags", "spec.etcd.snapshotCount"]).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_change_of_settings_and_version_is_one_roll() -> Result<()> {
    play("roll_once", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version("3.6.16")).await?;
        db.settles(3).await?;
        let before = db.identities().await?;
        let writer = Writer::start_hasty(&db, "w").await?;
        db.patch(json!({ "spec": { "version": "3.7.3", "etcd": { "snapshotCount": 5000 } } })).await?;
        db.settles(3).await?;
        judge("settings and version changed", &writer.stop().await?, &db).await?;
        db.is_the_same_as(&before).await?;
        let deleted = scene.kubectl(&["get", "events", "-o", "custom-columns=R:.reason,C:.count"]).await?.well()?;
        let deleted = deleted.lines().filter(|line| line.starts_with("PodDeleted")).count();
        ensure!(deleted == 3, "{deleted} pods were deleted");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn compute_resources_are_given_to_members_while_they_run() -> Result<()> {
    play("roll_resize", Stage::Shared, async |scene| {
        let small = json!({ "requests": { "cpu": "20m", "memory": "64Mi" }, "limits": { "memory": "512Mi" } });
        let db = scene.create(&Wish::new("db", 3).with("/resources", small)).await?;
        db.settles(3).await?;
        let before = pods(&db.view().await?);
        let larger = json!({ "requests": { "cpu": "30m" }, "limits": { "memory": "640Mi" } });
        db.patch(json!({ "spec": { "resources": larger } })).await?;
        db.settles(3).await?;
        let view = db.view().await?;
        let in_place = pods(&view) == before;
        for (name, pod) in &view.pods {
            let etcd =
                pod.spec.as_ref().and_then(|spec| spec.containers.first()).context("a pod without containers")?;
            let resources = serde_json::to_value(&etcd.resources)?;
            ensure!(resources["requests"]["cpu"] == "30m", "{name} has {resources}");
            ensure!(resources["limits"]["memory"] == "640Mi", "{name} has {resources}");
            let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            let restarts = status.and_then(|all| all.first()).map(|etcd| etcd.restart_count);
            ensure!(!in_place || restarts == Some(0), "{name} was restarted {restarts:?} times");
        }
        ensure!(in_place, "the pods were replaced, which this Kubernetes need not do");
        is_told(&db, "SpecChanged", &["spec.resources"]).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn the_leadership_leaves_a_node_that_is_cordoned() -> Result<()> {
    play("roll_cordon", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).with("/scheduling/antiAffinity", json!("Required"))).await?;
        let leader = db.settles(3).await?.leader()?.to_owned();
        let before = pods(&db.view().await?);
        let writer = Writer::start_hasty(&db, "w").await?;
        let node = db.view().await?.node(&leader).context("the leader has no node")?.to_owned();
        nodes::cordoned_during(scene, &node, async || {
            scene.kubectl(&["cordon", &node]).await?.well()?;
            wait_for("another leader", PATIENCE, async || {
                let leads = db.membership().await?.leader()?.to_owned();
                ensure!(leads != leader, "{leads} leads");
                Ok(())
            })
            .await
        })
        .await?;
        judge("the leader's node was cordoned", &writer.stop().await?, &db).await?;
        ensure!(pods(&db.view().await?) == before, "a pod was replaced");
        is_told(&db, "LeaderMoved", &[]).await
    })
    .await
}
