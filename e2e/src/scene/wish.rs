//! What a scene asks for: the manifest of an EtcdCluster as a user writes it. Plain JSON, so that wrong ones can be
//! written too.

use serde_json::{Value, json};

use super::ETCD_VARIABLE;
use crate::tools::Etcd;

/// The version of etcd of a cluster for which a scene names none: the one that was chosen, or the operator's default.
pub fn usual_etcd() -> String {
    chosen_etcd().unwrap_or_else(|| Etcd::V3_6.version().to_owned())
}

fn chosen_etcd() -> Option<String> {
    std::env::var(ETCD_VARIABLE).ok().filter(|version| !version.is_empty())
}

/// An EtcdCluster to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    name: String,
    spec: Value,
}

impl Wish {
    /// A cluster of this size, on small volumes that go when it is deleted.
    pub fn new(name: &str, replicas: u8) -> Self {
        let spec = json!({
            "replicas": replicas,
            "storage": { "size": "1Gi", "retention": { "onDelete": "Delete" } },
        });
        let wish = Self { name: name.to_owned(), spec };
        match chosen_etcd() {
            Some(version) => wish.version(&version),
            None => wish,
        }
    }

    /// The same, on this version of etcd.
    pub fn version(self, version: &str) -> Self {
        self.with("/version", json!(version))
    }

    /// The same with one field of the spec set, by its JSON pointer. Objects on the way are created.
    pub fn with(mut self, pointer: &str, value: Value) -> Self {
        let mut at = &mut self.spec;
        for key in pointer.trim_start_matches('/').split('/') {
            if !at.is_object() {
                *at = json!({});
            }
            at = &mut at[key];
        }
        *at = value;
        self
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The manifest.
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": format!("{}/{}", quorate_crds::names::GROUP, quorate_crds::names::VERSION),
            "kind": "EtcdCluster",
            "metadata": { "name": self.name },
            "spec": self.spec,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_set_wherever_it_lies() {
        let wish = Wish::new("db", 3).version("3.7.3").with("/storage/ephemeral", json!(true)).with("/a/b", json!(1));
        let object = wish.object();
        assert_eq!(object["spec"]["version"], "3.7.3");
        assert_eq!(
            object["spec"]["storage"],
            json!({ "size": "1Gi", "retention": { "onDelete": "Delete" }, "ephemeral": true })
        );
        assert_eq!(object["spec"]["a"]["b"], 1);
        assert_eq!(object["apiVersion"], "quorate.dev/v1alpha1");
    }
}
