//! etcd's alarms: while one is raised every member refuses writes, so that is what the conditions say, with the remedy; and the
//! remedy helps.

use anyhow::{Context as _, Result, ensure};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
use kube::api::DeleteParams;
use quorate_crds::{ConditionType, Phase};
use quorate_e2e::scene::{Cluster, PATIENCE, Stage, Wish, play, told, wait_for};

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
