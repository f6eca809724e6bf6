//! The Jobs that take a backup and delete it, rendered from the EtcdBackup and its cluster. Pure: no client, no clock, no
//! decision.

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use quorate_backup::snapshot::{FINAL, PORT};
use quorate_crds::{EtcdBackup, EtcdCluster, names};
use quorate_statemachine::Serial;

use crate::cluster::render::store;
use crate::cluster::render::{self, AGENT_CONTAINER, AgentOrder, agent_pod, labels, value};

/// How often a Job tries again. The pauses are Kubernetes': 10 s, doubled each time.
const TRIES_AGAIN: i32 = 4;

/// What a Job is made for.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// The backup.
    pub backup: &'a EtcdBackup,
    /// Its cluster. It may be gone when a backup is deleted.
    pub cluster: Option<&'a EtcdCluster>,
    /// For how long it may run.
    pub deadline: SignedDuration,
    /// The agent's image.
    pub image: &'a str,
}

/// The Job that takes a backup of one of these voters. `None` if an object lacks what every one from an API server has.
pub fn taking(order: Order<'_>, voters: &[String]) -> Option<Job> {
    let rendered = render::Cluster::of(order.cluster?)?;
    let serials = voters.iter().filter_map(|name| names::serial(rendered.name, name));
    let endpoints: Vec<_> = serials.map(|serial| rendered.client_url(Serial(serial))).collect();
    let mut access = store::access(&order.backup.spec.store, store::Use::Write);
    access.env.push(value("QUORATE_LINEAGE", rendered.uid));
    let access = access.and_etcd(&rendered, &endpoints.join(","), false);
    let listen = format!("--listen=[::]:{PORT}");
    job(order, order.backup.metadata.name.clone()?, &["snapshot", &listen], access)
}

/// The Job that deletes the backup with this manifest from its store.
pub fn deleting(order: Order<'_>, manifest: &str, hash: &str) -> Option<Job> {
    let access = store::access(&order.backup.spec.store, store::Use::Delete);
    let name = names::deletion_job(order.backup.metadata.name.as_deref()?);
    job(order, name, &["delete", manifest, "--hash", hash], access)
}

fn job(order: Order<'_>, name: String, arguments: &[&str], access: store::Access) -> Option<Job> {
    let Order { backup, cluster, deadline, image } = order;
    let pull_secrets = cluster.map(|cluster| cluster.spec.image.pull_secrets.as_slice()).unwrap_or_default();
    let pod = agent_pod(AgentOrder { image, pull_secrets, arguments, store: &backup.spec.store, access, disk: None });
    let metadata = metadata(backup, name)?;
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

fn metadata(backup: &EtcdBackup, job: String) -> Option<ObjectMeta> {
    let name = backup.metadata.name.clone()?;
    let labels = labels([
        (names::LABEL_NAME, names::BACKUP_APP_NAME),
        (names::LABEL_INSTANCE, &backup.spec.cluster),
        (names::LABEL_MANAGED_BY, names::MANAGED_BY),
        // Not the label of a cluster's children: the pod is no member, and no Service may lead to it.
        (names::LABEL_BACKUP, &name),
    ]);
    let owner = OwnerReference {
        api_version: format!("{}/{}", names::GROUP, names::VERSION),
        kind: "EtcdBackup".into(),
        name,
        uid: backup.metadata.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: None,
    };
    Some(ObjectMeta {
        namespace: backup.metadata.namespace.clone(),
        labels: Some(labels),
        owner_references: Some(vec![owner]),
        name: Some(job),
        ..ObjectMeta::default()
    })
}

/// A failure that is final ends the Job; a pod that was evicted or preempted counts as no try.
fn failure_policy() -> PodFailurePolicy {
    let finals = PodFailurePolicyRule {
        action: "FailJob".into(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(AGENT_CONTAINER.into()),
            operator: "In".into(),
            values: vec![FINAL.into()],
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
