//! Where a member keeps its data, and what becomes of it. Volumes are made and deleted elsewhere.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Quantity;
use crate::schema::rules_at;

/// Where each member keeps its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.storage"))]
pub struct Storage {
    /// The size of each member's volume; with `ephemeral`, the limit of its emptyDir. At least 1Gi. It can grow, not
    /// shrink, and can't be changed with `ephemeral`. A volume grows if its StorageClass allows it.
    pub size: Quantity,
    /// The StorageClass of the volume claims. Unset: the default class of the Kubernetes cluster. It can't be changed
    /// later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// Keep the data in an emptyDir, which goes away with its pod. A pod that is deleted costs its member, which is
    /// then replaced by a new one; when a majority of pods is deleted the data is lost. For tests and caches. It can't
    /// be changed later.
    pub ephemeral: bool,
    /// What becomes of volumes that are no longer needed. Unset: `onDelete: Retain`, `onScaleDown: Delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

impl Default for Storage {
    fn default() -> Self {
        Self { size: Quantity::new("8Gi"), storage_class_name: None, ephemeral: false, retention: None }
    }
}

impl Storage {
    /// The retention in force.
    pub fn retention(&self) -> Retention {
        self.retention.clone().unwrap_or_default()
    }
}

/// What becomes of volume claims that are no longer needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Retention {
    /// When the EtcdCluster is deleted. `Retain`: its claims stay, with their labels. `Delete`: they are deleted too.
    pub on_delete: OnDelete,
    /// When a member is removed because `spec.replicas` became smaller, or because it was replaced. `Delete`: its claim
    /// is deleted once the removal is committed. `Retain`: it stays.
    pub on_scale_down: OnScaleDown,
}

/// What becomes of volume claims when their EtcdCluster is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDelete {
    /// They stay.
    #[default]
    Retain,
    /// They are deleted.
    Delete,
}

/// What becomes of the volume claim of a member that was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnScaleDown {
    /// It stays.
    Retain,
    /// It is deleted.
    #[default]
    Delete,
}
