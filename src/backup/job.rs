//! The Job that takes a backup, rendered from the EtcdBackup and its cluster. Pure: no client, no clock, no decision.

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{
    Container, EnvVar, LocalObjectReference, PodSpec, PodTemplateSpec, ResourceRequirements, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use quorate_crds::{EtcdBackup, EtcdCluster, names};
use quorate_statemachine::Serial;

use crate::cluster::render::store::{self, secret_volume};
use crate::cluster::render::{self, container_security, pod_security};

/// The name of the container.
const CONTAINER: &str = "snapshot";
/// Where the certificate for etcd is.
const TLS_FOLDER: &str = "/etc/quorate/etcd";
/// Where the kubelet takes a container's last message from.
const REPORT: &str = "/dev/termination-log";
/// How often a Job tries again. The pauses are Kubernetes': 10 s, doubled each time.
const TRIES_AGAIN: i32 = 4;
/// The agent's exit code for a failure that a repetition would not mend.
const FINAL: i32 = 3;
/// What the Job asks for, and the most that it may have: it takes some 60 MiB, whatever the database's size.
const REQUESTS: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "128Mi")];
const LIMITS: [(&str, &str); 1] = [("memory", "256Mi")];

/// What a Job is made for.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// The backup.
    pub backup: &'a EtcdBackup,
    /// Its cluster.
    pub cluster: &'a EtcdCluster,
    /// The members that may be read, by their names.
    pub voters: &'a [String],
    /// For how long it may run.
    pub deadline: SignedDuration,
    /// The agent's image.
    pub image: &'a str,
}

/// The Job. `None` if an object lacks what every one from an API server has.
pub fn job(order: Order<'_>) -> Option<Job> {
    let Order { backup, cluster, voters, deadline, image } = order;
    let rendered = render::Cluster::of(cluster)?;
    let store = &backup.spec.store;
    let serials = voters.iter().filter_map(|name| names::serial(rendered.name, name));
    let endpoints: Vec<_> = serials.map(|serial| rendered.client_url(Serial(serial))).collect();
    let store::Access { mut env, mut mounts, mut volumes } = store::access(store, store::Use::Write);
    env.push(variable("QUORATE_LINEAGE", rendered.uid.to_owned()));
    env.push(variable("QUORATE_ENDPOINT", endpoints.join(",")));
    if let Some(secret) = render::client_secret(&rendered) {
        env.extend(
            [("QUORATE_ETCD_CA", "ca.crt"), ("QUORATE_ETCD_CERT", "tls.crt"), ("QUORATE_ETCD_KEY", "tls.key")]
                .map(|(name, file)| variable(name, format!("{TLS_FOLDER}/{file}"))),
        );
        volumes.push(secret_volume("etcd", &secret, false));
        mounts.push(mount("etcd", TLS_FOLDER, true));
    }
    let container = Container {
        name: CONTAINER.into(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".into()),
        command: Some(["/quorate-agent", "snapshot", "--report", REPORT].map(str::to_owned).to_vec()),
        env: Some(env),
        volume_mounts: Some(mounts),
        resources: Some(resources()),
        security_context: Some(container_security()),
        termination_message_path: Some(REPORT.into()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    };
    let pull_secrets = &cluster.spec.image.pull_secrets;
    let pod = PodSpec {
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
    };
    let metadata = metadata(backup)?;
    Some(Job {
        spec: Some(JobSpec {
            active_deadline_seconds: Some(deadline.as_secs().max(1)),
            backoff_limit: Some(TRIES_AGAIN),
            pod_failure_policy: Some(failure_policy()),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: metadata.labels.clone(), ..ObjectMeta::default() }),
                spec: Some(pod),
            },
            ..JobSpec::default()
        }),
        metadata,
        status: None,
    })
}

fn metadata(backup: &EtcdBackup) -> Option<ObjectMeta> {
    let name = backup.metadata.name.clone()?;
    let labels = [
        (names::LABEL_NAME, names::BACKUP_APP_NAME),
        (names::LABEL_INSTANCE, &backup.spec.cluster),
        (names::LABEL_MANAGED_BY, names::MANAGED_BY),
        // Not the label of a cluster's children: the pod is no member, and no Service may lead to it.
        (names::LABEL_BACKUP, &name),
    ];
    let owner = OwnerReference {
        api_version: format!("{}/{}", names::GROUP, names::VERSION),
        kind: "EtcdBackup".into(),
        name: name.clone(),
        uid: backup.metadata.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: None,
    };
    Some(ObjectMeta {
        namespace: backup.metadata.namespace.clone(),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        owner_references: Some(vec![owner]),
        name: Some(name),
        ..ObjectMeta::default()
    })
}

/// A failure that is final ends the Job; a pod that was evicted or preempted counts as no try.
fn failure_policy() -> PodFailurePolicy {
    let finals = PodFailurePolicyRule {
        action: "FailJob".into(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(CONTAINER.into()),
            operator: "In".into(),
            values: vec![FINAL],
        }),
        ..PodFailurePolicyRule::default()
    };
    let disrupted = PodFailurePolicyRule {
        action: "Ignore".into(),
        on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
            type_: "DisruptionTarget".into(),
            status: "True".into(),
        }]),
        ..PodFailurePolicyRule::default()
    };
    PodFailurePolicy { rules: vec![finals, disrupted] }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn variable(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value), value_from: None }
}

fn resources() -> ResourceRequirements {
    let amounts = |pairs: &[(&str, &str)]| {
        Some(pairs.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect())
    };
    ResourceRequirements { requests: amounts(&REQUESTS), limits: amounts(&LIMITS), claims: None }
}
