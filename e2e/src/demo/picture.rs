//! One look at the demo's cluster, read from what `kubectl get -o json` printed. It keeps what the demo tells of.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use quorate_crds::{ConditionType, EtcdCluster, MemberHealth, MemberRole, Phase};
use serde_json::Value;

/// The cluster at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    object: EtcdCluster,
    pods: BTreeMap<String, String>,
}

impl Picture {
    /// Reads the printed list: one EtcdCluster and pods.
    pub fn read(text: &str) -> Result<Self> {
        let list: Value = serde_json::from_str(text).context("failed to read what kubectl printed")?;
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let object = items.iter().find(|item| item["kind"] == "EtcdCluster").context("there is no EtcdCluster")?;
        let object = serde_json::from_value(object.clone()).context("failed to read the EtcdCluster")?;
        let pods = items.iter().filter(|item| item["kind"] == "Pod").filter_map(|pod| {
            let metadata = &pod["metadata"];
            Some((metadata["name"].as_str()?.to_owned(), metadata["uid"].as_str()?.to_owned()))
        });
        Ok(Self { object, pods: pods.collect() })
    }

    /// The UID of a pod.
    pub fn pod(&self, name: &str) -> Option<&str> {
        self.pods.get(name).map(String::as_str)
    }

    /// The name of the leader.
    pub fn leader(&self) -> Option<&str> {
        self.object.status.as_ref()?.leader.as_deref()
    }

    /// The phase.
    pub fn phase(&self) -> Option<Phase> {
        self.object.status.as_ref()?.phase
    }

    /// The members' roles and whether each is healthy, by name.
    pub fn members(&self) -> BTreeMap<&str, (Option<MemberRole>, bool)> {
        let members = self.object.status.iter().flat_map(|status| &status.members);
        let told =
            members.map(|member| (member.name.as_str(), (member.role, member.health == Some(MemberHealth::Healthy))));
        told.collect()
    }

    /// The members' ids in etcd, by name.
    pub fn ids(&self) -> BTreeMap<String, String> {
        let members = self.object.status.iter().flat_map(|status| &status.members);
        members.filter_map(|member| Some((member.name.clone(), member.id.as_ref()?.to_string()))).collect()
    }

    /// Whether it is Ready, for the spec as it stands, with so many healthy voters and no other pod.
    pub fn is_settled(&self, voters: usize) -> bool {
        let Some(status) = &self.object.status else { return false };
        let ready = ConditionType::Ready.among(&status.conditions).is_some_and(|ready| ready.status == "True");
        let healthy = self.members().values().filter(|member| **member == (Some(MemberRole::Voter), true)).count();
        status.observed_generation == self.object.metadata.generation
            && ready
            && healthy == voters
            && self.members().len() == voters
            && self.pods.len() == voters
    }

    /// All of it in a line.
    pub fn summary(&self) -> String {
        let phase = self.phase().map_or("no phase", Phase::as_str);
        let members: Vec<_> = self
            .members()
            .iter()
            .map(|(name, (role, healthy))| format!("{name} {role:?} healthy: {healthy}"))
            .collect();
        let conditions = self.object.status.iter().flat_map(|status| &status.conditions);
        let messages: Vec<_> =
            conditions.map(|condition| format!("{}: {}", condition.reason, condition.message)).collect();
        format!("{phase}; {}; {}", members.join(", "), messages.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_kubectl_is_read() {
        let text = serde_json::json!({ "kind": "List", "items": [
            { "apiVersion": "quorate.dev/v1alpha1", "kind": "EtcdCluster", "metadata": { "name": "db", "generation": 2 }, "spec": {},
              "status": { "observedGeneration": 2, "phase": "Running", "leader": "db-0",
                "conditions": [{ "type": "Ready", "status": "True", "reason": "ClusterReady", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
                "members": [{ "name": "db-0", "id": "ab", "role": "Voter", "health": "Healthy" }] } },
            { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "db-0", "uid": "u" } },
        ] });
        let picture = Picture::read(&text.to_string()).unwrap();
        assert!(picture.is_settled(1) && !picture.is_settled(3));
        assert_eq!((picture.leader(), picture.pod("db-0")), (Some("db-0"), Some("u")));
        assert_eq!(picture.ids()["db-0"], "ab");
        assert!(Picture::read("{}").is_err());
    }
}
