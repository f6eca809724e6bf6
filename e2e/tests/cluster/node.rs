//! Nodes cut off, stopped, gone for good and drained: no identity ever runs twice (every scene watches that), and quorum
//! is never given away.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quorate_crds::Phase;
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::{nodes, pods as of_pods, processes};
use quorate_e2e::lab::NETWORK_STORAGE_CLASS;
use quorate_e2e::scene::{
    Cluster, EtcdProcess, LAB_VARIABLE, PATIENCE, Scene, Stage, View, Wish, Writer, Written, etcd_processes, play,
    stays, wait_for,
};
use serde_json::json;

use crate::kill::MembershipCalls;
use crate::roll::{self, pods};

/// How soon a node is Ready once its cable is in again: its kubelet tells every 2 s how it is, and first has to find out that
/// its connection is dead.
const NODE_SECONDS: Duration = Duration::from_secs(30);
/// How soon a member is as before once its node is Ready again and its connections work. These may take as long again as the cut
/// lasted: TCP doubles its pauses before it sends once more what nobody has confirmed (RFC 6298, 5.5), and etcd writes to a peer
/// into a buffer, so that it does not notice.
const SECONDS: Duration = Duration::from_secs(15);
/// How often the process table is looked at: the fastest restart of an etcd takes several times as long.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The taint by which a user says that nothing runs on a node any more.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";

/// A node that runs exactly one member, and that member: not the operator that leads, if there is such a one.
async fn victim(scene: &Scene, db: &Cluster) -> Result<(String, String)> {
    let view = db.view().await?;
    let mut by_node: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in view.pods.keys() {
        by_node.entry(view.node(name).context("a pod without a node")?.to_owned()).or_default().push(name.clone());
    }
    let leader = Operator::new(scene.client()).leader().await?;
    let leads = leader.spec.and_then(|spec| spec.node_name).unwrap_or_default();
    let mut single: Vec<_> = by_node.into_iter().filter(|(_, members)| members.len() == 1).collect();
    single.sort_by_key(|(node, _)| *node == leads);
    let (node, mut members) = single.into_iter().next().context("no node runs exactly one member")?;
    Ok((node, members.remove(0)))
}

/// Waits until the status says that this member's node can't be reached.
async fn says_unreachable(db: &Cluster, name: &str) -> Result<()> {
    db.until("the status to say that the node is unreachable", PATIENCE, |view| {
        let status = view.status();
        let member = status.members.iter().find(|member| member.name == name);
        let reason = member.and_then(|member| member.reason.as_deref());
        ensure!(reason == Some("NodeUnreachable"), "the reason of {name} is {reason:?}");
        Ok(())
    })
    .await
    .map(drop)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_node_cut_off_and_healed_keeps_its_member() -> Result<()> {
    play("node_cut_off", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let before = db.identities().await?;
        let writer = Writer::start(&db, "w").await?;
        let (node, name) = victim(scene, &db).await?;
        let begun = Instant::now();
        let cut = nodes::cut_off_during(scene, &node, async || {
            says_unreachable(&db, &name).await?;
            // Its etcd still runs: nothing may be started under its name, and nobody takes its place.
            stays("the member's only life", Duration::from_secs(5), async || {
                let lives: Vec<_> =
                    etcd_processes(scene.namespace()).into_iter().filter(|process| process.member() == name).collect();
                ensure!(lives.len() == 1, "it runs as {lives:?}");
                Ok(())
            })
            .await?;
            writer.writes(50).await?;
            db.is_the_same_as(&before).await?;
            // Nothing is between this and the cable.
            Ok(Instant::now())
        });
        let healed = cut.await?;
        let lasted = healed.duration_since(begun);
        let node_took = healed.elapsed();
        db.settles_within(3, SECONDS + lasted).await?;
        let took = healed.elapsed();
        eprintln!(
            "node_cut_off: cut off for {:.1} s, {node} was Ready {:.1} s after its cable was in, and every member served {:.1} s \
             after that",
            lasted.as_secs_f64(),
            node_took.as_secs_f64(),
            took.saturating_sub(node_took).as_secs_f64()
        );
        ensure!(node_took <= NODE_SECONDS, "{node} took {:.1} s", node_took.as_secs_f64());
        ensure!(took <= NODE_SECONDS + SECONDS + lasted, "the whole took {:.1} s", took.as_secs_f64());
        db.is_the_same_as(&before).await?;
        roll::judge_loss(scene.name(), &writer.stop().await?, &db).await
    })
    .await
}

/// How a user says of a node that it is off for good.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OffForGood {
    /// The Node is deleted; its kubelet would register it anew.
    Deleted,
    /// The Node stays, with a taint that is to be taken off when it is back.
    Tainted,
}

impl OffForGood {
    async fn say(self, scene: &Scene, node: &str) -> Result<()> {
        let call = match self {
            Self::Deleted => ["delete", "node", node].to_vec(),
            Self::Tainted => ["taint", "node", node, OUT_OF_SERVICE].to_vec(),
        };
        scene.kubectl(&call).await?.well().map(drop)
    }

    async fn take_back(self, scene: &Scene, node: &str) -> Result<()> {
        match self {
            Self::Deleted => Ok(()),
            Self::Tainted => {
                let taint = format!("{OUT_OF_SERVICE}-");
                scene.kubectl(&["taint", "node", node, &taint]).await?.well().map(drop)
            }
        }
    }
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_whose_node_is_gone_for_good_is_replaced_under_a_new_name() -> Result<()> {
    is_replaced("node_gone", OffForGood::Deleted).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_whose_node_is_out_of_service_is_replaced_under_a_new_name() -> Result<()> {
    is_replaced("node_out_of_service", OffForGood::Tainted).await
}

async fn is_replaced(name: &str, off: OffForGood) -> Result<()> {
    play(name, Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let before = db.settles(3).await?;
        let writer = Writer::start(&db, "w").await?;
        let (node, name) = victim(scene, &db).await?;
        let gone = nodes::cut_off_during(scene, &node, async || {
            says_unreachable(&db, &name).await?;
            off.say(scene, &node).await?;
            let now = db.settles_without(&name, 3).await?;
            ensure!(now.cluster == before.cluster, "it is another cluster");
            Ok(())
        });
        let gone = gone.await;
        // However that ended: the scenes after this one need the node.
        let taken_back = off.take_back(scene, &node).await;
        gone?;
        taken_back?;
        // The node comes back, and registers anew if it has to; what still ran there finds that it was removed, and ends.
        let ended = wait_for("the removed member's process to end", PATIENCE, async || {
            let running = etcd_processes(scene.namespace());
            ensure!(running.iter().all(|process| process.member() != name), "{name} runs");
            Ok(())
        });
        ended.await?;
        db.settles(3).await?;
        roll::judge_loss(scene.name(), &writer.stop().await?, &db).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_node_stopped_and_started_keeps_its_member() -> Result<()> {
    play("node_stopped", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let before = db.identities().await?;
        let writer = Writer::start(&db, "w").await?;
        let (node, name) = victim(scene, &db).await?;
        let stopped = nodes::stopped_during(scene, &node, async || {
            says_unreachable(&db, &name).await?;
            writer.writes(50).await
        });
        stopped.await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        roll::judge_loss(scene.name(), &writer.stop().await?, &db).await
    })
    .await
}

/// The members whose etcd can take part in raft now.
fn live_members(scene: &Scene) -> BTreeSet<String> {
    let live = etcd_processes(scene.namespace()).into_iter().filter(EtcdProcess::has_database);
    live.map(|process| process.member().to_owned()).collect()
}

/// Runs `body` and demands that at every look a majority of the voters lives, and that there were looks at the fault, which
/// is `under_way` from the moment that the body sets there. What was seen between two member lists is judged if both have
/// the same voters: one that is being removed ends, and is no voter any more.
async fn a_majority_lives_during(
    db: &Cluster,
    under_way: &Cell<bool>,
    body: impl Future<Output = Result<()>>,
) -> Result<()> {
    let (finished, looks) = (Cell::new(false), RefCell::new(Vec::new()));
    let acts = async {
        let acted = body.await;
        finished.set(true);
        acted
    };
    let looking = async {
        while !finished.get() {
            looks.borrow_mut().push((under_way.get(), live_members(db.scene())));
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    let judging = async {
        let (mut before, mut due, mut judged, mut at_fault) = (BTreeSet::new(), Vec::new(), 0, 0);
        while !finished.get() {
            tokio::time::sleep(LOOK_INTERVAL).await;
            due.append(&mut looks.take());
            // Without an answer what is seen meanwhile is judged at the next one.
            let Ok(membership) = db.membership().await else { continue };
            let voters: BTreeSet<String> = membership.voters().into_iter().map(str::to_owned).collect();
            let seen = std::mem::take(&mut due);
            if voters == before {
                judged += seen.len();
                for (under_way, live) in &seen {
                    at_fault += usize::from(*under_way);
                    let count = live.intersection(&voters).count();
                    ensure!(count * 2 > voters.len(), "only {live:?} lived, and the voters are {voters:?}");
                }
            }
            before = voters;
        }
        Ok((judged, at_fault))
    };
    let (acted, (), judged) = tokio::join!(acts, looking, judging);
    let (judged, at_fault) = judged?;
    acted?;
    ensure!(
        at_fault > 0,
        "from the fault on the voters were never the same for two looks; {judged} were judged before"
    );
    eprintln!("at {judged} looks a majority of the voters lived, at {at_fault} of them from the fault on");
    Ok(())
}

/// Drains a node, and demands that the eviction of this pod of the scene was asked for: other pods are there as well. What
/// a budget holds back makes the drain give up in time; that is not a fault.
pub async fn evicts(scene: &Scene, node: &str, pod: &str) -> Result<()> {
    let drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=15s"];
    let said = scene.kubectl(&drain).await?;
    eprintln!("kubectl drain: {}", said.err.lines().last().unwrap_or_default());
    let evicting = format!("evicting pod {}/{pod}", scene.namespace());
    let asked_for = said.out.lines().chain(said.err.lines()).any(|line| line == evicting);
    ensure!(asked_for, "there is no {evicting:?} in what {} printed: {}{}", said.line, said.out, said.err);
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_drain_in_the_middle_of_five_to_three_never_costs_quorum() -> Result<()> {
    play("node_drain", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 5)).await?;
        db.settles(5).await?;
        let writer = Writer::start_hasty(&db, "w").await?;
        let view = db.view().await?;
        // Those with the highest serials are to go, if all are well: the first one is a voter that is to stay.
        let kept = view.pods.keys().next().context("there are no pods")?;
        let node = view.node(kept).context("a pod without a node")?.to_owned();
        let draining = Cell::new(false);
        let drained = nodes::cordoned_during(scene, &node, async || {
            db.scale(3).await?;
            let in_the_middle = |view: &View| {
                ensure!(view.phase() == Some(Phase::Scaling), "the phase is {:?}", view.phase());
                Ok(())
            };
            db.until("the cluster to shrink", PATIENCE, in_the_middle).await?;
            draining.set(true);
            evicts(scene, &node, kept).await?;
            writer.writes(50).await
        });
        a_majority_lives_during(&db, &draining, drained).await?;
        db.settles(3).await?;
        let written = writer.stop().await?;
        roll::tell(scene.name(), &written);
        written.check(&db).await?;
        written.was_never_long_without()
    })
    .await
}

/// A pod that is deleted by force where no kubelet hears of it is gone while its process goes on: found by a chaos run.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_voter_that_outlives_its_pod_is_not_removed_while_another_is_down() -> Result<()> {
    play("node_outlived", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 5)).await?;
        db.settles(5).await?;
        let before = db.membership().await?;
        let voters: BTreeSet<String> = before.voters().into_iter().map(str::to_owned).collect();
        let view = db.view().await?;
        // Fewer members: among those that are not well the one with the highest serial goes first.
        let outlives = voters.last().context("there are no voters")?.clone();
        let node = view.node(&outlives).context("a pod without a node")?.to_owned();
        let elsewhere = |name: &&String| view.node(name) != Some(node.as_str());
        let leader = before.leader()?;
        let down = voters.iter().filter(elsewhere).find(|name| *name != leader).context("all are on one node")?;
        nodes::without_kubelet_during(scene, &node, async || {
            let frozen = processes::freeze_member(scene, down).await?;
            let held = async {
                db.scale(3).await?;
                of_pods::delete_by_force(&db, &[&outlives]).await?;
                stays(
                    "all five voters, with the process of one whose pod is gone",
                    Duration::from_secs(6),
                    async || {
                        let live = live_members(scene);
                        ensure!(live.contains(&outlives), "only {live:?} live");
                        let now = db.membership().await?;
                        let now: BTreeSet<String> = now.voters().into_iter().map(str::to_owned).collect();
                        ensure!(now == voters, "the voters are {now:?}");
                        Ok(())
                    },
                )
                .await
            };
            let held = held.await;
            processes::thaw(&frozen);
            held
        })
        .await?;
        db.settles(3).await.map(drop)
    })
    .await
}

/// Drains the node of the leader of so many members, on volumes that every node can use, and demands that who was there
/// is the same member on another node while this one takes no pods. Returns what was written all the while.
async fn moves(scene: &Scene, members: u8) -> Result<Written> {
    ensure!(std::env::var_os(LAB_VARIABLE).is_some(), "only the local cluster has such volumes for us");
    let wish = Wish::new("db", members).with("/storage/storageClassName", json!(NETWORK_STORAGE_CLASS));
    let db = scene.create(&wish).await?;
    let leader = db.settles(members.into()).await?.leader()?.to_owned();
    let (identities, calls) = (db.identities().await?, MembershipCalls::so_far(&db).await?);
    let before = db.view().await?;
    let drained = before.node(&leader).context("the leader has no node")?;
    let writer = Writer::start_hasty(&db, "w").await?;
    writer.writes(50).await?;
    nodes::cordoned_during(scene, drained, async || {
        evicts(scene, drained, &leader).await?;
        let is_left = |view: &View| {
            let there: Vec<_> = view.pods.keys().filter(|pod| view.node(pod) == Some(drained)).collect();
            ensure!(there.is_empty(), "{there:?} are on {drained}");
            Ok(())
        };
        db.until("the drained node to be left", PATIENCE, is_left).await?;
        db.settles(members.into()).await?;
        writer.writes(50).await
    })
    .await?;
    db.settles(members.into()).await?;
    let written = writer.stop().await?;
    roll::tell(scene.name(), &written);
    db.is_the_same_as(&identities).await?;
    calls.are_all(&db).await?;
    // Whoever was elsewhere was left alone, and nobody went back.
    let after = db.view().await?;
    let pods_after = pods(&after);
    for (name, uid) in &pods(&before) {
        let (on, on_now) = (before.node(name), after.node(name));
        let (was_there, stayed) = (on == Some(drained), pods_after.get(name) == Some(uid));
        ensure!(
            was_there != stayed && on_now != Some(drained),
            "the pod of {name} was on {on:?}, is on {on_now:?}, the same: {stayed}; {drained} was drained"
        );
    }
    written.check(&db).await?;
    Ok(written)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_moves_off_a_drained_node_if_its_volume_can() -> Result<()> {
    play("node_drain_moves", Stage::Alone, async |scene| roll::hardly_failed(&moves(scene, 3).await?)).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn the_only_member_moves_off_a_drained_node_if_its_volume_can() -> Result<()> {
    // Nobody serves until it is back: how soon that is, is not asked here.
    play("node_drain_moves_one", Stage::Alone, async |scene| moves(scene, 1).await.map(drop)).await
}
