//! How a container of the agent's comes to a store: the variables that it reads, and the Secrets or the volume that it mounts.
//! Only who is given these sees the store's credentials and, of its keys, those that it needs: who writes none that reads.

use k8s_openapi::api::core::v1::{
    EnvVar, KeyToPath, PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume, VolumeMount,
};
use quorate_crds::{BackupStore, Encryption};

use super::pod::{mount, value};

/// Where a volume for backups is mounted.
const VOLUME_FOLDER: &str = "/backups";
/// Where the store's credentials are.
const CREDENTIALS_FOLDER: &str = "/etc/quorate/store";
/// Where the keys of encrypted backups are.
const KEYS_FOLDER: &str = "/etc/quorate/keys";
/// Only for the group of the pod.
pub const FILE_MODE: i32 = 0o440;

/// What is done with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Backups are written to it.
    Write,
    /// Backups are written to it beside etcd, which must start also where its Secret is missing.
    WriteBeside,
    /// A backup in it is proved.
    Prove,
    /// A backup is deleted from it.
    Delete,
    /// A backup is read from it, once. Its Secret may be gone when the pod's container is started again.
    ReadOnce,
}

impl Use {
    /// Whether the pod is to start also where a Secret is missing.
    fn may_lack_secrets(self) -> bool {
        match self {
            Self::WriteBeside | Self::ReadOnce => true,
            Self::Write | Self::Prove | Self::Delete => false,
        }
    }

    /// The variable that names the file with the keys for it, and what both that file and its key in the Secret are called.
    fn keys(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Write | Self::WriteBeside => Some(("QUORATE_RECIPIENTS_FILE", "recipients")),
            Self::Prove | Self::ReadOnce => Some(("QUORATE_IDENTITY_FILE", "identity")),
            Self::Delete => None,
        }
    }
}

/// What a container and its pod need for a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    /// For the container.
    pub env: Vec<EnvVar>,
    /// For the container.
    pub mounts: Vec<VolumeMount>,
    /// For the pod.
    pub volumes: Vec<Volume>,
}

/// The way to this store.
pub fn access(store: &BackupStore, what_for: Use) -> Access {
    let BackupStore { address, volume_claim, options, credentials, encryption, service_account_name: _ } = store;
    let address = address.clone().unwrap_or_else(|| format!("file://{VOLUME_FOLDER}"));
    let mut access = Access { env: vec![value("QUORATE_STORE", &address)], ..Access::default() };
    if !options.is_empty() {
        let options: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        access.env.push(value("QUORATE_STORE_OPTIONS", &options.join(",")));
    }
    if let Some(secret) = credentials {
        access.env.push(value("QUORATE_STORE_CREDENTIALS", CREDENTIALS_FOLDER));
        access.volumes.push(secret_volume("store", &secret.name, what_for.may_lack_secrets()));
        access.mounts.push(mount("store", CREDENTIALS_FOLDER, true));
    }
    if let (Some(Encryption { secret_name }), Some((variable, key))) = (encryption, what_for.keys()) {
        access.env.push(value(variable, &format!("{KEYS_FOLDER}/{key}")));
        access.volumes.push(key_volume(secret_name, key));
        access.mounts.push(mount("keys", KEYS_FOLDER, true));
    }
    if let Some(claim) = volume_claim {
        let claim = PersistentVolumeClaimVolumeSource { claim_name: claim.name.clone(), read_only: None };
        access.volumes.push(Volume {
            name: "backups".into(),
            persistent_volume_claim: Some(claim),
            ..Volume::default()
        });
        access.mounts.push(mount("backups", VOLUME_FOLDER, what_for == Use::ReadOnce));
    }
    access
}

/// The volume of a Secret. An optional one may not be there.
pub fn secret_volume(name: &str, secret: &str, optional: bool) -> Volume {
    let secret = SecretVolumeSource {
        secret_name: Some(secret.to_owned()),
        default_mode: Some(FILE_MODE),
        optional: optional.then_some(true),
        ..SecretVolumeSource::default()
    };
    Volume { name: name.to_owned(), secret: Some(secret), ..Volume::default() }
}

/// The volume with one key of a Secret. It may not be there: then the agent, which knows what it is for, says what is missing.
fn key_volume(secret: &str, key: &str) -> Volume {
    let mut volume = secret_volume("keys", secret, true);
    if let Some(source) = &mut volume.secret {
        source.items = Some(vec![KeyToPath { key: key.to_owned(), path: key.to_owned(), mode: None }]);
    }
    volume
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn who_writes_sees_public_keys_who_reads_private_ones_and_who_deletes_none() {
        let encryption = Some(Encryption { secret_name: "keys".into() });
        let store = BackupStore { address: Some("s3://bucket".into()), encryption, ..BackupStore::default() };
        for (what_for, variable, key) in [
            (Use::Write, "QUORATE_RECIPIENTS_FILE", "recipients"),
            (Use::WriteBeside, "QUORATE_RECIPIENTS_FILE", "recipients"),
            (Use::Prove, "QUORATE_IDENTITY_FILE", "identity"),
            (Use::ReadOnce, "QUORATE_IDENTITY_FILE", "identity"),
        ] {
            let Access { env, mounts, volumes } = access(&store, what_for);
            let file = format!("/etc/quorate/keys/{key}");
            assert_eq!(to_value(&env[1..]).unwrap(), json!([{ "name": variable, "value": file }]), "{what_for:?}");
            let items = json!([{ "key": key, "path": key }]);
            let secret = json!({ "secretName": "keys", "defaultMode": 288, "optional": true, "items": items });
            assert_eq!(to_value(volumes).unwrap(), json!([{ "name": "keys", "secret": secret }]));
            let mount = json!([{ "name": "keys", "mountPath": "/etc/quorate/keys", "readOnly": true }]);
            assert_eq!(to_value(mounts).unwrap(), mount);
        }
        assert_eq!(access(&store, Use::Delete).volumes, []);
        assert_eq!(access(&BackupStore { encryption: None, ..store }, Use::Write).volumes, []);
    }
}
