//! Pods cut down to what decisions and reports need, on arrival: whole pods of ten thousand clusters would not fit into
//! memory. Only reading; nothing here judges.

use std::net::IpAddr;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use quorate_backup::ticket::Ticket;
use quorate_crds::EtcdClusterSpec;
use quorate_crds::names::{
    ANNOTATION_IMAGE, ANNOTATION_RESIZE_REFUSED, ANNOTATION_RESOURCES, ANNOTATION_SCHEDULING, ANNOTATION_SETTINGS,
    ANNOTATION_SWITCHED_FROM, ANNOTATION_TEMPLATE, ANNOTATION_TICKET, ANNOTATION_TICKET_SINCE, ANNOTATION_VERSION,
    LABEL_ROLE, ROLE_RETURNING, ROLE_VOTER,
};
use quorate_statemachine::{Image, Mark, Millis, NodeName, PodStage, Release, RoleLabel, TemplateHash, Uid, Version};

use super::cache::Key;
use super::facts::millis;
use super::reference;
use super::trials::TrialFacts;
use super::trouble::{self, Told};
use crate::cluster::render::{self, ARCHIVE_CONTAINER, Audience, Begin, ETCD_CONTAINER, RESTORE_CONTAINER};
use crate::ownership::owner_uid;

/// A pod of a cluster's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyPod {
    /// In which a member runs, or waits.
    Member(PodFacts),
    /// In which a release is tried.
    Trial(TrialFacts),
}

impl AnyPod {
    /// What matters of a pod. `None` for one without a UID, which no API server sends.
    pub fn of(pod: &Pod) -> Option<Self> {
        TrialFacts::of(pod).map(Self::Trial).or_else(|| PodFacts::of(pod).map(Self::Member))
    }

    /// Where it was scheduled.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Self::Member(pod) => pod.node.as_ref(),
            Self::Trial(trial) => Some(&trial.node),
        }
    }
}

/// The condition of a pod whose new resources its node has no room for now, or never (KEP-1287).
const RESIZE_PENDING: &str = "PodResizePending";
/// The variable of etcd's container that names the volume's UID.
const VOLUME_VARIABLE: &str = "QUORATE_VOLUME";

/// The ticket that a pod carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketFacts {
    /// As what it lets etcd start.
    pub begin: Begin,
    /// The version that the binary must have, if that can be read.
    pub version: Option<Version>,
    /// The volume it is for.
    pub volume: Uid,
    /// What that has to be marked with.
    pub mark: Option<Mark>,
    /// When it was put on the pod. Zero if that can't be read.
    pub since: Millis,
}

/// Whether a pod is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// It stays.
    No,
    /// It was deleted, and has time to end.
    InGrace,
    /// It was deleted and has no time left: its object goes with the API server's very next write, unless a finalizer
    /// holds it.
    AtOnce,
}

impl Leaving {
    fn of(metadata: &ObjectMeta) -> Self {
        match (&metadata.deletion_timestamp, metadata.deletion_grace_period_seconds) {
            (None, _) => Self::No,
            (Some(_), Some(0)) => Self::AtOnce,
            (Some(_), _) => Self::InGrace,
        }
    }

    /// Whether it has a deletion timestamp.
    pub fn leaves(self) -> bool {
        match self {
            Self::No => false,
            Self::InGrace | Self::AtOnce => true,
        }
    }
}

/// A member's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Its UID.
    pub uid: Uid,
    /// The version of the object, to guard a change of it.
    pub resource_version: String,
    /// The UID of the object that owns it.
    pub owner: Option<String>,
    /// When it was created.
    pub created: Millis,
    /// Where it was scheduled.
    pub node: Option<NodeName>,
    /// Where it can be reached.
    pub ip: Option<IpAddr>,
    /// How far it has come.
    pub stage: PodStage,
    /// Whether it is on its way out.
    pub leaving: Leaving,
    /// What keeps it from running.
    pub trouble: Option<Told>,
    /// The volume it was made for.
    pub volume: Uid,
    /// It restores a backup before its launcher.
    pub restores: bool,
    /// Whom the sidecar of a continuous backup answers: one that an operator of before has made, everybody.
    pub archive: Audience,
    /// The ticket it carries. `None` also for one that can't be read: it is written anew.
    pub ticket: Option<TicketFacts>,
    /// The template it was made from. Zero, which no template has, if that can't be read.
    pub template: TemplateHash,
    /// The scheduling it was made with, if that can be read.
    pub scheduling: Option<TemplateHash>,
    /// The fields of the spec that it was made from, as hashes; for telling which have changed.
    pub settings: Option<Box<str>>,
    /// What it is told to run. `None` if that can't be read.
    pub release: Option<Release>,
    /// The container of etcd that runs in it, or ran last.
    pub container: Option<EtcdContainer>,
    /// It was told to run another image, and the container of the old one is not gone yet.
    pub switching: bool,
    /// The compute resources that it was given. Zero, which none have, if that can't be read.
    pub resources: TemplateHash,
    /// The compute resources that Kubernetes refused to give it.
    pub resize_refused: Option<TemplateHash>,
    /// Its node has no room for the compute resources that it was given, in the kubelet's words.
    pub resize_pending: Option<String>,
    /// What its label says of its member.
    pub label: RoleLabel,
    /// The kubelet says it is ready.
    pub ready: bool,
}

/// A container in which etcd runs, or ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdContainer {
    /// The runtime's id of it.
    pub id: Box<str>,
    /// It has ended, and the kubelet has not started the next one yet.
    pub ended: bool,
}

impl EtcdContainer {
    fn of(pod: &Pod) -> Option<Self> {
        let status = etcd_status_of(pod)?;
        let id = status.container_id.as_deref().filter(|id| !id.is_empty())?;
        Some(Self { id: id.into(), ended: status.state.as_ref().is_some_and(|state| state.terminated.is_some()) })
    }
}

/// What the value of the role's label says.
fn label_of(role: Option<&str>) -> RoleLabel {
    match role {
        Some(ROLE_VOTER) => RoleLabel::Voter,
        Some(ROLE_RETURNING) => RoleLabel::Returning,
        Some(_) | None => RoleLabel::Absent,
    }
}

impl PodFacts {
    /// What matters of a pod. `None` for one without a UID, which no API server sends.
    pub fn of(pod: &Pod) -> Option<Self> {
        let uid = Uid::new(pod.metadata.uid.as_deref()?);
        let status = pod.status.as_ref();
        let condition = |wanted: &str| {
            let mut all = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
            all.find(|c| c.type_ == wanted && c.status == "True")
        };
        let container = EtcdContainer::of(pod);
        let switched_from = annotation(pod, ANNOTATION_SWITCHED_FROM);
        let hash = |name: &str| annotation(pod, name).and_then(render::read_hash);
        let ticket = ticket_of(pod);
        Some(Self {
            resource_version: pod.resource_version().unwrap_or_default(),
            owner: owner_uid(pod),
            created: pod.metadata.creation_timestamp.as_ref().map(|t| millis(t.0)).unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).map(NodeName::new),
            ip: status.and_then(|s| s.pod_ip.as_ref()).and_then(|ip| ip.parse().ok()),
            stage: stage(status),
            leaving: Leaving::of(&pod.metadata),
            trouble: trouble::of(pod),
            volume: volume_of(pod).unwrap_or_else(|| uid.clone()),
            restores: first_container(pod, RESTORE_CONTAINER).is_some(),
            archive: Audience::of(first_container(pod, ARCHIVE_CONTAINER)),
            template: hash(ANNOTATION_TEMPLATE).unwrap_or(TemplateHash(0)),
            scheduling: hash(ANNOTATION_SCHEDULING),
            settings: annotation(pod, ANNOTATION_SETTINGS).map(Into::into),
            release: release_of(pod, ticket.as_ref()),
            switching: switched_from.is_some() && switched_from == container.as_ref().map(|container| &*container.id),
            container,
            resources: hash(ANNOTATION_RESOURCES).unwrap_or(TemplateHash(0)),
            resize_refused: hash(ANNOTATION_RESIZE_REFUSED),
            resize_pending: condition(RESIZE_PENDING).map(|told| told.message.clone().unwrap_or_default()),
            ticket,
            label: label_of(pod.labels().get(LABEL_ROLE).map(String::as_str)),
            ready: condition("Ready").is_some(),
            uid,
        })
    }

    /// Whether it is told the same as another look at it showed, whatever was reported since of its containers.
    pub fn is_as_told(&self, other: &Self) -> bool {
        let told = |pod: &Self| Self {
            resource_version: String::new(),
            trouble: None,
            container: None,
            resize_pending: None,
            ready: false,
            ..pod.clone()
        };
        told(self) == told(other)
    }
}

pub(super) fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.annotations().get(name).map(String::as_str)
}

/// etcd's container, as it is asked for.
fn etcd_of(pod: &Pod) -> Option<&Container> {
    pod.spec.as_ref()?.containers.iter().find(|container| container.name == ETCD_CONTAINER)
}

/// One of those that run before etcd's, or beside it.
fn first_container<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    pod.spec.as_ref()?.init_containers.as_ref()?.iter().find(|container| container.name == name)
}

/// What is known of etcd's container.
pub(super) fn etcd_status_of(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|container| container.name == ETCD_CONTAINER)
}

/// The image, and the version that is said to be in it: on the pod, or else on its ticket.
pub(super) fn release_of(pod: &Pod, ticket: Option<&TicketFacts>) -> Option<Release> {
    let noted = annotation(pod, ANNOTATION_VERSION).and_then(Version::parse);
    let version = noted.or_else(|| ticket.and_then(|ticket| ticket.version))?;
    let given = etcd_of(pod)?.image.as_deref()?;
    let asked = annotation(pod, ANNOTATION_IMAGE).filter(|asked| reference::is_the_same(asked, given));
    Some(Release { version, image: Image::new(asked.unwrap_or(given)) })
}

/// The claim's UID that the pod was made with; `None` with ephemeral storage, where the variable refers to the pod.
fn volume_of(pod: &Pod) -> Option<Uid> {
    let variable = etcd_of(pod)?.env.iter().flatten().find(|variable| variable.name == VOLUME_VARIABLE)?;
    variable.value.as_deref().filter(|value| !value.is_empty()).map(Uid::new)
}

fn ticket_of(pod: &Pod) -> Option<TicketFacts> {
    // Only name and namespace are needed to read peer URLs.
    static ANY_SPEC: LazyLock<EtcdClusterSpec> = LazyLock::new(EtcdClusterSpec::default);
    let Key { namespace, name } = Key::of_child(pod)?;
    let cluster = render::Cluster { name: &name, namespace: &namespace, uid: "", spec: &ANY_SPEC };
    let ticket = Ticket::parse(annotation(pod, ANNOTATION_TICKET)?).ok()?;
    Some(TicketFacts {
        begin: Begin::of(&cluster, &ticket)?,
        version: Version::parse(ticket.version.as_str()),
        volume: Uid::new(ticket.volume.as_str()),
        mark: ticket.mark.map(|mark| Mark::new(mark.as_str())),
        since: annotation(pod, ANNOTATION_TICKET_SINCE).and_then(|t| t.parse().ok()).map(Millis).unwrap_or_default(),
    })
}

fn stage(status: Option<&PodStatus>) -> PodStage {
    match status.and_then(|s| s.phase.as_deref()) {
        Some("Running") => PodStage::Running,
        Some("Succeeded" | "Failed") => PodStage::Finished,
        _ => PodStage::Pending,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use quorate_statemachine::Serial;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_goes_at_once_only_when_it_was_deleted_and_has_no_grace_left() {
        let leaving = |deleted: bool, grace: Option<i64>| {
            Leaving::of(&ObjectMeta {
                deletion_timestamp: deleted.then_some(Time(Timestamp::UNIX_EPOCH)),
                deletion_grace_period_seconds: grace,
                ..ObjectMeta::default()
            })
        };
        assert_eq!(leaving(false, None), Leaving::No);
        assert_eq!(leaving(true, Some(30)), Leaving::InGrace);
        assert_eq!(leaving(true, None), Leaving::InGrace);
        assert_eq!(leaving(true, Some(0)), Leaving::AtOnce);
        assert_eq!([Leaving::No, Leaving::InGrace, Leaving::AtOnce].map(Leaving::leaves), [false, true, true]);
    }

    #[test]
    fn what_was_rendered_is_read_back() {
        let spec = EtcdClusterSpec::default();
        let cluster = render::Cluster { name: "db", namespace: "ns", uid: "c-uid", spec: &spec };
        let claim = Uid::new("claim-uid");
        let release = render::fixture::release();
        let joining = Begin::Join([Serial(0), Serial(3)].into());
        let mut ticket = render::ticket(&cluster, Serial(3), &claim, release.version, &joining).unwrap();
        ticket.mark = Some("a1".into());
        let sealed = render::Sealed::new(&ticket, Millis(77)).unwrap();
        let mut pod = render::pod(
            &cluster,
            Serial(3),
            &release,
            (&render::fixture::agent(), render::Delivery::InitContainer),
            render::Volume::Claim(&claim),
            Some(&sealed),
        );
        pod.metadata.uid = Some("p-uid".into());
        let facts = PodFacts::of(&pod).unwrap();
        assert_eq!(facts.owner.as_deref(), Some("c-uid"));
        assert_eq!(facts.volume, claim);
        assert_eq!(
            facts.ticket,
            Some(TicketFacts {
                begin: joining,
                version: Some(release.version),
                volume: claim,
                mark: Some(Mark::new("a1")),
                since: Millis(77)
            })
        );
        assert_eq!(facts.template, render::hash(&spec));
        assert_eq!((facts.release, facts.resources), (Some(release.clone()), render::resources_hash(&spec)));
        assert_eq!(render::changed_settings(&spec, facts.settings.as_deref().unwrap()), [""; 0]);
        assert_eq!((facts.switching, facts.resize_refused, facts.resize_pending), (false, None, None));
        assert_eq!((facts.stage, facts.ready, facts.leaving), (PodStage::Pending, false, Leaving::No));
        let mut ephemeral = render::pod(
            &cluster,
            Serial(3),
            &release,
            (&render::fixture::agent(), render::Delivery::InitContainer),
            render::Volume::Ephemeral,
            None,
        );
        ephemeral.metadata.uid = Some("p-uid".into());
        let facts = PodFacts::of(&ephemeral).unwrap();
        assert_eq!((facts.volume, facts.ticket), (Uid::new("p-uid"), None));
    }

    fn facts(annotations: &serde_json::Value, status: &serde_json::Value) -> PodFacts {
        let etcd = json!({ "name": "etcd", "image": "etcd:x" });
        let pod = json!({ "metadata": { "uid": "p", "annotations": annotations }, "spec": { "containers": [etcd] },
            "status": status });
        PodFacts::of(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn it_is_switching_while_the_container_of_the_old_image_is_there() {
        let running = |id: &str| {
            json!({ "containerStatuses": [{ "name": "etcd", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": id }] })
        };
        let switched = json!({ ANNOTATION_SWITCHED_FROM: "containerd://1", ANNOTATION_VERSION: "3.7.3" });
        assert!(facts(&switched, &running("containerd://1")).switching);
        let after = facts(&switched, &running("containerd://2"));
        assert_eq!((after.switching, &*after.container.unwrap().id), (false, "containerd://2"));
        assert_eq!(after.release, Some(Release { version: Version::new(7, 3), image: Image::new("etcd:x") }));
        assert!(!facts(&json!({}), &running("containerd://1")).switching);
        assert!(!facts(&switched, &json!({})).switching);
    }

    #[test]
    fn an_image_is_what_it_was_asked_for_as_unless_somebody_put_another_one_there() {
        let image = |asked: &str| {
            let told = json!({ ANNOTATION_VERSION: "3.7.3", ANNOTATION_IMAGE: asked });
            facts(&told, &json!({})).release.unwrap().image
        };
        assert_eq!(image("quay.example/coreos/etcd:x"), Image::new("quay.example/coreos/etcd:x"));
        assert_eq!(image("quay.example/coreos/etcd:y"), Image::new("etcd:x"));
    }

    #[test]
    fn a_container_has_ended_until_the_next_one_is_started() {
        let ended = |state: &serde_json::Value| {
            let etcd = json!({ "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 1,
                "containerID": "containerd://1", "state": state, "lastState": { "terminated": { "exitCode": 137 } } });
            facts(&json!({}), &json!({ "containerStatuses": [etcd] })).container.unwrap().ended
        };
        assert!(ended(&json!({ "terminated": { "exitCode": 137 } })));
        assert!(!ended(&json!({ "running": {} })));
        assert!(!ended(&json!({ "waiting": { "reason": "CrashLoopBackOff" } })), "that one is not started at once");
        assert_eq!(facts(&json!({}), &json!({})).container, None);
    }

    #[test]
    fn a_version_that_can_not_be_read_is_no_release() {
        for annotations in [json!({}), json!({ ANNOTATION_VERSION: "new" })] {
            assert_eq!(facts(&annotations, &json!({})).release, None);
        }
    }

    #[test]
    fn what_became_of_a_resize_is_read() {
        let pending = json!({ "conditions": [{ "type": RESIZE_PENDING, "status": "True", "reason": "Infeasible",
            "message": "Node didn't have enough capacity" }] });
        let told = facts(&json!({ ANNOTATION_RESIZE_REFUSED: "00000000000000ff" }), &pending);
        assert_eq!(told.resize_refused, Some(TemplateHash(255)));
        assert_eq!(told.resize_pending.as_deref(), Some("Node didn't have enough capacity"));
    }
}
