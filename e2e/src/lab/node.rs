//! The programs of a node: their command lines and configuration. Starts none of them itself.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::cgroup::Cgroup;
use super::control_plane::proxy_config;
use super::daemon::{Component, Daemon};
use super::names::{DNS_SERVICE, LabName, NodeNumber};
use super::pki::{Pki, write_kubeconfig};
use super::{Folders, LabError, Programs};
use crate::images::PAUSE;

/// Where Debian's package puts the CNI plugins.
const CNI_PLUGINS: &str = "/usr/lib/cni";
/// Where the kubelet says that it is well, on its node only. It answers whatever else it is asked with 404
/// (`cmd/kubelet/app/server.go`), as a registry does that has no such image.
const HEALTH_PORT: u16 = 10248;
/// When it looks at its containers is told in its log, a line a second: benchmarks begin between two looks.
const KUBELET_LOOKS: &str = "generic=5";
/// A registry that does not answer, as one that is away.
const SILENT_REGISTRY: &str = "silent.quorate.invalid";
/// A port of the node where nobody listens.
const SILENT_PORT: u16 = 1;
/// What statfs says of an overlay (linux/magic.h, OVERLAYFS_SUPER_MAGIC).
const OVERLAYFS_MAGIC: i64 = 0x794c_7630;

/// What a node is made of.
#[derive(Debug, Clone)]
pub struct Node<'a> {
    /// The lab's name.
    pub lab: &'a LabName,
    /// Which node.
    pub number: NodeNumber,
    /// The lab's folders.
    pub folders: &'a Folders,
    /// The built programs.
    pub programs: &'a Programs,
    /// The certificates.
    pub pki: &'a Pki,
    /// The group for the node's pods.
    pub cgroup: &'a Cgroup,
}

impl Node<'_> {
    /// Writes the configuration files.
    pub fn configure(&self) -> Result<(), LabError> {
        super::create_folder(&self.folders.runtime_of(self.number))?;
        super::create_folder(&self.folders.volumes(self.number))?;
        super::write(&self.config("containerd.toml"), &self.containerd_config())?;
        super::write(&self.config("registries/_default/hosts.toml"), &registry_at(HEALTH_PORT))?;
        let silent = self.config("registries").join(SILENT_REGISTRY).join("hosts.toml");
        super::write(&silent, &registry_at(SILENT_PORT))?;
        super::write(&self.config("cni/10-lab.conflist"), &self.cni_config())?;
        super::write(&self.config("kubelet.json"), &self.kubelet_config())?;
        super::write(
            &self.config("proxy.json"),
            &proxy_config(&self.kubeconfig_of("proxy"), &self.number.to_string()),
        )?;
        // With no resolver of the host's, names outside the cluster fail at once instead of timing out.
        super::write(&self.config("resolv.conf"), "")?;
        write_kubeconfig(self.pki, &self.number.to_string(), &self.config("kubelet.kubeconfig"))?;
        write_kubeconfig(self.pki, "proxy", &self.config("proxy.kubeconfig"))
    }

    /// Where containerd listens: short, since a socket's path may have 107 bytes.
    pub fn socket(&self) -> PathBuf {
        self.folders.containerd_socket(self.number)
    }

    /// containerd.
    pub fn containerd(&self) -> Daemon {
        let config = self.config("containerd.toml");
        let args = vec!["--config".into(), config.display().to_string()];
        let program = self.programs.containerd.join("containerd");
        // It finds its shim by the search path.
        let path = vec![self.programs.containerd.clone()];
        Daemon { path, ..self.daemon(Component::Containerd(self.number), program, args, vec![config]) }
    }

    /// The kubelet.
    pub fn kubelet(&self) -> Daemon {
        let config = self.config("kubelet.json");
        let args = vec![
            format!("--config={}", config.display()),
            format!("--kubeconfig={}", self.kubeconfig_of("kubelet")),
            format!("--root-dir={}", self.folder().join("kubelet").display()),
            format!("--hostname-override={}", self.number),
            format!("--node-ip={}", self.number.address()),
            format!("--vmodule={KUBELET_LOOKS}"),
        ];
        self.daemon(Component::Kubelet(self.number), self.programs.kubernetes("kubelet"), args, vec![config])
    }

    /// kube-proxy.
    pub fn kube_proxy(&self) -> Daemon {
        let config = self.config("proxy.json");
        let args = vec![format!("--config={}", config.display())];
        self.daemon(Component::KubeProxy(self.number), self.programs.kubernetes("kube-proxy"), args, vec![config])
    }

    fn daemon(&self, component: Component, program: PathBuf, args: Vec<String>, files: Vec<PathBuf>) -> Daemon {
        Daemon { component, namespace: self.lab.node(self.number), program, args, path: vec![], files }
    }

    fn folder(&self) -> PathBuf {
        self.folders.node(self.number)
    }

    fn config(&self, name: &str) -> PathBuf {
        self.folder().join("config").join(name)
    }

    fn kubeconfig_of(&self, name: &str) -> String {
        self.config(&format!("{name}.kubeconfig")).display().to_string()
    }

    /// `restrict_oom_score_adj`: without CAP_SYS_RESOURCE no sandbox may have a lower score than containerd's own.
    /// Network namespaces under the state folder go with it when the node is stopped.
    /// `no_sync`: what containerd knows need not survive the machine either. The nodes share one disk, and for each container
    /// it would wait for that some thirty times, and every etcd of the lab with it.
    fn containerd_config(&self) -> String {
        let root = self.folder().join("containerd");
        let state = self.folders.runtime_of(self.number).join("containerd");
        let snapshotter = snapshotter(&self.folders.run);
        let (root, state, socket) = (root.display(), state.display(), self.socket());
        let (socket, cni) = (socket.display(), self.config("cni"));
        let (cni, runc) = (cni.display(), self.programs.runc.display());
        let registries = self.config("registries");
        let registries = registries.display();
        format!(
            r#"version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[grpc]
  address = "{socket}"

[plugins.'io.containerd.metadata.v1.bolt']
  no_sync = true

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "{snapshotter}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"

[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "{registries}"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{CNI_PLUGINS}"]
  conf_dir = "{cni}"

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  SystemdCgroup = false
"#
        )
    }

    fn cni_config(&self) -> String {
        let config = json!({
            "cniVersion": "1.0.0", "name": "lab",
            "plugins": [{
                "type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "dataDir": self.folder().join("addresses"),
                    "ranges": [[{ "subnet": self.number.pods() }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        });
        format!("{config:#}\n")
    }

    fn kubelet_config(&self) -> String {
        let (certificate, key) = self.pki.pair(&self.number.to_string());
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": self.number.address(),
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": self.pki.authority() },
            },
            "authorization": { "mode": "Webhook" },
            "tlsCertFile": certificate, "tlsPrivateKeyFile": key,
            "healthzBindAddress": "127.0.0.1", "healthzPort": HEALTH_PORT,
            "clusterDNS": [DNS_SERVICE], "clusterDomain": "cluster.local",
            "resolvConf": self.config("resolv.conf"),
            "containerRuntimeEndpoint": format!("unix://{}", self.socket().display()),
            "cgroupDriver": "cgroupfs", "cgroupRoot": self.cgroup.absolute(),
            "failCgroupV1": false, "failSwapOn": false,
            "podLogsDir": self.folder().join("pods"),
            // A node that is gone must be noticed within the grace period, which is 10 s here.
            "nodeStatusUpdateFrequency": "2s", "nodeLeaseDurationSeconds": 8,
            "syncFrequency": "10s",
            "maxPods": 200, "kubeAPIQPS": 100, "kubeAPIBurst": 200, "eventRecordQPS": 0,
            // Images come by import only, so none may be thrown away; the disk is shared with much else.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": { "memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%" },
            "serializeImagePulls": false, "registryPullQPS": 0,
        });
        format!("{config:#}\n")
    }

    /// Removes what a machine forgets when it is switched off: sockets, sandboxes, mounts. Containers and volumes stay.
    pub fn forget_runtime(&self) -> Result<(), LabError> {
        let runtime = self.folders.runtime_of(self.number);
        super::unmount_below(&runtime)?;
        super::unmount_below(&self.folder().join("kubelet"))?;
        match fs::remove_dir_all(&runtime) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LabError::io("remove", &runtime)(error)),
            Ok(()) | Err(_) => super::create_folder(&runtime),
        }
    }
}

/// What containerd is told of a registry: that it is this port of the node. So an image that was not imported is missing at
/// once, whatever network there is. It is called the server, since after what is called a host the registry itself would be
/// asked as well.
fn registry_at(port: u16) -> String {
    format!("server = \"http://127.0.0.1:{port}\"\n")
}

/// How containerd keeps containers' files: in layers, but not where we are in a container ourselves, since an overlay
/// can't lie on an overlay.
fn snapshotter(folder: &Path) -> &'static str {
    let overlay = rustix::fs::statfs(folder).is_ok_and(|found| found.f_type == OVERLAYFS_MAGIC);
    if overlay { "native" } else { "overlayfs" }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// What a line of a configuration sets.
    fn set<'a>(text: &'a str, name: &str) -> &'a str {
        let value = |line: &'a str| line.trim().strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"');
        text.lines().find_map(value).unwrap()
    }

    #[test]
    fn no_image_is_asked_for_outside_of_the_node() {
        let place = tempfile::tempdir().unwrap();
        let folders = Folders { run: place.path().join("run"), runtime: place.path().join("runtime") };
        let programs = Programs {
            kubernetes: "/kubernetes".into(),
            containerd: "/containerd".into(),
            runc: "/runc".into(),
            coredns: "/coredns".into(),
            etcd: "/etcd".into(),
            own: "/own".into(),
        };
        let lab: LabName = "test".parse().unwrap();
        let pki = Pki::ensure(place.path().join("pki")).unwrap();
        let cgroup = Cgroup::of_lab(lab.as_str()).unwrap();
        let number = NodeNumber::try_from(1).unwrap();
        let node = Node { lab: &lab, number, folders: &folders, programs: &programs, pki: &pki, cgroup: &cgroup };
        node.configure().unwrap();
        let config = fs::read_to_string(node.config("containerd.toml")).unwrap();
        let (_, registry) = config.split_once("[plugins.'io.containerd.cri.v1.images'.registry]").unwrap();
        // The file for all registries that have none of their own, and that of the silent one; no other is there.
        let registries = Path::new(set(registry, "config_path"));
        assert_eq!(fs::read_dir(registries).unwrap().count(), 2);
        let server = |registry: &str| -> SocketAddr {
            let hosts = fs::read_to_string(registries.join(registry).join("hosts.toml")).unwrap();
            set(&hosts, "server").strip_prefix("http://").unwrap().parse().unwrap()
        };
        let kubelet = fs::read_to_string(node.config("kubelet.json")).unwrap();
        let kubelet: serde_json::Value = serde_json::from_str(&kubelet).unwrap();
        let health = format!("{}:{}", kubelet["healthzBindAddress"].as_str().unwrap(), kubelet["healthzPort"]);
        assert_eq!(server("_default").to_string(), health);
        for registry in ["_default", SILENT_REGISTRY] {
            assert!(server(registry).ip().is_loopback(), "{registry}");
        }
        assert_ne!(server("_default"), server(SILENT_REGISTRY));
    }
}
