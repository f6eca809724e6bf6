//! A member's volume claim. It says for whom it was made and has no owner: garbage collection would delete the data
//! with a stale owner; what becomes of it is the plan's business.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use quorate_crds::{Storage, names};
use quorate_statemachine::Serial;

use super::Cluster;

/// The claim of a member. Applied again after `spec.storage.size` has grown, it asks for the larger volume.
pub fn claim(cluster: &Cluster<'_>, serial: Serial) -> PersistentVolumeClaim {
    let Storage { size, storage_class_name, ephemeral: _, retention: _ } = &cluster.spec.storage;
    let mut metadata = cluster.unowned(cluster.member(serial));
    metadata.annotations = Some([(names::ANNOTATION_CLUSTER_UID.to_owned(), cluster.uid.to_owned())].into());
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size.clone().into())])),
                limits: None,
            }),
            storage_class_name: storage_class_name.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use quorate_crds::Quantity;
    use serde_json::{Value, json, to_value};

    use super::super::fixture;
    use super::*;

    fn rendered(change: impl FnOnce(&mut quorate_crds::EtcdClusterSpec)) -> Value {
        let spec = fixture::spec(change);
        to_value(claim(&fixture::cluster(&spec), Serial(4))).unwrap()
    }

    #[test]
    fn it_names_its_cluster_and_has_no_owner() {
        assert_eq!(
            rendered(|_| ()),
            json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "db-4",
                    "namespace": "prod",
                    "labels": {
                        "app.kubernetes.io/name": "etcd",
                        "app.kubernetes.io/instance": "db",
                        "app.kubernetes.io/managed-by": "quorate",
                        "quorate.dev/cluster": "db",
                    },
                    "annotations": {"quorate.dev/cluster-uid": "0b54c1d2"},
                },
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "8Gi"}}},
            })
        );
    }

    #[test]
    fn size_and_class_come_from_the_spec() {
        let claim = rendered(|spec| {
            spec.storage.size = Quantity::new("20Gi");
            spec.storage.storage_class_name = Some("fast".into());
        });
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "20Gi");
        assert_eq!(claim["spec"]["storageClassName"], "fast");
    }
}
