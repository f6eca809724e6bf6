//! The cluster that all other scenes count on: what ends of its control plane comes back, as it does anywhere else.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::lab::{Component, Lab};
use quorate_e2e::scene::{PATIENCE, Stage, Wish, play, stays, wait_for};

#[tokio::test]
#[ignore = "make e2e"]
async fn what_ends_of_the_control_plane_comes_back_and_what_was_stopped_stays_away() -> Result<()> {
    play("control_plane", Stage::Alone, async |scene| {
        let lab = Lab::from_env()?;
        let before = lab.process_of(Component::Scheduler).context("kube-scheduler does not run")?;
        lab.crash(Component::Scheduler);
        wait_for("another kube-scheduler", PATIENCE, async || {
            let now = lab.process_of(Component::Scheduler).context("it does not run")?;
            ensure!(now != before, "it is the one of before");
            Ok(())
        })
        .await?;
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        lab.stop_apiserver().await?;
        let stopped = stays("the API server's absence", Duration::from_secs(3), async || {
            ensure!(lab.process_of(Component::ApiServer).is_none(), "it was started");
            Ok(())
        })
        .await;
        lab.start_apiserver().await?;
        stopped?;
        db.settles(1).await.map(drop)
    })
    .await
}
