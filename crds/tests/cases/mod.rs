//! The tables of wrong and of right specs, as read: for the tests of the rules, and for the scene that puts them to a real
//! API server.

use serde::Deserialize;
use serde_json::Value;

/// One line of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it is called.
    #[serde(rename = "case")]
    pub id: String,
    /// The object's name, if that is another.
    pub name: Option<String>,
    /// The accepted spec that is changed. None: the object is created.
    pub from: Option<Value>,
    /// The spec.
    pub spec: Option<Value>,
    /// A part of what is said against it. None: nothing is.
    pub refused: Option<String>,
    /// Refused by the schema itself, before any rule.
    #[serde(default)]
    pub schema: bool,
}

impl Case {
    /// The object's name.
    pub fn name(&self) -> &str {
        self.name.as_ref().unwrap_or(&self.id)
    }
}

/// Those that must be refused.
pub fn wrong() -> Vec<Case> {
    table(include_str!("../../testdata/wrong-specs.yaml"))
}

/// Those that must not.
pub fn right() -> Vec<Case> {
    table(include_str!("../../testdata/right-specs.yaml"))
}

fn table(yaml: &str) -> Vec<Case> {
    serde_saphyr::from_str(yaml).expect("the table of cases is well-formed")
}
