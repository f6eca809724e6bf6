//! How long the kubelet lets containers wait that have ended again and again, by its own word in the status of their pods:
//! 10 s, twice as long each time, five minutes at most. Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The reason for which such a container waits.
const REASON: &str = "CrashLoopBackOff";

/// The longest back-off of those containers that wait now and had ended by that moment.
pub fn longest<'a>(pods: impl IntoIterator<Item = &'a Pod>, by: Timestamp) -> Duration {
    let statuses = pods.into_iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()).flatten();
    statuses.filter_map(|status| back_off(status, by)).max().unwrap_or_default()
}

fn back_off(status: &ContainerStatus, by: Timestamp) -> Option<Duration> {
    let ended = status.last_state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0;
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    if ended > by || waiting.reason.as_deref() != Some(REASON) {
        return None;
    }
    told(waiting.message.as_deref()?)
}

/// What is told as in `back-off 1m20s restarting failed container=etcd pod=db-0_default(uid)`.
fn told(message: &str) -> Option<Duration> {
    let span = message.strip_prefix("back-off ")?.split(' ').next()?;
    span.parse::<SignedDuration>().ok().map(SignedDuration::unsigned_abs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_kubelet_tells_how_long_it_waits() {
        let told = |span: &str| told(&format!("back-off {span} restarting failed container=etcd pod=db-0_a(b)"));
        let seconds =
            ["10s", "40s", "1m20s", "2m40s", "5m0s", "soon"].map(|span| told(span).map(|span| span.as_secs()));
        assert_eq!(seconds, [Some(10), Some(40), Some(80), Some(160), Some(300), None]);
    }

    #[test]
    fn who_waits_for_the_kubelet_and_ended_while_faults_were_made_counts() {
        let over: Timestamp = "2026-01-01T00:03:00Z".parse().unwrap();
        let pod = |ended: &str, reason: &str| -> Pod {
            let message = "back-off 1m20s restarting failed container=etcd pod=db-0_a(b)";
            let status = json!({
                "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 5,
                "state": { "waiting": { "reason": reason, "message": message } },
                "lastState": { "terminated": { "exitCode": 137, "finishedAt": ended } },
            });
            serde_json::from_value(json!({ "metadata": {}, "status": { "containerStatuses": [status] } })).unwrap()
        };
        let [killed, later] = ["2026-01-01T00:02:59Z", "2026-01-01T00:03:01Z"];
        let waits = |pods: &[Pod]| longest(pods, over).as_secs();
        assert_eq!(waits(&[Pod::default(), pod(killed, REASON)]), 80);
        assert_eq!(waits(&[pod(later, REASON), pod(killed, "ContainerCreating"), Pod::default()]), 0);
    }
}
