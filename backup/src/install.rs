//! Puts a copy of this program where another container can run it. Whoever looks sees no copy or a whole one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Everybody may run it: the containers' users differ.
const MODE: u32 = 0o755;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The target names no file.
    #[error("failed to install to {}: not the path of a file", .0.display())]
    Target(PathBuf),
    /// The running program can't be read.
    #[error("failed to read the running program")]
    Source(#[source] io::Error),
    /// The copy can't be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// What was written.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

/// Copies the running program to `target`, which may exist and even run.
pub fn install(target: &Path) -> Result<(), InstallError> {
    let Some(name) = target.file_name() else { return Err(InstallError::Target(target.to_owned())) };
    let source = std::env::current_exe().and_then(File::open).map_err(InstallError::Source)?;
    // One fixed name: a crashed try is overwritten by the next one.
    let mut unfinished = OsString::from(".");
    unfinished.push(name);
    unfinished.push(".new");
    let unfinished = target.with_file_name(unfinished);
    copy(source, &unfinished)
        .and_then(|()| fs::rename(&unfinished, target))
        .map_err(|source| InstallError::Write { path: target.to_owned(), source })
}

fn copy(mut source: File, path: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)?;
    io::copy(&mut source, &mut target)?;
    // The mode at creation passes the umask.
    target.set_permissions(Permissions::from_mode(MODE))?;
    target.sync_all()
}
