//! What becomes of older generations beside an archive that runs: they go by number or by age, no sooner than the rule says, and
//! what stays restores.

use anyhow::{Result, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Stage, play, wait_for};
use serde_json::json;

use crate::archive::{
    SOON, add_role, agent, begin_with, generation_after, is_healthy, is_one_whole_generation, leader_records, revision,
    states, wish,
};

/// A minute, which is what is kept, and what two clocks may differ by.
const OLD: SignedDuration = SignedDuration::from_secs(70);
/// The objects of a generation that was recorded into once: two manifests, and the data of each.
const FULL_AND_DELTA: usize = 4;

/// Writes a key and waits until it is in the store.
async fn writes(db: &Cluster, key: &str) -> Result<i64> {
    db.put(key, "x").await?;
    let last = revision(db).await?;
    leader_records(db, None, last, SOON).await?;
    Ok(last)
}

/// Waits until the store holds nothing of these generations any more.
async fn are_gone(gateway: &Gateway, generations: &[String]) -> Result<()> {
    wait_for("the older generations to be gone", PATIENCE, async || {
        for older in generations {
            let left = gateway.objects(older)?;
            ensure!(left.is_empty(), "there are {left:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn of_older_generations_the_store_holds_what_the_retention_says() -> Result<()> {
    play("archive_retention", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, wish(&gateway).with("/backup/retention", json!({ "generations": 1 }))).await?;
        let mut generations = vec![generation_after(&db, &[]).await?];
        for number in 0..2 {
            writes(&db, &format!("before/{number}")).await?;
            add_role(&db, number).await?;
            let next = generation_after(&db, &generations).await?;
            generations.push(next);
        }
        let last = writes(&db, "last").await?;
        generations.pop();
        are_gone(&gateway, &generations).await?;
        let state = is_healthy(&db, true).await?;
        is_one_whole_generation(scene, &gateway, &state, last).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_generation_goes_when_it_is_as_old_as_the_retention_says_and_no_sooner() -> Result<()> {
    play("archive_age", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, wish(&gateway).with("/backup/retention", json!({ "minutes": 1 }))).await?;
        let first = generation_after(&db, &[]).await?;
        writes(&db, "first").await?;
        add_role(&db, 1).await?;
        let second = generation_after(&db, std::slice::from_ref(&first)).await?;
        let replaced = Timestamp::now();
        writes(&db, "second").await?;
        wait_for("the first one to be old", PATIENCE, async || {
            let age = replaced.duration_until(Timestamp::now());
            ensure!(age > OLD, "it was replaced {age:#} ago");
            Ok(())
        })
        .await?;
        // When the second one was begun, and recorded into first, this one was young. Nothing has been looked through since.
        let left = gateway.objects(&first)?;
        ensure!(left.len() >= FULL_AND_DELTA, "of {first} there are {left:?}");
        add_role(&db, 2).await?;
        let third = generation_after(&db, &[first.clone(), second.clone()]).await?;
        let last = writes(&db, "third").await?;
        are_gone(&gateway, std::slice::from_ref(&first)).await?;
        let (store, whose) = (gateway.store("s3"), format!("--lineage={}", is_healthy(&db, true).await?.lineage));
        // Of the last minute: the second one was recorded into until the third began.
        let listed = agent(scene, &store, &["list", &whose]).await?;
        ensure!(states(&listed) == [Some("whole"), Some("whole")], "{listed}, and not {second} and {third}");
        let proved = agent(scene, &store, &["verify", &whose, "--strict", "--scratch=/scratch"]).await?;
        ensure!(proved["revision"].as_i64() >= Some(last), "{proved}, and not {last}");
        Ok(())
    })
    .await
}
