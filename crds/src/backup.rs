//! The kind EtcdBackup: one snapshot of a cluster, taken once. Where it is kept is described in a file of its own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{self, ReportedBackup, Structural, rules_at};
use crate::status::{known, text, words};
use crate::{BackupStore, HexId};

/// What the user asks for. But for `deletionPolicy` it can't be changed: create another EtcdBackup.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "quorate.dev",
    version = "v1alpha1",
    kind = "EtcdBackup",
    namespaced,
    status = "EtcdBackupStatus",
    derive = "PartialEq",
    doc = "A snapshot of an EtcdCluster that Quorate takes once and puts into a store.",
    shortname = "etcdb",
    category = "quorate",
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".spec.cluster",
        description = "The EtcdCluster that is backed up"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "How far it is"),
    printcolumn(
        name = "Progress",
        type_ = "string",
        json_path = ".status.progress.shown",
        description = "How much of the database was read, while it is being taken"
    ),
    printcolumn(
        name = "Revision",
        type_ = "integer",
        json_path = ".status.revision",
        description = "The last revision in it"
    ),
    printcolumn(
        name = "Size",
        type_ = "string",
        json_path = ".status.size",
        description = "What it takes in the store"
    ),
    printcolumn(name = "Took", type_ = "string", json_path = ".status.duration", description = "How long it took"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Location",
        type_ = "string",
        json_path = ".status.location",
        priority = 1,
        description = "Where it is"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1,
        description = "Why it is, or is not, complete"
    ),
    validation = schema::backup_name_leaves_room()
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules_at("EtcdBackup.spec"), transform = Structural)]
pub struct EtcdBackupSpec {
    /// The name of the EtcdCluster, in the same namespace.
    #[schemars(length(min = 1, max = 40))]
    pub cluster: String,
    /// Where the backup is kept.
    #[schemars(transform = rules_at("EtcdBackup.spec.store"))]
    pub store: BackupStore,
    /// For how many minutes it is tried, counted from the creation of this object. After that it has failed.
    #[serde(default = "one_hour")]
    pub timeout_minutes: i32,
    /// How many minutes after its end this object is deleted, as if by hand; one that is complete not before each EtcdCluster
    /// that begins with it has begun. Without it the object stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_minutes: Option<i32>,
    /// What becomes of the backup in the store when this object is deleted, also by `ttlMinutes`. `Retain`: it stays.
    /// `Delete`: a Job deletes it first. If that can't be done, the object goes all the same after half an hour at most, and
    /// an event names what is left.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// What becomes of a backup in the store when its EtcdBackup is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It stays.
    #[default]
    Retain,
    /// It is deleted.
    Delete,
}

fn one_hour() -> i32 {
    60
}

/// What Quorate observes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = ReportedBackup)]
pub struct EtcdBackupStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Pending`, `Running`, `Complete`, `Failed` or `Deleting`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known")]
    #[schemars(schema_with = "text")]
    pub phase: Option<BackupPhase>,
    /// `Ready`: the backup is in the store, whole and proved. `Reconciling`: it is being taken, or waits. `Stalled`: it
    /// has failed for good; the message says why.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// How far it is, while it is being taken. Brought up to date every five seconds at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<BackupProgress>,
    /// When its Job was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it was seen to be complete, or to have failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// The last revision in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Up to where that history had been compacted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact_revision: Option<i64>,
    /// The version of etcd that it was taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_version: Option<String>,
    /// etcd's cluster id, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<HexId>,
    /// The client URL of the member that it was taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The size of the database, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database_bytes: Option<i64>,
    /// What it takes in the store, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<i64>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// How long the snapshot took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// The address of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Whose backup it is, for `quorate-agent --lineage`: the UID of the EtcdCluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// The manifest in the store, by which the backup is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The BLAKE3 hash of the manifest, which holds the hash of everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// To which public keys it is encrypted: the first 16 digits of the BLAKE3 hash of each (`printf %s age1... | b3sum`).
    /// Nothing here: it is not encrypted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub encrypted_to: Vec<String>,
}

/// How far a backup is that is being taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupProgress {
    /// When it was so.
    pub at: Time,
    /// How much of the database was read, in bytes.
    pub read_bytes: i64,
    /// The size of the database, in bytes, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<i64>,
    /// How much was given to the store, in bytes: it is compressed.
    pub stored_bytes: i64,
    /// The same for people.
    pub shown: String,
}

words! {
    /// How far a backup is.
    BackupPhase {
        /// It waits for its cluster.
        Pending,
        /// Its Job is there.
        Running,
        /// It is in the store, whole and proved.
        Complete,
        /// It has failed for good.
        Failed,
        /// It is being deleted from the store, because the object is being deleted.
        Deleting,
    }
}
