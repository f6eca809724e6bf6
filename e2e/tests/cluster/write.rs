//! No acknowledged write is lost while a cluster changes its size under a client that writes all the time; and the judge
//! of that sees a lost write when there is one.

use anyhow::{Context as _, Result, bail, ensure};
use quorate_crds::names;
use quorate_e2e::scene::{Cluster, PATIENCE, Stage, Wish, Writer, dial, play, told, wait_for};

use crate::roll;

/// Has the member lead that goes first when the cluster shrinks, the one with the highest serial. Says its name.
async fn the_first_to_go_leads(db: &Cluster) -> Result<String> {
    wait_for("the member with the highest serial to lead", PATIENCE, async || {
        let membership = db.membership().await?;
        let last = membership.members.values().max_by_key(|member| names::serial(db.name(), &member.name));
        let last = last.context("there are no members")?;
        if membership.leader == last.id {
            return Ok(last.name.clone());
        }
        let leader = membership.leader()?;
        let doors = db.voters_doors().await?;
        let door = doors.get(leader).with_context(|| format!("{leader} has no address"))?;
        dial(door).await?.move_leader(last.id).await.map_err(told)?;
        bail!("{leader} leads")
    })
    .await
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_from_one_to_five_and_back() -> Result<()> {
    play("write_one_to_five_and_back", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let writer = Writer::start_hasty(&db, "w").await?;
        for replicas in [3, 5] {
            db.scale(replicas).await?;
            db.settles(replicas.into()).await?;
            writer.writes(20).await?;
        }
        for replicas in [3, 1] {
            let leader = the_first_to_go_leads(&db).await?;
            db.scale(replicas).await?;
            let left = db.settles(replicas.into()).await?;
            ensure!(!left.members.contains_key(&leader), "the leader is still a member");
            // It was not just removed, which would cost writes until the others have noticed.
            roll::is_told(&db, "LeaderMoved", &[&format!("from {leader} to ")]).await?;
            writer.writes(20).await?;
        }
        roll::judge("1 -> 3 -> 5 -> 3 -> 1", &writer.stop().await?, &db).await
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
