//! Control groups hold the lab's processes: which belong to what is read from the kernel, so that no recorded pid can
//! ever be stale or reused. Must not touch any group outside `/quorate`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::LabError;

/// The group above all labs.
const TOP: &str = "quorate";
/// How long killed processes may take to go: the kernel frees their memory first.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// How often to look again whether they are gone.
const KILL_POLL: Duration = Duration::from_millis(5);

/// The control group hierarchies of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hierarchies {
    /// Version 1: one for each set of controllers, and often one of version 2 without any, which runc enters too.
    V1(Vec<PathBuf>),
    /// Version 2: one for all.
    V2(PathBuf),
}

impl Hierarchies {
    fn find() -> Result<Self, LabError> {
        let mounts =
            fs::read_to_string("/proc/self/mountinfo").map_err(LabError::io("read", "/proc/self/mountinfo"))?;
        Self::parse(&mounts).ok_or(LabError::NoCgroups)
    }

    /// With both kinds mounted, version 1 has the controllers, so version 1 counts.
    fn parse(mounts: &str) -> Option<Self> {
        let of_kind = |kind: &str| {
            let mounts = mounts.lines().filter_map(move |line| {
                let (mount, filesystem) = line.split_once(" - ")?;
                let right = filesystem.split(' ').next() == Some(kind);
                right.then(|| mount.split(' ').nth(4).map(PathBuf::from)).flatten()
            });
            mounts.collect::<Vec<_>>()
        };
        let (mut v1, v2) = (of_kind("cgroup"), of_kind("cgroup2"));
        if v1.is_empty() {
            return v2.into_iter().next().map(Self::V2);
        }
        v1.extend(v2);
        Some(Self::V1(v1))
    }

    fn roots(&self) -> Vec<&Path> {
        match self {
            Self::V1(roots) => roots.iter().map(PathBuf::as_path).collect(),
            Self::V2(root) => vec![root],
        }
    }

    /// The hierarchy in which processes are looked up: every container is in all of them.
    fn tracking(&self) -> &Path {
        match self {
            Self::V1(roots) => roots.iter().find(|root| root.ends_with("pids")).unwrap_or(&roots[0]),
            Self::V2(root) => root,
        }
    }
}

/// A control group of a lab, in every hierarchy.
#[derive(Debug, Clone)]
pub struct Cgroup {
    hierarchies: Hierarchies,
    path: PathBuf,
}

impl Cgroup {
    /// The group of a whole lab.
    pub fn of_lab(lab: &str) -> Result<Self, LabError> {
        Ok(Self { hierarchies: Hierarchies::find()?, path: Path::new(TOP).join(lab) })
    }

    /// A group below this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self { hierarchies: self.hierarchies.clone(), path: self.path.join(name) }
    }

    /// Its path from the root of a hierarchy, as in `/quorate/lab/node1`.
    pub fn absolute(&self) -> PathBuf {
        Path::new("/").join(&self.path)
    }

    /// Creates it in every hierarchy.
    pub fn create(&self) -> Result<(), LabError> {
        for root in self.hierarchies.roots() {
            let mut folder = root.to_path_buf();
            for part in &self.path {
                let parent = folder.clone();
                folder.push(part);
                self.create_level(&parent, &folder).map_err(LabError::io("create", &folder))?;
            }
        }
        Ok(())
    }

    fn create_level(&self, parent: &Path, folder: &Path) -> io::Result<()> {
        if !folder.exists() {
            fs::create_dir_all(folder)?;
        }
        match self.hierarchies {
            // A new cpuset is empty and admits no process until it has processors and memory.
            Hierarchies::V1(_) => ["cpuset.cpus", "cpuset.mems"].iter().try_for_each(|file| {
                let (from, to) = (parent.join(file), folder.join(file));
                let empty = to.exists() && fs::read_to_string(&to)?.trim().is_empty();
                if empty { fs::write(&to, fs::read_to_string(from)?) } else { Ok(()) }
            }),
            Hierarchies::V2(_) => {
                let controllers = fs::read_to_string(parent.join("cgroup.controllers"))?;
                for controller in controllers.split_whitespace() {
                    // One that can't be handed down (a root with threads in it) isn't needed by all machines.
                    let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
                }
                Ok(())
            }
        }
    }

    /// The files by which a process enters the group, one in each hierarchy.
    pub fn entrances(&self) -> Vec<PathBuf> {
        self.hierarchies.roots().iter().map(|root| root.join(&self.path).join("cgroup.procs")).collect()
    }

    /// All processes in it and below.
    pub fn processes(&self) -> Vec<Pid> {
        self.folders().iter().flat_map(|folder| processes_in(folder)).collect()
    }

    /// The groups below, at any depth, whose name satisfies `wanted`; those below a match are not looked at.
    pub fn find(&self, wanted: impl Fn(&str) -> bool) -> Vec<Self> {
        let root = self.hierarchies.tracking();
        let mut found: Vec<Self> = vec![];
        for folder in self.folders() {
            let Ok(path) = folder.strip_prefix(root) else { continue };
            let below = found.iter().any(|group| path.starts_with(&group.path));
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if !below && wanted(&name) {
                found.push(Self { hierarchies: self.hierarchies.clone(), path: path.to_path_buf() });
            }
        }
        found
    }

    /// Sends a signal to all processes in it and below. One that has just ended is no error.
    pub fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            // It may have ended since it was listed.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills all processes in it and below and waits until they are gone.
    pub async fn kill(&self) -> Result<(), LabError> {
        let started = Instant::now();
        loop {
            let processes = self.processes();
            if processes.is_empty() {
                return Ok(());
            }
            if started.elapsed() > KILL_TIMEOUT {
                return Err(LabError::Unkillable { group: self.absolute(), processes: processes.len() });
            }
            self.signal(Signal::KILL);
            tokio::time::sleep(KILL_POLL).await;
        }
    }

    /// Removes it, and all below it, from every hierarchy. Its processes must be gone.
    pub fn remove(&self) -> Result<(), LabError> {
        for root in self.hierarchies.roots() {
            for folder in folders_below(&root.join(&self.path)).into_iter().rev() {
                match fs::remove_dir(&folder) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(LabError::io("remove", &folder)(error));
                    }
                    Ok(()) | Err(_) => {}
                }
            }
        }
        Ok(())
    }

    fn folders(&self) -> Vec<PathBuf> {
        folders_below(&self.hierarchies.tracking().join(&self.path))
    }
}

/// The processes of one group. A group that has just been removed has none.
fn processes_in(folder: &Path) -> Vec<Pid> {
    let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    listed.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)).collect()
}

/// A folder and all below it, parents first; empty when there is none.
fn folders_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = if folder.is_dir() { vec![folder.to_path_buf()] } else { vec![] };
    let mut next = 0;
    while let Some(folder) = found.get(next).cloned() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        found.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw,nosuid shared:4 - cgroup cgroup rw,pids
";
    const V2: &str = "31 30 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_1_counts_when_it_is_mounted() {
        let found = Hierarchies::parse(V1).unwrap();
        assert_eq!(
            found.roots(),
            ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"].map(Path::new)
        );
        assert_eq!(found.tracking(), Path::new("/sys/fs/cgroup/pids"));
    }

    #[test]
    fn version_2_alone_is_one_hierarchy() {
        assert_eq!(Hierarchies::parse(V2), Some(Hierarchies::V2("/sys/fs/cgroup".into())));
        assert_eq!(Hierarchies::parse("1 2 0:3 / / rw - ext4 /dev/a rw\n"), None);
    }

    #[test]
    fn groups_are_found_by_name_once() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchies = Hierarchies::V2(folder.path().to_path_buf());
        let lab = Cgroup { hierarchies, path: "quorate/test".into() };
        fs::create_dir_all(folder.path().join("quorate/test/node1/kubepods/podabc/podabc-inner")).unwrap();
        fs::write(folder.path().join("quorate/test/node1/kubepods/podabc/cgroup.procs"), "7\n8\n").unwrap();
        let found = lab.find(|name| name.starts_with("podabc"));
        assert_eq!(
            found.iter().map(Cgroup::absolute).collect::<Vec<_>>(),
            [Path::new("/quorate/test/node1/kubepods/podabc")]
        );
        assert_eq!(found[0].processes().len(), 2);
    }
}
