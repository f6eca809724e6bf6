//! Has Kubernetes look again at once where it would wait before it does. Changes nothing but annotations that nobody reads.
//!
//! After a start that failed, for want of an image say, a kubelet writes the reason to the pod only when it looks at it again:
//! by itself after 10 to 15 s, at once when the pod changes (pkg/kubelet/pod_workers.go, backOffPeriod). It fails as well where
//! the API server has not heard yet on which node the pod is, and refuses that node its claim ("no relationship found": the
//! graph of plugin/pkg/auth/authorizer/node follows a watch of its own). And who publishes the addresses
//! of pods fails where two of them come at the same moment, and goes on by itself after a second or more, at once when the
//! Service changes (pkg/controller/endpointslice, onServiceUpdate).

use std::collections::BTreeSet;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use quorate_crds::names;
use quorate_statemachine::{Life, Millis, PodStage, Uid};
use serde_json::json;

use super::Actor;
use crate::cluster::observe::Observed;
use crate::cluster::observe::pods::PodFacts;
use crate::telemetry::chain;

/// How old a pod that is on a node may be without a word before its kubelet is urged: it is seen to be when it is looked at next
/// without haste. A start takes one to three seconds; one that is still pulling an image is not disturbed by a change of its pod.
const WORDLESS_MS: u64 = 3_000;

/// For which pods somebody has been urged: for each once.
#[derive(Debug, Default)]
pub struct Urged {
    /// Their kubelets.
    kubelets: BTreeSet<Uid>,
    /// Who publishes their addresses.
    publisher: BTreeSet<Uid>,
}

/// A pod, of a member or of a trial.
struct Watched<'a> {
    name: String,
    uid: &'a Uid,
    created: Millis,
    /// Its kubelet has not said a word about it.
    wordless: bool,
}

impl Actor {
    /// Urges the kubelets of pods that have not started and for no known reason, and who publishes addresses, where one is
    /// late. A failure is nobody's loss.
    pub async fn urge(&self, observed: &Observed, urged: &mut Urged) {
        if observed.world.wish.life != Life::Wanted {
            return;
        }
        let cluster = observed.cluster.name_any();
        let members = observed.pods.iter().map(|(serial, pod)| Watched {
            name: names::member(&cluster, serial.0),
            uid: &pod.uid,
            created: pod.created,
            wordless: is_wordless(pod),
        });
        let trials = observed.trials.iter().map(|(_, trial)| Watched {
            name: trial.name.clone(),
            uid: &trial.uid,
            created: trial.created,
            wordless: trial.wordless && !trial.terminating,
        });
        let due = urged.due(observed.world.now, &members.chain(trials).collect::<Vec<_>>());
        let namespace = observed.cluster.namespace().unwrap_or_default();
        let kubelets = due.iter().map(|(name, uid)| self.urge_kubelet_of(&namespace, name, uid));
        let publisher = self.urge_publisher(observed, urged.late(observed.endpoints.late()));
        // All at once: the round ends after them.
        tokio::join!(join_all(kubelets), publisher);
    }

    /// Touches the Service by which members are known, for the sake of this pod.
    async fn urge_publisher(&self, observed: &Observed, late: Option<Uid>) {
        let (name, namespace) = (observed.cluster.name_any(), observed.cluster.namespace().unwrap_or_default());
        let Some((pod, service)) = late.zip(observed.furniture.services.get(&name)) else { return };
        let annotations = json!({ names::ANNOTATION_URGED: pod.as_str() });
        let change = json!({ "metadata": { "uid": service["metadata"]["uid"], "annotations": annotations } });
        let done = self.kube.merge::<Service>(&namespace, &name, &change).await;
        tracing::debug!(service = name, error = done.err().map(|error| chain(&error)), "urged who publishes addresses");
    }

    async fn urge_kubelet_of(&self, namespace: &str, name: &str, uid: &Uid) {
        let change = json!({ "metadata": { "uid": uid.as_str(), "annotations": { names::ANNOTATION_URGED: "true" } } });
        let done = self.kube.merge::<Pod>(namespace, name, &change).await;
        tracing::debug!(pod = name, error = done.err().map(|error| chain(&error)), "urged the kubelet");
    }
}

impl Urged {
    /// Which pods are due now, by name. They are not due again; those that are gone are forgotten.
    fn due(&mut self, now: Millis, pods: &[Watched<'_>]) -> Vec<(String, Uid)> {
        self.kubelets.retain(|uid| pods.iter().any(|pod| pod.uid == uid));
        let due = pods.iter().filter(|pod| pod.wordless && now.since(pod.created) >= WORDLESS_MS);
        let due: Vec<_> = due.map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
        due.into_iter().filter(|(_, uid)| self.kubelets.insert(uid.clone())).collect()
    }

    /// One of the pods whose addresses are late, if there is any for which nobody was urged yet. All of them count as urged
    /// for then; those that are late no longer are forgotten.
    fn late<'u>(&mut self, late: impl Iterator<Item = &'u Uid>) -> Option<Uid> {
        let late: BTreeSet<Uid> = late.cloned().collect();
        let new = late.difference(&self.publisher).next().cloned();
        self.publisher = late;
        new
    }
}

fn is_wordless(pod: &PodFacts) -> bool {
    pod.stage == PodStage::Pending && pod.node.is_some() && pod.trouble.is_none() && !pod.leaving.leaves()
}

#[cfg(test)]
mod tests {
    use quorate_statemachine::Serial;

    use super::*;
    use crate::cluster::observe::pods::Leaving;
    use crate::cluster::report::fixture;

    #[test]
    fn a_pod_without_a_word_is_due_once() {
        let uid = Uid::new("p");
        let due = |urged: &mut Urged, age: u64| {
            let pod = Watched { name: "db-0".into(), uid: &uid, created: Millis(7), wordless: true };
            urged.due(Millis(7 + age), &[pod]).len()
        };
        let mut urged = Urged::default();
        assert_eq!(due(&mut urged, WORDLESS_MS - 1), 0, "it may be about to start");
        assert_eq!(due(&mut urged, WORDLESS_MS), 1);
        assert_eq!(due(&mut urged, WORDLESS_MS), 0, "it was urged");
        urged.due(Millis(0), &[]);
        assert!(urged.kubelets.is_empty(), "it is gone");
    }

    #[test]
    fn for_addresses_that_are_late_somebody_is_urged_once() {
        let (a, b) = (Uid::new("a"), Uid::new("b"));
        let mut urged = Urged::default();
        assert_eq!(urged.late([].into_iter()), None);
        assert_eq!(urged.late([&a, &b].into_iter()), Some(a.clone()), "for both");
        assert_eq!(urged.late([&a, &b].into_iter()), None);
        assert_eq!(urged.late([&b].into_iter()), None);
        assert_eq!(urged.late([&a, &b].into_iter()), Some(a.clone()), "it is another's by now");
    }

    #[test]
    fn a_pod_that_starts_or_is_not_on_a_node_has_nothing_to_say() {
        let mut pod = fixture::healthy().pods[&Serial(0)].clone();
        pod.stage = PodStage::Pending;
        assert!(is_wordless(&pod));
        for change in [
            |pod: &mut PodFacts| pod.stage = PodStage::Running,
            |pod: &mut PodFacts| pod.node = None,
            |pod: &mut PodFacts| pod.leaving = Leaving::InGrace,
        ] {
            let mut other = pod.clone();
            change(&mut other);
            assert!(!is_wordless(&other));
        }
    }
}
