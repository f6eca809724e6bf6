//! What there is of a lab, as a table. Changes nothing.

use super::daemon::Component;
use super::{Lab, network};

/// A part of the lab and how it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartStatus {
    /// Its name.
    pub part: String,
    /// Whether it runs.
    pub running: bool,
    /// The process ids, or what there is to say instead.
    pub detail: String,
}

impl Lab {
    /// Every part that the lab should have.
    pub async fn status(&self) -> Vec<PartStatus> {
        let mut parts = vec![];
        for node in self.nodes() {
            let there = network::is_mounted(&self.name.node(node.number()));
            let running = there && node.is_linked().await;
            let detail = if running { "linked" } else { "cut off" }.to_owned();
            parts.push(PartStatus { part: node.name(), running, detail });
        }
        let here = |component: &Component| match component {
            Component::Containerd(node) | Component::Kubelet(node) | Component::KubeProxy(node) => {
                u8::from(*node) <= self.state.nodes
            }
            Component::Etcd
            | Component::ApiServer
            | Component::ControllerManager
            | Component::Scheduler
            | Component::Dns
            | Component::Proxy
            | Component::Provisioner
            | Component::Keeper => true,
        };
        for component in Component::all().into_iter().filter(here) {
            let pids = self.daemons.cgroup(component).processes();
            let detail = match pids.first() {
                Some(pid) => format!("pid {}", pid.as_raw_nonzero()),
                None => format!("log: {}", self.log(component).display()),
            };
            parts.push(PartStatus { part: component.to_string(), running: !pids.is_empty(), detail });
        }
        parts
    }
}
