//! Copies a generation to another store, byte for byte. Each manifest follows its data, so what is there at any moment is a
//! backup; a copy that was stopped goes on where it was.

use bytes::Bytes;

use crate::format::{Chain, CommitError, Data, GenerationKey, Hasher, MANIFEST_LIMIT, commit};
use crate::store::{Key, Store, StoreError};

/// What is read by one request, in bytes.
const READ: u64 = 8 << 20;

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Manifests that were copied, or whose data was.
    pub manifests: u64,
    /// Manifests that were there already, with data of the right size.
    pub present: u64,
    /// Bytes of data that were copied.
    pub bytes: u64,
}

/// Why a generation was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// One of the stores fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The target has something else under that name.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// An object of the origin is damaged.
    #[error("{0} is damaged or another object: its BLAKE3 hash is not the one in the manifest")]
    Hash(Key),
    /// A manifest that was read before is gone.
    #[error("{0} is not there any more")]
    Gone(Key),
}

/// Copies a generation. `report` is told the bytes that are done, of all.
pub async fn copy(from: &Store, to: &Store, chain: &Chain, report: impl Fn(u64, u64)) -> Result<Copied, CopyError> {
    to.prepare().await?;
    let first = (chain.key.full(), &chain.full.data);
    let rest = chain.links.iter().map(|link| (chain.key.delta(link.delta.from), &link.delta.data));
    let parts: Vec<_> = std::iter::once(first).chain(rest).collect();
    let total = parts.iter().map(|(_, data)| data.stored_bytes()).sum();
    let (mut copied, mut done) = (Copied::default(), 0);
    for (key, data) in parts {
        let manifest = from.read(&key, MANIFEST_LIMIT).await?.ok_or_else(|| CopyError::Gone(key.clone()))?;
        let committed = to.read(&key, MANIFEST_LIMIT).await?.as_ref() == Some(&manifest);
        // A manifest is no proof of its data: that may have gone, or have been cut, since.
        if committed && to.size(&chain.key.data(&data.name)).await? == Some(data.stored_bytes()) {
            copied.present += 1;
        } else {
            object(from, to, &chain.key, data, |bytes| report(done + bytes, total)).await?;
            if !committed {
                commit(to, &key, manifest.to_vec()).await?;
            }
            copied.manifests += 1;
            copied.bytes += data.stored_bytes();
        }
        done += data.stored_bytes();
        report(done, total);
    }
    Ok(copied)
}

async fn object(
    from: &Store,
    to: &Store,
    generation: &GenerationKey,
    data: &Data,
    report: impl Fn(u64),
) -> Result<(), CopyError> {
    let key = generation.data(&data.name);
    let mut upload = to.upload(&key);
    let mut hasher = Hasher::new();
    let size = data.stored_bytes();
    let mut begin = 0;
    while begin < size {
        let end = size.min(begin + READ);
        let piece: Bytes = from.read_range(&key, begin..end).await?;
        hasher.update(&piece);
        upload.write(piece).await?;
        begin = end;
        report(begin);
    }
    if hasher.finish() != data.blake3 {
        upload.abort().await;
        return Err(CopyError::Hash(key));
    }
    Ok(upload.finish().await?)
}
