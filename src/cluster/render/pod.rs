//! A member's pod: the official image, unchanged, started by the launcher. But for the image it is the same for every
//! version of etcd and every start; what differs is in the ticket.

use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource,
        EnvVar, EnvVarSource, HTTPGetAction, ImageVolumeSource, LocalObjectReference, ObjectFieldSelector,
        PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec, Probe, ResourceRequirements,
        SeccompProfile, SecurityContext, Volume as PodVolume, VolumeMount,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use quorate_crds::{Image, Scheduling, names};
use quorate_statemachine::{Release, Serial, Uid};

use super::{CLIENT_PORT, Cluster, METRICS_PORT, PEER_PORT, Sealed, archive, scheduling, template, tls};

/// Where the member's volume is mounted.
pub(super) const VOLUME_PATH: &str = "/var/lib/etcd";
/// Where the agent is put, by itself, for etcd's container.
pub(super) const AGENT_FOLDER: &str = "/quorate";
/// The agent on that volume.
pub(super) const AGENT: &str = "/quorate/quorate-agent";
/// The agent in its own image, which has nothing else: mounted at [`AGENT_FOLDER`], it is found at [`AGENT`].
pub(super) const AGENT_IN_IMAGE: &str = "/quorate-agent";
/// When its image is pulled.
pub(super) const AGENT_PULL_POLICY: &str = "IfNotPresent";
/// The container that runs the launcher, and then etcd.
pub const ETCD_CONTAINER: &str = "etcd";
/// Where the launcher finds its ticket.
pub(super) const POD_INFO_FOLDER: &str = "/etc/quorate";
/// The most that the agent's volume may hold. The agent is one static binary of some 10 MB.
const AGENT_ROOM: &str = "128Mi";
/// Neither root nor any user of the node: the one that distroless images call `nonroot`.
const USER: i64 = 65_532;
/// How long etcd gets to end. On SIGTERM a leader first hands over, for which etcd allows itself seven seconds (five
/// and two election timeouts); a large database takes some more to close.
const GRACE_SECONDS: i64 = 30;

/// The volume that a pod is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume<'a> {
    /// The claim that shares the pod's name and has this UID.
    Claim(&'a Uid),
    /// An emptyDir, which has the pod's own UID.
    Ephemeral,
}

/// How the agent comes into a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Its image is mounted: nothing runs before etcd's container.
    ImageVolume,
    /// An init container copies it. Works everywhere, and costs up to a second: the kubelet notices only once a second
    /// that a container has ended.
    InitContainer,
}

/// The agent as the operator brings it. It is not the spec's, so a pod with another one is not out of date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Its image.
    pub image: String,
    /// The public key of tickets that are sent to the launcher directly. `None`: it takes none.
    pub ticket_key: Option<String>,
}

/// The pod of a member, told to run this release. Without a ticket its launcher waits for one.
pub fn pod(
    cluster: &Cluster<'_>,
    serial: Serial,
    release: &Release,
    (agent, delivery): (&Agent, Delivery),
    volume: Volume<'_>,
    ticket: Option<&Sealed>,
) -> Pod {
    let Image { repository: _, tag: _, pull_policy: _, pull_secrets } = &cluster.spec.image;
    let Scheduling {
        node_selector,
        priority_class_name,
        tolerations: _,
        anti_affinity: _,
        topology_spread_constraints: _,
    } = &cluster.spec.scheduling;
    let pod = Pod {
        metadata: metadata(cluster, serial, release, ticket),
        spec: Some(PodSpec {
            hostname: Some(cluster.member(serial)),
            subdomain: Some(cluster.name.to_owned()),
            // It asks for the same resources as etcd's container: a pod is counted at the larger of the two, and without
            // them a pod could not be Guaranteed, nor live in a namespace whose quota demands them.
            init_containers: agent_container(&agent.image, delivery, cluster.spec.resources.clone().into())
                .map(|container| vec![container]),
            containers: vec![etcd_container(cluster, serial, release, agent, volume)],
            volumes: Some(volumes(cluster, serial, agent, volume, delivery)),
            image_pull_secrets: (!pull_secrets.is_empty()).then(|| {
                pull_secrets.iter().map(|secret| LocalObjectReference { name: secret.name.clone() }).collect()
            }),
            security_context: Some(pod_security()),
            // A member needs nothing of Kubernetes; and the environment variables of a namespace's Services could be
            // taken for etcd's own (a Service `etcd` makes `ETCD_PORT`, on which etcd fails).
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Always".into()),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            affinity: scheduling::affinity(cluster),
            tolerations: Some(scheduling::tolerations(cluster)),
            topology_spread_constraints: scheduling::spread(cluster),
            node_selector: (!node_selector.is_empty()).then(|| node_selector.clone()),
            priority_class_name: priority_class_name.clone(),
            ..PodSpec::default()
        }),
        status: None,
    };
    archive::with_archive(pod, cluster, serial, &agent.image)
}

fn metadata(cluster: &Cluster<'_>, serial: Serial, release: &Release, ticket: Option<&Sealed>) -> ObjectMeta {
    let mut metadata = cluster.owned(cluster.member(serial));
    let mut annotations = ticket.map(Sealed::annotations).unwrap_or_default();
    let own = [
        (names::ANNOTATION_TEMPLATE, template::write_hash(template::hash(cluster.spec))),
        (names::ANNOTATION_SETTINGS, template::settings(cluster.spec)),
        (names::ANNOTATION_RESOURCES, template::write_hash(template::resources_hash(cluster.spec))),
        (names::ANNOTATION_SCHEDULING, template::write_hash(template::scheduling_hash(cluster.spec))),
        // Members speak to each other by their own addresses; a proxy in between answers for members that are not there.
        ("sidecar.istio.io/inject", "false".to_owned()),
    ];
    annotations.extend(own.into_iter().chain(told(release)).map(|(name, value)| (name.to_owned(), value)));
    metadata.annotations = Some(annotations);
    metadata
}

/// By which a pod says what it is told to run.
pub fn told(release: &Release) -> [(&'static str, String); 2] {
    [
        (names::ANNOTATION_VERSION, release.version.to_string()),
        (names::ANNOTATION_IMAGE, release.image.as_str().to_owned()),
    ]
}

/// Brings the agent, where no volume does.
pub(super) fn agent_container(image: &str, delivery: Delivery, resources: ResourceRequirements) -> Option<Container> {
    match delivery {
        Delivery::ImageVolume => return None,
        Delivery::InitContainer => {}
    }
    Some(Container {
        name: "agent".into(),
        image: Some(image.to_owned()),
        image_pull_policy: Some(AGENT_PULL_POLICY.into()),
        command: Some(vec![AGENT_IN_IMAGE.into(), "install".into(), AGENT.into()]),
        volume_mounts: Some(vec![mount("quorate", AGENT_FOLDER, false)]),
        resources: Some(resources),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    })
}

fn etcd_container(
    cluster: &Cluster<'_>,
    serial: Serial,
    release: &Release,
    agent: &Agent,
    volume: Volume<'_>,
) -> Container {
    let mut env = vec![
        value("QUORATE_MEMBER", &cluster.member(serial)),
        match volume {
            Volume::Claim(uid) => value("QUORATE_VOLUME", uid.as_str()),
            Volume::Ephemeral => field("QUORATE_VOLUME", "metadata.uid"),
        },
        field("QUORATE_POD_UID", "metadata.uid"),
    ];
    env.extend(agent.ticket_key.as_deref().map(|key| value("QUORATE_TICKET_KEY", key)));
    env.extend(tls::etcdctl(cluster, serial).into_iter().map(|(name, text)| value(name, &text)));
    let mut mounts = vec![
        mount("data", VOLUME_PATH, false),
        mount("quorate", AGENT_FOLDER, true),
        // Without a subPath, as the next: the kubelet never brings a mounted subPath up to date.
        mount("pod", POD_INFO_FOLDER, true),
    ];
    mounts.extend(cluster.spec.tls.mode.encrypts().then(|| mount(tls::VOLUME, tls::FOLDER, true)));
    Container {
        name: ETCD_CONTAINER.into(),
        image: Some(release.image.as_str().to_owned()),
        image_pull_policy: Some(cluster.spec.image.pull_policy.as_str().to_owned()),
        command: Some(vec![AGENT.into(), "launch".into()]),
        env: Some(env),
        ports: Some(vec![port("client", CLIENT_PORT), port("peer", PEER_PORT), port("metrics", METRICS_PORT)]),
        volume_mounts: Some(mounts),
        resources: Some(cluster.spec.resources.clone().into()),
        readiness_probe: Some(readiness()),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    }
}

/// On the metrics port, since the client port answers only with a quorum. There is no other probe: none may kill a
/// launcher that waits, or a member because the quorum is lost or it defragments.
fn readiness() -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/readyz".into()),
            port: IntOrString::String("metrics".into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(1),
        // `/readyz` holds a linearizable read, which takes as long as an election does.
        timeout_seconds: Some(2),
        success_threshold: Some(1),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

fn volumes(
    cluster: &Cluster<'_>,
    serial: Serial,
    agent: &Agent,
    volume: Volume<'_>,
    delivery: Delivery,
) -> Vec<PodVolume> {
    let mut volumes = vec![data_volume(cluster, serial, volume), agent_volume(&agent.image, delivery), ticket_volume()];
    volumes.extend(tls::volume(cluster, serial));
    volumes
}

fn data_volume(cluster: &Cluster<'_>, serial: Serial, volume: Volume<'_>) -> PodVolume {
    let data = PodVolume { name: "data".into(), ..PodVolume::default() };
    match volume {
        Volume::Claim(_) => PodVolume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: cluster.member(serial),
                read_only: None,
            }),
            ..data
        },
        Volume::Ephemeral => PodVolume { empty_dir: Some(empty_dir(cluster.spec.storage.size.clone().into())), ..data },
    }
}

pub(super) fn agent_volume(image: &str, delivery: Delivery) -> PodVolume {
    let agent = PodVolume { name: "quorate".into(), ..PodVolume::default() };
    match delivery {
        Delivery::ImageVolume => {
            let image = ImageVolumeSource {
                reference: Some(image.to_owned()),
                pull_policy: Some(AGENT_PULL_POLICY.to_owned()),
            };
            PodVolume { image: Some(image), ..agent }
        }
        Delivery::InitContainer => PodVolume { empty_dir: Some(empty_dir(Quantity(AGENT_ROOM.into()))), ..agent },
    }
}

fn ticket_volume() -> PodVolume {
    let ticket = DownwardAPIVolumeFile {
        path: "ticket".into(),
        field_ref: Some(field_of(&format!("metadata.annotations['{}']", names::ANNOTATION_TICKET))),
        ..DownwardAPIVolumeFile::default()
    };
    PodVolume {
        name: "pod".into(),
        downward_api: Some(DownwardAPIVolumeSource { items: Some(vec![ticket]), default_mode: None }),
        ..PodVolume::default()
    }
}

/// As little as a pod of ours can do with.
pub fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        // Else the kubelet walks through all files of the volume before each start.
        fs_group_change_policy: Some("OnRootMismatch".into()),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

/// As little as a container of ours can do with.
pub fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

pub(super) fn empty_dir(limit: Quantity) -> EmptyDirVolumeSource {
    EmptyDirVolumeSource { size_limit: Some(limit), medium: None }
}

/// Mounts this volume of a pod there.
pub fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

pub(super) fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}

/// A variable with this value.
pub fn value(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

fn field(name: &str, path: &str) -> EnvVar {
    let source = EnvVarSource { field_ref: Some(field_of(path)), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}

fn field_of(path: &str) -> ObjectFieldSelector {
    ObjectFieldSelector { api_version: Some("v1".into()), field_path: path.to_owned() }
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
