//! Tests of the driver against an API server in this process: what is written, in which order, and that nothing of it
//! depends on where an operator stops. No etcd runs here: the rounds go as far as members that wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use quorate_crds::{EtcdCluster, EtcdClusterSpec, EtcdClusterStatus};
use quorate_etcd::Pool;
use quorate_statemachine::{LookAgain, Phase, Plan, Step};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::act::{Acted, Actor, Ungrown};
use super::memo::Memo;
use super::observe::archive::Archives;
use super::observe::endpoints::Endpoints;
use super::observe::members::Earlier;
use super::observe::pods::AnyPod;
use super::observe::verify::Proofs;
use super::observe::{Before, Observed, Observer, Watched, facts};
use super::pki::Wallet;
use super::render::Agent;
use super::{Driver, Error};
use crate::api::Kube;
use crate::events::Teller;
use crate::fake_api::{FakeApi, Fault};
use crate::lease::Claim;
use crate::metrics::Metrics;
use crate::writes::Writes;

pub const CLUSTER: &str = "/apis/quorate.dev/v1alpha1/namespaces/ns/etcdclusters/db";
/// Rounds after which a cluster whose pods never start has nothing to do any more.
const ROUNDS: usize = 4;

pub fn object() -> Value {
    let mut object = serde_json::to_value(EtcdCluster::new("db", EtcdClusterSpec::default())).unwrap();
    object["metadata"]["generation"] = json!(1);
    object
}

/// An operator that has just been started: it knows nothing, and its watches have brought nothing.
pub fn driver(api: &FakeApi, claim: Claim) -> Driver {
    let (_, stopping) = watch::channel(false);
    let metrics = Arc::new(Metrics::new());
    let kube = Kube::new(api.client(), metrics.clone(), Writes::new(claim, stopping, None));
    let pool = Arc::new(Pool::default());
    let teller = Teller::new(api.client(), "test");
    let domain: Arc<str> = "cluster.local".into();
    let watched = Arc::new(Watched::default());
    let observer = Observer { kube: kube.clone(), watched, pool: pool.clone(), domain: domain.clone() };
    let agent = Agent { image: "agent:1".into(), ticket_key: None };
    let actor = Actor { kube, pool, metrics: metrics.clone(), agent, courier: None, domain };
    Driver::new(observer, actor, teller, metrics)
}

pub fn watched(api: &FakeApi) -> Arc<EtcdCluster> {
    Arc::new(serde_json::from_value(api.object(CLUSTER)).unwrap())
}

/// Takes one step of a plan, on what was observed.
pub async fn act(api: &FakeApi, observed: &Observed, phase: Phase, step: Step) -> Acted {
    act_with_budget(api, observed, None, phase, step).await
}

/// The same, with a budget that has to be in force before.
pub async fn act_with_budget(
    api: &FakeApi,
    observed: &Observed,
    budget: Option<u8>,
    phase: Phase,
    step: Step,
) -> Acted {
    act_in_order(api, observed, budget, phase, vec![step]).await
}

/// The same with several steps.
pub async fn act_in_order(
    api: &FakeApi,
    observed: &Observed,
    budget: Option<u8>,
    phase: Phase,
    steps: Vec<Step>,
) -> Acted {
    let plan = Plan {
        phase,
        ledger: None,
        steps,
        budget,
        heading: None,
        findings: BTreeMap::new(),
        look_again: LookAgain::Soon,
    };
    let (mut ungrown, wallet) = (Ungrown::default(), Wallet::default());
    let status = EtcdClusterStatus::default();
    driver(api, Claim::forever()).actor.act(observed, &plan, &status, &mut ungrown, &wallet).await
}

/// What an operator sees that has just been started.
pub async fn first_glance(driver: &Driver, api: &FakeApi, wallet: &Wallet) -> Observed {
    let (archives, proofs, endpoints) = (Archives::default(), Proofs::default(), Endpoints::default());
    let before = Before { archives: &archives, proofs: &proofs, endpoints: &endpoints };
    let earlier = Earlier { seen: &BTreeMap::new(), leader: None, stands: false };
    Box::pin(driver.observer.glance(watched(api), earlier, before, wallet)).await.unwrap()
}

pub async fn rounds(driver: &Driver, api: &FakeApi) -> Result<LookAgain, Error> {
    let mut memo = Memo::new(&watched(api));
    let mut look_again = LookAgain::AtOnce;
    for _ in 0..ROUNDS {
        look_again = Box::pin(driver.drive(&mut memo, watched(api))).await?;
    }
    Ok(look_again)
}

#[tokio::test]
async fn finalizer_and_ledger_come_before_anything_is_made() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    let written = api.written();
    assert_eq!(written[..2], ["PATCH etcdclusters db", "PUT etcdclusters db status"], "{written:?}");
    let made = |what: &str| written.iter().position(|line| line == what).unwrap_or(usize::MAX);
    for serial in 0..3 {
        let (claim, pod) = (format!("POST persistentvolumeclaims db-{serial}"), format!("POST pods db-{serial}"));
        assert!(made(&claim) < made(&pod) && made(&pod) < usize::MAX, "{written:?}");
    }
    let pod = api.object("/api/v1/namespaces/ns/pods/db-1");
    let claim = api.object("/api/v1/namespaces/ns/persistentvolumeclaims/db-1");
    let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let volume = variables.iter().find(|variable| variable["name"] == "QUORATE_VOLUME").unwrap();
    assert_eq!(volume["value"], claim["metadata"]["uid"]);
    assert_eq!(api.object(CLUSTER)["status"]["ledger"]["nextSerial"], 3);
}

#[tokio::test]
async fn while_a_kubelet_starts_an_etcd_again_nothing_is_looked_at_or_done() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    let pod = api.object("/api/v1/namespaces/ns/pods/db-1");
    let begins = async |change: &dyn Fn(&mut Value)| {
        let mut pod = pod.clone();
        let ended = json!({ "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "containerd://1", "state": { "terminated": { "exitCode": 137 } } });
        pod["status"] = json!({ "phase": "Running", "containerStatuses": [ended] });
        change(&mut pod);
        let driver = driver(&api, Claim::forever());
        let pod: Pod = serde_json::from_value(pod).unwrap();
        driver.observer.watched.pods.take(Event::Apply(pod), AnyPod::of);
        api.remove("/api/v1/namespaces/ns/pods/db-2");
        let before = api.written().len();
        let mut memo = Memo::new(&watched(&api));
        let look_again = Box::pin(driver.drive(&mut memo, watched(&api))).await.unwrap();
        (look_again, api.written()[before..].contains(&"POST pods db-2".to_owned()))
    };
    assert_eq!(begins(&|_| ()).await, (LookAgain::Soon, false));
    assert!(begins(&|pod| pod["status"]["containerStatuses"][0]["state"] = json!({ "running": {} })).await.1);
    assert!(begins(&|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")).await.1);
    assert!(begins(&|pod| pod["status"]["phase"] = json!("Failed")).await.1, "its kubelet starts nothing in it again");
    assert!(begins(&|pod| pod["metadata"]["ownerReferences"][0]["uid"] = json!("another")).await.1);
}

#[tokio::test]
async fn all_that_is_written_is_written_under_one_name() {
    let api = FakeApi::default();
    let mut wished = object();
    wished["spec"]["backup"] = json!({ "store": { "address": "s3://b" }, "verify": { "schedule": "30 3 * * *" } });
    api.put(CLUSTER, wished);
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    let written = api.written();
    for what in ["POST pods", "POST secrets", "PATCH services", "PATCH cronjobs", "PATCH etcdclusters", "PUT etcd"] {
        assert!(written.iter().any(|line| line.starts_with(what)), "{what} in {written:?}");
    }
    assert_eq!(api.managers().into_iter().collect::<Vec<_>>(), [quorate_crds::names::FIELD_MANAGER]);
}

#[tokio::test]
async fn what_is_there_is_not_made_again_though_no_watch_shows_it() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    let before = api.essence();
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    assert_eq!(api.essence(), before);
    let made = api.written().iter().filter(|line| line.starts_with("POST pods")).count();
    assert_eq!(made, 3);
}

#[tokio::test]
async fn wherever_an_operator_stops_the_next_one_ends_in_the_same_state() {
    let reference = FakeApi::default();
    reference.put(CLUSTER, object());
    rounds(&driver(&reference, Claim::forever()), &reference).await.unwrap();
    let all = reference.written().len();
    assert!(all > 9, "{:?}", reference.written());
    for stopped_after in 0..all {
        let api = FakeApi::default();
        api.put(CLUSTER, object());
        api.breaks_after(Some(stopped_after));
        let first = rounds(&driver(&api, Claim::forever()), &api).await;
        // No step needs the client Service: the round goes on, and here nothing comes after it.
        let next = &reference.written()[stopped_after];
        assert!(first.is_err() || next == "PATCH services db-client", "{stopped_after} of {all}: {next}");
        assert_eq!(api.written().len(), stopped_after);
        api.breaks_after(None);
        rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
        assert_eq!(api.essence(), reference.essence(), "stopped after {stopped_after}: {:?}", api.written());
    }
}

#[tokio::test]
async fn without_the_lease_nothing_is_written() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    let driver = driver(&api, Claim::never());
    assert!(!driver.may_act());
    let mut memo = Memo::new(&watched(&api));
    assert!(driver.drive(&mut memo, watched(&api)).await.is_err());
    assert_eq!(api.written(), Vec::<String>::new());
}

#[tokio::test]
async fn of_a_paused_cluster_only_the_status_is_written_and_once() {
    let api = FakeApi::default();
    let mut paused = object();
    paused["spec"]["paused"] = json!(true);
    api.put(CLUSTER, paused);
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    assert_eq!(api.written(), ["PUT etcdclusters db status"]);
}

/// A cluster that was driven for a while, and whose object was then put back without its status.
async fn restored_without_status() -> FakeApi {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    let mut restored = api.object(CLUSTER);
    restored["status"] = Value::Null;
    api.put(CLUSTER, restored);
    api
}

#[tokio::test]
async fn an_object_without_its_ledger_over_living_volumes_is_left_alone() {
    let api = restored_without_status().await;
    let before = api.written().len();
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    assert_eq!(api.written()[before..], ["PUT etcdclusters db status"]);
    let status = &api.object(CLUSTER)["status"];
    let conditions = status["conditions"].as_array().unwrap();
    let stalled = conditions.iter().find(|condition| condition["type"] == "Stalled").unwrap();
    assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!("LedgerMissing")));
    assert!(status["ledger"].is_null(), "{status}");
}

/// Each look reads all by quorum reads: a thousand such clusters would starve the others.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_only_somebody_else_can_help_is_looked_at_ever_more_seldom() {
    let api = restored_without_status().await;
    let driver = driver(&api, Claim::forever());
    for (passes, least, most) in [(0, 3, 4), (2, 3, 4), (10, 12, 15), (60, 30, 36)] {
        tokio::time::advance(Duration::from_secs(passes)).await;
        let pause = driver.round(watched(&api)).await.unwrap();
        assert!(pause >= Duration::from_secs(least) && pause <= Duration::from_secs(most), "{pause:?}");
    }
    // Something else is found.
    let mut changed = api.object(CLUSTER);
    changed["status"]["ledger"] = json!({ "nextSerial": 3, "members": { "nobody": {} } });
    api.put(CLUSTER, changed);
    assert!(driver.round(watched(&api)).await.unwrap() < Duration::from_secs(4));
}

/// The next round finds the status as it is to be, and nothing that has turned.
#[tokio::test(start_paused = true)]
async fn what_has_turned_is_told_though_the_answer_to_the_status_is_lost() {
    let api = restored_without_status().await;
    let back = Duration::from_secs(30);
    tokio::time::sleep(back).await;
    let before = api.events().len();
    let (driver, mut memo) = (driver(&api, Claim::forever()), Memo::new(&watched(&api)));
    api.disturb("db/status", Fault::Lag { there: Duration::ZERO, back });
    assert!(Box::pin(driver.drive(&mut memo, watched(&api))).await.is_err());
    api.mend();
    assert!(!api.object(CLUSTER)["status"]["conditions"].is_null(), "it was written");
    Box::pin(driver.drive(&mut memo, watched(&api))).await.unwrap();
    tokio::time::sleep(back).await;
    assert_eq!(api.events()[before..], ["LedgerMissing"]);
}

#[tokio::test]
async fn what_kubernetes_refuses_of_what_no_step_needs_is_told_and_stops_nothing() {
    let headless = "PATCH /api/v1/namespaces/ns/services/db?";
    for (refused, goes_on) in [("services/db-client", true), ("cronjobs/db-verify", true), (headless, false)] {
        let api = FakeApi::default();
        let mut wished = object();
        wished["spec"]["backup"] = json!({ "store": { "address": "s3://b" }, "verify": { "schedule": "30 3 * * *" } });
        api.put(CLUSTER, wished);
        api.disturb(refused, Fault::Refuse(StatusCode::FORBIDDEN));
        for _ in 0..2 {
            let done = rounds(&driver(&api, Claim::forever()), &api).await;
            assert_eq!(done.is_ok(), goes_on, "{refused}: {done:?}");
        }
        let pods = api.written().iter().filter(|line| line.starts_with("POST pods")).count();
        assert_eq!(pods, if goes_on { 3 } else { 0 }, "{refused}");
        let conditions = api.object(CLUSTER)["status"]["conditions"].clone();
        let stalled = conditions.as_array().unwrap().iter().find(|condition| condition["type"] == "Stalled").unwrap();
        assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!("ObjectRefused")), "{refused}");
        // The same refusal in the next rounds is not news.
        let before = api.written().len();
        let _ = rounds(&driver(&api, Claim::forever()), &api).await;
        let again = api.written()[before..].iter().filter(|line| line.ends_with("status")).count();
        assert_eq!(again, 0, "{refused}: {:?}", &api.written()[before..]);
    }
}

/// The condition Stalled as it is shown, with its date.
fn stalled(api: &FakeApi) -> Value {
    let conditions = api.object(CLUSTER)["status"]["conditions"].clone();
    conditions.as_array().unwrap().iter().find(|condition| condition["type"] == "Stalled").unwrap().clone()
}

#[tokio::test]
async fn what_is_refused_in_every_round_is_not_taken_back_in_between() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    let headless = "PATCH /api/v1/namespaces/ns/services/db?";
    api.disturb(headless, Fault::Refuse(StatusCode::FORBIDDEN));
    let (driver, mut memo) = (driver(&api, Claim::forever()), Memo::new(&watched(&api)));
    for _ in 0..2 {
        assert!(Box::pin(driver.drive(&mut memo, watched(&api))).await.is_err());
    }
    let told = stalled(&api);
    assert_eq!((&told["status"], &told["reason"]), (&json!("True"), &json!("ObjectRefused")));
    // The ledger is written before it is refused once more.
    let mut larger = api.object(CLUSTER);
    larger["spec"]["replicas"] = json!(5);
    let (serial, before) = (larger["status"]["ledger"]["nextSerial"].clone(), api.written().len());
    api.put(CLUSTER, larger);
    assert!(Box::pin(driver.drive(&mut memo, watched(&api))).await.is_err());
    assert_ne!(api.object(CLUSTER)["status"]["ledger"]["nextSerial"], serial);
    let statuses = api.written()[before..].iter().filter(|line| line.ends_with("status")).count();
    assert_eq!((statuses, stalled(&api)), (1, told.clone()), "{:?}", &api.written()[before..]);
    // Nobody knows whether it would be refused.
    api.mend();
    api.disturb(headless, Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR));
    assert!(Box::pin(driver.drive(&mut memo, watched(&api))).await.is_err());
    assert_eq!(stalled(&api), told);
    let counted = || driver.metrics.render().unwrap();
    assert!(counted().contains("quorate_clusters_stalled 1"), "{}", counted());
    api.mend();
    for _ in 0..ROUNDS {
        Box::pin(driver.drive(&mut memo, watched(&api))).await.unwrap();
    }
    assert_eq!(stalled(&api)["status"], "False");
    assert!(counted().contains("quorate_clusters_stalled 0"), "{}", counted());
}

#[tokio::test]
async fn what_fails_of_what_no_step_needs_stops_nothing_and_is_tried_again() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    api.disturb("services/db-client", Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR));
    let look_again = rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    assert!(look_again <= LookAgain::Later, "{look_again:?}");
    assert_eq!(api.written().iter().filter(|line| line.starts_with("POST pods")).count(), 3);
    api.mend();
    rounds(&driver(&api, Claim::forever()), &api).await.unwrap();
    assert!(api.written().iter().any(|line| line == "PATCH services db-client"), "{:?}", api.written());
}

#[tokio::test]
async fn what_is_known_of_clusters_that_went_unseen_is_forgotten() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    let driver = driver(&api, Claim::forever());
    driver.round(watched(&api)).await.unwrap();
    let shown = |driver: &Driver| driver.metrics.render().unwrap().contains("phase=\"Pending\"} 1");
    let key = super::observe::key(&watched(&api));
    driver.forget_all_but(&[key.clone()].into());
    assert!(driver.memos.has(&key) && shown(&driver), "{}", driver.metrics.render().unwrap());
    driver.forget_all_but(&[].into());
    assert!(!driver.memos.has(&key) && !shown(&driver));
}

#[tokio::test]
async fn what_is_known_of_a_cluster_that_goes_in_the_middle_of_its_round_is_forgotten() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    let driver = driver(&api, Claim::forever());
    let key = super::observe::key(&watched(&api));
    let ways: [&dyn Fn(); 2] = [&|| driver.forget(&key), &|| driver.forget_all_but(&[].into())];
    for goes in ways {
        let round = driver.round(watched(&api));
        tokio::pin!(round);
        assert!(futures::poll!(&mut round).is_pending(), "it asks Kubernetes");
        goes();
        round.await.unwrap();
        assert!(!driver.memos.has(&key));
        assert!(!driver.metrics.render().unwrap().contains("phase=\"Pending\"} 1"));
    }
    driver.round(watched(&api)).await.unwrap();
    assert!(driver.memos.has(&key), "a later one of its name is remembered");
}

#[tokio::test]
async fn of_a_cluster_that_was_let_go_nothing_is_remembered() {
    let api = FakeApi::default();
    let mut deleted = object();
    deleted["metadata"]["finalizers"] = json!([quorate_crds::names::FINALIZER]);
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:25:36Z");
    api.put(CLUSTER, deleted);
    let driver = driver(&api, Claim::forever());
    for _ in 0..ROUNDS {
        driver.round(watched(&api)).await.unwrap();
        if api.written().iter().any(|line| line == "PATCH etcdclusters db") {
            break;
        }
    }
    assert_eq!(watched(&api).metadata.finalizers.clone().unwrap_or_default(), [""; 0], "{:?}", api.written());
    assert!(!driver.memos.has(&super::observe::key(&watched(&api))));
    assert!(!driver.metrics.render().unwrap().contains("phase=\"Deleting\"} 1"));
}

#[tokio::test]
async fn of_a_cluster_that_somebody_else_still_holds_nothing_is_written_again() {
    let api = FakeApi::default();
    let mut deleted = object();
    deleted["metadata"]["finalizers"] = json!([quorate_crds::names::FINALIZER, "example.com/protect"]);
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:25:36Z");
    api.put(CLUSTER, deleted);
    let driver = driver(&api, Claim::forever());
    let is_let_go =
        |api: &FakeApi| watched(api).metadata.finalizers.clone().unwrap_or_default() == ["example.com/protect"];
    for _ in 0..ROUNDS {
        driver.round(watched(&api)).await.unwrap();
    }
    assert!(is_let_go(&api), "{:?}", api.written());
    let before = api.written();
    let pause = driver.round(watched(&api)).await.unwrap();
    assert_eq!(api.written(), before);
    assert!(pause >= Duration::from_secs(30), "{pause:?}");
}

const CRON_JOB: &str = "/apis/batch/v1/namespaces/ns/cronjobs/db-verify";

#[tokio::test]
async fn a_cron_job_that_somebody_else_made_is_left_alone_with_and_without_our_label() {
    for labels in [json!({}), json!({ "quorate.dev/cluster": "db" })] {
        let api = FakeApi::default();
        let mut wished = object();
        wished["spec"]["backup"] = json!({ "store": { "address": "s3://b" }, "verify": { "schedule": "30 3 * * *" } });
        api.put(CLUSTER, wished);
        api.put(
            CRON_JOB,
            json!({ "metadata": { "name": "db-verify", "labels": labels }, "spec": { "schedule": "own" } }),
        );
        let before = api.object(CRON_JOB);
        let driver = driver(&api, Claim::forever());
        let seen: CronJob = serde_json::from_value(json!({ "metadata": before["metadata"] })).unwrap();
        driver.observer.watched.cron_jobs.take(Event::Apply(seen), facts::furniture);
        rounds(&driver, &api).await.unwrap();
        let mut changed = api.object(CLUSTER);
        changed["spec"]["backup"]["verify"] = Value::Null;
        api.put(CLUSTER, changed);
        rounds(&driver, &api).await.unwrap();
        assert_eq!(api.object(CRON_JOB), before);
    }
}

#[tokio::test]
async fn what_proves_the_backup_comes_and_goes_with_the_wish_for_it() {
    let api = FakeApi::default();
    let mut wished = object();
    wished["spec"]["backup"] = json!({ "store": { "address": "s3://b" }, "verify": { "schedule": "30 3 * * *" } });
    api.put(CLUSTER, wished);
    let driver = driver(&api, Claim::forever());
    rounds(&driver, &api).await.unwrap();
    assert_eq!(api.object(CRON_JOB)["spec"]["schedule"], "30 3 * * *");
    let made: CronJob = serde_json::from_value(api.object(CRON_JOB)).unwrap();
    driver.observer.watched.cron_jobs.take(Event::Apply(made), facts::furniture);
    let mut changed = api.object(CLUSTER);
    changed["spec"]["backup"]["verify"] = Value::Null;
    api.put(CLUSTER, changed);
    let before = api.written().len();
    rounds(&driver, &api).await.unwrap();
    assert!(api.written()[before..].contains(&"DELETE cronjobs db-verify".to_owned()), "{:?}", api.written());
}
