//! The rest of a cluster's life: pause, hibernation, deletion, a second life under the same name, and an object that was
//! restored without its status.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use quorate_crds::{ConditionType, Phase, names};
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{
    Cluster, Identity, Membership, PATIENCE, Scene, Stage, View, Wish, etcd_processes, play, stays, unwritten_during,
    wait_for,
};
use serde_json::{Value, json};

/// How long to look on to see that nothing is done: many times the operator's longest pause in a transition.
pub const A_WHILE: Duration = Duration::from_secs(5);

/// Longer than the operator's longest pause at rest, which is 36 s: it looks at the cluster meanwhile.
const A_LOOK: Duration = Duration::from_secs(40);

/// Waits for this phase, of the spec as it is.
pub async fn is_in(db: &Cluster, phase: Phase) -> Result<()> {
    db.until(&format!("the phase {phase}"), PATIENCE, |view| {
        ensure!(view.is_current() && view.phase() == Some(phase), "another phase");
        Ok(())
    })
    .await
    .map(drop)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_that_runs_is_not_written_to() -> Result<()> {
    // Alone: a member that is slow since others are busy is a transition.
    play("rest_running", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        unwritten_during(scene, async || {
            stays("the rest", A_LOOK, async || {
                let view = db.view().await?;
                ensure!(view.phase() == Some(Phase::Running) && view.is(ConditionType::Ready), "{}", view.summary());
                Ok(())
            })
            .await
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_paused_cluster_is_left_alone_until_it_is_unpaused() -> Result<()> {
    play("rest_pause", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let members = db.settles(3).await?;
        let before = db.identities().await?;
        db.patch(json!({ "spec": { "paused": true } })).await?;
        is_in(&db, Phase::Paused).await?;
        let name = members.members.keys().next().map(String::as_str).unwrap_or_default();
        pods::delete_by_force(&db, &[name]).await?;
        unwritten_during(scene, async || {
            stays("the pause", A_WHILE, async || {
                ensure!(!db.view().await?.pods.contains_key(name), "{name} was brought back");
                Ok(())
            })
            .await
        })
        .await?;
        db.patch(json!({ "spec": { "paused": false } })).await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_paused_cluster_can_be_deleted() -> Result<()> {
    play("rest_pause_delete", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        db.patch(json!({ "spec": { "paused": true } })).await?;
        is_in(&db, Phase::Paused).await?;
        db.delete().await
    })
    .await
}

#[tokio::test]
async fn a_hibernated_cluster_wakes_with_its_data() -> Result<()> {
    play("rest_hibernate", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        db.put("hello", "world").await?;
        let before = db.identities().await?;
        db.scale(0).await?;
        is_in(&db, Phase::Hibernated).await?;
        db.until("all pods to be gone and all claims to be there", PATIENCE, |view| {
            ensure!(
                view.pods.is_empty() && view.claims.len() == 3,
                "{} pods, {} claims",
                view.pods.len(),
                view.claims.len()
            );
            Ok(())
        })
        .await?;
        db.scale(3).await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        db.reads("hello", "world").await
    })
    .await
}

/// The UIDs of all claims of the scene, by name. Each is Bound and stays.
async fn bound_claims(db: &Cluster) -> Result<BTreeMap<String, String>> {
    let mut bound = BTreeMap::new();
    for claim in db.claims().list(&ListParams::default()).await?.items {
        let name = claim.metadata.name.unwrap_or_default();
        let phase = claim.status.and_then(|status| status.phase).unwrap_or_default();
        ensure!(phase == "Bound" && claim.metadata.deletion_timestamp.is_none(), "the claim {name} is {phase}");
        bound.insert(name, claim.metadata.uid.unwrap_or_default());
    }
    Ok(bound)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn retained_claims_of_removed_members_stay_and_nobody_takes_them_again() -> Result<()> {
    play("rest_retain", Stage::Shared, async |scene| {
        let retention = json!({ "onDelete": "Delete", "onScaleDown": "Retain" });
        let db = scene.create(&Wish::new("db", 3).with("/storage/retention", retention)).await?;
        db.settles(3).await?;
        db.put("hello", "world").await?;
        let before = bound_claims(&db).await?;
        ensure!(before.len() == 3, "the claims are {before:?}");
        db.scale(1).await?;
        let left = db.settles(1).await?;
        stays("the claims of the removed members", A_WHILE, async || {
            let now = bound_claims(&db).await?;
            ensure!(now == before, "the claims are {now:?}, and were {before:?}");
            Ok(())
        })
        .await?;
        // A removed identity never comes back: the newcomers have other names, on volumes of their own.
        db.scale(3).await?;
        let again = db.settles(3).await?;
        for name in again.members.keys() {
            ensure!(left.members.contains_key(name) || !before.contains_key(name), "{name} was removed, and is back");
        }
        let now = bound_claims(&db).await?;
        let kept = before.iter().all(|(name, uid)| now.get(name) == Some(uid));
        ensure!(kept && now.len() == 5, "the claims are {now:?}, and were {before:?}");
        db.reads("hello", "world").await
    })
    .await
}

#[tokio::test]
async fn a_cluster_deleted_with_its_volumes_leaves_nothing() -> Result<()> {
    play("rest_delete", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        db.delete().await?;
        wait_for("claims and pods to be gone", PATIENCE, async || {
            scene.has_no_claims().await?;
            let pods = db.pods().list(&ListParams::default()).await?.items.len();
            ensure!(pods == 0, "{pods} pods are there");
            Ok(())
        })
        .await
    })
    .await
}

/// A cluster with a key that was deleted, its volumes kept, and created again under the same name.
struct Again {
    /// The second object.
    db: Cluster,
    /// The first one's etcd.
    first: Membership,
    /// Who its members were.
    members: BTreeMap<String, Identity>,
    /// Its ledger.
    ledger: Option<Value>,
    /// The claims that it left.
    kept: Vec<PersistentVolumeClaim>,
}

impl Again {
    /// The second cluster sees volumes of the first: it says so and touches nothing.
    async fn begins(scene: &Scene) -> Result<Self> {
        let wish = Wish::new("db", 3).with("/storage/retention", json!({ "onDelete": "Retain" }));
        let db = scene.create(&wish).await?;
        let first = db.settles(3).await?;
        db.put("hello", "world").await?;
        let members = db.identities().await?;
        let ledger = db.view().await?.object.status.and_then(|status| status.ledger);
        let ledger = ledger.map(serde_json::to_value).transpose()?;
        db.delete().await?;
        let (pods, claims, all) = (db.pods(), db.claims(), ListParams::default());
        wait_for("the first cluster's members to end", PATIENCE, async || {
            let (running, pods) = (etcd_processes(scene.namespace()), pods.list(&all).await?.items.len());
            ensure!(running.is_empty() && pods == 0, "{pods} pods, and {running:?}");
            Ok(())
        })
        .await?;
        let kept = claims.list(&all).await?.items;
        ensure!(kept.len() == 3, "{} claims were kept", kept.len());
        let db = scene.create(&wish).await?;
        let view = db
            .until("the second cluster to say that the volumes are another's", PATIENCE, |view| {
                ensure!(view.is(ConditionType::Stalled), "it is not Stalled");
                let reason = view.condition(ConditionType::Stalled).map(|condition| condition.reason.as_str());
                ensure!(reason == Some("ForeignVolumes"), "the reason is {reason:?}");
                Ok(())
            })
            .await?;
        // Which of the two it is depends on whether the data is needed: that is for the user to say.
        let message = view.condition(ConditionType::Stalled).map(|condition| condition.message.as_str());
        let message = message.unwrap_or_default();
        for remedy in ["write that object's status.ledger back", "delete them, or use another name"] {
            ensure!(message.contains(remedy), "{remedy:?} is not in: {message}");
        }
        stays("the first cluster's volumes", A_WHILE, async || {
            let now = claims.list(&all).await?.items;
            let same = kept.iter().all(|kept| now.iter().any(|now| now.metadata.uid == kept.metadata.uid));
            ensure!(same && now.len() == kept.len(), "other claims are there");
            ensure!(etcd_processes(scene.namespace()).is_empty(), "an etcd runs");
            Ok(())
        })
        .await?;
        Ok(Self { db, first, members, ledger, kept })
    }
}

#[tokio::test]
#[ignore = "make e2e"]
async fn retained_volumes_are_never_taken_by_a_second_cluster_of_that_name() -> Result<()> {
    play("rest_second_life", Stage::Shared, async |scene| {
        let Again { db, first, members: _, ledger: _, kept } = Again::begins(scene).await?;
        // The user decides that the old data is not needed: then the second cluster begins, and is another one.
        for claim in &kept {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            db.claims().delete(name, &DeleteParams::default()).await?;
        }
        let second = db.settles(3).await?;
        ensure!(second.cluster != first.cluster, "it is the first cluster again");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_deleted_by_mistake_goes_on_once_its_ledger_is_written_back() -> Result<()> {
    play("rest_mistake", Stage::Shared, async |scene| {
        let Again { db, first, members, ledger, kept: _ } = Again::begins(scene).await?;
        let ledger = Patch::Merge(json!({ "status": { "ledger": ledger.context("there was no ledger")? } }));
        db.objects().patch_status(db.name(), &PatchParams::default(), &ledger).await?;
        let second = db.settles(3).await?;
        ensure!(second.cluster == first.cluster, "it is another cluster");
        db.is_the_same_as(&members).await?;
        db.reads("hello", "world").await?;
        // It is a whole cluster again: its volumes are its own, and who loses one is replaced.
        let own = db.view().await?.object.metadata.uid;
        db.until("the claims to be taken over", PATIENCE, |view| {
            let made_for =
                |claim: &PersistentVolumeClaim| claim.annotations().get(names::ANNOTATION_CLUSTER_UID).cloned();
            ensure!(view.claims.values().all(|claim| made_for(claim) == own), "they are the earlier object's");
            Ok(())
        })
        .await?;
        pods::lose_volumes(&db, &["db-1"]).await?;
        db.settles_without("db-1", 3).await?;
        db.reads("hello", "world").await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_restored_without_its_status_over_living_volumes_is_not_seeded_again() -> Result<()> {
    play("rest_no_status", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        db.put("hello", "world").await?;
        let before = db.identities().await?;
        let status = db.view().await?.object.status;
        let empty = Patch::Merge(json!({ "status": null }));
        db.objects().patch_status(db.name(), &PatchParams::default(), &empty).await?;
        let view = db
            .until("the cluster to say that its ledger is missing", PATIENCE, |view| {
                ensure!(view.is(ConditionType::Stalled), "it is not Stalled");
                Ok(())
            })
            .await?;
        let stalled = view.condition(ConditionType::Stalled).cloned();
        let (reason, message) = stalled.map(|condition| (condition.reason, condition.message)).unwrap_or_default();
        let names_remedy = message.contains("Restore the status");
        ensure!(reason == "LedgerMissing" && names_remedy, "{reason}: {message}");
        let objects = |view: &View| (view.pods.keys().cloned().collect(), view.claims.keys().cloned().collect());
        let there: (Vec<_>, Vec<_>) = objects(&view);
        unwritten_during(scene, async || {
            stays("the members that run", A_WHILE, async || {
                let view = db.view().await?;
                ensure!(view.status().ledger.is_none(), "a new ledger was begun");
                ensure!(view.is(ConditionType::Stalled), "it is not Stalled any more");
                ensure!(objects(&view) == there, "pods or claims came or went");
                db.is_the_same_as(&before).await
            })
            .await
        })
        .await?;
        // With the status back the operator goes on where it was.
        let ledger = status.and_then(|status| status.ledger);
        let restored = Patch::Merge(json!({ "status": { "ledger": ledger } }));
        db.objects().patch_status(db.name(), &PatchParams::default(), &restored).await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        db.reads("hello", "world").await
    })
    .await
}
