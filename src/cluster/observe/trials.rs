//! Trials of releases as their pods show them: what has come of each, and why. Only reading; what follows from it is the
//! plan's business.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use quorate_crds::names::{ANNOTATION_TEMPLATE, ANNOTATION_TRIAL_OF};
use quorate_statemachine::{Millis, NodeName, Outcome, Release, Serial, TemplateHash, Trial, Trouble, Uid};

use super::facts::millis;
use super::pods::{annotation, etcd_status_of, release_of};
use super::trouble;
use crate::cluster::render;
use crate::ownership::owner_uid;

/// What the end of a container is called that never began, by containerd and by Docker. The program to begin with is the
/// agent, so that mostly tells nothing of the image.
const NEVER_BEGAN: [&str; 2] = ["StartError", "ContainerCannotRun"];
/// What runc says where it does: the image names the folder to begin in, and holds what is mounted over.
const OF_IMAGE: [&str; 2] = ["chdir to cwd", "not a directory"];

/// The pod of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialFacts {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
    /// The UID of the object that owns it.
    pub owner: Option<String>,
    /// When it was created.
    pub created: Millis,
    /// The name of the member for which it is.
    pub member: String,
    /// What is tried.
    pub release: Release,
    /// With the flags of this template.
    pub template: TemplateHash,
    /// On this node.
    pub node: NodeName,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// What has come of it.
    pub outcome: Outcome,
    /// Why it failed, in the agent's words or the kubelet's.
    pub words: String,
    /// Its kubelet has not said a word about it.
    pub wordless: bool,
}

impl TrialFacts {
    /// What matters of the pod of a trial; `None` of any other pod.
    pub fn of(pod: &Pod) -> Option<Self> {
        let (outcome, words) = outcome(pod);
        let status = pod.status.as_ref();
        Some(Self {
            name: pod.name_any(),
            uid: Uid::new(pod.metadata.uid.as_deref()?),
            owner: owner_uid(pod),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| millis(time.0)).unwrap_or_default(),
            member: annotation(pod, ANNOTATION_TRIAL_OF)?.to_owned(),
            release: release_of(pod, None)?,
            template: annotation(pod, ANNOTATION_TEMPLATE).and_then(render::read_hash)?,
            node: NodeName::new(pod.spec.as_ref()?.node_name.as_deref()?),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            wordless: outcome == Outcome::Open
                && words.is_empty()
                && status.and_then(|s| s.phase.as_deref()) != Some("Running"),
            outcome,
            words,
        })
    }

    /// The same in the state machine's words.
    pub fn in_words_of_plan(&self, serial: Serial) -> Trial {
        Trial {
            serial,
            uid: self.uid.clone(),
            release: self.release.clone(),
            template: self.template,
            node: self.node.clone(),
            created: self.created,
            terminating: self.terminating,
            outcome: self.outcome,
        }
    }
}

fn outcome(pod: &Pod) -> (Outcome, String) {
    // Set where a pod was evicted, or not admitted by its kubelet: that tells nothing of the image.
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let reason = status.and_then(|status| status.reason.as_deref()).unwrap_or_default();
    let ended = etcd_status_of(pod).and_then(|etcd| etcd.state.as_ref()?.terminated.as_ref());
    match (ended, trouble::of(pod)) {
        (Some(ended), _) if ended.exit_code == 0 => (Outcome::Passed, String::new()),
        _ if phase == Some("Failed") && !reason.is_empty() => (Outcome::Undecided, reason.to_owned()),
        (Some(ended), _) if trouble::was_killed(ended) => (Outcome::Undecided, "it was killed".to_owned()),
        (Some(ended), _) => {
            let said = ended.message.as_deref().filter(|said| !said.trim().is_empty());
            let words = said.or(ended.reason.as_deref()).unwrap_or("it ended without a word");
            let never_began = ended.reason.as_deref().is_some_and(|reason| NEVER_BEGAN.contains(&reason));
            let of_node = never_began && !OF_IMAGE.iter().any(|of_image| words.contains(of_image));
            (if of_node { Outcome::Undecided } else { Outcome::Failed }, trouble::one_line(words))
        }
        (None, Some(told)) => match told.trouble {
            Trouble::ImageMissing => (Outcome::ImageMissing, told.words),
            Trouble::ContainerFailing => (Outcome::Failed, told.words),
            Trouble::ImageUnreachable => (Outcome::ImageUnreachable, told.words),
            Trouble::AgentImageMissing => (Outcome::AgentImageMissing, told.words),
            Trouble::Unschedulable | Trouble::ContainerKilled | Trouble::BesideFailing => (Outcome::Open, told.words),
        },
        (None, None) if phase == Some("Failed") => (Outcome::Undecided, String::new()),
        (None, None) if is_stranded(pod) => (Outcome::Undecided, "its container was made and not started".to_owned()),
        (None, None) => (Outcome::Open, String::new()),
    }
}

/// Whether its container was made and not started, because the node was switched off in between: the kubelet starts a pod that
/// is not to be restarted in no second sandbox (`computePodActions` in `pkg/kubelet/kuberuntime`), and never says more of it.
/// Of any other container that waits it gives a reason, or there is none yet.
fn is_stranded(pod: &Pod) -> bool {
    etcd_status_of(pod).is_some_and(|etcd| {
        let made = etcd.container_id.as_deref().is_some_and(|id| !id.is_empty());
        let waiting = etcd.state.as_ref().and_then(|state| state.waiting.as_ref());
        made && waiting.is_some_and(|waiting| waiting.reason.as_deref().unwrap_or_default().is_empty())
    })
}

#[cfg(test)]
mod tests {
    use quorate_crds::EtcdClusterSpec;
    use serde_json::{Value, json};

    use super::*;

    fn tried(status: &Value) -> (Outcome, String) {
        let spec = EtcdClusterSpec::default();
        let cluster = render::Cluster { name: "db", namespace: "ns", uid: "c", spec: &spec };
        let (release, node) = (render::fixture::release(), NodeName::new("n1"));
        let agent = (&render::fixture::agent(), render::Delivery::ImageVolume);
        let mut pod = render::trial(&cluster, Serial(1), &node, &release, agent).unwrap();
        pod.metadata.uid = Some("t".into());
        pod.status = serde_json::from_value(status.clone()).unwrap();
        let facts = TrialFacts::of(&pod).unwrap();
        assert_eq!((facts.member.as_str(), &facts.release, &facts.node), ("db-1", &release, &node));
        assert_eq!((facts.template, facts.owner.as_deref()), (render::hash(&spec), Some("c")));
        (facts.outcome, facts.words)
    }

    fn etcd(state: &Value) -> Value {
        json!({ "containerStatuses": [{ "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state }] })
    }

    fn ended(code: i32, message: &str) -> Value {
        etcd(&json!({ "terminated": { "exitCode": code, "reason": "Error", "message": message } }))
    }

    #[test]
    fn what_it_says_counts_and_what_befalls_its_pod_does_not() {
        assert_eq!(tried(&json!({ "phase": "Pending" })).0, Outcome::Open);
        assert_eq!(tried(&ended(0, "")).0, Outcome::Passed);
        assert_eq!(tried(&ended(1, "WrongVersion: x\n")), (Outcome::Failed, "WrongVersion: x".into()));
        assert_eq!(tried(&ended(139, "")), (Outcome::Failed, "Error".into()));
        assert_eq!(tried(&ended(137, "")).0, Outcome::Undecided);
        let mut evicted = ended(137, "");
        evicted["phase"] = json!("Failed");
        evicted["reason"] = json!("Evicted");
        assert_eq!(tried(&evicted).0, Outcome::Undecided);
        assert_eq!(tried(&json!({ "phase": "Failed", "reason": "OutOfcpu" })).0, Outcome::Undecided);
        let waiting = |reason: &str| etcd(&json!({ "waiting": { "reason": reason, "message": "m" } }));
        assert_eq!(tried(&waiting("ImagePullBackOff")).0, Outcome::ImageMissing);
        assert_eq!(tried(&waiting("CreateContainerError")).0, Outcome::Failed);
        assert_eq!(tried(&waiting("ContainerCreating")).0, Outcome::Open);
    }

    #[test]
    fn a_registry_that_does_not_answer_says_nothing_of_the_release() {
        let message = "failed to pull and unpack image \"etcd:x\": dial tcp 10.0.0.1:443: connect: connection refused";
        let silent = etcd(&json!({ "waiting": { "reason": "ErrImagePull", "message": message } }));
        let (outcome, words) = tried(&silent);
        assert_eq!(outcome, Outcome::ImageUnreachable);
        assert!(words.ends_with(message), "{words}");
    }

    #[test]
    fn an_image_of_the_agent_that_is_missing_says_nothing_of_the_release() {
        let pulling = |image: &str| {
            let message = format!("Back-off pulling image \"{image}\": ErrImagePull: not found");
            tried(&etcd(&json!({ "waiting": { "reason": "ImagePullBackOff", "message": message } })))
        };
        assert_eq!(pulling(render::fixture::release().image.as_str()).0, Outcome::ImageMissing);
        let (outcome, words) = pulling(&render::fixture::agent().image);
        assert_eq!(outcome, Outcome::AgentImageMissing);
        assert!(words.contains(&render::fixture::agent().image), "{words}");
    }

    #[test]
    fn a_node_that_is_too_slow_to_start_it_says_nothing_of_the_image() {
        let never_began = |said: &str| {
            let ended = json!({ "exitCode": 128, "reason": "StartError", "message": said });
            tried(&etcd(&json!({ "terminated": ended })))
        };
        assert_eq!(never_began("failed to create a task"), (Outcome::Undecided, "failed to create a task".into()));
        let said = "OCI runtime create failed: chdir to cwd (\"/x\") set in config.json failed: permission denied";
        assert_eq!(never_began(said), (Outcome::Failed, said.into()), "it is the image that names the folder");
        for said in
            ["context deadline exceeded", "failed to reserve container name \"etcd_db-1-trial\": it is reserved"]
        {
            let slow = json!({ "waiting": { "reason": "CreateContainerError", "message": said } });
            assert_eq!(tried(&etcd(&slow)).0, Outcome::Open, "{said}");
        }
    }

    #[test]
    fn a_node_that_was_switched_off_meanwhile_says_nothing_of_the_image() {
        let mut ended = etcd(&json!({ "terminated": { "exitCode": 255, "reason": "Unknown" } }));
        ended["phase"] = json!("Failed");
        assert_eq!(tried(&ended).0, Outcome::Undecided);
        ended["containerStatuses"][0]["state"]["terminated"]["reason"] = json!("Error");
        assert_eq!(tried(&ended).0, Outcome::Failed, "that it said itself");
        let mut waits = etcd(&json!({ "waiting": {} }));
        assert_eq!(tried(&waits).0, Outcome::Open, "it is not made yet");
        waits["containerStatuses"][0]["containerID"] = json!("containerd://1");
        assert_eq!(tried(&waits).0, Outcome::Undecided, "it was made and not started");
        waits["containerStatuses"][0]["state"]["waiting"]["reason"] = json!("ContainerCreating");
        assert_eq!(tried(&waits).0, Outcome::Open);
    }

    #[test]
    fn a_members_pod_is_no_trial() {
        assert_eq!(TrialFacts::of(&Pod::default()), None);
    }
}
