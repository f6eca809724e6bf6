//! Tests of what is told where an image can't be pulled: whose it is, what the kubelet says, and what to do.

use quorate_crds::{EtcdClusterStatus, Reason};
use quorate_statemachine::{Finding, Outcome, PodStage, Serial, Sight, Trouble};

use super::events;
use super::fixture::sighted;
use super::tests::{EARLY, report, through, truth, trying};
use crate::cluster::observe::Observed;
use crate::cluster::observe::trouble::Told;

const IMAGE: &str = "mirror.example.com/etcd:x";

/// A cluster in which db-2 does not start for want of an image.
fn wanting(trouble: Trouble, words: &str) -> Observed {
    let mut observed = sighted(&[(Serial(2), Sight::Unknown)], true);
    if let Some(pod) = observed.world.seats.get_mut(&Serial(2)).and_then(|seat| seat.pod.as_mut()) {
        pod.trouble = Some(trouble);
        pod.stage = PodStage::Pending;
        pod.ready = false;
    }
    if let Some(pod) = observed.pods.get_mut(&Serial(2)) {
        pod.trouble = Some(Told { trouble, words: words.into() });
    }
    observed
}

fn stalled(status: &EtcdClusterStatus) -> &str {
    &status.conditions.iter().find(|condition| condition.type_ == "Stalled").unwrap().message
}

#[test]
fn a_missing_image_is_told_with_the_kubelets_words() {
    let observed = wanting(Trouble::ImageMissing, "ErrImagePull: no such image");
    let (plan, status) = report(&observed, EARLY);
    assert_eq!(truth(&status, "Stalled"), ("True".into(), "ImageMissing".into()), "{:?}", plan.findings);
    let message = stalled(&status);
    assert!(message.contains("db-2") && message.contains("no such image"), "{message}");
    assert_eq!(status.members[2].reason.as_deref(), Some("ImageMissing"));
    let news = events::of_turns(&observed, &plan, &status);
    assert!(news.iter().any(|news| news.warning && news.reason == Reason::ImageMissing));
}

#[test]
fn for_want_of_the_agents_image_nobody_is_sent_to_the_spec() {
    let observed = wanting(Trouble::AgentImageMissing, "container agent: ErrImagePull: no such image");
    let status = report(&observed, EARLY).1;
    assert_eq!(truth(&status, "Stalled"), ("True".into(), "ImageMissing".into()));
    let message = stalled(&status);
    assert!(message.contains("QUORATE_AGENT_IMAGE") && message.contains("container agent"), "{message}");
    assert!(!message.contains("spec."), "{message}");
}

#[test]
fn a_registry_that_does_not_answer_is_told_as_such() {
    let words = "container etcd: ErrImagePull: dial tcp: connection refused";
    let status = report(&wanting(Trouble::ImageUnreachable, words), EARLY).1;
    assert_eq!(truth(&status, "Stalled"), ("True".into(), "ImageMissing".into()));
    let message = stalled(&status);
    assert!(message.contains("registry does not answer") && message.ends_with(words), "{message}");
}

/// Goes through two rounds in which the trial of a release waits for an image, and one in which it has passed; says what is
/// told as Stalled meanwhile.
fn told_of_trial(outcome: Outcome, words: &str) -> String {
    let wants = || trying(IMAGE, Some((outcome, words)));
    let before = report(&trying(IMAGE, Some((Outcome::Open, ""))), EARLY).1;
    let (told, status) = through(vec![wants(), wants()], before);
    assert_eq!(told.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0], "{told:?}");
    assert_eq!(truth(&status, "Stalled"), ("True".into(), "TrialImageMissing".into()));
    let message = stalled(&status).to_owned();
    assert!(message.starts_with("db-2: ") && message.ends_with(words), "{message}");
    let (_, status) = through(vec![trying(IMAGE, Some((Outcome::Passed, "")))], status);
    assert_eq!(truth(&status, "Stalled").0, "False", "it is there now");
    message
}

#[test]
fn a_trial_that_waits_for_an_image_is_told_with_its_remedy_and_goes_on() {
    let missing = told_of_trial(Outcome::ImageMissing, "container etcd: ErrImagePull: mirror.example.com/etcd:x");
    assert!(missing.contains("Correct spec.version or spec.image"), "{missing}");
    let silent = told_of_trial(Outcome::ImageUnreachable, "container etcd: ErrImagePull: connection refused");
    assert!(silent.contains("registry of the new image does not answer"), "{silent}");
    let agents = told_of_trial(Outcome::AgentImageMissing, "container agent: ErrImagePull: mirror.example.com/agent:y");
    assert!(agents.contains("QUORATE_AGENT_IMAGE and delete pod db-2-trial"), "{agents}");
    assert!(!agents.contains("spec."), "{agents}");
}

#[test]
fn that_an_image_is_tried_is_told_before_that_others_wait_for_their_turn() {
    let (plan, status) = report(&trying(IMAGE, Some((Outcome::Open, "ContainerCreating"))), EARLY);
    assert!(plan.findings[&Some(Serial(0))].contains(&Finding::ReleaseOutdated), "{:?}", plan.findings);
    let reconciling = status.conditions.iter().find(|condition| condition.type_ == "Reconciling").unwrap();
    assert_eq!(reconciling.message, "db-2: the new image is being tried on its node. ContainerCreating");
}
