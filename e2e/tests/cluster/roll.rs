//! Changes of settings and of compute resources: one member after the other, a leader only once it has handed over, and
//! the clients hardly notice.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Event, Pod};
use kube::api::ListParams;
use quorate_crds::{ConditionType, Phase};
use quorate_e2e::faults::nodes;
use quorate_e2e::scene::{
    Cluster, EtcdProcess, Gateway, PATIENCE, Scene, Stage, View, Wish, Writer, Written, etcd_processes, play, thorough,
    wait_for,
};
use serde_json::{Value, json};

use crate::archive::is_healthy;
use crate::node::evicts;

/// The longest that writes may fail while members are restarted as planned, where nothing else runs on the machine.
const LONGEST_PLANNED_GAP: Duration = Duration::from_secs(1);
/// How often the process table is looked at: an etcd that is started lives longer.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Tells how the writes fared.
pub fn tell(what: &str, written: &Written) {
    eprintln!(
        "{what}: {} writes acknowledged, {} tried again, longest gap {:.2} s",
        written.acknowledged,
        written.failed,
        written.longest_gap.as_secs_f64()
    );
}

/// Tells how the writes fared, and demands that none is lost and that none failed for longer than the loss of a member takes.
pub async fn judge_loss(what: &str, written: &Written, db: &Cluster) -> Result<()> {
    tell(what, written);
    written.check(db).await?;
    written.outlived_a_member()
}

/// Tells how the writes fared, and demands that none is lost and that none failed for long.
pub async fn judge(what: &str, written: &Written, db: &Cluster) -> Result<()> {
    tell(what, written);
    written.check(db).await?;
    hardly_failed(written)
}

/// Demands that writes failed for no longer than it takes members to be stopped as planned.
pub fn hardly_failed(written: &Written) -> Result<()> {
    let gap = written.longest_gap;
    written.was_never_long_without()?;
    ensure!(!thorough() || gap <= LONGEST_PLANNED_GAP, "no write was acknowledged for {:.2} s", gap.as_secs_f64());
    Ok(())
}

/// The UIDs of the pods, by name.
pub fn pods(view: &View) -> BTreeMap<String, String> {
    let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
    view.pods.iter().map(|(name, pod)| (name.clone(), uid(pod))).collect()
}

/// Demands that of these pods this one was replaced by another of its name, and no other one was.
pub fn only_another(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>, name: &str) -> Result<()> {
    for (pod, uid) in before {
        let now = after.get(pod);
        ensure!((now != Some(uid)) == (pod == name), "the pod of {pod} was {uid} and is {now:?}");
    }
    Ok(())
}

/// The events about the EtcdCluster itself: the pods and claims of a scene have some of their own, with like reasons.
async fn events(db: &Cluster) -> Result<Vec<Event>> {
    let events = db.scene().api::<Event>().list(&ListParams::default()).await?.items;
    let about_it = |event: &Event| {
        let about = &event.involved_object;
        about.kind.as_deref() == Some("EtcdCluster") && about.name.as_deref() == Some(db.name())
    };
    Ok(events.into_iter().filter(about_it).collect())
}

/// Waits for an event of this reason about the cluster whose note has these words.
pub async fn is_told(db: &Cluster, reason: &str, words: &[&str]) -> Result<()> {
    wait_for(&format!("an event {reason}"), PATIENCE, async || {
        let events = events(db).await?;
        let said: Vec<_> = events.iter().map(|event| (event.reason.as_deref(), event.message.as_deref())).collect();
        let told = said.iter().any(|(of, note)| {
            *of == Some(reason) && words.iter().all(|word| note.is_some_and(|note| note.contains(word)))
        });
        ensure!(told, "the events are {said:?}");
        Ok(())
    })
    .await
}

/// How often an event of this reason was told. One that is told again is no further event: its series counts.
pub async fn times_told(db: &Cluster, reason: &str) -> Result<i32> {
    let events = events(db).await?;
    let told = events.iter().filter(|event| event.reason.as_deref() == Some(reason));
    // Told once, it has no series.
    Ok(told.map(|event| event.series.as_ref().and_then(|series| series.count).unwrap_or(1)).sum())
}

/// The arguments with which each member runs: what its process says, whatever its pod does.
pub fn arguments(scene: &Scene, members: usize) -> Result<Vec<(String, BTreeSet<String>)>> {
    let running = etcd_processes(scene.namespace());
    ensure!(running.len() == members, "{running:?} run");
    let given = |process: EtcdProcess| -> Result<(String, BTreeSet<String>)> {
        let line = std::fs::read_to_string(format!("/proc/{}/cmdline", process.pid))
            .with_context(|| format!("the process of {} has ended", process.member()))?;
        Ok((process.member().to_owned(), line.split('\0').map(str::to_owned).collect()))
    };
    running.into_iter().map(given).collect()
}

/// Demands that so many members run, and each with these flags.
fn run_with(scene: &Scene, members: usize, flags: &[&str]) -> Result<()> {
    for (member, given) in arguments(scene, members)? {
        let missing: Vec<_> = flags.iter().filter(|flag| !given.contains(**flag)).collect();
        ensure!(missing.is_empty(), "{member} runs without {missing:?}: {given:?}");
    }
    Ok(())
}

/// Every etcd that had its database open in the scene at some time.
struct Ran {
    seen: BTreeSet<EtcdProcess>,
    /// How many had it at once at least.
    fewest: usize,
}

/// What ran while `body` did: a trial of a release has the member's name, too.
async fn etcd_during(scene: &Scene, body: impl Future<Output = Result<()>>) -> Result<Ran> {
    let finished = Cell::new(false);
    let acts = async {
        let acted = body.await;
        finished.set(true);
        acted
    };
    let watch = async {
        let mut ran = Ran { seen: BTreeSet::new(), fewest: usize::MAX };
        while !finished.get() {
            let now: Vec<_> = etcd_processes(scene.namespace()).into_iter().filter(EtcdProcess::has_database).collect();
            ran.fewest = ran.fewest.min(now.len());
            ran.seen.extend(now);
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        ran
    };
    let (acted, ran) = tokio::join!(acts, watch);
    acted.map(|()| ran)
}

/// Changes the spec of three members under a writer, and demands that the pod of each is replaced once, one at a time.
async fn are_replaced_one_by_one(what: &str, db: &Cluster, spec: &Value) -> Result<()> {
    let (before, pods_before) = (db.identities().await?, pods(&db.view().await?));
    let leader = db.membership().await?.leader()?.to_owned();
    let writer = Writer::start_hasty(db, "w").await?;
    writer.writes(20).await?;
    let ran = etcd_during(db.scene(), async {
        db.patch(json!({ "spec": spec })).await?;
        db.settles(3).await.map(drop)
    })
    .await?;
    judge(what, &writer.stop().await?, db).await?;
    ensure!(ran.fewest >= 2, "at a time only {} of three ran", ran.fewest);
    db.is_the_same_as(&before).await?;
    let pods_after = pods(&db.view().await?);
    for (name, uid) in &pods_before {
        ensure!(pods_after.get(name).is_some_and(|now| now != uid), "the pod of {name} is the same");
    }
    let deleted = times_told(db, "PodDeleted").await?;
    ensure!(deleted == 3, "{deleted} pods were deleted");
    // Deleted as the leader, etcd would have handed over by itself, and nobody would have told.
    is_told(db, "LeaderMoved", &[&format!("from {leader} to ")]).await
}

/// What a pod's etcd was asked to be.
fn container(pod: &Pod) -> Result<&Container> {
    pod.spec.as_ref().and_then(|spec| spec.containers.first()).context("a pod without containers")
}

/// What the kubelet says of a pod's etcd.
pub fn etcd_of(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|status| status.name == "etcd")
}

#[tokio::test]
#[ignore = "make e2e"]
async fn members_are_restarted_one_by_one_when_settings_change_under_a_writer() -> Result<()> {
    play("roll_settings", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let etcd = json!({ "snapshotCount": 5000, "extraFlags": { "log-level": "warn" } });
        are_replaced_one_by_one("settings changed", &db, &json!({ "etcd": etcd })).await?;
        run_with(scene, 3, &["--snapshot-count=5000", "--log-level=warn"])?;
        is_told(&db, "SpecChanged", &["spec.etcd.extraFlags", "spec.etcd.snapshotCount"]).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn members_are_given_a_sidecar_one_by_one_when_a_backup_is_asked_for_under_a_writer() -> Result<()> {
    play("roll_backup", Stage::Alone, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let backup = json!({ "backup": { "store": gateway.store("s3") } });
        are_replaced_one_by_one("a backup was asked for", &db, &backup).await?;
        is_told(&db, "SpecChanged", &["spec.backup"]).await?;
        is_healthy(&db, true).await.map(drop)
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
        let ran = etcd_during(scene, async {
            let image = json!({ "pullPolicy": "Never" });
            db.patch(json!({ "spec": { "version": "3.7.3", "etcd": { "snapshotCount": 5000 }, "image": image } }))
                .await?;
            db.settles(3).await.map(drop)
        })
        .await?;
        judge("settings and version changed", &writer.stop().await?, &db).await?;
        db.is_the_same_as(&before).await?;
        run_with(scene, 3, &["--snapshot-count=5000"])?;
        for name in before.keys() {
            let lives: Vec<_> = ran.seen.iter().filter(|process| process.member() == name).collect();
            ensure!(lives.len() == 2, "{name} was not started anew exactly once: it ran as {lives:?}");
        }
        let deleted = times_told(&db, "PodDeleted").await?;
        ensure!(deleted == 3, "{deleted} pods were deleted");
        for (name, pod) in &db.view().await?.pods {
            let etcd = container(pod)?;
            let pulled = etcd.image_pull_policy.as_deref();
            ensure!(pulled == Some("Never"), "the image of {name} is pulled by {pulled:?}");
        }
        is_told(&db, "SpecChanged", &["spec.etcd.snapshotCount", "spec.image.pullPolicy", "spec.version"]).await
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
            let etcd = container(pod)?;
            let resources = serde_json::to_value(&etcd.resources)?;
            ensure!(resources["requests"]["cpu"] == "30m", "{name} has {resources}");
            ensure!(resources["limits"]["memory"] == "640Mi", "{name} has {resources}");
            let restarts = etcd_of(pod).map(|etcd| etcd.restart_count);
            ensure!(!in_place || restarts == Some(0), "{name} was restarted {restarts:?} times");
        }
        ensure!(in_place, "the pods were replaced, which this Kubernetes need not do");
        // Asked for is not given. Of the processor a kernel knows weights only, so that what is read back is rounded.
        db.until("the kubelets to have given what was asked for", PATIENCE, |view| {
            for (name, pod) in &view.pods {
                let given = serde_json::to_value(etcd_of(pod).and_then(|etcd| etcd.resources.as_ref()))?;
                ensure!(given["limits"]["memory"] == "640Mi", "{name} runs with {given}");
            }
            Ok(())
        })
        .await?;
        is_told(&db, "SpecChanged", &["spec.resources"]).await
    })
    .await
}

/// Demands that Kubernetes counts the pods to this class of service.
fn are_of_class(view: &View, class: &str) -> Result<()> {
    for (name, pod) in &view.pods {
        let of = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
        ensure!(of == Some(class), "the pod of {name} is of class {of:?}, not {class}");
    }
    Ok(())
}

/// A pod stays in its class of service as long as it is there (`ValidatePodResize` in Kubernetes'
/// `pkg/apis/core/validation/validation.go`).
#[tokio::test]
#[ignore = "make e2e"]
async fn members_are_replaced_one_by_one_where_kubernetes_does_not_resize_their_pods() -> Result<()> {
    play("roll_class", Stage::Alone, async |scene| {
        let below = json!({ "requests": { "cpu": "20m", "memory": "64Mi" }, "limits": { "memory": "512Mi" } });
        let db = scene.create(&Wish::new("db", 3).with("/resources", below)).await?;
        db.settles(3).await?;
        are_of_class(&db.view().await?, "Burstable")?;
        // Of a processor as much as etcd needs at its start, so that none is held up.
        let equal = json!({ "cpu": "1", "memory": "512Mi" });
        let resources = json!({ "requests": equal, "limits": equal });
        are_replaced_one_by_one("resources changed", &db, &json!({ "resources": resources })).await?;
        are_of_class(&db.view().await?, "Guaranteed")?;
        // While they ran, it was asked for first.
        is_told(&db, "Resizing", &[]).await?;
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
        let (members, before) = (db.identities().await?, pods(&db.view().await?));
        let writer = Writer::start_hasty(&db, "w").await?;
        let node = db.view().await?.node(&leader).context("the leader has no node")?.to_owned();
        nodes::cordoned_during(scene, &node, async || {
            scene.kubectl(&["cordon", &node]).await?.well()?;
            wait_for("another leader", PATIENCE, async || {
                let leads = db.membership().await?.leader()?.to_owned();
                ensure!(leads != leader, "{leads} leads");
                Ok(())
            })
            .await?;
            ensure!(pods(&db.view().await?) == before, "a pod was replaced");
            // Then the node is emptied. No other one takes the member: two of three serve until it is back.
            evicts(scene, &node, &leader).await?;
            db.until("the evicted pod to be gone", PATIENCE, |view| {
                ensure!(pods(view).get(&leader) != before.get(&leader), "it is there");
                Ok(())
            })
            .await?;
            writer.writes(50).await
        })
        .await?;
        db.settles(3).await?;
        judge("the leader's node was cordoned and drained", &writer.stop().await?, &db).await?;
        db.is_the_same_as(&members).await?;
        only_another(&before, &pods(&db.view().await?), &leader)?;
        is_told(&db, "LeaderMoved", &[&format!("from {leader} to ")]).await
    })
    .await
}

/// Its volume is of that node: without its pod it would be away until the node takes pods again, and nothing would be gained.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_stays_as_it_is_while_its_node_could_not_take_its_next_pod() -> Result<()> {
    play("roll_held", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let before = pods(&db.view().await?);
        let held = before.keys().next_back().context("there are no members")?.clone();
        let node = db.view().await?.node(&held).context("it has no node")?.to_owned();
        let is_new = |view: &View, name: &str| pods(view).get(name).is_some_and(|uid| before.get(name) != Some(uid));
        let others = || before.keys().filter(|name| **name != held);
        nodes::cordoned_during(scene, &node, async || {
            scene.kubectl(&["cordon", &node]).await?.well()?;
            db.patch(json!({ "spec": { "etcd": { "snapshotCount": 20_000 } } })).await?;
            db.until("all others to be replaced, and that to be told", PATIENCE, |view| {
                ensure!(others().all(|name| is_new(view, name)), "they are not");
                ensure!(!is_new(view, &held), "it was replaced");
                let ready = view.condition(ConditionType::Ready).context("there is no Ready")?;
                ensure!(ready.message.contains(&format!("node {node}, which takes no new pods")), "{}", ready.message);
                ensure!(view.phase() == Some(Phase::Restarting), "{:?}", view.phase());
                Ok(())
            })
            .await?;
            db.membership().await.map(drop)
        })
        .await?;
        db.settles(3).await?;
        ensure!(is_new(&db.view().await?, &held), "it is as old as before");
        run_with(scene, 3, &["--snapshot-count=20000"])
    })
    .await
}
