//! A store that fails as told: before or after it did what it was asked, or by not keeping its word.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

use crate::store::Store;

/// What a put goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It works.
    None,
    /// It is not done, and fails.
    Before,
    /// It is done, and the answer is lost.
    After,
    /// It is done, and the answer says that the object had existed: what a repeated request meets.
    AfterAsConflict,
    /// It is not done, and the answer says that the object exists.
    FalseConflict,
    /// It overwrites, whatever it was told.
    Overwrites,
    /// It is not done, and the answer says that the object is locked.
    Locked,
}

/// The faults of puts in their order, then of parts, and how many uploads were given up.
pub struct Faulty {
    inner: InMemory,
    puts: Vec<Fault>,
    put: AtomicUsize,
    /// The part that fails, counted from zero.
    failing_part: Option<usize>,
    /// How long each part takes.
    part_takes: Duration,
    /// Uploads that were aborted.
    pub aborted: Arc<AtomicUsize>,
    /// Parts that have arrived.
    pub arrived: Arc<AtomicUsize>,
    /// Objects that were read, or asked for.
    pub reads: Arc<AtomicUsize>,
    /// The end of the name of the object that nobody may read, if there is one.
    pub refused: Arc<Mutex<Option<String>>>,
    /// The ends of the names of objects that no listing shows.
    pub unlisted: Arc<Mutex<Vec<String>>>,
}

impl Faulty {
    pub fn puts(puts: &[Fault]) -> Self {
        Self { puts: puts.to_vec(), ..Self::failing_part(None) }
    }

    pub fn failing_part(part: impl Into<Option<usize>>) -> Self {
        Self {
            inner: InMemory::new(),
            puts: Vec::new(),
            put: AtomicUsize::new(0),
            failing_part: part.into(),
            part_takes: Duration::ZERO,
            aborted: Arc::default(),
            arrived: Arc::default(),
            reads: Arc::default(),
            refused: Arc::default(),
            unlisted: Arc::default(),
        }
    }

    pub fn slow_parts(part_takes: Duration) -> Self {
        Self { part_takes, ..Self::failing_part(None) }
    }

    pub fn store(self) -> Store {
        Store::over(Arc::new(self), "s3://bucket/prefix".parse().unwrap())
    }
}

/// A store in memory that has no faults.
pub fn sound() -> Store {
    Faulty::puts(&[]).store()
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

fn lost() -> Error {
    Error::Generic { store: "faulty", source: "connection reset by peer".into() }
}

fn conflict(path: &Path) -> Error {
    Error::AlreadyExists { path: path.to_string(), source: "409 Conflict".into() }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let turn = self.put.fetch_add(1, Ordering::SeqCst);
        match self.puts.get(turn).copied().unwrap_or(Fault::None) {
            Fault::None => self.inner.put_opts(path, payload, options).await,
            Fault::Before => Err(lost()),
            Fault::After => self.inner.put_opts(path, payload, options).await.and(Err(lost())),
            Fault::AfterAsConflict => self.inner.put_opts(path, payload, options).await.and(Err(conflict(path))),
            Fault::FalseConflict => Err(conflict(path)),
            Fault::Locked => {
                let source = "403 Forbidden: Access Denied because object protected by object lock.".into();
                Err(Error::PermissionDenied { path: path.to_string(), source })
            }
            Fault::Overwrites => {
                options.mode = PutMode::Overwrite;
                self.inner.put_opts(path, payload, options).await
            }
        }
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(path, options).await?;
        Ok(Box::new(FaultyUpload {
            inner,
            failing: self.failing_part,
            takes: self.part_takes,
            part: 0,
            aborted: Arc::clone(&self.aborted),
            arrived: Arc::clone(&self.arrived),
        }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.refused.lock().unwrap().as_ref().is_some_and(|refused| path.as_ref().ends_with(refused)) {
            return Err(Error::PermissionDenied { path: path.to_string(), source: "403 Forbidden".into() });
        }
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let unlisted = self.unlisted.lock().unwrap().clone();
        let is_listed = move |found: &Result<ObjectMeta>| {
            let name = found.as_ref().map(|object| object.location.to_string()).unwrap_or_default();
            !unlisted.iter().any(|end| name.ends_with(end.as_str()))
        };
        self.inner.list(prefix).filter(move |found| std::future::ready(is_listed(found))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    failing: Option<usize>,
    takes: Duration,
    part: usize,
    aborted: Arc<AtomicUsize>,
    arrived: Arc<AtomicUsize>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let turn = self.part;
        self.part += 1;
        if self.failing == Some(turn) {
            return Box::pin(async { Err(lost()) });
        }
        let (takes, part, arrived) = (self.takes, self.inner.put_part(data), Arc::clone(&self.arrived));
        Box::pin(async move {
            tokio::time::sleep(takes).await;
            part.await?;
            arrived.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.aborted.fetch_add(1, Ordering::SeqCst);
        self.inner.abort().await
    }
}
