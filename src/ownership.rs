//! Whose an object is that has a name of ours. Its owner reference says so, never its name or its labels: both are free for
//! anybody, and an earlier object of the same name had the same.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// Who has the name that an object of ours would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// This very object of ours.
    Us,
    /// Nobody soon: it is being deleted, or will be, since what owned it is gone.
    Nobody,
    /// Somebody else.
    Stranger,
}

/// The UID of the owner that controls an object.
pub fn owner_uid(object: &impl ResourceExt) -> Option<String> {
    owner_of(object).map(|owner| owner.uid.clone())
}

fn owner_of(object: &impl ResourceExt) -> Option<&OwnerReference> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true))
}

/// Whether an object is controlled by this one.
pub fn is_owned(object: &impl ResourceExt, by: &impl ResourceExt) -> bool {
    owner_of(object).is_some_and(|owner| by.uid().as_ref() == Some(&owner.uid))
}

/// Who has an object of a name that `us` uses for its own.
pub fn holder<K: Resource<DynamicType = ()>>(object: &impl ResourceExt, us: &K) -> Holder {
    if is_owned(object, us) {
        return Holder::Us;
    }
    // Two objects of one name are never there at once, so the one that owned it is no more, and Kubernetes collects it.
    let of_an_earlier_us = |owner: &OwnerReference| owner.kind == K::kind(&()) && owner.name == us.name_any();
    let going = object.meta().deletion_timestamp.is_some();
    if going || owner_of(object).is_some_and(of_an_earlier_us) { Holder::Nobody } else { Holder::Stranger }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::Job;
    use quorate_crds::{EtcdCluster, EtcdClusterSpec};
    use serde_json::{Value, json};

    use super::*;

    fn held(owners: &Value, deleted: &Value) -> Holder {
        let mut us = EtcdCluster::new("db", EtcdClusterSpec::default());
        us.metadata.uid = Some("us".into());
        let metadata = json!({ "name": "db-verify", "ownerReferences": owners, "deletionTimestamp": deleted });
        holder(&serde_json::from_value::<Job>(json!({ "metadata": metadata })).unwrap(), &us)
    }

    #[test]
    fn an_object_is_whose_owner_reference_it_has() {
        let owner = |kind: &str, name: &str, uid: &str, controls: bool| json!([{ "apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": controls }]);
        let none = &Value::Null;
        assert_eq!(held(&owner("EtcdCluster", "db", "us", true), none), Holder::Us);
        assert_eq!(held(&owner("EtcdCluster", "db", "earlier", true), none), Holder::Nobody);
        for stranger in [
            json!([]),
            owner("EtcdCluster", "db", "us", false),
            owner("EtcdCluster", "other", "earlier", true),
            owner("EtcdBackup", "db", "earlier", true),
        ] {
            assert_eq!(held(&stranger, none), Holder::Stranger, "{stranger}");
            assert_eq!(held(&stranger, &json!("2026-01-01T00:00:00Z")), Holder::Nobody, "{stranger}");
        }
    }
}
