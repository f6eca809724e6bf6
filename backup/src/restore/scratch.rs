//! A folder beside the target in which a restore works, so that nothing appears under its name before it is complete. It
//! takes over what a killed restore left there, and never what a living one has.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use super::RestoreError;

/// Who may look into the folder: who restores, as with etcd's own.
const OWN: u32 = 0o700;
/// Who may read a file in it, also after it was given its name: the same.
const OWN_FILE: u32 = 0o600;

/// The folder, on the target's file system. It goes when this is dropped; where the process ends before, the next one clears it.
pub(super) struct Scratch {
    path: PathBuf,
    target: PathBuf,
    /// The folder itself, locked: let go by the kernel whenever this process dies.
    _lock: File,
}

impl Scratch {
    /// For a file or a folder that does not exist; a folder may also be empty.
    pub fn beside(target: &Path) -> Result<Self, RestoreError> {
        let free = match fs::read_dir(target) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        let path = path_for(target).filter(|_| free).ok_or_else(|| RestoreError::Exists(target.to_owned()))?;
        let fault = |source| RestoreError::Write { path: path.clone(), source };
        match fs::DirBuilder::new().mode(OWN).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fault(error)),
            Err(_) | Ok(()) => {}
        }
        let lock = File::open(&path).map_err(fault)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(RestoreError::Busy(target.to_owned())),
            // Some network file systems can't lock a folder.
            Err(TryLockError::Error(error)) => tracing::warn!("failed to lock {}: {error}", path.display()),
        }
        clear(&path).map_err(fault)?;
        Ok(Self { path, target: target.to_owned(), _lock: lock })
    }

    /// Where to work.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives what was made there its name, once it is on the disk. Whoever gives up waiting for it leaves it to a thread that
    /// owns all of this: what gets the name is never half removed.
    pub async fn publish(self, made: PathBuf) -> Result<(), RestoreError> {
        let published = spawn_blocking(move || {
            publish(&made, &self.target).map_err(|source| RestoreError::Write { path: self.target.clone(), source })
        });
        published.await?
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!("{} stays behind: {error}", self.path.display());
        }
    }
}

fn publish(made: &Path, target: &Path) -> io::Result<()> {
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    sync(made)?;
    // An empty folder of this name is replaced; one that is not empty refuses it.
    fs::rename(made, target)?;
    File::open(parent)?.sync_all()
}

/// Makes a file, which must not exist.
pub fn create(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(OWN_FILE).open(path)
}

/// How many bytes are free on the file system of a path.
pub fn free(path: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Where a restore to this target works.
fn path_for(target: &Path) -> Option<PathBuf> {
    let name = target.file_name()?;
    Some(target.with_file_name(format!(".{}.restoring", name.to_string_lossy())))
}

/// Removes what a killed restore to this target has left. Whoever calls this makes sure that none is at work.
pub fn clear_remains(target: &Path) -> io::Result<()> {
    match path_for(target).map(fs::remove_dir_all) {
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Some(Ok(()) | Err(_)) | None => Ok(()),
    }
}

/// Removes all that is in a folder.
fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// A file, or a folder with all that is in it, is on the disk when this returns. etcdutl itself syncs the database and the
/// log, not the folders.
fn sync(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            sync(&entry?.path())?;
        }
    }
    File::open(path)?.sync_all()
}
