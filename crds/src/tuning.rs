//! etcd's own settings. What Quorate has to set itself (names, addresses, membership) cannot be set here.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::rules_at;
use crate::{Quantity, QuantityError, Storage};

/// Settings of etcd itself. A change restarts the members one by one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.etcd"))]
pub struct EtcdSettings {
    /// How large the database may become before etcd refuses writes (`--quota-backend-bytes`): 16Mi to 100Gi. The
    /// volume must hold twice the quota plus 512Mi: the write-ahead log, and the copy that a defragmentation or a
    /// received snapshot makes. Unset: what fits into `spec.storage.size` by that rule, at most 2Gi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quantity>,
    /// How etcd drops old revisions by itself.
    pub auto_compaction: AutoCompaction,
    /// How often the leader tells the others that it is there, in milliseconds (`--heartbeat-interval`): 10 to 10000.
    /// About the round trip between members.
    pub heartbeat_interval_millis: i32,
    /// After how long without a heartbeat a member stands for election, in milliseconds (`--election-timeout`). At
    /// least five times the heartbeat, at most 50000.
    pub election_timeout_millis: i32,
    /// After how many changes etcd writes a raft snapshot and shortens its log (`--snapshot-count`): 100 to 10000000.
    /// Set here for every version alike; etcd's own default differs between versions.
    pub snapshot_count: i32,
    /// Further flags of etcd, by name without dashes, in the names of etcd 3.6; for 3.5 they are translated. Only the
    /// flags listed in the API reference are accepted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 1024}))]
    pub extra_flags: BTreeMap<String, String>,
}

/// The quota when nothing is set and the volume is large enough: etcd's own default.
const DEFAULT_QUOTA: u64 = 2 << 30;
/// Room on the volume for the write-ahead log: five files of 64 MiB by default, one being written, one prepared, and
/// some for the raft snapshots.
const LOG_ROOM: u64 = 512 << 20;

impl Default for EtcdSettings {
    fn default() -> Self {
        Self {
            quota: None,
            auto_compaction: AutoCompaction::default(),
            heartbeat_interval_millis: 100,
            election_timeout_millis: 1000,
            snapshot_count: 10_000,
            extra_flags: BTreeMap::new(),
        }
    }
}

impl EtcdSettings {
    /// The quota in force, in bytes: the one set, or the most that the volume holds twice beside the log, up to 2Gi.
    pub fn quota_bytes(&self, storage: &Storage) -> Result<u64, QuantityError> {
        match &self.quota {
            Some(quota) => quota.bytes(),
            None => Ok((storage.size.bytes()?.saturating_sub(LOG_ROOM) / 2).min(DEFAULT_QUOTA)),
        }
    }
}

/// How etcd drops old revisions by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.etcd.autoCompaction"))]
pub struct AutoCompaction {
    /// `Periodic`: keep the revisions of the last `retention`, a duration. `Revision`: keep the last `retention`
    /// revisions.
    pub mode: CompactionMode,
    /// How much to keep: a duration such as `30m` or `1h`, at most `8760h`, for Periodic, a number such as `10000` for
    /// Revision. `0`: etcd drops nothing by itself, which suits a cluster whose client compacts, as Kubernetes does.
    #[schemars(length(min = 1, max = 20))]
    pub retention: String,
}

impl Default for AutoCompaction {
    fn default() -> Self {
        Self { mode: CompactionMode::Periodic, retention: "1h".into() }
    }
}

/// What the retention of old revisions is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CompactionMode {
    /// Time.
    #[default]
    Periodic,
    /// Revisions.
    Revision,
}

impl CompactionMode {
    /// The value of etcd's `--auto-compaction-mode`.
    pub const fn as_flag(self) -> &'static str {
        match self {
            Self::Periodic => "periodic",
            Self::Revision => "revision",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unset_quota_fits_the_volume() {
        let quota = |size: &str| {
            let storage = Storage { size: Quantity::new(size), ..Storage::default() };
            EtcdSettings::default().quota_bytes(&storage)
        };
        assert_eq!(quota("8Gi"), Ok(2 << 30));
        assert_eq!(quota("100Gi"), Ok(2 << 30));
        assert_eq!(quota("1Gi"), Ok(256 << 20));
        assert_eq!(quota("2Gi"), Ok(768 << 20));
    }

    #[test]
    fn a_quota_that_is_set_is_taken_as_it_is() {
        let settings = EtcdSettings { quota: Some(Quantity::new("16Mi")), ..EtcdSettings::default() };
        assert_eq!(settings.quota_bytes(&Storage::default()), Ok(16 << 20));
    }
}
