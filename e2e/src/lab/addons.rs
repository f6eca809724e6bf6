//! What every cluster has beside its control plane: names for Services, a default StorageClass, one whose volumes can
//! move, and one whose volumes can be full. Only says what; the API server does the rest.

use serde_json::{Value, json};

use super::names::{CONTROL_PLANE, DNS_SERVICE};
use super::{BOUNDED_STORAGE_CLASS, Lab, LabError, NETWORK_STORAGE_CLASS, STORAGE_CLASS};
use crate::provisioner::PROVISIONER;

/// Applies them.
pub async fn apply(lab: &Lab) -> Result<(), LabError> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects() });
    lab.kubectl()
        .args(["apply", "--server-side", "--force-conflicts", "--field-manager=quorate-e2e", "-f", "-"])
        .input(list.to_string())
        .run()
        .await?;
    Ok(())
}

fn objects() -> Vec<Value> {
    let ports = |protocols: &[&str]| -> Vec<Value> {
        let port = |protocol: &&str| json!({ "name": format!("dns-{}", protocol.to_lowercase()), "port": 53, "protocol": protocol });
        protocols.iter().map(port).collect()
    };
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "coredns" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "coredns" }],
        }),
        // No selector: CoreDNS isn't a pod here, so that stopping a node doesn't stop all names.
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "kube-dns", "namespace": "kube-system" },
            "spec": { "clusterIP": DNS_SERVICE, "ports": ports(&["UDP", "TCP"]) },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": "kube-dns", "namespace": "kube-system",
                          "labels": { "kubernetes.io/service-name": "kube-dns" } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": [CONTROL_PLANE], "conditions": { "ready": true } }],
            "ports": ports(&["UDP", "TCP"]),
        }),
        class(STORAGE_CLASS, true),
        class(NETWORK_STORAGE_CLASS, false),
        class(BOUNDED_STORAGE_CLASS, false),
    ]
}

/// Which nodes can use a volume, and whether it can be full, is said by the name of its class alone.
fn class(name: &str, is_default: bool) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": name,
                      "annotations": { "storageclass.kubernetes.io/is-default-class": is_default.to_string() } },
        "provisioner": PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete",
        "allowVolumeExpansion": true,
    })
}
