//! A real Kubernetes on this machine: a control plane and up to three nodes, each in a network namespace of its own.
//!
//! [`Lab::open`] gives a running lab to a test; [`Lab::up`] and [`Lab::down`] are what the program's commands call. The
//! faults a test can cause are methods of [`Lab`] and [`NodeHandle`]. Nothing here touches the host's own network.

mod addons;
mod audit;
mod cgroup;
mod control_plane;
mod daemon;
mod faults;
mod folders;
mod keeper;
mod lifecycle;
mod names;
mod network;
mod node;
mod pki;
mod ready;
mod status;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::command::{Command, CommandError};
use crate::debian::DebianError;
use crate::images::ImageError;
use crate::tools::ToolError;
pub use audit::{AuditEnd, AuditLog};
pub use cgroup::Cgroup;
pub use daemon::Component;
use daemon::Daemons;
pub use faults::{NodeHandle, PodProcesses};
pub use folders::Folders;
pub(crate) use folders::{create_folder, remove_folder, unmount_below, write};
pub use names::{CONTROL_PLANE, LabName, NODES_MAX, NameError, Namespace, NodeNumber, Place};
pub use network::PodEnd;
use pki::Pki;
pub use rustix::process::Signal;
pub use status::PartStatus;

/// The lab that commands and tests use when none is named.
pub const DEFAULT_LAB: &str = "quorate";
/// The StorageClass whose volumes are folders of their own on the node.
pub const STORAGE_CLASS: &str = "quorate-local";
/// The StorageClass whose volumes every node can use, like disks of a network: all nodes share the files of this machine.
pub const NETWORK_STORAGE_CLASS: &str = "quorate-network";

/// The StorageClass whose volumes hold no more than was asked for: each is a file system of its own, in memory.
pub const BOUNDED_STORAGE_CLASS: &str = "quorate-bounded";

/// Why something of the lab failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program that we call failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A program of the operating system is missing.
    #[error(transparent)]
    Debian(#[from] DebianError),
    /// A tool can't be built.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// An image can't be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file or the like refused.
    #[error("failed to {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Certificates can't be made.
    #[error("failed to make the lab's certificates")]
    Certificates(#[source] Box<rcgen::Error>),
    /// No control groups.
    #[error("failed to find control groups: neither cgroup nor cgroup2 is mounted")]
    NoCgroups,
    /// Processes don't go.
    #[error("failed to kill {processes} processes in control group {}", group.display())]
    Unkillable {
        /// Their group.
        group: PathBuf,
        /// How many are left.
        processes: usize,
    },
    /// A part of the lab ended when it should have become ready.
    #[error("failed to start {component}: it ended; the end of its log:\n{log}")]
    Ended {
        /// Which.
        component: Component,
        /// The end of its log.
        log: String,
    },
    /// A part of the lab didn't become ready.
    #[error("failed to see {component} ready within {} s; the end of its log:\n{log}", limit.as_secs())]
    NotReady {
        /// Which.
        component: Component,
        /// How long we waited.
        limit: Duration,
        /// The end of its log.
        log: String,
    },
    /// A node didn't become Ready.
    #[error("failed to see {node} Ready within {} s; the end of its kubelet's log:\n{log}", limit.as_secs())]
    NodeNotReady {
        /// Which.
        node: NodeNumber,
        /// How long we waited.
        limit: Duration,
        /// The end of its kubelet's log.
        log: String,
    },
    /// There is no such lab.
    #[error("there is no lab `{0}`; bring it up with: quorate-e2e --lab {0} up")]
    NoLab(LabName),
    /// The lab has fewer nodes.
    #[error("lab `{lab}` has no node {number}: it has {nodes}, numbered from 1")]
    NoNode {
        /// The lab.
        lab: LabName,
        /// The node asked for.
        number: u8,
        /// How many there are.
        nodes: u8,
    },
    /// There is no such volume.
    #[error("there is no folder of a volume `{0}` on any node")]
    NoVolume(String),
    /// The API server said no, or nothing.
    #[error("failed to {what}")]
    Kube {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl LabError {
    /// Turns an I/O error into ours.
    pub(crate) fn io(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { what, path, source }
    }

    /// Turns an error of the Kubernetes client into ours.
    pub(crate) fn kube<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Kube { what, source: Box::new(source) }
    }
}

/// Where the built programs lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// The folder of the Kubernetes programs.
    kubernetes: PathBuf,
    /// The folder of containerd, its shim and ctr.
    containerd: PathBuf,
    runc: PathBuf,
    coredns: PathBuf,
    etcd: PathBuf,
    /// This program, which is also the provisioner.
    own: PathBuf,
}

impl Programs {
    fn kubernetes(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }
}

/// What is remembered of a lab between two commands. What runs is read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    nodes: u8,
    programs: Programs,
}

/// A lab. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Lab {
    name: LabName,
    state: State,
    folders: Folders,
    pki: Pki,
    cgroup: Cgroup,
    daemons: Daemons,
}

impl Lab {
    /// Opens a lab that has been brought up.
    pub fn open(name: LabName) -> Result<Self, LabError> {
        let path = Folders::of(&name).state();
        let Ok(text) = fs::read_to_string(&path) else { return Err(LabError::NoLab(name)) };
        let state = serde_json::from_str(&text).map_err(io::Error::other).map_err(LabError::io("read", &path))?;
        Self::with(name, state)
    }

    /// Opens the lab that the environment variable `QUORATE_LAB` names, as `quorate-e2e test` sets it, else the default.
    pub fn from_env() -> Result<Self, LabError> {
        let name = std::env::var("QUORATE_LAB").unwrap_or_else(|_| DEFAULT_LAB.into());
        let name = name.parse().map_err(io::Error::other).map_err(LabError::io("use", "QUORATE_LAB"))?;
        Self::open(name)
    }

    fn with(name: LabName, state: State) -> Result<Self, LabError> {
        let folders = Folders::of(&name);
        let pki = Pki::ensure(folders.run.join("pki"))?;
        let cgroup = Cgroup::of_lab(name.as_str())?;
        let daemons = Daemons::new(folders.clone(), &cgroup);
        Ok(Self { name, state, folders, pki, cgroup, daemons })
    }

    /// Its name.
    pub const fn name(&self) -> &LabName {
        &self.name
    }

    /// Its nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeHandle> {
        NodeNumber::first(self.state.nodes).map(|number| NodeHandle::new(self.clone(), number))
    }

    /// A node by its number, from 1.
    pub fn node(&self, number: u8) -> Result<NodeHandle, LabError> {
        let found = self.nodes().find(|node| u8::from(node.number()) == number);
        found.ok_or_else(|| LabError::NoNode { lab: self.name.clone(), number, nodes: self.state.nodes })
    }

    /// A node by its name in Kubernetes, as in `node2`.
    pub fn node_named(&self, name: &str) -> Result<NodeHandle, LabError> {
        let number = name.parse::<NodeNumber>().map_err(io::Error::other).map_err(LabError::io("find node", name))?;
        self.node(number.into())
    }

    /// The administrator's kubeconfig. Its server is reachable from the control plane's namespace only.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folders.kubeconfig()
    }

    /// The administrator's configuration for the Kubernetes client.
    pub async fn kube_config(&self) -> Result<kube::Config, LabError> {
        let read = kube::config::Kubeconfig::read_from(self.kubeconfig());
        let kubeconfig = read.map_err(LabError::kube("read the lab's kubeconfig"))?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        config.map_err(LabError::kube("use the lab's kubeconfig"))
    }

    /// A client with the administrator's rights.
    pub async fn client(&self) -> Result<kube::Client, LabError> {
        let config = self.kube_config().await?;
        kube::Client::try_from(config).map_err(LabError::kube("make a Kubernetes client"))
    }

    /// The network namespace from which the API server, pods and Services can be reached.
    pub fn namespace(&self) -> Namespace {
        self.name.control_plane()
    }

    /// A call of the built kubectl, with the administrator's kubeconfig, in the control plane's namespace. What it remembers
    /// of the API is the lab's own: all labs have the same address, by which kubectl would take theirs for this one's.
    pub fn kubectl(&self) -> Command {
        Command::in_namespace(&self.namespace().path(), self.kubectl_program())
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.folders.kubectl_cache())
    }

    /// The built kubectl.
    pub fn kubectl_program(&self) -> PathBuf {
        self.state.programs.kubernetes("kubectl")
    }

    /// The log of a part of the lab.
    pub fn log(&self, component: Component) -> PathBuf {
        self.folders.log(component)
    }

    /// The folder of the logs of a node's pods: `<namespace>_<pod>_<uid>/<container>/<n>.log`.
    pub fn pod_logs(&self, node: NodeNumber) -> PathBuf {
        self.folders.node(node).join("pods")
    }

    /// The API server's audit log: one line of JSON for each call of the operator, and two for each watch.
    pub fn audit_log(&self) -> Result<AuditLog, LabError> {
        AuditLog::open(&self.folders.audit_log())
    }

    /// The folder behind a PersistentVolume of the class `quorate-local`, so that a test can empty or swap it.
    pub fn volume_path(&self, volume: &str) -> Result<PathBuf, LabError> {
        let folders = NodeNumber::first(NODES_MAX).map(|node| self.folders.volumes(node).join(volume));
        let found = folders.into_iter().find(|folder| folder.is_dir());
        found.ok_or_else(|| LabError::NoVolume(volume.into()))
    }

    /// Runs `work` in the control plane's namespace, wherever we are. It gets a thread and a runtime of its own, since a
    /// thread can't be in two namespaces.
    pub async fn inside<T: Send + 'static, F: Future<Output = T>>(
        &self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) -> Result<T, LabError> {
        let path = self.namespace().path();
        let lab = self.clone();
        let (send, receive) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let done = enter(&path).and_then(|()| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                Ok(runtime.block_on(work(lab)))
            });
            // Nobody may be waiting any more.
            let _ = send.send(done);
        });
        let done = receive.await.map_err(io::Error::other).and_then(|done| done);
        done.map_err(LabError::io("work in network namespace", self.namespace().as_str()))
    }
}

/// Moves the calling thread into a network namespace.
fn enter(namespace: &Path) -> io::Result<()> {
    let file = File::open(namespace)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(io::Error::from)
}
