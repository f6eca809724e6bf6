//! Looks after the claims of members: lets them grow with the spec, labels them again, and takes over those that the ledger
//! knows from an earlier object. Nothing tells when a StorageClass or
//! a quota allows what it did not: what was refused is asked for again after a while, and told meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use quorate_crds::{Quantity, Reason, names};
use quorate_statemachine::{Memory, Serial, Uid};
use serde_json::json;
use tokio::time::Instant;

use super::{Acting, Stop};
use crate::api::Error;
use crate::cluster::observe::facts::ClaimFacts;

/// After how long what was refused is asked for again: as often as a cluster at rest is looked at.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// The claims that Kubernetes did not let grow.
#[derive(Debug, Default)]
pub struct Ungrown(BTreeMap<Uid, Refused>);

/// What was refused.
#[derive(Debug)]
struct Refused {
    size: Quantity,
    /// In the words of Kubernetes.
    words: String,
    at: Instant,
}

impl Acting<'_> {
    /// Asks for larger volumes where the spec has grown, of all members at once. Returns what was refused, now or a while ago,
    /// or else the first failure.
    pub(super) async fn grow_claims(&self, ungrown: &mut Ungrown) -> Option<Stop> {
        let size = &self.cluster.spec.storage.size;
        let small: Vec<_> = self.observed.claims.iter().filter(|(_, claim)| self.is_to_grow(claim)).collect();
        ungrown.keep(&small, size);
        let due: Vec<_> = small.iter().copied().filter(|(_, claim)| ungrown.is_due(claim)).collect();
        let answers = join_all(due.iter().map(|(serial, claim)| self.grow_claim(**serial, claim))).await;
        let mut failed = None;
        for ((_, claim), answer) in due.into_iter().zip(answers) {
            let now = ungrown.note(claim, size, answer);
            failed = failed.or(now);
        }
        let refused = small.iter().find_map(|(_, claim)| ungrown.told(claim));
        refused.or(failed)
    }

    /// Gives claims of ours the labels back by which lists and watches find them, if they have lost them.
    pub(super) async fn label_claims_again(&self) -> Result<(), Error> {
        let name = self.cluster.name;
        let lost = self.observed.claims.iter().filter(|(_, claim)| {
            claim.cluster_uid.as_deref() == Some(self.cluster.uid) && claim.label.as_deref() != Some(name)
        });
        let labelled = lost.map(async |(serial, claim)| {
            let still = json!({ "uid": claim.uid.as_str() });
            self.label_again::<PersistentVolumeClaim>(&self.cluster.member(*serial), still).await
        });
        try_join_all(labelled).await.map(drop)
    }

    /// Takes over the claims on which the ledger says that members were created, and that were made for an earlier object of this
    /// name: whoever wrote that ledger back has made them this one's. Else they would neither grow with it nor go with it.
    pub(super) async fn take_over_claims(&self) -> Result<(), Error> {
        let Memory::Ledger(ledger) = &self.observed.world.memory else { return Ok(()) };
        let is_known = |serial: &Serial, claim: &ClaimFacts| {
            ledger.members.get(serial).is_some_and(|entry| entry.create.as_ref() == Some(&claim.uid))
        };
        let former = self.observed.claims.iter().filter(|(serial, claim)| {
            claim.cluster_uid.as_deref() != Some(self.cluster.uid) && is_known(serial, claim)
        });
        let taken_over = former.map(async |(serial, claim)| {
            let name = self.cluster.member(*serial);
            let change = json!({ "metadata": { "uid": claim.uid.as_str(),
                "annotations": { names::ANNOTATION_CLUSTER_UID: self.cluster.uid } } });
            self.actor.kube.merge::<PersistentVolumeClaim>(self.cluster.namespace, &name, &change).await?;
            tracing::warn!(cluster = %self.cluster.name, name, "the ledger knows this claim of an earlier object: it is taken over");
            Ok(())
        });
        try_join_all(taken_over).await.map(drop)
    }

    fn is_to_grow(&self, claim: &ClaimFacts) -> bool {
        claim.cluster_uid.as_deref() == Some(self.cluster.uid) && is_smaller(claim, &self.cluster.spec.storage.size)
    }

    async fn grow_claim(&self, serial: Serial, claim: &ClaimFacts) -> Result<(), Error> {
        let size = self.cluster.spec.storage.size.as_str();
        let change = json!({ "metadata": { "uid": claim.uid.as_str() },
            "spec": { "resources": { "requests": { "storage": size } } } });
        let name = self.cluster.member(serial);
        self.actor.kube.merge::<PersistentVolumeClaim>(self.cluster.namespace, &name, &change).await.map(drop)
    }
}

impl Ungrown {
    /// Keeps what was said of these claims and this size.
    fn keep(&mut self, small: &[(&Serial, &ClaimFacts)], size: &Quantity) {
        self.0.retain(|uid, refused| refused.size == *size && small.iter().any(|(_, claim)| claim.uid == *uid));
    }

    fn is_due(&self, claim: &ClaimFacts) -> bool {
        self.0.get(&claim.uid).is_none_or(|refused| refused.at.elapsed() >= ASK_AGAIN)
    }

    /// Takes note of an answer. Returns a failure that is no refusal: that claim is asked for in the next round.
    fn note(&mut self, claim: &ClaimFacts, size: &Quantity, answer: Result<(), Error>) -> Option<Stop> {
        let Err(error) = answer else {
            self.0.remove(&claim.uid);
            return None;
        };
        let Some(words) = error.told_refusal() else { return Some(error.into()) };
        self.0.insert(claim.uid.clone(), Refused { size: size.clone(), words, at: Instant::now() });
        None
    }

    /// What is told of a claim.
    fn told(&self, claim: &ClaimFacts) -> Option<Stop> {
        self.0.get(&claim.uid).map(|refused| Stop::Refused(Reason::ObjectRefused, refused.words.clone()))
    }
}

fn is_smaller(claim: &ClaimFacts, wished: &Quantity) -> bool {
    let requested = claim.requested.as_deref().map(|size| Quantity::new(size).bytes());
    matches!((requested, wished.bytes()), (Some(Ok(requested)), Ok(wished)) if requested < wished && !claim.terminating)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_grows_and_never_shrinks() {
        let claim = |size: &str| ClaimFacts {
            uid: Uid::new("u"),
            cluster_uid: None,
            label: None,
            terminating: false,
            volume_name: None,
            volume_gone: false,
            class: None,
            requested: Some(size.into()),
        };
        assert!(is_smaller(&claim("1Gi"), &Quantity::new("2Gi")));
        assert!(!is_smaller(&claim("1Gi"), &Quantity::new("1024Mi")));
        assert!(!is_smaller(&claim("2Gi"), &Quantity::new("1Gi")));
        assert!(!is_smaller(&claim("what"), &Quantity::new("1Gi")));
    }
}
