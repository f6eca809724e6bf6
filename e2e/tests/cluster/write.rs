//! No acknowledged write is lost while a cluster changes its size under a client that writes all the time; and the judge
//! of that sees a lost write when there is one.

use std::time::Duration;

use anyhow::{Result, ensure};
use quorate_e2e::scene::{Stage, Wish, Writer, play, thorough};

/// The longest that writes may fail while members come and go, where nothing else runs on the machine: what a change of the
/// leader takes. In `make test` other scenes run meanwhile, and it may be longer.
const LONGEST_GAP: Duration = Duration::from_secs(2);

#[tokio::test]
async fn no_acknowledged_write_is_lost_from_one_to_five_and_back() -> Result<()> {
    let stage = if thorough() { Stage::Alone } else { Stage::Shared };
    play("write_one_to_five_and_back", stage, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let writer = Writer::start_hasty(&db, "w").await?;
        for replicas in [3, 5, 3, 1] {
            db.scale(replicas).await?;
            db.settles(replicas.into()).await?;
            writer.writes(20).await?;
        }
        let written = writer.stop().await?;
        eprintln!(
            "1 -> 3 -> 5 -> 3 -> 1: {} writes acknowledged, {} tried again, longest gap {:.2} s",
            written.acknowledged,
            written.failed,
            written.longest_gap.as_secs_f64()
        );
        written.check(&db).await?;
        written.was_never_long_without()?;
        let gap = written.longest_gap;
        ensure!(!thorough() || gap <= LONGEST_GAP, "no write was acknowledged for {:.2} s", gap.as_secs_f64());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_lost_write_is_noticed() -> Result<()> {
    play("write_lost_is_noticed", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let writer = Writer::start(&db, "w").await?;
        writer.writes(30).await?;
        let written = writer.stop().await?;
        written.check(&db).await?;
        db.remove("w/0000000007").await?;
        let error = written.check(&db).await.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(error.contains("acknowledged write 7") && error.contains("is lost"), "the check said {error:?}");
        db.put("w/0000000007", "another value").await?;
        let error = written.check(&db).await.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(error.contains("acknowledged write 7 reads"), "the check said {error:?}");
        Ok(())
    })
    .await
}
