//! The ledger: what the operator has to remember because nothing else can prove it afterwards. Only the operator writes it.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The operator's memory, written by compare-and-swap before the act that it records. Never edit it: a wrong entry can
/// start a member on the wrong volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// Whether the first member has been told to create the cluster. It happens once in a cluster's life.
    pub seeded: bool,
    /// The serial of that first member, until it was seen serving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// etcd's cluster id, in hexadecimal, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<HexId>,
    /// The serial of the next member. Serials only go up and are never used again.
    pub next_serial: u32,
    /// The members that have been given a volume, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<String, LedgerMember>,
    /// The oldest line of etcd, as `3.5`, in whose form the members' logs may hold entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_log: Option<String>,
    /// Whether every member has taken a snapshot behind which its older entries lie.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub logs_cut: bool,
    /// The release that a member failed on and was taken back from. It is not tried again until `spec.version` or
    /// `spec.image` is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedRelease>,
}

/// A version of etcd and the image that holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LedgerRelease {
    /// The version.
    pub version: String,
    /// The reference of the image.
    pub image: String,
}

/// A release that a member failed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedRelease {
    /// The release.
    pub release: LedgerRelease,
    /// What the spec asked for at that time.
    pub wished: LedgerRelease,
    /// The serial of the member.
    pub serial: u32,
}

/// What is remembered of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LedgerMember {
    /// The UID of the member's volume claim; with ephemeral storage, of its pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// What that volume was marked with, by the agent, when a ticket to create was first issued. One that was emptied since has
    /// another mark or none, and is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
    /// The node on which the member was started last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether a ticket to create the member's data was issued, for exactly this volume. After that the member may only
    /// resume, or create again on the same volume while it holds no entry.
    pub create: bool,
    /// etcd's id of the member, in hexadecimal, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<HexId>,
    /// Whether it was a voter when etcd's member list was last read; with an id and without this, a learner.
    pub voter: bool,
    /// What it was last told to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<LedgerRelease>,
    /// What it ran before, until it is seen well on that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub former: Option<LedgerRelease>,
}

/// One of etcd's 64-bit ids, written as etcdctl shows it: in hexadecimal without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct HexId(String);

impl HexId {
    /// The id as text.
    pub fn new(id: u64) -> Self {
        Self(format!("{id:x}"))
    }

    /// The id as a number; none if the text is not an id, which only an edit by hand can cause.
    pub fn get(&self) -> Option<u64> {
        let digits_only = self.0.bytes().all(|b| b.is_ascii_hexdigit());
        digits_only.then(|| u64::from_str_radix(&self.0, 16).ok()).flatten()
    }

    /// The id as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<u64> for HexId {
    fn from(id: u64) -> Self {
        Self::new(id)
    }
}

impl fmt::Display for HexId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_is_read_back(id in any::<u64>()) {
            prop_assert_eq!(HexId::new(id).get(), Some(id));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,20}") {
            let id: HexId = serde_json::from_value(serde_json::Value::String(text)).map_err(|e| TestCaseError::fail(e.to_string()))?;
            let _ = id.get();
        }
    }

    #[test]
    fn what_is_no_id_has_no_number() {
        for text in ["", "+1", "0x1", "12345678901234567", "zz"] {
            assert_eq!(HexId(text.into()).get(), None, "{text}");
        }
    }
}
