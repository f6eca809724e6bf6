//! The manifests that install the operator: complete, and with no more rights than they need.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn objects(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(deploy().join(file)).expect("the manifest can be read");
    serde_saphyr::from_multiple(&text).expect("the manifest is YAML")
}

/// The rules of roles, as (group, resource, names, verb).
fn grants(file: &str) -> BTreeSet<(String, String, String, String)> {
    let words = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let mut grants = BTreeSet::new();
    for role in objects(file) {
        for rule in role["rules"].as_array().into_iter().flatten() {
            for group in words(rule, "apiGroups") {
                for resource in words(rule, "resources") {
                    for verb in words(rule, "verbs") {
                        grants.insert((group.clone(), resource.clone(), words(rule, "resourceNames").join(","), verb));
                    }
                }
            }
        }
    }
    grants
}

const CLUSTER_ROLE: &str = "base/cluster-role.yaml";
const ROLE_OF_ONE_NAMESPACE: &str = "overlays/namespaced/namespace/role.yaml";
const REST_OF_THE_CLUSTER_ROLE: &str = "overlays/namespaced/cluster-role.yaml";

#[test]
fn the_operator_of_one_namespace_has_the_same_rights_in_two_parts() {
    let (one, rest) = (grants(ROLE_OF_ONE_NAMESPACE), grants(REST_OF_THE_CLUSTER_ROLE));
    assert_eq!(grants(CLUSTER_ROLE), one.union(&rest).cloned().collect());
    assert!(one.is_disjoint(&rest));
    assert!(!one.is_empty() && !rest.is_empty());
}

#[test]
fn the_operator_can_not_give_itself_more() {
    for (group, resource, _, verb) in grants(CLUSTER_ROLE) {
        assert!(group != "rbac.authorization.k8s.io", "{resource}");
        assert!(!["configmaps", "pods/exec", "serviceaccounts"].contains(&resource.as_str()), "{resource}");
        // Only what issuing certificates takes; nothing is overwritten that was not read first.
        assert!(resource != "secrets" || verb != "update", "{verb} {resource}");
        assert!(![&group, &resource, &verb].iter().any(|word| word.contains('*')), "{group} {resource} {verb}");
        assert!(!["escalate", "bind", "impersonate", "deletecollection"].contains(&verb.as_str()), "{verb} {resource}");
    }
}

#[test]
fn users_can_not_write_the_ledger() {
    let user = grants("base/user-roles.yaml");
    assert!(user.iter().any(|(_, resource, _, verb)| resource == "etcdclusters" && verb == "create"));
    let reading = ["get", "list", "watch"];
    assert!(
        user.iter().all(|(_, resource, _, verb)| resource != "etcdclusters/status" || reading.contains(&verb.as_str()))
    );
}

#[test]
fn the_base_lists_every_manifest_that_is_there() {
    for folder in ["base", "base/crds", "overlays/namespaced/namespace"] {
        let kustomization = objects(&format!("{folder}/kustomization.yaml")).remove(0);
        let listed: BTreeSet<String> = kustomization["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        let there: BTreeSet<String> = std::fs::read_dir(deploy().join(folder))
            .expect("the folder can be listed")
            .map(|entry| entry.expect("the folder can be listed").file_name().to_string_lossy().into_owned())
            .filter(|name| name != "kustomization.yaml")
            .collect();
        assert_eq!(listed, there, "{folder}");
    }
}

#[test]
fn the_operator_runs_without_rights_on_its_node() {
    let deployment = objects("base/deployment.yaml").remove(0);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for container in pod["containers"].as_array().into_iter().flatten() {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["capabilities"]["drop"][0], "ALL");
        assert!(container["resources"]["limits"]["memory"].is_string());
    }
    let namespace = objects("base/namespace.yaml").remove(0);
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
}

#[test]
fn two_replicas_share_one_lease_that_they_may_write() {
    let deployment = objects("base/deployment.yaml").remove(0);
    assert!(deployment["spec"]["replicas"].as_i64() >= Some(2));
    let lease = grants("base/role.yaml");
    for verb in ["get", "update"] {
        let named = ("coordination.k8s.io".into(), "leases".into(), "quorate".into(), verb.to_owned());
        assert!(lease.contains(&named), "{verb}: {lease:?}");
    }
}
