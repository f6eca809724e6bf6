//! The PodDisruptionBudget: how many voters an eviction has to leave. Which number is right is the plan's business.

use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
        util::intstr::IntOrString,
    },
};
use quorate_crds::names;

use super::Cluster;

/// The budget that leaves at least `min_available` voters. A number, not a share: `maxUnavailable` is counted from the
/// wished replicas, and in the middle of a scale-down from five to three it let a drain evict three of five.
pub fn budget(cluster: &Cluster<'_>, min_available: u8) -> PodDisruptionBudget {
    let voters = LabelSelectorRequirement {
        key: names::LABEL_ROLE.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![names::ROLE_RETURNING.to_owned(), names::ROLE_VOTER.to_owned()]),
    };
    PodDisruptionBudget {
        metadata: cluster.owned(cluster.name.to_owned()),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(i32::from(min_available))),
            max_unavailable: None,
            selector: Some(LabelSelector {
                match_labels: Some(cluster.selector()),
                match_expressions: Some(vec![voters]),
            }),
            // A voter that is not ready is evicted only while enough others are: it may hold what a quorum needs.
            unhealthy_pod_eviction_policy: Some("IfHealthyBudget".into()),
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::super::fixture;
    use super::*;

    #[test]
    fn it_counts_voters_and_says_a_number() {
        let spec = fixture::spec(|_| ());
        let budget = to_value(budget(&fixture::cluster(&spec), 2)).unwrap();
        assert_eq!(
            budget["spec"],
            json!({
                "minAvailable": 2,
                "selector": {
                    "matchLabels": {"app.kubernetes.io/name": "etcd", "quorate.dev/cluster": "db"},
                    "matchExpressions": [{"key": "quorate.dev/role", "operator": "In", "values": ["returning-voter", "voter"]}],
                },
                "unhealthyPodEvictionPolicy": "IfHealthyBudget",
            })
        );
        assert_eq!(budget["metadata"]["name"], "db");
        assert_eq!(budget["metadata"]["ownerReferences"][0]["uid"], "0b54c1d2");
    }
}
