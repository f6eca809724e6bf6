//! Reads a generation: its full snapshot's manifest, and delta after delta, each proved to follow the one before. Listings
//! only make it faster; what is there is found by asking for the one name that may come next.

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use jiff::Timestamp;

use super::hash::Hash;
use super::manifest::{Data, Delta, Full, MANIFEST_LIMIT, ManifestFault, Sample};
use super::names::{Cluster, GenerationKey, GenerationName, Lineage, Revision};
use crate::store::{Key, Listed, Store, StoreError};

/// Manifests that are read ahead at once.
const AHEAD: usize = 16;

/// Why a generation can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no full snapshot: the first one is being taken, or it was deleted.
    #[error("generation {0} has no full snapshot")]
    NoFull(GenerationKey),
    /// A manifest is damaged.
    #[error("{key} is damaged: {fault}")]
    Manifest {
        /// Which.
        key: Key,
        /// What is wrong.
        fault: ManifestFault,
    },
    /// A delta does not follow the manifest before it.
    #[error("{0} does not follow the manifest before it: one of the two was exchanged or damaged")]
    Broken(Key),
    /// A manifest is missing, and later ones are there.
    #[error("{missing} is missing, and {next} is there: the history breaks off after revision {after}")]
    Gap {
        /// What should be there.
        missing: Key,
        /// What comes after it.
        next: Key,
        /// The last revision before it.
        after: Revision,
    },
}

/// A delta with the hash by which the next one knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its manifest.
    pub delta: Delta,
    /// The hash of that, as it is stored.
    pub hash: Hash,
}

/// A generation's manifests, all proved to belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Where it is.
    pub key: GenerationKey,
    /// Where it begins.
    pub full: Full,
    /// The hash of that manifest, as it is stored.
    pub full_hash: Hash,
    /// The deltas, in order.
    pub links: Vec<Link>,
}

impl Chain {
    /// Reads a generation up to its head: all of it, or an error. [`super::Reading`] is as much as is sound.
    pub async fn read(store: &Store, key: &GenerationKey) -> Result<Self, ChainError> {
        let (chain, ended) = Self::read_as_far(store, key, &|_, _| {}).await?;
        ended.map(|()| chain)
    }

    /// Reads its full snapshot, and its deltas as far as they are sound; with what is wrong with the next one. `report` is told
    /// how many manifests have been read, of all that a listing shows.
    pub(super) async fn read_as_far(
        store: &Store,
        key: &GenerationKey,
        report: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(Self, Result<(), ChainError>), ChainError> {
        let (full, full_hash) = full(store, key).await?;
        let mut chain = Self { key: key.clone(), full, full_hash, links: Vec::new() };
        let hints = chain.hints(store).await?;
        let ended = chain.read_deltas(store, hints, report).await;
        Ok((chain, ended))
    }

    async fn read_deltas(
        &mut self,
        store: &Store,
        hints: Vec<Revision>,
        report: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(), ChainError> {
        let all = 1 + hints.len() as u64;
        report(1, all);
        let key = &self.key.clone();
        let mut hinted = stream::iter(hints)
            .map(|from| async move { (from, manifest(store, &key.delta(from)).await) })
            .buffered(AHEAD);
        while let Some((from, read)) = hinted.next().await {
            // The listing may have been late: what it left out is asked for.
            while from > self.head().next() {
                let next = key.delta(self.head().next());
                let Some(bytes) = manifest(store, &next).await? else {
                    return Err(ChainError::Gap { missing: next, next: key.delta(from), after: self.head() });
                };
                self.add(&bytes)?;
            }
            // What can't be read is nobody's fault before its turn has come.
            if from == self.head().next()
                && let Some(bytes) = read?
            {
                self.add(&bytes)?;
            }
            report(1 + self.links.len() as u64, all);
        }
        self.extend(store).await
    }

    /// Reads what has been added since.
    pub async fn extend(&mut self, store: &Store) -> Result<(), ChainError> {
        while let Some(bytes) = manifest(store, &self.key.delta(self.head().next())).await? {
            self.add(&bytes)?;
        }
        Ok(())
    }

    /// Demands that the manifest of its full snapshot is still what it was. Who goes on with a generation has read it long ago.
    pub async fn demand_full(&self, store: &Store) -> Result<(), ChainError> {
        let (_, hash) = full(store, &self.key).await?;
        if hash == self.full_hash { Ok(()) } else { Err(ChainError::Broken(self.key.delta(self.full.revision.next()))) }
    }

    /// The last revision in it.
    pub fn head(&self) -> Revision {
        self.links.last().map_or(self.full.revision, |link| link.delta.to)
    }

    /// The hash of its last manifest.
    pub fn head_hash(&self) -> Hash {
        self.links.last().map_or(self.full_hash, |link| link.hash)
    }

    /// The hash of the records of its last revision.
    pub fn last_events(&self) -> Hash {
        self.links.last().map_or(self.full.last_events, |link| link.delta.last_events)
    }

    /// The data of its last manifest.
    pub fn last_data(&self) -> &Data {
        self.links.last().map_or(&self.full.data, |link| &link.delta.data)
    }

    /// The data that it takes to restore a revision.
    pub fn data_until(&self, revision: Revision) -> impl Iterator<Item = &Data> {
        let links = self.links.iter().take_while(move |link| link.delta.from <= revision);
        std::iter::once(&self.full.data).chain(links.map(|link| &link.delta.data))
    }

    /// The moments for which a revision is known, in order.
    pub fn samples(&self) -> impl DoubleEndedIterator<Item = Sample> + '_ {
        let first = Sample { at: self.full.taken, revision: self.full.revision };
        std::iter::once(first).chain(self.links.iter().flat_map(|link| link.delta.samples.iter().copied()))
    }

    /// The last moment for which a revision is known.
    pub fn last_moment(&self) -> Timestamp {
        self.samples().next_back().map_or(self.full.taken, |sample| sample.at)
    }

    /// Adds the manifest that follows, if it does.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), ChainError> {
        let from = self.head().next();
        let key = self.key.delta(from);
        let delta =
            Delta::read(bytes, &self.key, from).map_err(|fault| ChainError::Manifest { key: key.clone(), fault })?;
        if delta.previous != self.head_hash() {
            return Err(ChainError::Broken(key));
        }
        self.links.push(Link { delta, hash: Hash::of(bytes) });
        Ok(())
    }

    async fn hints(&self, store: &Store) -> Result<Vec<Revision>, StoreError> {
        let mut hints: Vec<Revision> = store
            .list(Some(&self.key.deltas()))
            .try_filter_map(async |listed| Ok(listed.key.name().parse::<Revision>().ok()))
            .try_collect()
            .await?;
        hints.sort();
        Ok(hints)
    }
}

/// How far a generation goes, by its first and its last manifest. Which one is the last is taken from a listing, which may
/// be late, and what lies between is not looked at: this says which generation to read first, and no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The last moment for which a revision is known.
    pub last_moment: Timestamp,
    /// The last revision in it.
    pub head: Revision,
}

impl Extent {
    /// Finds it out: two reads and a listing, however long the generation is.
    pub async fn read(store: &Store, key: &GenerationKey) -> Result<Self, ChainError> {
        let (full, _) = full(store, key).await?;
        Ok(match read_last_delta(store, key).await? {
            Some(delta) => {
                Self { last_moment: delta.samples.last().map_or(full.taken, |sample| sample.at), head: delta.to }
            }
            None => Self { last_moment: full.taken, head: full.revision },
        })
    }
}

/// The last delta of a generation, by a listing; `None` if it has none. Nothing is proved of those before it.
pub async fn read_last_delta(store: &Store, key: &GenerationKey) -> Result<Option<Delta>, ChainError> {
    let Some(from) = last_delta(store, key).await? else { return Ok(None) };
    let place = key.delta(from);
    let Some(bytes) = manifest(store, &place).await? else { return Ok(None) };
    Delta::read(&bytes, key, from).map(Some).map_err(|fault| ChainError::Manifest { key: place, fault })
}

/// With which revision the last delta of a generation begins, by a listing; `None` if it has none.
pub async fn last_delta(store: &Store, key: &GenerationKey) -> Result<Option<Revision>, StoreError> {
    let named = |listed: Listed| listed.key.name().parse::<Revision>().ok();
    store.list(Some(&key.deltas())).try_fold(None, async |last, listed| Ok(last.max(named(listed)))).await
}

/// Whether a generation has deltas: then it was a backup, whatever it has lost.
pub async fn has_deltas(store: &Store, key: &GenerationKey) -> Result<bool, StoreError> {
    Ok(store.list(Some(&key.deltas())).try_next().await?.is_some())
}

/// The manifest with which a generation begins, and its hash.
async fn full(store: &Store, key: &GenerationKey) -> Result<(Full, Hash), ChainError> {
    let Some(bytes) = manifest(store, &key.full()).await? else {
        return Err(ChainError::NoFull(key.clone()));
    };
    let full = Full::read(&bytes, key).map_err(|fault| ChainError::Manifest { key: key.full(), fault })?;
    Ok((full, Hash::of(&bytes)))
}

/// A manifest as it is stored, if it is there. One that is too large is damaged: the store is well.
async fn manifest(store: &Store, key: &Key) -> Result<Option<Bytes>, ChainError> {
    store.read(key, MANIFEST_LIMIT).await.map_err(|error| match error {
        StoreError::TooLarge { key, bytes, limit: _ } => {
            ChainError::Manifest { key, fault: ManifestFault::TooLarge(bytes) }
        }
        error => error.into(),
    })
}

/// The generations of a lineage, by their clusters and names. What a listing shows is taken at its word here: a generation
/// that it leaves out is found the next time.
pub async fn generations(store: &Store, lineage: &Lineage) -> Result<Vec<GenerationKey>, StoreError> {
    let folder = Key::new(lineage.as_str());
    let mut found = Vec::new();
    for cluster in store.folders(Some(&folder)).await? {
        let Ok(cluster) = cluster.parse::<Cluster>() else { continue };
        for name in store.folders(Some(&folder.join(cluster.as_str()))).await? {
            if let Ok(name) = name.parse::<GenerationName>() {
                found.push(GenerationKey { lineage: lineage.clone(), cluster: cluster.clone(), name });
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::format::tests::stored;
    use crate::store::tests::faulty::Faulty;

    /// What was stored a moment ago may not be in a listing yet, of some stores.
    #[tokio::test]
    async fn what_a_listing_leaves_out_is_found_all_the_same() {
        let objects = Faulty::puts(&[]);
        let unlisted = Arc::clone(&objects.unlisted);
        let store = objects.store();
        let chain = stored(&store, 100, &[(11, 110), (40, 120), (41, 130), (60, 140)]).await;
        let names: Vec<String> = chain.links.iter().map(|link| chain.key.delta(link.delta.from).to_string()).collect();
        for left_out in 0_u32..1 << names.len() {
            let is_left_out = |at: &usize| left_out & (1 << at) != 0;
            let hidden: Vec<_> = (0..names.len()).filter(is_left_out).filter_map(|at| names.get(at).cloned()).collect();
            unlisted.lock().unwrap().clone_from(&hidden);
            let listed: Vec<_> = store.list(Some(&chain.key.deltas())).try_collect().await.unwrap();
            assert_eq!(listed.len(), names.len() - hidden.len(), "what is left out is not listed");
            assert_eq!(Chain::read(&store, &chain.key).await.unwrap(), chain, "without {hidden:?}");
        }
    }
}
