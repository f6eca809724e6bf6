//! The programs of the control plane: their command lines, configuration and order. Starts none of them itself.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::daemon::{Component, Daemon};
use super::names::{CONTROL_PLANE, LabName, NodeNumber, POD_RANGE, SERVICE_RANGE};
use super::pki::{Pki, write_kubeconfig};
use super::{Folders, LabError, Programs, audit};

/// How long a part of the control plane may take until it answers, on a busy machine.
pub const START_TIMEOUT: Duration = Duration::from_secs(90);
/// Where etcd serves the API server, within the control plane's namespace.
const ETCD: &str = "http://127.0.0.1:2379";
/// How long a node may be silent before it is NotReady. The default of 50 s would make every node fault a long test.
const NODE_GRACE: &str = "10s";

/// What a control plane is made of.
#[derive(Debug, Clone)]
pub struct ControlPlane<'a> {
    /// The lab's name.
    pub lab: &'a LabName,
    /// The lab's folders.
    pub folders: &'a Folders,
    /// The built programs.
    pub programs: &'a Programs,
    /// The certificates.
    pub pki: &'a Pki,
}

impl ControlPlane<'_> {
    /// Writes the configuration files.
    pub fn configure(&self) -> Result<(), LabError> {
        for name in ["controller-manager", "scheduler", "proxy", "dns"] {
            write_kubeconfig(self.pki, name, &self.config(&format!("{name}.kubeconfig")))?;
        }
        write_kubeconfig(self.pki, "admin", &self.folders.kubeconfig())?;
        super::write(&self.config("audit.json"), &audit::policy())?;
        super::write(&self.config("Corefile"), &self.corefile())?;
        // Next to the control plane there is no kubelet; as node1 kube-proxy finds an address to call its own.
        let node = NodeNumber::first(1).next().map(|node| node.to_string()).unwrap_or_default();
        super::write(&self.config("proxy.json"), &proxy_config(&self.kubeconfig("proxy"), &node))
    }

    /// etcd. Its data need not survive the machine, so it doesn't wait for the disk.
    pub fn etcd(&self) -> Daemon {
        let args = [
            "--name=lab".into(),
            format!("--data-dir={}", self.folders.run.join("etcd").display()),
            format!("--listen-client-urls={ETCD}"),
            format!("--advertise-client-urls={ETCD}"),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
            "--initial-advertise-peer-urls=http://127.0.0.1:2380".into(),
            "--initial-cluster=lab=http://127.0.0.1:2380".into(),
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        self.daemon(Component::Etcd, &self.programs.etcd, args.into(), vec![])
    }

    /// kube-apiserver.
    pub fn api_server(&self) -> Daemon {
        let (certificate, key) = self.pki.pair("apiserver");
        let (client_certificate, client_key) = self.pki.pair("kubelet-client");
        let (accounts_key, accounts_public) = self.pki.service_account();
        let policy = self.config("audit.json");
        let args = [
            format!("--etcd-servers={ETCD}"),
            format!("--service-cluster-ip-range={SERVICE_RANGE}"),
            format!("--bind-address={CONTROL_PLANE}"),
            format!("--advertise-address={CONTROL_PLANE}"),
            "--secure-port=6443".into(),
            format!("--client-ca-file={}", self.pki.authority()),
            format!("--tls-cert-file={certificate}"),
            format!("--tls-private-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-key-file={accounts_public}"),
            format!("--service-account-signing-key-file={accounts_key}"),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            format!("--kubelet-client-certificate={client_certificate}"),
            format!("--kubelet-client-key={client_key}"),
            "--kubelet-preferred-address-types=InternalIP".into(),
            "--allow-privileged".into(),
        ];
        let args = args.into_iter().chain(audit::flags(&policy, &self.folders.audit_log())).collect();
        self.daemon(Component::ApiServer, &self.programs.kubernetes("kube-apiserver"), args, vec![policy])
    }

    /// kube-controller-manager.
    pub fn controller_manager(&self) -> Daemon {
        let kubeconfig = self.kubeconfig("controller-manager");
        let (ca, ca_key) = self.pki.pair("ca");
        let mut args = kubeconfigs(&kubeconfig);
        args.extend([
            format!("--service-account-private-key-file={}", self.pki.service_account().0),
            format!("--root-ca-file={ca}"),
            format!("--cluster-signing-cert-file={ca}"),
            format!("--cluster-signing-key-file={ca_key}"),
            "--use-service-account-credentials".into(),
            "--leader-elect=false".into(),
            format!("--node-monitor-grace-period={NODE_GRACE}"),
            "--node-monitor-period=1s".into(),
            // Its defaults of 20 and 30 queue a test's objects behind each other.
            "--kube-api-qps=200".into(),
            "--kube-api-burst=400".into(),
        ]);
        self.daemon(Component::ControllerManager, &self.programs.kubernetes("kube-controller-manager"), args, vec![])
    }

    /// kube-scheduler.
    pub fn scheduler(&self) -> Daemon {
        let mut args = kubeconfigs(&self.kubeconfig("scheduler"));
        args.push("--leader-elect=false".into());
        self.daemon(Component::Scheduler, &self.programs.kubernetes("kube-scheduler"), args, vec![])
    }

    /// CoreDNS, beside the nodes rather than on one: a test that stops a node must not stop all names with it.
    pub fn dns(&self) -> Daemon {
        let corefile = self.config("Corefile");
        let args = vec!["-conf".into(), corefile.display().to_string()];
        self.daemon(Component::Dns, &self.programs.coredns, args, vec![corefile])
    }

    /// kube-proxy for the control plane's namespace.
    pub fn proxy(&self) -> Daemon {
        let config = self.config("proxy.json");
        let args = vec![format!("--config={}", config.display())];
        self.daemon(Component::Proxy, &self.programs.kubernetes("kube-proxy"), args, vec![config])
    }

    /// Our provisioner of volumes.
    pub fn provisioner(&self) -> Daemon {
        let args = vec![format!("--lab={}", self.lab), "provisioner".into()];
        self.daemon(Component::Provisioner, &self.programs.own, args, vec![])
    }

    /// Who starts again what has ended of the others.
    pub fn keeper(&self) -> Daemon {
        let args = vec![format!("--lab={}", self.lab), "keeper".into()];
        self.daemon(Component::Keeper, &self.programs.own, args, vec![])
    }

    fn daemon(
        &self,
        component: Component,
        program: &std::path::Path,
        args: Vec<String>,
        files: Vec<PathBuf>,
    ) -> Daemon {
        let namespace = self.lab.control_plane();
        Daemon { component, namespace, program: program.to_path_buf(), args, path: vec![], files }
    }

    fn config(&self, name: &str) -> PathBuf {
        self.folders.run.join("config").join(name)
    }

    fn kubeconfig(&self, name: &str) -> String {
        self.config(&format!("{name}.kubeconfig")).display().to_string()
    }

    /// No answer is ever kept: a new member must be found at once, by whoever asked a moment too early too.
    fn corefile(&self) -> String {
        let kubeconfig = self.kubeconfig("dns");
        format!(
            ".:53 {{
    bind {CONTROL_PLANE}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 0
    }}
}}
"
        )
    }
}

fn kubeconfigs(kubeconfig: &str) -> Vec<String> {
    ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
        .iter()
        .map(|flag| format!("--{flag}={kubeconfig}"))
        .collect()
}

/// kube-proxy's configuration, for a node or for the control plane.
pub fn proxy_config(kubeconfig: &str, node: &str) -> String {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": kubeconfig },
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": node,
        // The kernel's table is shared by all namespaces; leave its size alone.
        "conntrack": { "maxPerCore": 0 },
        "nftables": { "minSyncPeriod": "50ms" },
    });
    format!("{config:#}\n")
}
