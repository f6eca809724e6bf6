//! Commits a manifest: writes it under its one legal name only if nobody else has. This is the moment from which on a
//! backup is there.

use std::time::Duration;

use bytes::Bytes;

use crate::store::{Creation, Key, Store, StoreError, retries};

/// How old data has to be, by the store's clock, before it is garbage if no manifest refers to it.
pub const GARBAGE_AGE: Duration = Duration::from_hours(24);
/// How long after the begin of its data a manifest may be committed. Half of [`GARBAGE_AGE`], so that no clock's error can
/// make garbage of what is about to be referred to.
pub const COMMIT_WITHIN: Duration = Duration::from_hours(12);

/// Why a manifest is not there.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Another writer was first. What was to be committed is void.
    #[error("failed to commit {0}: another writer has committed it")]
    Lost(Key),
    /// The store fails. Whether the manifest is there is not known.
    #[error("failed to commit, and whether {key} is there is not known: {source}")]
    Store {
        /// The manifest.
        key: Key,
        /// How it failed.
        source: Box<StoreError>,
    },
    /// The store says that the manifest exists, and does not show it.
    #[error("failed to commit {0}: the store says that it exists, and does not show it")]
    Inconsistent(Key),
}

/// Commits `manifest` as `key`. It must hold something that no other writer would write, such as a nonce.
pub async fn commit(store: &Store, key: &Key, manifest: Vec<u8>) -> Result<(), CommitError> {
    let manifest = Bytes::from(manifest);
    let mut last = CommitError::Inconsistent(key.clone());
    for attempt in 0..retries::TRIES {
        retries::before_try(attempt).await;
        match try_once(store, key, &manifest).await {
            Ok(Some(())) => return Ok(()),
            Ok(None) => last = CommitError::Inconsistent(key.clone()),
            Err(error @ CommitError::Lost(_)) => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// `None` says that it isn't there although the store said so: it may be on another writer's way.
async fn try_once(store: &Store, key: &Key, manifest: &Bytes) -> Result<Option<()>, CommitError> {
    let put = store.create(key, manifest.clone()).await;
    if matches!(put, Ok(Creation::Created)) {
        return Ok(Some(()));
    }
    // A refusal or an error says nothing: our own answer may have been lost, and a repeated request refused because the
    // first one had come through. Only what lies there now decides.
    let fault = |source| CommitError::Store { key: key.clone(), source: Box::new(source) };
    match store.read(key, manifest.len() as u64).await {
        Ok(Some(found)) if found == *manifest => Ok(Some(())),
        Ok(Some(_)) | Err(StoreError::TooLarge { .. }) => Err(CommitError::Lost(key.clone())),
        Ok(None) => put.map(|_| None).map_err(fault),
        Err(source) => Err(fault(source)),
    }
}
