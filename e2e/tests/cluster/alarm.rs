//! etcd's alarms: while one is raised every member refuses writes, so that is what the conditions say, with the remedy; and the
//! remedy helps.

use anyhow::{Context as _, Result, ensure};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
use kube::api::DeleteParams;
use quorate_crds::{BackupPhase, ConditionType, Phase};
use quorate_e2e::scene::{Cluster, PATIENCE, Stage, Wish, play, told, wait_for};
use serde_json::json;

use crate::backup;
use crate::restore::from_backup;

/// A small database, so that it is soon full.
const QUOTA: &str = "16Mi";
/// A value, of which less than 32 fit.
const LARGE: usize = 512 << 10;
/// So many don't.
const MOST: u32 = 64;

/// Raises an alarm of a member, or disarms it: once more is the same.
async fn alarm(db: &Cluster, action: AlarmAction, kind: AlarmType, member: u64) -> Result<()> {
    wait_for("etcd to raise or to disarm the alarm", PATIENCE, async || {
        db.ask(async |client| {
            let mut of_member = AlarmOptions::new();
            of_member.with_member(member);
            client.alarm(action, kind, Some(of_member)).await.map_err(told).map(drop)
        })
        .await
    })
    .await
}

/// Waits until the conditions say that the cluster does not serve writes, why, and what to do.
async fn is_told(db: &Cluster, reason: &str) -> Result<()> {
    db.until(&format!("the conditions to say {reason}"), PATIENCE, |view| {
        let expected =
            [(ConditionType::Available, "False"), (ConditionType::Ready, "False"), (ConditionType::Stalled, "True")];
        for (kind, truth) in expected {
            let condition = view.condition(kind).with_context(|| format!("no {kind:?}"))?;
            ensure!(condition.status == truth && condition.reason == reason, "{condition:?}");
            ensure!(condition.message.contains("etcdctl alarm disarm"), "{condition:?}");
        }
        Ok(())
    })
    .await
    .map(drop)
}

/// Demands that a write is refused.
async fn refuses_writes(db: &Cluster) -> Result<()> {
    let written = db.ask(async |client| client.put("alarm", "x", None).await.map_err(told)).await;
    ensure!(written.is_err(), "a write was taken: {written:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_alarm_is_told_and_its_remedy_helps() -> Result<()> {
    play("alarm", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let before = db.answers().await?;
        let first = before.members.get("db-1").context("no db-1")?.id;

        alarm(&db, AlarmAction::Activate, AlarmType::Nospace, first).await?;
        refuses_writes(&db).await?;
        is_told(&db, "NoSpace").await?;
        alarm(&db, AlarmAction::Deactivate, AlarmType::Nospace, first).await?;
        db.settles(3).await?;
        db.put("alarm", "over").await?;
        ensure!(db.answers().await?.members == before.members, "members came or went");

        // The member that it names is replaced; with it goes no alarm.
        alarm(&db, AlarmAction::Activate, AlarmType::Corrupt, first).await?;
        refuses_writes(&db).await?;
        is_told(&db, "Corrupt").await?;
        db.claims().delete("db-1", &DeleteParams::default()).await.context("failed to delete the claim")?;
        // etcd answers no read either, so the operator's word is taken for who is a member.
        db.until("the member to be replaced", PATIENCE, |view| {
            ensure!(!view.pods.contains_key("db-1") && view.pods.len() == 3, "{:?}", view.pods.keys());
            ensure!(view.phase() == Some(Phase::Running), "another phase");
            Ok(())
        })
        .await?;
        is_told(&db, "Corrupt").await?;
        alarm(&db, AlarmAction::Deactivate, AlarmType::Corrupt, first).await?;
        db.settles(3).await?;
        db.put("alarm", "over").await
    })
    .await
}

/// Writes one key again and again until the database is full; how often it was written.
async fn until_full(db: &Cluster) -> Result<u32> {
    for round in 0..MOST {
        let written = db.ask(async |client| client.put("large", vec![b'x'; LARGE], None).await.map_err(told)).await;
        match written {
            Err(error) if format!("{error:#}").contains("database space exceeded") => return Ok(round),
            Err(error) => return Err(error),
            Ok(_) => (),
        }
    }
    anyhow::bail!("there still is space after {MOST} rounds")
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_backup_of_a_cluster_without_space_comes_back_with_room_and_without_the_alarm() -> Result<()> {
    play("alarm_backup", Stage::Shared, async |scene| {
        let store = backup::volume(scene).await?;
        let with_quota = |wish: Wish| wish.with("/etcd/quota", json!(QUOTA));
        let db = scene.create(&with_quota(Wish::new("db", 1))).await?;
        db.settles(1).await?;
        db.put("small", "kept").await?;
        eprintln!("it was full after {} values", until_full(&db).await?);
        is_told(&db, "NoSpace").await?;
        scene.apply(&backup::backup("b", &store)).await?.well()?;
        backup::shows(scene, "b", BackupPhase::Complete, "BackupComplete").await?;
        let (_, held) = db.contents().await?;
        is_told(&db, "NoSpace").await?;
        db.delete().await?;

        let restored = scene.create(&with_quota(from_backup("restored", 3))).await?;
        restored.settles(3).await?;
        let alarms = restored.ask(async |client| {
            let asked = client.alarm(AlarmAction::Get, AlarmType::None, None).await.map_err(told)?;
            Ok(asked.alarms().len())
        });
        ensure!(alarms.await? == 0, "an alarm came back");
        let (_, contents) = restored.contents().await?;
        ensure!(contents.entries == held.entries, "it holds other keys than before");
        // Room for as much again, and not for one value alone.
        for round in 0..4 {
            restored.put("large", &format!("{round}{}", "y".repeat(LARGE))).await?;
        }
        restored.settles(3).await.map(drop)
    })
    .await
}
