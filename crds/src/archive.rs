//! The continuous backup of a cluster: where it is kept, how fresh it is, and for how long. How it is made is not this
//! crate's matter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::rules_at;
use crate::{BackupStore, Quantity};

/// A continuous backup: a full snapshot now and then, and every event between, so that any revision can be restored. It is
/// written by a sidecar in each member's pod, so adding, changing or removing it restarts the members one by one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules_at("spec.backup"))]
pub struct ContinuousBackup {
    /// Where it is kept: an object store, which every member can write to. Only the sidecars mount its credentials. The
    /// pods run as its `serviceAccountName`, without that account's token.
    #[schemars(transform = rules_at("spec.backup.store"))]
    pub store: BackupStore,
    /// How often what was written is stored, in seconds: what may be lost with the whole cluster.
    #[serde(default = "ten_seconds")]
    pub flush_interval_seconds: i32,
    /// How often a full snapshot begins a new generation, in minutes. Sooner if it has to: when the events since the last
    /// one reach a quarter of `spec.etcd.quota`, when users or roles change, or after a gap.
    #[serde(default = "one_day")]
    pub full_interval_minutes: i32,
    /// How much each sidecar may put aside on its node's disk while the store doesn't take it. If it is more, a full
    /// snapshot follows.
    #[serde(default = "one_gibibyte")]
    pub spill_limit: Quantity,
    /// What is kept of older generations. Without it all of them are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<BackupRetention>,
    /// When it is proved that the backup restores. Changing this restarts no member. Without it, nothing is proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<BackupVerification>,
    /// Whether the members go to another minor version only after a snapshot: an EtcdBackup in the same store, named
    /// `<cluster>-to-<version>-<generation>`. `Require`, the default: if it can't be taken, the version is not changed.
    /// `Skip`: none is taken. Changing this restarts no member.
    #[serde(default, skip_serializing_if = "BeforeUpgrade::is_default")]
    pub before_upgrade: BeforeUpgrade,
}

/// Whether a snapshot comes before another minor version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BeforeUpgrade {
    /// One has to be there.
    #[default]
    Require,
    /// None is taken.
    Skip,
}

impl BeforeUpgrade {
    /// Whether it is what a spec says that does not speak of it.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes it so")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// When it is proved that a continuous backup restores: a CronJob restores its newest state into scratch space, on another
/// node than the members' if there is one, and reads every entry of it. It asks etcd for nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = rules_at("spec.backup.verify"))]
pub struct BackupVerification {
    /// Minute, hour, day of the month, month and day of the week, in UTC: each a number, some numbers with commas between
    /// them, `*` or `*/n`. `30 3 * * *` is half past three each night.
    #[schemars(length(min = 9, max = 200))]
    pub schedule: String,
}

/// What is kept of older generations. One goes only if neither rule keeps it. The rules also apply to what EtcdBackups of
/// this cluster put to the same address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.backup.retention"))]
pub struct BackupRetention {
    /// Keeps so many of the newest generations, however old they are. With `minutes` too, one goes only if neither rule keeps
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generations: Option<i32>,
    /// Keeps what it takes to restore any moment of the last so many minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minutes: Option<i32>,
}

impl ContinuousBackup {
    /// One to this store, with the defaults.
    pub fn to(store: BackupStore) -> Self {
        Self {
            store,
            flush_interval_seconds: ten_seconds(),
            full_interval_minutes: one_day(),
            spill_limit: one_gibibyte(),
            retention: None,
            verify: None,
            before_upgrade: BeforeUpgrade::default(),
        }
    }
}

fn ten_seconds() -> i32 {
    10
}

fn one_day() -> i32 {
    24 * 60
}

fn one_gibibyte() -> Quantity {
    Quantity::new("1Gi")
}
