//! What the pods of a Job tell: the agent's report, how far it is, and why one does not start.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use quorate_backup::snapshot::{PATH, PORT, Progress, Report};
use quorate_etcd::plain_http;

/// The report of the pod that ended last; a complete one before any other.
pub fn report(pods: &[Pod]) -> Option<Report> {
    let mut found: Vec<_> = pods.iter().filter_map(|pod| Some((pod.creation_timestamp(), of_pod(pod)?))).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    let complete = found.iter().position(|(_, report)| matches!(report, Report::Complete(_)));
    match complete {
        Some(place) => Some(found.swap_remove(place).1),
        None => found.pop().map(|(_, report)| report),
    }
}

fn of_pod(pod: &Pod) -> Option<Report> {
    let state = container(pod)?.state.as_ref()?.terminated.as_ref()?;
    serde_json::from_str(state.message.as_deref()?).ok()
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

/// Asks the pod that runs how far it is. What it says decides nothing, so who does not answer is not waited for.
pub async fn progress(pods: &[Pod]) -> Option<Progress> {
    let runs = |pod: &&Pod| container(pod).and_then(|own| own.state.as_ref()).is_some_and(|own| own.running.is_some());
    let ip = pods.iter().find(runs)?.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    let answer = plain_http::get(SocketAddr::new(ip, PORT), PATH).await;
    let answer = answer.inspect_err(|error| tracing::trace!(%ip, %error, "a Job's pod does not answer")).ok()?;
    serde_json::from_slice(&answer.status.is_success().then_some(answer.body)?).ok()
}

/// The words with which the pod that ended last ended.
pub fn last_words(pods: &[Pod]) -> Option<String> {
    let ended = pods.iter().filter_map(|pod| {
        let words = container(pod)?.state.as_ref()?.terminated.as_ref()?.message.clone()?;
        Some((pod.creation_timestamp(), words))
    });
    ended.max_by(|one, other| one.0.cmp(&other.0)).map(|(_, words)| words)
}

/// Why the newest pod does not start, or how it ended without a word.
pub fn trouble(pods: &[Pod]) -> Option<String> {
    let newest = pods.iter().max_by_key(|pod| pod.creation_timestamp())?;
    let name = newest.name_any();
    let conditions = newest.status.as_ref()?.conditions.iter().flatten();
    let unscheduled = conditions.clone().find(|one| one.type_ == "PodScheduled" && one.status == "False");
    if let Some(words) = unscheduled.and_then(|one| one.message.as_deref()) {
        return Some(format!("pod {name} finds no node: {words}"));
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
