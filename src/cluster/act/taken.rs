//! Whose an object is that has the name of one of ours. What somebody else made is never touched, and is told with what to do
//! about it; what an earlier cluster of this name left is waited for, and told if that lasts.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use quorate_crds::names::{ANNOTATION_CLUSTER_UID, FIELD_MANAGER, LABEL_CLUSTER, LABEL_MANAGED_BY, MANAGED_BY};
use quorate_crds::{EtcdCluster, Reason};

use super::{Acting, Stop};
use crate::api::Namespaced;
use crate::ownership::{Holder, holder};

/// How long an object may take to go before it is told what holds it. A cloud takes its load balancer away within that.
const GOES_WITHIN: SignedDuration = SignedDuration::from_secs(2 * 60);

impl Acting<'_> {
    /// The UID of our own object of this one's name, though no watch shows it: it lost its label or its owner, or the watch
    /// lags. `None` if nobody has the name. Only for what holds no data: that is ours by its owner or not at all.
    pub(super) async fn own_unseen<K: Namespaced>(&self, object: &K) -> Result<Option<String>, Stop> {
        let found = self.actor.kube.find::<K>(self.cluster.namespace, &object.name_any()).await?;
        let Some(found) = found else { return Ok(None) };
        match holder(&found, &*self.observed.cluster) {
            Holder::Us => Ok(found.uid()),
            Holder::Nobody => Err(of_what_goes(&found, Timestamp::now())),
            Holder::Stranger if has_lost_its_owner(&found, self.cluster.name) => {
                tracing::info!(cluster = %self.cluster.name, kind = %K::kind(&()), name = %found.name_any(), "adopts");
                Ok(found.uid())
            }
            Holder::Stranger => Err(of_a_stranger(&found)),
        }
    }

    /// Creates an object. If its name is taken, says by what; `whose` judges that.
    pub(super) async fn create_or_tell<K: Namespaced>(
        &self,
        object: &K,
        whose: fn(&K, &EtcdCluster) -> Holder,
    ) -> Result<K, Stop> {
        let (kube, namespace) = (&self.actor.kube, self.cluster.namespace);
        let error = match kube.create(namespace, object).await {
            Ok(made) => return Ok(made),
            Err(error) if !error.is_surprise() => return Err(error.into()),
            Err(error) => error,
        };
        let there = kube.get::<K>(namespace, &object.name_any()).await?;
        let told = there.and_then(|there| obstacle(&there, whose(&there, &self.observed.cluster), self.cluster.name));
        Err(told.unwrap_or_else(|| error.into()))
    }
}

/// Whose an object is that has an owner.
pub(super) fn whose_child<K: Namespaced>(child: &K, us: &EtcdCluster) -> Holder {
    holder(child, us)
}

/// Whose a claim is. It has no owner, and says for whom it was made. One with our label is the plan's business, whosever it
/// is: it is seen.
pub(super) fn whose_claim(claim: &PersistentVolumeClaim, us: &EtcdCluster) -> Holder {
    let made_for = claim.annotations().get(ANNOTATION_CLUSTER_UID);
    if made_for.is_some() && made_for == us.uid().as_ref() {
        return Holder::Us;
    }
    let going = claim.metadata.deletion_timestamp.is_some();
    if going || is_labelled(claim, &us.name_any()) { Holder::Nobody } else { Holder::Stranger }
}

/// What is told of an object that keeps one of ours from being created; `None` if another look will do.
fn obstacle<K: Namespaced>(there: &K, holder: Holder, cluster: &str) -> Option<Stop> {
    let goes = there.meta().deletion_timestamp.is_some();
    match holder {
        Holder::Stranger => Some(of_a_stranger(there)),
        Holder::Us if !goes && !is_labelled(there, cluster) => Some(of_ours_unseen(there, cluster)),
        // A watch lags, or Kubernetes has yet to take it away.
        Holder::Us | Holder::Nobody => None,
    }
}

/// Whether an object was ours until somebody took its owner away: a tool that cleans up, or a deletion that leaves orphans,
/// after which it is an earlier cluster's of the same name. Labels alone are free for anybody; that we applied it Kubernetes
/// itself has noted. One that somebody has put under an owner of their own is theirs, whether that controls it or not.
fn has_lost_its_owner<K: Namespaced>(object: &K, cluster: &str) -> bool {
    let managed = object.labels().get(LABEL_MANAGED_BY).is_some_and(|by| by == MANAGED_BY);
    let applied = object
        .managed_fields()
        .iter()
        .any(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER) && entry.operation.as_deref() == Some("Apply"));
    is_labelled(object, cluster) && managed && applied && object.owner_references().is_empty()
}

/// Whether the watches show an object as one of this cluster's.
fn is_labelled(object: &impl ResourceExt, cluster: &str) -> bool {
    object.labels().get(LABEL_CLUSTER).is_some_and(|label| label == cluster)
}

/// What is told of somebody else's object in the place of one of ours.
pub(super) fn of_a_stranger<K: Namespaced>(there: &K) -> Stop {
    let (kind, name) = (K::kind(&()), there.name_any());
    Stop::Refused(
        Reason::NameTaken,
        format!(
            "There is a {kind} {name} that is not this cluster's own, and it is left alone. Delete it if nobody needs it, or \
             use another name for it or for the cluster."
        ),
    )
}

/// What is told of an object that goes, or will. Where its finalizers have held it for long, as that of a load balancer does
/// whose cloud does not answer, nothing of ours can end that.
pub(super) fn of_what_goes<K: Namespaced>(there: &K, now: Timestamp) -> Stop {
    let (kind, name, finalizers) = (K::kind(&()), there.name_any(), there.finalizers().join(", "));
    let since = there.meta().deletion_timestamp.as_ref().map(|deleted| deleted.0);
    match since.filter(|since| now.duration_since(*since) > GOES_WITHIN && !finalizers.is_empty()) {
        Some(since) => Stop::Refused(
            Reason::NameTaken,
            format!(
                "The earlier {kind} {name} was deleted at {since}, and is still held by its finalizers: {finalizers}. The new \
                 one is made once it is gone. See its events and the log of who set them; take them off only if nobody is \
                 there any more to do it."
            ),
        ),
        None => Stop::Surprise(format!("the earlier {kind} {name} is still being deleted")),
    }
}

fn of_ours_unseen<K: Namespaced>(there: &K, cluster: &str) -> Stop {
    let (kind, name) = (K::kind(&()), there.name_any());
    Stop::Refused(
        Reason::NameTaken,
        format!(
            "The {kind} {name} of this cluster has lost the label by which it is seen. Give it back: kubectl label \
             --overwrite {} {name} {LABEL_CLUSTER}={cluster}",
            kind.to_lowercase()
        ),
    )
}

#[cfg(test)]
mod tests {
    use quorate_crds::EtcdClusterSpec;
    use serde_json::{Value, json};

    use super::*;

    /// What is told of a claim of the name that is to be given, in the cluster `db` of the UID `us`.
    fn told(labels: &Value, made_for: &Value, deleted: &Value) -> Option<String> {
        let mut us = EtcdCluster::new("db", EtcdClusterSpec::default());
        us.metadata.uid = Some("us".into());
        let annotations = json!({ ANNOTATION_CLUSTER_UID: made_for });
        let annotations = if made_for.is_null() { json!({}) } else { annotations };
        let metadata =
            json!({ "name": "db-1", "labels": labels, "annotations": annotations, "deletionTimestamp": deleted });
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        match obstacle(&claim, whose_claim(&claim, &us), "db") {
            Some(Stop::Refused(Reason::NameTaken, words)) => Some(words),
            None => None,
            Some(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_claim_is_told_unless_the_plan_sees_it_or_it_goes() {
        let (none, ours, others) = (json!({}), json!({ LABEL_CLUSTER: "db" }), json!({ LABEL_CLUSTER: "other" }));
        let (stays, goes) = (Value::Null, json!("2026-01-01T00:00:00Z"));
        for made_for in [Value::Null, json!("earlier"), json!("us")] {
            assert_eq!(told(&ours, &made_for, &stays), None, "{made_for}: the plan sees it");
            assert_eq!(told(&none, &made_for, &goes), None, "{made_for}: it goes");
        }
        for labels in [none, others] {
            for made_for in [Value::Null, json!("earlier")] {
                let words = told(&labels, &made_for, &stays).unwrap();
                assert!(words.contains("PersistentVolumeClaim db-1 that is not this cluster's own"), "{words}");
            }
            let words = told(&labels, &json!("us"), &stays).unwrap();
            assert!(words.ends_with("persistentvolumeclaim db-1 quorate.dev/cluster=db"), "{words}");
        }
    }
}
