//! The Secrets that a store names. Whether they are there is asked; what is in them never.

use std::fmt;

use k8s_openapi::api::core::v1::Secret;
use quorate_crds::BackupStore;

use crate::api::{Error, Kube};

/// What a Secret holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The store's credentials.
    Credentials,
    /// The keys of encrypted backups.
    Keys,
}

impl Holds {
    /// The field of a store that names it.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Credentials => "credentials",
            Self::Keys => "encryption",
        }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Credentials => "credentials",
            Self::Keys => "keys",
        })
    }
}

/// A Secret that a store names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed<'a> {
    /// Its name.
    pub name: &'a str,
    /// What for.
    pub holds: Holds,
}

/// Those that this store names.
fn needed(store: &BackupStore) -> impl Iterator<Item = Needed<'_>> {
    let credentials = store.credentials.as_ref().map(|secret| (&secret.name, Holds::Credentials));
    let keys = store.encryption.as_ref().map(|encryption| (&encryption.secret_name, Holds::Keys));
    credentials.into_iter().chain(keys).map(|(name, holds)| Needed { name, holds })
}

/// The first of them that is not there.
pub async fn missing<'a>(kube: &Kube, namespace: &str, store: &'a BackupStore) -> Result<Option<Needed<'a>>, Error> {
    for needed in needed(store) {
        if !kube.exists::<Secret>(namespace, needed.name).await? {
            return Ok(Some(needed));
        }
    }
    Ok(None)
}
