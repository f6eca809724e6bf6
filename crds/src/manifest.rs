//! The CustomResourceDefinitions as Kubernetes takes them, and as YAML for `deploy/`. It writes no files.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value};

use crate::names::ANNOTATION_QUORATE;
use crate::{EtcdBackup, EtcdCluster};

/// Where the YAML of EtcdCluster is kept, from the root of the repository.
pub const CLUSTER_CRD_FILE: &str = "deploy/base/crds/etcdclusters.yaml";

/// Where the YAML of EtcdBackup is kept, from the root of the repository.
pub const BACKUP_CRD_FILE: &str = "deploy/base/crds/etcdbackups.yaml";

/// The version of Quorate that the definitions here are of.
pub const QUORATE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why a definition can't be written down.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The definition has no form in JSON.
    #[error("failed to turn the definition into JSON")]
    Json(#[from] serde_json::Error),
    /// The definition has no form in YAML.
    #[error("failed to turn the definition into YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// The definition of EtcdCluster.
pub fn cluster() -> CustomResourceDefinition {
    of_this_version(EtcdCluster::crd())
}

/// The definition of EtcdBackup.
pub fn backup() -> CustomResourceDefinition {
    of_this_version(EtcdBackup::crd())
}

fn of_this_version(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let version = (ANNOTATION_QUORATE.to_owned(), QUORATE_VERSION.to_owned());
    definition.metadata.annotations.get_or_insert_default().extend([version]);
    definition
}

/// A definition as YAML, the same on every machine and with every set of features.
pub fn to_yaml(definition: &CustomResourceDefinition) -> Result<String, ManifestError> {
    let sorted = sorted(serde_json::to_value(definition)?);
    Ok(format!(
        "# Written by `make crds` from the types in crds/. Change them there.\n{}",
        serde_saphyr::to_string(&sorted)?
    ))
}

/// The same value with its keys in order: serde_json keeps or sorts them, depending on a feature that any crate can turn on.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(Map::from_iter(entries))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}
