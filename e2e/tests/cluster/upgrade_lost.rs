//! Members lost on the way to another version: while members run both, and after etcd was allowed to lower the cluster's
//! version. What takes their place begins with what the leader runs.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{Cluster, PATIENCE, Stage, View, Wish, Writer, play, wait_for};

use super::roll::times_told;
use super::upgrade::{V3_5, V3_6, V3_7, arrives, goes_to, is_mixed, wish_for};

/// How often it is tried to lose a member in the 0.3 to 9 s between etcd's leave to lower the version and the first switch.
/// It is late when etcd happens to look at the versions right then, which it does every four seconds.
const TRIES: usize = 6;

/// The image that a pod's etcd is to run.
fn image(pod: &Pod) -> Option<&str> {
    let containers = &pod.spec.as_ref()?.containers;
    containers.iter().find(|container| container.name == "etcd")?.image.as_deref()
}

/// Loses a member, and demands that the pod of the one in its place is told to run what the leader is told to run. Returns
/// its name, and what was seen when it was seen first.
async fn loses(db: &Cluster, lost: &str) -> Result<(String, View)> {
    let known: BTreeSet<String> = db.view().await?.pods.into_keys().collect();
    let comes = wait_for("the pod of a newcomer", PATIENCE, async || {
        let view = db.view().await?;
        let newcomer = view.pods.keys().find(|name| !known.contains(*name)).cloned();
        Ok((newcomer.context("there is none")?, view))
    });
    let names = [lost];
    let ((), (newcomer, view)) = tokio::try_join!(pods::lose_volumes(db, &names), comes)?;
    // Who led by the operator's word, and who leads by etcd's.
    let leaders = [view.status().leader, Some(db.answers().await?.leader()?.to_owned())];
    let told: BTreeSet<&str> = leaders.iter().flatten().filter_map(|name| image(view.pods.get(name)?)).collect();
    let first = view.pods.get(&newcomer).and_then(image).context("the newcomer's pod has no image")?;
    ensure!(told.contains(first), "{newcomer} is to run {first}, and the leader {told:?}");
    eprintln!("{newcomer} in the place of {lost} begins with {first}");
    Ok((newcomer, view))
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_lost_on_the_way_is_replaced_by_one_of_the_leaders_version_and_the_way_goes_on() -> Result<()> {
    play("upgrade_lost", Stage::Shared, async |scene| {
        for (name, from, to) in [("up", V3_5, V3_7), ("down", V3_7, V3_6)] {
            let db = scene.create(&Wish::new(name, 3).version(from)).await?;
            db.settles(3).await?;
            let writer = Writer::start_hasty(&db, "w").await?;
            wish_for(&db, to).await?;
            let mixed = is_mixed(&db, [from, V3_6]).await?;
            let lost = mixed.status().members.into_iter().find(|member| member.version.as_deref() == Some(from));
            let lost = lost.context("nobody runs the old version")?.name;
            loses(&db, &lost).await.with_context(|| format!("{from} -> {to}"))?;
            arrives(&db).await?;
            db.settles_without(&lost, 3).await?;
            let written = writer.stop().await?;
            written.check(&db).await.with_context(|| format!("{from} -> {to}"))?;
            db.delete().await?;
        }
        Ok(())
    })
    .await
}

/// While a downgrade is enabled etcd admits nobody: it is taken back, and enabled again when all are there.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_downgrade_is_taken_back_for_a_newcomer_and_enabled_again() -> Result<()> {
    play("upgrade_cancelled", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_7)).await?;
        db.settles(3).await?;
        let writer = Writer::start_hasty(&db, "w").await?;
        for late in 0..TRIES {
            if loses_one_before_the_first_switch(&db).await? {
                eprintln!("{late} tries were late");
                return writer.stop().await?.check(&db).await;
            }
            goes_to(&db, V3_7).await?;
        }
        bail!("in each of {TRIES} tries a member was told to switch before one was lost")
    })
    .await
}

/// Wishes for the minor below and loses a member once etcd may lower the version. Whether that came before any was told to
/// switch; if so, all that has to follow has followed. In any case the way has ended.
async fn loses_one_before_the_first_switch(db: &Cluster) -> Result<bool> {
    let before = db.settles(3).await?;
    let leader = before.leader()?;
    let lost = before.members.keys().find(|name| *name != leader).context("there is only a leader")?;
    let (enabled, taken_back) = (times_told(db, ENABLED).await?, times_told(db, TAKEN_BACK).await?);
    wish_for(db, V3_6).await?;
    is_told_again(db, ENABLED, enabled).await?;
    let (newcomer, view) = loses(db, lost).await?;
    let in_time = !is_one_told(&view, V3_6);
    if in_time {
        let first = view.pods.get(&newcomer).and_then(image).context("the newcomer's pod has no image")?;
        ensure!(first.ends_with(&format!(":v{V3_7}")), "{newcomer} begins with {first}");
        is_told_again(db, TAKEN_BACK, taken_back).await?;
        is_told_again(db, ENABLED, enabled + 1).await?;
        let voters = db.answers().await?;
        let voters = voters.voters();
        ensure!(voters.len() == 3 && voters.contains(&newcomer.as_str()), "it was enabled again when {voters:?} voted");
    }
    arrives(db).await?;
    db.settles_without(lost, 3).await?;
    Ok(in_time)
}

/// The reasons of the events that tell of it.
const ENABLED: &str = "DowngradeEnabled";
const TAKEN_BACK: &str = "DowngradeCancelled";

/// Waits until an event was told more often than so many times.
async fn is_told_again(db: &Cluster, reason: &str, before: i32) -> Result<()> {
    wait_for(&format!("another event {reason}"), PATIENCE, async || {
        let times = times_told(db, reason).await?;
        ensure!(times > before, "it was told {times} times");
        Ok(())
    })
    .await
}

/// Whether the ledger says of any member that it was told to run this version.
fn is_one_told(view: &View, version: &str) -> bool {
    let members = view.status().ledger.unwrap_or_default().members;
    members.into_values().filter_map(|member| member.release).any(|release| release.version == version)
}
