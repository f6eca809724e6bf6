//! The operator crashes right after its n-th write, for every n of a whole create-scale-heal run: the end is the same as
//! without.

use std::cell::Cell;

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{Cluster, PATIENCE, Scene, Stage, Wish, play, thorough, wait_for};

/// The writes after which it crashes in `make test`: while it grows.
const SAMPLE: [u32; 1] = [30];
/// More writes than any run has: the loop ends when one went through without a crash.
const MOST: u32 = 400;

#[tokio::test]
async fn a_crash_after_any_write_changes_nothing_in_the_end() -> Result<()> {
    play("crash_after_writes", Stage::Alone, async |scene| {
        let operator = Operator::new(scene.client());
        let numbers: Vec<u32> = if thorough() { (1..MOST).collect() } else { SAMPLE.to_vec() };
        let mut times = 0;
        for number in numbers {
            let crashed =
                run(scene, &operator, number).await.with_context(|| format!("a crash after write {number}"))?;
            times += u32::from(crashed);
            if !crashed {
                eprintln!("a whole run has fewer than {number} writes");
                break;
            }
        }
        ensure!(times > 0, "the operator never crashed: nothing was shown");
        eprintln!("{times} crashes, each with the same end");
        Ok(())
    })
    .await
}

/// One whole run with an operator that crashes somewhere on the way. Whether it did.
async fn run(scene: &Scene, operator: &Operator, number: u32) -> Result<bool> {
    let db = scene.cluster(&format!("db{number}"));
    let crashed = operator
        .crashing_during(number, async || {
            let finished = Cell::new(false);
            let acts = async {
                let acted = acts(scene, &db).await;
                finished.set(true);
                acted
            };
            let watch = operator.crashes_once(async || {
                ensure!(finished.get(), "neither yet");
                Ok(())
            });
            let (crashed, acted) = tokio::join!(watch, acts);
            acted?;
            crashed
        })
        .await?;
    db.settles(3).await?;
    db.reads("hello", "world").await?;
    db.until("three claims for three members", PATIENCE, |view| {
        ensure!(view.claims.len() == 3, "there are {}", view.claims.len());
        Ok(())
    })
    .await?;
    db.delete().await?;
    wait_for("its claims to be gone", PATIENCE, async || scene.has_no_claims().await).await?;
    Ok(crashed)
}

/// The run: create, scale, heal a pod, heal a volume.
async fn acts(scene: &Scene, db: &Cluster) -> Result<()> {
    scene.create(&Wish::new(db.name(), 1)).await?;
    db.settles(1).await.context("create")?;
    db.put("hello", "world").await?;
    db.scale(3).await?;
    let members = db.settles(3).await.context("scale")?;
    let names: Vec<&str> = members.members.keys().map(String::as_str).collect();
    let before = db.identities().await?;
    pods::delete_by_force(db, &names[..1]).await?;
    db.settles(3).await.context("heal a pod")?;
    db.is_the_same_as(&before).await?;
    pods::lose_volumes(db, &names[1..2]).await?;
    db.settles(3).await.context("heal a volume").map(drop)
}
