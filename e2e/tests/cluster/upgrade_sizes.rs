//! Changes of the version of clusters that are no three members on volumes: one, five, and three that keep nothing.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::scene::{Cluster, Scene, Stage, Wish, play};
use serde_json::json;

use super::upgrade::{V3_5, V3_6, V3_7, goes_to, in_place};

/// Up through the minors and down again, with nobody who writes; the logs of 3.5 are cut on the way.
async fn goes_up_and_down(scene: &Scene, wish: &Wish, members: usize) -> Result<Cluster> {
    let db = scene.create(&wish.clone().version(V3_5)).await?;
    db.settles(members).await?;
    db.put("hello", "world").await?;
    in_place(&db, async || {
        for version in [V3_7, V3_6, V3_5] {
            goes_to(&db, version).await.context(version)?;
            db.reads("hello", "world").await.context(version)?;
            let ledger = db.view().await?.status().ledger.context("no ledger")?;
            // Back on 3.5, it writes the old form again.
            ensure!(ledger.logs_cut == (version != V3_5), "on {version} the ledger has logs_cut: {}", ledger.logs_cut);
        }
        Ok(())
    })
    .await?;
    Ok(db)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_single_member_goes_through_the_minors_and_back() -> Result<()> {
    play("upgrade_one", Stage::Shared, async |scene| goes_up_and_down(scene, &Wish::new("db", 1), 1).await.map(drop))
        .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn five_members_go_through_the_minors_and_back() -> Result<()> {
    play("upgrade_five", Stage::Shared, async |scene| goes_up_and_down(scene, &Wish::new("db", 5), 5).await.map(drop))
        .await
}

/// What is changed in place loses nothing. A pod that has to be replaced takes its member with it, and another one joins.
#[tokio::test]
#[ignore = "make e2e"]
async fn three_members_that_keep_nothing_go_through_the_minors_and_are_replaced_for_other_settings() -> Result<()> {
    play("upgrade_ephemeral", Stage::Shared, async |scene| {
        let wish = Wish::new("db", 3).with("/storage", json!({ "size": "1Gi", "ephemeral": true }));
        let db = goes_up_and_down(scene, &wish, 3).await?;
        let names = async || anyhow::Ok(db.identities().await?.into_keys().collect::<BTreeSet<_>>());
        let before = names().await?;
        db.patch(json!({ "spec": { "etcd": { "snapshotCount": 5000 } } })).await?;
        db.settles(3).await?;
        let after = names().await?;
        ensure!(after.is_disjoint(&before), "of {before:?} there are some among {after:?}");
        db.reads("hello", "world").await
    })
    .await
}
