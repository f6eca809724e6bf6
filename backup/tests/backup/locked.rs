//! Objects that a store keeps for a time, whoever deletes them, as the locks of buckets do: a generation whose manifest is kept
//! stays as it is, and of others no more stays than what is kept.

use std::fmt;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use quorate_backup::care::{DeleteError, Keep, Plan, Pruned, Removal, delete, plan, prune};
use quorate_backup::format::GenerationKey;
use quorate_backup::store::{Key, Store};

use crate::recorded::{FIRST, Recorded, files, revision};

/// A folder of which one object can't be deleted.
#[derive(Debug)]
struct Locked {
    objects: LocalFileSystem,
    kept: Path,
}

impl Locked {
    /// The store of a backup, with a lock on this object.
    fn store(recorded: &Recorded, kept: &Key) -> Store {
        let objects = LocalFileSystem::new_with_prefix(recorded.folder.path()).unwrap().with_automatic_cleanup(true);
        let locked = Self { objects, kept: Path::from(kept.as_str()) };
        Store::over(Arc::new(locked), recorded.store.address().clone())
    }
}

impl fmt::Display for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locked")
    }
}

#[async_trait]
impl ObjectStore for Locked {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.objects.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (objects, kept) = (self.objects.clone(), self.kept.clone());
        let one = move |path: Result<Path>| {
            let (objects, kept) = (objects.clone(), kept.clone());
            async move {
                let path = path?;
                if path == kept {
                    let source = "403 Forbidden: object protected by object lock".into();
                    return Err(Error::PermissionDenied { path: path.to_string(), source });
                }
                objects.delete(&path).await?;
                Ok(path)
            }
        };
        paths.then(one).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// The files of a generation.
fn of_generation(recorded: &Recorded, key: &GenerationKey) -> Vec<PathBuf> {
    let folder = recorded.folder.path().join(key.folder().as_str());
    if folder.exists() { files(&folder) } else { Vec::new() }
}

/// How much files take together.
fn bytes_of(files: &[PathBuf]) -> u64 {
    files.iter().map(|file| fs::metadata(file).unwrap().len()).sum()
}

#[tokio::test]
async fn a_generation_whose_manifest_is_kept_stays_whole_and_others_go() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    let key = &recorded.chain.key;
    let other = recorded.taken_at(recorded.chain.full.taken - SignedDuration::from_hours(50)).await;
    let before = of_generation(&recorded, key);
    let bytes = bytes_of(&of_generation(&recorded, &other));
    let removals = vec![Removal::Generation(key.clone()), Removal::Generation(other.clone())];
    let pruned = prune(&Locked::store(&recorded, &key.full()), &Plan { removals, kept: 0 }).await.unwrap();
    assert_eq!((pruned.objects, pruned.bytes, pruned.failed.len()), (2, bytes, 1), "{pruned:?}");
    assert!(pruned.failed[0].contains(key.full().as_str()), "{pruned:?}");
    assert!(pruned.failed[0].contains("the object is locked"), "{pruned:?}");
    assert_eq!(of_generation(&recorded, &other), Vec::<PathBuf>::new());
    assert_eq!(of_generation(&recorded, key), before);
    let scratch = tempfile::tempdir().unwrap();
    let proved = recorded.run("verify", &["--strict", "--scratch", scratch.path().to_str().unwrap()]).json();
    assert_eq!(proved["revision"].as_u64(), Some(40), "{proved}");
}

#[tokio::test]
async fn what_is_kept_of_a_generation_without_its_manifest_is_no_backup() {
    let parts: [fn(&Recorded) -> Key; 3] = [
        |recorded| recorded.chain.key.data(&recorded.chain.full.data.name),
        |recorded| recorded.chain.key.data(&recorded.chain.last_data().name),
        |recorded| recorded.chain.key.delta(revision(FIRST + 1)),
    ];
    for kept in parts {
        let recorded = Recorded::with_deltas(&[10, 40]).await;
        let key = &recorded.chain.key;
        let (kept, count) = (kept(&recorded), of_generation(&recorded, key).len() as u64);
        let plan = Plan { removals: vec![Removal::Generation(key.clone())], kept: 0 };
        let pruned = prune(&Locked::store(&recorded, &kept), &plan).await.unwrap();
        assert_eq!((pruned.objects, pruned.failed.len()), (count - 1, 1), "{pruned:?}");
        assert!(pruned.failed[0].contains(kept.as_str()), "{pruned:?}");
        assert_eq!(of_generation(&recorded, key), [recorded.folder.path().join(kept.as_str())]);
        let listed = recorded.run("list", &[]).json();
        assert!(listed.as_array().unwrap().iter().all(|line| line["state"] != "whole"), "{listed}");
        // Once it may go, the rest of it does.
        prune(&recorded.store, &plan).await.unwrap();
        assert_eq!(of_generation(&recorded, key), Vec::<PathBuf>::new());
    }
}

#[tokio::test]
async fn what_a_lock_has_left_of_a_generation_goes_by_the_rules_when_the_lock_is_over() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    let key = &recorded.chain.key;
    let later = recorded.taken_at(recorded.chain.full.taken + SignedDuration::from_hours(1)).await;
    // Locked last, a delta is kept for longer than its full snapshot.
    let locked = Locked::store(&recorded, &key.delta(revision(FIRST + 4)));
    prune(&locked, &Plan { removals: vec![Removal::Generation(key.clone())], kept: 1 }).await.unwrap();
    assert_eq!(of_generation(&recorded, key).len(), 1);
    let keep = Keep { newest: 1, last: Duration::from_hours(1) };
    let planned = async || {
        let now = Timestamp::now() + SignedDuration::from_hours(26);
        plan(&recorded.store, &key.lineage, keep, now, &|_, _| {}).await.unwrap()
    };
    assert_eq!(planned().await.removals, [], "by the store's clock it has just come");
    for path in of_generation(&recorded, &later) {
        let modified = SystemTime::now() + Duration::from_hours(25);
        File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    }
    let plan = planned().await;
    assert_eq!((&plan.removals[..], plan.kept), (&[Removal::Generation(key.clone())][..], 1));
    // What is told is what was there: the manifest of its full snapshot has gone before.
    let bytes = bytes_of(&of_generation(&recorded, key));
    let pruned = prune(&recorded.store, &plan).await.unwrap();
    assert_eq!(pruned, Pruned { objects: 1, bytes, ..Pruned::default() });
    assert_eq!(of_generation(&recorded, key), Vec::<PathBuf>::new());
    assert_eq!(of_generation(&recorded, &later).len(), 2);
}

/// Names an object of a backup.
type Part = fn(&Recorded) -> Key;

#[tokio::test]
async fn a_backup_that_is_kept_is_not_told_to_be_deleted() {
    let parts: [(Part, usize); 2] = [
        (|recorded| recorded.chain.key.full(), 2),
        (|recorded| recorded.chain.key.data(&recorded.chain.full.data.name), 1),
    ];
    for (kept, left) in parts {
        let recorded = Recorded::full().await;
        let (kept, key, hash) = (kept(&recorded), &recorded.chain.key, recorded.chain.full_hash);
        let error = Box::pin(delete(&Locked::store(&recorded, &kept), key, hash)).await.unwrap_err();
        assert!(matches!(&error, DeleteError::Left { count: 1, first } if first.contains(kept.as_str())), "{error}");
        assert_eq!(of_generation(&recorded, key).len(), left);
        Box::pin(delete(&recorded.store, key, hash)).await.unwrap();
        assert_eq!(of_generation(&recorded, key), Vec::<PathBuf>::new());
    }
}
