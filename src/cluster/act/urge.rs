//! Makes kubelets say what keeps a pod from running. After a start that failed, for want of an image say, a kubelet
//! writes the reason to the pod only when it looks at it again: by itself after 10 to 15 s, at once when the pod changes
//! (pkg/kubelet/pod_workers.go, backOffPeriod). Changes nothing but an annotation that nobody reads.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use quorate_crds::names;
use quorate_statemachine::{Life, Millis, PodStage, Serial, Uid};
use serde_json::json;

use super::Actor;
use crate::cluster::observe::Observed;
use crate::cluster::observe::facts::PodFacts;

/// How long a pod may be on its node without a word before its kubelet is urged. A start takes one to three seconds; one
/// that is still pulling an image is not disturbed by a change of its pod.
const WORDLESS_MS: u64 = 5_000;

/// The pods whose kubelets have been urged: each is once.
#[derive(Debug, Default)]
pub struct Urged(BTreeSet<Uid>);

impl Actor {
    /// Urges the kubelets of pods that have not started and for no known reason. A failure is nobody's loss.
    pub async fn urge(&self, observed: &Observed, urged: &mut Urged) {
        if observed.world.wish.life != Life::Wanted {
            return;
        }
        for (serial, uid) in urged.due(observed.world.now, observed.pods.iter()) {
            let change =
                json!({ "metadata": { "uid": uid.as_str(), "annotations": { names::ANNOTATION_URGED: "true" } } });
            let namespace = observed.cluster.namespace().unwrap_or_default();
            let name = names::member(&observed.cluster.name_any(), serial.0);
            let done = self.kube.merge::<Pod>(&namespace, &name, &change).await;
            tracing::debug!(pod = name, error = done.err().map(tracing::field::display), "urged the kubelet");
        }
    }
}

impl Urged {
    /// Which pods are due now. They are not due again; those that are gone are forgotten.
    fn due<'a>(
        &mut self,
        now: Millis,
        pods: impl Iterator<Item = (&'a Serial, &'a PodFacts)> + Clone,
    ) -> Vec<(Serial, Uid)> {
        self.0.retain(|uid| pods.clone().any(|(_, pod)| pod.uid == *uid));
        let wordless = pods.filter(|(_, pod)| is_wordless(pod) && now.since(pod.created) >= WORDLESS_MS);
        let due: Vec<_> = wordless.map(|(serial, pod)| (*serial, pod.uid.clone())).collect();
        due.into_iter().filter(|(_, uid)| self.0.insert(uid.clone())).collect()
    }
}

fn is_wordless(pod: &PodFacts) -> bool {
    pod.stage == PodStage::Pending && pod.node.is_some() && pod.trouble.is_none() && !pod.terminating
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::report::fixture;

    #[test]
    fn a_pod_without_a_word_is_due_once() {
        let pods = fixture::healthy().pods;
        let mut pod = pods[&Serial(0)].clone();
        pod.stage = PodStage::Pending;
        let serial = Serial(0);
        let due = |urged: &mut Urged, pod: &PodFacts, age: u64| {
            let now = Millis(pod.created.0 + age);
            urged.due(now, [(&serial, pod)].into_iter()).len()
        };
        let mut urged = Urged::default();
        assert_eq!(due(&mut urged, &pod, WORDLESS_MS - 1), 0, "it may be about to start");
        assert_eq!(due(&mut urged, &pod, WORDLESS_MS), 1);
        assert_eq!(due(&mut urged, &pod, WORDLESS_MS), 0, "it was urged");
        urged.due(Millis(0), std::iter::empty());
        assert!(urged.0.is_empty(), "it is gone");
        for change in [
            |pod: &mut PodFacts| pod.stage = PodStage::Running,
            |pod: &mut PodFacts| pod.node = None,
            |pod: &mut PodFacts| pod.terminating = true,
        ] {
            let mut other = pod.clone();
            change(&mut other);
            assert_eq!(due(&mut Urged::default(), &other, WORDLESS_MS), 0);
        }
    }
}
