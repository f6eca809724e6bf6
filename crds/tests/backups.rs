//! EtcdBackup: what is refused and with which words, what is accepted, and that its definition is one that Kubernetes takes.

use std::path::Path;

use kube_cel::{ValidationError, Validator};
use quorate_crds::names::BACKUP_NAME_MAX;
use quorate_crds::{EtcdBackup, manifest, rules};
use serde_json::{Value, json};

fn schema() -> Value {
    let definition = serde_json::to_value(manifest::backup()).expect("the definition has a form in JSON");
    let mut schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    // The evaluator does not bind `oldSelf` as an optional, as the API server does; here every object is a new one.
    for rule in schema["x-kubernetes-validations"].as_array_mut().into_iter().flatten() {
        let text = rule["rule"].as_str().unwrap_or_default();
        assert!(text.contains("oldSelf.hasValue()"), "a rule of the root is asked at the creation only: {text}");
        rule["rule"] = json!(text.replace("oldSelf.hasValue()", "false"));
        rule["optionalOldSelf"] = json!(false);
    }
    schema
}

fn errors(name: &str, spec: &Value, old: Option<&Value>) -> Vec<ValidationError> {
    let object = |spec: &Value| json!({ "metadata": { "name": name }, "spec": spec });
    let (new, old) = (kube_cel::apply_defaults(&schema(), &object(spec)), old.map(object));
    let old = old.map(|old| kube_cel::apply_defaults(&schema(), &old));
    match Validator::new().validate(&schema(), &new, old.as_ref()) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_vec(),
    }
}

fn s3() -> Value {
    json!({ "cluster": "db", "store": { "address": "s3://bucket/etcd" } })
}

/// A spec with one value changed.
fn with(pointer: &str, value: Value) -> Value {
    let mut spec = s3();
    let (parent, key) = pointer.rsplit_once('/').expect("a path");
    spec.pointer_mut(parent).expect("the parent is there")[key] = value;
    spec
}

#[test]
fn what_can_be_done_is_accepted() {
    for spec in [
        s3(),
        with("/store/address", json!("gs://bucket")),
        with("/store/address", json!("azure://account/container/a/b")),
        with("/store", json!({ "volumeClaim": { "name": "backups" } })),
        with("/store/options", json!({ "endpoint": "https://s3.example.com:9000", "region": "x" })),
        with("/store/credentials", json!({ "name": "s3" })),
        with("/store/encryption", json!({ "secretName": "keys" })),
        with("/store", json!({ "volumeClaim": { "name": "backups" }, "encryption": { "secretName": "keys" } })),
        with("/store/serviceAccountName", json!("backup")),
        with("/ttlMinutes", json!(1)),
        with("/timeoutMinutes", json!(10080)),
        with("/deletionPolicy", json!("Delete")),
    ] {
        assert_eq!(errors(&"b".repeat(BACKUP_NAME_MAX), &spec, None), [], "{spec}");
        assert_eq!(errors("b", &spec, Some(&spec)), [], "{spec}");
    }
}

#[test]
fn what_can_not_is_refused_by_one_rule_each_and_every_rule_is_tried() {
    let both = json!({ "address": "s3://bucket", "volumeClaim": { "name": "backups" } });
    let claim = |more: Value| {
        let mut store = json!({ "volumeClaim": { "name": "backups" } });
        store.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        with("/store", store)
    };
    let cases = [
        (with("/cluster", json!("DB")), "spec.cluster must be"),
        (with("/timeoutMinutes", json!(0)), "spec.timeoutMinutes must be"),
        (with("/ttlMinutes", json!(0)), "spec.ttlMinutes must be"),
        (with("/store", json!({})), "spec.store.address or spec.store.volumeClaim must be set"),
        (with("/store", both), "spec.store.address or spec.store.volumeClaim must be set"),
        (with("/store/address", json!("https://bucket/x")), "spec.store.address must be"),
        (with("/store/address", json!("s3://key:secret@bucket/x")), "spec.store.address must be"),
        (with("/store/address", json!("s3://bucket:9000/x")), "spec.store.address must be"),
        (with("/store/address", json!("azure://account")), "spec.store.address must be"),
        (with("/store/address", json!("file:///etc")), "spec.store.address must be"),
        (with("/store/options", json!({ "endpoint": "a,region=b" })), "spec.store.options must have"),
        (with("/store/options", json!({ "Endpoint": "a" })), "spec.store.options must have"),
        (claim(json!({ "credentials": { "name": "s3" } })), "spec.store.volumeClaim must be"),
        (claim(json!({ "options": { "region": "x" } })), "spec.store.volumeClaim must be"),
        (with("/store/credentials", json!({ "name": "S3" })), "spec.store.credentials.name must be"),
        (with("/store/encryption", json!({ "secretName": "Keys" })), "spec.store.encryption.secretName must be"),
        (with("/store/serviceAccountName", json!("A")), "spec.store.serviceAccountName must be"),
    ];
    let mut tried = Vec::new();
    for (spec, wanted) in &cases {
        let found = errors("b", spec, None);
        assert!(matches!(found.as_slice(), [only] if only.message.starts_with(wanted)), "{spec}: {found:#?}");
        tried.extend(found.into_iter().map(|error| error.rule));
    }
    let changes = [
        with("/ttlMinutes", json!(5)),
        with("/cluster", json!("other")),
        with("/timeoutMinutes", json!(5)),
        with("/store/address", json!("s3://other")),
        with("/store/encryption", json!({ "secretName": "keys" })),
    ];
    for changed in changes {
        for (old, new) in [(&s3(), &changed), (&changed, &s3())] {
            let found = errors("b", new, Some(old));
            assert!(matches!(found.as_slice(), [only] if only.message.contains("can't be changed")), "{found:#?}");
            tried.extend(found.into_iter().map(|error| error.rule));
        }
    }
    assert_eq!(
        errors("b", &with("/deletionPolicy", json!("Delete")), Some(&s3())),
        [],
        "the only field that may change"
    );
    for rule in rules::backup() {
        assert!(tried.contains(&rule.cel), "no case depends on the rule {}", rule.cel);
        let remedy = rule.message.split_once(';').map(|(_, remedy)| remedy.trim());
        assert!(
            rule.message.starts_with("spec") && remedy.is_some_and(|remedy| !remedy.is_empty()),
            "{}",
            rule.message
        );
    }
    let found = errors(&"b".repeat(BACKUP_NAME_MAX + 1), &s3(), None);
    assert!(matches!(found.as_slice(), [only] if only.message.starts_with("metadata.name")), "{found:#?}");
}

#[test]
fn the_definition_in_deploy_is_up_to_date_and_has_its_columns() {
    let yaml = manifest::to_yaml(&manifest::backup()).expect("the definition has a form in YAML");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(manifest::BACKUP_CRD_FILE);
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(committed == yaml, "{} is out of date: run `make crds`", manifest::BACKUP_CRD_FILE);
    let definition = serde_json::to_value(manifest::backup()).expect("the definition has a form in JSON");
    let version = &definition["spec"]["versions"][0];
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|column| column["priority"].as_i64().unwrap_or_default() == 0)
        .filter_map(|column| column["name"].as_str())
        .collect();
    assert_eq!(columns, ["Cluster", "Phase", "Progress", "Revision", "Size", "Took", "Age"]);
    assert_eq!(definition["spec"]["names"]["shortNames"], json!(["etcdb"]));
    assert_eq!(version["subresources"]["status"], json!({}));
}

#[test]
fn a_backup_that_no_operator_has_seen_does_not_look_ready() {
    let unseen = kube_cel::apply_defaults(&schema(), &json!({ "spec": s3() }));
    let backup: EtcdBackup = serde_json::from_value(json!({
        "apiVersion": "quorate.dev/v1alpha1",
        "kind": "EtcdBackup",
        "metadata": { "name": "b" },
        "spec": unseen["spec"],
        "status": unseen["status"],
    }))
    .expect("the defaults are a backup");
    assert_eq!(backup.spec.timeout_minutes, 60);
    let conditions = backup.status.expect("there is a status").conditions;
    let told: Vec<_> = conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str())).collect();
    assert_eq!(told, [("Ready", "Unknown"), ("Reconciling", "Unknown"), ("Stalled", "Unknown")]);
}

#[test]
fn the_samples_are_backups() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/samples");
    for name in ["backup-s3.yaml", "backup-volume.yaml"] {
        let text = std::fs::read_to_string(folder.join(name)).expect("a sample can be read");
        let value: Value = serde_saphyr::from_str(&text).expect("a sample is YAML");
        assert_eq!(errors("sample", &value["spec"], None), [], "{name}");
        serde_json::from_value::<EtcdBackup>(value).expect("a sample is a backup");
    }
}
