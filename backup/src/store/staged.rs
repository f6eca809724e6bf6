//! What an upload to a volume leaves behind if its process is killed: the library writes a file beside the object's place,
//! gives it the object's name at the end, and shows it in no listing until then. Here such files are found and deleted, and
//! no others.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tokio::task::spawn_blocking;

use super::error::Act;
use super::{Key, Listed, Provider, Store, StoreError};

impl Store {
    /// The files of uploads that have not come to their end, below a folder, in no order. Only a volume has any.
    pub async fn staged(&self, folder: &Key) -> Result<Vec<Listed>, StoreError> {
        let Provider::Volume { folder: root } = &self.address.provider else { return Ok(Vec::new()) };
        let (root, below) = (root.clone(), folder.clone());
        self.in_file_system(Act::List, folder, move || {
            let mut found = Vec::new();
            find(&root.join(below.as_str()), &below, &mut found)?;
            Ok(found)
        })
        .await
    }

    /// Deletes such a file, if it still is as it was listed: nobody may have written to it since. Says whether it was.
    pub async fn delete_staged(&self, listed: &Listed) -> Result<bool, StoreError> {
        let Provider::Volume { folder: root } = &self.address.provider else { return Ok(false) };
        if !is_staged(listed.key.name()) {
            return Ok(false);
        }
        let (root, wanted) = (root.clone(), listed.clone());
        self.in_file_system(Act::Delete, &listed.key, move || {
            let path = root.join(wanted.key.as_str());
            let found = present(fs::symlink_metadata(&path))?;
            if found.is_none_or(|found| modified(&found).ok() != Some(wanted.modified)) {
                return Ok(false);
            }
            present(fs::remove_file(&path))?;
            remove_empty_folders(&root, &path);
            Ok(true)
        })
        .await
    }

    async fn in_file_system<T: Send + 'static>(
        &self,
        act: Act,
        key: &Key,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let done = spawn_blocking(work).await.unwrap_or_else(|thread| Err(io::Error::other(thread)));
        done.map_err(|source| {
            let source = object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(source) };
            self.fault(act, key, &source)
        })
    }
}

/// Whether the library gives such a name to what is not complete.
fn is_staged(name: &str) -> bool {
    let digits = name.split_once('#').map(|(_, digits)| digits);
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn find(folder: &Path, key: &Key, found: &mut Vec<Listed>) -> io::Result<()> {
    let Some(entries) = present(fs::read_dir(folder))? else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        // All names that are ours can be read.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (kind, key) = (entry.file_type()?, key.join(&name));
        if kind.is_dir() {
            find(&entry.path(), &key, found)?;
        } else if kind.is_file()
            && is_staged(&name)
            && let Some(metadata) = present(entry.metadata())?
        {
            found.push(Listed { key, bytes: metadata.len(), modified: modified(&metadata)? });
        }
    }
    Ok(())
}

fn modified(metadata: &Metadata) -> io::Result<Timestamp> {
    Timestamp::try_from(metadata.modified()?).map_err(io::Error::other)
}

/// What is there. It may be gone since it was listed: its upload has come to its end.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Buckets have none, and one that is left would look like a backup that has just begun.
fn remove_empty_folders(root: &Path, path: &Path) {
    let folders = path.ancestors().skip(1).take_while(|folder| *folder != root).map(PathBuf::from);
    for folder in folders {
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
}
