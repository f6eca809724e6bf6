//! Deletes one backup that somebody names, and nothing else. What a continuous backup has gone on from stays: with its full
//! snapshot every later revision of it would be lost.

use super::prune::{Pruned, remove_generation};
use crate::format::{Full, GenerationKey, Hash, MANIFEST_LIMIT, ManifestFault, has_deltas};
use crate::store::{Key, Store, StoreError};

/// Why a backup was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its name is another's.
    #[error("{key} is not the manifest that was named: its BLAKE3 hash is {found}")]
    Another {
        /// The manifest.
        key: Key,
        /// What is there.
        found: Hash,
    },
    /// Whether anything goes on from it can't be told.
    #[error("{key} is damaged: {fault}")]
    Damaged {
        /// The manifest.
        key: Key,
        /// What is wrong.
        fault: ManifestFault,
    },
    /// There are deltas after it.
    #[error("a continuous backup has gone on from {0}: its retention or `quorate-agent prune` removes it")]
    GoneOnFrom(GenerationKey),
    /// Some of its objects are still there.
    #[error("{count} of its objects could not be deleted, the first because {first}")]
    Left {
        /// How many.
        count: usize,
        /// Why the first of them is.
        first: String,
    },
}

impl DeleteError {
    /// Whether a repetition would end the same way.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Another { .. } | Self::Damaged { .. } | Self::GoneOnFrom(_) => true,
            Self::Store(_) | Self::Left { .. } => false,
        }
    }
}

/// Deletes a full snapshot whose manifest has this hash. What is gone already is as good as deleted, so that it can be
/// repeated.
pub async fn delete(store: &Store, generation: &GenerationKey, manifest: Hash) -> Result<Pruned, DeleteError> {
    let key = generation.full();
    // Without it, it is no backup any more, and the rest of it is what an earlier try left; but for deltas, which go on from
    // none that was to be deleted: somebody may put their full back.
    if let Some(bytes) = store.read(&key, MANIFEST_LIMIT).await? {
        let found = Hash::of(&bytes);
        if found != manifest {
            return Err(DeleteError::Another { key, found });
        }
        let full = Full::read(&bytes, generation).map_err(|fault| DeleteError::Damaged { key, fault })?;
        // Not by a listing, which may be late.
        if store.size(&generation.delta(full.revision.next())).await?.is_some() {
            return Err(DeleteError::GoneOnFrom(generation.clone()));
        }
    } else if has_deltas(store, generation).await? {
        return Err(DeleteError::GoneOnFrom(generation.clone()));
    }
    let mut pruned = Pruned::default();
    remove_generation(store, generation, &mut pruned).await?;
    match pruned.failed.first() {
        Some(first) => Err(DeleteError::Left { count: pruned.failed.len(), first: first.clone() }),
        None => Ok(pruned),
    }
}
