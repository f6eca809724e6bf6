//! What has become of a Job in which the agent runs: how it has ended, and what its pods tell. It only reads; what follows
//! is decided by whoever asks.

use std::net::IpAddr;

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use kube::ResourceExt;
use quorate_crds::names;
use serde::de::DeserializeOwned;

use crate::api::{Error, Kube};
use crate::cluster::render::AGENT_CONTAINER;
use crate::ownership::is_owned;

/// How a Job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// One of its pods has ended well.
    Complete,
    /// None has, and no other is tried.
    Failed,
}

/// How a Job has ended, if it has, and the condition that says so.
pub fn end(job: &Job) -> Option<(End, &JobCondition)> {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ends = conditions.filter(|one| one.status == "True").filter_map(|one| match one.type_.as_str() {
        "Complete" => Some((End::Complete, one)),
        "Failed" => Some((End::Failed, one)),
        _ => None,
    });
    ends.min_by_key(|(end, _)| *end == End::Failed)
}

/// The pods that it has made, by a quorum read.
pub async fn pods(kube: &Kube, job: &Job) -> Result<Vec<Pod>, Error> {
    let labels = format!("{}={}", names::LABEL_JOB, job.name_any());
    let mut pods = kube.list::<Pod>(&job.namespace().unwrap_or_default(), &labels).await?;
    // Those of an earlier Job of this name may still be there.
    pods.retain(|pod| is_owned(pod, job));
    Ok(pods)
}

/// The report of the agent that ended last; one that is good before any other.
pub fn report<R: DeserializeOwned>(pods: &[Pod], good: impl Fn(&R) -> bool) -> Option<R> {
    let read = |pod: &Pod| -> Option<R> { serde_json::from_str(terminated(pod)?.message.as_deref()?).ok() };
    let mut found: Vec<_> = pods.iter().filter_map(|pod| Some((pod.creation_timestamp(), read(pod)?))).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    let best = found.iter().rposition(|(_, report)| good(report)).or_else(|| found.len().checked_sub(1))?;
    Some(found.swap_remove(best).1)
}

/// The words with which the agent that ended last ended.
pub fn last_words(pods: &[Pod]) -> Option<String> {
    let ended = pods.iter().filter_map(|pod| Some((pod.creation_timestamp(), terminated(pod)?.message.clone()?)));
    ended.max_by(|one, other| one.0.cmp(&other.0)).map(|(_, words)| words)
}

/// Where an agent runs now.
pub fn address(pods: &[Pod]) -> Option<IpAddr> {
    let runs = |pod: &&Pod| container(pod).and_then(|own| own.state.as_ref()).is_some_and(|own| own.running.is_some());
    pods.iter().find(runs)?.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// Why the newest pod does not start, or how it ended without a word.
pub fn trouble(pods: &[Pod]) -> Option<String> {
    let newest = pods.iter().max_by_key(|pod| pod.creation_timestamp())?;
    let name = newest.name_any();
    let status = newest.status.as_ref()?;
    let unscheduled =
        status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled" && one.status == "False");
    if let Some(words) = unscheduled.and_then(|one| one.message.as_deref()) {
        return Some(format!("pod {name} finds no node: {words}"));
    }
    // Evicted, or not admitted: its container may have no state at all.
    if let Some(words) = status.message.as_deref().filter(|_| status.phase.as_deref() == Some("Failed")) {
        return Some(format!("pod {name} was ended by its node: {words}"));
    }
    let state = container(newest)?.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        // While all is well.
        if ["ContainerCreating", "PodInitializing", ""].contains(&reason) {
            return None;
        }
        let words = waiting.message.as_deref().unwrap_or_default();
        return Some(format!("pod {name} does not start: {reason}: {words}"));
    }
    let terminated = state.terminated.as_ref()?;
    let words = terminated.message.as_deref().or(terminated.reason.as_deref()).unwrap_or_default();
    Some(format!("pod {name} ended with code {}: {words}", terminated.exit_code))
}

fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    container(pod)?.state.as_ref()?.terminated.as_ref()
}

/// The agent's: others may have been put into the pod.
fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.iter().flatten().find(|own| own.name == AGENT_CONTAINER)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(number: u32, status: &Value) -> Pod {
        let created = format!("2026-01-01T00:00:{number:02}Z");
        let metadata = json!({ "name": format!("p{number}"), "creationTimestamp": created });
        serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap()
    }

    fn ended(number: u32, state: &Value) -> Pod {
        let container = |name: &str, state: &Value| {
            json!({ "name": name, "image": "x", "imageID": "x", "ready": false,
            "restartCount": 0, "state": { "terminated": state } })
        };
        let put_in = container("proxy", &json!({ "exitCode": 0, "message": "99" }));
        pod(number, &json!({ "containerStatuses": [put_in, container("agent", state)] }))
    }

    fn job(conditions: &Value) -> Job {
        serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": conditions } })).unwrap()
    }

    #[test]
    fn only_what_has_ended_counts() {
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
        for (kind, wanted) in [("Complete", End::Complete), ("Failed", End::Failed)] {
            assert_eq!(end(&job(&json!([condition(kind, "True")]))).map(|(end, _)| end), Some(wanted));
            assert_eq!(end(&job(&json!([condition(kind, "False")]))), None);
        }
        // Not before its last pod has gone.
        let going = json!([condition("FailureTarget", "True"), condition("SuccessCriteriaMet", "True")]);
        assert_eq!(end(&job(&going)), None);
    }

    #[test]
    fn the_last_report_counts_and_a_good_one_before_any_other() {
        let said = |number, words: &str| ended(number, &json!({ "exitCode": 0, "message": words }));
        let best = |pods: &[Pod]| report::<u32>(pods, |number| *number < 10);
        assert_eq!(best(&[]), None);
        assert_eq!(best(&[said(1, "what?")]), None);
        assert_eq!(best(&[said(2, "12"), said(1, "11"), said(3, "what?")]), Some(12));
        assert_eq!(best(&[said(2, "12"), said(1, "1")]), Some(1));
        assert_eq!(last_words(&[said(2, "12"), said(1, "1")]).as_deref(), Some("12"));
    }

    #[test]
    fn whoever_ended_a_pod_is_told_where_the_agent_says_nothing() {
        let killed = ended(1, &json!({ "exitCode": 137, "reason": "OOMKilled" }));
        assert_eq!(trouble(&[killed]).unwrap(), "pod p1 ended with code 137: OOMKilled");
        let words = "Usage of EmptyDir volume \"scratch\" exceeds the limit";
        let evicted = pod(1, &json!({ "phase": "Failed", "reason": "Evicted", "message": words }));
        assert!(trouble(&[evicted]).unwrap().ends_with(words));
    }
}
