//! Lost volumes: a minority is replaced under new names, a majority stops the cluster, and no identity is ever started on
//! storage that is not its own.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use quorate_crds::{ConditionType, Phase};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::{pods, processes};
use quorate_e2e::scene::{
    Cluster, Membership, PATIENCE, Stage, Wish, Writer, etcd_processes, metrics, play, stays, unwritten_during,
    wait_for,
};
use quorate_e2e::workspace;
use serde_json::{Value, json};

use crate::backup::volume;
use crate::rest::is_in;

/// Demands that `lost` was replaced under a new name and that every other member is as before.
async fn replaced(db: &Cluster, before: &Membership, lost: &str) -> Result<()> {
    let now = db.settles_without(lost, before.members.len()).await?;
    for (name, member) in before.members.iter().filter(|(name, _)| *name != lost) {
        ensure!(now.members.get(name).is_some_and(|now| now.id == member.id), "{name} is not the member it was");
    }
    ensure!(now.cluster == before.cluster, "it is another cluster");
    Ok(())
}

/// Creates three members, loses the volume of the one that `pick` names, and demands that it is replaced.
async fn one_volume(name: &str, pick: impl FnOnce(&Membership) -> Result<String>) -> Result<()> {
    play(name, Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let before = db.settles(3).await?;
        let writer = Writer::start(&db, "w").await?;
        writer.writes(50).await?;
        let lost = pick(&before)?;
        pods::lose_volumes(&db, &[&lost]).await?;
        replaced(&db, &before, &lost).await?;
        let written = writer.stop().await?;
        written.check(&db).await?;
        written.was_never_long_without()
    })
    .await
}

#[tokio::test]
async fn a_member_whose_volume_is_lost_is_replaced() -> Result<()> {
    one_volume("lose_one", |before| {
        let leader = before.leader()?;
        before.members.keys().find(|name| *name != leader).cloned().context("there is only a leader")
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn the_leader_whose_volume_is_lost_is_replaced() -> Result<()> {
    one_volume("lose_leader", |before| before.leader().map(str::to_owned)).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_with_ephemeral_storage_is_replaced_when_its_pod_is_gone() -> Result<()> {
    play("lose_ephemeral", Stage::Shared, async |scene| {
        let wish = Wish::new("db", 3).with("/storage", json!({ "size": "1Gi", "ephemeral": true }));
        let db = scene.create(&wish).await?;
        let before = db.settles(3).await?;
        db.put("hello", "world").await?;
        let lost = before.members.keys().next().cloned().context("no members")?;
        pods::delete_by_force(&db, &[&lost]).await?;
        replaced(&db, &before, &lost).await?;
        db.reads("hello", "world").await
    })
    .await
}

/// The image of etcd in `deploy/samples/rescue.yaml`.
const ETCD_OF_SAMPLE: &str = "image: quay.io/coreos/etcd:v3.6.16";

/// Demands that what a claim keeps is rescued as docs/failure-modes.md says it: the sample takes a backup of it, and a new cluster
/// begins with that.
async fn is_rescued(db: &Cluster, claim: &str, key: &str, value: &str) -> Result<()> {
    let (scene, image) = (db.scene(), db.view().await?.object.spec.image_reference());
    let store = volume(scene).await?;
    let mut sample = std::fs::read_to_string(workspace::root().join("deploy/samples/rescue.yaml"))?;
    for (shown, own) in
        [("claimName: db-0", format!("claimName: {claim}")), (ETCD_OF_SAMPLE, format!("image: {image}"))]
    {
        ensure!(sample.contains(shown), "the sample has no {shown}");
        sample = sample.replace(shown, &own);
    }
    let rescue: Value = serde_saphyr::from_str(&sample)?;
    scene.apply(&rescue).await?.well()?;
    wait_for("a backup of what is left", PATIENCE, async || {
        let status = scene.api::<Pod>().get("rescue").await?.status.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let agent = containers.iter().find(|container| container.name == "agent").context("no agent")?;
        let ended = agent.state.as_ref().and_then(|state| state.terminated.as_ref()).context("it has not ended")?;
        ensure!(ended.exit_code == 0, "it ended with {}", ended.exit_code);
        Ok(())
    })
    .await?;
    scene.kubectl(&["delete", "pod", "rescue", "--now"]).await?.well()?;
    let restore = json!({ "restore": { "store": store, "lineage": "rescued" } });
    let restored = scene.create(&Wish::new("restored", 1).with("/bootstrap", restore)).await?;
    restored.settles(1).await?;
    restored.reads(key, value).await
}

/// Waits until the pod of a member is not Ready: without a quorum that is the last that happens, some seconds later.
async fn turns_unready(db: &Cluster, name: &str) -> Result<()> {
    db.until(&format!("{name} to be unready"), PATIENCE, |view| {
        let pod = view.pods.get(name).context("its pod is gone")?;
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready").context("it is not said")?;
        ensure!(ready.status == "False", "Ready is {}", ready.status);
        Ok(())
    })
    .await
    .map(drop)
}

#[tokio::test]
async fn two_of_three_volumes_lost_stops_the_cluster_and_keeps_the_third() -> Result<()> {
    play("lose_two", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let before = db.settles(3).await?;
        db.put("hello", "world").await?;
        let names: Vec<&str> = before.members.keys().map(String::as_str).collect();
        let [first, second, kept] = names.as_slice() else { anyhow::bail!("not three members: {names:?}") };
        let volume = db.view().await?.volume(kept).map(str::to_owned);
        pods::lose_volumes(&db, &[first, second]).await?;
        let only_the_third_runs = || {
            let running = etcd_processes(scene.namespace());
            let [only] = running.as_slice() else { anyhow::bail!("{running:?} run") };
            ensure!(only.member() == *kept, "{only:?} runs");
            Ok(())
        };
        // Until both have ended, one of them may still elect the third, which serves for a moment.
        wait_for("the deleted members to end", PATIENCE, async || only_the_third_runs()).await?;
        let view = db
            .until("the cluster to stop in QuorumLost", PATIENCE, |view| {
                ensure!(view.phase() == Some(Phase::QuorumLost), "another phase");
                ensure!(view.is(ConditionType::Stalled), "it is not Stalled");
                ensure!(!view.is(ConditionType::Available) && !view.is(ConditionType::Ready), "it says that it serves");
                Ok(())
            })
            .await?;
        let stalled = view.condition(ConditionType::Stalled).context("no Stalled")?;
        let message = stalled.message.to_lowercase();
        ensure!(
            message.contains("restore") && message.contains(kept),
            "the message does not say what to do: {message}"
        );
        turns_unready(&db, kept).await?;
        // Never a new cluster, and never a second life for what is lost: only the third runs, on its volume. Nothing is
        // written any more.
        unwritten_during(scene, async || {
            stays("what is left of the cluster", Duration::from_secs(8), async || {
                let view = db.view().await?;
                ensure!(view.volume(kept).map(str::to_owned) == volume, "the claim of {kept} is another one");
                ensure!(view.phase() == Some(Phase::QuorumLost), "the phase is {:?}", view.phase());
                only_the_third_runs()
            })
            .await
        })
        .await?;
        // And what was acknowledged is on it.
        db.scale(0).await?;
        is_in(&db, Phase::Hibernated).await?;
        is_rescued(&db, kept, "hello", "world").await?;
        ensure!(db.view().await?.volume(kept).map(str::to_owned) == volume, "the claim of {kept} is another one");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_volume_swapped_for_an_empty_one_while_the_operator_is_away_is_refused() -> Result<()> {
    play("lose_swapped", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let before = db.settles(3).await?;
        db.put("hello", "world").await?;
        let lost = before.members.keys().next().cloned().context("no members")?;
        let operator = Operator::new(scene.client());
        let swapped = operator.away_during(async || {
            // The files go under the running process; the container that follows it finds an empty volume, and nobody but
            // the launcher can refuse now.
            pods::empty_volume(&db, &lost).await?;
            processes::kill_member(scene, &lost).await?;
            let report = wait_for("the launcher to refuse the empty volume", PATIENCE, async || {
                let address = db.view().await?.address(&lost).context("the pod has no address")?;
                let (status, report) = metrics::ask(&address, "/quorate").await?;
                ensure!(status == 200 && report.contains("refused"), "it answers {status}: {report}");
                Ok(report)
            })
            .await?;
            ensure!(report.contains("VolumeIsEmpty"), "it refuses, but says {report}");
            ensure!(!etcd_processes(scene.namespace()).iter().any(|process| process.member() == lost), "{lost} runs");
            db.reads("hello", "world").await
        });
        swapped.await?;
        replaced(&db, &before, &lost).await?;
        db.reads("hello", "world").await
    })
    .await
}

/// As after a loss of power, where the disks of all nodes are mounted later than the pods are started.
#[tokio::test]
#[ignore = "make e2e"]
async fn members_whose_disks_are_mounted_late_come_back_when_their_pods_are_deleted() -> Result<()> {
    play("lose_mounted_late", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        db.put("hello", "world").await?;
        let before = db.identities().await?;
        let names: Vec<&str> = before.keys().map(String::as_str).collect();
        let operator = Operator::new(scene.client());
        let disks = operator.away_during(async || {
            let disks = try_join_all(names.iter().map(|name| pods::unmount_disk(&db, name))).await?;
            pods::delete_by_force(&db, &names).await?;
            wait_for("all members to end", PATIENCE, async || {
                let running = etcd_processes(scene.namespace());
                ensure!(running.is_empty(), "{running:?} run");
                Ok(())
            })
            .await?;
            Ok(disks)
        });
        let disks = disks.await?;
        db.until("the pods and the remedy to be named", PATIENCE, |view| {
            ensure!(view.phase() == Some(Phase::QuorumLost), "the phase is {:?}", view.phase());
            let stalled = &view.condition(ConditionType::Stalled).context("no Stalled")?.message;
            for words in names.iter().copied().chain(["mounted late", "delete these pods once"]) {
                ensure!(stalled.contains(words), "{words} is not in {stalled}");
            }
            Ok(())
        })
        .await?;
        ensure!(etcd_processes(scene.namespace()).is_empty(), "an etcd runs on an empty volume");
        disks.into_iter().try_for_each(pods::Unmounted::mount)?;
        scene.kubectl(&[&["delete", "pod"][..], &names].concat()).await?.well()?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        db.reads("hello", "world").await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_volume_emptied_while_pod_and_operator_are_away_is_not_resumed() -> Result<()> {
    play("lose_emptied", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let before = db.settles(3).await?;
        db.put("hello", "world").await?;
        let lost = before.members.keys().next().cloned().context("no members")?;
        let operator = Operator::new(scene.client());
        let emptied = operator.away_during(async || {
            pods::delete_by_force(&db, &[&lost]).await?;
            pods::empty_volume(&db, &lost).await
        });
        emptied.await?;
        replaced(&db, &before, &lost).await?;
        db.reads("hello", "world").await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_claim_deleted_under_a_running_member_is_replaced_first() -> Result<()> {
    play("lose_claim_going", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let before = db.settles(3).await?;
        let writer = Writer::start(&db, "w").await?;
        let going = before.members.keys().next().cloned().context("no members")?;
        let params = kube::api::DeleteParams::default();
        db.claims().delete(&going, &params).await.context("failed to delete the claim")?;
        replaced(&db, &before, &going).await?;
        let written = writer.stop().await?;
        written.check(&db).await?;
        written.was_never_long_without()
    })
    .await
}

/// As long as nobody has seen a seed serve, an operator may tell it to create again: it was away since, and pod and data are gone
/// by then. What it is told names the mark that the volume had.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_seed_whose_volume_is_emptied_before_anybody_saw_it_serve_founds_no_second_cluster() -> Result<()> {
    play("lose_at_birth", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        let before = db.settles(1).await?;
        db.put("hello", "world").await?;
        let seed = before.members.keys().next().cloned().context("no members")?;
        let operator = Operator::new(scene.client());
        let emptied = operator.away_during(async || {
            let ledger = db.view().await?.status().ledger.context("no ledger")?;
            let member = ledger.members.get(&seed).context("the ledger does not know the seed")?;
            ensure!(member.create && member.mark.is_some(), "{member:?}");
            // As it was written before the seed's ticket was.
            let earlier = json!({ "status": { "ledger": { "seed": 0, "clusterId": null,
                "members": { &seed: { "id": null, "voter": false } } } } });
            let params = PatchParams::default();
            db.objects().patch_status(db.name(), &params, &Patch::Merge(earlier)).await.context("no status")?;
            pods::delete_by_force(&db, &[&seed]).await?;
            pods::empty_volume(&db, &seed).await
        });
        emptied.await?;
        let view = db
            .until("the cluster to stop in QuorumLost", PATIENCE, |view| {
                ensure!(view.phase() == Some(Phase::QuorumLost), "the phase is {:?}", view.phase());
                Ok(())
            })
            .await?;
        let address = view.address(&seed).context("the pod has no address")?;
        let (_, report) = metrics::ask(&address, "/quorate").await?;
        ensure!(report.contains("VolumeIsEmpty"), "its launcher says {report}");
        stays("the seed that is lost", Duration::from_secs(5), async || {
            ensure!(db.view().await?.phase() == Some(Phase::QuorumLost), "another phase");
            ensure!(etcd_processes(scene.namespace()).is_empty(), "an etcd runs");
            Ok(())
        })
        .await
    })
    .await
}
