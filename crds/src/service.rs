//! The Service through which clients reach the cluster. The headless Service of the members is not the user's to change.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::rules_at;

/// The Service `<name>-client`, which leads to the members that are ready, on port 2379.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.service"))]
pub struct ClientService {
    /// `ClusterIP`: reachable inside the Kubernetes cluster. `NodePort`: also on a port of each node. `LoadBalancer`:
    /// also through a load balancer of the provider.
    #[serde(rename = "type")]
    pub type_: ServiceType,
    /// Annotations for the Service, e.g. for the provider of the load balancer.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 8192}))]
    pub annotations: BTreeMap<String, String>,
    /// The port on each node, for the types NodePort and LoadBalancer. Unset: Kubernetes picks one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
}

/// How far the client Service reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Inside the Kubernetes cluster.
    #[default]
    ClusterIP,
    /// A port of each node as well.
    NodePort,
    /// A load balancer of the provider as well.
    LoadBalancer,
}

impl ServiceType {
    /// The value that Kubernetes knows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}
