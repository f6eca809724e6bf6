//! A store that fails for a moment, as a real server behind somebody who refuses, loses answers and breaks connections: who backs
//! up to it or restores from it in Kubernetes does not notice. How each request takes it is tried without a cluster.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use quorate_crds::BackupPhase;
use quorate_e2e::scene::{Gateway, PATIENCE, Stage, Wish, play};
use serde_json::json;

use crate::archive::{agent, begin_with, is_healthy, leader_records, states, wish_into};
use crate::backup;
use crate::clouds::gate::Gate;
use crate::clouds::google::trouble::Trouble;
use crate::past::recorded;
use crate::restore::holds;

/// Demands that something has met the trouble, and ends it.
fn had(gate: &Gate, trouble: Trouble) -> Result<()> {
    let met = gate.troubled_requests();
    eprintln!("{trouble:?}: {met} requests");
    ensure!(met > 0, "nothing met {trouble:?}");
    gate.turn_to(Trouble::None);
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_store_that_fails_for_a_moment_costs_no_backup_and_no_restore() -> Result<()> {
    play("troubles", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let gate = Gate::before(gateway.address(), gateway.buckets(), Ipv4Addr::UNSPECIFIED);
        let store = gateway.store_behind(gate.address().port(), "s3")?;
        let db = begin_with(scene, wish_into(&store)).await?;
        let state = is_healthy(&db, true).await?;
        for trouble in [Trouble::Refused, Trouble::AnswerLost, Trouble::Conflict] {
            gate.turn_to(trouble);
            db.put("troubled", &format!("{trouble:?}")).await?;
            let (_, report) = leader_records(&db, None, db.contents().await?.0, PATIENCE).await?;
            ensure!(report["generation"] == json!(state.generation), "it has begun anew: {report}");
            had(&gate, trouble)?;
        }
        // Enough for an upload in parts.
        backup::grow(&db).await?;
        let all = [Trouble::Refused, Trouble::Cut, Trouble::AnswerLost, Trouble::Conflict];
        for (number, trouble) in all.iter().copied().enumerate() {
            gate.turn_to(trouble);
            let name = format!("b{number}");
            scene.apply(&backup::backup(&name, &store)).await?.well()?;
            backup::shows(scene, &name, BackupPhase::Complete, "BackupComplete").await?;
            had(&gate, trouble)?;
        }
        db.put("last", "x").await?;
        let held = recorded(&db).await?;
        db.delete().await?;
        let whose = format!("--lineage={}", state.lineage);
        let listed = agent(scene, &store, &["list", &whose]).await?;
        let states = states(&listed);
        // So much is written that the archive has begun anew, too.
        ensure!(states.len() > all.len() && states.iter().all(|state| *state == Some("whole")), "{listed}");

        gate.turn_to(Trouble::HalfRead);
        let restore = json!({ "store": store, "lineage": state.lineage });
        let restored = scene.create(&Wish::new("restored", 3).with("/bootstrap/restore", restore)).await?;
        restored.settles(3).await?;
        had(&gate, Trouble::HalfRead)?;
        holds(&restored, &held).await
    })
    .await
}
