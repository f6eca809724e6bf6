//! A cluster that runs a patch from which etcd is not to be taken on: one from before that was known.

use anyhow::{Result, ensure};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::scene::{Cluster, PATIENCE, Scene, Stage, Wish, Writer, play, wait_for};
use quorate_e2e::tools::Etcd;
use serde_json::json;

use super::roll::judge;
use super::spec::tightened::patch_definition;
use super::upgrade::{V3_5, V3_6, V3_7, goes_to, in_place, no_trial_is_left, were_shown};

/// What this runs.
const BELOW: &str = Etcd::BelowFloor.version();
/// Where the definition keeps the rules for versions.
const RULES: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/version/x-kubernetes-validations";

/// A cluster that an operator of before made, whose definition refused no patch.
async fn created_before(scene: &Scene) -> Result<Cluster> {
    patch_definition(vec![json!({ "op": "remove", "path": RULES })]).await?;
    let db = wait_for("the looser rules to be in force", PATIENCE, async || {
        scene.create(&Wish::new("db", 3).version(BELOW)).await
    })
    .await?;
    db.settles(3).await?;
    Ok(db)
}

/// The next operator brings the definition up to date, after which nobody can begin with such a version.
async fn rules_are_back(scene: &Scene) -> Result<()> {
    let operator = Operator::new(scene.client());
    operator.away_during(async || Ok(())).await?;
    operator.is_ready().await?;
    wait_for("the rules for versions to be in force", PATIENCE, async || {
        let said = scene.apply_dry(&Wish::new("other", 1).version(BELOW).object()).await?.refused()?;
        ensure!(said.contains("spec.version is too old"), "{said}");
        Ok(())
    })
    .await
}

/// All the way up under a writer: by a later patch of its own minor first, which no spec names.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_below_a_floor_is_lifted_over_it_before_it_goes_on() -> Result<()> {
    play("upgrade_floor", Stage::Alone, async |scene| {
        let db = created_before(scene).await;
        // If there is none, the scenes after this one shall not suffer from it.
        rules_are_back(scene).await?;
        let db = db?;
        db.settles(3).await?;
        in_place(&db, async || {
            let writer = Writer::start_hasty(&db, "w").await?;
            writer.writes(20).await?;
            let shown = goes_to(&db, V3_7).await?;
            were_shown(&shown, [(BELOW, V3_5), (V3_5, V3_6), (V3_6, V3_7)])?;
            judge(&format!("{BELOW} -> {V3_7}"), &writer.stop().await?, &db).await
        })
        .await?;
        no_trial_is_left(scene, &db).await
    })
    .await
}
