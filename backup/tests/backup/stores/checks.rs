//! What every store has to do, tried on each of them in the same way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt;
use jiff::{SignedDuration, Timestamp};
use quorate_backup::store::{Creation, FORMAT_KEY, Key, Store, StoreError};
use tokio::task::JoinSet;

use super::Server;

/// More than goes into one part.
const LARGE: usize = (17 << 20) + 5;
/// What each piece of a large object is handed over in.
const PIECE: usize = 1 << 20;
/// How long a part may take: everything here takes milliseconds, and machines may be very busy.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub async fn all(server: &dyn Server) {
    begins(&server.place("begins").open()).await;
    creates_once(&server.place("creates").open()).await;
    reads(&server.place("reads").open()).await;
    lists(&server.place("lists").open()).await;
    // Names that mean something in a URL, in XML, or to a signature.
    lists(&server.place("odd%20%C3%BC%26%3Cb%3E+c=d/e").open()).await;
    uploads(&server.place("uploads").open()).await;
    takes_back(server, &server.place("takes-back").open()).await;
    deletes(&server.place("deletes").open()).await;
}

async fn put(store: &Store, key: &Key, content: &'static str) -> Creation {
    store.create(key, Bytes::from_static(content.as_bytes())).await.unwrap()
}

async fn listed(store: &Store, folder: Option<&Key>) -> BTreeSet<(String, u64)> {
    let found: Vec<_> = store.list(folder).try_collect().await.unwrap();
    let names: BTreeSet<_> = found.iter().map(|listed| (listed.key.to_string(), listed.bytes)).collect();
    assert_eq!(found.len(), names.len(), "something is listed twice: {found:?}");
    names
}

fn names(names: &[(&str, u64)]) -> BTreeSet<(String, u64)> {
    names.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect()
}

async fn begins(store: &Store) {
    let error = store.check().await.unwrap_err();
    assert!(matches!(error, StoreError::OtherFormat { .. }), "{error}");
    assert!(error.to_string().contains("no backup has been made to this address"), "{error}");
    // The second finds that it is ours, and a store that overwrites would have been refused by the first.
    store.prepare().await.unwrap();
    store.prepare().await.unwrap();
    store.check().await.unwrap();
    assert!(listed(store, None).await.iter().any(|(name, _)| name == FORMAT_KEY));
}

async fn creates_once(store: &Store) {
    let key = Key::new("a/b").join("once");
    assert_eq!(put(store, &key, "one").await, Creation::Created);
    assert_eq!(put(store, &key, "two").await, Creation::Exists);
    assert_eq!(store.read(&key, 3).await.unwrap().unwrap(), "one");

    let key = Key::new("a/race");
    let mut tries = JoinSet::new();
    for number in 0..16_u8 {
        let (store, key) = (store.clone(), key.clone());
        tries.spawn(async move { (number, store.create(&key, Bytes::from(vec![number])).await.unwrap()) });
    }
    let ended = tries.join_all().await;
    let winners: Vec<_> = ended.iter().filter(|(_, creation)| *creation == Creation::Created).collect();
    let [(winner, _)] = winners.as_slice() else { panic!("{} of 16 were told that they created it", winners.len()) };
    assert_eq!(store.read(&key, 1).await.unwrap().unwrap(), vec![*winner]);
}

async fn reads(store: &Store) {
    let (key, empty, missing) = (Key::new("a/object"), Key::new("a/empty"), Key::new("a/missing"));
    put(store, &key, "0123456789").await;
    put(store, &empty, "").await;
    assert_eq!(store.read(&key, 10).await.unwrap().unwrap(), "0123456789");
    assert!(matches!(store.read(&key, 9).await, Err(StoreError::TooLarge { bytes: 10, .. })));
    assert_eq!(store.read_range(&key, 3..7).await.unwrap(), "3456");
    assert_eq!(store.read_range(&key, 0..10).await.unwrap(), "0123456789");
    assert!(matches!(store.read_range(&key, 8..12).await, Err(StoreError::Short { got: 2, .. })));
    let beyond = store.read_range(&key, 10..12).await.unwrap_err();
    assert!(beyond.to_string().contains("a/object"), "{beyond}");
    assert_eq!(store.read(&empty, 0).await.unwrap().unwrap(), "");
    assert_eq!((store.size(&key).await.unwrap(), store.size(&empty).await.unwrap()), (Some(10), Some(0)));
    assert_eq!((store.read(&missing, 9).await.unwrap(), store.size(&missing).await.unwrap()), (None, None));
    let error = store.read_range(&missing, 0..1).await.unwrap_err();
    assert!(matches!(error, StoreError::Missing(_)), "{error}");
}

async fn lists(store: &Store) {
    assert_eq!(listed(store, None).await, names(&[]));
    assert_eq!(store.folders(None).await.unwrap(), [""; 0]);
    let before = Timestamp::now() - SignedDuration::from_secs(2);
    // Neighbours that a listing by the beginning of a name alone would mix up.
    for name in ["a/b/1", "a/b/2", "a/b/c/3", "a/bc/4", "a/b5", "ab/6", "7"] {
        put(store, &Key::new(name), "x").await;
    }
    assert_eq!(listed(store, Some(&Key::new("a/b"))).await, names(&[("a/b/1", 1), ("a/b/2", 1), ("a/b/c/3", 1)]));
    assert_eq!(listed(store, None).await.len(), 7);
    assert_eq!(listed(store, Some(&Key::new("nothing"))).await, names(&[]));
    assert_eq!(store.folders(None).await.unwrap(), ["a", "ab"]);
    assert_eq!(store.folders(Some(&Key::new("a"))).await.unwrap(), ["b", "bc"]);
    let found: Vec<_> = store.list(None).try_collect().await.unwrap();
    let after = Timestamp::now() + SignedDuration::from_secs(2);
    assert!(found.iter().all(|listed| before <= listed.modified && listed.modified <= after), "{found:?}");
}

/// Bytes that no two places of an object share by chance.
fn large() -> Vec<u8> {
    let mut content = vec![0; LARGE];
    fastrand::Rng::with_seed(5).fill(&mut content);
    content
}

async fn uploads(store: &Store) {
    let content = large();
    let key = Key::new("d/large");
    let mut upload = store.upload(&key);
    for piece in content.chunks(PIECE) {
        upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
    }
    assert_eq!(store.size(&key).await.unwrap(), None, "it is there before it is whole");
    upload.finish().await.unwrap();
    assert_eq!(listed(store, None).await, names(&[("d/large", LARGE as u64)]));
    assert!(store.read(&key, u64::MAX).await.unwrap().unwrap() == content);
    // Across the seam of two parts.
    let seam = 8 << 20;
    let range = (seam - 3) as u64..(seam + 3) as u64;
    assert_eq!(store.read_range(&key, range).await.unwrap(), content[seam - 3..seam + 3]);

    upload_small(store, &Key::new("d/small")).await;
}

async fn upload_small(store: &Store, key: &Key) {
    let mut upload = store.upload(key);
    upload.write(Bytes::from_static(b"x")).await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(store.read(key, 1).await.unwrap().unwrap(), "x");
}

async fn takes_back(server: &dyn Server, store: &Store) {
    let key = Key::new("d/given-up");
    let mut upload = store.upload(&key);
    upload.write(large().into()).await.unwrap();
    // If there had been no part at all, that none is left would say nothing.
    let begun = Instant::now();
    while server.parts_left() == Some(0) {
        assert!(begun.elapsed() < PATIENCE, "no part arrives");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    upload.abort().await;
    assert_eq!((listed(store, None).await, store.size(&key).await.unwrap()), (names(&[]), None));
    if let Some(parts) = server.parts_left() {
        assert_eq!(parts, 0, "parts of an upload that was given up are left");
    }
    // Its name can be uploaded to again. To a put that only creates azurite says that parts are an object; what is created
    // only once is never uploaded.
    upload_small(store, &key).await;
}

async fn deletes(store: &Store) {
    let (key, other) = (Key::new("a/gone"), Key::new("a/stays"));
    put(store, &key, "x").await;
    put(store, &other, "x").await;
    store.delete(&key).await.unwrap();
    assert_eq!(store.read(&key, 1).await.unwrap(), None);
    assert_eq!(listed(store, None).await, names(&[("a/stays", 1)]));
    store.delete(&key).await.unwrap();
    store.delete(&Key::new("never/was")).await.unwrap();
    assert_eq!(put(store, &key, "y").await, Creation::Created);
}
