//! What keeps a pod from running, as the kubelet and the scheduler say, with their own words. Only reading.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus};
use quorate_statemachine::Trouble;

use crate::cluster::render::{ARCHIVE_CONTAINER, ETCD_CONTAINER};

/// Why an image is not there, as the kubelet names it (`pkg/kubelet/images/types.go`, stable for years).
const IMAGE_REASONS: [&str; 6] =
    ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", UNAVAILABLE];
/// What is said of a registry that does not answer, or not now, in lower case: by Go's `net` and `net/http`, by a registry
/// that has too much to do (containerd and CRI-O give its status in its own words), and by a kubelet that asks too often.
const UNREACHABLE: [&str; 17] = [
    "connection refused",
    "connection reset",
    "no route to host",
    "network is unreachable",
    "no such host",
    "server misbehaving",
    "i/o timeout",
    "tls handshake timeout",
    "context deadline exceeded",
    "client.timeout exceeded",
    "500 internal server error",
    "502 bad gateway",
    "503 service unavailable",
    "504 gateway timeout",
    "429 too many requests",
    "toomanyrequests",
    "pull qps exceeded",
];
/// Why an image is not there, where nothing more has to be said for that.
const UNAVAILABLE: &str = "RegistryUnavailable";
/// Why a container can't be started, or is not started for now.
const FAILING_REASONS: [&str; 4] =
    [BACK_OFF, "CreateContainerConfigError", "CreateContainerError", "RunContainerError"];
/// What a kubelet says while its runtime is slow to make a container: it gave up, or the try before is still under way. It
/// tries again by itself.
const SLOW: [&str; 2] = ["context deadline exceeded", "failed to reserve container name"];
/// The kubelet waits before it starts a container again that has ended, for whatever reason.
const BACK_OFF: &str = "CrashLoopBackOff";
/// What a container ends with that SIGKILL or SIGTERM ended: 128 and the signal's number, as a shell tells it.
const KILLED: [i32; 2] = [128 + 9, 128 + 15];
/// What containerd says of a container that ran when it went away itself, and does not any more when it is back: its node was
/// switched off, mostly (`unknownExitCode` and `unknownExitReason` in containerd's CRI plugin).
const NOBODY_SAW: (i32, &str) = (255, "Unknown");
/// How long after a pod was last ready its kills are excused. One that ran shorter than this and is killed that much later
/// never comes up: that is told like a failure, and mended like one by another spec (a runtime may report what ran out of
/// memory as merely killed). Twice the longest time that the kubelet waits between two starts.
const EXCUSED_FOR: Duration = Duration::from_mins(10);
/// The longest words that are kept, in bytes: an event's note holds 1 KiB, and a condition names several members.
const MAX_WORDS: usize = 400;

/// A trouble, and what the kubelet or the scheduler says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The trouble.
    pub trouble: Trouble,
    /// Their words, on one line.
    pub words: String,
}

/// What keeps this pod from running, if anything does.
pub fn of(pod: &Pod) -> Option<Told> {
    let status = pod.status.as_ref()?;
    // Once etcd's container runs, what fails beside it says nothing of etcd: one that a webhook has put in, as that of a mesh.
    // That of the backup is told of where the backup is.
    let etcd_runs = status.container_statuses.iter().flatten().any(|container| {
        container.name == ETCD_CONTAINER && container.state.as_ref().is_some_and(|state| state.running.is_some())
    });
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut containers = all.filter(|container| !etcd_runs || container.name != ARCHIVE_CONTAINER);
    let unready_since = unready_since(status);
    containers
        .find_map(|container| in_container(pod, container, unready_since))
        .map(|told| if etcd_runs { Told { trouble: Trouble::BesideFailing, ..told } } else { told })
        .or_else(|| status.conditions.iter().flatten().find_map(in_condition))
}

/// Since when the pod is not ready, if it is not.
fn unready_since(status: &PodStatus) -> Option<Timestamp> {
    let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready")?;
    (ready.status != "True").then_some(ready.last_transition_time.as_ref()?.0)
}

fn in_container(pod: &Pod, container: &ContainerStatus, unready_since: Option<Timestamp>) -> Option<Told> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let said = waiting.message.as_deref().unwrap_or_default();
    let ended = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let is_slow = SLOW.iter().any(|slow| said.contains(slow));
    let is_kill = reason == BACK_OFF && ended.is_some_and(|it| was_killed(it) && !never_comes_up(it, unready_since));
    let trouble = if IMAGE_REASONS.contains(&reason) {
        of_image(pod, &container.name, reason, said)
    } else if !FAILING_REASONS.contains(&reason) {
        return None;
    } else if is_slow || is_kill {
        Trouble::ContainerKilled
    } else {
        Trouble::ContainerFailing
    };
    let code = ended.map(|ended| format!(" (it ended with exit code {})", ended.exit_code)).unwrap_or_default();
    Some(Told { trouble, words: one_line(&format!("container {}: {reason}: {said}{code}", container.name)) })
}

/// What keeps an image away.
fn of_image(pod: &Pod, container: &str, reason: &str, said: &str) -> Trouble {
    if is_of_agent(pod, container, said) {
        Trouble::AgentImageMissing
    } else if is_unreachable(reason, said) {
        Trouble::ImageUnreachable
    } else {
        Trouble::ImageMissing
    }
}

/// Whether nobody could say whether there is such an image. An older kubelet does not repeat why while it waits for its next
/// try: then it is missing, as far as is known.
fn is_unreachable(reason: &str, said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    reason == UNAVAILABLE || UNREACHABLE.iter().any(|unreachable| said.contains(unreachable))
}

/// Whether the image that a container waits for is not etcd's: it runs another one itself, or has another mounted. Of the
/// latter the kubelet tells with the container that mounts it (`toKubeContainerImageVolumes` in its
/// `pkg/kubelet/kuberuntime/kuberuntime_container.go`), in words that name the image.
fn is_of_agent(pod: &Pod, container: &str, said: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let etcd = spec.containers.iter().find(|one| one.name == ETCD_CONTAINER).and_then(|etcd| etcd.image.as_deref());
    let own = all.find(|one| one.name == container).and_then(|one| one.image.as_deref());
    let mut mounted = spec.volumes.iter().flatten().filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    own != etcd || (mounted.any(|image| names(said, image)) && !etcd.is_some_and(|etcd| names(said, etcd)))
}

/// Whether these words name an image. Of one with a tag and a digest containerd leaves the tag out (`ParseDockerRef` in
/// `github.com/distribution/reference`).
fn names(said: &str, image: &str) -> bool {
    said.contains(image) || image.split_once('@').is_some_and(|(_, digest)| said.contains(digest))
}

/// Whether it was ended from outside: by a signal that it did not send itself, and not for the memory that it took; or along
/// with what would have told how it ended.
pub(super) fn was_killed(ended: &ContainerStateTerminated) -> bool {
    let reason = ended.reason.as_deref().unwrap_or_default();
    (ended.exit_code, reason) == NOBODY_SAW || (KILLED.contains(&ended.exit_code) && reason != "OOMKilled")
}

/// Whether its pod had not been ready for long when it ended, nor had it run for long.
fn never_comes_up(ended: &ContainerStateTerminated, unready_since: Option<Timestamp>) -> bool {
    let (Some(end), Some(unready)) = (ended.finished_at.as_ref(), unready_since) else { return false };
    let longer = |since: Timestamp| Duration::try_from(end.0.duration_since(since)).is_ok_and(|it| it > EXCUSED_FOR);
    longer(unready) && !ended.started_at.as_ref().is_some_and(|start| longer(start.0))
}

fn in_condition(condition: &PodCondition) -> Option<Told> {
    let unschedulable = condition.type_ == "PodScheduled"
        && condition.status == "False"
        && matches!(condition.reason.as_deref(), Some("Unschedulable" | "SchedulerError"));
    let words = condition.message.as_deref().unwrap_or("no node takes it");
    // Claims are created before their pods: the scheduler has not heard of this one yet, and tries again when it does. A
    // claim that is really gone is seen as such.
    let unheard = words.contains("persistentvolumeclaim \"") && words.contains("\" not found");
    (unschedulable && !unheard).then(|| Told { trouble: Trouble::Unschedulable, words: one_line(words) })
}

/// On one line, without what changes at each retry ("back-off 2m40s restarting ..." names a growing time), and cut to
/// [`MAX_WORDS`]: a status that changed at each look would be written at each look.
pub(super) fn one_line(words: &str) -> String {
    let steady = words.split_whitespace().filter(|word| !is_duration(word)).collect::<Vec<_>>().join(" ");
    let end = steady.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_WORDS).last();
    steady[..end.unwrap_or(0)].trim_end_matches([' ', ':']).to_owned()
}

/// `10s`, `2m40s`, `5m0s`, and before a comma `1.03s,`.
fn is_duration(word: &str) -> bool {
    let word = word.trim_end_matches(',');
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h'])
        && word.chars().all(|c| c.is_ascii_digit() || ['h', 'm', 's', '.'].contains(&c))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "db-0" }, "status": status })).unwrap()
    }

    fn waiting(reason: &str, message: &str) -> serde_json::Value {
        let state = json!({ "waiting": { "reason": reason, "message": message } });
        json!([{ "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }])
    }

    #[test]
    fn a_missing_image_is_told_in_the_kubelets_words() {
        let told =
            of(&pod(&json!({ "containerStatuses": waiting("ImagePullBackOff", "Back-off pulling image \"x\"") })));
        let told = told.unwrap();
        assert_eq!(told.trouble, Trouble::ImageMissing);
        assert_eq!(told.words, "container etcd: ImagePullBackOff: Back-off pulling image \"x\"");
        let init = of(&pod(&json!({ "initContainerStatuses": waiting("ErrImageNeverPull", "") }))).unwrap();
        assert_eq!((init.trouble, init.words.as_str()), (Trouble::ImageMissing, "container etcd: ErrImageNeverPull"));
    }

    #[test]
    fn a_registry_that_does_not_answer_is_not_one_that_has_no_such_image() {
        let told = |reason: &str, why: &str| {
            let message = format!("Back-off pulling image \"r.example.com/etcd:v3.5.503\": ErrImagePull: {why}");
            of(&pod(&json!({ "containerStatuses": waiting(reason, &message) }))).unwrap().trouble
        };
        for silent in [
            "dial tcp 10.0.0.1:443: connect: connection refused",
            "dial tcp 10.0.0.1:443: i/o timeout",
            "dial tcp: lookup r.example.com on 10.0.0.2:53: no such host",
            "net/http: TLS handshake timeout",
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            "unexpected status from HEAD request to https://r.example.com/v2/: 503 Service Unavailable",
            "unexpected status from HEAD request to https://r.example.com/v2/: 429 Too Many Requests",
            "toomanyrequests: You have reached your pull rate limit",
        ] {
            assert_eq!(told("ImagePullBackOff", silent), Trouble::ImageUnreachable, "{silent}");
        }
        assert_eq!(told("RegistryUnavailable", ""), Trouble::ImageUnreachable);
        for answer in [
            "r.example.com/etcd:v3.5.503: not found",
            "manifest unknown: manifest unknown",
            "pull access denied, repository does not exist or may require authorization",
            "unexpected status from HEAD request to https://r.example.com/v2/: 403 Forbidden",
        ] {
            assert_eq!(told("ErrImagePull", answer), Trouble::ImageMissing, "{answer}");
        }
    }

    #[test]
    fn a_missing_image_of_what_comes_along_is_not_taken_for_etcds() {
        let spec = json!({
            "initContainers": [{ "name": "agent", "image": "agent:1" }, { "name": "restore", "image": "etcd:1" }],
            "containers": [{ "name": "etcd", "image": "etcd:1" }],
            "volumes": [{ "name": "quorate", "image": { "reference": "agent:1" } }],
        });
        let told = |kind: &str, name: &str, image: &str| {
            let mut statuses = waiting("ImagePullBackOff", &format!("Back-off pulling image \"{image}\""));
            statuses[0]["name"] = json!(name);
            let mut pod = pod(&json!({ kind: statuses }));
            pod.spec = serde_json::from_value(spec.clone()).unwrap();
            let told = of(&pod).unwrap();
            assert!(told.words.starts_with(&format!("container {name}: ")), "{}", told.words);
            told.trouble
        };
        assert_eq!(told("containerStatuses", "etcd", "etcd:1"), Trouble::ImageMissing);
        assert_eq!(told("containerStatuses", "etcd", "agent:1"), Trouble::AgentImageMissing, "it is mounted there");
        assert_eq!(told("initContainerStatuses", "agent", "agent:1"), Trouble::AgentImageMissing);
        assert_eq!(told("initContainerStatuses", "restore", "etcd:1"), Trouble::ImageMissing, "etcdutl is in it");
    }

    #[test]
    fn an_image_of_a_tag_and_a_digest_is_known_by_the_digest() {
        let mounted = json!({ "name": "quorate", "image": { "reference": "agent:1@sha256:aa" } });
        let told = |image: &str| {
            let mut pod = pod(&json!({ "containerStatuses": waiting("ErrImagePull", &format!("pull \"{image}\"")) }));
            let etcd = json!({ "name": "etcd", "image": "etcd:1@sha256:ee" });
            pod.spec = serde_json::from_value(json!({ "containers": [etcd], "volumes": [mounted] })).unwrap();
            of(&pod).unwrap().trouble
        };
        assert_eq!(told("docker.io/library/agent@sha256:aa"), Trouble::AgentImageMissing);
        assert_eq!(told("docker.io/library/etcd@sha256:ee"), Trouble::ImageMissing);
    }

    #[test]
    fn a_failing_container_is_told_without_the_growing_time() {
        let told = |time: &str| {
            let message = format!("back-off {time} restarting failed container=etcd");
            of(&pod(&json!({ "containerStatuses": waiting("CrashLoopBackOff", &message) }))).unwrap()
        };
        assert_eq!(told("10s").trouble, Trouble::ContainerFailing);
        assert_eq!(told("10s"), told("2m40s"));
        assert_eq!(told("1.030004831s,"), told("10s"));
    }

    #[test]
    fn kills_are_excused_for_ten_minutes_after_the_pod_was_ready() {
        let killed = |ready: &str, since: &str, at: &str| {
            let mut etcd = waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container=etcd");
            etcd[0]["lastState"] = json!({ "terminated": { "exitCode": 137, "reason": "Error", "finishedAt": at } });
            let ready = json!({ "type": "Ready", "status": ready, "lastTransitionTime": since });
            of(&pod(&json!({ "containerStatuses": etcd, "conditions": [ready] }))).unwrap().trouble
        };
        let since = "2026-01-01T10:00:00Z";
        assert_eq!(killed("False", since, "2026-01-01T10:09:59Z"), Trouble::ContainerKilled);
        assert_eq!(killed("False", since, "2026-01-01T10:10:01Z"), Trouble::ContainerFailing);
        assert_eq!(killed("True", since, "2026-01-01T10:10:01Z"), Trouble::ContainerKilled, "it was ready to the end");
        assert_eq!(killed("False", since, "2026-01-01T09:59:59Z"), Trouble::ContainerKilled, "it ended before that");
        let mut etcd = waiting("CrashLoopBackOff", "back-off 10s restarting failed container=etcd");
        etcd[0]["lastState"] = json!({ "terminated": { "exitCode": 137, "reason": "Error", "startedAt": since,
            "finishedAt": "2026-01-01T10:20:00Z" } });
        let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": since });
        let ran_long = of(&pod(&json!({ "containerStatuses": etcd, "conditions": [ready] }))).unwrap();
        assert_eq!(ran_long.trouble, Trouble::ContainerKilled, "it was unready for want of a quorum, say");
    }

    #[test]
    fn a_container_that_was_killed_does_not_fail_by_itself() {
        let after = |code: i32, reason: &str| {
            let mut etcd = waiting("CrashLoopBackOff", "back-off 10s restarting failed container=etcd");
            etcd[0]["lastState"] = json!({ "terminated": { "exitCode": code, "reason": reason } });
            of(&pod(&json!({ "containerStatuses": etcd }))).unwrap()
        };
        assert_eq!(after(137, "Error").trouble, Trouble::ContainerKilled);
        assert!(after(137, "Error").words.ends_with("(it ended with exit code 137)"), "{:?}", after(137, "Error"));
        assert_eq!(after(143, "Error").trouble, Trouble::ContainerKilled);
        assert_eq!(after(137, "OOMKilled").trouble, Trouble::ContainerFailing);
        assert_eq!(after(255, "Unknown").trouble, Trouble::ContainerKilled, "its node was switched off");
        for code in [0, 1, 2, 139, 255] {
            assert_eq!(after(code, "Error").trouble, Trouble::ContainerFailing, "{code}");
        }
    }

    #[test]
    fn a_node_that_is_too_slow_to_make_a_container_is_not_the_fault_of_what_it_runs() {
        let told = |said: &str| {
            of(&pod(&json!({ "containerStatuses": waiting("CreateContainerError", said) }))).unwrap().trouble
        };
        assert_eq!(told("context deadline exceeded"), Trouble::ContainerKilled);
        assert_eq!(told("failed to reserve container name \"etcd_db-0\": it is reserved"), Trouble::ContainerKilled);
        assert_eq!(told("no command specified"), Trouble::ContainerFailing);
    }

    #[test]
    fn what_fails_beside_etcd_is_no_trouble_once_etcd_runs() {
        let mut status = json!({ "initContainerStatuses": waiting("CrashLoopBackOff", "") });
        status["initContainerStatuses"][0]["name"] = json!("archive");
        assert_eq!(of(&pod(&status)).unwrap().trouble, Trouble::ContainerFailing);
        status["containerStatuses"] = waiting("CrashLoopBackOff", "");
        status["containerStatuses"][0]["state"] = json!({ "running": {} });
        assert_eq!(of(&pod(&status)), None);
    }

    #[test]
    fn what_somebody_has_put_in_is_no_trouble_of_etcd_once_that_runs() {
        let beside = |etcd: serde_json::Value, reason: &str| {
            let mut statuses = waiting(reason, "back-off 5m0s restarting failed container=proxy");
            statuses[0]["name"] = json!("proxy");
            let mut own = waiting("", "");
            own[0]["state"] = etcd;
            statuses.as_array_mut().unwrap().push(own[0].clone());
            of(&pod(&json!({ "containerStatuses": statuses }))).unwrap()
        };
        let runs = || json!({ "running": {} });
        for reason in ["CrashLoopBackOff", "ImagePullBackOff"] {
            let told = beside(runs(), reason);
            assert_eq!(told.trouble, Trouble::BesideFailing, "{reason}");
            assert!(told.words.starts_with(&format!("container proxy: {reason}")), "{}", told.words);
        }
        let waits = json!({ "waiting": { "reason": "ContainerCreating" } });
        assert_eq!(beside(waits, "CrashLoopBackOff").trouble, Trouble::ContainerFailing);
    }

    #[test]
    fn an_unschedulable_pod_is_told_in_the_schedulers_words() {
        let condition = |reason: &str| {
            json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": reason,
                "message": "0/3 nodes are available:\n 3 Insufficient cpu." }] })
        };
        let told = of(&pod(&condition("Unschedulable"))).unwrap();
        assert_eq!(told.trouble, Trouble::Unschedulable);
        assert_eq!(told.words, "0/3 nodes are available: 3 Insufficient cpu.");
        assert_eq!(of(&pod(&condition("WaitingForGates"))), None);
        let unheard = json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: persistentvolumeclaim \"db-1\" not found. not found" }] });
        assert_eq!(of(&pod(&unheard)), None);
    }

    #[test]
    fn a_pod_that_starts_has_no_trouble() {
        assert_eq!(of(&Pod::default()), None);
        assert_eq!(of(&pod(&json!({ "containerStatuses": waiting("ContainerCreating", "") }))), None);
        let scheduled = json!({ "conditions": [{ "type": "PodScheduled", "status": "True" }] });
        assert_eq!(of(&pod(&scheduled)), None);
    }

    #[test]
    fn long_words_are_cut_between_letters() {
        let words = one_line(&"ä".repeat(MAX_WORDS));
        assert!(words.len() <= MAX_WORDS && words.chars().all(|c| c == 'ä') && words.len() > MAX_WORDS - 2);
    }
}
