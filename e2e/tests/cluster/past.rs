//! The past of a cluster as a user gets it back: from one continuous backup, new clusters that begin with the state at a time
//! and after a revision, neither of them the newest, on each minor.

use anyhow::Result;
use etcd_client::{DeleteOptions, LeaseGrantOptions, PutOptions};
use k8s_openapi::jiff::Timestamp;
use quorate_e2e::scene::{Cluster, Gateway, Held, PATIENCE, Stage, Wish, play};
use serde_json::{Value, json};

use crate::archive::{begin_with, is_healthy, leader, records, wish};
use crate::restore::holds;

/// How many keys are written.
const KEYS: u32 = 30;
/// A lease that has keys at the first moment and is gone at the second.
const LEASE: i64 = 77;
/// For how many seconds it is granted: not what a lease gets of which nothing is known.
const GRANTED: i64 = 1_800;

/// What the cluster holds now, once all of it is in the store.
async fn recorded(db: &Cluster) -> Result<Held> {
    let contents = db.contents().await?;
    records(db, &leader(db).await?, contents.0, PATIENCE).await?;
    db.held(contents).await
}

/// Keys of a few versions, some of them on a lease.
async fn first(db: &Cluster) -> Result<()> {
    db.ask(async |etcd| {
        etcd.lease_grant(GRANTED, Some(LeaseGrantOptions::new().with_id(LEASE))).await?;
        for key in 0..KEYS {
            let lease = (key % 10 == 0).then(|| PutOptions::new().with_lease(LEASE));
            etcd.put(format!("key/{key:02}"), "first", lease).await?;
            etcd.put(format!("counter/{}", key % 3), key.to_string(), None).await?;
        }
        Ok(())
    })
    .await
}

/// The lease goes and its keys with it, others are deleted or written over, some for the second time in their lives.
async fn second(db: &Cluster) -> Result<()> {
    db.ask(async |etcd| {
        etcd.lease_revoke(LEASE).await?;
        etcd.delete("key/1", Some(DeleteOptions::new().with_prefix())).await?;
        etcd.put("key/15", "again", None).await?;
        etcd.put("key/29", "second", None).await?;
        Ok(())
    })
    .await
}

/// Nothing of it all is left.
async fn last(db: &Cluster) -> Result<()> {
    db.ask(async |etcd| {
        etcd.delete("", Some(DeleteOptions::new().with_all_keys())).await?;
        etcd.put("mistake", "made", None).await?;
        Ok(())
    })
    .await
}

async fn goes_back(name: &str, version: &'static str) -> Result<()> {
    play(name, Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, wish(&gateway).version(version)).await?;
        first(&db).await?;
        let then = recorded(&db).await?;
        let time = Timestamp::now();
        second(&db).await?;
        let mut later = recorded(&db).await?;
        // That a lease went is recorded by nothing but the deletion of its keys: it comes back with none, and runs out.
        later.contents.leases.insert(LEASE, GRANTED);
        last(&db).await?;
        recorded(&db).await?;
        let lineage = is_healthy(&db, true).await?.lineage;
        db.delete().await?;

        let past = |name: &str, point: &str, at: Value| {
            let mut restore = json!({ "store": gateway.store("s3"), "lineage": lineage });
            restore[point] = at;
            Wish::new(name, 3).version(version).with("/bootstrap/restore", restore)
        };
        let by_time = scene.create(&past("by-time", "time", json!(time.to_string()))).await?;
        let by_revision = scene.create(&past("by-revision", "revision", json!(later.revision))).await?;
        by_time.settles(3).await?;
        holds(&by_time, &then).await?;
        by_revision.settles(3).await?;
        holds(&by_revision, &later).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_time_and_a_revision_of_the_past_come_back_on_3_5() -> Result<()> {
    goes_back("past_3_5", "3.5.35").await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_time_and_a_revision_of_the_past_come_back_on_3_6() -> Result<()> {
    goes_back("past_3_6", "3.6.16").await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_time_and_a_revision_of_the_past_come_back_on_3_7() -> Result<()> {
    goes_back("past_3_7", "3.7.3").await
}
