//! What an API server gets to see of an EtcdBackup that is deleted with what it stands for, and what it may answer.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use quorate_crds::EtcdBackup;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::controller::{Driver, round};
use super::controller_tests::{BACKUP, JOB, JOB_CREATION, driver, look, put_pod, served};
use super::delete::PATIENCE;
use super::fixture::{complete, pod};
use crate::fake_api::{FakeApi, Fault};
use crate::lease::Claim;

const DELETION: &str = "/apis/batch/v1/namespaces/ns/jobs/nightly-delete";
/// Longer than any call may take.
const A_WHILE: Duration = Duration::from_secs(30);

/// As an API server shows it once somebody has deleted it.
fn delete(api: &FakeApi) {
    let mut object = api.object(BACKUP);
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.put(BACKUP, object);
}

fn finalizers(api: &FakeApi) -> Value {
    api.object(BACKUP)["metadata"]["finalizers"].clone()
}

fn set_policy(api: &FakeApi, policy: &str) {
    let mut object = api.object(BACKUP);
    object["spec"]["deletionPolicy"] = json!(policy);
    api.put(BACKUP, object);
}

#[tokio::test]
async fn the_finalizer_is_there_before_anything_is_in_the_store_and_goes_when_nothing_is() {
    let api = FakeApi::default();
    served(&api);
    set_policy(&api, "Delete");
    let driver = driver(&api, Claim::forever());
    look(&api, &driver).await;
    assert_eq!(finalizers(&api), json!(["quorate.dev/backup"]));
    assert_eq!(api.written(), ["PATCH etcdbackups nightly", "POST jobs nightly", "PUT etcdbackups nightly status"]);
    // Deleted in the middle: its Job ends first.
    delete(&api);
    look(&api, &driver).await;
    assert_eq!(api.written().len(), 3);
    put_pod(&api, JOB, pod(1, &complete().to_string(), 0));
    look(&api, &driver).await;
    api.remove("/api/v1/namespaces/ns/pods/nightly-1");
    look(&api, &driver).await;
    look(&api, &driver).await;
    let written = ["PUT etcdbackups nightly status", "POST jobs nightly-delete", "PUT etcdbackups nightly status"];
    assert_eq!(api.written()[3..], written);
    let mut job = api.object(DELETION);
    job["status"] = json!({ "conditions": [{ "type": "Complete", "status": "True" }] });
    api.put(DELETION, job);
    look(&api, &driver).await;
    // Whoever watches sees what became of it.
    assert_eq!(api.written()[6..], ["PUT etcdbackups nightly status", "PATCH etcdbackups nightly"]);
    assert_eq!(api.object(BACKUP)["status"]["conditions"][0]["reason"], "BackupDeleted");
    assert_eq!(finalizers(&api), json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_kubernetes_fails_to_create_does_not_hold_the_object_for_ever() {
    for (fault, words) in [
        (Fault::Refuse(StatusCode::FORBIDDEN), "Forbidden."),
        (Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR), "InternalServerError."),
        (Fault::Lose, "No answer within 5s."),
    ] {
        let api = FakeApi::default();
        served(&api);
        set_policy(&api, "Delete");
        let driver = driver(&api, Claim::forever());
        look(&api, &driver).await;
        put_pod(&api, JOB, pod(1, &complete().to_string(), 0));
        look(&api, &driver).await;
        delete(&api);
        api.disturb(JOB_CREATION, fault);
        look(&api, &driver).await;
        let mut waiting = api.object(BACKUP);
        let [ready, reconciling, _] = waiting["status"]["conditions"].as_array_mut().unwrap().as_mut_slice() else {
            panic!("Ready, Reconciling and Stalled")
        };
        assert_eq!(ready["reason"], "BackupDeleting");
        assert!(ready["message"].as_str().unwrap().contains(words), "{ready}");
        assert_eq!(finalizers(&api), json!(["quorate.dev/backup"]));
        reconciling["lastTransitionTime"] = json!((Timestamp::now() - PATIENCE).to_string());
        api.put(BACKUP, waiting);
        look(&api, &driver).await;
        let ready = &api.object(BACKUP)["status"]["conditions"][0];
        assert_eq!(ready["reason"], "BackupLeft");
        assert!(ready["message"].as_str().unwrap().ends_with(words), "{ready}");
        assert_eq!(finalizers(&api), json!([]));
    }
}

#[tokio::test]
async fn a_change_of_mind_counts_also_when_the_object_is_being_deleted() {
    let api = FakeApi::default();
    served(&api);
    let driver = driver(&api, Claim::forever());
    look(&api, &driver).await;
    assert_eq!(finalizers(&api), Value::Null);
    set_policy(&api, "Delete");
    look(&api, &driver).await;
    assert_eq!(finalizers(&api), json!(["quorate.dev/backup"]));
    // While its Job runs, which would be waited for.
    delete(&api);
    set_policy(&api, "Retain");
    look(&api, &driver).await;
    assert_eq!(finalizers(&api), json!([]));
}

/// An object that is being deleted, and whose Job has deleted the backup.
async fn deleted(api: &FakeApi, driver: &Arc<Driver>) {
    served(api);
    set_policy(api, "Delete");
    look(api, driver).await;
    put_pod(api, JOB, pod(1, &complete().to_string(), 0));
    look(api, driver).await;
    delete(api);
    look(api, driver).await;
    let mut job = api.object(DELETION);
    job["status"] = json!({ "conditions": [{ "type": "Complete", "status": "True" }] });
    api.put(DELETION, job);
}

#[tokio::test(start_paused = true)]
async fn its_end_is_told_once_and_not_before_the_finalizer_is_off() {
    let api = FakeApi::default();
    let driver = driver(&api, Claim::forever());
    deleted(&api, &driver).await;
    api.disturb("PATCH", Fault::Refuse(StatusCode::CONFLICT));
    for _ in 0..3 {
        look(&api, &driver).await;
        sleep(A_WHILE).await;
    }
    assert_eq!((finalizers(&api), api.events()), (json!(["quorate.dev/backup"]), vec![]));
    api.mend();
    look(&api, &driver).await;
    sleep(A_WHILE).await;
    assert_eq!((finalizers(&api), api.events()), (json!([]), vec!["BackupDeleted".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn its_end_is_told_also_where_the_answer_is_lost_that_the_finalizer_is_off() {
    let api = FakeApi::default();
    let driver = driver(&api, Claim::forever());
    deleted(&api, &driver).await;
    api.disturb("PATCH", Fault::Lag { there: Duration::ZERO, back: A_WHILE });
    let seen: EtcdBackup = serde_json::from_value(api.object(BACKUP)).unwrap();
    assert!(round(Arc::new(seen), driver).await.is_err());
    sleep(A_WHILE).await;
    assert_eq!((finalizers(&api), api.events()), (json!([]), vec!["BackupDeleted".to_owned()]));
}

/// As if it had been waited for long already.
fn let_time_pass(api: &FakeApi) {
    let mut object = api.object(BACKUP);
    let reconciling = &mut object["status"]["conditions"][1];
    assert_eq!((&reconciling["type"], &reconciling["status"]), (&json!("Reconciling"), &json!("True")));
    reconciling["lastTransitionTime"] = json!((Timestamp::now() - PATIENCE).to_string());
    api.put(BACKUP, object);
}

/// Reason and message of Ready.
fn told(api: &FakeApi) -> (String, String) {
    let ready = &api.object(BACKUP)["status"]["conditions"][0];
    ["reason", "message"].map(|field| ready[field].as_str().unwrap().to_owned()).into()
}

#[tokio::test(start_paused = true)]
async fn what_kubernetes_does_not_show_any_more_does_not_hold_the_object_for_ever() {
    for ends_before in [true, false] {
        let api = FakeApi::default();
        served(&api);
        set_policy(&api, "Delete");
        let driver = driver(&api, Claim::forever());
        look(&api, &driver).await;
        if ends_before {
            put_pod(&api, JOB, pod(1, &complete().to_string(), 0));
            look(&api, &driver).await;
            // The definition of EtcdClusters is gone.
            api.disturb("/etcdclusters", Fault::Refuse(StatusCode::NOT_FOUND));
        } else {
            api.disturb("GET /apis/batch/", Fault::Refuse(StatusCode::FORBIDDEN));
        }
        delete(&api);
        look(&api, &driver).await;
        let (reason, words) = told(&api);
        assert!(reason == "BackupDeleting" && words.contains("It can't be seen"), "{reason}: {words}");
        assert_eq!(finalizers(&api), json!(["quorate.dev/backup"]));
        let waiting = api.object(BACKUP);
        look(&api, &driver).await;
        assert_eq!(api.object(BACKUP), waiting, "nothing has changed");
        let_time_pass(&api);
        look(&api, &driver).await;
        let (reason, words) = told(&api);
        assert!(reason == "BackupLeft" && words.contains("s3://bucket/etcd"), "{reason}: {words}");
        assert_eq!((finalizers(&api), api.names("/apis/batch/v1/namespaces/ns/jobs").len()), (json!([]), 1));
    }
}
