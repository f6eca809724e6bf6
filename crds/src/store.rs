//! Where backups are kept. What is in a store is not this crate's matter.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LocalSecret;

/// Where backups are kept: an object store, or a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupStore {
    /// `s3://bucket/prefix`, `gs://bucket/prefix` or `azure://account/container/prefix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub address: Option<String>,
    /// Instead of an address: a volume claim of the same namespace, which is mounted where it is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_claim: Option<VolumeClaim>,
    /// Options of the object store: `endpoint`, `region`, `addressing` (`path`, `virtual-hosted`), `payload` (`signed`,
    /// `unsigned`), `kms-key`. Unknown ones are refused when the store is opened.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "options")]
    pub options: BTreeMap<String, String>,
    /// A Secret with the store's credentials. S3: `access-key-id`, `secret-access-key`, perhaps `session-token`. Google:
    /// `service-account.json`. Azure: `account-key`; or `sas-token`; or `tenant-id`, `client-id` and `client-secret`. Each
    /// may also have `ca.crt`, whom to trust. The operator does not read it: only what takes or restores a backup mounts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<LocalSecret>,
    /// Encrypts what is stored, before it leaves the pod that writes it. Without it, whoever can read the store can read the
    /// backups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// The ServiceAccount that the backup is taken or restored as, for credentials that the provider ties to it. Without it
    /// there is no account's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
}

/// With which keys backups are encrypted. They are keys of age (X25519), as `age-keygen` makes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Encryption {
    /// A Secret in the same namespace. `recipients`: public keys, one a line, for which backups are written; that is all that
    /// taking them needs. `identity`: the private key, which restoring and proving them needs, in the form that `age-keygen`
    /// writes; several, if backups of before a change of keys are to be read, too. What writes is shown no `identity`, and the
    /// operator reads neither.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
}

/// The name of a volume claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeClaim {
    /// The claim's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Values with a bound, so that rules may walk them.
fn options(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 8,
        "additionalProperties": { "type": "string", "maxLength": 1024 },
    })
}
