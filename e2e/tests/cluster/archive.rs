//! The continuous backup as a user meets it: what was written is in the store soon after, whoever leads and whatever
//! fails. It writes little: the load is next door.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, LogParams};
use quorate_crds::{BackupState, ConditionType, names};
use quorate_e2e::faults::processes;
use quorate_e2e::scene::{
    AGENT_PORT, Cluster, Gateway, PATIENCE, Scene, Stage, Wish, Writer, fetch, metrics, play, wait_for,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::archive_load::restores::{Point, is_the_live_history, restore};
use crate::backup;
use crate::operator::leader_tells;
use crate::restore::{SECRET_PATIENCE, fill, holds};
use crate::upgrade::in_place;

/// How often is stored.
const FLUSH: Duration = Duration::from_secs(1);
/// How long what was written may take to the store: two flushes, and what the machine is busy with.
pub const SOON: Duration = Duration::from_secs(20);
/// How long it may take from the moment when another member is known to lead until what is written then is in the store:
/// a look at the member each half second, one at the store, a flush, and what the machine is busy with.
const HAND_OVER: Duration = Duration::from_secs(10);
/// How far the backup may be behind: three flushes, and 20 s.
const LIMIT: Duration = Duration::from_secs(20 + 3 * FLUSH.as_secs());
/// How long the condition may take to turn: the limit of three flushes and 20 s, and a look each half minute.
pub const TURN: Duration = Duration::from_mins(3);

/// A cluster with a continuous backup to this store.
pub fn wish(gateway: &Gateway) -> Wish {
    wish_into(&gateway.store("s3"))
}

/// The same to a store that is reached in another way.
pub fn wish_into(store: &Value) -> Wish {
    Wish::new("db", 3).with("/backup", json!({ "store": store, "flushIntervalSeconds": FLUSH.as_secs() }))
}

/// Such a cluster that is backed up.
pub async fn begin(scene: &Scene, gateway: &Gateway) -> Result<Cluster> {
    begin_with(scene, wish(gateway)).await
}

/// The cluster of this wish, backed up.
pub async fn begin_with(scene: &Scene, wish: Wish) -> Result<Cluster> {
    scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
    let db = scene.create(&wish).await?;
    db.settles(3).await?;
    is_healthy(&db, true).await?;
    Ok(db)
}

/// Waits until the condition says so.
pub async fn is_healthy(db: &Cluster, healthy: bool) -> Result<BackupState> {
    let wanted = if healthy { "True" } else { "False" };
    let view = db
        .until(&format!("BackupHealthy to be {wanted}"), TURN, |view| {
            let condition = view.condition(ConditionType::BackupHealthy).context("there is no condition")?;
            ensure!(condition.status == wanted, "{}: {}: {}", condition.status, condition.reason, condition.message);
            Ok(())
        })
        .await?;
    view.status().backup.context("there is no status.backup")
}

/// Waits until the condition has this reason. A Secret takes a minute or so to come to the pods.
async fn says(db: &Cluster, reason: &str) -> Result<()> {
    db.until(&format!("BackupHealthy with {reason}"), TURN + SECRET_PATIENCE, |view| {
        let condition = view.condition(ConditionType::BackupHealthy).context("there is no condition")?;
        ensure!(condition.reason == reason, "{}: {}: {}", condition.status, condition.reason, condition.message);
        Ok(())
    })
    .await
    .map(drop)
}

/// Waits until the condition and the operator's metrics tell that the backup is behind by more than it may be.
async fn lag_is_told(db: &Cluster) -> Result<()> {
    wait_for("the lag to be told", TURN, async || {
        let view = db.view().await?;
        let condition = view.condition(ConditionType::BackupHealthy).context("there is no condition")?;
        // A store that hangs has failed only once it was given up.
        ensure!(["ArchiveBehind", "StoreFailed"].contains(&condition.reason.as_str()), "{condition:?}");
        ensure!(condition.message.contains("behind by more than"), "{}", condition.message);
        let told = metrics::gauge(&leader_tells(db.scene()).await?, "quorate_archive_lag_seconds");
        ensure!(told > Some(LIMIT.as_secs_f64()), "the operator's metrics tell {told:?}: {}", condition.message);
        Ok(())
    })
    .await
}

/// What each sidecar says at this path, by member.
async fn said(db: &Cluster, path: &str) -> Result<BTreeMap<String, String>> {
    let (keys, view) = tokio::try_join!(db.keys(), db.view())?;
    let mut said = BTreeMap::new();
    for (member, address) in view.addresses() {
        let door = db.door(&member, &address, keys.clone());
        if let Ok((200, text)) = fetch(&door, AGENT_PORT, path).await {
            said.insert(member, text);
        }
    }
    Ok(said)
}

/// What each sidecar reports, by member.
pub async fn reports(db: &Cluster) -> Result<BTreeMap<String, Value>> {
    let read = |(member, text): (String, String)| Ok((member, serde_json::from_str(&text)?));
    said(db, "/status").await?.into_iter().map(read).collect()
}

/// Waits until exactly this member's sidecar records, and all up to this revision is in the store.
pub async fn records(db: &Cluster, member: &str, revision: i64, patience: Duration) -> Result<Value> {
    wait_for(&format!("the sidecar of {member} to have recorded revision {revision}"), patience, async || {
        has_recorded(db, member, revision).await
    })
    .await
}

/// The same of whoever leads and is not this one: etcd may elect another at any time. Says who that is, as well.
pub async fn leader_records(
    db: &Cluster,
    not: Option<&str>,
    revision: i64,
    patience: Duration,
) -> Result<(String, Value)> {
    wait_for(&format!("the sidecar of the leader to have recorded revision {revision}"), patience, async || {
        let leader = db.membership().await?.leader()?.to_owned();
        ensure!(Some(leader.as_str()) != not, "{leader} leads");
        let report = has_recorded(db, &leader, revision).await?;
        Ok((leader, report))
    })
    .await
}

/// The generation into which all that is written by now is recorded, once it is.
pub async fn recorded_into(db: &Cluster, patience: Duration) -> Result<String> {
    let (_, report) = leader_records(db, None, revision(db).await?, patience).await?;
    Ok(report["generation"].as_str().context("there is no generation")?.to_owned())
}

/// Demands that exactly this member's sidecar records, and all up to this revision is in the store.
async fn has_recorded(db: &Cluster, member: &str, revision: i64) -> Result<Value> {
    let reports = reports(db).await?;
    let committers: Vec<_> = reports.iter().filter(|(_, report)| report["role"] == "committer").collect();
    let [(name, report)] = committers.as_slice() else { bail!("{} record: {reports:?}", committers.len()) };
    ensure!(*name == member, "{name} records: {reports:?}");
    ensure!(report["head"]["revision"].as_i64() >= Some(revision), "{report}");
    Ok((*report).clone())
}

/// The last revision.
pub async fn revision(db: &Cluster) -> Result<i64> {
    Ok(db.contents().await?.0)
}

/// The member that leads.
pub async fn leader(db: &Cluster) -> Result<String> {
    wait_for("a leader", PATIENCE, async || Ok(db.membership().await?.leader()?.to_owned())).await
}

/// Freezes a member that leads till another one does, and then kills it: an etcd that is killed at once is back within half
/// a second, and may well win the election. Says since when the other one was known to lead.
pub async fn depose(db: &Cluster, leader: &str) -> Result<Instant> {
    let others: Vec<_> = db.voters_doors().await?.into_iter().filter(|(name, _)| name != leader).collect();
    let frozen = processes::freeze_member(db.scene(), leader).await?;
    wait_for("another leader", PATIENCE, async || {
        let (_, door) = others.first().context("there is no other member")?;
        let now = db.membership_at(door).await?.leader()?.to_owned();
        ensure!(now != leader, "{now} leads");
        Ok(())
    })
    .await?;
    let elected = Instant::now();
    processes::signal(frozen.pid, Signal::KILL)?;
    Ok(elected)
}

/// Adds a role: no watch shows it, so a new generation begins.
pub async fn add_role(db: &Cluster, number: u32) -> Result<()> {
    let name = format!("role-{number}");
    db.ask(async |etcd| Ok(etcd.role_add(name.clone()).await.map(drop)?)).await
}

/// The generation that the leader's sidecar records into, once it is none of these.
pub async fn generation_after(db: &Cluster, known: &[String]) -> Result<String> {
    wait_for("another generation", PATIENCE, async || {
        let leader = db.membership().await?.leader()?.to_owned();
        let report = has_recorded(db, &leader, 0).await?;
        let generation = report["generation"].as_str().context("there is none")?;
        ensure!(known.iter().all(|known| known != generation), "it is {generation}");
        Ok(generation.to_owned())
    })
    .await
}

/// The process of the sidecar beside this member.
pub async fn sidecar(db: &Cluster, member: &str) -> Result<i32> {
    let pod = db.pods().get(member).await?;
    let uid = pod.metadata.uid.context("a pod without a UID")?;
    let sidecars = processes::in_pod(&uid, "quorate-agent");
    let [sidecar] = sidecars.as_slice() else { bail!("{sidecars:?} in {member}") };
    Ok(*sidecar)
}

/// A pod that has the agent, and what it takes to reach the store.
pub fn agent_pod(name: &str, store: &Value, more: &Value) -> Value {
    let options: Vec<_> = store["options"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    let env = json!([
        { "name": "QUORATE_STORE", "value": store["address"] },
        { "name": "QUORATE_STORE_OPTIONS", "value": options.join(",") },
        { "name": "QUORATE_STORE_CREDENTIALS", "value": "/store" },
    ]);
    let mounts = json!([{ "name": "store", "mountPath": "/store" }, { "name": "scratch", "mountPath": "/scratch" }]);
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never",
            "securityContext": { "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532 },
            "volumes": [
                { "name": "store", "secret": { "secretName": store["credentials"]["name"] } },
                { "name": "scratch", "emptyDir": {} },
                { "name": "etcd", "secret": { "secretName": names::client_secret("db") } },
            ],
        },
    });
    for kind in ["initContainers", "containers"] {
        let containers = more[kind].as_array().cloned().unwrap_or_default();
        let with_all = containers.into_iter().map(|mut container| {
            let own = container["env"].as_array().cloned().unwrap_or_default();
            container["env"] = env.as_array().into_iter().flatten().cloned().chain(own).collect();
            let own = container["volumeMounts"].as_array().cloned().unwrap_or_default();
            container["volumeMounts"] = mounts.as_array().into_iter().flatten().cloned().chain(own).collect();
            container["imagePullPolicy"] = json!("IfNotPresent");
            container
        });
        pod["spec"][kind] = with_all.collect();
    }
    pod
}

/// Runs a pod to its end, and returns what each of its containers printed.
pub async fn run(scene: &Scene, pod: &Value) -> Result<BTreeMap<String, String>> {
    scene.apply(pod).await?.well()?;
    let pods = scene.api::<Pod>();
    let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
    wait_for(&format!("pod {name} to end"), 2 * PATIENCE, async || {
        let phase = pods.get(name).await?.status.and_then(|status| status.phase).unwrap_or_default();
        ensure!(["Succeeded", "Failed"].contains(&phase.as_str()), "it is {phase}");
        Ok(())
    })
    .await?;
    let mut logs = BTreeMap::new();
    for kind in ["initContainers", "containers"] {
        for container in pod["spec"][kind].as_array().into_iter().flatten() {
            let container = container["name"].as_str().context("a container without a name")?;
            let parameters = LogParams { container: Some(container.to_owned()), ..LogParams::default() };
            logs.insert(container.to_owned(), pods.logs(name, &parameters).await.unwrap_or_default());
        }
    }
    pods.delete(name, &DeleteParams::default()).await?;
    Ok(logs)
}

/// Runs one command of the agent's on a store, and returns its JSON.
pub async fn agent(scene: &Scene, store: &Value, arguments: &[&str]) -> Result<Value> {
    let command = [&["/quorate-agent"], arguments, &["--output=json"]].concat();
    let name = format!("agent-{}", arguments.first().context("no command")?);
    let container = json!({ "name": "agent", "image": "quorate.dev/agent:dev", "command": command });
    let logs = run(scene, &agent_pod(&name, store, &json!({ "containers": [container] }))).await?;
    let log = &logs["agent"];
    serde_json::from_str(log).with_context(|| log.clone())
}

/// What a list says of each generation: whether it is whole.
pub fn states(listed: &Value) -> Vec<Option<&str>> {
    listed.as_array().into_iter().flatten().map(|one| one["state"].as_str()).collect()
}

/// Demands that the store holds one generation that restores, with everything up to this revision.
pub async fn is_one_whole_generation(
    scene: &Scene,
    gateway: &Gateway,
    state: &BackupState,
    revision: i64,
) -> Result<()> {
    let (store, whose) = (gateway.store("s3"), format!("--lineage={}", state.lineage));
    let listed = agent(scene, &store, &["list", &whose]).await?;
    ensure!(states(&listed) == [Some("whole")], "{listed}");
    let proved = agent(scene, &store, &["verify", &whose, "--scratch=/scratch"]).await?;
    ensure!(proved["revision"].as_i64() >= Some(revision), "{proved}, and not {revision}");
    Ok(())
}

#[tokio::test]
async fn what_is_written_is_recorded_also_when_the_leader_dies() -> Result<()> {
    play("archive", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin(scene, &gateway).await?;
        let writer = Writer::start(&db, "archived").await?;
        writer.writes(50).await?;
        let (first, before) = leader_records(&db, None, revision(&db).await?, SOON).await?;

        let frozen = Instant::now();
        let elected = depose(&db, &first).await?;
        // Of this the sidecar before has heard nothing: its member was frozen.
        db.put("handed-over", "").await?;
        let (_, after) = leader_records(&db, Some(&first), revision(&db).await?, HAND_OVER).await?;
        let (till_elected, till_recorded) = (elected.duration_since(frozen), elected.elapsed());
        eprintln!("elected after {till_elected:.1?}, recorded by the next sidecar {till_recorded:.1?} later");
        ensure!(till_recorded <= HAND_OVER, "the next sidecar has recorded {till_recorded:.1?} after the election");
        ensure!(after["generation"] == before["generation"], "{after}, before {before}");

        writer.stop().await?.check(&db).await?;
        let last = revision(&db).await?;
        let written = Instant::now();
        leader_records(&db, None, last, SOON).await?;
        eprintln!("the last write was in the store after {:.1?}", written.elapsed());
        let state = is_healthy(&db, true).await?;
        // As docs/backups.md has it: a sidecar has all that the commands need in its environment.
        let command = ["exec", "db-0", "-c", "archive", "--", "/quorate-agent", "list", "-o", "json"];
        let listed: Value = serde_json::from_str(&scene.kubectl(&command).await?.well()?)?;
        ensure!(listed[0]["whole"]["lastRevision"].as_i64() >= Some(last), "{listed}, and not {last}");
        is_one_whole_generation(scene, &gateway, &state, last).await
    })
    .await
}

/// Writes 64 MiB so many times while the store hangs, and lets it go on; the generation that all of it is in.
async fn written_without_store(db: &Cluster, gateway: &Gateway, times: u32) -> Result<String> {
    gateway.pause(true)?;
    let writes = async {
        for _ in 0..times {
            backup::grow(db).await?;
        }
        anyhow::Ok(())
    };
    let written = writes.await;
    gateway.pause(false)?;
    written?;
    db.put("after", "it").await?;
    recorded_into(db, PATIENCE).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn what_the_store_does_not_take_waits_on_disk_or_is_followed_by_a_full_snapshot() -> Result<()> {
    play("archive_spill", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, wish(&gateway).with("/storage/size", json!("4Gi"))).await?;
        let first = generation_after(&db, &[]).await?;
        // More than waits in memory, and less than may wait on disk.
        let same = written_without_store(&db, &gateway, 1).await?;
        ensure!(same == first, "it has begun anew, in {same}");
        // More than may wait there.
        db.patch(json!({ "spec": { "backup": { "spillLimit": "64Mi" } } })).await?;
        db.settles(3).await?;
        let before = generation_after(&db, &[]).await?;
        let other = written_without_store(&db, &gateway, 3).await?;
        ensure!(other != before, "{other} has more than could wait");
        let (last, state) = (revision(&db).await?, is_healthy(&db, true).await?);
        let (store, whose) = (gateway.store("s3"), format!("--lineage={}", state.lineage));
        let proved = agent(scene, &store, &["verify", &whose, "--strict", "--scratch=/scratch"]).await?;
        ensure!(proved["revision"].as_i64() >= Some(last), "{proved}, and not {last}");
        Ok(())
    })
    .await
}

/// A sidecar shows the certificate that applications mount, and etcd takes its name for the user's.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_whose_users_are_turned_on_is_recorded_and_comes_back() -> Result<()> {
    play("archive_users", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin(scene, &gateway).await?;
        fill(&db, "restored").await?;
        db.ask(async |client| Ok(client.auth_enable().await.map(drop)?)).await?;
        let first = generation_after(&db, &[]).await?;
        add_role(&db, 1).await?;
        let second = generation_after(&db, &[first]).await?;
        db.put("with", "users").await?;
        let contents = db.contents().await?;
        let (_, report) = leader_records(&db, None, contents.0, SOON).await?;
        ensure!(report["generation"] == second.as_str(), "{report}, and not in {second}");
        let (held, state) = (db.held(contents).await?, is_healthy(&db, true).await?);
        db.delete().await?;
        let from = json!({ "store": gateway.store("s3"), "lineage": state.lineage });
        let restored = scene.create(&Wish::new("restored", 3).with("/bootstrap/restore", from)).await?;
        restored.settles(3).await?;
        holds(&restored, &held).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn what_is_wrong_with_the_backup_does_not_touch_etcd() -> Result<()> {
    play("archive_faults", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin(scene, &gateway).await?;
        let writer = Writer::start(&db, "during").await?;
        writer.writes(20).await?;

        // The store hangs, and comes back.
        gateway.pause(true)?;
        is_healthy(&db, false).await?;
        lag_is_told(&db).await?;
        writer.writes(20).await?;
        gateway.pause(false)?;
        is_healthy(&db, true).await?;
        records(&db, &leader(&db).await?, revision(&db).await?, PATIENCE).await?;

        // The store knows the key no more, and a right one counts without a restart, in the same generation.
        let state = is_healthy(&db, true).await?;
        in_place(&db, async || {
            for (right, reason) in [(false, "StoreRefused"), (true, "Archiving")] {
                scene.apply(&Gateway::credentials("s3", right)).await?.well()?;
                says(&db, reason).await?;
            }
            records(&db, &leader(&db).await?, revision(&db).await?, PATIENCE).await
        })
        .await?;
        let now = is_healthy(&db, true).await?;
        ensure!(now.generation == state.generation, "{now:?}, before {state:?}");

        // The sidecar that records is killed, again and again; etcd stays as it is.
        let members = db.identities().await?;
        for _ in 0..2 {
            let leader = leader(&db).await?;
            processes::signal(sidecar(&db, &leader).await?, Signal::KILL)?;
            writer.writes(20).await?;
            records(&db, &leader, revision(&db).await?, PATIENCE).await?;
        }
        db.is_the_same_as(&members).await?;

        // A second one by force: each range is committed by one of the two, and one of them stands by.
        let state = is_healthy(&db, true).await?;
        let rival = json!({
            "name": "agent",
            "image": "quorate.dev/agent:dev",
            "command": [
                "/quorate-agent", "archive", format!("--lineage={}", state.lineage), "--spill=/scratch",
                format!("--endpoint=https://db-client.{}.svc:2379", scene.namespace()),
                format!("--flush-every={}s", FLUSH.as_secs()), format!("--listen=[::]:{AGENT_PORT}"),
            ],
            "env": [
                { "name": "QUORATE_ETCD_CA", "value": "/etcd/ca.crt" },
                { "name": "QUORATE_ETCD_CERT", "value": "/etcd/tls.crt" },
                { "name": "QUORATE_ETCD_KEY", "value": "/etcd/tls.key" },
            ],
            "volumeMounts": [{ "name": "etcd", "mountPath": "/etcd" }],
        });
        scene.apply(&agent_pod("rival", &gateway.store("s3"), &json!({ "containers": [rival] }))).await?.well()?;
        wait_for("a commit that was lost", PATIENCE, async || {
            let mut told: Vec<_> = said(&db, "/metrics").await?.into_values().collect();
            // The one that was started by hand has no certificate, and shows none.
            if let Some(address) = db.pods().get("rival").await?.status.and_then(|status| status.pod_ip) {
                told.extend(metrics::get(&address, AGENT_PORT, "/metrics").await.map(|(_, text)| text));
            }
            let lost = told.iter().filter_map(|text| metrics::gauge(text, "quorate_archive_commits_lost_total"));
            ensure!(lost.sum::<f64>() > 0.0, "none was lost");
            Ok(())
        })
        .await?;
        writer.writes(50).await?;
        scene.kubectl(&["delete", "pod", "rival", "--now"]).await?.well()?;
        let written = writer.stop().await?;
        written.was_never_long_without()?;
        written.check(&db).await?;
        let last = revision(&db).await?;
        records(&db, &leader(&db).await?, last, PATIENCE).await?;
        is_one_whole_generation(scene, &gateway, &state, last).await?;
        // What both have stored in turns is etcd's history, entry by entry.
        let restored = restore(scene, &gateway, &state, &[Point::Revision(last)]).await?;
        let [(point, came_to)] = restored.as_slice() else { bail!("{restored:?}") };
        ensure!(came_to.revision == last, "{came_to:?}, and not {last}");
        is_the_live_history(&db, (*point, *came_to)).await
    })
    .await
}
