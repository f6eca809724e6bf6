//! What Quorate reports about a cluster. Values that change at every look (lag, sizes, times) belong to the metrics.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::schema::Reported;
use crate::{HexId, Ledger, Reason};

/// What Quorate observes, and what it remembers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = Reported)]
pub struct EtcdClusterStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What Quorate is doing. It sums up the conditions for people; programs should read the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known")]
    #[schemars(schema_with = "text")]
    pub phase: Option<Phase>,
    /// `Ready`: the cluster is as asked for. `Available`: it serves reads and writes. `Reconciling`: Quorate is working
    /// towards the spec. `Stalled`: Quorate can't go on without help; the message says which. `CertificatesValid`: every
    /// certificate can be used; the message says until when. `BackupHealthy`: every write reaches the continuous backup
    /// in time; False also if there is none.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// How many members the cluster has.
    pub replicas: i32,
    /// How many members are voters and healthy.
    pub ready_replicas: i32,
    /// The label selector of the cluster's pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The lowest version that a member runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The version that members are being brought to now: `spec.version`, or one on the way there. Unset when all run
    /// what is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// etcd's cluster id, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<HexId>,
    /// The name of the member that leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The members, and the pods that wait to become one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub members: Vec<MemberStatus>,
    /// The continuous backup, as its sidecars tell. Under load it is brought up to date once a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupState>,
    /// The operator's memory. Never edit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger: Option<Ledger>,
}

/// How far the continuous backup has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupState {
    /// The address of the store.
    pub location: String,
    /// Whose backup it is, for `quorate-agent --lineage`: the UID of this object.
    pub lineage: String,
    /// The generation that is recorded into, as `<cluster>/<name>`.
    pub generation: String,
    /// All up to this revision is in the store.
    pub head_revision: i64,
    /// When that revision was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed_at: Option<Time>,
    /// The last revision of the full snapshot that the generation began with.
    pub full_revision: i64,
    /// When that was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_at: Option<Time>,
    /// What came of the last attempt to prove that it restores, as `spec.backup.verify` asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_verified: Option<Verification>,
}

/// What came of an attempt to prove that a backup restores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// `Proved`; `Failed`; or `Unknown` when its Job has ended well and was gone before what it said was read.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known")]
    #[schemars(schema_with = "text")]
    pub result: Option<VerificationResult>,
    /// Why it has failed, or is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was last proved: by this attempt, or by an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proved_at: Option<Time>,
    /// The revision to which it was restored then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// The name of the member, its pod and its volume claim.
    pub name: String,
    /// etcd's id of the member, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<HexId>,
    /// `Voter`, `Learner`, `Waiting` (a pod that has not been told to start), or `Leaving`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known")]
    #[schemars(schema_with = "text")]
    pub role: Option<MemberRole>,
    /// The version that the member runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `Healthy`, `Unhealthy`, or `Unknown` when it couldn't be asked.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known")]
    #[schemars(schema_with = "text")]
    pub health: Option<MemberHealth>,
    /// Why the member is not a healthy voter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A set of words that are written as they are spelled.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $(#[doc = $doc:literal] $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $(#[doc = $doc] $variant),+ }

        impl $name {
            /// Every word.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it is written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }

            /// What it means, as the API reference shows it.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $doc),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use words;

words! {
    /// What Quorate is doing with a cluster.
    Phase {
        /// Nothing has been created yet.
        Pending,
        /// A backup is being restored into the first member.
        Restoring,
        /// The first member is being started.
        Seeding,
        /// Members are being added: to a new cluster, or after `spec.replicas` was raised.
        Growing,
        /// The cluster is as asked for.
        Running,
        /// Members are being removed after `spec.replicas` was lowered.
        Scaling,
        /// A member is being brought back or replaced.
        Healing,
        /// Members are being restarted or resized one by one with changed settings.
        Restarting,
        /// Members are being brought to another version of etcd, one by one.
        Upgrading,
        /// `spec.replicas` is 0: no pods, volumes kept.
        Hibernated,
        /// The volumes of a majority are lost. Members that are merely down are healed.
        QuorumLost,
        /// `spec.paused` is set.
        Paused,
        /// The object is being deleted.
        Deleting,
        /// Quorate can't go on without help.
        Failed,
    }
}

words! {
    /// What a member is to its cluster.
    MemberRole {
        /// It votes.
        Voter,
        /// It follows, and does not vote yet.
        Learner,
        /// Its pod is there and has not been told to start.
        Waiting,
        /// It has been removed; its pod or volume is still going.
        Leaving,
    }
}

words! {
    /// What came of an attempt to prove a backup.
    VerificationResult {
        /// It was restored, and every entry of it was read.
        Proved,
        /// It was not.
        Failed,
        /// Its Job has ended well, but nobody has read what it said.
        Unknown,
    }
}

words! {
    /// What is known of a member's health.
    MemberHealth {
        /// It answers, and follows the leader.
        Healthy,
        /// It does not.
        Unhealthy,
        /// It could not be asked.
        Unknown,
    }
}

words! {
    /// The types of a cluster's conditions. All of them are always there, from the first status on.
    ConditionType {
        /// The cluster is as asked for.
        Ready,
        /// The cluster serves reads and writes.
        Available,
        /// Quorate is working towards the spec.
        Reconciling,
        /// Quorate can't go on without help.
        Stalled,
        /// Every certificate can be used.
        CertificatesValid,
        /// Every write reaches the continuous backup in time.
        BackupHealthy,
    }
}

impl ConditionType {
    /// Those of an EtcdBackup.
    pub const OF_BACKUPS: &'static [Self] = &[Self::Ready, Self::Reconciling, Self::Stalled];

    /// The one of this type; nothing if no operator has told it yet.
    pub fn among(self, conditions: &[Condition]) -> Option<&Condition> {
        conditions.iter().find(|condition| condition.type_ == self.as_str())
    }
}

/// The conditions of an object that no operator has seen yet. Without them, tools that wait for it (kstatus, and by it
/// Helm, Flux and kpt) would take it for ready. Kubernetes fills them in while there is no status; they are Unknown, so
/// that each turns, and gets its date, with the first report.
pub(crate) fn unseen(kinds: &[ConditionType]) -> Vec<Value> {
    let unknown = |kind: &ConditionType| {
        json!({
            "type": kind,
            "status": "Unknown",
            "reason": Reason::Unseen,
            "message": "no operator has looked at this object yet",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        })
    };
    kinds.iter().map(unknown).collect()
}

/// A word that this version knows, or none. One object with a word of a later version must not blind the operator's
/// watch to all the others.
pub(crate) fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let word = Option::<String>::deserialize(deserializer)?;
    Ok(word.and_then(|word| serde_json::from_value(Value::String(word)).ok()))
}

/// The schema of a word in the status: any text. An enum in an older CRD would refuse what a newer operator reports.
pub(crate) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_later_version_reads_as_unknown() -> Result<(), serde_json::Error> {
        let status: EtcdClusterStatus = serde_json::from_value(json!({
            "phase": "Dancing",
            "members": [{ "name": "db-1", "role": "Witness", "health": "Healthy" }],
        }))?;
        assert_eq!(status.phase, None);
        assert_eq!(status.members[0].role, None);
        assert_eq!(status.members[0].health, Some(MemberHealth::Healthy));
        Ok(())
    }

    #[test]
    fn words_are_written_as_they_are_spelled() -> Result<(), serde_json::Error> {
        for phase in Phase::ALL {
            assert_eq!(serde_json::to_value(phase)?, phase.as_str());
        }
        Ok(())
    }
}
