//! An encrypted backup as a user meets it: who writes it holds public keys alone, the store shows nothing, and a new cluster
//! begins with it once the private key is there, and says what is missing until then.

use anyhow::{Result, ensure};
use quorate_crds::ConditionType;
use quorate_e2e::scene::{Gateway, PATIENCE, Scene, Stage, Wish, play};
use serde_json::{Value, json};

use crate::archive::{is_healthy, leader, records};
use crate::restore::{SECRET_PATIENCE, holds, says};

/// A pair of keys of age. It protects nothing.
const PUBLIC: &str = "age1t7rxyev2z3rw82stdlrrepyc39nvn86l5078zqkf5uasdy86jp6svpy7pa";
const PRIVATE: &str = "AGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4HDQAJUVSFCWCM02D8GEWQ72PVQ2Y5J33";
/// The private key of another one.
const ANOTHER: &str = "AGE-SECRET-KEY-1QQQSYQCYQ5RQWZQFPG9SCRGWPUGPZYSNZS23V9CCRYDPK8QARC0SWRYDWG";
/// What an age file begins with.
const MAGIC: &[u8] = b"age-encryption.org/v1\n";
/// What is written, and nobody else is to see.
const VALUE: &str = "for nobody else";

/// The Secret with the keys: the public one, and this private one.
async fn keys(scene: &Scene, identity: Option<&str>) -> Result<()> {
    let mut data = json!({ "recipients": format!("{PUBLIC}\n") });
    if let Some(identity) = identity {
        data["identity"] = json!(format!("# public key: unknown\n{identity}\n"));
    }
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys" }, "stringData": data });
    scene.apply(&secret).await?.well().map(drop)
}

fn encrypted(gateway: &Gateway) -> Value {
    let mut store = gateway.store("s3");
    store["encryption"] = json!({ "secretName": "keys" });
    store
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_encrypted_backup_shows_nothing_and_restores_with_its_identity_alone() -> Result<()> {
    play("encrypted_archive", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let backup = json!({ "store": encrypted(&gateway), "flushIntervalSeconds": 1 });
        // Without its keys nothing is written, and it is said which Secret.
        let db = scene.create(&Wish::new("db", 3).with("/backup", backup)).await?;
        db.settles(3).await?;
        db.until("the archive to miss its keys", PATIENCE, |view| {
            let told = view.condition(ConditionType::BackupHealthy);
            let told = told.map(|told| (told.reason.clone(), told.message.clone())).unwrap_or_default();
            ensure!(told.0 == "KeysUnfit" && told.1.contains("the key recipients of the Secret"), "{told:?}");
            Ok(())
        })
        .await?;
        ensure!(gateway.objects("/d/")?.is_empty(), "something was written without keys");

        // Public keys are all that writing takes, also after a hand-over.
        keys(scene, None).await?;
        let state = is_healthy(&db, true).await?;
        for number in 0..20 {
            db.put(&format!("secret/{number}"), VALUE).await?;
        }
        let contents = db.contents().await?;
        records(&db, &leader(&db).await?, contents.0, PATIENCE).await?;
        let held = db.held(contents).await?;
        db.delete().await?;
        let objects = gateway.objects("/d/")?;
        ensure!(objects.len() > 1, "{objects:?}");
        for object in &objects {
            ensure!(std::fs::read(object)?.starts_with(MAGIC), "{} is not encrypted", object.display());
        }
        for object in gateway.objects("/etcd/")? {
            let bytes = std::fs::read(&object)?;
            let shows = bytes.windows(VALUE.len()).any(|window| window == VALUE.as_bytes());
            ensure!(!shows, "{} shows a value", object.display());
        }

        // A new cluster: without the identity, with another's, and with the right one.
        let restore = json!({ "store": encrypted(&gateway), "lineage": state.lineage });
        let restored = scene.create(&Wish::new("restored", 3).with("/bootstrap/restore", restore)).await?;
        says(&restored, "KeysUnfit", "the key identity of the Secret", PATIENCE).await?;
        keys(scene, Some(ANOTHER)).await?;
        says(&restored, "KeysUnfit", "is encrypted to", SECRET_PATIENCE).await?;
        keys(scene, Some(PRIVATE)).await?;
        restored.settles(3).await?;
        holds(&restored, &held).await
    })
    .await
}
