//! The API server is away while a cluster grows: etcd serves all the while, and the growth goes on once it is back.

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::lab::{Component, Lab};
use quorate_e2e::scene::{PATIENCE, Stage, Wish, Writer, metrics, play, stays, wait_for};

use crate::operator::METRICS_PORT;
use crate::rest::A_WHILE;
use crate::roll;

/// Waits until the operator at this address has been refused for so long that it leads no more, and looks on for a while.
/// That is longer together than its Lease lasts (15 s), so that it has to take it again.
async fn outlasts_the_lease(lab: &Lab, address: &str, writer: &Writer) -> Result<()> {
    wait_for("the operator to lead no more", PATIENCE, async || {
        let (status, text) = metrics::get(address, METRICS_PORT, "/metrics").await?;
        ensure!(status == 200, "it answers {status}: {text}");
        let leads = metrics::gauge(&text, "quorate_leader").context("there is no quorate_leader")?;
        ensure!(leads < 0.5, "it leads");
        Ok(())
    })
    .await?;
    stays("etcd's service without the API server", A_WHILE, async || {
        ensure!(lab.process_of(Component::ApiServer).is_none(), "it was started");
        writer.writes(1).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_outage_of_the_api_server_in_the_middle_of_growth_costs_no_write() -> Result<()> {
    play("outage_growth", Stage::Alone, async |scene| {
        let lab = Lab::from_env().context("only the local cluster's API server can be stopped")?;
        let operator = Operator::new(scene.client());
        let address = operator.leader().await?.status.and_then(|status| status.pod_ip);
        let address = address.context("the operator has no address")?;
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let writer = Writer::start(&db, "w").await?;
        writer.writes(20).await?;
        db.scale(3).await?;
        // The newcomers' pods come first, and their etcd one by one: it takes seconds from here to the last voter.
        let begun = db
            .until("a newcomer's pod", PATIENCE, |view| {
                ensure!(view.pods.len() > 1, "there are {} pods", view.pods.len());
                Ok(())
            })
            .await?;
        eprintln!("outage_growth: the API server stops at {}", begun.summary());
        lab.stop_apiserver().await?;
        let outage = outlasts_the_lease(&lab, &address, &writer).await;
        // However that ended: the scenes after this one need it.
        lab.start_apiserver().await?;
        outage?;
        db.settles(3).await?;
        writer.writes(20).await?;
        let written = writer.stop().await?;
        roll::tell(scene.name(), &written);
        written.check(&db).await?;
        written.was_never_long_without()?;
        operator.is_ready().await
    })
    .await
}
