//! How a container of the agent's comes to a store: the variables that it reads, and the Secret or the volume that it mounts.
//! Only who is given these sees the store's credentials.

use k8s_openapi::api::core::v1::{EnvVar, PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume, VolumeMount};
use quorate_crds::BackupStore;

use super::pod::{mount, value};

/// Where a volume for backups is mounted.
const VOLUME_FOLDER: &str = "/backups";
/// Where the store's credentials are.
const CREDENTIALS_FOLDER: &str = "/etc/quorate/store";
/// Only for the group of the pod.
pub const FILE_MODE: i32 = 0o440;

/// What is done with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Backups are written to it.
    Write,
    /// Backups are written to it beside etcd, which must start also where its Secret is missing.
    WriteBeside,
    /// A backup is read from it, once. Its Secret may be gone when the pod's container is started again.
    ReadOnce,
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
    let BackupStore { address, volume_claim, options, credentials, service_account_name: _ } = store;
    let address = address.clone().unwrap_or_else(|| format!("file://{VOLUME_FOLDER}"));
    let mut access = Access { env: vec![value("QUORATE_STORE", &address)], ..Access::default() };
    if !options.is_empty() {
        let options: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        access.env.push(value("QUORATE_STORE_OPTIONS", &options.join(",")));
    }
    if let Some(secret) = credentials {
        access.env.push(value("QUORATE_STORE_CREDENTIALS", CREDENTIALS_FOLDER));
        access.volumes.push(secret_volume("store", &secret.name, what_for != Use::Write));
        access.mounts.push(mount("store", CREDENTIALS_FOLDER, true));
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
