//! The operator may be away, or lose its node, without any harm to running clusters; another replica takes over. Each
//! replica tells what it does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use quorate_crds::Phase;
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::{nodes, pods, processes};
use quorate_e2e::images::AGENT;
use quorate_e2e::scene::{Cluster, Identity, PATIENCE, Scene, Stage, Wish, Writer, metrics, play, stays, wait_for};
use serde_json::json;

use crate::rest::{A_WHILE, is_in};
use crate::roll;

/// Within this time another replica has to lead, once the node of the one that led is gone.
const TAKE_OVER: Duration = Duration::from_secs(20);
/// The port of the operator's own metrics.
pub const METRICS_PORT: u16 = 8080;

/// The metrics of the replica that acts.
pub async fn leader_tells(scene: &Scene) -> Result<String> {
    let leader = Operator::new(scene.client()).leader().await?;
    let address = leader.status.and_then(|status| status.pod_ip).context("the operator has no address")?;
    let (status, text) = metrics::get(&address, METRICS_PORT, "/metrics").await?;
    ensure!(status == 200, "it answers {status}: {text}");
    Ok(text)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn clusters_run_on_while_the_operator_is_away() -> Result<()> {
    play("operator_away", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let membership = db.settles(3).await?;
        let (before, pods_before) = (db.identities().await?, roll::pods(&db.view().await?));
        let writer = Writer::start(&db, "w").await?;
        let names: Vec<_> = membership.members.keys().cloned().collect();
        let operator = Operator::new(scene.client());
        let away = operator.away_during(async || {
            writer.writes(50).await?;
            processes::kill_member(scene, &names[0]).await?;
            // It has caught up when it answers itself: before, the loss of another one would be that of the quorum.
            let back = wait_for("the kubelet to bring the member back", PATIENCE, async || {
                let doors = db.voters_doors().await?;
                let door = doors.get(&names[0]).context("it has no address")?;
                db.membership_at(door).await.map(drop)
            });
            back.await?;
            db.is_the_same_as(&before).await?;
            ensure!(roll::pods(&db.view().await?) == pods_before, "a pod was replaced");
            // Nobody brings this one back now; two of three serve.
            pods::delete_by_force(&db, &[&names[1]]).await?;
            writer.writes(50).await
        });
        away.await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        roll::only_another(&pods_before, &roll::pods(&db.view().await?), &names[1])?;
        roll::judge_loss(scene.name(), &writer.stop().await?, &db).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn another_replica_takes_over_when_the_operators_node_stops() -> Result<()> {
    play("operator_node", Stage::Alone, async |scene| {
        let operator = Operator::new(scene.client());
        operator.is_ready().await?;
        let leader = operator.leader().await?;
        let name = leader.metadata.name.context("a pod without a name")?;
        let node = leader.spec.and_then(|spec| spec.node_name).context("a leader without a node")?;
        // Members that are not on that node: what is shown here is the operator's own loss.
        let wish = Wish::new("db", 1).with("/scheduling/nodeSelector", other_than(scene, &node).await?);
        let db = scene.create(&wish).await?;
        db.settles(1).await?;
        let taken = nodes::stopped_during(scene, &node, async || {
            let stopped = Instant::now();
            let holder = wait_for("another replica to lead", PATIENCE, async || {
                let holder = operator.holder().await?;
                ensure!(!holder.starts_with(&name), "{holder} still holds the Lease");
                Ok(holder)
            })
            .await?;
            let took = stopped.elapsed();
            eprintln!("{holder} took over from {name} within {:.1} s", took.as_secs_f64());
            ensure!(took <= TAKE_OVER, "it took {:.1} s", took.as_secs_f64());
            let before = db.identities().await?;
            let only = before.keys().next().context("no members")?;
            pods::delete_by_force(&db, &[only]).await?;
            db.settles(1).await?;
            db.is_the_same_as(&before).await
        });
        taken.await?;
        operator.is_ready().await
    })
    .await
}

/// Demands that another operator has looked at a cluster of three, as it does what is asked of it, and that its members and
/// pods stay what they were before.
pub async fn looks_and_restarts_nothing(
    db: &Cluster,
    before: &BTreeMap<String, Identity>,
    pods_before: &BTreeMap<String, String>,
) -> Result<()> {
    db.patch(json!({ "spec": { "paused": true } })).await?;
    is_in(db, Phase::Paused).await?;
    db.patch(json!({ "spec": { "paused": false } })).await?;
    db.settles(3).await?;
    stays("nothing restarted", A_WHILE, async || {
        db.is_the_same_as(before).await?;
        ensure!(roll::pods(&db.view().await?) == *pods_before, "a pod was replaced");
        Ok(())
    })
    .await
}

/// Whether a pod brings its launcher from this image.
fn has_launcher_of(pod: &Pod, image: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref()).any(|of| of == image)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn another_version_of_the_operator_restarts_nothing() -> Result<()> {
    play("operator_version", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let (before, pods_before) = (db.identities().await?, roll::pods(&db.view().await?));
        let operator = Operator::new(scene.client());
        // The same agent under the name that the next release would have; not known by any node of before.
        let another = format!("quorate.dev/agent:{}", scene.namespace());
        for node in node_names(scene).await? {
            nodes::tag_image(&node, AGENT, &another).await?;
        }
        let upgraded = operator.with_agent_during(&another, async || {
            looks_and_restarts_nothing(&db, &before, &pods_before).await?;
            // Whose pod has to be made anew gets it, and the others are let be.
            pods::delete_by_force(&db, &["db-1"]).await?;
            db.settles(3).await?;
            for (name, pod) in &db.view().await?.pods {
                ensure!(
                    has_launcher_of(pod, &another) == (name == "db-1"),
                    "{name} has the wrong launcher: {:?}",
                    pod.spec
                );
            }
            Ok(())
        });
        upgraded.await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        roll::only_another(&pods_before, &roll::pods(&db.view().await?), "db-1")
    })
    .await
}

/// Demands of the metrics of the replica that acts that each series is there, and shows what was done for a cluster of three.
fn tells_of_three_members(text: &str) -> Result<()> {
    let value = |name: &str| metrics::gauge(text, name).with_context(|| format!("there is no {name}"));
    let calls = |service: &str| {
        let wanted = [format!("service=\"{service}\""), "outcome=\"ok\"".to_owned()];
        metrics::sum(text, "quorate_api_calls_total", |labels| wanted.iter().all(|label| labels.contains(label)))
    };
    let in_phase = |phase: &str| metrics::sum(text, "quorate_clusters", |labels| labels.contains(phase));
    let pods = metrics::sum(text, "quorate_actions_total", |labels| labels == "action=\"CreatePod\"");
    // Nothing may have been healed yet, and other scenes have certificates that run out.
    value("quorate_heal_duration_seconds_count")?;
    value("quorate_certificates_days_left")?;
    for (what, count, least) in [
        ("quorate_leader", value("quorate_leader")?, 1.0),
        ("clusters that run", in_phase("Running"), 1.0),
        ("rounds", metrics::sum(text, "quorate_reconciles_total", |labels| labels == "outcome=\"ok\""), 1.0),
        ("rounds that were timed", value("quorate_reconcile_duration_seconds_count")?, 1.0),
        ("bootstraps", value("quorate_bootstrap_duration_seconds_count")?, 1.0),
        ("pods made", pods, 3.0),
        // Of each member a claim, a Secret and a pod.
        ("calls to Kubernetes", calls("kubernetes"), 9.0),
        ("changes of etcd", calls("etcd"), 1.0),
    ] {
        ensure!(count >= least, "{what}: {count}, not {least} or more");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn each_replica_serves_metrics_and_the_one_that_acts_tells_of_clusters() -> Result<()> {
    play("operator_metrics", Stage::Shared, async |scene| {
        let operator = Operator::new(scene.client());
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        for (name, pod) in operator.replicas().await? {
            let address =
                pod.status.and_then(|status| status.pod_ip).with_context(|| format!("{name} has no address"))?;
            // The status is written before the round is counted that wrote it.
            wait_for(&format!("the metrics of {name}"), PATIENCE, async || {
                let (status, text) = metrics::get(&address, METRICS_PORT, "/metrics").await?;
                ensure!(status == 200, "it answers {status}: {text}");
                // As of now: the Lease may go over to another while an API server is slow.
                let leader = operator.leader().await?.metadata.name;
                if leader.as_ref() == Some(&name) {
                    return tells_of_three_members(&text).with_context(|| text.clone());
                }
                let acts = metrics::gauge(&text, "quorate_leader").context("there is no quorate_leader")?;
                ensure!(acts < 0.5, "it acts, and {leader:?} leads");
                ensure!(metrics::sum(&text, "quorate_clusters", |_| true) < 0.5, "it tells of clusters: {text}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    })
    .await
}

async fn node_names(scene: &Scene) -> Result<Vec<String>> {
    let names = scene.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]).await?.well()?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// A node selector for one node that is not this one.
async fn other_than(scene: &quorate_e2e::scene::Scene, node: &str) -> Result<serde_json::Value> {
    let names = node_names(scene).await?;
    let other = names.iter().find(|name| *name != node).context("the cluster has one node only")?;
    Ok(serde_json::json!({ "kubernetes.io/hostname": other }))
}
