//! Where a member's pod may run, in the scheduler's terms.

use k8s_openapi::api::core::v1::{
    Affinity, PodAffinityTerm, PodAntiAffinity, Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use quorate_crds::{AntiAffinity, TopologySpread};

use super::Cluster;

/// The label that tells nodes apart.
const NODE_LABEL: &str = "kubernetes.io/hostname";

/// The taints on a node that is lost. Members tolerate them without limit: by default Kubernetes deletes a pod after
/// five minutes on such a node, but what becomes of a member there is for the operator to decide.
const LOST_NODE_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// How members of one cluster keep off each other's nodes.
pub(super) fn affinity(cluster: &Cluster<'_>) -> Option<Affinity> {
    let term = PodAffinityTerm {
        label_selector: Some(cluster.label_selector()),
        topology_key: NODE_LABEL.to_owned(),
        ..PodAffinityTerm::default()
    };
    let apart = match cluster.spec.scheduling.anti_affinity {
        AntiAffinity::Preferred => PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: term,
            }]),
            required_during_scheduling_ignored_during_execution: None,
        },
        AntiAffinity::Required => PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: None,
            required_during_scheduling_ignored_during_execution: Some(vec![term]),
        },
        AntiAffinity::None => return None,
    };
    Some(Affinity { node_affinity: None, pod_affinity: None, pod_anti_affinity: Some(apart) })
}

/// What members tolerate: lost nodes, and what the user says.
pub(super) fn tolerations(cluster: &Cluster<'_>) -> Vec<Toleration> {
    let lost = LOST_NODE_TAINTS.map(|taint| Toleration {
        key: Some(taint.to_owned()),
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        value: None,
        toleration_seconds: None,
    });
    lost.into_iter().chain(cluster.spec.scheduling.tolerations.iter().cloned()).collect()
}

/// How members spread over failure domains.
pub(super) fn spread(cluster: &Cluster<'_>) -> Option<Vec<TopologySpreadConstraint>> {
    let constraints = &cluster.spec.scheduling.topology_spread_constraints;
    let rendered = |constraint: &TopologySpread| {
        let TopologySpread { topology_key, max_skew, when_unsatisfiable } = constraint;
        TopologySpreadConstraint {
            topology_key: topology_key.clone(),
            max_skew: *max_skew,
            when_unsatisfiable: when_unsatisfiable.as_str().to_owned(),
            label_selector: Some(cluster.label_selector()),
            ..TopologySpreadConstraint::default()
        }
    };
    (!constraints.is_empty()).then(|| constraints.iter().map(rendered).collect())
}

#[cfg(test)]
mod tests {
    use quorate_crds::{Scheduling, WhenUnsatisfiable};
    use serde_json::{json, to_value};

    use super::super::fixture;
    use super::*;

    fn with<T>(change: impl FnOnce(&mut Scheduling), render: impl FnOnce(&Cluster<'_>) -> T) -> T {
        let spec = fixture::spec(|spec| change(&mut spec.scheduling));
        render(&fixture::cluster(&spec))
    }

    #[test]
    fn members_keep_apart_as_the_spec_says() {
        let term = json!({
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "etcd", "quorate.dev/cluster": "db"}},
            "topologyKey": "kubernetes.io/hostname",
        });
        let rendered = |variant| to_value(with(|s| s.anti_affinity = variant, affinity)).unwrap();
        assert_eq!(
            rendered(AntiAffinity::Preferred),
            json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}})
        );
        assert_eq!(
            rendered(AntiAffinity::Required),
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
        );
        assert_eq!(rendered(AntiAffinity::None), json!(null));
    }

    #[test]
    fn lost_nodes_are_tolerated_without_limit_beside_what_the_user_says() {
        let own = Toleration { key: Some("db".into()), operator: Some("Exists".into()), ..Toleration::default() };
        let rendered = to_value(with(|s| s.tolerations = vec![own], tolerations)).unwrap();
        assert_eq!(
            rendered,
            json!([
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
                {"key": "db", "operator": "Exists"},
            ])
        );
    }

    #[test]
    fn domains_are_spread_over_by_the_clusters_own_pods() {
        assert_eq!(with(|_| (), spread), None);
        let zones = TopologySpread {
            topology_key: "topology.kubernetes.io/zone".into(),
            max_skew: 2,
            when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        };
        let rendered = to_value(with(|s| s.topology_spread_constraints = vec![zones], spread)).unwrap();
        assert_eq!(
            rendered,
            json!([{
                "topologyKey": "topology.kubernetes.io/zone",
                "maxSkew": 2,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "etcd", "quorate.dev/cluster": "db"}},
            }])
        );
    }
}
