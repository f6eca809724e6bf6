//! The kind EtcdCluster: what the user asks for. Its status and ledger are in files of their own.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{self, Structural, rules_at};
use crate::{
    Bootstrap, ClientService, ContinuousBackup, EtcdClusterStatus, EtcdSettings, Resources, Scheduling, Storage, Tls,
};

/// What the user asks for.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "quorate.dev",
    version = "v1alpha1",
    kind = "EtcdCluster",
    namespaced,
    status = "EtcdClusterStatus",
    derive = "PartialEq",
    doc = "A cluster of etcd members that Quorate creates, scales and heals.",
    shortname = "etcd",
    category = "quorate",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.version",
        description = "The lowest version that a member runs"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".spec.replicas",
        description = "How many members are asked for"
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.readyReplicas",
        description = "How many members are voters and healthy"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "What Quorate is doing"),
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Available\")].status",
        description = "Whether the cluster serves reads and writes"
    ),
    printcolumn(
        name = "Leader",
        type_ = "string",
        json_path = ".status.leader",
        priority = 1,
        description = "The member that leads"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1,
        description = "Why the cluster is, or is not, as asked for"
    ),
    printcolumn(
        name = "Backup",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"BackupHealthy\")].reason",
        priority = 1,
        description = "How the continuous backup is, or that there is none"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = schema::cluster_name_starts_with_a_letter(),
    validation = schema::cluster_name_leaves_room()
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec"), transform = Structural)]
pub struct EtcdClusterSpec {
    /// How many voting members: 1, 3, 5 or 7. 0 hibernates the cluster: no pods, every volume kept, and back with all
    /// data when it is raised again.
    #[schemars(transform = rules_at("spec.replicas"))]
    pub replicas: i32,
    /// The version of etcd, as `X.Y.Z`, of the lines 3.5 (from 3.5.32), 3.6 (from 3.6.11) and 3.7. Another one is gone to
    /// member by member and one minor version a step; `status.version` shows what runs. See docs/upgrades.md.
    #[schemars(length(max = 16), transform = rules_at("spec.version"))]
    pub version: String,
    /// The container image of etcd.
    pub image: Image,
    /// Where each member keeps its data.
    pub storage: Storage,
    /// How connections are encrypted. On by default.
    pub tls: Tls,
    /// Settings of etcd itself.
    pub etcd: EtcdSettings,
    /// Compute resources of each member's etcd container. If it is left out, each member asks for 100m of CPU and 100Mi of
    /// memory, as kubeadm's etcd does; `{}` asks for nothing.
    pub resources: Resources,
    /// Where the cluster's pods may run.
    pub scheduling: Scheduling,
    /// The Service through which clients reach the cluster.
    pub service: ClientService,
    /// Keep hands off: while true, Quorate writes nothing for this cluster but its status. Members that run go on
    /// running, and nothing is healed. A deletion still completes.
    pub paused: bool,
    /// A continuous backup. Without it there is none; an EtcdBackup can be taken all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<ContinuousBackup>,
    /// What the cluster begins with, if not with nothing. It is read once, and can't be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
}

impl Default for EtcdClusterSpec {
    fn default() -> Self {
        Self {
            replicas: 3,
            version: "3.6.16".into(),
            image: Image::default(),
            storage: Storage::default(),
            tls: Tls::default(),
            etcd: EtcdSettings::default(),
            resources: Resources::usual(),
            scheduling: Scheduling::default(),
            service: ClientService::default(),
            paused: false,
            backup: None,
            bootstrap: None,
        }
    }
}

impl EtcdClusterSpec {
    /// The full reference of etcd's image.
    pub fn image_reference(&self) -> String {
        let Image { repository, tag, pull_policy: _, pull_secrets: _ } = &self.image;
        match tag {
            Some(tag) => format!("{repository}:{tag}"),
            None => format!("{repository}:v{}", self.version),
        }
    }
}

/// The container image of etcd. It must hold the official binary at `/usr/local/bin/etcd`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.image"))]
pub struct Image {
    /// The repository, without tag or digest.
    #[schemars(length(min = 1, max = 255))]
    pub repository: String,
    /// The tag, which may end in a digest: `v3.6.16@sha256:...`. Unset: `v` and `spec.version`. It must hold the
    /// version that `spec.version` names; a member whose binary differs is not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub tag: Option<String>,
    /// When the kubelet pulls the image.
    pub pull_policy: PullPolicy,
    /// Secrets of the cluster's namespace that hold the registry's credentials.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pull_secrets: Vec<LocalSecret>,
}

impl Default for Image {
    fn default() -> Self {
        Self {
            repository: "quay.io/coreos/etcd".into(),
            tag: None,
            pull_policy: PullPolicy::default(),
            pull_secrets: Vec::new(),
        }
    }
}

/// When the kubelet pulls an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// When the node doesn't have it.
    #[default]
    IfNotPresent,
    /// At each start of a container.
    Always,
    /// Never: it has to be on the node.
    Never,
}

impl PullPolicy {
    /// The value that Kubernetes knows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

/// The name of a Secret in the cluster's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalSecret {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}
