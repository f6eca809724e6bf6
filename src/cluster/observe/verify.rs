//! Finds out what came of the Jobs that prove the continuous backup. Seldom: it decides nothing, and is reported. What can't
//! be read stays unknown.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use quorate_backup::care::{Proved, Report};
use quorate_crds::{EtcdCluster, names};
use serde_json::Value;

use super::facts::to_seconds;
use crate::api::{Error, Kube};
use crate::jobs::{self, End};
use crate::ownership::{Holder, holder};
use crate::telemetry::chain;

/// The shortest time between two looks.
const EVERY: Duration = Duration::from_secs(20);

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proofs {
    /// When it was looked for.
    asked: Option<Instant>,
    /// The attempt that ended last, if the status does not tell of it yet.
    pub newest: Option<Attempt>,
    /// The CronJob of the name that this cluster's would have is somebody else's.
    pub name_taken: bool,
}

/// An attempt to prove the backup that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// When.
    pub ended: Timestamp,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// This was restored.
    Proved(Proved),
    /// Nothing was, for this reason.
    Failed(String),
    /// The Job has ended well, but its pod is gone: what was restored is not known.
    Unread,
}

/// Looks for those of a cluster that is to have them, or gives what was found a moment ago. `own` is its CronJob, if a watch
/// shows it.
pub async fn look(kube: &Kube, cluster: &EtcdCluster, own: Option<&Value>, earlier: &Proofs) -> Proofs {
    if cluster.spec.backup.as_ref().is_none_or(|backup| backup.verify.is_none()) {
        return Proofs::default();
    }
    if earlier.asked.is_some_and(|asked| asked.elapsed() < EVERY) {
        return earlier.clone();
    }
    let asked = Some(Instant::now());
    let found = match own.and_then(|own| own["metadata"]["uid"].as_str()) {
        Some(own) => newest(kube, cluster, own).await.map(|newest| Proofs { asked, newest, name_taken: false }),
        None => schedule_holder(kube, cluster).await.map(|holder| {
            let name_taken = holder == Some(Holder::Stranger);
            Proofs { asked, newest: earlier.newest.clone(), name_taken }
        }),
    };
    found.unwrap_or_else(|error| {
        tracing::debug!(cluster = cluster.name_any(), error = %chain(&error), "failed to look for proofs of the backup");
        Proofs { asked, ..earlier.clone() }
    })
}

/// Who has the CronJob of the name that this cluster's would have, by a quorum read: the watch shows only what carries our
/// label. `None`: there is no such.
pub async fn schedule_holder(kube: &Kube, cluster: &EtcdCluster) -> Result<Option<Holder>, Error> {
    let name = names::verification(&cluster.name_any());
    let found = kube.get::<CronJob>(&cluster.namespace().unwrap_or_default(), &name).await?;
    Ok(found.map(|found| holder(&found, cluster)))
}

/// Of the Jobs that this CronJob made, or that somebody made from it.
async fn newest(kube: &Kube, cluster: &EtcdCluster, own: &str) -> Result<Option<Attempt>, Error> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let all = kube.list::<Job>(&namespace, &format!("{}={name}", names::LABEL_VERIFY)).await?;
    let ours = all.iter().filter(|job| job.owner_references().iter().any(|owner| owner.uid == own));
    let Some((ended, job)) = ours.filter_map(|job| Some((ended(job)?, job))).max_by_key(|(ended, _)| *ended) else {
        return Ok(None);
    };
    let told = cluster.status.as_ref().and_then(|status| status.backup.as_ref()?.last_verified.as_ref()?.time.as_ref());
    if told.is_some_and(|told| told.0 >= ended) {
        return Ok(None);
    }
    let pods = jobs::pods(kube, job).await?;
    Ok(outcome(job, &pods).map(|outcome| Attempt { ended, outcome }))
}

/// When a Job has ended, if it has.
fn ended(job: &Job) -> Option<Timestamp> {
    let (_, condition) = jobs::end(job)?;
    Some(to_seconds(condition.last_transition_time.as_ref()?.0))
}

/// What came of a Job that has ended, by what its pods say.
fn outcome(job: &Job, pods: &[Pod]) -> Option<Outcome> {
    let (end, condition) = jobs::end(job)?;
    let report = jobs::report(pods, |report| matches!(report, Report::Proved(_)));
    Some(match (report, end) {
        (Some(Report::Proved(proved)), _) => Outcome::Proved(proved),
        // What is left is the word of an earlier try.
        (Some(Report::Failed { .. }) | None, End::Complete) => Outcome::Unread,
        (Some(Report::Failed { message }), End::Failed) => Outcome::Failed(message),
        // Ended by others: evicted, out of memory, out of time.
        (None, End::Failed) => {
            let of_job = || condition.message.clone().or_else(|| condition.reason.clone());
            Outcome::Failed(jobs::trouble(pods).or_else(of_job).unwrap_or_else(|| "its Job says nothing".to_owned()))
        }
    })
}

#[cfg(test)]
mod tests {
    use quorate_crds::{BackupStore, BackupVerification, ContinuousBackup};
    use serde_json::json;

    use super::*;
    use crate::cluster::tests::{driver, object};
    use crate::fake_api::FakeApi;
    use crate::lease::Claim;

    fn job(end: &str) -> Job {
        let condition = json!({ "type": end, "status": "True", "lastTransitionTime": "2026-01-01T03:31:00Z",
            "message": "of the Job" });
        serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": [condition] } })).unwrap()
    }

    fn of(end: &str, said: &[Value]) -> Outcome {
        let pod = |said: &Value| {
            let container = json!({ "name": "agent", "image": "x", "imageID": "x", "ready": false, "restartCount": 0,
                "state": { "terminated": said } });
            serde_json::from_value(
                json!({ "metadata": { "name": "p" }, "status": { "containerStatuses": [container] } }),
            )
            .unwrap()
        };
        outcome(&job(end), &said.iter().map(pod).collect::<Vec<_>>()).unwrap()
    }

    fn words(words: &Value) -> Value {
        json!({ "exitCode": 1, "message": words.to_string() })
    }

    fn damaged() -> Value {
        words(&json!({ "outcome": "failed", "message": "a/b/c/full is damaged" }))
    }

    #[test]
    fn the_agents_words_are_told_and_without_them_those_of_whoever_ended_it() {
        let proved = words(&json!({ "outcome": "proved", "generation": "a/b/c", "revision": 41, "entries": 7,
            "eventsApplied": 2, "databaseBytes": 100, "seconds": 0.5 }));
        let Outcome::Proved(proved) = of("Complete", &[damaged(), proved]) else { panic!("it was proved") };
        assert_eq!(proved.revision, 41);
        assert_eq!(of("Failed", &[damaged()]), Outcome::Failed("a/b/c/full is damaged".into()));
        let killed = json!({ "exitCode": 137, "reason": "OOMKilled" });
        let Outcome::Failed(killed) = of("Failed", &[killed]) else { panic!("it was killed") };
        assert!(killed.ends_with("OOMKilled"), "{killed}");
        assert_eq!(of("Failed", &[]), Outcome::Failed("of the Job".into()));
    }

    #[test]
    fn what_has_ended_well_has_not_failed_though_its_words_are_gone() {
        for left in [vec![], vec![damaged()], vec![json!({ "exitCode": 0 })]] {
            assert_eq!(of("Complete", &left), Outcome::Unread);
        }
        assert!(ended(&job("Complete")).is_some() && ended(&job("FailureTarget")).is_none());
    }

    fn proved_by_schedule() -> EtcdCluster {
        let mut cluster: EtcdCluster = serde_json::from_value(object()).unwrap();
        (cluster.metadata.namespace, cluster.metadata.uid) = (Some("ns".into()), Some("us".into()));
        let verify = Some(BackupVerification { schedule: "30 3 * * *".into() });
        cluster.spec.backup = Some(ContinuousBackup { verify, ..ContinuousBackup::to(BackupStore::default()) });
        cluster
    }

    #[tokio::test]
    async fn only_jobs_of_its_own_cron_job_count() {
        let api = FakeApi::default();
        let kube = driver(&api, Claim::forever()).observer.kube;
        let own = json!({ "metadata": { "name": "db-verify", "uid": "own" } });
        for (owner, counts) in [("earlier", false), ("own", true)] {
            let mut made = serde_json::to_value(job("Failed")).unwrap();
            made["metadata"] = json!({ "name": owner, "ownerReferences": [
                { "apiVersion": "batch/v1", "kind": "CronJob", "name": "db-verify", "uid": owner }] });
            api.put(&format!("/apis/batch/v1/namespaces/ns/jobs/{owner}"), made);
            let found = look(&kube, &proved_by_schedule(), Some(&own), &Proofs::default()).await;
            assert_eq!(found.newest.is_some(), counts, "{owner}");
        }
    }

    #[tokio::test]
    async fn a_cron_job_of_somebody_else_is_seen_and_one_of_an_earlier_cluster_is_not_it() {
        let api = FakeApi::default();
        let kube = driver(&api, Claim::forever()).observer.kube;
        let owned_by = |uid: &str| {
            json!([{ "apiVersion": "quorate.dev/v1alpha1", "kind": "EtcdCluster", "name": "db",
            "uid": uid, "controller": true }])
        };
        for (owners, taken) in [(json!([]), true), (owned_by("earlier"), false), (owned_by("us"), false)] {
            let found = json!({ "metadata": { "name": "db-verify", "ownerReferences": owners } });
            api.put("/apis/batch/v1/namespaces/ns/cronjobs/db-verify", found);
            let found = look(&kube, &proved_by_schedule(), None, &Proofs::default()).await;
            assert_eq!(found.name_taken, taken, "{owners}");
        }
    }
}
