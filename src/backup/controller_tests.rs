//! What an API server gets to see of an EtcdBackup from its creation to its end, and what it may answer.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use quorate_crds::{BackupPhase, EtcdBackup, EtcdBackupStatus, TlsMode};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::controller::{Driver, round, run};
use super::fixture::{backup, cluster, complete, failed, pod, spec};
use super::tests::told;
use crate::api::Kube;
use crate::events::Teller;
use crate::fake_api::{FakeApi, Fault};
use crate::lease::Claim;
use crate::metrics::Metrics;
use crate::writes::Writes;

pub const BACKUP: &str = "/apis/quorate.dev/v1alpha1/namespaces/ns/etcdbackups/nightly";
pub const CLUSTER: &str = "/apis/quorate.dev/v1alpha1/namespaces/ns/etcdclusters/db";
pub const JOB: &str = "/apis/batch/v1/namespaces/ns/jobs/nightly";
/// What creates Jobs, as a bad line knows it.
pub const JOB_CREATION: &str = "POST /apis/batch/";

/// A pod that this Job has made.
pub fn put_pod(api: &FakeApi, job: &str, mut pod: Value) {
    let uid = &api.object(job)["metadata"]["uid"];
    pod["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "nightly", "uid": uid, "controller": true }]);
    api.put("/api/v1/namespaces/ns/pods/nightly-1", pod);
}

#[tokio::test]
async fn what_an_earlier_backup_of_that_name_left_is_not_taken_for_its_own() {
    let api = FakeApi::default();
    served(&api);
    let driver = driver(&api, Claim::forever());
    look(&api, &driver).await;
    put_pod(&api, JOB, pod(1, &complete().to_string(), 0));
    // Deleted and created again, before Kubernetes has collected what the first one owned.
    let mut again = api.object(BACKUP);
    (again["metadata"]["uid"], again["status"]) = (json!("another"), Value::Null);
    api.put(BACKUP, again);
    look(&api, &driver).await;
    assert_eq!(api.object(BACKUP)["status"]["conditions"][0]["reason"], "NameTaken");
    // The Job goes before its pods.
    api.remove(JOB);
    look(&api, &driver).await;
    look(&api, &driver).await;
    assert_eq!(api.object(BACKUP)["status"]["phase"], "Running");
    put_pod(&api, JOB, pod(2, &complete().to_string(), 0));
    look(&api, &driver).await;
    assert_eq!(api.object(BACKUP)["status"]["phase"], "Complete");
}

pub fn driver(api: &FakeApi, claim: Claim) -> Arc<Driver> {
    let (_, stopping) = watch::channel(false);
    let teller = Teller::new(api.client(), "test");
    let metrics = Arc::new(Metrics::new());
    let kube = Kube::new(api.client(), metrics.clone(), Writes::new(claim, stopping, None));
    Arc::new(Driver { kube, teller, metrics, agent_image: "agent:1".into() })
}

pub fn served(api: &FakeApi) {
    let mut asked = serde_json::to_value(backup(spec())).unwrap();
    // Its time must not be over by the real clock.
    asked["metadata"]["creationTimestamp"] = json!(Timestamp::now().to_string());
    api.put(BACKUP, asked);
    api.put(CLUSTER, serde_json::to_value(cluster(TlsMode::Issued, "True")).unwrap());
    api.put("/api/v1/namespaces/ns/secrets/s3", json!({ "metadata": { "name": "s3" } }));
}

pub async fn look(api: &FakeApi, driver: &Arc<Driver>) {
    let seen: EtcdBackup = serde_json::from_value(api.object(BACKUP)).unwrap();
    round(Arc::new(seen), driver.clone()).await.unwrap();
}

#[tokio::test]
async fn from_its_creation_to_its_end() {
    let api = FakeApi::default();
    served(&api);
    let driver = driver(&api, Claim::forever());
    look(&api, &driver).await;
    assert_eq!(api.written(), ["POST jobs nightly", "PUT etcdbackups nightly status"]);
    look(&api, &driver).await;
    assert_eq!(api.written().len(), 2, "nothing has changed");
    put_pod(&api, JOB, pod(1, &complete().to_string(), 0));
    look(&api, &driver).await;
    look(&api, &driver).await;
    assert_eq!(api.written().len(), 3);
    let status = &api.object(BACKUP)["status"];
    assert_eq!((&status["phase"], &status["revision"]), (&json!("Complete"), &json!(1234)));
    assert_eq!(api.object(JOB)["spec"]["backoffLimit"], 4);
    let counted = driver.metrics.render().unwrap();
    assert!(counted.contains("quorate_backups_total{outcome=\"complete\"} 1"), "{counted}");
}

#[tokio::test]
async fn one_whose_time_is_over_stays_while_a_cluster_is_to_begin_with_it() {
    let (api, restored) = (FakeApi::default(), CLUSTER.replace("/db", "/restored"));
    served(&api);
    let driver = driver(&api, Claim::forever());
    look(&api, &driver).await;
    put_pod(&api, JOB, pod(1, &complete().to_string(), 0));
    look(&api, &driver).await;
    let mut ended = api.object(BACKUP);
    assert_eq!(ended["status"]["phase"], "Complete");
    ended["spec"]["ttlMinutes"] = json!(1);
    let long_ago = Timestamp::now() - SignedDuration::from_hours(2);
    ended["status"]["endedAt"] = json!(long_ago.to_string());
    api.put(BACKUP, ended);
    let mut beginning = serde_json::to_value(cluster(TlsMode::Issued, "False")).unwrap();
    beginning["metadata"]["name"] = json!("restored");
    beginning["spec"]["bootstrap"] = json!({ "restore": { "backup": { "name": "nightly" } } });
    api.put(&restored, beginning.clone());
    look(&api, &driver).await;
    let backups = BACKUP.trim_end_matches("/nightly");
    assert_eq!(api.names(backups), ["nightly"], "the cluster has not begun");
    beginning["status"]["ledger"] = json!({ "seeded": true, "nextSerial": 1 });
    api.put(&restored, beginning);
    look(&api, &driver).await;
    assert!(api.names(backups).is_empty(), "nobody needs it any more");
}

fn status(api: &FakeApi) -> EtcdBackupStatus {
    serde_json::from_value(api.object(BACKUP)["status"].clone()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_job_that_kubernetes_does_not_create_is_told_about_and_not_waited_for_for_ever() {
    for (fault, words) in [
        (Fault::Refuse(StatusCode::FORBIDDEN), "Its Job can't be created. Forbidden."),
        (Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR), "Its Job can't be created. InternalServerError."),
        (Fault::Lose, "Its Job can't be created. No answer within 5s."),
    ] {
        let api = FakeApi::default();
        served(&api);
        let driver = driver(&api, Claim::forever());
        api.disturb(JOB_CREATION, fault);
        look(&api, &driver).await;
        assert_eq!(told(&status(&api)), (Some(BackupPhase::Pending), "ObjectRefused", words));
        let mut waiting = api.object(BACKUP);
        look(&api, &driver).await;
        assert_eq!(api.object(BACKUP), waiting, "nothing has changed");
        api.mend();
        look(&api, &driver).await;
        assert_eq!(status(&api).phase, Some(BackupPhase::Running));
        // The same, until the time is over.
        api.remove(JOB);
        let long_ago = Timestamp::now() - SignedDuration::from_mins(61);
        waiting["metadata"]["creationTimestamp"] = json!(long_ago.to_string());
        api.put(BACKUP, waiting);
        api.disturb(JOB_CREATION, fault);
        look(&api, &driver).await;
        let given_up = format!("{words} It was given up after spec.timeoutMinutes (60).");
        assert_eq!(told(&status(&api)), (Some(BackupPhase::Failed), "ObjectRefused", given_up.as_str()));
        let counted = driver.metrics.render().unwrap();
        assert!(counted.contains("quorate_backups_total{outcome=\"failed\"} 1"), "{counted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_created_without_an_answer_is_not_given_up_when_its_time_is_over() {
    let api = FakeApi::default();
    served(&api);
    let driver = driver(&api, Claim::forever());
    let mut old = api.object(BACKUP);
    old["metadata"]["creationTimestamp"] = json!((Timestamp::now() - SignedDuration::from_mins(61)).to_string());
    api.put(BACKUP, old);
    api.disturb(JOB_CREATION, Fault::Lag { there: Duration::from_secs(1), back: Duration::from_secs(10) });
    look(&api, &driver).await;
    assert_eq!(api.object(BACKUP)["status"], json!(null), "nothing is known yet");
    api.mend();
    look(&api, &driver).await;
    assert_eq!(status(&api).phase, Some(BackupPhase::Running));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_turns_up_for_a_backup_that_was_given_up_counts() {
    let api = FakeApi::default();
    served(&api);
    let driver = driver(&api, Claim::forever());
    let mut old = api.object(BACKUP);
    old["metadata"]["creationTimestamp"] = json!((Timestamp::now() - SignedDuration::from_mins(61)).to_string());
    api.put(BACKUP, old);
    let slow = Duration::from_secs(20);
    api.disturb(JOB_CREATION, Fault::Lag { there: slow, back: Duration::ZERO });
    look(&api, &driver).await;
    assert_eq!(status(&api).phase, Some(BackupPhase::Failed));
    let given_up = api.object(BACKUP);
    look(&api, &driver).await;
    assert_eq!(api.object(BACKUP), given_up, "no Job has turned up");
    tokio::time::sleep(slow).await;
    look(&api, &driver).await;
    let late = status(&api);
    assert_eq!((told(&late).0, told(&late).1), (Some(BackupPhase::Running), "SnapshotRunning"));
    assert_eq!(late.ended_at, None, "its time to live begins when it ends");
    put_pod(&api, JOB, pod(1, &complete().to_string(), 0));
    look(&api, &driver).await;
    assert_eq!(status(&api).phase, Some(BackupPhase::Complete));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_turns_up_counts_whatever_the_backup_was_given_up_for_and_ends_it_once() {
    let api = FakeApi::default();
    served(&api);
    let driver = driver(&api, Claim::forever());
    let slow = Duration::from_secs(20);
    api.disturb(JOB_CREATION, Fault::Lag { there: slow, back: Duration::ZERO });
    look(&api, &driver).await;
    assert_eq!(told(&status(&api)).1, "ObjectRefused");
    let mut old = api.object(BACKUP);
    old["metadata"]["creationTimestamp"] = json!((Timestamp::now() - SignedDuration::from_mins(61)).to_string());
    api.put(BACKUP, old);
    api.put(CLUSTER, serde_json::to_value(cluster(TlsMode::Issued, "False")).unwrap());
    look(&api, &driver).await;
    let given_up = status(&api);
    assert_eq!((told(&given_up).0, told(&given_up).1), (Some(BackupPhase::Failed), "NoHealthyMember"));
    tokio::time::sleep(slow).await;
    let mut late = api.object(JOB);
    late["status"] =
        json!({ "conditions": [{ "type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "" }] });
    api.put(JOB, late);
    put_pod(&api, JOB, pod(1, &failed("StoreRefused", "the store refuses the credentials").to_string(), 3));
    look(&api, &driver).await;
    assert_eq!(told(&status(&api)).1, "StoreRefused");
    assert!(status(&api).started_at.is_some());
    let ended = api.object(BACKUP);
    look(&api, &driver).await;
    assert_eq!(api.object(BACKUP), ended, "each look would be another end");
}

#[tokio::test]
async fn an_operator_that_stops_between_job_and_status_goes_on_and_one_without_the_lease_does_nothing() {
    let api = FakeApi::default();
    served(&api);
    look(&api, &driver(&api, Claim::never())).await;
    assert_eq!(api.written(), Vec::<String>::new());
    api.breaks_after(Some(1));
    let seen: EtcdBackup = serde_json::from_value(api.object(BACKUP)).unwrap();
    assert!(round(Arc::new(seen), driver(&api, Claim::forever())).await.is_err());
    api.breaks_after(None);
    look(&api, &driver(&api, Claim::forever())).await;
    assert_eq!(api.written(), ["POST jobs nightly", "PUT etcdbackups nightly status"]);
    assert_eq!(api.object(BACKUP)["status"]["phase"], "Running");
}

#[tokio::test(start_paused = true)]
async fn a_mistake_in_one_backups_round_ends_no_other_and_not_the_operator() {
    let api = FakeApi::default();
    served(&api);
    let mut other = api.object(BACKUP);
    other["metadata"] = json!({ "name": "other", "creationTimestamp": Timestamp::now().to_string() });
    api.put("/apis/quorate.dev/v1alpha1/namespaces/ns/etcdbackups/other", other);
    api.disturb(&format!("GET {JOB}"), Fault::Panic);
    let driver = Arc::into_inner(driver(&api, Claim::forever())).unwrap();
    let metrics = driver.metrics.clone();
    let (stop, stopping) = watch::channel(false);
    let running = tokio::spawn(run(driver, Claim::forever(), Some("ns".into()), stopping));
    let jobs = JOB.trim_end_matches("/nightly");
    // It is tried again, which ends nothing either.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((running.is_finished(), api.names(jobs)), (false, vec!["other".to_owned()]));
    let counted = metrics.render().unwrap();
    assert!(counted.contains("quorate_panics_total ") && !counted.contains("quorate_panics_total 0"), "{counted}");
    api.mend();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(api.names(jobs), ["nightly", "other"]);
    stop.send_replace(true);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_refusal_that_is_shown_is_the_last_one() {
    let api = FakeApi::default();
    served(&api);
    let driver = driver(&api, Claim::forever());
    for (code, words) in [(StatusCode::FORBIDDEN, "Forbidden."), (StatusCode::BAD_REQUEST, "BadRequest.")] {
        api.mend();
        api.disturb(JOB_CREATION, Fault::Refuse(code));
        look(&api, &driver).await;
        let wanted = format!("Its Job can't be created. {words}");
        assert_eq!(told(&status(&api)), (Some(BackupPhase::Pending), "ObjectRefused", wanted.as_str()));
    }
}
