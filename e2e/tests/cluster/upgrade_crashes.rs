//! Versions whose image says what it is and does not run: for whoever is told to run it first, for the second or for the last.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use quorate_crds::names;
use quorate_e2e::images::{CRASHING, CRASHING_LAST, CRASHING_MINOR, CRASHING_OPEN, CRASHING_PATCH, CRASHING_SECOND};
use quorate_e2e::scene::{Cluster, PATIENCE, Scene, Stage, View, Wish, Writer, play, wait_for};
use serde_json::json;

use super::roll::{etcd_of, judge, times_told};
use super::upgrade::{
    V3_6, V3_7, arrives, downgrade_was_enabled, ended_by_themselves, goes_to, in_place, is_stuck, versions,
};

/// Demands that the containers of all members but one are the first ones in their pods.
fn only_one_was_restarted(view: &View) -> Result<()> {
    let restarts = |pod: &Pod| etcd_of(pod).map(|etcd| etcd.restart_count);
    let restarted: Vec<_> = view.pods.iter().map(|(name, pod)| (name, restarts(pod))).collect();
    let untouched = restarted.iter().filter(|(_, restarts)| *restarts == Some(0)).count();
    ensure!(untouched + 1 == view.pods.len(), "{restarted:?} restarts");
    Ok(())
}

/// The codes with which the last container of each pod ended that had one before.
fn last_ends(view: &View) -> BTreeSet<i32> {
    let ended = |pod: &Pod| Some(etcd_of(pod)?.last_state.as_ref()?.terminated.as_ref()?.exit_code);
    view.pods.values().filter_map(ended).collect()
}

/// Has the operator look at everything once more: it acts on a change that has nothing to do with versions, and says so. What
/// a round does after that is done when the next one has ended.
async fn does_a_round(db: &Cluster, name: &str) -> Result<()> {
    const KEY: &str = "example.com/round";
    db.patch(json!({ "spec": { "service": { "annotations": { KEY: name } } } })).await?;
    wait_for("the annotation to be on the Service", PATIENCE, async || {
        let service = db.scene().api::<Service>().get(&names::client_service(db.name())).await?;
        let given = service.metadata.annotations.unwrap_or_default().remove(KEY);
        ensure!(given.as_deref() == Some(name), "it is {given:?}");
        Ok(())
    })
    .await?;
    db.until("the status to speak of it", PATIENCE, |view| {
        ensure!(view.is_current(), "it does not");
        Ok(())
    })
    .await
    .map(drop)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_version_that_crashes_is_taken_back_and_told() -> Result<()> {
    play("upgrade_crashes", Stage::Alone, async |scene| crashes(scene, CRASHING, CRASHING_PATCH, 1).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_minor_version_that_crashes_is_taken_back_and_told() -> Result<()> {
    play("upgrade_crashes_minor", Stage::Alone, async |scene| crashes(scene, CRASHING, CRASHING_MINOR, 1).await).await
}

/// The old version goes on with a database and a log that the new one has opened.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_minor_version_that_crashes_once_it_has_opened_its_database_is_taken_back_and_told() -> Result<()> {
    play("upgrade_crashes_open", Stage::Alone, async |scene| crashes(scene, CRASHING_OPEN, V3_7, 2).await).await
}

/// A cluster of 3.6 is to run a version that says what it is and ends with this exit code, under a writer; and one that runs,
/// afterwards.
async fn crashes(scene: &Scene, repository: &str, version: &str, ends_with: i32) -> Result<()> {
    let db = scene.create(&Wish::new("db", 3).version(V3_6)).await?;
    db.settles(3).await?;
    in_place(&db, async || {
        let writer = Writer::start_hasty(&db, "w").await?;
        let image = json!({ "repository": repository });
        db.patch(json!({ "spec": { "version": version, "image": image } })).await?;
        is_stuck(&db, "ReleaseFailed", version).await?;
        db.until("all members to be well on the old version", PATIENCE, |view| {
            ensure!(view.status().ready_replicas == 3, "{} are", view.status().ready_replicas);
            ensure!(versions(view) == BTreeSet::from([V3_6.to_owned()]), "they run {:?}", versions(view));
            Ok(())
        })
        .await?;
        let view = db.view().await?;
        only_one_was_restarted(&view)?;
        ensure!(last_ends(&view) == BTreeSet::from([ends_with]), "etcd ended with {:?}", last_ends(&view));
        // Ways that no etcd may end on by itself are judged by this.
        ensure!(ended_by_themselves(&view).len() == 1, "seen to have ended: {:?}", ended_by_themselves(&view));
        // It is not tried again, until something else is wished for.
        let told = (times_told(&db, "MemberSwitched").await?, times_told(&db, "ReleaseFailed").await?);
        for round in ["one", "another"] {
            does_a_round(&db, round).await?;
        }
        is_stuck(&db, "ReleaseFailed", version).await?;
        let now = (times_told(&db, "MemberSwitched").await?, times_told(&db, "ReleaseFailed").await?);
        ensure!(now == told, "members were told {told:?} times to switch, and that it failed, and now {now:?}");
        only_one_was_restarted(&db.view().await?)?;
        db.patch(json!({ "spec": { "version": V3_6, "image": null } })).await?;
        db.settles(3).await?;
        goes_to(&db, V3_7).await?;
        judge("a version that crashes, and then one that doesn't", &writer.stop().await?, &db).await
    })
    .await
}

/// What each member runs, as the status shows it.
fn run(view: &View) -> BTreeMap<String, Option<String>> {
    view.status().members.into_iter().map(|member| (member.name, member.version)).collect()
}

/// Demands that these members run the new version, and the others the old one.
fn run_the_new_one(view: &View, members: &[&str]) -> Result<()> {
    for (member, version) in run(view) {
        let wanted = if members.contains(&member.as_str()) { V3_7 } else { V3_6 };
        ensure!(version.as_deref() == Some(wanted), "{member} runs {version:?}, not {wanted}");
    }
    Ok(())
}

/// The old version is wished for again, and all go back to it, though etcd has let nobody lower anything.
async fn are_all_taken_back(db: &Cluster) -> Result<()> {
    db.patch(json!({ "spec": { "version": V3_6, "image": null } })).await?;
    arrives(db).await?;
    db.settles(3).await?;
    run_the_new_one(&db.view().await?, &[])?;
    downgrade_was_enabled(db, 0).await
}

/// It alone is taken back; the first one runs the new version well.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_minor_version_that_crashes_on_the_second_member_is_taken_back_there() -> Result<()> {
    play("upgrade_crashes_second", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_6)).await?;
        db.settles(3).await?;
        in_place(&db, async || {
            let writer = Writer::start_hasty(&db, "w").await?;
            db.patch(json!({ "spec": { "version": V3_7, "image": { "repository": CRASHING_SECOND } } })).await?;
            is_stuck(&db, "ReleaseFailed", V3_7).await?;
            db.until("all members to be well, and the first on the new version", PATIENCE, |view| {
                ensure!(view.status().ready_replicas == 3, "{} are", view.status().ready_replicas);
                run_the_new_one(view, &["db-2"])
            })
            .await?;
            are_all_taken_back(&db).await?;
            judge("a minor that crashes on the second member", &writer.stop().await?, &db).await
        })
        .await
    })
    .await
}

/// It stays on the new version, as its database may be of it, until somebody decides. The others serve meanwhile.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_minor_version_that_crashes_on_the_last_member_is_told_and_taken_back_on_wish() -> Result<()> {
    play("upgrade_crashes_last", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_6)).await?;
        db.settles(3).await?;
        in_place(&db, async || {
            let writer = Writer::start_hasty(&db, "w").await?;
            db.patch(json!({ "spec": { "version": V3_7, "image": { "repository": CRASHING_LAST } } })).await?;
            is_stuck(&db, "ContainerFailing", "db-0").await?;
            let view = db.view().await?;
            for member in ["db-1", "db-2"] {
                ensure!(run(&view).get(member).is_some_and(|it| it.as_deref() == Some(V3_7)), "{:?}", run(&view));
            }
            writer.writes(50).await?;
            are_all_taken_back(&db).await?;
            judge("a minor that crashes on the last member", &writer.stop().await?, &db).await
        })
        .await
    })
    .await
}
