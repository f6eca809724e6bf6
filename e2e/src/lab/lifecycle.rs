//! Brings a lab up, whatever is left of an earlier one, and takes it down without a trace. Each step looks first at what
//! is there, so that it may be repeated at any time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use futures::future::try_join_all;
use k8s_openapi::jiff::Timestamp;

use super::control_plane::{ControlPlane, START_TIMEOUT};
use super::daemon::{Component, Daemon};
use super::folders::remove_folder;
use super::names::{LabName, NODES_MAX, NodeNumber, Place};
use super::node::Node;
use super::{Cgroup, Folders, Lab, LabError, Programs, Signal, State, addons, network, ready};
use crate::command::Command;
use crate::debian;
use crate::images::{self, Archive, PAUSE};
use crate::progress::Progress;
use crate::tools::{self, Etcd, Tool};

/// How often a node's kubelet is started before the node is given up.
const KUBELET_STARTS: u32 = 3;
/// How often the API server is waited for when it ends by itself.
const API_STARTS: u32 = 3;

/// The programs that a lab runs, built if need be.
async fn programs(progress: &Progress) -> Result<Programs, LabError> {
    let kubernetes = tools::build(Tool::Kubernetes, progress).await?.bin();
    let etcd = tools::build(Tool::Etcd(Etcd::V3_6), progress).await?.program("etcd");
    let containerd = tools::build(Tool::Containerd, progress).await?.bin();
    let runc = tools::build(Tool::Runc, progress).await?.program("runc");
    let coredns = tools::build(Tool::CoreDns, progress).await?.program("coredns");
    let own = own_program()?;
    Ok(Programs { kubernetes, containerd, runc, coredns, etcd, own })
}

/// This program's path. Once it has been built anew while it runs, Linux names the old file, which is gone.
fn own_program() -> Result<PathBuf, LabError> {
    let own = std::env::current_exe().map_err(LabError::io("find", "this program"))?;
    Ok(own.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map_or_else(|| own.clone(), PathBuf::from))
}

impl Lab {
    /// Brings up all of a lab that isn't up: builds what it needs, then the control plane, then its nodes at once.
    pub async fn up(name: LabName, nodes: u8, progress: &Progress) -> Result<Self, LabError> {
        debian::ensure(debian::LAB, progress).await?;
        load_kernel_modules().await;
        let _alone = lock(&name)?;
        let programs = programs(progress).await?;
        let archives = images::foreign(progress).await?;
        let state = State { nodes, programs };
        let lab = Self::with(name, state)?;
        let text = serde_json::to_string_pretty(&lab.state).map_err(LabError::kube("write down the lab"))?;
        super::write(&lab.folders.state(), &text)?;
        let step = progress.step(format_args!("control plane of lab {}", lab.name));
        lab.up_control_plane().await?;
        step.done("ready");
        // A lab that had more nodes keeps only those asked for.
        for node in NodeNumber::first(NODES_MAX).filter(|node| u8::from(*node) > nodes) {
            lab.remove_node(node).await?;
        }
        let numbers: Vec<_> = NodeNumber::first(nodes).collect();
        try_join_all(numbers.iter().map(|node| lab.up_node(*node, &archives, progress))).await?;
        Ok(lab)
    }

    /// Takes down all that there is of a lab of this name, and removes its files.
    pub async fn down(name: &LabName) -> Result<(), LabError> {
        let _alone = lock(name)?;
        let cgroup = Cgroup::of_lab(name.as_str())?;
        cgroup.kill().await?;
        network::remove(name).await?;
        let folders = Folders::of(name);
        remove_log_links(&folders.run);
        remove_folder(&folders.runtime)?;
        remove_folder(&folders.run)?;
        cgroup.remove()
    }

    pub(super) fn control_plane(&self) -> ControlPlane<'_> {
        ControlPlane { lab: &self.name, folders: &self.folders, programs: &self.state.programs, pki: &self.pki }
    }

    async fn up_control_plane(&self) -> Result<(), LabError> {
        if network::ensure_control_plane(&self.name).await? {
            // What runs in a namespace that has lost its name can't be reached any more.
            for component in Component::all() {
                self.daemons.kill(component).await?;
            }
        }
        // A test that was interrupted may have left cuts and stopped processes.
        network::uncut(&self.name, Place::ControlPlane).await?;
        self.cgroup.signal(Signal::CONT);
        let plane = self.control_plane();
        plane.configure()?;
        self.daemons.ensure(&plane.etcd()).await?;
        self.daemons.wait(Component::Etcd, START_TIMEOUT, || ready::etcd(self)).await?;
        self.start_apiserver().await?;
        for daemon in [plane.controller_manager(), plane.scheduler(), plane.provisioner()] {
            self.daemons.ensure(&daemon).await?;
        }
        addons::apply(self).await?;
        for daemon in [plane.dns(), plane.proxy(), plane.keeper()] {
            self.daemons.ensure(&daemon).await?;
        }
        Ok(())
    }

    /// Starts the API server, unless it runs, and waits until it is ready. One that ends by itself meanwhile, as one does
    /// that waited too long for its etcd, is started again: on a machine its kubelet would. One that somebody stops
    /// meanwhile stays away.
    pub async fn start_apiserver(&self) -> Result<(), LabError> {
        let server = self.control_plane().api_server();
        let mut started = self.daemons.ensure(&server).await?;
        let mut starts = 1;
        loop {
            match self.daemons.wait(Component::ApiServer, START_TIMEOUT, || ready::api_server(self)).await {
                Ok(()) => break,
                Err(LabError::Ended { .. }) if starts < API_STARTS && self.daemons.is_wanted(Component::ApiServer) => {
                    starts += 1;
                    // The keeper may have been first.
                    self.daemons.revive(&server).await?;
                    started = true;
                }
                Err(error) => return Err(error),
            }
        }
        if started { self.wake().await } else { Ok(()) }
    }

    /// Starts those anew that were refused by an API server that was about to start: client-go then waits for up to a
    /// minute before it watches again, in which nobody makes pods of Deployments, no name of a new pod is known, and no
    /// kubelet starts or ends one. With a second API server, which most clusters have, that does not happen.
    async fn wake(&self) -> Result<(), LabError> {
        let plane = self.control_plane();
        let mut daemons = vec![plane.controller_manager(), plane.scheduler(), plane.dns()];
        for number in NodeNumber::first(self.state.nodes) {
            daemons.push(self.node_parts(number, &self.cgroup.child(&number.to_string())).kubelet());
        }
        for daemon in daemons.iter().filter(|daemon| self.daemons.is_running(daemon.component)) {
            self.daemons.kill(daemon.component).await?;
            self.daemons.ensure(daemon).await?;
        }
        Ok(())
    }

    /// Kills the API server. It stays away until it is started.
    pub async fn stop_apiserver(&self) -> Result<(), LabError> {
        self.daemons.kill(Component::ApiServer).await
    }

    async fn up_node(&self, number: NodeNumber, archives: &[Archive], progress: &Progress) -> Result<(), LabError> {
        let step = progress.step(number);
        let fresh = network::ensure_node(&self.name, number).await?;
        if fresh {
            self.kill_node(number).await?;
        }
        network::heal(&self.name, number).await?;
        network::uncut(&self.name, number.into()).await?;
        let since = self.start_node(number, Some(archives)).await?;
        self.until_ready(number, since).await?;
        step.done("Ready");
        Ok(())
    }

    /// Waits until a node is Ready. A kubelet that gives up meanwhile, as one does whose containerd is slow to answer, is
    /// started again: on a machine its init would.
    pub(super) async fn until_ready(&self, number: NodeNumber, since: Timestamp) -> Result<(), LabError> {
        let kubelet = self.node_parts(number, &self.cgroup.child(&number.to_string())).kubelet();
        let mut starts = 1;
        loop {
            let ended = tokio::select! {
                ready = ready::node(self, number, since) => return ready,
                ended = self.daemons.ended(kubelet.component) => ended,
            };
            if starts == KUBELET_STARTS {
                return Err(ended);
            }
            starts += 1;
            self.daemons.ensure(&kubelet).await?;
        }
    }

    /// Starts what doesn't run of a node, and imports images. Returns the time from which its heartbeats count.
    pub(super) async fn start_node(
        &self,
        number: NodeNumber,
        archives: Option<&[Archive]>,
    ) -> Result<Timestamp, LabError> {
        let cgroup = self.cgroup.child(&number.to_string());
        cgroup.create()?;
        let node = self.node_parts(number, &cgroup);
        node.configure()?;
        let (containerd, socket) = (node.containerd(), node.socket());
        if !self.daemons.is_current(&containerd)? || !ready::listens(&socket).await {
            // Without containerd its containers are orphans: the node starts as after a power cut.
            self.kill_node(number).await?;
            node.forget_runtime()?;
        }
        self.daemons.ensure(&containerd).await?;
        self.daemons.wait(containerd.component, START_TIMEOUT, || ready::listens(&socket)).await?;
        let (pause, others): (Vec<_>, Vec<_>) =
            archives.unwrap_or_default().iter().partition(|archive| archive.name == PAUSE);
        self.import_on(number, &pause).await?;
        let since = Timestamp::now();
        let started = self.ensure_all(&[node.kubelet(), node.kube_proxy()]).await?;
        self.import_on(number, &others).await?;
        Ok(if started { since } else { Timestamp::UNIX_EPOCH })
    }

    async fn ensure_all(&self, daemons: &[Daemon]) -> Result<bool, LabError> {
        let mut started = false;
        for daemon in daemons {
            started |= self.daemons.ensure(daemon).await?;
        }
        Ok(started)
    }

    fn node_parts<'a>(&'a self, number: NodeNumber, cgroup: &'a Cgroup) -> Node<'a> {
        let Self { name, state, folders, pki, cgroup: _, daemons: _ } = self;
        Node { lab: name, number, folders, programs: &state.programs, pki, cgroup }
    }

    /// Kills all processes of a node, all at once as far as that is possible.
    pub(super) async fn kill_node(&self, number: NodeNumber) -> Result<(), LabError> {
        let daemons = Component::of_node(number).map(|component| self.daemons.cgroup(component));
        let pods = self.cgroup.child(&number.to_string());
        // The kubelet first: it would report the death of the rest, which a machine without power can't.
        for group in daemons.iter().chain([&pods]) {
            group.signal(Signal::KILL);
        }
        for group in daemons.iter().chain([&pods]) {
            group.kill().await?;
        }
        Ok(())
    }

    async fn remove_node(&self, number: NodeNumber) -> Result<(), LabError> {
        if !network::is_mounted(&self.name.node(number)) {
            return Ok(());
        }
        self.kill_node(number).await?;
        Command::new("ip").args(["netns", "delete", self.name.node(number).as_str()]).run().await?;
        self.kubectl().args(["delete", "node", &number.to_string(), "--ignore-not-found"]).run().await?;
        remove_folder(&self.folders.runtime_of(number))?;
        remove_folder(&self.folders.node(number))
    }

    /// Imports images on all nodes, each only where it has changed. Returns the names of those that were new somewhere.
    pub async fn import(&self, archives: &[Archive]) -> Result<Vec<String>, LabError> {
        let all: Vec<&Archive> = archives.iter().collect();
        let numbers: Vec<_> = NodeNumber::first(self.state.nodes).collect();
        let imported = try_join_all(numbers.iter().map(|node| self.import_on(*node, &all))).await?;
        let mut names: Vec<String> = imported.into_iter().flatten().collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// A call about the images of a node, as it is begun.
    pub(super) fn images_on(&self, node: NodeNumber) -> Command {
        Command::new(self.state.programs.containerd.join("ctr"))
            .arg("--address")
            .arg(self.folders.containerd_socket(node))
            .args(["--namespace", "k8s.io", "images"])
    }

    async fn import_on(&self, node: NodeNumber, archives: &[&Archive]) -> Result<Vec<String>, LabError> {
        let mut imported = vec![];
        for archive in archives {
            let record = self.folders.node(node).join("images").join(archive.name.replace(['/', ':'], "_"));
            if fs::read_to_string(&record).is_ok_and(|key| key == archive.key) {
                continue;
            }
            self.images_on(node).arg("import").arg(&archive.path).run().await?;
            super::write(&record, &archive.key)?;
            imported.push(archive.name.clone());
        }
        Ok(imported)
    }
}

/// Keeps two runs from bringing up or taking down the same lab at the same time, until it is dropped.
fn lock(name: &LabName) -> Result<File, LabError> {
    let path = Folders::of(name).run.with_extension("lock");
    crate::lock::hold(&path).map_err(LabError::io("lock", &path))
}

/// Loads what the network and the containers need of the kernel, where it isn't built in.
async fn load_kernel_modules() {
    for module in ["br_netfilter", "overlay"] {
        // A kernel that has it built in, or no modules at all, says so by failing; what is really missing is named by
        // whoever needs it.
        let _ = Command::new("modprobe").args(["-q", module]).run().await;
    }
}

/// The kubelet links each container's log into /var/log/containers, whatever its own folders are.
fn remove_log_links(run: &Path) {
    for link in fs::read_dir("/var/log/containers").into_iter().flatten().flatten() {
        if fs::read_link(link.path()).is_ok_and(|target| target.starts_with(run)) {
            // A link that stays does no harm.
            let _ = fs::remove_file(link.path());
        }
    }
}
