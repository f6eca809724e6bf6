//! One look at a cluster through the Kubernetes API: its object, pods and claims. It reads what was fetched; it fetches
//! and judges nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use quorate_crds::{ConditionType, EtcdCluster, EtcdClusterStatus, Phase};

/// What the API server holds of one cluster.
#[derive(Clone, Debug)]
pub struct View {
    /// The EtcdCluster.
    pub object: EtcdCluster,
    /// Its pods, by name.
    pub pods: BTreeMap<String, Pod>,
    /// Its claims, by name.
    pub claims: BTreeMap<String, PersistentVolumeClaim>,
}

impl View {
    /// The status; an empty one if there is none yet.
    pub fn status(&self) -> EtcdClusterStatus {
        self.object.status.clone().unwrap_or_default()
    }

    /// The phase, if the operator has said one.
    pub fn phase(&self) -> Option<Phase> {
        self.object.status.as_ref().and_then(|status| status.phase)
    }

    /// The condition of this type.
    pub fn condition(&self, of: ConditionType) -> Option<&Condition> {
        let conditions = self.object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        of.among(conditions)
    }

    /// Whether a condition is True *now*: for this generation of the spec.
    pub fn is(&self, of: ConditionType) -> bool {
        self.is_current() && self.condition(of).is_some_and(|condition| condition.status == "True")
    }

    /// Whether the operator has seen this generation of the spec.
    pub fn is_current(&self) -> bool {
        let observed = self.object.status.as_ref().and_then(|status| status.observed_generation);
        observed.is_some() && observed == self.object.metadata.generation
    }

    /// The IP of a pod, if it has one and is not on its way out.
    pub fn address(&self, pod: &str) -> Option<String> {
        self.pods.get(pod).and_then(address)
    }

    /// The addresses of all pods, by name.
    pub fn addresses(&self) -> BTreeMap<String, String> {
        self.pods.iter().filter_map(|(name, pod)| Some((name.clone(), address(pod)?))).collect()
    }

    /// The node of a pod.
    pub fn node(&self, pod: &str) -> Option<&str> {
        self.pods.get(pod)?.spec.as_ref()?.node_name.as_deref()
    }

    /// The UID of a claim.
    pub fn volume(&self, claim: &str) -> Option<&str> {
        self.claims.get(claim)?.metadata.uid.as_deref()
    }

    /// All that the status says, in one line for messages.
    pub fn summary(&self) -> String {
        let status = self.status();
        let phase = status.phase.map_or("none", Phase::as_str);
        let conditions: Vec<_> = status
            .conditions
            .iter()
            .filter(|condition| condition.type_ != ConditionType::Available.as_str())
            .map(|condition| {
                format!("{}={} ({}: {})", condition.type_, condition.status, condition.reason, condition.message)
            })
            .collect();
        let members: Vec<_> = status
            .members
            .iter()
            .map(|member| {
                let reason = member.reason.as_deref().unwrap_or("-");
                format!("{} {:?} {:?} {reason}", member.name, member.role, member.health)
            })
            .collect();
        let current = if self.is_current() { "" } else { ", of an older generation" };
        format!(
            "phase {phase}{current}, {} ready of {}; {}; members [{}]",
            status.ready_replicas,
            self.object.spec.replicas,
            conditions.join(", "),
            members.join("; ")
        )
    }
}

/// Whether the kubelet calls a pod Ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn address(pod: &Pod) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    pod.status.as_ref()?.pod_ip.clone()
}
