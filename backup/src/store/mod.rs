//! Where backups are kept: one prefix in an S3, Google or Azure bucket, or a folder on a volume. It moves bytes and proves
//! that nothing is overwritten; it knows nothing of what a backup is made of. It keeps at hand where the keys to it are, and
//! does not use them.

mod address;
mod credentials;
mod error;
mod open;
mod options;
pub(crate) mod retries;
mod staged;
#[cfg(test)]
pub(crate) mod tests;
mod upload;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use crate::keys::KeyFiles;

pub use address::{Address, AddressError, Provider};
pub use credentials::{CredentialsError, CredentialsFolder};
pub use error::{Act, Failure, StoreError};
pub use open::{FORMAT_KEY, Settings};
pub use options::{OptionsError, StoreOption};
pub use upload::{Upload, taken_back};

/// The name of an object below the store's prefix, its folders separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// A key of these words, which must not be empty and hold no `/`.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key of something in this folder.
    pub fn join(&self, name: &str) -> Self {
        Self(format!("{}/{name}", self.0))
    }

    /// Its last word.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a create-only put came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// The object is there now, with these bytes.
    Created,
    /// The store says that there is one already. It may be our own: an answer that was lost is tried again below.
    Exists,
}

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: Key,
    /// Its size, in bytes.
    pub bytes: u64,
    /// When it was last written, by the store's clock.
    pub modified: Timestamp,
}

/// An open store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    address: Arc<Address>,
    keys: Arc<KeyFiles>,
}

impl Store {
    /// Where it is, for messages.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The keys by which what lies here is encrypted and read: whoever reads or writes it has the store in hand.
    pub fn keys(&self) -> &KeyFiles {
        &self.keys
    }

    /// Reads an object of at most `limit` bytes whole; `None` if there is none.
    pub async fn read(&self, key: &Key, limit: u64) -> Result<Option<Bytes>, StoreError> {
        let fault = |source| self.fault(Act::Read, key, &source);
        let answer = match self.objects.get(&self.path(key)).await {
            Ok(answer) => answer,
            Err(error) => return missing_is(None, fault(error)),
        };
        if answer.meta.size > limit {
            return Err(StoreError::TooLarge { key: key.clone(), bytes: answer.meta.size, limit });
        }
        answer.bytes().await.map(Some).map_err(fault)
    }

    /// Reads a part of an object: its bytes `range`, all of them or an error.
    pub async fn read_range(&self, key: &Key, range: Range<u64>) -> Result<Bytes, StoreError> {
        let wanted = range.end.saturating_sub(range.start);
        let bytes = self
            .objects
            .get_range(&self.path(key), range.clone())
            .await
            .map_err(|source| self.fault(Act::Read, key, &source))?;
        // A range that reaches beyond the end comes back cut, and is no error by itself.
        if u64::try_from(bytes.len()).is_ok_and(|got| got == wanted) {
            Ok(bytes)
        } else {
            Err(StoreError::Short { key: key.clone(), range, got: bytes.len() })
        }
    }

    /// The size of an object, in bytes; `None` if there is none.
    pub async fn size(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        Ok(self.look(key).await?.map(|found| found.bytes))
    }

    /// An object as it is now; `None` if there is none. Some stores tell whole seconds here, and more in a listing.
    pub async fn look(&self, key: &Key) -> Result<Option<Listed>, StoreError> {
        let path = self.path(key);
        let found = match self.objects.head(&path).await {
            // An answer to HEAD has no text, so that a bucket or an account that is missing looks like a missing object.
            Err(object_store::Error::NotFound { .. }) => self.objects.get(&path).await.map(|answer| answer.meta),
            other => other,
        };
        match found {
            Ok(meta) => Ok(Some(listed(key.clone(), &meta))),
            Err(error) => missing_is(None, self.fault(Act::Read, key, &error)),
        }
    }

    /// Writes an object only if there is none of that name. An error says nothing: it may have been written all the same.
    pub async fn create(&self, key: &Key, content: Bytes) -> Result<Creation, StoreError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.objects.put_opts(&self.path(key), content.into(), options).await {
            Ok(_) => Ok(Creation::Created),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(Creation::Exists)
            }
            Err(error) => {
                let error = self.fault(Act::Write, key, &error);
                // What is locked is there: versitygw looks at the lock before it looks at what the put demands.
                if matches!(error, StoreError::Locked { .. }) { Ok(Creation::Exists) } else { Err(error) }
            }
        }
    }

    /// Begins an object that is written in parts. It appears when the upload is finished, and whole.
    pub fn upload(&self, key: &Key) -> Upload {
        Upload::new(self.clone(), key.clone())
    }

    /// The objects below a folder, in no order. A listing may be late: it is a hint, never a proof.
    pub fn list(&self, folder: Option<&Key>) -> BoxStream<'_, Result<Listed, StoreError>> {
        let path = folder.map_or_else(|| self.address.prefix.clone(), |folder| self.path(folder));
        let folder = folder.cloned().unwrap_or_else(|| Key::new(""));
        self.objects
            .list(Some(&path))
            .map_err(move |source| self.fault(Act::List, &folder, &source))
            .try_filter_map(async |meta| {
                let Some(key) = self.key(&meta.location) else { return Ok(None) };
                Ok(Some(listed(key, &meta)))
            })
            .boxed()
    }

    /// The names of the folders directly in a folder, in order. As in a bucket, there is none without an object in it: a volume
    /// keeps those of an upload that was given up.
    pub async fn folders(&self, folder: Option<&Key>) -> Result<Vec<String>, StoreError> {
        let path = folder.map_or_else(|| self.address.prefix.clone(), |folder| self.path(folder));
        let key = folder.cloned().unwrap_or_else(|| Key::new(""));
        let fault = |source| self.fault(Act::List, &key, &source);
        let listed = self.objects.list_with_delimiter(Some(&path)).await.map_err(fault)?;
        let keeps_empty_ones = matches!(self.address.provider, Provider::Volume { .. });
        let mut names = Vec::new();
        for path in listed.common_prefixes {
            let Some(name) = path.filename() else { continue };
            if !keeps_empty_ones || self.objects.list(Some(&path)).try_next().await.map_err(fault)?.is_some() {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Deletes an object. One that isn't there is as good as deleted.
    pub async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        match self.objects.delete(&self.path(key)).await {
            Ok(()) => Ok(()),
            Err(error) => missing_is((), self.fault(Act::Delete, key, &error)),
        }
    }

    fn path(&self, key: &Key) -> Path {
        self.address.prefix.parts().chain(Path::from(key.as_str()).parts()).collect()
    }

    fn key(&self, path: &Path) -> Option<Key> {
        let words: Vec<_> = path.prefix_match(&self.address.prefix)?.map(|part| part.as_ref().to_owned()).collect();
        (!words.is_empty()).then(|| Key(words.join("/")))
    }

    fn fault(&self, act: Act, key: &Key, source: &object_store::Error) -> StoreError {
        StoreError::of(&self.address, act, key, source)
    }
}

fn listed(key: Key, meta: &ObjectMeta) -> Listed {
    let modified = Timestamp::from_millisecond(meta.last_modified.timestamp_millis()).unwrap_or_default();
    Listed { key, bytes: meta.size, modified }
}

/// An answer for an object that isn't there. What else is wrong stays an error.
fn missing_is<T>(answer: T, error: StoreError) -> Result<T, StoreError> {
    if matches!(error, StoreError::Missing(_)) { Ok(answer) } else { Err(error) }
}
