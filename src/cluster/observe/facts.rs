//! Kubernetes objects cut down to what decisions and reports need, on arrival: whole objects of ten thousand clusters would
//! not fit into memory. Only reading; nothing here judges. Pods have files of their own.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use quorate_crds::names::{ANNOTATION_CLUSTER_UID, LABEL_CLUSTER};
use quorate_statemachine::{Home, Millis, NodeName, NodeSight, Uid};
use serde_json::Value;

use crate::ownership::owner_uid;

/// The taint by which a user declares that nothing runs on a node any more (KEP-2268).
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The label by which most volumes name their node.
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// The labels each of which one node has for itself, and by which a volume tells that it is there and nowhere else: that of
/// Kubernetes, and those of the drivers of local volumes (TopoLVM and before its move, LVM Storage of OpenShift, OpenEBS,
/// DirectPV, the hostpath driver). By any other label a volume may move, as within a zone.
const PLACE_LABELS: [&str; 7] = [
    HOSTNAME_LABEL,
    "topology.topolvm.io/node",
    "topology.topolvm.cybozu.com/node",
    "topology.lvms.io/node",
    "openebs.io/nodename",
    "directpv.min.io/node",
    "topology.hostpath.csi/node",
];

/// A member's claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    /// Its UID.
    pub uid: Uid,
    /// The UID of the EtcdCluster that it was made for.
    pub cluster_uid: Option<String>,
    /// The cluster that its label names, by which watches and lists find it.
    pub label: Option<String>,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// The PersistentVolume that it is bound to.
    pub volume_name: Option<String>,
    /// Kubernetes says that this is not there any more.
    pub volume_gone: bool,
    /// Its StorageClass, if it names one or a default was filled in.
    pub class: Option<String>,
    /// The size it asks for.
    pub requested: Option<String>,
}

impl ClaimFacts {
    /// What matters of a claim. `None` for one without a UID, which no API server sends.
    pub fn of(claim: &PersistentVolumeClaim) -> Option<Self> {
        let spec = claim.spec.as_ref();
        Some(Self {
            uid: Uid::new(claim.metadata.uid.as_deref()?),
            cluster_uid: claim.annotations().get(ANNOTATION_CLUSTER_UID).cloned(),
            label: claim.labels().get(LABEL_CLUSTER).cloned(),
            terminating: claim.metadata.deletion_timestamp.is_some(),
            volume_gone: claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost"),
            volume_name: spec.and_then(|s| s.volume_name.clone()).filter(|name| !name.is_empty()),
            class: spec.and_then(|s| s.storage_class_name.clone()).filter(|name| !name.is_empty()),
            requested: spec
                .and_then(|s| s.resources.as_ref())
                .and_then(|r| r.requests.as_ref())
                .and_then(|requests| requests.get("storage"))
                .map(|size| size.0.clone()),
        })
    }
}

/// A Secret of a cluster's: only that it is there, and in which version. What it holds stays in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFacts {
    /// The UID of the object that owns it.
    pub owner: Option<String>,
    /// Its version.
    pub version: String,
}

impl SecretFacts {
    /// What matters of a Secret, or of its metadata. `None` for one without a version, which no API server sends.
    pub fn of(secret: &impl ResourceExt) -> Option<Self> {
        Some(Self { owner: owner_uid(secret), version: secret.resource_version()? })
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Whether it is ready, or gone by declaration.
    pub sight: NodeSight,
    /// Its labels of those by which volumes tell that they are on one node only; they may differ from its name.
    pub places: BTreeMap<&'static str, String>,
    /// Whether its kubelet and its runtime mount images such that a program in them can be run.
    pub runs_from_images: bool,
    /// It takes no new pods, as before a drain.
    pub cordoned: bool,
}

/// The first kubelet whose image volumes can't be switched off (KEP-4639). No API server is older than its kubelets.
const IMAGE_VOLUME_KUBELET: (u32, u32) = (1, 36);
/// The first containerd that mounts images. Of other runtimes it is not known whether they let programs in them run.
const IMAGE_VOLUME_CONTAINERD: (u32, u32) = (2, 1);

/// Whether a program can be run from an image volume on such a node.
fn runs_from_images(node: &Node) -> bool {
    let Some(info) = node.status.as_ref().and_then(|status| status.node_info.as_ref()) else { return false };
    let kubelet = info.kubelet_version.strip_prefix('v').and_then(minor_version);
    let containerd = info.container_runtime_version.strip_prefix("containerd://").and_then(minor_version);
    info.operating_system == "linux"
        && kubelet.is_some_and(|version| version >= IMAGE_VOLUME_KUBELET)
        && containerd.is_some_and(|version| version >= IMAGE_VOLUME_CONTAINERD)
}

/// `1.36.3`, `2.4.2-rc.1+unknown`: major and minor.
fn minor_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

impl NodeFacts {
    /// What matters of a node. One that never reported is not ready since it was created.
    pub fn of(node: &Node) -> Self {
        let tainted_out = node
            .spec
            .as_ref()
            .and_then(|s| s.taints.as_ref())
            .is_some_and(|taints| taints.iter().any(|taint| taint.key == OUT_OF_SERVICE));
        let ready = node
            .status
            .as_ref()
            .and_then(|s| s.conditions.as_ref())
            .and_then(|conditions| conditions.iter().find(|c| c.type_ == "Ready"));
        let sight = match ready {
            _ if tainted_out => NodeSight::Gone,
            Some(ready) if ready.status == "True" => NodeSight::Ready,
            Some(ready) => {
                NodeSight::NotReady(ready.last_transition_time.as_ref().map(|t| millis(t.0)).unwrap_or_default())
            }
            None => {
                NodeSight::NotReady(node.metadata.creation_timestamp.as_ref().map(|t| millis(t.0)).unwrap_or_default())
            }
        };
        Self {
            sight,
            places: PLACE_LABELS
                .into_iter()
                .filter_map(|label| Some((label, node.labels().get(label)?.clone())))
                .collect(),
            runs_from_images: runs_from_images(node),
            cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
        }
    }
}

/// The one node on which a volume can be used, if it does not move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On several nodes.
    Anywhere,
    /// On the node with this value of this label.
    Label(&'static str, String),
    /// On the node of this name.
    Node(String),
}

impl Place {
    /// Where a PersistentVolume can be used. That seldom changes (KEP-5381, mutable node affinity).
    pub fn of(volume: &PersistentVolume) -> Self {
        let Some(required) =
            volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref())
        else {
            return Self::Anywhere;
        };
        // Terms are alternatives: more than one means more than one place.
        let [term] = required.node_selector_terms.as_slice() else { return Self::Anywhere };
        let by_label = PLACE_LABELS.into_iter().find_map(|label| {
            let required = term.match_expressions.iter().flatten().find(|r| r.key == label)?;
            Some(Self::Label(label, only_value(required)?))
        });
        let by_name = term.match_fields.iter().flatten().find(|r| r.key == "metadata.name").and_then(only_value);
        by_name.map(Self::Node).or(by_label).unwrap_or(Self::Anywhere)
    }

    /// The node it speaks of, by the nodes that are known. One that no node answers to is taken for a node's name: that
    /// node is gone.
    pub fn home<'a>(&self, nodes: impl IntoIterator<Item = (&'a NodeName, &'a NodeFacts)>) -> Home {
        match self {
            Self::Anywhere => Home::Anywhere,
            Self::Node(name) => Home::Node(NodeName::new(name)),
            Self::Label(label, value) => {
                let mut nodes = nodes.into_iter();
                let named = nodes.find(|(_, facts)| facts.places.get(label) == Some(value)).map(|(name, _)| name);
                Home::Node(named.cloned().unwrap_or_else(|| NodeName::new(value)))
            }
        }
    }
}

/// The value that a requirement asks for, if it takes that one alone.
fn only_value(requirement: &NodeSelectorRequirement) -> Option<String> {
    let [only] = requirement.values.as_deref()? else { return None };
    (requirement.operator == "In").then(|| only.clone())
}

/// A Service or a budget without what the API server and others keep in it.
pub fn furniture<K: ResourceExt + serde::Serialize + Clone>(object: &K) -> Option<Value> {
    let mut object = object.clone();
    object.managed_fields_mut().clear();
    let mut value = serde_json::to_value(object).ok()?;
    value.as_object_mut()?.remove("status");
    Some(value)
}

/// Kubernetes keeps no more of a time: what it gives back must be equal to what was written.
pub fn to_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A time as the state machine counts it; what lies before 1970 is zero.
pub fn millis(time: Timestamp) -> Millis {
    Millis(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(value: serde_json::Value) -> NodeFacts {
        NodeFacts::of(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_node_is_ready_not_ready_or_gone() {
        let with = |status: &str, taints: serde_json::Value| {
            node(json!({ "metadata": { "labels": { HOSTNAME_LABEL: "h1" } }, "spec": { "taints": taints },
                "status": { "conditions": [{ "type": "Ready", "status": status,
                    "lastTransitionTime": "1970-01-01T00:00:02Z" }] } }))
        };
        assert_eq!(with("True", json!([])).sight, NodeSight::Ready);
        assert_eq!(with("True", json!([])).places, [(HOSTNAME_LABEL, "h1".to_owned())].into());
        assert_eq!(with("Unknown", json!([])).sight, NodeSight::NotReady(Millis(2000)));
        let out = json!([{ "key": OUT_OF_SERVICE, "effect": "NoExecute" }]);
        assert_eq!(with("Unknown", out).sight, NodeSight::Gone);
        let never = node(json!({ "metadata": { "creationTimestamp": "1970-01-01T00:00:03Z" } }));
        assert_eq!(never.sight, NodeSight::NotReady(Millis(3000)));
    }

    #[test]
    fn a_cordoned_node_is_seen_to_be() {
        assert!(node(json!({ "spec": { "unschedulable": true } })).cordoned);
        assert!(!node(json!({ "spec": {} })).cordoned && !node(json!({})).cordoned);
    }

    #[test]
    fn only_a_node_that_surely_can_runs_programs_from_images() {
        let with = |kubelet: &str, runtime: &str| {
            let info = json!({ "kubeletVersion": kubelet, "containerRuntimeVersion": runtime, "operatingSystem": "linux",
                "architecture": "", "bootID": "", "kernelVersion": "", "kubeProxyVersion": "", "machineID": "",
                "osImage": "", "systemUUID": "" });
            node(json!({ "status": { "nodeInfo": info } })).runs_from_images
        };
        assert!(with("v1.36.0", "containerd://2.1.0"));
        assert!(with("v1.36.3-gke.100", "containerd://2.4.2+unknown"));
        assert!(with("v2.0.0", "containerd://3.0.0-rc.1"));
        assert!(!with("v1.35.9", "containerd://2.4.2"), "it can be switched off there");
        assert!(!with("v1.36.0", "containerd://2.0.9"));
        assert!(!with("v1.36.0", "cri-o://1.36.0"));
        assert!(!with("", "") && !with("v1", "containerd://x.y"));
        assert!(!node(json!({})).runs_from_images);
    }

    fn place(terms: &serde_json::Value) -> Place {
        Place::of(
            &serde_json::from_value(
                json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } } }),
            )
            .unwrap(),
        )
    }

    #[test]
    fn a_local_volume_is_at_home_on_its_node() {
        let on = |label: &str, values: serde_json::Value| json!({ "matchExpressions": [{ "key": label, "operator": "In", "values": values }] });
        assert_eq!(Place::of(&PersistentVolume::default()), Place::Anywhere);
        for label in PLACE_LABELS {
            assert_eq!(place(&json!([on(label, json!(["h1"]))])), Place::Label(label, "h1".into()));
            assert_eq!(place(&json!([on(label, json!(["h1", "h2"]))])), Place::Anywhere);
            assert_eq!(place(&json!([on(label, json!(["h1"])), on(label, json!(["h2"]))])), Place::Anywhere);
        }
        let of_any_node = json!([{ "matchExpressions": [{ "key": HOSTNAME_LABEL, "operator": "Exists" }] }]);
        assert_eq!(place(&of_any_node), Place::Anywhere);
        // A zone may have other nodes, now or later.
        assert_eq!(place(&json!([on("topology.kubernetes.io/zone", json!(["a"]))])), Place::Anywhere);
        let by_name = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }]);
        assert_eq!(place(&by_name), Place::Node("n1".into()));
    }

    #[test]
    fn a_label_leads_to_the_node_that_carries_it() {
        let places = [(HOSTNAME_LABEL, "h1".to_owned())].into();
        let facts = NodeFacts { sight: NodeSight::Ready, places, runs_from_images: true, cordoned: false };
        let name = NodeName::new("node-one");
        let home = |place: Place| place.home([(&name, &facts)]);
        assert_eq!(home(Place::Label(HOSTNAME_LABEL, "h1".into())), Home::Node(name.clone()));
        assert_eq!(home(Place::Label(HOSTNAME_LABEL, "h9".into())), Home::Node(NodeName::new("h9")));
        assert_eq!(home(Place::Label(PLACE_LABELS[1], "h1".into())), Home::Node(NodeName::new("h1")), "another label");
        assert_eq!(home(Place::Anywhere), Home::Anywhere);
    }
}
