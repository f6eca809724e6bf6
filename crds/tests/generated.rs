//! What is written into the repository is what the types say, and it is something that Kubernetes takes.

use std::path::Path;

use quorate_crds::{ConditionType, EtcdCluster, EtcdClusterSpec, manifest, reference};
use serde_json::{Value, json};

/// The most that `kubectl apply` can keep in its annotation.
const ANNOTATION_LIMIT: usize = 256 * 1024;

fn committed(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    std::fs::read_to_string(&path).unwrap_or_default()
}

#[test]
fn the_definition_in_deploy_is_up_to_date() {
    let yaml = manifest::to_yaml(&manifest::cluster()).expect("the definition has a form in YAML");
    assert!(
        committed(manifest::CLUSTER_CRD_FILE) == yaml,
        "{} is out of date: run `make crds`",
        manifest::CLUSTER_CRD_FILE
    );
}

#[test]
fn the_reference_in_docs_is_up_to_date() {
    let page =
        reference::markdown(&manifest::cluster(), &manifest::backup()).expect("the definition has a form in JSON");
    assert!(committed(reference::FILE) == page, "{} is out of date: run `make crds`", reference::FILE);
}

#[test]
fn the_yaml_says_the_same_as_the_definition() {
    let definition = manifest::cluster();
    let yaml = manifest::to_yaml(&definition).expect("the definition has a form in YAML");
    let read: Value = serde_saphyr::from_str(&yaml).expect("the YAML can be read");
    let back: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition =
        serde_json::from_value(read).expect("the YAML is a definition");
    assert_eq!(back, definition);
}

#[test]
fn the_definition_is_small_enough_for_kubectl_apply() {
    let json = serde_json::to_string(&manifest::cluster()).expect("the definition has a form in JSON");
    assert!(json.len() < ANNOTATION_LIMIT, "{} bytes", json.len());
}

/// Calls `look` for each schema below `schema`, with its path.
fn each_schema(schema: &Value, path: &str, look: &mut impl FnMut(&str, &Value)) {
    look(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        each_schema(property, &format!("{path}.{name}"), look);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            each_schema(&schema[inner], &format!("{path}.{inner}"), look);
        }
    }
}

fn schema() -> Value {
    let definition = serde_json::to_value(manifest::cluster()).expect("the definition has a form in JSON");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn the_schema_is_one_that_kubernetes_takes_without_a_warning() {
    each_schema(&schema()["properties"]["spec"], "spec", &mut |path, schema| {
        assert!(schema["description"].is_string() || path.contains("items") || path.contains("additional"), "{path}");
        assert_ne!(schema["nullable"], true, "{path} accepts null");
        let format = &schema["format"];
        assert!(format.is_null() || ["int32", "int64", "date-time"].iter().any(|known| format == known), "{path}");
        assert!(schema["type"].is_string() || schema["x-kubernetes-int-or-string"] == true, "{path} has no type");
        if schema["type"] == "array" {
            assert!(schema["maxItems"].is_number(), "{path} has no bound, so no rule may walk it");
        }
        if schema["additionalProperties"].is_object() {
            assert!(schema["maxProperties"].is_number(), "{path} has no bound, so no rule may walk it");
        }
    });
}

#[test]
fn an_object_that_no_operator_has_seen_does_not_look_ready() {
    let unseen = kube_cel::apply_defaults(&schema(), &json!({ "spec": {} }));
    let cluster: EtcdCluster = serde_json::from_value(json!({
        "apiVersion": "quorate.dev/v1alpha1",
        "kind": "EtcdCluster",
        "metadata": { "name": "db" },
        "spec": unseen["spec"],
        "status": unseen["status"],
    }))
    .expect("the defaults are a cluster");
    let status = cluster.status.expect("there is a status");
    assert_eq!(status.ledger, None, "a default must not look like a memory");
    let conditions: Vec<(&str, &str)> =
        status.conditions.iter().map(|condition| (condition.type_.as_str(), condition.status.as_str())).collect();
    let all: Vec<(&str, &str)> = ConditionType::ALL.iter().map(|kind| (kind.as_str(), "Unknown")).collect();
    assert_eq!(conditions, all);
}

#[test]
fn the_fields_of_the_status_have_no_defaults_and_refuse_no_word() {
    each_schema(&schema()["properties"]["status"], "status", &mut |path, schema| {
        assert!(path == "status" || schema["default"].is_null(), "{path}");
        assert_eq!(schema["enum"], Value::Null, "{path}");
    });
}

#[test]
fn resources_are_the_usual_only_where_nothing_is_said_of_them() {
    let given = |spec: serde_json::Value| {
        let defaulted = kube_cel::apply_defaults(&schema(), &json!({ "spec": spec }));
        let spec: EtcdClusterSpec = serde_json::from_value(defaulted["spec"].clone()).expect("it is a spec");
        serde_json::to_value(&spec.resources).expect("resources have a form in JSON")
    };
    assert_eq!(given(json!({})), json!({ "requests": { "cpu": "100m", "memory": "100Mi" } }));
    assert_eq!(given(json!({ "resources": {} })), json!({}));
    // Kubernetes asks for as much as the limits then.
    let limits = json!({ "limits": { "cpu": "50m", "memory": "4Gi" } });
    assert_eq!(given(json!({ "resources": limits })), limits);
}

#[test]
fn the_defaults_of_the_schema_are_those_of_the_type() {
    let defaulted = kube_cel::apply_defaults(&schema(), &json!({ "spec": {} }));
    let spec: EtcdClusterSpec = serde_json::from_value(defaulted["spec"].clone()).expect("the defaults are a spec");
    assert_eq!(spec, EtcdClusterSpec::default());
    assert_eq!(serde_json::to_value(&spec).expect("a spec has a form in JSON"), defaulted["spec"]);
}

#[test]
fn scaling_and_columns_are_there() {
    let definition = serde_json::to_value(manifest::cluster()).expect("the definition has a form in JSON");
    let version = &definition["spec"]["versions"][0];
    assert_eq!(
        version["subresources"]["scale"],
        json!({
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        })
    );
    let columns: Vec<(&str, &str)> = version["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|column| column["priority"].as_i64().unwrap_or_default() == 0)
        .filter_map(|column| column["name"].as_str().zip(column["jsonPath"].as_str()))
        .collect();
    // What runs, not what is wished.
    let expected = [
        ("Version", ".status.version"),
        ("Desired", ".spec.replicas"),
        ("Ready", ".status.readyReplicas"),
        ("Phase", ".status.phase"),
        ("Available", ".status.conditions[?(@.type==\"Available\")].status"),
        ("Age", ".metadata.creationTimestamp"),
    ];
    assert_eq!(columns, expected);
    assert_eq!(definition["spec"]["names"]["shortNames"], json!(["etcd"]));
    assert_eq!(definition["spec"]["names"]["categories"], json!(["quorate"]));
}

#[test]
fn the_samples_are_clusters() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/samples");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the samples can be listed") {
        let path = entry.expect("the samples can be listed").path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a sample can be read");
        let value: Value = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if value["kind"] != "EtcdCluster" {
            continue;
        }
        let errors = kube_cel::Validator::new().validate(&schema(), &value, None);
        assert!(errors.is_ok(), "{}: {errors:?}", path.display());
        let cluster: EtcdCluster =
            serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let again = serde_json::to_value(&cluster).expect("a cluster has a form in JSON");
        assert_contains(&again["spec"], &value["spec"], &path.display().to_string());
        seen += 1;
    }
    assert!(seen >= 5, "the samples are found");
}

/// Fails unless every value of `part` is found in `whole`: a misspelled field is dropped while reading.
fn assert_contains(whole: &Value, part: &Value, path: &str) {
    match part {
        Value::Object(map) => {
            for (key, value) in map {
                assert_contains(&whole[key], value, &format!("{path}: {key}"));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            assert_eq!(whole, part, "{path}");
        }
    }
}
