//! The faults that a test can cause, each with its way back: processes killed or stopped, nodes without power, links
//! that are cut. Waits for nothing that Kubernetes makes of it.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use super::daemon::Component;
use super::network::{self, PodEnd};
use super::{Lab, LabError, NodeNumber, Place};

/// The processes of a pod or container, found by their control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodProcesses {
    pids: Vec<Pid>,
}

impl PodProcesses {
    /// Their process ids, as seen from the host.
    pub fn ids(&self) -> Vec<i32> {
        self.pids.iter().map(|pid| pid.as_raw_nonzero().get()).collect()
    }

    /// Sends a signal to each. One that has just ended is no error; to signal nothing at all is one.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let sent = self.pids.iter().filter(|pid| kill_process(**pid, signal).is_ok()).count();
        if sent == 0 { Err(io::Error::new(io::ErrorKind::NotFound, "no process is left to signal")) } else { Ok(()) }
    }

    /// Only those whose executable has this file name, as in `etcd`.
    #[must_use]
    pub fn running(self, program: &str) -> Self {
        let runs = |pid: &Pid| {
            let link = PathBuf::from(format!("/proc/{}/exe", pid.as_raw_nonzero()));
            std::fs::read_link(link).is_ok_and(|exe| exe.file_name().is_some_and(|name| name == program))
        };
        Self { pids: self.pids.into_iter().filter(runs).collect() }
    }
}

impl Lab {
    /// The processes of a pod by its UID, the sandbox's included; none when it doesn't run.
    pub fn processes_of_pod(&self, uid: &str) -> PodProcesses {
        // cgroupfs names a pod's group `pod<uid>`.
        self.processes_in(|name| name == format!("pod{uid}"))
    }

    /// The processes of a container by its id, with or without the `containerd://` that a pod's status has before it.
    pub fn processes_of_container(&self, id: &str) -> PodProcesses {
        let id = id.trim_start_matches("containerd://");
        self.processes_in(|name| name == id)
    }

    fn processes_in(&self, wanted: impl Fn(&str) -> bool) -> PodProcesses {
        PodProcesses { pids: self.cgroup.find(wanted).iter().flat_map(super::Cgroup::processes).collect() }
    }

    /// Cuts the link between two places, both ways, without telling either. Other links stay.
    pub async fn cut_between(&self, one: impl Into<Place>, other: impl Into<Place>) -> Result<(), LabError> {
        Ok(network::cut_between(&self.name, one.into(), other.into()).await?)
    }

    /// Undoes [`Lab::cut_between`].
    pub async fn heal_between(&self, one: impl Into<Place>, other: impl Into<Place>) -> Result<(), LabError> {
        Ok(network::heal_between(&self.name, one.into(), other.into()).await?)
    }

    /// Drops all that a pod sends, or all that is sent to it, at its node.
    pub async fn cut_pod(&self, node: NodeNumber, pod: Ipv4Addr, end: PodEnd) -> Result<(), LabError> {
        Ok(network::cut_pod(&self.name, node, pod, end).await?)
    }

    /// Undoes [`Lab::cut_pod`].
    pub async fn heal_pod(&self, node: NodeNumber, pod: Ipv4Addr, end: PodEnd) -> Result<(), LabError> {
        Ok(network::heal_pod(&self.name, node, pod, end).await?)
    }

    /// Drops all that one pod sends to another, at the node of the latter.
    pub async fn cut_way(&self, node: NodeNumber, from: Ipv4Addr, to: Ipv4Addr) -> Result<(), LabError> {
        Ok(network::cut_way(&self.name, node, from, to).await?)
    }

    /// Undoes [`Lab::cut_way`].
    pub async fn heal_way(&self, node: NodeNumber, from: Ipv4Addr, to: Ipv4Addr) -> Result<(), LabError> {
        Ok(network::heal_way(&self.name, node, from, to).await?)
    }

    /// Stops the API server where it is (SIGSTOP). Connections stay open.
    pub fn freeze_apiserver(&self) {
        self.daemons.cgroup(Component::ApiServer).signal(Signal::STOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw_apiserver(&self) {
        self.daemons.cgroup(Component::ApiServer).signal(Signal::CONT);
    }

    /// Kills a part of the control plane, as a crash does. The lab starts it again by itself, as a kubelet would.
    pub fn crash(&self, component: Component) {
        self.daemons.cgroup(component).signal(Signal::KILL);
    }

    /// The process of a part of the lab, if it runs.
    pub fn process_of(&self, component: Component) -> Option<i32> {
        self.daemons.cgroup(component).processes().first().map(|pid| pid.as_raw_nonzero().get())
    }

    /// Undoes all faults: links, stopped processes, nodes without power and the API server. Waits until the nodes are
    /// Ready.
    pub async fn heal_all(&self) -> Result<(), LabError> {
        let places = self.nodes().map(|node| node.number().into()).chain([Place::ControlPlane]);
        for place in places {
            network::uncut(&self.name, place).await?;
        }
        self.thaw_apiserver();
        self.start_apiserver().await?;
        for node in self.nodes() {
            node.thaw();
            node.start().await?;
        }
        for node in self.nodes() {
            node.wait_ready().await?;
        }
        Ok(())
    }
}

/// A node of a lab.
#[derive(Debug, Clone)]
pub struct NodeHandle {
    lab: Lab,
    number: NodeNumber,
}

impl NodeHandle {
    pub(super) const fn new(lab: Lab, number: NodeNumber) -> Self {
        Self { lab, number }
    }

    /// Its number.
    pub const fn number(&self) -> NodeNumber {
        self.number
    }

    /// Its name in Kubernetes.
    pub fn name(&self) -> String {
        self.number.to_string()
    }

    /// Switches it off: its link goes down, so that nobody hears it die, and every process of it is killed. Volumes and
    /// images stay.
    pub async fn stop(&self) -> Result<(), LabError> {
        self.cut().await?;
        self.lab.kill_node(self.number).await
    }

    /// Switches it on. Returns when its kubelet runs; see [`NodeHandle::wait_ready`].
    pub async fn start(&self) -> Result<(), LabError> {
        self.heal().await?;
        self.lab.start_node(self.number, None).await.map(drop)
    }

    /// Waits until the API server has heard from it from now on and calls it Ready. A kubelet that ends by itself meanwhile
    /// is started again.
    pub async fn wait_ready(&self) -> Result<(), LabError> {
        self.lab.until_ready(self.number, k8s_openapi::jiff::Timestamp::now()).await
    }

    /// Stops all its processes where they are (SIGSTOP): kubelet, runtime and containers. Connections stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets them go on (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the kubelet alone; its pods go on. [`NodeHandle::start`] starts it again.
    pub async fn kill_kubelet(&self) -> Result<(), LabError> {
        self.lab.daemons.kill(Component::Kubelet(self.number)).await
    }

    /// Pulls its cable: nothing gets in or out, and its processes go on.
    pub async fn cut(&self) -> Result<(), LabError> {
        Ok(network::cut(&self.lab.name, self.number).await?)
    }

    /// Plugs its cable in again.
    pub async fn heal(&self) -> Result<(), LabError> {
        Ok(network::heal(&self.lab.name, self.number).await?)
    }

    /// Gives one of its images another name besides. It stays.
    pub async fn tag_image(&self, image: &str, name: &str) -> Result<(), LabError> {
        self.lab.images_on(self.number).args(["tag", image, name]).run().await?;
        Ok(())
    }

    /// Whether its cable is in.
    pub async fn is_linked(&self) -> bool {
        network::is_linked(&self.lab.name, self.number).await
    }

    fn signal(&self, signal: Signal) {
        for component in Component::of_node(self.number) {
            self.lab.daemons.cgroup(component).signal(signal);
        }
        self.lab.cgroup.child(&self.name()).signal(signal);
    }
}
