//! Makes the schema of the types one that Kubernetes takes: structural, without nulls, with the CEL rules of [`crate::rules`].

use kube::core::{Reason as CelReason, Rule as CelRule};
use schemars::Schema;
use schemars::transform::{Transform, transform_subschemas};
use serde_json::{Value, json};

use crate::ConditionType;
use crate::names::{BACKUP_NAME_MAX, CLUSTER_NAME_MAX};
use crate::rules::{self, Rule};
use crate::status;

/// Where Kubernetes keeps the rules of a schema.
const VALIDATIONS: &str = "x-kubernetes-validations";

/// The transform that adds the rules that belong at a path.
pub(crate) const fn rules_at(path: &'static str) -> RulesAt {
    RulesAt(path)
}

/// Adds the rules that belong at a path.
#[derive(Clone, Debug)]
pub(crate) struct RulesAt(&'static str);

impl Transform for RulesAt {
    fn transform(&mut self, schema: &mut Schema) {
        let rules: Vec<Value> =
            rules::all().iter().chain(&rules::backup()).filter(|rule| rule.at == self.0).map(to_json).collect();
        if !rules.is_empty() {
            schema.insert(VALIDATIONS.to_owned(), Value::Array(rules));
        }
    }
}

fn to_json(rule: &Rule) -> Value {
    let Rule { at: _, field, cel, message, message_expression } = rule;
    let mut json = json!({ "rule": cel, "message": message });
    if let Some(field) = field {
        json["fieldPath"] = json!(field);
    }
    if let Some(expression) = message_expression {
        json["messageExpression"] = json!(expression);
    }
    json
}

/// Takes away what Kubernetes warns of or would misread: `null` as a type (an explicit null is then dropped before the
/// defaults are filled in, so no rule ever meets one), and formats of Rust's that OpenAPI doesn't know. What they say of a
/// number's size is kept: one that our type can't hold would end the operator's watch of all objects, whoever wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Structural;

impl Transform for Structural {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        without_null(schema);
        match schema.get("format").and_then(Value::as_str) {
            None | Some("int32" | "int64" | "date-time") => {}
            Some(format) => {
                if format == "uint32" && schema.get("maximum").is_none() {
                    schema.insert("maximum".to_owned(), json!(u32::MAX));
                }
                schema.remove("format");
            }
        }
    }
}

/// As [`Structural`], and with no default but that of the whole: what is not reported must not look as if it were.
#[derive(Clone, Debug)]
pub(crate) struct Reported;

impl Transform for Reported {
    fn transform(&mut self, schema: &mut Schema) {
        reported(schema, ConditionType::ALL);
    }
}

/// The same for a backup.
#[derive(Clone, Debug)]
pub(crate) struct ReportedBackup;

impl Transform for ReportedBackup {
    fn transform(&mut self, schema: &mut Schema) {
        reported(schema, ConditionType::OF_BACKUPS);
    }
}

fn reported(schema: &mut Schema, conditions: &[ConditionType]) {
    Structural.transform(schema);
    without_defaults(schema);
    schema.insert("default".to_owned(), json!({ "conditions": status::unseen(conditions) }));
}

fn without_defaults(schema: &mut Schema) {
    schema.remove("default");
    transform_subschemas(&mut without_defaults, schema);
}

/// Drops `null` from the types and alternatives of one schema.
fn without_null(schema: &mut Schema) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|t| t != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    let Some(Value::Array(mut alternatives)) = schema.remove("anyOf") else { return };
    alternatives.retain(|alternative| alternative.get("type") != Some(&json!("null")));
    match alternatives.as_slice() {
        [Value::Object(only)] => {
            for (key, value) in only {
                schema.ensure_object().entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        _ => {
            schema.insert("anyOf".to_owned(), Value::Array(alternatives));
        }
    }
}

/// The name of a cluster is also the name of a Service.
pub(crate) fn cluster_name_starts_with_a_letter() -> CelRule {
    create_only(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must start with a lower-case letter, end with a letter or digit, and hold only lower-case \
         letters, digits and dashes, because a Service carries it; choose another name",
    )
}

/// The names of members are longer than the cluster's.
pub(crate) fn cluster_name_leaves_room() -> CelRule {
    create_only(
        &format!("size(self.metadata.name) <= {CLUSTER_NAME_MAX}"),
        &format!(
            "metadata.name must have at most {CLUSTER_NAME_MAX} characters, because the names of pods and Services are \
             made from it; choose a shorter name"
        ),
    )
}

/// A backup's Job has its name, and the Job's pods a longer one.
pub(crate) fn backup_name_leaves_room() -> CelRule {
    create_only(
        &format!(
            "size(self.metadata.name) <= {BACKUP_NAME_MAX} && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')"
        ),
        &format!(
            "metadata.name must have at most {BACKUP_NAME_MAX} characters, and hold only lower-case letters, digits and \
             dashes, because a Job carries it; choose another name"
        ),
    )
}

/// A rule at the root. It is asked at the creation only: the root is never the same twice, so a rule that is tightened
/// later would otherwise block the status and the finalizer of every object from before.
fn create_only(condition: &str, message: &str) -> CelRule {
    CelRule::new(format!("oldSelf.hasValue() || {condition}"))
        .message(message)
        .reason(CelReason::FieldValueInvalid)
        .optional_old_self(true)
}
