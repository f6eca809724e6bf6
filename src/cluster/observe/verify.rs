//! Finds out what came of the Jobs that prove the continuous backup. Seldom: it decides nothing, and is reported. What can't
//! be read stays unknown.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use quorate_backup::care::{Proved, Report};
use quorate_crds::{EtcdCluster, names};

use super::facts::to_seconds;
use crate::api::{Error, Kube};
use crate::jobs;

/// The shortest time between two looks.
const EVERY: Duration = Duration::from_secs(20);

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proofs {
    /// When it was looked for.
    asked: Option<Instant>,
    /// The attempt that ended last, if the status does not tell of it yet.
    pub newest: Option<Attempt>,
}

/// An attempt to prove the backup that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// When.
    pub ended: Timestamp,
    /// What was restored, or why nothing was.
    pub result: Result<Proved, String>,
}

/// Looks for those of a cluster that is to have them, or gives what was found a moment ago.
pub async fn look(kube: &Kube, cluster: &EtcdCluster, earlier: &Proofs) -> Proofs {
    if cluster.spec.backup.as_ref().is_none_or(|backup| backup.verify.is_none()) {
        return Proofs::default();
    }
    if earlier.asked.is_some_and(|asked| asked.elapsed() < EVERY) {
        return earlier.clone();
    }
    let newest = newest(kube, cluster).await.unwrap_or_else(|error| {
        tracing::debug!(cluster = cluster.name_any(), %error, "failed to look for proofs of the backup");
        earlier.newest.clone()
    });
    Proofs { asked: Some(Instant::now()), newest }
}

async fn newest(kube: &Kube, cluster: &EtcdCluster) -> Result<Option<Attempt>, Error> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let all = kube.list::<Job>(&namespace, &format!("{}={name}", names::LABEL_VERIFY)).await?;
    let Some((ended, job, end)) = all.iter().filter_map(ended).max_by_key(|(ended, ..)| *ended) else {
        return Ok(None);
    };
    let told = cluster.status.as_ref().and_then(|status| status.backup.as_ref()?.last_verified.as_ref()?.time.as_ref());
    if told.is_some_and(|told| told.0 >= ended) {
        return Ok(None);
    }
    let pods = jobs::pods(kube, job).await?;
    Ok(Some(Attempt { ended, result: result(end, &pods) }))
}

/// When and how a Job has ended, if it has.
fn ended(job: &Job) -> Option<(Timestamp, &Job, &JobCondition)> {
    let (_, condition) = jobs::end(job)?;
    Some((to_seconds(condition.last_transition_time.as_ref()?.0), job, condition))
}

/// What its pods say.
fn result(end: &JobCondition, pods: &[Pod]) -> Result<Proved, String> {
    match jobs::report(pods, |report| matches!(report, Report::Proved(_))) {
        Some(Report::Proved(proved)) => Ok(proved),
        Some(Report::Failed { message }) => Err(message),
        // Ended by others: evicted, out of memory, out of time.
        None => {
            let of_job = || end.message.clone().or_else(|| end.reason.clone());
            Err(jobs::trouble(pods).or_else(of_job).unwrap_or_else(|| "its Job says nothing".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(name: &str, condition: &Value) -> Job {
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "conditions": [condition] } }))
            .unwrap()
    }

    fn condition(kind: &str, at: &str) -> Value {
        json!({ "type": kind, "status": "True", "lastTransitionTime": at, "message": "of the Job" })
    }

    fn terminated(state: &Value) -> Pod {
        let container =
            json!({ "name": "agent", "image": "x", "imageID": "x", "ready": false, "restartCount": 0, "state": state });
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "status": { "containerStatuses": [container] } }))
            .unwrap()
    }

    #[test]
    fn the_agents_words_are_told_and_without_them_those_of_whoever_ended_it() {
        let failed = job("x", &condition("Failed", "2026-01-01T03:31:00Z"));
        let of = |pods: &[Pod]| result(ended(&failed).unwrap().2, pods);
        let words =
            |words: &Value| terminated(&json!({ "terminated": { "exitCode": 1, "message": words.to_string() } }));
        let proved = json!({ "outcome": "proved", "generation": "a/b/c", "revision": 41, "entries": 7, "eventsApplied": 2,
            "databaseBytes": 100, "seconds": 0.5 });
        assert_eq!(of(&[words(&proved)]).unwrap().revision, 41);
        let damaged = json!({ "outcome": "failed", "message": "a/b/c/full is damaged" });
        assert_eq!(of(&[words(&damaged)]).unwrap_err(), "a/b/c/full is damaged");
        let killed = terminated(&json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } }));
        assert!(of(&[killed]).unwrap_err().ends_with("OOMKilled"));
        assert_eq!(of(&[]).unwrap_err(), "of the Job");
    }
}
