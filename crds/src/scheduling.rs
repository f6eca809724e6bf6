//! Where member pods may run. Only what Kubernetes' scheduler is told; no placement is decided here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::schema::rules_at;

/// Where the cluster's pods may run. A change applies to pods that are created after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.scheduling"))]
pub struct Scheduling {
    /// Labels that a node must carry to run a member.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that members tolerate, besides `node.kubernetes.io/not-ready` and `node.kubernetes.io/unreachable`, which
    /// they always tolerate without limit: a member's volume stays with its node, and the operator decides when a
    /// member on a lost node is replaced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), transform = bounded)]
    pub tolerations: Vec<Toleration>,
    /// Whether two members may share a node. `Preferred`: avoid it. `Required`: never; a member without a node of its
    /// own stays Pending. `None`: no preference.
    pub anti_affinity: AntiAffinity,
    /// How members are spread over failure domains, such as zones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["topologyKey"]))]
    pub topology_spread_constraints: Vec<TopologySpread>,
    /// The PriorityClass of member pods. It must exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
}

/// Whether two members of one cluster may share a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AntiAffinity {
    /// Avoid it where possible.
    #[default]
    Preferred,
    /// Never.
    Required,
    /// No preference.
    None,
}

/// One rule for spreading members over failure domains. It counts the pods of this cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// The node label whose values are the domains, e.g. `topology.kubernetes.io/zone`.
    #[schemars(length(min = 1, max = 316))]
    pub topology_key: String,
    /// By how many members two domains may differ.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 7))]
    pub max_skew: i32,
    /// What to do with a member that would break the rule: `ScheduleAnyway` or `DoNotSchedule`.
    #[serde(default)]
    pub when_unsatisfiable: WhenUnsatisfiable,
}

/// What to do with a member that fits no domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenUnsatisfiable {
    /// Place it all the same, in the least loaded domain.
    #[default]
    ScheduleAnyway,
    /// Leave it Pending.
    DoNotSchedule,
}

impl WhenUnsatisfiable {
    /// The value that Kubernetes knows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ScheduleAnyway => "ScheduleAnyway",
            Self::DoNotSchedule => "DoNotSchedule",
        }
    }
}

/// Kubernetes sets no length, and without one a rule that reads the text costs more than it may.
fn bounded(tolerations: &mut Schema) {
    for (field, longest) in [("key", 317), ("value", 63)] {
        if let Some(text) = tolerations.pointer_mut(&format!("/items/properties/{field}")) {
            text["maxLength"] = json!(longest);
        }
    }
}

const fn one() -> i32 {
    1
}
