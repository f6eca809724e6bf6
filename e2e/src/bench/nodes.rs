//! The row of a node that is gone for good: its Node object is deleted while its cable is out. By hand for the floor: the
//! member is removed, and a new one joins on another node. Times come from the stopwatch.

use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::DeleteParams;

use super::raw::Raw;
use super::report::Measured;
use super::rows::{create_wish, delete, label};
use super::stopwatch::{Up, in_turn, pods, until, until_up};
use crate::faults::nodes;
use crate::faults::operator::Operator;
use crate::scene::{Membership, Scene, Wish};

/// From the deletion of the Node to three healthy voters on the nodes that are left.
pub async fn lost(scene: &Scene, runs: u32) -> Result<Measured> {
    let floor = async |run: u32| {
        let raw = Raw::new(scene, &format!("raw{run}"), 3);
        raw.create().await?;
        let lost = Victim::choose(scene, &raw.label(), &raw.membership().await?).await?;
        let took = lost
            .without_its_node(scene, async |started| {
                raw.replace(&lost.name).await?;
                Ok(started.elapsed().as_secs_f64())
            })
            .await?;
        raw.delete().await?;
        Ok(took)
    };
    let value = async |run: u32| {
        let db = create_wish(scene, &Wish::new(&format!("db{run}"), 3)).await?;
        let members = db.settles(3).await?;
        let lost = Victim::choose(scene, &label(&db), &members).await?;
        let took = lost
            .without_its_node(scene, async |started| {
                let old = [lost.uid.clone()].into();
                let took = until_up((scene, &label(&db)), started, 3, &old, Up::Voting).await?;
                db.settles_without(&lost.name, 3).await?;
                Ok(took)
            })
            .await?;
        db.settles(3).await?;
        delete(&db).await?;
        Ok(took)
    };
    Box::pin(in_turn(runs, floor, value)).await
}

/// A follower whose node runs no other member and not the leading operator.
struct Victim {
    name: String,
    uid: String,
    node: String,
}

impl Victim {
    async fn choose(scene: &Scene, label: &str, members: &Membership) -> Result<Self> {
        let operator = node_of(&Operator::new(scene.client()).leader().await?)?.to_owned();
        let leader = members.leader()?;
        let pods = pods(scene, label).await?;
        for pod in &pods {
            let name = pod.metadata.name.clone().context("a pod without a name")?;
            let node = node_of(pod)?;
            let shared = pods.iter().filter(|other| node_of(other).is_ok_and(|of| of == node)).count() > 1;
            if name != leader && node != operator && !shared {
                let uid = pod.metadata.uid.clone().context("a pod without a UID")?;
                return Ok(Self { name, uid, node: node.to_owned() });
            }
        }
        bail!("no follower has a node of its own, without the leading operator")
    }

    /// Runs `body` from the deletion of the Node, which is cut off and known to be not ready before; afterwards it is back.
    async fn without_its_node<T>(&self, scene: &Scene, body: impl AsyncFnOnce(Instant) -> Result<T>) -> Result<T> {
        let nodes: Api<Node> = Api::all(scene.client().clone());
        nodes::cut_off_during(scene, &self.node, async || {
            until("the node to be known as not ready", Instant::now(), async || {
                let status = nodes.get(&self.node).await?.status.unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
                ensure!(!ready, "it is Ready");
                Ok(())
            })
            .await?;
            let started = Instant::now();
            nodes.delete(&self.node, &DeleteParams::default()).await.context("failed to delete the Node")?;
            body(started).await
        })
        .await
    }
}

/// The node of a pod.
pub fn node_of(pod: &Pod) -> Result<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).context("a pod without a node")
}
