//! Writes one large object in parts, a few at a time: memory stays bounded however fast the writer is, and nothing is left
//! behind when it fails.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::error::{Act, StoreError};
use super::{Key, Store};

/// The size of a part. S3 allows 10,000 of them, so an object may have 78 GiB; etcd's largest database has 8 to 16.
pub const PART: usize = 8 << 20;
/// Parts on their way at once. More than that gained nothing on a fast link, and each holds its part in memory.
const AT_ONCE: usize = 4;
/// How long parts on their way are waited for when an upload is given up: a link of 50 Mbit/s takes them by then, and a
/// process that was told to stop still has time for the rest.
const PARTS_END: Duration = Duration::from_secs(5);
/// Whatever takes back an upload that was given up holds a receiver, until it is done.
static TAKING_BACK: LazyLock<watch::Sender<()>> = LazyLock::new(|| watch::Sender::new(()));

/// Waits until the uploads that were given up are taken back, for so long at most. Call this before the process ends: that is
/// done beside, and ends with it.
pub async fn taken_back(within: Duration) {
    if timeout(within, TAKING_BACK.closed()).await.is_err() {
        tracing::warn!(
            "an upload that was given up could not be taken back within {within:?}; a lifecycle rule of the bucket removes the \
             parts that stay behind"
        );
    }
}

/// An object on its way. Dropped without being finished it leaves nothing behind, as far as the store can be reached and
/// [`taken_back`] is waited for.
#[derive(Debug)]
pub struct Upload {
    store: Store,
    key: Key,
    buffered: VecDeque<Bytes>,
    buffered_bytes: usize,
    written: u64,
    begun: Option<Begun>,
}

/// A multipart upload that the store knows of.
#[derive(Debug)]
struct Begun {
    parts: Box<dyn MultipartUpload>,
    under_way: JoinSet<object_store::Result<()>>,
}

impl Upload {
    pub(super) fn new(store: Store, key: Key) -> Self {
        Self { store, key, buffered: VecDeque::new(), buffered_bytes: 0, written: 0, begun: None }
    }

    /// What it will be called.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Bytes taken so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Takes the next bytes. It waits while too many parts are on their way.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        self.written += bytes.len() as u64;
        self.buffered_bytes += bytes.len();
        self.buffered.push_back(bytes);
        // All parts but the last have one size: some stores insist on it.
        while self.buffered_bytes > PART {
            let part = self.take(PART);
            self.send(part).await?;
        }
        Ok(())
    }

    /// Ends the object: from here on it can be read, and is on the store's disks.
    pub async fn finish(mut self) -> Result<(), StoreError> {
        let last = self.take(self.buffered_bytes);
        if self.begun.is_none() {
            let path = self.store.path(&self.key);
            return self.store.objects.put(&path, last).await.map(drop).map_err(|source| self.fault(&source));
        }
        if last.content_length() > 0 {
            self.send(last).await?;
        }
        let Some(begun) = &mut self.begun else { return Ok(()) };
        let result = async {
            while let Some(part) = begun.under_way.join_next().await {
                part??;
            }
            begun.parts.complete().await.map(drop)
        }
        .await;
        match result {
            Ok(()) => {
                self.begun = None;
                Ok(())
            }
            Err(source) => Err(self.failed(source).await),
        }
    }

    /// Gives up, and takes back what was sent.
    pub async fn abort(mut self) {
        if let Some(done) = self.take_back() {
            // What went wrong was told.
            let _ = done.await;
        }
    }

    /// Takes back what was sent, whoever waits for that: also a caller that is dropped meanwhile leaves nothing behind.
    fn take_back(&mut self) -> Option<JoinHandle<()>> {
        let begun = self.begun.take()?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (key, taking_back) = (self.key.clone(), TAKING_BACK.subscribe());
        Some(runtime.spawn(async move {
            begun.abort(&key).await;
            drop(taking_back);
        }))
    }

    async fn send(&mut self, part: PutPayload) -> Result<(), StoreError> {
        let result = async {
            let begun = if let Some(begun) = &mut self.begun {
                begun
            } else {
                let parts = self.store.objects.put_multipart(&self.store.path(&self.key)).await?;
                self.begun.insert(Begun { parts, under_way: JoinSet::new() })
            };
            while begun.under_way.len() >= AT_ONCE
                && let Some(done) = begun.under_way.join_next().await
            {
                done??;
            }
            begun.under_way.spawn(begun.parts.put_part(part));
            Ok(())
        }
        .await;
        match result {
            Ok(()) => Ok(()),
            Err(source) => Err(self.failed(source).await),
        }
    }

    async fn failed(&mut self, source: object_store::Error) -> StoreError {
        if let Some(done) = self.take_back() {
            let _ = done.await;
        }
        self.fault(&source)
    }

    fn fault(&self, source: &object_store::Error) -> StoreError {
        self.store.fault(Act::Write, &self.key, source)
    }

    /// The first `length` of the bytes that wait, without copying them.
    fn take(&mut self, length: usize) -> PutPayload {
        let mut left = length;
        let mut taken = Vec::new();
        while left > 0
            && let Some(mut bytes) = self.buffered.pop_front()
        {
            let piece = bytes.split_to(left.min(bytes.len()));
            left -= piece.len();
            taken.push(piece);
            if !bytes.is_empty() {
                self.buffered.push_front(bytes);
            }
        }
        self.buffered_bytes -= length - left;
        PutPayload::from_iter(taken)
    }
}

impl Begun {
    async fn abort(mut self, key: &Key) {
        // One that arrives while the upload is being given up may stay behind, as AWS's reference of AbortMultipartUpload says.
        let ended = async { while self.under_way.join_next().await.is_some() {} };
        if timeout(PARTS_END, ended).await.is_err() {
            self.under_way.shutdown().await;
        }
        if let Err(error) = self.parts.abort().await {
            tracing::warn!(
                "the parts of {key} that were sent stay behind; a lifecycle rule of the bucket removes them: {error}"
            );
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        drop(self.take_back());
    }
}
