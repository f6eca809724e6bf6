//! Compute resources of the etcd container. The amounts are passed on; what they mean is Kubernetes' business.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::rules_at;

/// What a member asks for if nothing is said: as much as kubeadm does for its own etcd (`GetEtcdPodSpec` in
/// `cmd/kubeadm/app/phases/etcd/local.go`). A pod that asks for nothing is starved and evicted before all others.
const USUAL: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "100Mi")];

/// Compute resources of each member's etcd container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.resources"))]
pub struct Resources {
    /// What the scheduler sets aside for each member, by resource name (`cpu`, `memory`, ...).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 4))]
    pub requests: BTreeMap<String, Quantity>,
    /// What each member may use at most, by resource name. A memory limit must hold the whole database: etcd maps it
    /// into memory.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 4))]
    pub limits: BTreeMap<String, Quantity>,
}

impl Resources {
    /// What a spec has that says nothing of them. One that says anything has that and no more, and `{}` is nothing.
    pub fn usual() -> Self {
        let requests = USUAL.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into();
        Self { requests, limits: BTreeMap::new() }
    }
}

impl From<Resources> for ResourceRequirements {
    fn from(Resources { requests, limits }: Resources) -> Self {
        let some = |map: BTreeMap<_, _>| (!map.is_empty()).then_some(map);
        Self { requests: some(requests), limits: some(limits), claims: None }
    }
}
