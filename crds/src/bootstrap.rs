//! What a new cluster begins with. It is read once in a cluster's life.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::BackupStore;
use crate::schema::rules_at;

/// What the cluster begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = rules_at("spec.bootstrap"))]
pub struct Bootstrap {
    /// A backup that is restored into the first member before it starts: from an EtcdBackup, or from a store.
    pub restore: Restore,
}

/// Which backup is restored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.bootstrap.restore"))]
pub struct Restore {
    /// The EtcdBackup, in the same namespace. If it is still being taken, it is waited for. Its store and credentials are
    /// used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<LocalBackup>,
    /// Instead of an EtcdBackup: where backups are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = rules_at("spec.bootstrap.restore.store"))]
    pub store: Option<BackupStore>,
    /// With a store: whose backups, for several clusters may share one. The UID of the EtcdCluster, or what
    /// `quorate-agent --lineage` was given. `quorate-agent list` shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub lineage: Option<String>,
    /// With a store: only this generation, as `quorate-agent list` shows it. Without it, the one that fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub generation: Option<String>,
    /// With a store: the state after this revision. Without it and a time, the newest there is. One that lies before a full
    /// snapshot can be had if etcd had not compacted it by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// With a store: the state at this time, as `2026-11-21T14:25:36Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time: Option<String>,
}

/// The name of an EtcdBackup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalBackup {
    /// The EtcdBackup's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}
