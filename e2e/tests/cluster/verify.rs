//! That a continuous backup restores, proved by schedule as a user asks for it.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::jiff::Timestamp;
use quorate_crds::{BackupPhase, Verification, VerificationResult, names};
use quorate_e2e::scene::{AGENT_PORT, Cluster, Gateway, PATIENCE, Stage, fetch, metrics, play, wait_for};
use serde_json::{Value, json};

use crate::archive::{TURN, begin, generation_after, is_healthy, leader, records, revision};
use crate::backup;
use crate::operator::leader_tells;
use crate::restore::flip;

/// By how many seconds what metrics tell may differ from what is counted here: they tell whole seconds, and the answer takes
/// some time.
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

/// Waits until the operator's metrics tell how long ago it was last proved, and last backed up, as the status does. They tell
/// of the cluster for which it is longest: no other scene has one proved, and many have one backed up.
async fn is_told(db: &Cluster) -> Result<()> {
    wait_for("the metrics to tell of the last proof and the last backup", PATIENCE, async || {
        let text = leader_tells(db.scene()).await?;
        let told = |name: &str| metrics::gauge(&text, name).with_context(|| format!("they tell of no {name}"));
        let backup = db.view().await?.status().backup.context("there is no status.backup")?;
        let proved = backup.last_verified.and_then(|last| last.proved_at).context("nothing was proved")?;
        let ago = Timestamp::now().duration_since(proved.0).as_secs_f64();
        let told_proved = told("quorate_archive_proved_seconds")?;
        ensure!((ago - told_proved).abs() <= ROUNDED, "they tell {told_proved} s, and it was {ago:.1} s ago");
        let last = [
            ("quorate_archive_committed_seconds", backup.committed_at),
            ("quorate_archive_full_seconds", backup.full_at),
        ];
        for (name, at) in last {
            let at = at.with_context(|| format!("the status has nothing for {name}"))?;
            let (told, ago) = (told(name)?, Timestamp::now().duration_since(at.0).as_secs_f64());
            ensure!(told >= ago - ROUNDED, "{name} is {told}, and it was {ago:.1} s ago");
        }
        Ok(())
    })
    .await
}

/// Waits until the metrics of each sidecar tell the moments of the last backups, as its report does.
async fn sidecars_tell(db: &Cluster) -> Result<()> {
    wait_for("the metrics of each sidecar to tell of the last backup", PATIENCE, async || {
        for (member, door) in db.voters_doors().await? {
            let (_, report) = fetch(&door, AGENT_PORT, "/status").await?;
            let (status, text) = fetch(&door, AGENT_PORT, "/metrics").await?;
            ensure!(status == 200, "{member} answers {status}: {text}");
            let report: Value = serde_json::from_str(&report)?;
            for (name, field) in [
                ("quorate_archive_last_commit_timestamp_seconds", "committedAt"),
                ("quorate_archive_last_full_timestamp_seconds", "fullTaken"),
            ] {
                let at = report["head"][field].as_str().with_context(|| format!("{member} reports {report}"))?;
                let at = at.parse::<Timestamp>()?.as_duration().as_secs_f64();
                let told = metrics::gauge(&text, name).with_context(|| format!("{member} tells of no {name}"))?;
                ensure!((told - at).abs() <= ROUNDED, "{name} of {member} is {told}, and not {at}");
            }
        }
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
        sidecars_tell(&db).await?;

        // Asking for it restarts nobody.
        let members = db.identities().await?;
        db.patch(json!({ "spec": { "backup": { "verify": { "schedule": "* * * * *" } } } })).await?;
        let proved = is_proved(&db, VerificationResult::Proved, None).await?;
        ensure!(proved.revision >= Some(last), "{proved:?}, {last}");
        is_told(&db).await?;
        is_healthy(&db, true).await?;
        db.is_the_same_as(&members).await?;

        // What was stored is damaged: etcd and the sidecars go on, and do not notice.
        let damaged = gateway.objects("/d/")?;
        for data in &damaged {
            flip(data)?;
        }
        let failed = is_proved(&db, VerificationResult::Failed, None).await?;
        let message = failed.message.clone().unwrap_or_default();
        let names = damaged.iter().filter_map(|data| data.file_name()?.to_str());
        ensure!(names.clone().any(|name| message.contains(name)), "{names:?}: {message}");
        ensure!(failed.revision == proved.revision, "{failed:?}");
        is_healthy(&db, false).await?;
        // The attempt that failed proves nothing: it is as long ago as it was.
        is_told(&db).await?;
        // Another generation is sound.
        scene.apply(&backup::backup("sound", &gateway.store("s3"))).await?.well()?;
        backup::shows(scene, "sound", BackupPhase::Complete, "BackupComplete").await?;
        is_proved(&db, VerificationResult::Proved, failed.time.map(|time| time.0)).await?;
        is_healthy(&db, true).await?;

        // The manifest of what is recorded into is damaged: the sidecar that records notices, and begins anew.
        let generation = generation_after(&db, &[]).await?;
        std::fs::write(gateway.object(&format!("{generation}/full"))?, "{")?;
        generation_after(&db, &[generation]).await?;
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
