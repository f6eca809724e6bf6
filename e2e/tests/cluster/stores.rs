//! Each kind of store in a bucket or container: a cluster of three is backed up into it, which the store shows, and comes back
//! as another one. S3 is a pod with a Service, the others are beside the cluster. Volumes are next door (`backup.rs`,
//! `restore.rs`). Google is a double of ours: no server is to be had.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use quorate_crds::BackupPhase;
use quorate_e2e::authority::{Authority, Order};
use quorate_e2e::scene::{Gateway, Scene, Stage, Wish, play, reached_at};
use serde_json::{Value, json};

use crate::archive::{agent, is_healthy};
use crate::azurite::Azurite;
use crate::backup;
use crate::clouds::google::double::{BUCKET, Double, KEY_FILE};
use crate::restore::{self, filled, from_backup, holds};

/// The Secret with a store's credentials.
const SECRET: &str = "store";
/// The Secret with the certificate that a store shows.
const CERTIFICATE: &str = "store-tls";

async fn comes_back(scene: &Scene, store: &Value) -> Result<()> {
    let db = filled(scene, 3, "restored").await?;
    let (status, held) = restore::backup(&db, store).await?;
    let whose = format!("--lineage={}", status.lineage.context("the status has no lineage")?);
    let listed = agent(scene, store, &["list", &whose]).await?;
    let [only] = listed.as_array().map(Vec::as_slice).unwrap_or_default() else { anyhow::bail!("{listed}") };
    ensure!(
        only["state"] == "whole" && only["whole"]["lastRevision"] == held.revision,
        "{only}, and not {}",
        held.revision
    );
    db.delete().await?;
    let restored = scene.create(&from_backup("restored", 3)).await?;
    restored.settles(3).await?;
    holds(&restored, &held).await
}

/// A Secret with these values.
async fn secret(scene: &Scene, name: &str, values: &Value) -> Result<()> {
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": values });
    scene.apply(&secret).await?.well().map(drop)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_of_three_comes_back_from_s3() -> Result<()> {
    play("stores_s3", Stage::Shared, async |scene| {
        scene.apply(&Gateway::credentials(SECRET, true)).await?.well()?;
        let store = Gateway::in_cluster(scene, SECRET, None).await?;
        comes_back(scene, &store).await
    })
    .await
}

/// As from a company's own store: its authority is no public one.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_of_three_comes_back_from_s3_whose_certificate_the_secret_tells_to_trust() -> Result<()> {
    play("stores_https", Stage::Shared, async |scene| {
        let host = Gateway::host_in(scene);
        let (own, other) = (Authority::new("store")?, Authority::new("other")?);
        let shown = own.signs(&Order::both("store", &[&host]))?.keys(&own.trusted());
        secret(scene, CERTIFICATE, &json!({ "tls.crt": shown.certificate, "tls.key": shown.key })).await?;
        let mut trusting = Gateway::credentials(SECRET, true);
        scene.apply(&trusting).await?.well()?;
        let store = Gateway::in_cluster(scene, SECRET, Some(CERTIFICATE)).await?;
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        // Nobody is told to be trusted, or another authority: the message says what to do.
        for (name, trusted) in [("public", None), ("mistaken", Some(other.trusted()))] {
            if let Some(trusted) = trusted {
                trusting["stringData"]["ca.crt"] = json!(trusted);
                scene.apply(&trusting).await?.well()?;
            }
            scene.apply(&backup::backup(name, &store)).await?.well()?;
            let failed = backup::shows(scene, name, BackupPhase::Running, "StoreFailed").await?;
            let message = &failed.conditions[0].message;
            ensure!(message.contains("ca.crt") && message.contains("UnknownIssuer"), "{name}: {message}");
            scene.kubectl(&["delete", "etcdbackup", name]).await?.well()?;
        }
        trusting["stringData"]["ca.crt"] = json!(own.trusted());
        scene.apply(&trusting).await?.well()?;
        // A sidecar that comes to a member that has been there trusts it as well.
        db.patch(json!({ "spec": { "backup": { "store": store } } })).await?;
        is_healthy(&db, true).await?;
        db.delete().await?;
        comes_back(scene, &store).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_of_three_comes_back_from_azure() -> Result<()> {
    play("stores_azure", Stage::Shared, async |scene| {
        let azurite = Azurite::start().await?;
        secret(scene, SECRET, &azurite.credentials()).await?;
        comes_back(scene, &azurite.store(SECRET)).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_of_three_comes_back_from_the_double_of_google() -> Result<()> {
    play("stores_google", Stage::Shared, async |scene| {
        let ip = reached_at()?;
        let double = Double::on(Ipv4Addr::UNSPECIFIED);
        secret(scene, SECRET, &json!({ KEY_FILE: double.key() })).await?;
        let store = json!({
            "address": format!("gs://{BUCKET}/etcd"),
            "options": { "endpoint": format!("http://{ip}:{}", double.address().port()) },
            "credentials": { "name": SECRET },
        });
        comes_back(scene, &store).await
    })
    .await
}
