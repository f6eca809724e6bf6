//! The past of a cluster as a user gets it back: from one continuous backup, new clusters that begin with the state at a time
//! and after a revision, neither of them the newest, on each minor; and on later minors than the one that was backed up.

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, DeleteOptions, LeaseGrantOptions, PutOptions};
use k8s_openapi::jiff::Timestamp;
use quorate_e2e::faults::processes;
use quorate_e2e::scene::{Cluster, Gateway, Held, PATIENCE, Stage, Wish, Writer, play};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::archive::{agent, begin_with, is_healthy, leader, records, sidecar, states, wish};
use crate::restore::{holds, says};
use crate::upgrade::{V3_5, V3_7, goes_to};

/// How many keys are written.
const KEYS: u32 = 30;
/// The size of another one's value, which etcd takes only where it is told to: 3 MiB.
const LARGE: usize = 3 << 20;
/// What is told so.
const MOST: usize = 4 << 20;
/// A lease that has keys at the first moment and is gone at the second.
const LEASE: i64 = 77;
/// For how many seconds it is granted: not what a lease gets of which nothing is known.
const GRANTED: i64 = 1_800;
/// A key on a lease of which nobody learned.
const LEASED: &str = "leased";

/// What the cluster holds now, once all of it is in the store.
pub async fn recorded(db: &Cluster) -> Result<Held> {
    let contents = db.contents().await?;
    records(db, &leader(db).await?, contents.0, PATIENCE).await?;
    db.held(contents).await
}

/// Keys of a few versions, some of them on a lease.
async fn first(db: &Cluster) -> Result<()> {
    db.ask_patiently(async |etcd| {
        etcd.lease_grant(GRANTED, Some(LeaseGrantOptions::new().with_id(LEASE))).await?;
        for key in 0..KEYS {
            let lease = (key % 10 == 0).then(|| PutOptions::new().with_lease(LEASE));
            etcd.put(format!("key/{key:02}"), "first", lease).await?;
            etcd.put(format!("counter/{}", key % 3), key.to_string(), None).await?;
        }
        etcd.put("large", vec![b'l'; LARGE], None).await?;
        Ok(())
    })
    .await
}

/// The lease goes and its keys with it, others are deleted or written over, some for the second time in their lives.
async fn second(db: &Cluster) -> Result<()> {
    db.ask_patiently(async |etcd| {
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

/// This cluster with large values.
fn with_large(wish: Wish) -> Wish {
    wish.with("/etcd/extraFlags", json!({ "max-request-bytes": MOST.to_string() }))
}

async fn goes_back(name: &str, version: &'static str) -> Result<()> {
    play(name, Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, with_large(wish(&gateway)).version(version)).await?;
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
            with_large(Wish::new(name, 3)).version(version).with("/bootstrap/restore", restore)
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
async fn what_3_5_had_comes_back_on_later_minors_and_nothing_on_an_earlier_one() -> Result<()> {
    play("past_later", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, with_large(wish(&gateway)).version("3.5.35")).await?;
        first(&db).await?;
        let held = recorded(&db).await?;
        let lineage = is_healthy(&db, true).await?.lineage;
        db.delete().await?;
        let restored = |name: &str, version: &str, lineage: &str| {
            let restore = json!({ "store": gateway.store("s3"), "lineage": lineage });
            with_large(Wish::new(name, 3)).version(version).with("/bootstrap/restore", restore)
        };
        for version in ["3.7.3", "3.6.16"] {
            let later = restored("later", version, &lineage);
            let later = scene.create(&later).await?;
            later.settles(3).await?;
            holds(&later, &held).await?;
            later.delete().await?;
        }
        // Of 3.6 there is a record now, which 3.5 can't read.
        let newer = begin_with(scene, with_large(wish(&gateway)).version("3.6.16")).await?;
        first(&newer).await?;
        recorded(&newer).await?;
        let lineage = is_healthy(&newer, true).await?.lineage;
        newer.delete().await?;
        let earlier = scene.create(&restored("earlier", "3.5.35", &lineage)).await?;
        says(&earlier, "RestoreFailed", "3.6.16", PATIENCE).await
    })
    .await
}

/// An archive goes on while the cluster goes from 3.5 to 3.7 and is written to: what was before restores onto 3.5, all of it
/// onto 3.7.
#[tokio::test]
#[ignore = "make e2e"]
async fn what_was_written_before_and_during_an_upgrade_comes_back() -> Result<()> {
    play("past_upgraded", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, with_large(wish(&gateway)).version(V3_5)).await?;
        first(&db).await?;
        let before = recorded(&db).await?;
        let writer = Writer::start(&db, "during").await?;
        writer.writes(20).await?;
        goes_to(&db, V3_7).await?;
        writer.writes(20).await?;
        writer.stop().await?.check(&db).await?;
        let after = recorded(&db).await?;
        let lineage = is_healthy(&db, true).await?.lineage;
        db.delete().await?;
        let listed = agent(scene, &gateway.store("s3"), &["list", &format!("--lineage={lineage}")]).await?;
        eprintln!("{listed}");
        let states = states(&listed);
        ensure!(!states.is_empty() && states.iter().all(|state| *state == Some("whole")), "{listed}");
        for (version, held) in [(V3_5, before), (V3_7, after)] {
            let restore = json!({ "store": gateway.store("s3"), "lineage": lineage, "revision": held.revision });
            let wish = with_large(Wish::new("restored", 3)).version(version).with("/bootstrap/restore", restore);
            let restored = scene.create(&wish).await?;
            restored.settles(3).await?;
            holds(&restored, &held).await?;
            restored.delete().await?;
        }
        Ok(())
    })
    .await
}

/// A lease that was granted, had a key, and was revoked while no archive looked: etcd's history has the key and no more, and
/// would panic at a put that keeps a lease which is not there.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_lease_of_which_nobody_learned_comes_back_and_can_be_kept() -> Result<()> {
    play("past_lease", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, wish(&gateway)).await?;
        let leads = leader(&db).await?;
        let mut sidecars = Vec::new();
        for member in db.voters_doors().await?.keys() {
            sidecars.push(sidecar(&db, member).await?);
        }
        sidecars.iter().try_for_each(|pid| processes::signal(*pid, Signal::STOP))?;
        let revision = db.ask_patiently(async |etcd| lives_shortly(etcd).await).await;
        sidecars.iter().try_for_each(|pid| processes::signal(*pid, Signal::CONT))?;
        let revision = revision?;
        records(&db, &leads, revision + 1, PATIENCE).await?;
        let lineage = is_healthy(&db, true).await?.lineage;
        db.delete().await?;

        let restore = json!({ "store": gateway.store("s3"), "lineage": lineage, "revision": revision });
        let restored = scene.create(&Wish::new("restored", 3).with("/bootstrap/restore", restore)).await?;
        restored.settles(3).await?;
        restored.reads(LEASED, "first").await?;
        for value in ["second", "third"] {
            restored.ask_patiently(async |etcd| keeps_lease(etcd, value).await).await?;
            restored.reads(LEASED, value).await?;
        }
        let leads = leader(&restored).await?;
        processes::kill_member(scene, &leads).await?;
        restored.settles(3).await?;
        restored.reads(LEASED, "third").await?;
        restored.hashes_agree().await.map(drop)
    })
    .await
}

/// Grants a lease, puts a key on it and revokes it; the revision of the put.
async fn lives_shortly(etcd: &mut Client) -> Result<i64> {
    etcd.lease_grant(GRANTED, Some(LeaseGrantOptions::new().with_id(LEASE))).await?;
    let put = etcd.put(LEASED, "first", Some(PutOptions::new().with_lease(LEASE))).await?;
    etcd.lease_revoke(LEASE).await?;
    Ok(put.header().context("an answer without a header")?.revision())
}

/// Writes the key and demands that it stays on the lease.
async fn keeps_lease(etcd: &mut Client, value: &str) -> Result<()> {
    etcd.put(LEASED, value, Some(PutOptions::new().with_ignore_lease())).await?;
    let read = etcd.get(LEASED, None).await?;
    let lease = read.kvs().first().context("the key is not there")?.lease();
    ensure!(lease == LEASE, "it is on the lease {lease}");
    let granted = etcd.lease_time_to_live(LEASE, None).await?.granted_ttl();
    eprintln!("the lease came back with {granted} s, of {GRANTED}");
    ensure!(granted > 0, "there is no such lease");
    Ok(())
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
