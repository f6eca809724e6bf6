//! Removes what is old: whole generations that nobody asked to keep, and data that no manifest refers to. What is decided is
//! pure; carrying it out begins with the manifests, so that nothing is ever seen that can't be restored.

#[cfg(test)]
mod landing;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::TryStreamExt;
use jiff::Timestamp;

use super::overview::{Overview, State};
use crate::format::{Cluster, GARBAGE_AGE, GenerationKey, Lineage, generations};
use crate::store::{Key, Listed, Store, StoreError};

/// What is kept of each cluster. A generation goes only if no rule keeps it, and the newest one that is whole never goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// So many of the newest generations.
    pub newest: usize,
    /// Every generation that is needed to restore what was at any moment since this long ago.
    pub last: Duration,
}

/// Something that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// A whole generation.
    Generation(GenerationKey),
    /// Data that no manifest refers to.
    Garbage {
        /// The object.
        key: Key,
        /// Its size, in bytes.
        bytes: u64,
    },
}

/// What would be removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which it goes.
    pub removals: Vec<Removal>,
    /// Generations that stay.
    pub kept: usize,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Objects that are gone.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What could not be removed, and why: a locked bucket keeps objects for a time.
    pub failed: Vec<String>,
}

/// What has to be known of a generation to tell whether it goes. Its manifests are not kept: those of weeks would take
/// hundreds of megabytes.
#[derive(Debug)]
struct Looked {
    key: GenerationKey,
    /// From when to when it goes. One that can't be read whole has none: it is for a person to decide on.
    span: Option<(Timestamp, Timestamp)>,
    /// When the last of its objects came, by the store's clock.
    newest: Option<Timestamp>,
    /// Data that no manifest refers to.
    unreferred: Vec<Listed>,
}

/// Finds what can go. It is as late as `now`, or as the newest object in the store if that is earlier.
pub async fn plan(store: &Store, lineage: &Lineage, keep: Keep, now: Timestamp) -> Result<Plan, StoreError> {
    let mut all = Vec::new();
    for key in generations(store, lineage).await? {
        all.push(look(store, key).await?);
    }
    // By the store's clock it is at least as late as its newest object.
    let store_now = all.iter().filter_map(|looked| looked.newest).max().unwrap_or(now);
    // A clock of ours that is days ahead must not make all but the newest old.
    let gone = unneeded(&all, keep, now.min(store_now));
    let kept = all.len() - gone.len();
    let mut removals: Vec<_> = gone.iter().cloned().map(Removal::Generation).collect();
    let staying = all.into_iter().filter(|looked| !gone.contains(&looked.key));
    for Listed { key, bytes, modified } in staying.flat_map(|looked| looked.unreferred) {
        if store_now.duration_since(modified).unsigned_abs() >= GARBAGE_AGE {
            removals.push(Removal::Garbage { key, bytes });
        }
    }
    Ok(Plan { removals, kept })
}

/// Looks at one generation.
async fn look(store: &Store, key: GenerationKey) -> Result<Looked, StoreError> {
    // Data first and manifests second: data whose manifest comes between the two is not taken for garbage.
    let (data_folder, deltas) = (format!("{}/", key.data_folder()), format!("{}/", key.deltas()));
    let (mut newest, mut data, mut has_deltas) = (None, Vec::new(), false);
    let mut objects = store.list(Some(&key.folder()));
    while let Some(listed) = objects.try_next().await? {
        newest = newest.max(Some(listed.modified));
        has_deltas |= listed.key.as_str().starts_with(&deltas);
        if listed.key.as_str().starts_with(&data_folder) {
            data.push(listed);
        }
    }
    drop(objects);
    let Overview { key, state } = Overview::read(store, key).await?;
    let span = match state {
        State::Whole(chain) => {
            let deltas = chain.links.iter().map(|link| key.data(&link.delta.data.name));
            let referred: BTreeSet<Key> = deltas.chain([key.data(&chain.full.data.name)]).collect();
            data.retain(|listed| !referred.contains(&listed.key));
            Some((chain.full.taken, chain.last_moment()))
        }
        State::WithoutFull if !has_deltas => None,
        // What its lost manifests referred to may still be wanted by somebody who mends it.
        State::WithoutFull | State::Damaged(_) => {
            data.clear();
            None
        }
    };
    Ok(Looked { key, span, newest, unreferred: data })
}

/// Generations that no rule keeps. The one that goes furthest never goes: an archive may record into it.
fn unneeded(all: &[Looked], keep: Keep, now: Timestamp) -> BTreeSet<GenerationKey> {
    let mut clusters: BTreeMap<&Cluster, Vec<(Timestamp, Timestamp, &GenerationKey)>> = BTreeMap::new();
    for Looked { key, span, newest: _, unreferred: _ } in all {
        let Some((begin, end)) = *span else { continue };
        clusters.entry(&key.cluster).or_default().push((begin, end, key));
    }
    let mut gone = BTreeSet::new();
    for mut generations in clusters.into_values() {
        generations.sort();
        let count = generations.len();
        let furthest = generations.iter().map(|(_, end, _)| *end).max();
        for (index, (_, end, key)) in generations.iter().enumerate() {
            let among_newest = count - index <= keep.newest.max(1) || Some(*end) == furthest;
            // It is needed for what was until the next one began; and to its end, which may be later: somebody took a
            // snapshot beside it.
            let needed_until = generations.get(index + 1).map_or(now, |(next, _, _)| *end.max(next));
            let in_time = now.duration_since(needed_until).unsigned_abs() <= keep.last || needed_until > now;
            if !among_newest && !in_time {
                gone.insert((*key).clone());
            }
        }
    }
    gone
}

/// Removes it. What can't be removed stays, and is told.
pub async fn prune(store: &Store, plan: &Plan) -> Result<Pruned, StoreError> {
    let mut pruned = Pruned::default();
    for removal in &plan.removals {
        match removal {
            Removal::Garbage { key, bytes } => {
                remove(store, key, *bytes, &mut pruned).await;
            }
            Removal::Generation(key) => remove_generation(store, key, &mut pruned).await?,
        }
    }
    Ok(pruned)
}

/// Removes a generation, its manifests first.
pub(super) async fn remove_generation(
    store: &Store,
    generation: &GenerationKey,
    pruned: &mut Pruned,
) -> Result<(), StoreError> {
    // Without its first manifest nobody takes the rest for a backup. If it can't go, nothing else of it may.
    if remove(store, &generation.full(), 0, pruned).await == Removed::No {
        return Ok(());
    }
    let mut rest: Vec<Listed> = store.list(Some(&generation.folder())).try_collect().await?;
    let data = format!("{}/", generation.data_folder());
    rest.sort_by_key(|listed| listed.key.as_str().starts_with(&data));
    for Listed { key, bytes, modified: _ } in rest {
        remove(store, &key, bytes, pruned).await;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    Yes,
    No,
}

async fn remove(store: &Store, key: &Key, bytes: u64, pruned: &mut Pruned) -> Removed {
    match store.delete(key).await {
        Ok(()) => {
            pruned.objects += 1;
            pruned.bytes += bytes;
            Removed::Yes
        }
        Err(error) => {
            pruned.failed.push(error.to_string());
            Removed::No
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::{at, stored};
    use crate::store::tests::faulty::sound;

    #[tokio::test]
    async fn a_clock_that_is_far_ahead_makes_nothing_old() {
        let store = sound();
        store.prepare().await.unwrap();
        let old = stored(&store, 100, &[]).await.key;
        stored(&store, 300, &[]).await;
        let centuries = |count: u64| Duration::from_hours(count * 100 * 365 * 24);
        let gone = async |last| {
            let keep = Keep { newest: 1, last };
            plan(&store, &old.lineage, keep, "9000-01-01T00:00:00Z".parse().unwrap()).await.unwrap().removals
        };
        assert_eq!(
            gone(centuries(1)).await,
            [],
            "both are of 1970, and the store has nothing that is much newer than today"
        );
        assert_eq!(gone(Duration::from_hours(1)).await, [Removal::Generation(old.clone())]);
    }

    #[tokio::test]
    async fn what_went_on_beside_a_later_snapshot_is_needed_to_its_end() {
        let store = sound();
        store.prepare().await.unwrap();
        let record = stored(&store, 100, &[(20, 110), (90, 500)]).await;
        let snapshot = stored(&store, 300, &[]).await.key;
        let keep = |last| Keep { newest: 1, last: Duration::from_secs(last) };
        let gone = async |last, now| -> Vec<GenerationKey> {
            let mut all = Vec::new();
            for key in generations(&store, &record.key.lineage).await.unwrap() {
                all.push(look(&store, key).await.unwrap());
            }
            unneeded(&all, keep(last), at(now)).into_iter().collect()
        };
        // It goes furthest: an archive may record into it, however old it is.
        assert_eq!(gone(1, 5000).await, []);
        let next = stored(&store, 600, &[(95, 610)]).await.key;
        assert_eq!(gone(50, 540).await, [], "500 is within the last 50 s");
        assert_eq!(gone(50, 551).await, std::slice::from_ref(&record.key));
        assert_eq!(gone(1, 5000).await, [record.key.clone(), snapshot]);
        assert!(!gone(1, 5000).await.contains(&next));
    }
}
