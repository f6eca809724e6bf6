//! The rules against specs that must be refused, and against specs that must not. The same tables are applied to a real
//! API server by the end-to-end tests, which also see the cases that the schema itself refuses.

mod cases;

use std::collections::BTreeSet;

use cases::{Case, right, wrong};
use kube_cel::{CompiledSchema, ValidationError, Validator, compile_schema};
use quorate_crds::names::CLUSTER_NAME_MAX;
use quorate_crds::{manifest, rules};
use serde_json::{Value, json};

impl Case {
    fn object(&self, spec: Option<&Value>) -> Value {
        json!({ "metadata": { "name": self.name() }, "spec": spec })
    }

    fn errors(&self, rules: &Rules) -> Vec<ValidationError> {
        let old = self.from.as_ref().map(|from| self.object(Some(from)));
        rules.errors(&self.object(self.spec.as_ref()), old.as_ref())
    }
}

/// The compiled rules, as they are asked at a creation and at an update.
struct Rules {
    creation: CompiledSchema,
    update: CompiledSchema,
}

impl Rules {
    fn new() -> Self {
        let schema = schema();
        Self { creation: compile_schema(&asked(&schema, "false")), update: compile_schema(&asked(&schema, "true")) }
    }

    fn errors(&self, new: &Value, old: Option<&Value>) -> Vec<ValidationError> {
        let schema = if old.is_some() { &self.update } else { &self.creation };
        match Validator::new().validate_compiled(schema, new, old) {
            Ok(()) => Vec::new(),
            Err(errors) => errors.into_vec(),
        }
    }
}

/// The schema with the answer to "is there an old object" put into the rules of the root: the evaluator does not bind
/// `oldSelf` as an optional, as the API server does.
fn asked(schema: &Value, is_update: &str) -> Value {
    let mut schema = schema.clone();
    for rule in schema["x-kubernetes-validations"].as_array_mut().into_iter().flatten() {
        let text = rule["rule"].as_str().unwrap_or_default();
        assert!(text.contains(IS_UPDATE), "a rule of the root is asked at the creation only: {text}");
        rule["rule"] = json!(text.replace(IS_UPDATE, is_update));
        rule["optionalOldSelf"] = json!(false);
    }
    schema
}

const IS_UPDATE: &str = "oldSelf.hasValue()";

fn schema() -> Value {
    let definition = serde_json::to_value(manifest::cluster()).expect("the definition has a form in JSON");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn every_wrong_spec_is_refused_with_its_message() {
    let rules = Rules::new();
    for case in wrong().iter().filter(|case| !case.schema) {
        let refused = case.refused.as_ref().expect("a wrong spec says how it is refused");
        let errors = case.errors(&rules);
        assert!(errors.iter().any(|error| error.message.contains(refused)), "{}: {errors:#?}", case.id);
    }
}

#[test]
fn every_right_spec_is_accepted() {
    let rules = Rules::new();
    for case in right() {
        let errors = case.errors(&rules);
        assert!(errors.is_empty(), "{}: {errors:#?}", case.id);
    }
}

#[test]
fn what_an_accepted_update_starts_from_is_accepted_too() {
    let rules = Rules::new();
    for case in wrong().into_iter().chain(right()) {
        let Some(from) = case.from.clone() else { continue };
        let start = Case { spec: Some(from), from: None, ..case };
        let errors = start.errors(&rules);
        assert!(errors.is_empty(), "{}: {errors:#?}", start.id);
    }
}

#[test]
fn each_rule_alone_refuses_some_wrong_spec() {
    let compiled = Rules::new();
    let refusals: Vec<Vec<ValidationError>> = wrong().iter().map(|case| case.errors(&compiled)).collect();
    let root = asked(&schema(), "false")["x-kubernetes-validations"].clone();
    let mut texts: Vec<String> = rules::all().into_iter().map(|rule| rule.cel).collect();
    texts.extend(root.as_array().into_iter().flatten().filter_map(|rule| rule["rule"].as_str().map(str::to_owned)));
    assert!(texts.len() > 30, "the rules are found");
    for text in texts {
        let alone = refusals.iter().any(|errors| matches!(errors.as_slice(), [only] if only.rule == text));
        assert!(alone, "no case depends on the rule {text}");
    }
}

#[test]
fn each_message_names_its_field_and_a_remedy() {
    for rule in rules::all() {
        let field = format!("{}{}", rule.at, rule.field.unwrap_or_default());
        assert!(rule.message.starts_with(&field), "{field}: {}", rule.message);
        let remedy = rule.message.split_once(';').map(|(_, remedy)| remedy.trim());
        assert!(remedy.is_some_and(|remedy| !remedy.is_empty()), "{field}: {}", rule.message);
        // Limits of the API server for one rule.
        assert!(rule.message.len() <= 2048 && !rule.message.contains('\n'));
    }
}

#[test]
fn cases_have_names_of_their_own() {
    for table in [wrong(), right()] {
        let names: BTreeSet<String> = table.iter().map(|case| case.id.clone()).collect();
        assert_eq!(names.len(), table.len());
    }
    assert!(right().iter().any(|case| case.id.len() == CLUSTER_NAME_MAX), "the longest name is tried");
    let just_too_long = |case: &Case| case.name.as_ref().is_some_and(|name| name.len() == CLUSTER_NAME_MAX + 1);
    assert!(wrong().iter().any(just_too_long), "the shortest name that is too long is tried");
}

#[test]
fn an_object_from_before_a_tightened_root_rule_can_still_be_changed() {
    let rules = Rules::new();
    let object =
        |phase: &str| json!({ "metadata": { "name": "9".repeat(60) }, "spec": {}, "status": { "phase": phase } });
    assert_eq!(rules.errors(&object("Pending"), None).len(), 2, "it could not be created now");
    assert_eq!(rules.errors(&object("Running"), Some(&object("Pending"))), []);
}

#[test]
fn no_rule_reads_the_status() {
    let schema = schema();
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        assert!(!rule["rule"].as_str().unwrap_or_default().contains("status"));
        assert_eq!(rule["optionalOldSelf"], true, "a rule of the root is asked at the creation only: {rule}");
    }
    assert_eq!(schema["properties"]["status"]["x-kubernetes-validations"], Value::Null);
}

/// Else one object would keep the API server busy for minutes.
#[test]
fn no_rule_reckons_with_a_quantity_before_it_has_looked_at_its_exponent() {
    for rule in rules::all() {
        let looks = rule.cel.find(".matches('[eE]");
        let reckons = rule.cel.find("uantity(");
        assert!(reckons.is_none_or(|reckons| looks.is_some_and(|looks| looks < reckons)), "{}", rule.cel);
    }
}
