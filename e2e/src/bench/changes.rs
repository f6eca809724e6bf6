//! The rows of changes that go from member to member: another version, other settings. By hand for the floor, member after
//! member, each awaited before the next; with Quorate for the value. Times come from the stopwatch.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use quorate_crds::Phase;
use serde_json::json;

use super::raw::Raw;
use super::report::Measured;
use super::rows::{create_wish, delete, label};
use super::stopwatch::{Members, Up, in_turn, pods, uids, until, until_up};
use crate::scene::{Cluster, Scene, Wish, Writer};

/// A step from one minor to the next, on clusters of their own each run: until all three are Ready voters on the new
/// version.
pub async fn upgrade(scene: &Scene, runs: u32, from: &'static str, to: &'static str) -> Result<Measured> {
    let floor = async |run: u32| {
        let raw = Raw::new(scene, &format!("raw{run}"), 3).version(from);
        raw.create().await?;
        let started = Instant::now();
        for name in raw.names() {
            raw.change_version(&name, to).await?;
        }
        let took = runs_all(scene, &raw.label(), to, started).await?;
        raw.delete().await?;
        Ok(took)
    };
    in_turn(runs, floor, async |run| upgraded(scene, run, from, to).await).await
}

/// The way over two minors, on a cluster on which nobody writes: its logs are cut before the second, as it began with 3.5. By hand
/// that would need etcd's downgrade call, which a floor of image changes does not make: so there is none.
pub async fn upgrade_over_two(scene: &Scene, runs: u32, from: &str, to: &str) -> Result<Measured> {
    let mut measured = Measured::default();
    for run in 0..runs {
        let took = upgraded(scene, run, from, to).await?;
        eprintln!("  run {}: {took:.2} s", run + 1);
        measured.value.push(took);
    }
    Ok(measured)
}

/// How long a cluster of its own takes from one version to another.
async fn upgraded(scene: &Scene, run: u32, from: &str, to: &str) -> Result<f64> {
    let db = create_wish(scene, &Wish::new(&format!("db{run}"), 3).version(from)).await?;
    db.settles(3).await?;
    let started = Instant::now();
    db.patch(json!({ "spec": { "version": to } })).await?;
    let took = runs_all(scene, &label(&db), to, started).await?;
    db.settles(3).await?;
    delete(&db).await?;
    Ok(took)
}

async fn runs_all(scene: &Scene, label: &str, version: &str, started: Instant) -> Result<f64> {
    let mut members = Members::open((scene, label), 3, &BTreeSet::new(), Up::Ready).await?;
    until("all members to run the new version", started, async || {
        for pod in members.pods() {
            super::stopwatch::runs(&pod, version)?;
        }
        members.are_up().await
    })
    .await
}

/// The longest time without an acknowledged write on the whole way, as a client sees it that soon asks the next member.
pub async fn write_gap(scene: &Scene, runs: u32, from: &str, to: &str) -> Result<Measured> {
    let mut measured = Measured::default();
    for run in 0..runs {
        let db = create_wish(scene, &Wish::new(&format!("db{run}"), 3).version(from)).await?;
        db.settles(3).await?;
        let writer = Writer::start_hasty(&db, "w").await?;
        db.patch(json!({ "spec": { "version": to } })).await?;
        arrives(&db, to).await?;
        let written = writer.stop().await?;
        written.check(&db).await?;
        let gap = written.longest_gap.as_secs_f64();
        eprintln!("  run {}: {gap:.2} s, {} writes", run + 1, written.acknowledged);
        measured.value.push(gap);
        delete(&db).await?;
    }
    Ok(measured)
}

async fn arrives(db: &Cluster, version: &str) -> Result<()> {
    until("the end of the way", Instant::now(), async || {
        let view = db.view().await?;
        let there = view.is_current() && view.phase() == Some(Phase::Running);
        ensure!(there && view.status().version.as_deref() == Some(version), "{}", view.summary());
        Ok(())
    })
    .await
    .map(drop)
}

/// Other settings, for which each pod is replaced on its volume: until all three are healthy voters in new pods.
pub async fn rolling_restart(scene: &Scene, runs: u32) -> Result<Measured> {
    let raw = Raw::new(scene, "raw", 3);
    raw.create().await?;
    let db = create_wish(scene, &Wish::new("db", 3)).await?;
    db.settles(3).await?;
    let floor = async |_| {
        let started = Instant::now();
        for name in raw.names() {
            raw.restart(&name).await?;
        }
        Ok(started.elapsed().as_secs_f64())
    };
    let value = async |run: u32| {
        let old = uids(&pods(scene, &label(&db)).await?);
        let started = Instant::now();
        let etcd = json!({ "snapshotCount": 5000 + run });
        db.patch(json!({ "spec": { "etcd": etcd } })).await.context("failed to change the settings")?;
        let took = until_up((scene, &label(&db)), started, 3, &old, Up::Voting).await?;
        db.settles(3).await?;
        Ok(took)
    };
    in_turn(runs, floor, value).await
}
