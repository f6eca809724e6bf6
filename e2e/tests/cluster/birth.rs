//! Faults in the first moments of a member: killed before its log holds an entry, paused while it joins, never scheduled.
//! No cluster is stuck by them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use quorate_crds::MemberRole;
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::{nodes, processes};
use quorate_e2e::scene::{
    Cluster, EtcdProcess, PATIENCE, Scene, Stage, Wish, Writer, etcd_processes, play, play_side_by_side, stays,
    thorough, wait_for,
};
use rustix::process::Signal;
use serde_json::json;

/// So many clusters at a time have their tries.
const LANES: u32 = 2;

/// The numbers of the moments that are tried in a lane, of 50 or 2 in all: each at another part of the first 300 ms.
fn tries(lane: u32) -> impl Iterator<Item = u32> {
    let all = if thorough() { 50 } else { 2 };
    (lane..all).step_by(LANES as usize)
}

/// The one file of a young member's log, on its volume.
const LOG: &str = "data/member/wal/0000000000000000-0000000000000000.wal";
/// What the launcher says when it has deleted what a killed etcd left.
const WIPED: &str = "which held neither an entry nor a vote";

/// What the killed ones left.
#[derive(Default)]
struct Left {
    tries: Cell<u32>,
    /// Neither an entry nor a vote: no log either, or one with which etcd neither elects nor ends.
    nothing: Cell<u32>,
    /// Of those: such a log.
    dead_log: Cell<u32>,
}

impl Left {
    /// Counts what one left, of which somebody saw the log, and which is settled by now. Nobody can say it of a learner that
    /// was replaced.
    async fn count(&self, db: &Cluster, killed: &EtcdProcess, log: bool) -> Result<()> {
        let said = db.scene().kubectl(&["logs", killed.member(), "-c", "etcd"]).await?.out;
        let nothing = said.contains(WIPED);
        self.tries.update(|tries| tries + 1);
        self.nothing.update(|count| count + u32::from(nothing));
        self.dead_log.update(|count| count + u32::from(nothing && log));
        Ok(())
    }

    /// Tells what was counted. How long an etcd has a log without an entry depends on the machine and on the version, so that
    /// no number of tries is sure to hit that; the first of all moments is before there is a log.
    fn tell(&self, what: &str) -> Result<()> {
        let (tries, nothing, dead_log) = (self.tries.get(), self.nothing.get(), self.dead_log.get());
        eprintln!(
            "{what}: of {tries} killed {nothing} left neither an entry nor a vote, {dead_log} of them a log without one"
        );
        ensure!(!thorough() || nothing > 0, "none of {tries} was killed before its first entry: nothing was shown");
        Ok(())
    }
}

/// Whether one that was just killed has left a log. If its successor may have written that, nobody can tell: no.
async fn leaves_a_log(db: &Cluster, killed: &EtcdProcess) -> Result<bool> {
    let claim = db.claims().get(killed.member()).await.context("the member has no claim")?;
    let volume = claim.spec.and_then(|spec| spec.volume_name).context("the claim is not bound")?;
    let volumes: Api<PersistentVolume> = Api::all(db.scene().client().clone());
    let spec = volumes.get(&volume).await?.spec.context("the volume has no spec")?;
    let folder = spec.local.map(|local| local.path).context("the volume is no folder of this machine")?;
    let log = std::path::Path::new(&folder).join(LOG).exists();
    let running = etcd_processes(db.scene().namespace());
    Ok(log && running.iter().all(|process| process.member() != killed.member() || process == killed))
}

#[tokio::test]
async fn a_seed_killed_in_its_first_moments_starts_again() -> Result<()> {
    play("birth_seed", Stage::Shared, async |_| {
        let left = Left::default();
        play_side_by_side("birth_seed", LANES, async |lane, scene| {
            for number in tries(lane) {
                let moment = processes::moment(number);
                seed(scene, number, moment, &left)
                    .await
                    .with_context(|| format!("killed {moment:?} after its start"))?;
            }
            Ok(())
        })
        .await?;
        left.tell("birth_seed")
    })
    .await
}

async fn seed(scene: &Scene, number: u32, moment: Duration, left: &Left) -> Result<()> {
    let wish = Wish::new(&format!("seed{number}"), 1);
    let none = BTreeSet::new();
    let birth = processes::at_birth(scene, &none, moment, Signal::KILL);
    let (db, killed) = tokio::join!(scene.create(&wish), birth);
    let (db, killed) = (db?, killed?);
    let log = leaves_a_log(&db, &killed).await?;
    db.settles(1).await?;
    ensure!(
        db.identities().await?.contains_key(killed.member()),
        "another member than {} is the seed",
        killed.member()
    );
    left.count(&db, &killed, log).await?;
    db.put("hello", "world").await?;
    db.delete().await?;
    no_etcd(scene).await
}

/// The next try has to find its own birth.
async fn no_etcd(scene: &Scene) -> Result<()> {
    wait_for("the end of all members of the scene", PATIENCE, async || {
        let running = etcd_processes(scene.namespace());
        ensure!(running.is_empty(), "{running:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_learner_killed_in_its_first_moments_starts_again_or_is_replaced() -> Result<()> {
    play("birth_learner", Stage::Shared, async |_| {
        let left = Left::default();
        play_side_by_side("birth_learner", LANES, async |lane, scene| {
            let db = scene.create(&Wish::new("db", 1)).await?;
            db.settles(1).await?;
            db.put("hello", "world").await?;
            for number in tries(lane) {
                let moment = processes::moment(number);
                learner(scene, &db, moment, &left)
                    .await
                    .with_context(|| format!("killed {moment:?} after its start"))?;
            }
            db.reads("hello", "world").await
        })
        .await?;
        left.tell("birth_learner")
    })
    .await
}

async fn learner(scene: &Scene, db: &Cluster, moment: Duration, left: &Left) -> Result<()> {
    let known = etcd_processes(scene.namespace()).iter().map(|process| process.member().to_owned()).collect();
    let birth = processes::at_birth(scene, &known, moment, Signal::KILL);
    let (scaled, killed) = tokio::join!(db.scale(3), birth);
    scaled?;
    let killed = killed?;
    let log = leaves_a_log(db, &killed).await?;
    db.settles(3).await.with_context(|| format!("it was {}", killed.member()))?;
    left.count(db, &killed, log).await?;
    db.scale(1).await?;
    db.settles(1).await.map(drop)
}

#[tokio::test]
async fn pods_that_no_node_takes_do_not_hold_up_the_others() -> Result<()> {
    play("birth_unschedulable", Stage::Shared, async |scene| {
        // Five members that may not share a node, on a cluster with fewer nodes than that.
        let wish = Wish::new("db", 5).with("/scheduling/antiAffinity", json!("Required"));
        let nodes = scene.kubectl(&["get", "nodes", "-o", "name"]).await?.well()?.lines().count();
        ensure!(nodes < 5, "the cluster has {nodes} nodes");
        let db = scene.create(&wish).await?;
        db.until("the members that have a node to be voters, and the others to say why not", PATIENCE, |view| {
            let members = view.status().members;
            let voters = members.iter().filter(|member| member.role == Some(MemberRole::Voter)).count();
            ensure!(voters == nodes, "{voters} voters on {nodes} nodes");
            let told = members.iter().any(|member| member.reason.as_deref() == Some("Unschedulable"));
            ensure!(told, "no member says that no node takes it");
            Ok(())
        })
        .await?;
        db.put("hello", "world").await?;
        let odd = if nodes % 2 == 1 { nodes } else { nodes - 1 };
        db.scale(u8::try_from(odd)?).await?;
        db.settles(odd).await?;
        db.reads("hello", "world").await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn one_of_three_that_no_node_takes_does_not_hold_up_the_second() -> Result<()> {
    play("birth_one_of_three", Stage::Alone, async |scene| {
        let nodes = scene.kubectl(&["get", "nodes", "-o", "name"]).await?.well()?;
        let (node, others) = nodes.trim().split_once('\n').context("there is one node only")?;
        ensure!(others.lines().count() == 2, "there are other than three nodes");
        let node = node.trim_start_matches("node/").to_owned();
        let wish = Wish::new("db", 3).with("/scheduling/antiAffinity", json!("Required"));
        let cordoned = nodes::cordoned_during(scene, &node, async || {
            scene.kubectl(&["cordon", &node]).await?.well()?;
            let db = scene.create(&wish).await?;
            let view = db
                .until("the two that have a node to be voters", PATIENCE, |view| {
                    let voters =
                        view.status().members.into_iter().filter(|member| member.role == Some(MemberRole::Voter));
                    ensure!(voters.count() == 2, "{}", view.summary());
                    Ok(())
                })
                .await?;
            let told = view.status().members.iter().any(|member| member.reason.as_deref() == Some("Unschedulable"));
            ensure!(told, "no member says that no node takes it");
            db.put("hello", "world").await?;
            Ok(db)
        });
        let db = cordoned.await?;
        db.settles(3).await?;
        db.reads("hello", "world").await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_learner_whose_node_stands_still_while_it_joins_does_not_stop_the_cluster() -> Result<()> {
    play("birth_frozen_node", Stage::Alone, async |scene| {
        let wish = Wish::new("db", 1).with("/scheduling/antiAffinity", json!("Required"));
        let db = scene.create(&wish).await?;
        db.settles(1).await?;
        let leads = Operator::new(scene.client()).leader().await?.spec.and_then(|spec| spec.node_name);
        let writer = Writer::start(&db, "w").await?;
        db.scale(3).await?;
        // The first newcomer that is beside neither the seed nor the operator that leads.
        let (name, node) = wait_for("a newcomer on a node of its own", PATIENCE, async || {
            let view = db.view().await?;
            let taken = [view.node("db-0"), leads.as_deref()];
            let mut placed = view.pods.keys().filter_map(|name| Some((name.as_str(), view.node(name)?)));
            let (name, node) = placed.find(|(_, node)| !taken.contains(&Some(*node))).context("none yet")?;
            Ok((name.to_owned(), node.to_owned()))
        })
        .await?;
        // It stands still from its birth: what has not caught up is not promoted, so it is still a learner when its node
        // stands still. From start to vote it takes a few tenths of a second, which no look would hit for sure.
        let others = ["db-0", "db-1", "db-2"].map(str::to_owned).into_iter().filter(|other| *other != name).collect();
        let born = processes::at_birth(scene, &others, Duration::ZERO, Signal::STOP).await?;
        let frozen = async {
            ensure!(born.member() == name, "{} was born, not {name}", born.member());
            ensure!(votes(&db, &name).await? == Some(false), "{name} is no learner at its birth");
            nodes::frozen_during(scene, &node, async || {
                serves(&writer, Duration::from_secs(10)).await?;
                // By now it may have been given up.
                ensure!(votes(&db, &name).await? != Some(true), "{name} votes, and its node stands still");
                Ok(())
            })
            .await
        }
        .await;
        processes::thaw(&born);
        frozen?;
        db.settles(3).await?;
        was_served(&db, writer).await
    })
    .await
}

/// Whether a member votes; `None` if etcd does not list it. Before it has started it is listed without a name.
async fn votes(db: &Cluster, name: &str) -> Result<Option<bool>> {
    let membership = db.answers().await?;
    Ok(membership.members.values().find(|member| member.host == name).map(|member| !member.learner))
}

/// Writes go on for as long as `span`; how long none was acknowledged is judged in the end.
async fn serves(writer: &Writer, span: Duration) -> Result<()> {
    stays("the cluster's service", span, async || writer.writes(1).await).await
}

/// Demands that the writer was served all the while, and that nothing of what was acknowledged is lost.
async fn was_served(db: &Cluster, writer: Writer) -> Result<()> {
    let written = writer.stop().await?;
    written.check(db).await?;
    written.was_never_long_without()
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_learner_paused_while_it_joins_does_not_stop_the_cluster() -> Result<()> {
    play("birth_paused_learner", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let known = etcd_processes(scene.namespace()).iter().map(|process| process.member().to_owned()).collect();
        let writer = Writer::start(&db, "w").await?;
        // 3.5 adds one learner at a time, and promotes it some 300 ms after it was born: with it paused then, one of two
        // voters would be left.
        let birth = processes::at_birth(scene, &known, processes::FIRST_MOMENTS / 3, Signal::STOP);
        let (scaled, frozen) = tokio::join!(db.scale(3), birth);
        scaled?;
        let frozen = frozen?;
        let outcome = async {
            // It serves all the while: a paused learner has no vote.
            serves(&writer, Duration::from_secs(3)).await?;
            // Never thawed before the cluster is whole without it: given up and replaced under a new name.
            let membership = db.settles(3).await?;
            ensure!(!membership.members.contains_key(frozen.member()), "{} is still a member", frozen.member());
            Ok(())
        }
        .await;
        processes::thaw(&frozen);
        outcome?;
        db.settles(3).await?;
        was_served(&db, writer).await
    })
    .await
}
