//! Where a lab keeps its files, and the few things done to files and mounts. Knows nothing of what is in them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::LabError;
use super::daemon::Component;
use super::names::{LabName, NodeNumber};
use crate::workspace;

/// Where labs keep what doesn't outlive a reboot: sockets and mounts. A socket's path must be short.
const RUNTIME: &str = "/run/quorate";

/// A lab's folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// Its files.
    pub run: PathBuf,
    /// Its sockets and mounts.
    pub runtime: PathBuf,
}

impl Folders {
    /// Those of the lab of that name.
    pub fn of(lab: &LabName) -> Self {
        Self { run: workspace::run(lab.as_str()), runtime: Path::new(RUNTIME).join(lab.as_str()) }
    }

    /// What is remembered of the lab.
    pub fn state(&self) -> PathBuf {
        self.run.join("lab.json")
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.run.join("kubeconfig")
    }

    /// What kubectl remembers of the API.
    pub fn kubectl_cache(&self) -> PathBuf {
        self.run.join("kubectl")
    }

    /// The log of a part of the lab.
    pub fn log(&self, component: Component) -> PathBuf {
        self.run.join("logs").join(format!("{component}.log"))
    }

    /// The file to which the API server writes its audit log; full ones lie beside it.
    pub fn audit_log(&self) -> PathBuf {
        self.run.join("logs/audit.log")
    }

    /// The files of a node.
    pub fn node(&self, node: NodeNumber) -> PathBuf {
        self.run.join(node.to_string())
    }

    /// The folders of a node's volumes.
    pub fn volumes(&self, node: NodeNumber) -> PathBuf {
        self.node(node).join("volumes")
    }

    /// The folders of volumes that every node can use.
    pub fn network_volumes(&self) -> PathBuf {
        self.run.join("volumes")
    }

    /// The sockets and mounts of a node.
    pub fn runtime_of(&self, node: NodeNumber) -> PathBuf {
        self.runtime.join(node.to_string())
    }

    /// Where a node's containerd listens.
    pub fn containerd_socket(&self, node: NodeNumber) -> PathBuf {
        self.runtime_of(node).join("containerd.sock")
    }
}

/// Writes a file and the folders above it. A file that has this content already is left alone: kube-proxy ends when its
/// configuration is so much as touched.
pub fn write(path: &Path, text: &str) -> Result<(), LabError> {
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    create_folder(path.parent().unwrap_or(path))?;
    fs::write(path, text).map_err(LabError::io("write", path))
}

/// Creates a folder and those above it.
pub fn create_folder(path: &Path) -> Result<(), LabError> {
    fs::create_dir_all(path).map_err(LabError::io("create", path))
}

/// Removes a folder with all that is in it, after all mounts below it are gone: a volume is mounted into the pods that
/// use it, and would be emptied through them.
pub fn remove_folder(path: &Path) -> Result<(), LabError> {
    unmount_below(path)?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LabError::io("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Unmounts all that is mounted below a folder.
pub fn unmount_below(folder: &Path) -> Result<(), LabError> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(LabError::io("read", "/proc/self/mountinfo"))?;
    // The youngest first: it may lie on an older one.
    for mount in mounts_below(&mounts, folder).into_iter().rev() {
        unmount(&mount, UnmountFlags::DETACH).map_err(io::Error::from).map_err(LabError::io("unmount", &mount))?;
    }
    Ok(())
}

fn mounts_below(mounts: &str, folder: &Path) -> Vec<PathBuf> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    // The kernel writes a blank in a path as \040.
    let points = points.map(|point| PathBuf::from(point.replace("\\040", " ")));
    points.filter(|point| point.starts_with(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_folder_are_found() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw
2 1 0:5 / /run/lab/node1/shm rw - tmpfs tmpfs rw
3 1 0:6 / /run/lab2/shm rw - tmpfs tmpfs rw
4 2 0:7 / /run/lab/node1/with\\040blank rw - tmpfs tmpfs rw
";
        let found = mounts_below(mounts, Path::new("/run/lab"));
        assert_eq!(found, [Path::new("/run/lab/node1/shm"), Path::new("/run/lab/node1/with blank")]);
    }

    #[test]
    fn sockets_are_short_enough() {
        let lab = "x2345678901234567890".parse().unwrap();
        let folders = Folders::of(&lab);
        let socket = folders.containerd_socket(NodeNumber::try_from(3).unwrap());
        // sockaddr_un has 108 bytes with the closing zero; containerd adds ".ttrpc".
        assert!(socket.as_os_str().len() + ".ttrpc".len() < 108, "{}", socket.display());
    }
}
