//! A cluster whose data is put back behind its archive's back, as a rescue by hand does: what it then writes is another history
//! than what was recorded. Each is recorded, and each can be restored.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use quorate_crds::Phase;
use quorate_e2e::command::Command;
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Stage, Wish, play};
use serde_json::json;

use crate::archive::{agent, is_healthy, leader_records, wish};
use crate::past::recorded;
use crate::restore::holds;

/// Where etcd's data is on the volume.
const DATA: &str = "data";

/// Puts the cluster to sleep, and wakes it after that.
async fn asleep(db: &Cluster, meanwhile: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    db.scale(0).await?;
    db.until("the cluster to sleep", PATIENCE, |view| {
        ensure!(view.phase() == Some(Phase::Hibernated) && view.pods.is_empty(), "{} pods", view.pods.len());
        Ok(())
    })
    .await?;
    meanwhile().await?;
    db.scale(1).await?;
    db.settles(1).await.map(drop)
}

async fn copy(from: &Path, to: &Path) -> Result<()> {
    Command::new("cp").arg("--archive").arg(from).arg(to).run().await?;
    Ok(())
}

/// Writes so many keys.
async fn writes(db: &Cluster, name: &str, count: u32) -> Result<()> {
    for number in 0..count {
        db.put(&format!("{name}/{number}"), name).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn what_was_recorded_before_and_after_data_was_put_back_is_restorable() -> Result<()> {
    play("forked", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = scene.create(&wish(&gateway).with("/replicas", json!(1))).await?;
        db.settles(1).await?;
        writes(&db, "early", 3).await?;
        let (before, kept) = (is_healthy(&db, true).await?, tempfile::tempdir()?);
        let data = pods::folder(&db, "db-0").await?.join(DATA);
        asleep(&db, async || copy(&data, &kept.path().join(DATA)).await).await?;
        writes(&db, "lost", 5).await?;
        let lost = recorded(&db).await?;
        asleep(&db, async || {
            std::fs::remove_dir_all(&data).context("failed to remove the data")?;
            copy(&kept.path().join(DATA), &data).await
        })
        .await?;
        ensure!(db.contents().await?.0 < lost.revision, "the data was not put back");
        writes(&db, "other", 12).await?;
        let other = recorded(&db).await?;
        ensure!(other.revision > lost.revision, "{} is not beyond {}", other.revision, lost.revision);
        let (_, report) = leader_records(&db, None, other.revision, PATIENCE).await?;
        let after = report["generation"].as_str().context("there is no generation")?.to_owned();
        ensure!(after != before.generation, "it has gone on in {after}");
        db.delete().await?;

        let whose = format!("--lineage={}", before.lineage);
        let listed = agent(scene, &gateway.store("s3"), &["list", &whose]).await?;
        eprintln!("{listed}");
        for (generation, held) in [(before.generation, lost), (after, other)] {
            let name = generation.rsplit('/').next().context("a generation without a name")?;
            let restore = json!({ "store": gateway.store("s3"), "lineage": before.lineage, "generation": name });
            let restored = scene.create(&Wish::new("restored", 3).with("/bootstrap/restore", restore)).await?;
            restored.settles(3).await?;
            holds(&restored, &held).await.with_context(|| generation.clone())?;
            restored.delete().await?;
        }
        Ok(())
    })
    .await
}
