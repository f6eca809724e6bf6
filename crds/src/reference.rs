//! The API reference as Markdown, written from the schemas, the rules, the flags and the reasons. It adds no facts of its own.

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::flags::{self, Flag, Gate, Spelling};
use crate::rules::{self, Rule};
use crate::{BackupPhase, Phase, Reason, names};

/// Where the reference is kept, from the root of the repository.
pub const FILE: &str = "docs/api.md";

/// What stands before the tables.
const INTRODUCTION: &str = "\
<!-- Written by `make crds` from the types in crds/. Change them there. -->
# API reference

`EtcdCluster` (short name `etcd`, category `quorate`) of `quorate.dev/v1alpha1` is one etcd cluster. The smallest one has
three members of the default version:

```yaml
apiVersion: quorate.dev/v1alpha1
kind: EtcdCluster
metadata:
  name: db
spec: {}
```

`kubectl scale etcd/db --replicas=5` changes its size. Samples are in `deploy/samples`. A spec that breaks a rule is refused
when it is applied; the message names the field and the remedy. What is beside a type is refused in Kubernetes' own words.
Rules that speak of `metadata.name` are asked only when the object is created.

";

/// What stands before the tables of EtcdBackup.
const BACKUPS: &str = "\
\n# EtcdBackup

`EtcdBackup` (short name `etcdb`, category `quorate`) of `quorate.dev/v1alpha1` is one snapshot of a cluster, taken once by a
Job. [backups.md](backups.md) tells how to use and restore it.

```yaml
apiVersion: quorate.dev/v1alpha1
kind: EtcdBackup
metadata:
  name: before-the-upgrade
spec:
  cluster: db
  store:
    address: s3://bucket/etcd
    options:
      region: eu-central-1
    credentials:
      name: s3
```

";

/// The reference of both kinds.
pub fn markdown(
    cluster: &CustomResourceDefinition,
    backup: &CustomResourceDefinition,
) -> Result<String, serde_json::Error> {
    let mut page = INTRODUCTION.to_owned();
    names_and_ports(&mut page);
    kind(&mut page, cluster, "", &rules::all())?;
    flag_table(&mut page);
    words(&mut page, "Phases", "phase", Phase::ALL.iter().map(|phase| (phase.as_str(), phase.meaning())));
    page.push_str(BACKUPS);
    kind(&mut page, backup, "EtcdBackup.", &rules::backup())?;
    let phases = BackupPhase::ALL.iter().map(|phase| (phase.as_str(), phase.meaning()));
    words(&mut page, "Phases of a backup", "phase", phases);
    let reasons = Reason::ALL.iter().map(|reason| (reason.as_str(), reason.meaning()));
    words(&mut page, "Reasons in conditions and events", "reason", reasons);
    Ok(page)
}

/// The sections of one kind.
fn kind(
    page: &mut String,
    definition: &CustomResourceDefinition,
    prefix: &str,
    rules: &[Rule],
) -> Result<(), serde_json::Error> {
    let definition = serde_json::to_value(definition)?;
    let root = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for part in ["spec", "status"] {
        object(page, part, &root["properties"][part], (prefix, rules));
    }
    root_rules(page, root);
    Ok(())
}

/// The section of one object: its fields, then its rules, then the objects in it.
fn object(page: &mut String, path: &str, schema: &Value, (prefix, rules): (&str, &[Rule])) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let mut fields: Vec<(&String, &Value)> = properties.iter().collect();
    fields.sort_by(|a, b| a.0.cmp(b.0));
    let required = |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|r| r == name));
    let _ = write!(page, "## {path}\n\n{}\n\n", description(schema));
    page.push_str("| field | type | default | meaning |\n|---|---|---|---|\n");
    for (name, field) in &fields {
        let default = match &field["default"] {
            Value::Null if required(name) => "required".to_owned(),
            Value::Null => String::new(),
            Value::Object(_) => "see below".to_owned(),
            default => format!("`{default}`"),
        };
        let _ =
            writeln!(page, "| `{name}` | {}{} | {default} | {} |", type_of(field), bounds(field), description(field));
    }
    page.push('\n');
    let within = |at: &str| {
        let Some(at) = at.strip_prefix(prefix) else { return false };
        at == path || fields.iter().any(|(name, _)| at == format!("{path}.{name}") && !is_object(&properties[*name]))
    };
    let refusals: Vec<String> = rules.iter().filter(|rule| within(rule.at)).map(|rule| rule.message.clone()).collect();
    if !refusals.is_empty() {
        let _ = write!(page, "Refused with:\n\n- {}\n\n", refusals.join("\n- "));
    }
    for (name, field) in fields {
        let path = format!("{path}.{name}");
        object(page, &path, field, (prefix, rules));
        object(page, &format!("{path}[]"), &field["items"], (prefix, rules));
        object(page, &format!("{path}.*"), &field["additionalProperties"], (prefix, rules));
    }
}

fn is_object(schema: &Value) -> bool {
    schema["properties"].is_object()
}

fn description(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn type_of(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "quantity".to_owned();
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().filter_map(Value::as_str).map(|v| format!("`{v}`")).collect::<Vec<_>>().join(" or ");
    }
    match schema["type"].as_str().unwrap_or("any") {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map of {}", type_of(&schema["additionalProperties"]))
        }
        plain => plain.to_owned(),
    }
}

/// What Kubernetes itself refuses, in words of its own.
fn bounds(schema: &Value) -> String {
    let bound = |name: &str| schema[name].as_number().map(ToString::to_string);
    let most = bound("maxItems").or_else(|| bound("maxProperties")).map(|most| format!(", at most {most}"));
    let range = match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => Some(format!(", {least} to {most}")),
        (Some(least), None) => Some(format!(", at least {least}")),
        (None, Some(most)) => Some(format!(", at most {most}")),
        (None, None) => None,
    };
    most.into_iter().chain(range).collect()
}

/// The rules of the root, which no field of ours carries.
fn root_rules(page: &mut String, root: &Value) {
    page.push_str("## metadata.name\n\nAsked when the object is created. Refused with:\n\n");
    for rule in root["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let _ = writeln!(page, "- {}", rule["message"].as_str().unwrap_or_default());
    }
    page.push('\n');
}

fn names_and_ports(page: &mut String) {
    let rows = [
        ("Service", names::client_service("<name>"), "for clients, port 2379; leads to the members that are ready"),
        (
            "Service",
            "<name>".to_owned(),
            "headless; gives each member its address, `<name>-<serial>.<name>.<namespace>.svc`",
        ),
        (
            "Pod, PersistentVolumeClaim, Secret",
            "<name>-<serial>".to_owned(),
            "one member; a serial is never used twice",
        ),
        ("Secret", names::client_secret("<name>"), "what clients show, and whom they trust, when Quorate issues it"),
        ("Secret", names::peer_authority("<name>"), "signs what members show each other, when Quorate issues it"),
        ("Secret", names::client_authority("<name>"), "signs what members and clients show each other, likewise"),
        ("PodDisruptionBudget", "<name>".to_owned(), "keeps a drain from taking more than one voter at a time"),
        (
            "CronJob",
            names::verification("<name>"),
            "proves that the continuous backup restores, with `spec.backup.verify`",
        ),
        (
            "EtcdBackup",
            "<name>-to-<version>-<generation>".to_owned(),
            "the snapshot before another minor version, with `spec.backup`",
        ),
    ];
    page.push_str("Objects that belong to a cluster:\n\n| kind | name | what for |\n|---|---|---|\n");
    for (kind, name, purpose) in rows {
        let _ = writeln!(page, "| {kind} | `{name}` | {purpose} |");
    }
    let _ = write!(
        page,
        "\nEach carries the labels `{}={}`, `{}=<name>`, `{}={}` and `{}=<name>`; the pod of a voter also `{}={}` (`{}` until it serves).\n\n",
        names::LABEL_NAME,
        names::APP_NAME,
        names::LABEL_INSTANCE,
        names::LABEL_MANAGED_BY,
        names::MANAGED_BY,
        names::LABEL_CLUSTER,
        names::LABEL_ROLE,
        names::ROLE_VOTER,
        names::ROLE_RETURNING,
    );
}

fn flag_table(page: &mut String) {
    page.push_str("## Flags for spec.etcd.extraFlags\n\n| flag | on etcd 3.5 | what for |\n|---|---|---|\n");
    for Flag { name, on_3_5, purpose } in flags::ALLOWED {
        let on_3_5 = match on_3_5 {
            Spelling::Same => "the same".to_owned(),
            Spelling::Experimental => format!("`experimental-{name}`"),
            Spelling::Gates => "a flag for each feature, as below".to_owned(),
            Spelling::Absent => "refused".to_owned(),
        };
        let _ = writeln!(page, "| `{name}` | {on_3_5} | {purpose} |");
    }
    page.push_str("\n| feature of `feature-gates` | since etcd | on etcd 3.5 |\n|---|---|---|\n");
    for Gate { name, since, on_3_5 } in flags::GATES {
        let on_3_5 = on_3_5.map_or_else(|| "refused".to_owned(), |flag| format!("`{flag}`"));
        let _ = writeln!(page, "| `{name}` | 3.{since} | {on_3_5} |");
    }
}

/// A table of words with their meanings.
fn words<'a>(page: &mut String, title: &str, what: &str, words: impl Iterator<Item = (&'a str, &'a str)>) {
    let _ = write!(page, "\n## {title}\n\n| {what} | meaning |\n|---|---|\n");
    for (word, meaning) in words {
        let _ = writeln!(page, "| `{word}` | {} |", meaning.trim());
    }
}
