//! That a continuous backup restores, proved by schedule as a user asks for it.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::jiff::Timestamp;
use quorate_crds::{BackupPhase, Verification, VerificationResult, names};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Stage, metrics, play, wait_for};
use serde_json::json;

use crate::archive::{TURN, begin, is_healthy, leader, records, revision};
use crate::backup;
use crate::operator::METRICS_PORT;

/// By how many seconds what the operator tells may differ from what is counted here: it tells whole seconds, and the answer
/// takes some time.
const ROUNDED: f64 = 2.0;

/// Waits for an attempt to prove the backup that came to this, after that time.
async fn is_proved(db: &Cluster, result: VerificationResult, after: Option<Timestamp>) -> Result<Verification> {
    let view = db
        .until(&format!("the backup to be tried and {result}"), TURN, |view| {
            let backup = view.status().backup.context("there is no status.backup")?;
            let found = backup.last_verified.context("nothing was tried")?;
            let later = found.time.as_ref().is_some_and(|time| after.is_none_or(|after| time.0 > after));
            ensure!(later && found.result == Some(result), "{found:?}");
            Ok(())
        })
        .await?;
    view.status().backup.and_then(|backup| backup.last_verified).context("it is gone again")
}

/// Waits until the operator's metrics tell how long ago it was last proved, as the status does. They tell of the cluster for
/// which it is longest, and no other scene has one proved.
async fn is_told(db: &Cluster) -> Result<()> {
    wait_for("the metrics to tell of the last proof", PATIENCE, async || {
        let address = Operator::new(db.scene().client()).leader().await?.status.and_then(|status| status.pod_ip);
        let address = address.context("the operator has no address")?;
        let (status, text) = metrics::get(&address, METRICS_PORT, "/metrics").await?;
        ensure!(status == 200, "it answers {status}: {text}");
        let told = metrics::gauge(&text, "quorate_archive_proved_seconds").context("they tell of none")?;
        let backup = db.view().await?.status().backup.context("there is no status.backup")?;
        let proved = backup.last_verified.and_then(|last| last.proved_at).context("nothing was proved")?;
        let ago = Timestamp::now().duration_since(proved.0).as_secs_f64();
        ensure!((ago - told).abs() <= ROUNDED, "they tell {told} s, and it was {ago:.1} s ago");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_backup_is_proved_by_schedule_and_one_that_does_not_restore_is_told() -> Result<()> {
    play("archive_verify", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin(scene, &gateway).await?;
        for number in 0..20 {
            db.put(&format!("proved/{number}"), "x").await?;
        }
        let last = revision(&db).await?;
        records(&db, &leader(&db).await?, last, PATIENCE).await?;

        // Asking for it restarts nobody.
        let members = db.identities().await?;
        db.patch(json!({ "spec": { "backup": { "verify": { "schedule": "* * * * *" } } } })).await?;
        let proved = is_proved(&db, VerificationResult::Proved, None).await?;
        ensure!(proved.revision >= Some(last), "{proved:?}, {last}");
        is_told(&db).await?;
        is_healthy(&db, true).await?;
        db.is_the_same_as(&members).await?;

        // The manifest of what is recorded into is damaged: etcd and the sidecars go on, and do not notice.
        std::fs::write(gateway.object("/full")?, "{")?;
        let failed = is_proved(&db, VerificationResult::Failed, None).await?;
        let message = failed.message.clone().unwrap_or_default();
        ensure!(message.contains("is damaged") && failed.revision == proved.revision, "{failed:?}");
        is_healthy(&db, false).await?;
        // The attempt that failed proves nothing: it is as long ago as it was.
        is_told(&db).await?;
        // Another generation is sound.
        scene.apply(&backup::backup("sound", &gateway.store("s3"))).await?.well()?;
        backup::shows(scene, "sound", BackupPhase::Complete, "BackupComplete").await?;
        is_proved(&db, VerificationResult::Proved, failed.time.map(|time| time.0)).await?;
        is_healthy(&db, true).await?;

        db.patch(json!({ "spec": { "backup": { "verify": null } } })).await?;
        wait_for("the CronJob to be gone", PATIENCE, async || {
            let found = scene.api::<CronJob>().get_opt(&names::verification("db")).await?;
            ensure!(found.is_none(), "it is there");
            Ok(())
        })
        .await?;
        db.is_the_same_as(&members).await
    })
    .await
}
