//! What makes an archive begin a new generation, beside real etcd: a history that it can't go on with, and one that has got
//! long or old. The older generations stay, and restore.

use std::fs;
use std::path::{Path, PathBuf};

use etcd_client::{Client, CompactionOptions};
use jiff::SignedDuration;
use quorate_backup::format::Chain;
use tokio::task::JoinSet;

use crate::agent::run;
use crate::archive_real::{Archive, Moment, chains, comes_back_from, recorded, write};
use crate::real::{Binaries, Etcd, each_version, newest};
use crate::recorded::{address, files};

/// Each moment comes back from the generation that it is told to come from, as etcd itself hashed it.
fn come_back(store: &Path, moments: &[(&Chain, &Moment)]) {
    let folder = tempfile::tempdir().unwrap();
    for (number, (chain, Moment { revision, hash })) in moments.iter().enumerate() {
        let database = folder.path().join(number.to_string());
        let (store, to) = (address(store), revision.to_string());
        let name = chain.key.name.as_str();
        let arguments = ["restore", "--store", &store, "--lineage", "blue", "--generation", name, "--to", &to];
        run(&[&arguments[..], &["--database", database.to_str().unwrap(), "-o", "json"]].concat()).json();
        assert_eq!(Binaries::hash(&database, revision.unsigned_abs()), u64::from(*hash), "{name}");
    }
}

/// The roles that etcd knows after a restore of this generation.
async fn roles_of(binaries: &Binaries, store: &Path, chain: &Chain) -> Vec<String> {
    let (etcd, _) = comes_back_from(binaries, store, &["--generation", chain.key.name.as_str()]);
    let roles = etcd.connect().await.role_list().await.unwrap();
    roles.roles().to_vec()
}

/// The last moment of a generation, of whose cluster this is a client.
async fn end_of(chain: &Chain, client: &mut Client) -> Moment {
    let revision = chain.head().to_etcd();
    Moment { revision, hash: client.hash_kv(revision).await.unwrap().hash() }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A copy of a member's volume, for which it is down for a moment.
fn copy_of(etcd: &mut Etcd) -> PathBuf {
    etcd.kill();
    let kept = etcd.data.path().join("kept");
    copy_folder(&etcd.data.path().join("data"), &kept);
    etcd.resume();
    kept
}

/// Ends a member and puts the copy in its volume's place.
fn put_back(etcd: &mut Etcd, kept: &Path) {
    etcd.kill();
    let data = etcd.data.path().join("data");
    fs::remove_dir_all(&data).unwrap();
    fs::rename(kept, &data).unwrap();
}

async fn begins_anew(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let mut rng = fastrand::Rng::with_seed(8);
    let archive = Archive::start(&etcd, store.path());
    let first = write(&mut client, 0, &mut rng).await;
    recorded(store.path(), 1, first.revision).await;

    // A user, who is in no watch.
    client.role_add("reader").await.unwrap();
    recorded(store.path(), 2, first.revision).await;
    archive.stop();
    let all = chains(store.path()).await;
    assert_eq!(roles_of(binaries, store.path(), &all[0]).await, [""; 0]);
    assert_eq!(roles_of(binaries, store.path(), &all[1]).await, ["reader"]);

    // What comes next is compacted before anybody recorded it.
    let second = write(&mut client, 1, &mut rng).await;
    client.compact(second.revision, Some(CompactionOptions::new().with_physical())).await.unwrap();
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 3, second.revision).await;
    archive.stop();

    // The volume is put back to where it was: the revisions that follow are others than those that were recorded.
    let kept = copy_of(&mut etcd);
    let archive = Archive::start(&etcd, store.path());
    let mut client = etcd.connect().await;
    let lost = write(&mut client, 2, &mut rng).await;
    recorded(store.path(), 3, lost.revision).await;
    archive.stop();
    put_back(&mut etcd, &kept);
    etcd.resume();
    // Before any of them is there: etcd takes a watch from the future, and silently leaves out what comes before it.
    let archive = Archive::start(&etcd, store.path());
    let begun = recorded(store.path(), 4, 1).await;
    assert!(begun.full.revision.to_etcd() < lost.revision, "it was not below what had been recorded");
    let mut client = etcd.connect().await;
    let mut other = write(&mut client, 3, &mut rng).await;
    while other.revision <= lost.revision {
        other = write(&mut client, 4, &mut rng).await;
    }
    let newest = recorded(store.path(), 4, other.revision).await;
    archive.stop();

    // Both histories are there.
    let all = chains(store.path()).await;
    assert_eq!(all.len(), 4);
    assert_eq!((&all[3].key, &newest.key), (&begun.key, &begun.key));
    come_back(store.path(), &[(&all[2], &lost), (&newest, &other)]);
}

#[test]
fn a_history_that_can_not_go_on_begins_anew_and_the_old_one_stays() {
    each_version(begins_anew);
}

/// As after a disaster: beside an archive that runs on, the member begins a cluster of its own with a copy of its volume. The
/// cluster's id is the same.
async fn goes_on_by_force(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(binaries);
    let mut rng = fastrand::Rng::with_seed(9);
    write(&mut etcd.connect().await, 0, &mut rng).await;
    let kept = copy_of(&mut etcd);
    let archive = Archive::start(&etcd, store.path());
    // What is written before the full snapshot is in it, and in no delta.
    recorded(store.path(), 1, 1).await;
    let lost = write(&mut etcd.connect().await, 1, &mut rng).await;
    recorded(store.path(), 1, lost.revision).await;
    put_back(&mut etcd, &kept);
    etcd.resume_with(&["--force-new-cluster"]);
    let mut client = etcd.connect().await;
    // Up to the last revision that was recorded, which is a lease's end: whichever of them the archive meets, it is another.
    while client.put("by force", "x", None).await.unwrap().header().unwrap().revision() <= lost.revision + 1 {}
    recorded(store.path(), 2, lost.revision + 1).await;
    let other = write(&mut client, 2, &mut rng).await;
    let newest = recorded(store.path(), 2, other.revision).await;
    archive.stop();
    let all = chains(store.path()).await;
    assert_eq!(all.len(), 2);
    assert_eq!((&all[0].key.cluster, &all[1].key), (&newest.key.cluster, &newest.key));
    come_back(store.path(), &[(&all[0], &lost), (&newest, &other)]);
}

#[test]
fn a_cluster_that_was_begun_anew_by_force_is_a_new_generation_and_the_old_one_stays() {
    each_version(goes_on_by_force);
}

/// Writes so many revisions or some more, many at once.
async fn write_revisions(client: &Client, count: usize) {
    const WRITERS: usize = 50;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut client = client.clone();
        writers.spawn(async move {
            for _ in 0..count.div_ceil(WRITERS) {
                client.put(format!("many/{writer}"), "x", None).await.unwrap();
            }
        });
    }
    writers.join_all().await;
}

#[tokio::test]
async fn a_record_that_is_far_behind_is_not_gone_on_with() {
    /// How many revisions an archive has etcd send once more.
    const MOST_BEHIND: usize = 10_000;
    let Some(binaries) = newest() else { return };
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(&binaries);
    let mut client = etcd.connect().await;
    let mut rng = fastrand::Rng::with_seed(10);
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    let first = write(&mut client, 1, &mut rng).await;
    recorded(store.path(), 1, first.revision).await;
    archive.stop();
    write_revisions(&client, MOST_BEHIND + 1).await;
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 2, 1).await;
    let last = write(&mut client, 2, &mut rng).await;
    recorded(store.path(), 2, last.revision).await;
    archive.stop();
    let all = chains(store.path()).await;
    assert_eq!(all.len(), 2);
    let behind = all[1].full.revision.get() - all[0].head().get();
    assert!(behind > MOST_BEHIND as u64, "{behind}");
    let old = end_of(&all[0], &mut client).await;
    come_back(store.path(), &[(&all[0], &first), (&all[0], &old), (&all[1], &last)]);
    // What nobody has stored is in the history of the snapshot after it.
    let between = i64::midpoint(all[0].head().to_etcd(), all[1].full.revision.to_etcd());
    let hash = client.hash_kv(between).await.unwrap().hash();
    come_back(store.path(), &[(&all[1], &Moment { revision: between, hash })]);
}

/// Bytes of events, as they count towards the next full snapshot.
fn bytes_of(chain: &Chain) -> u64 {
    chain.links.iter().map(|link| link.delta.data.plain_bytes).sum()
}

#[tokio::test]
async fn a_record_that_has_got_long_ends_with_a_full_snapshot() {
    /// Three values are below this, and all of them, which is not twice as much, above.
    const FULL_AFTER: u64 = 100_000;
    const VALUE: usize = 30_000;
    const VALUES: usize = 5;
    let Some(binaries) = newest() else { return };
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(&binaries);
    let mut client = etcd.connect().await;
    let (at, limit) = (address(store.path()), FULL_AFTER.to_string());
    let archive = Archive::into(&etcd, &["--store", &at, "--full-after", &limit]);
    recorded(store.path(), 1, 1).await;
    for number in 1..=VALUES {
        let put = client.put("much", vec![7; VALUE], None).await.unwrap();
        if number == 3 {
            recorded(store.path(), 1, put.header().unwrap().revision()).await;
            assert_eq!(chains(store.path()).await.len(), 1, "it is too early for the next one");
        }
    }
    recorded(store.path(), 2, 1).await;
    let last = client.put("on", "x", None).await.unwrap().header().unwrap().revision();
    recorded(store.path(), 2, last).await;
    archive.stop();
    let all = chains(store.path()).await;
    assert_eq!(all.len(), 2);
    assert!(bytes_of(&all[0]) > FULL_AFTER && bytes_of(&all[1]) < FULL_AFTER);
    assert!(all[0].head() >= all[1].full.revision, "what lies between the two is in neither");
    let (old, new) = (end_of(&all[0], &mut client).await, end_of(&all[1], &mut client).await);
    come_back(store.path(), &[(&all[0], &old), (&all[1], &new)]);
}

#[tokio::test]
async fn a_record_that_has_got_old_ends_with_a_full_snapshot() {
    let Some(binaries) = newest() else { return };
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(&binaries);
    let mut client = etcd.connect().await;
    let archive = Archive::into(&etcd, &["--store", &address(store.path()), "--full-every", "2s"]);
    let revision = client.put("key", "x", None).await.unwrap().header().unwrap().revision();
    recorded(store.path(), 2, revision).await;
    let last = client.put("key", "y", None).await.unwrap().header().unwrap().revision();
    recorded(store.path(), 2, last).await;
    archive.stop();
    let all = chains(store.path()).await;
    let between = all[1].full.taken.duration_since(all[0].full.taken);
    assert!(between >= SignedDuration::from_secs(2), "{between}");
    for chain in [&all[0], all.last().unwrap()] {
        let end = end_of(chain, &mut client).await;
        come_back(store.path(), &[(chain, &end)]);
    }
}

/// All that is kept of a cluster, byte for byte.
fn kept_of(store: &Path, chain: &Chain) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = store.join(chain.key.folder().as_str()).parent().unwrap().to_owned();
    files(&folder).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Two clusters with one history, as two that were restored from one backup have it: by that nobody can tell them apart.
async fn keeps_clusters_apart(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let put = async |client: &mut Client, value: &str| {
        let revision = client.put("key", value, None).await.unwrap().header().unwrap().revision();
        Moment { revision, hash: client.hash_kv(revision).await.unwrap().hash() }
    };
    let [mut first, mut second] = [(); 2].map(|()| Etcd::start(binaries));
    let mut clients = [first.connect().await, second.connect().await];
    for client in &mut clients {
        put(client, "same").await;
    }
    let archive = Archive::start(&first, store.path());
    let same = recorded(store.path(), 1, 1).await;
    let mut moments = [put(&mut clients[0], "same too").await, put(&mut clients[1], "same too").await];
    assert_eq!(moments[0].revision, moments[1].revision);
    let old = recorded(store.path(), 1, moments[0].revision).await;
    assert!(same.full.revision < old.head(), "there is no delta");
    archive.stop();
    first.kill();
    let before = kept_of(store.path(), &old);

    let archive = Archive::start(&second, store.path());
    moments[1] = put(&mut clients[1], "other").await;
    let new = recorded(store.path(), 2, moments[1].revision).await;
    archive.stop();
    second.kill();
    assert_eq!((new.key.lineage.clone(), new.key.cluster == old.key.cluster), (old.key.lineage.clone(), false));
    assert_eq!(chains(store.path()).await.len(), 2);
    assert!(kept_of(store.path(), &old) == before, "what was recorded of the first cluster has changed");
    come_back(store.path(), &[(&old, &moments[0]), (&new, &moments[1])]);
}

#[test]
fn another_cluster_gets_a_generation_of_its_own_and_leaves_those_of_the_first_as_they_are() {
    each_version(keeps_clusters_apart);
}
