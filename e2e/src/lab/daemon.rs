//! Starts the lab's long-running programs, each in a control group of its own that says whether it runs, and keeps what
//! they print. What was started and not ended since is written down. Must not know what they are for.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::cgroup::Cgroup;
use super::names::{NODES_MAX, Namespace, NodeNumber};
use super::{Folders, LabError};
use crate::command::Command;
use crate::digest::Sha256;

/// The group of all daemons, below the lab's.
const DAEMONS: &str = "daemons";
/// How often to look whether a daemon has become ready.
const POLL: Duration = Duration::from_millis(20);

/// A part of the lab that runs as a program of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The control plane's own etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// CoreDNS.
    Dns,
    /// The kube-proxy that makes Services reachable from the control plane's namespace, where tests run.
    Proxy,
    /// The provisioner of volumes.
    Provisioner,
    /// Who starts again what has ended of these.
    Keeper,
    /// A node's containerd.
    Containerd(NodeNumber),
    /// A node's kubelet.
    Kubelet(NodeNumber),
    /// A node's kube-proxy.
    KubeProxy(NodeNumber),
}

impl Component {
    /// All that a lab can have, in the order they are stopped: the keeper would restart what goes first.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Keeper,
            Self::Etcd,
            Self::ApiServer,
            Self::ControllerManager,
            Self::Scheduler,
            Self::Dns,
            Self::Proxy,
            Self::Provisioner,
        ];
        all.extend(NodeNumber::first(NODES_MAX).flat_map(Self::of_node));
        all
    }

    /// Those of one node, in the order they are stopped: the kubelet would restart what goes first.
    pub fn of_node(node: NodeNumber) -> [Self; 3] {
        [Self::Kubelet(node), Self::KubeProxy(node), Self::Containerd(node)]
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Etcd => f.write_str("etcd"),
            Self::ApiServer => f.write_str("kube-apiserver"),
            Self::ControllerManager => f.write_str("kube-controller-manager"),
            Self::Scheduler => f.write_str("kube-scheduler"),
            Self::Dns => f.write_str("coredns"),
            Self::Proxy => f.write_str("kube-proxy"),
            Self::Provisioner => f.write_str("provisioner"),
            Self::Keeper => f.write_str("keeper"),
            Self::Containerd(node) => write!(f, "containerd-{node}"),
            Self::Kubelet(node) => write!(f, "kubelet-{node}"),
            Self::KubeProxy(node) => write!(f, "kube-proxy-{node}"),
        }
    }
}

impl FromStr for Component {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::all().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let found = Self::all().into_iter().find(|component| component.to_string() == text);
        found.ok_or_else(|| format!("there is no component `{text}`; there are {}", names()))
    }
}

/// A program to run for as long as the lab is up.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// What it is.
    pub component: Component,
    /// Where it runs.
    pub namespace: Namespace,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Folders to put in front of its search path.
    pub path: Vec<PathBuf>,
    /// Its configuration files; when one changes, it has to start again.
    pub files: Vec<PathBuf>,
}

/// Runs daemons for one lab.
#[derive(Debug, Clone)]
pub struct Daemons {
    folders: Folders,
    cgroup: Cgroup,
}

impl Daemons {
    /// Those of the lab with these folders and this group.
    pub fn new(folders: Folders, lab: &Cgroup) -> Self {
        Self { folders, cgroup: lab.child(DAEMONS) }
    }

    /// The group of one.
    pub fn cgroup(&self, component: Component) -> Cgroup {
        self.cgroup.child(&component.to_string())
    }

    /// Whether it runs.
    pub fn is_running(&self, component: Component) -> bool {
        !self.cgroup(component).processes().is_empty()
    }

    /// Kills it, and waits until it is gone: it is to stay so.
    pub async fn kill(&self, component: Component) -> Result<(), LabError> {
        let _claim = self.claim(component).await?;
        self.end(component).await
    }

    async fn end(&self, component: Component) -> Result<(), LabError> {
        let record = self.record(component);
        match fs::remove_file(&record) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(LabError::io("remove", &record)(error));
            }
            Ok(()) | Err(_) => (),
        }
        self.cgroup(component).kill().await
    }

    /// Whether it runs with this command line and these files.
    pub fn is_current(&self, daemon: &Daemon) -> Result<bool, LabError> {
        let fingerprint = fingerprint(daemon)?;
        let unchanged = fs::read_to_string(self.record(daemon.component)).is_ok_and(|recorded| recorded == fingerprint);
        Ok(unchanged && self.is_running(daemon.component))
    }

    /// Starts it, unless it runs with this command line and these files. Returns whether it was started.
    pub async fn ensure(&self, daemon: &Daemon) -> Result<bool, LabError> {
        let _claim = self.claim(daemon.component).await?;
        if self.is_current(daemon)? {
            return Ok(false);
        }
        self.end(daemon.component).await?;
        self.begin(daemon).await?;
        Ok(true)
    }

    /// Whether it was started, and nobody has ended it.
    pub fn is_wanted(&self, component: Component) -> bool {
        self.record(component).exists()
    }

    /// Whether it was started, nobody has ended it, and it runs no more.
    pub fn has_ended(&self, component: Component) -> bool {
        self.is_wanted(component) && !self.is_running(component)
    }

    /// Starts it if it has ended by itself. Returns whether it was started.
    pub async fn revive(&self, daemon: &Daemon) -> Result<bool, LabError> {
        let _claim = self.claim(daemon.component).await?;
        if !self.has_ended(daemon.component) {
            return Ok(false);
        }
        self.begin(daemon).await?;
        Ok(true)
    }

    async fn begin(&self, daemon: &Daemon) -> Result<(), LabError> {
        self.spawn(daemon).await?;
        super::write(&self.record(daemon.component), &fingerprint(daemon)?)
    }

    /// Where it is written down how a daemon was started.
    fn record(&self, component: Component) -> PathBuf {
        self.folders.run.join("daemons").join(component.to_string())
    }

    /// Keeps two programs from starting or ending the same daemon at the same time, until it is dropped.
    async fn claim(&self, component: Component) -> Result<File, LabError> {
        let path = self.folders.run.join("daemons").join(format!("{component}.lock"));
        super::create_folder(path.parent().unwrap_or(&path))?;
        let file = File::create(&path).map_err(LabError::io("create", &path))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(POLL).await,
                Err(TryLockError::Error(error)) => return Err(LabError::io("lock", &path)(error)),
            }
        }
    }

    /// Waits until `ready` says so; an error, with the end of its log, when it ends or takes longer than `limit`.
    pub async fn wait<F: Future<Output = bool>>(
        &self,
        component: Component,
        limit: Duration,
        ready: impl Fn() -> F,
    ) -> Result<(), LabError> {
        let started = Instant::now();
        while !ready().await {
            if !self.is_running(component) {
                return Err(LabError::Ended { component, log: self.last_lines(component) });
            }
            if started.elapsed() > limit {
                return Err(LabError::NotReady { component, limit, log: self.last_lines(component) });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Waits until it runs no more, and tells the end of its log.
    pub async fn ended(&self, component: Component) -> LabError {
        while self.is_running(component) {
            tokio::time::sleep(POLL).await;
        }
        LabError::Ended { component, log: self.last_lines(component) }
    }

    async fn spawn(&self, daemon: &Daemon) -> Result<(), LabError> {
        let cgroup = self.cgroup(daemon.component);
        cgroup.create()?;
        let log = self.folders.log(daemon.component);
        super::create_folder(log.parent().unwrap_or(&log))?;
        let log = File::options().create(true).append(true).open(&log).map_err(LabError::io("open", &log))?;
        let errors = log.try_clone().map_err(LabError::io("open", "the log"))?;
        // The shell enters the groups and then becomes the program: so there is no moment at which the program, or a
        // child of it, runs outside of them. A session of its own keeps it alive when our terminal closes.
        let enter: Vec<String> =
            cgroup.entrances().iter().map(|file| format!("echo $$ > '{}'", file.display())).collect();
        let path = std::env::join_paths(daemon.path.iter().cloned().chain(search_path())).unwrap_or_default();
        let command = Command::in_namespace(&daemon.namespace.path(), "sh")
            .args(["-c", &format!("{} && exec setsid \"$@\"", enter.join(" && ")), "sh"])
            .arg(&daemon.program)
            .args(&daemon.args)
            .folder(&self.folders.run)
            .env("PATH", path);
        let mut process = command.to_std();
        let child = process.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        let mut child = child.map_err(LabError::io("start", &daemon.program))?;
        // Until it has entered its group it would seem not to run.
        while !self.is_running(daemon.component) {
            if child.try_wait().map_err(LabError::io("wait for", &daemon.program))?.is_some() {
                return Err(LabError::Ended { component: daemon.component, log: self.last_lines(daemon.component) });
            }
            tokio::time::sleep(POLL).await;
        }
        // Whoever starts a daemon and lives on (a test) has to collect it, else it stays as a zombie in its group.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// The end of its log.
    pub fn last_lines(&self, component: Component) -> String {
        const LINES: usize = 15;
        let log = self.folders.log(component);
        let text = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("{}\n(whole log: {})", lines[lines.len().saturating_sub(LINES)..].join("\n"), log.display())
    }
}

fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect()
}

fn fingerprint(daemon: &Daemon) -> Result<String, LabError> {
    let Daemon { component: _, namespace, program, args, path: _, files } = daemon;
    let mut digest = Sha256::new().field(namespace.as_str()).field(program.as_os_str().as_encoded_bytes());
    // A program built by cargo keeps its path when it changes.
    digest = digest.field(modified(program));
    for arg in args {
        digest = digest.field(arg);
    }
    for file in files {
        digest = digest.field(fs::read(file).map_err(LabError::io("read", file))?);
    }
    Ok(digest.key())
}

fn modified(program: &Path) -> Vec<u8> {
    let time = fs::metadata(program).and_then(|metadata| metadata.modified()).ok();
    let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
    since.as_nanos().to_be_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_called_by_their_names() {
        for component in Component::all() {
            assert_eq!(component.to_string().parse(), Ok(component));
        }
        assert!("kubelet-node9".parse::<Component>().unwrap_err().contains("kubelet-node3"));
    }

    #[test]
    fn a_daemon_starts_again_when_its_command_line_or_files_change() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lab: super::super::names::LabName = "test".parse().unwrap();
        let mut daemon = Daemon {
            component: Component::Etcd,
            namespace: lab.control_plane(),
            program: "/bin/true".into(),
            args: vec!["--a".into()],
            path: vec![],
            files: vec![file.path().into()],
        };
        let before = fingerprint(&daemon).unwrap();
        assert_eq!(before, fingerprint(&daemon).unwrap());
        fs::write(file.path(), "changed").unwrap();
        let after = fingerprint(&daemon).unwrap();
        assert_ne!(before, after);
        daemon.args.push("--b".into());
        assert_ne!(after, fingerprint(&daemon).unwrap());
    }
}
