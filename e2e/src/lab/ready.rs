//! Tells whether parts of a lab are ready, by asking them. Changes nothing.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::wait::await_condition;

use super::daemon::Component;
use super::{Lab, LabError, NodeNumber};

/// How long a node may take until it is Ready, on a busy machine.
const NODE_TIMEOUT: Duration = Duration::from_mins(2);
/// For how long a node is watched by one watch: a heartbeat comes every two seconds, and the connection may be dead.
const WATCH_FOR: Duration = Duration::from_secs(20);
/// The pause before the next watch.
const WATCH_PAUSE: Duration = Duration::from_millis(300);
/// A probe gets an answer soon or none.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether something listens on a socket.
pub async fn listens(socket: &Path) -> bool {
    tokio::net::UnixStream::connect(socket).await.is_ok()
}

/// Whether the lab's etcd is healthy.
pub async fn etcd(lab: &Lab) -> bool {
    probe(lab, |_| async { tokio::net::TcpStream::connect("127.0.0.1:2379").await.is_ok() }).await
}

/// Whether the API server answers and says that it is ready.
pub async fn api_server(lab: &Lab) -> bool {
    probe(lab, |lab| async move {
        let Ok(client) = lab.client().await else { return false };
        let Ok(request) = http::Request::get("/readyz").body(vec![]) else { return false };
        client.request_text(request).await.is_ok_and(|answer| answer == "ok")
    })
    .await
}

async fn probe<F: Future<Output = bool>>(lab: &Lab, work: impl FnOnce(Lab) -> F + Send + 'static) -> bool {
    let probed = lab.inside(|lab| async { tokio::time::timeout(PROBE_TIMEOUT, work(lab)).await.unwrap_or(false) });
    probed.await.unwrap_or(false)
}

/// Waits until a node is Ready and takes pods, by a heartbeat not older than `since`: the last word of a kubelet that is
/// gone must not count.
pub async fn node(lab: &Lab, number: NodeNumber, since: Timestamp) -> Result<(), LabError> {
    let waiting = lab.inside(move |lab| async move {
        let name = number.to_string();
        let mut last = None;
        let wait = async {
            while let Err(error) = seen_ready(&lab, &name, since).await {
                last = Some(error);
                tokio::time::sleep(WATCH_PAUSE).await;
            }
        };
        if tokio::time::timeout(NODE_TIMEOUT, wait).await.is_ok() {
            return Ok(());
        }
        let mut log = lab.daemons.last_lines(Component::Kubelet(number));
        // A watch that broke is no reason to give up, but may be why nobody saw it.
        if let Some(error) = last {
            log = format!("{log}\nthe last watch that broke: {error:?}");
        }
        Err(LabError::NodeNotReady { node: number, limit: NODE_TIMEOUT, log })
    });
    waiting.await?
}

/// Watches a node until it is Ready; an error if the watch breaks or is silent.
async fn seen_ready(lab: &Lab, name: &str, since: Timestamp) -> Result<(), LabError> {
    let nodes: Api<Node> = Api::all(lab.client().await?);
    let wait = await_condition(nodes, name, move |node: Option<&Node>| node.is_some_and(|node| is_ready(node, since)));
    match tokio::time::timeout(WATCH_FOR, wait).await {
        Ok(seen) => seen.map(drop).map_err(LabError::kube("watch the nodes")),
        Err(silent) => Err(LabError::kube("hear of the node in time")(silent)),
    }
}

/// Whether a node says that it is ready, said so after `since`, and nothing keeps pods away.
pub fn is_ready(node: &Node, since: Timestamp) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    // A heartbeat has whole seconds.
    let fresh = |heartbeat: Timestamp| heartbeat.as_second() >= since.as_second();
    let ready = conditions.into_iter().any(|condition| {
        let heartbeat = condition.last_heartbeat_time.as_ref().is_some_and(|time| fresh(time.0));
        condition.type_ == "Ready" && condition.status == "True" && heartbeat
    });
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let kept_away = taints
        .into_iter()
        .any(|taint| ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].contains(&taint.key.as_str()));
    ready && !kept_away
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(status: &str, heartbeat: &str, taint: Option<&str>) -> Node {
        let taints: Vec<_> =
            taint.iter().map(|key| serde_json::json!({ "key": key, "effect": "NoSchedule" })).collect();
        let condition = serde_json::json!({ "type": "Ready", "status": status, "lastHeartbeatTime": heartbeat });
        serde_json::from_value(serde_json::json!({
            "metadata": {}, "spec": { "taints": taints }, "status": { "conditions": [condition] },
        }))
        .unwrap()
    }

    #[test]
    fn a_node_is_ready_by_a_fresh_heartbeat_only() {
        let since: Timestamp = "2026-01-01T00:00:10.5Z".parse().unwrap();
        assert!(is_ready(&node("True", "2026-01-01T00:00:10Z", None), since));
        assert!(!is_ready(&node("True", "2026-01-01T00:00:09Z", None), since));
        assert!(!is_ready(&node("False", "2026-01-01T00:00:11Z", None), since));
        assert!(!is_ready(&node("True", "2026-01-01T00:00:11Z", Some("node.kubernetes.io/not-ready")), since));
        assert!(is_ready(&node("True", "2026-01-01T00:00:11Z", Some("example.org/other")), since));
        assert!(!is_ready(&Node::default(), since));
    }
}
