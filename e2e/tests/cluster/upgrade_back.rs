//! Ways to another version that are turned back: at the first sight of members of both, or when one only is left.

use anyhow::{Result, ensure};
use quorate_e2e::scene::{Cluster, Scene, Stage, Wish, Writer, etcd_processes, play};

use super::roll::{is_told, judge};
use super::upgrade::{LONG_WAY, V3_5, V3_6, V3_7, downgrade_was_enabled, goes_to, in_place, is_mixed, wish_for};
use super::upgrade_lost::{are_told, has_lead};

/// How far a way is gone when it is turned.
#[derive(Clone, Copy)]
enum Turned {
    /// Members of both versions are seen for the first time.
    AtOnce,
    /// Two of three are told to run the other one; the first of them led.
    WithOneLeft,
}

/// Turns a way back while members run both versions, under a writer. The last one is told to leave its version only once
/// all others are well on the new one: by then the way is turned, so that it is never started anew.
async fn turns_back(scene: &Scene, from: &str, to: &str, turned: Turned) -> Result<Cluster> {
    let db = scene.create(&Wish::new("db", 3).version(from)).await?;
    db.settles(3).await?;
    match turned {
        Turned::AtOnce => (),
        Turned::WithOneLeft => has_lead(&db, "db-2").await?,
    }
    in_place(&db, async || {
        let before = etcd_processes(scene.namespace());
        let writer = Writer::start_hasty(&db, "w").await?;
        wish_for(&db, to).await?;
        match turned {
            Turned::AtOnce => is_mixed(&db, [from, to]).await?,
            Turned::WithOneLeft => {
                let two = db.until("two to be told", LONG_WAY, |view| are_told(view, to, 2)).await?;
                ensure!(are_told(&two, to, 3).is_err(), "the last one is told as well");
            }
        }
        goes_to(&db, from).await?;
        judge(&format!("{from} -> {to}, turned back"), &writer.stop().await?, &db).await?;
        let after = etcd_processes(scene.namespace());
        ensure!(
            before.iter().any(|etcd| after.contains(etcd)),
            "each was started anew: {before:?} ran, and {after:?} run now"
        );
        Ok(())
    })
    .await?;
    Ok(db)
}

/// On the way up that takes no downgrade: the cluster itself has stayed at the old version.
async fn rolls_back(scene: &Scene, from: &str, to: &str, turned: Turned) -> Result<()> {
    let db = turns_back(scene, from, to, turned).await?;
    downgrade_was_enabled(&db, 0).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_is_turned_back_while_members_run_both_versions() -> Result<()> {
    play("upgrade_back", Stage::Alone, async |scene| rolls_back(scene, V3_6, V3_7, Turned::AtOnce).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_from_3_5_is_turned_back_while_members_run_both_versions() -> Result<()> {
    play("upgrade_back_to_3_5", Stage::Alone, async |scene| rolls_back(scene, V3_5, V3_6, Turned::AtOnce).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_is_turned_back_when_one_member_only_is_left_on_the_old_version() -> Result<()> {
    play("upgrade_back_late", Stage::Alone, async |scene| rolls_back(scene, V3_6, V3_7, Turned::WithOneLeft).await)
        .await
}

/// The downgrade that etcd was allowed is taken back, and not asked for again.
async fn rolls_back_up(scene: &Scene, turned: Turned) -> Result<()> {
    let db = turns_back(scene, V3_7, V3_6, turned).await?;
    is_told(&db, "DowngradeCancelled", &[]).await?;
    downgrade_was_enabled(&db, 1).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_down_is_turned_back_while_members_run_both_versions() -> Result<()> {
    play("upgrade_down_back", Stage::Alone, async |scene| rolls_back_up(scene, Turned::AtOnce).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_down_is_turned_back_when_one_member_only_is_left_on_the_old_version() -> Result<()> {
    play("upgrade_down_back_late", Stage::Alone, async |scene| rolls_back_up(scene, Turned::WithOneLeft).await).await
}
