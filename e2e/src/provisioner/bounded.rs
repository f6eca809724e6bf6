//! Volumes that can be full: each a file system of its own, in memory, of the size that was asked for. Knows nothing of claims.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, mount, mount_remount};

/// Has a folder hold no more than so many bytes from now on; what is in it stays if it held no more than others before.
pub fn bound(folder: &Path, bytes: u64) -> io::Result<()> {
    let size = CString::new(format!("size={bytes}"))?;
    if is_bounded(folder)? {
        mount_remount(folder, MountFlags::empty(), size.as_c_str())?;
    } else {
        mount("tmpfs", folder, "tmpfs", MountFlags::empty(), size.as_c_str())?;
    }
    Ok(())
}

/// Whether something is mounted there: the folder is on another device than the one that it is in.
fn is_bounded(folder: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let Some(parent) = folder.parent() else { return Ok(true) };
    Ok(fs::metadata(folder)?.dev() != fs::metadata(parent)?.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_like_any_other_is_not_bounded() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("volume");
        fs::create_dir(&folder).unwrap();
        assert!(!is_bounded(&folder).unwrap());
        assert!(is_bounded(Path::new("/proc")).unwrap());
        assert!(is_bounded(&parent.path().join("none")).is_err());
    }
}
