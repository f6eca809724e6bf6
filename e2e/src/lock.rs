//! What keeps two programs from doing the same work in the same place at the same time. Knows nothing of the work.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Waits until nobody else holds the lock that is this file, which is made if need be, and holds it until what is returned is
/// dropped.
pub fn hold(path: &Path) -> io::Result<File> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let file = File::create(path)?;
    file.lock()?;
    Ok(file)
}
