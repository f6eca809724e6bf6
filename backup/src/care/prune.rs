//! Removes what is old: whole generations that nobody asked to keep, data that no manifest refers to, and what killed uploads
//! have left on a volume. What is decided is pure; carrying it out begins with the manifests, so that nothing is ever seen that
//! can't be restored.

#[cfg(test)]
mod garbage_tests;
#[cfg(test)]
mod landing;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::TryStreamExt;
use jiff::Timestamp;

use super::overview::{Overview, State};
use crate::format::{
    ChainError, Cluster, GARBAGE_AGE, GenerationKey, GenerationName, Lineage, generations, read_last_delta,
};
use crate::store::{Key, Listed, Store, StoreError};

/// How far the store's clock may be behind ours for nothing: it tells whole seconds (S3), and is another machine's.
const CLOCKS_APART: Duration = Duration::from_mins(1);

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
    Garbage(Listed),
    /// What an upload to a volume left behind when its process was killed.
    Staged(Listed),
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
    /// Garbage that was none any more: somebody has written it anew since.
    pub anew: Vec<Key>,
    /// What could not be removed, and why: a locked bucket keeps objects for a time.
    pub failed: Vec<String>,
}

/// What has to be known of a generation to tell whether it goes. Its manifests are not kept: those of weeks would take
/// hundreds of megabytes.
#[derive(Debug)]
struct Looked {
    key: GenerationKey,
    reach: Reach,
    /// When the last of its objects came, by the store's clock.
    newest: Option<Timestamp>,
    /// Data that no manifest refers to.
    unreferred: Vec<Listed>,
}

/// From when to when a generation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Times {
    begin: Timestamp,
    end: Timestamp,
}

/// How much of a generation there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// All of it.
    Whole(Times),
    /// It has deltas, and has lost its full snapshot, without which nothing of it can be restored: a lock has kept its deltas for
    /// longer, or somebody deleted it. Nobody who records makes one like this, since its full snapshot is committed first.
    Headless(Times),
    /// It is only begun, or can't be read: nobody can tell when it ended, and it is for a person to decide on.
    Unknown,
}

/// Finds what can go. It is as late as `now`, or a minute after the newest object in the store if that is earlier. Of each
/// generation `report` is told how many manifests have been read, of all.
pub async fn plan(
    store: &Store,
    lineage: &Lineage,
    keep: Keep,
    now: Timestamp,
    report: &(dyn Fn(u64, u64) + Sync),
) -> Result<Plan, StoreError> {
    let mut all = Vec::new();
    for key in generations(store, lineage).await? {
        all.push(look(store, key, report).await?);
    }
    // By the store's clock it is at least as late as its newest object.
    let store_now = all.iter().filter_map(|looked| looked.newest).max().unwrap_or(now);
    // A clock of ours that is days ahead must not make all but the newest old. One that is just ahead must not make the newest
    // begin in the future, or what it has replaced stays until somebody looks again.
    let latest = store_now.checked_add(CLOCKS_APART).unwrap_or(store_now);
    let gone = unneeded(&all, keep, now.min(latest));
    let kept = all.len() - gone.len();
    let mut removals: Vec<_> = gone.iter().cloned().map(Removal::Generation).collect();
    let staying = all.into_iter().filter(|looked| !gone.contains(&looked.key));
    let unreferred = staying.flat_map(|looked| looked.unreferred);
    removals.extend(unreferred.filter(|listed| is_old(listed, store_now)).map(Removal::Garbage));
    removals.extend(left_behind(store, lineage, now).await?.into_iter().map(Removal::Staged));
    Ok(Plan { removals, kept })
}

fn is_old(listed: &Listed, now: Timestamp) -> bool {
    listed.modified <= now && now.duration_since(listed.modified).unsigned_abs() >= GARBAGE_AGE
}

/// What killed uploads have left on a volume, also where nothing else came of a generation. Here it is as late as it is for us:
/// what filled the volume may be the newest on it. A clock that is days ahead costs an upload that is on its way, and no backup.
async fn left_behind(store: &Store, lineage: &Lineage, now: Timestamp) -> Result<Vec<Listed>, StoreError> {
    let mut staged = store.staged(&Key::new(lineage.as_str())).await?;
    staged.retain(|listed| is_in_generation(&listed.key) && is_old(listed, now));
    staged.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(staged)
}

fn is_in_generation(key: &Key) -> bool {
    let mut words = key.as_str().split('/').skip(1);
    let is_cluster = words.next().is_some_and(|word| word.parse::<Cluster>().is_ok());
    is_cluster && words.next().is_some_and(|word| word.parse::<GenerationName>().is_ok()) && words.next().is_some()
}

/// Looks at one generation.
async fn look(store: &Store, key: GenerationKey, report: &(dyn Fn(u64, u64) + Sync)) -> Result<Looked, StoreError> {
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
    let Overview { key, state } = Overview::read(store, key, report).await?;
    let reach = match state {
        State::Whole(chain) => {
            let deltas = chain.links.iter().map(|link| key.data(&link.delta.data.name));
            let referred: BTreeSet<Key> = deltas.chain([key.data(&chain.full.data.name)]).collect();
            data.retain(|listed| !referred.contains(&listed.key));
            Reach::Whole(Times { begin: chain.full.taken, end: chain.last_moment() })
        }
        State::WithoutFull if !has_deltas => Reach::Unknown,
        // What its lost manifests referred to may still be wanted by somebody who mends it.
        State::WithoutFull => {
            data.clear();
            headless(store, &key).await?
        }
        State::BrokenOff { .. } | State::Damaged(_) => {
            data.clear();
            Reach::Unknown
        }
    };
    Ok(Looked { key, reach, newest, unreferred: data })
}

/// How far a generation went that has lost its full snapshot, by its name and the last of its deltas.
async fn headless(store: &Store, key: &GenerationKey) -> Result<Reach, StoreError> {
    match read_last_delta(store, key).await {
        Ok(last) => {
            let end = last.and_then(|delta| delta.samples.last().map(|sample| sample.at));
            Ok(end.map_or(Reach::Unknown, |end| Reach::Headless(Times { begin: key.name.moment(), end })))
        }
        Err(ChainError::Store(error)) => Err(error),
        // As one of a later version.
        Err(ChainError::NoFull(_) | ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. }) => {
            Ok(Reach::Unknown)
        }
    }
}

/// Generations that no rule keeps. What is headless is counted for none of the others: nothing can be restored from it.
fn unneeded(all: &[Looked], keep: Keep, now: Timestamp) -> BTreeSet<GenerationKey> {
    let mut clusters: BTreeMap<&Cluster, Vec<(Times, &GenerationKey)>> = BTreeMap::new();
    for Looked { key, reach, newest: _, unreferred: _ } in all {
        match reach {
            Reach::Whole(times) => clusters.entry(&key.cluster).or_default().push((*times, key)),
            Reach::Headless(_) | Reach::Unknown => {}
        }
    }
    for whole in clusters.values_mut() {
        whole.sort();
    }
    let is_unneeded = |looked: &&Looked| {
        let whole = clusters.get(&looked.key.cluster).map(Vec::as_slice).unwrap_or_default();
        !is_kept(looked, whole, keep, now)
    };
    all.iter().filter(is_unneeded).map(|looked| looked.key.clone()).collect()
}

/// Whether a generation is kept beside the whole ones of its cluster, which are in order. The one that goes furthest always is:
/// an archive may record into it.
fn is_kept(looked: &Looked, whole: &[(Times, &GenerationKey)], keep: Keep, now: Timestamp) -> bool {
    let times = match looked.reach {
        Reach::Whole(times) => times,
        Reach::Headless(times) if is_left(looked, now) => times,
        Reach::Headless(_) | Reach::Unknown => return true,
    };
    let later = whole.get(whole.partition_point(|one| *one <= (times, &looked.key))..).unwrap_or_default();
    let goes_furthest = whole.iter().all(|(other, _)| other.end <= times.end);
    let among_newest = later.len() < keep.newest.max(1) || goes_furthest;
    // It is needed for what was until another one had begun that goes as far: not one that somebody took beside it.
    let further = later.iter().find(|(next, _)| next.end >= times.end);
    let needed_until = further.map_or(now, |(next, _)| times.end.max(next.begin));
    let in_time = now.duration_since(needed_until).unsigned_abs() <= keep.last || needed_until > now;
    among_newest || in_time
}

/// Whether nobody has added to a generation for so long that nobody is about to: what copies one here from elsewhere, in an
/// order of its own, may come to its full snapshot last.
fn is_left(looked: &Looked, now: Timestamp) -> bool {
    looked.newest.is_some_and(|newest| newest <= now && now.duration_since(newest).unsigned_abs() >= GARBAGE_AGE)
}

/// Removes it. What can't be removed stays, and is told.
pub async fn prune(store: &Store, plan: &Plan) -> Result<Pruned, StoreError> {
    let mut pruned = Pruned::default();
    for removal in &plan.removals {
        match removal {
            Removal::Garbage(listed) => remove_garbage(store, listed, &mut pruned).await,
            Removal::Staged(listed) => {
                let gone = store.delete_staged(listed).await;
                count(gone, listed, &mut pruned);
            }
            Removal::Generation(key) => remove_generation(store, key, &mut pruned).await?,
        }
    }
    Ok(pruned)
}

/// Removes data that no manifest referred to, unless somebody has written it anew since: a copy that goes on uses its names
/// again, and commits its manifest soon.
async fn remove_garbage(store: &Store, listed: &Listed, pruned: &mut Pruned) {
    let is_anew = |found: &Listed| found.modified > listed.modified || found.bytes != listed.bytes;
    let gone = match store.look(&listed.key).await {
        Ok(found) if found.as_ref().is_none_or(is_anew) => Ok(false),
        Ok(_) => store.delete(&listed.key).await.map(|()| true),
        Err(error) => Err(error),
    };
    count(gone, listed, pruned);
}

/// Counts what is gone, or says why it is not.
fn count(gone: Result<bool, StoreError>, listed: &Listed, pruned: &mut Pruned) {
    match gone {
        Ok(true) => {
            pruned.objects += 1;
            pruned.bytes += listed.bytes;
        }
        Ok(false) => pruned.anew.push(listed.key.clone()),
        Err(error) => pruned.failed.push(error.to_string()),
    }
}

/// Removes a generation, its manifests first.
pub(super) async fn remove_generation(
    store: &Store,
    generation: &GenerationKey,
    pruned: &mut Pruned,
) -> Result<(), StoreError> {
    let full = generation.full();
    let bytes = store.size(&full).await?;
    // Without its first manifest nobody takes the rest for a backup. If it can't go, nothing else of it may. One that was lost
    // before is deleted all the same: somebody may just have put it back, and its data goes.
    if remove(store, &full, bytes, pruned).await == Removed::No {
        return Ok(());
    }
    let mut rest: Vec<Listed> = store.list(Some(&generation.folder())).try_collect().await?;
    let data = format!("{}/", generation.data_folder());
    rest.sort_by_key(|listed| listed.key.as_str().starts_with(&data));
    for Listed { key, bytes, modified: _ } in rest {
        remove(store, &key, Some(bytes), pruned).await;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    Yes,
    No,
}

/// Removes an object of this size, or one that was not there, which is not counted.
async fn remove(store: &Store, key: &Key, bytes: Option<u64>, pruned: &mut Pruned) -> Removed {
    match store.delete(key).await {
        Ok(()) => {
            pruned.objects += u64::from(bytes.is_some());
            pruned.bytes += bytes.unwrap_or_default();
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
    use std::sync::Arc;

    use super::*;
    use crate::format::tests::{at, generation, stored};
    use crate::store::tests::faulty::{Faulty, sound};

    /// In seconds.
    const DAY: i64 = 24 * 60 * 60;

    /// A generation to which nothing came after its end.
    fn looked(reach: fn(Times) -> Reach, begin: i64, end: i64) -> Looked {
        let times = Times { begin: at(begin), end: at(end) };
        Looked { key: generation(begin), reach: reach(times), newest: Some(at(end)), unreferred: Vec::new() }
    }

    /// Those that go `now`, in seconds, by when they began.
    fn gone(all: &[Looked], (newest, last): (usize, i64), now: i64) -> Vec<i64> {
        let keep = Keep { newest, last: Duration::from_secs(last.unsigned_abs()) };
        unneeded(all, keep, at(now)).iter().map(|key| key.name.moment().as_second()).collect()
    }

    #[test]
    fn what_has_lost_its_full_snapshot_goes_by_the_same_rules() {
        let all = [
            looked(Reach::Headless, 0, 10 * DAY),
            looked(Reach::Whole, 10 * DAY, 11 * DAY),
            looked(Reach::Whole, 11 * DAY, 12 * DAY),
        ];
        assert_eq!(gone(&all, (1, 5 * DAY), 14 * DAY), [0_i64; 0]);
        assert_eq!(gone(&all, (1, 3 * DAY), 14 * DAY), [0]);
        assert_eq!(gone(&all, (2, 1), 20 * DAY), [0]);
        assert_eq!(gone(&all, (3, 1), 20 * DAY), [0_i64; 0]);
    }

    #[test]
    fn what_has_lost_its_full_snapshot_is_counted_for_none_that_has_one() {
        let all = [
            looked(Reach::Whole, 0, 10 * DAY),
            looked(Reach::Headless, 10 * DAY, 11 * DAY),
            looked(Reach::Whole, 20 * DAY, 21 * DAY),
        ];
        assert_eq!(gone(&all, (1, 3 * DAY), 22 * DAY), [0_i64; 0], "what was till day 20 takes the first one");
        assert_eq!(gone(&all, (2, 1), 30 * DAY), [0_i64; 0], "there are no more than two");
        assert_eq!(gone(&all, (1, 1), 30 * DAY), [0, 10 * DAY]);
    }

    #[test]
    fn what_may_be_recorded_into_or_be_on_its_way_stays_also_without_a_full_snapshot() {
        let whole = |begin: i64| looked(Reach::Whole, begin * DAY, (begin + 1) * DAY);
        let headless = |begin: i64, end: i64| looked(Reach::Headless, begin * DAY, end * DAY);
        for all in [[whole(0), headless(2, 3)], [whole(10), headless(0, 30)]] {
            assert_eq!(gone(&all, (1, 1), 100 * DAY), [0_i64; 0], "{all:?}");
        }
        assert_eq!(gone(&[headless(0, 1)], (1, 1), 100 * DAY), [0_i64; 0], "there is nothing else");
        let copied = |last: i64| [Looked { newest: Some(at(last)), ..headless(0, 1) }, whole(1), whole(2)];
        assert_eq!(gone(&copied(99 * DAY + 1), (1, 50 * DAY), 100 * DAY), [DAY]);
        assert_eq!(gone(&copied(99 * DAY), (1, 50 * DAY), 100 * DAY), [0, DAY]);
    }

    #[tokio::test]
    async fn when_one_ended_that_has_lost_its_full_snapshot_is_told_by_its_last_delta() {
        let store = sound();
        let chain = stored(&store, 100, &[(20, 110), (90, 500)]).await;
        let reach = async || look(&store, chain.key.clone(), &|_, _| {}).await.unwrap().reach;
        let until = |end| Times { begin: at(100), end: at(end) };
        assert_eq!(reach().await, Reach::Whole(until(500)));
        store.delete(&chain.key.full()).await.unwrap();
        assert_eq!(reach().await, Reach::Headless(until(500)));
        let [first, last] = &chain.links[..] else { panic!("there are two deltas") };
        let last = chain.key.delta(last.delta.from);
        store.delete(&last).await.unwrap();
        assert_eq!(reach().await, Reach::Headless(until(110)));
        store.create(&last, "{".into()).await.unwrap();
        assert_eq!(reach().await, Reach::Unknown);
        for delta in [last, chain.key.delta(first.delta.from)] {
            store.delete(&delta).await.unwrap();
        }
        assert_eq!(reach().await, Reach::Unknown, "it may be only begun");
    }

    #[tokio::test]
    async fn what_the_store_refuses_to_show_stays_and_keeps_nothing_else() {
        let objects = Faulty::puts(&[]);
        let refused = Arc::clone(&objects.refused);
        let store = objects.store();
        let hidden = stored(&store, 100, &[]).await.key;
        let old = stored(&store, 200, &[]).await.key;
        stored(&store, 300, &[]).await;
        *refused.lock().unwrap() = Some(hidden.full().to_string());
        let keep = Keep { newest: 1, last: Duration::ZERO };
        let gone = plan(&store, &old.lineage, keep, Timestamp::now(), &|_, _| {}).await.unwrap().removals;
        assert_eq!(gone, [Removal::Generation(old)]);
    }

    #[tokio::test]
    async fn a_clock_that_is_far_ahead_makes_nothing_old() {
        let store = sound();
        store.prepare().await.unwrap();
        let old = stored(&store, 100, &[]).await.key;
        stored(&store, 300, &[]).await;
        let centuries = |count: u64| Duration::from_hours(count * 100 * 365 * 24);
        let gone = async |last| {
            let keep = Keep { newest: 1, last };
            let late = "9000-01-01T00:00:00Z".parse().unwrap();
            plan(&store, &old.lineage, keep, late, &|_, _| {}).await.unwrap().removals
        };
        assert_eq!(
            gone(centuries(1)).await,
            [],
            "both are of 1970, and the store has nothing that is much newer than today"
        );
        assert_eq!(gone(Duration::from_hours(1)).await, [Removal::Generation(old.clone())]);
    }

    #[tokio::test]
    async fn what_was_replaced_a_moment_ago_by_a_clock_that_is_ahead_of_the_stores_goes() {
        let store = sound();
        store.prepare().await.unwrap();
        let ahead = |seconds| Timestamp::now().as_second() + seconds;
        let old = stored(&store, ahead(10), &[]).await.key;
        stored(&store, ahead(20), &[]).await;
        let keep = Keep { newest: 1, last: Duration::ZERO };
        let gone = plan(&store, &old.lineage, keep, at(ahead(30)), &|_, _| {}).await.unwrap().removals;
        assert_eq!(gone, [Removal::Generation(old)]);
    }

    #[tokio::test]
    async fn what_went_on_beside_a_later_snapshot_is_needed_until_another_one_begins() {
        let store = sound();
        store.prepare().await.unwrap();
        let record = stored(&store, 100, &[(20, 110), (90, 500)]).await;
        let snapshot = stored(&store, 300, &[]).await.key;
        let keep = |last| Keep { newest: 1, last: Duration::from_secs(last) };
        let gone = async |last, now| -> Vec<GenerationKey> {
            let mut all = Vec::new();
            for key in generations(&store, &record.key.lineage).await.unwrap() {
                all.push(look(&store, key, &|_, _| {}).await.unwrap());
            }
            unneeded(&all, keep(last), at(now)).into_iter().collect()
        };
        // It goes furthest: an archive may record into it, however old it is.
        assert_eq!(gone(1, 5000).await, []);
        let next = stored(&store, 600, &[(95, 610)]).await.key;
        assert_eq!(gone(50, 649).await, [], "what was till 600 takes it, and the snapshot tells less of it");
        assert_eq!(gone(50, 651).await, [record.key.clone(), snapshot.clone()]);
        assert_eq!(gone(1, 5000).await, [record.key.clone(), snapshot]);
        assert!(!gone(1, 5000).await.contains(&next));
    }
}
