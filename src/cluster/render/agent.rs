//! The pod of a Job of the agent's: what takes, deletes or proves a backup. It alone mounts the store's credentials. And an
//! agent's way to etcd, in a Job or as a sidecar.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, LocalObjectReference, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use quorate_crds::{BackupStore, LocalSecret};

use super::pod::{AGENT_IN_IMAGE, AGENT_PULL_POLICY, container_security, mount, pod_security, value};
use super::store::{Access, secret_volume};
use super::{Cluster, client_secret};

/// The name of its container.
pub const AGENT_CONTAINER: &str = "agent";
/// Where the kubelet takes the container's last message from.
const REPORT: &str = "/dev/termination-log";
/// Where the certificate for etcd is.
const TLS_FOLDER: &str = "/etc/quorate/etcd";
/// Its files, by the variables that tell the agent.
const TLS_FILES: [(&str, &str); 3] =
    [("QUORATE_ETCD_CA", "ca.crt"), ("QUORATE_ETCD_CERT", "tls.crt"), ("QUORATE_ETCD_KEY", "tls.key")];
/// What it asks for, and the most that it may have: it takes some 60 MiB, whatever the database's size.
const REQUESTS: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "128Mi")];
const LIMITS: [(&str, &str); 1] = [("memory", "256Mi")];

impl Access {
    /// And the way to etcd: where it is asked, and what it is shown there, as by any client: without TLS nothing.
    pub fn and_etcd(mut self, cluster: &Cluster<'_>, endpoints: &str, secret_comes_later: bool) -> Self {
        self.env.push(value("QUORATE_ENDPOINT", endpoints));
        if let Some(secret) = client_secret(cluster) {
            self.env.extend(TLS_FILES.map(|(name, file)| value(name, &format!("{TLS_FOLDER}/{file}"))));
            self.volumes.push(secret_volume("etcd", &secret, secret_comes_later));
            self.mounts.push(mount("etcd", TLS_FOLDER, true));
        }
        self
    }
}

/// What it is made from.
#[derive(Clone, Debug)]
pub struct AgentOrder<'a> {
    /// The agent's image.
    pub image: &'a str,
    /// The secrets with which it is pulled.
    pub pull_secrets: &'a [LocalSecret],
    /// What the agent is told, but where to report.
    pub arguments: &'a [&'a str],
    /// The store.
    pub store: &'a BackupStore,
    /// The way to it, and to whatever else is needed.
    pub access: Access,
    /// What it asks for of its node's disk.
    pub disk: Option<Quantity>,
}

/// The pod. It ends when the agent does.
pub fn agent_pod(order: AgentOrder<'_>) -> PodSpec {
    let AgentOrder { image, pull_secrets, arguments, store, access, disk } = order;
    let Access { env, mounts, volumes } = access;
    let command = [&[AGENT_IN_IMAGE], arguments, &["--report", REPORT]].concat();
    let container = Container {
        name: AGENT_CONTAINER.into(),
        image: Some(image.to_owned()),
        image_pull_policy: Some(AGENT_PULL_POLICY.into()),
        command: Some(command.into_iter().map(str::to_owned).collect()),
        env: Some(env),
        volume_mounts: Some(mounts),
        resources: Some(resources(disk)),
        security_context: Some(container_security()),
        termination_message_path: Some(REPORT.into()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    };
    PodSpec {
        containers: vec![container],
        volumes: (!volumes.is_empty()).then_some(volumes),
        image_pull_secrets: (!pull_secrets.is_empty())
            .then(|| pull_secrets.iter().map(|one| LocalObjectReference { name: one.name.clone() }).collect()),
        security_context: Some(pod_security()),
        service_account_name: store.service_account_name.clone(),
        automount_service_account_token: Some(store.service_account_name.is_some()),
        enable_service_links: Some(false),
        restart_policy: Some("Never".into()),
        ..PodSpec::default()
    }
}

fn resources(disk: Option<Quantity>) -> ResourceRequirements {
    let amounts = |pairs: &[(&str, &str)]| -> BTreeMap<_, _> {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
    };
    let mut requests = amounts(&REQUESTS);
    requests.extend(disk.map(|disk| ("ephemeral-storage".to_owned(), disk)));
    ResourceRequirements { requests: Some(requests), limits: Some(amounts(&LIMITS)), claims: None }
}
