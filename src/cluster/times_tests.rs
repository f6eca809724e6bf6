//! Tests of the times that are taken and of what is counted on the way, as the metrics show it: a cluster's first Running,
//! a fault until it is mended, calls and steps. No etcd runs here: what its members would say is made up.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_statemachine::{Phase, Serial, Sight, plan};
use serde_json::{Value, json};
use tokio::time::advance;

use super::Driver;
use super::act::Acted;
use super::memo::Memo;
use super::observe::Observed;
use super::report::{fixture, status};
use super::tests::{CLUSTER, driver, object, rounds, watched};
use crate::fake_api::FakeApi;
use crate::lease::Claim;

/// How long ago the cluster was created.
const AGE: SignedDuration = SignedDuration::from_secs(90);

fn api() -> FakeApi {
    let api = FakeApi::default();
    let mut object = object();
    object["metadata"]["creationTimestamp"] = json!((Timestamp::now() - AGE).to_string());
    api.put(CLUSTER, object);
    api
}

/// The end of a round that saw this, and had nothing to do.
async fn sees(driver: &Driver, memo: &mut Memo, api: &FakeApi, mut observed: Observed) -> Phase {
    observed.cluster = watched(api);
    let plan = plan(&observed.world);
    let mut status = status(&observed, &plan, Timestamp::now());
    let cluster = observed.cluster.clone();
    let acted =
        Acted { cluster, status_written: false, done: Vec::new(), renewed: Vec::new(), stop: None, refused: None };
    driver.report(memo, &observed, &plan, &mut status, &acted).await.unwrap();
    plan.phase
}

fn one_waits() -> Observed {
    fixture::sighted(&[(Serial(2), Sight::Waiting(None))], true)
}

fn two_wait() -> Observed {
    fixture::sighted(&[(Serial(1), Sight::Waiting(None)), (Serial(2), Sight::Waiting(None))], false)
}

/// What a line of the metrics shows.
fn value(driver: &Driver, name: &str) -> String {
    let text = driver.metrics.render().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {text}")).to_owned()
}

/// How many faults were mended, and how long that took in all, in seconds.
fn heals(driver: &Driver) -> [String; 2] {
    ["count", "sum"].map(|what| value(driver, &format!("quorate_heal_duration_seconds_{what}")))
}

fn bootstraps(driver: &Driver) -> String {
    value(driver, "quorate_bootstrap_duration_seconds_count")
}

#[tokio::test]
async fn a_bootstrap_is_timed_from_the_creation_to_the_first_running_and_once() {
    let api = api();
    let first = driver(&api, Claim::forever());
    Box::pin(rounds(&first, &api)).await.unwrap();
    let mut memo = Memo::new(&watched(&api));
    assert_eq!(bootstraps(&first), "0", "its members have only been made");
    assert_eq!(Box::pin(sees(&first, &mut memo, &api, fixture::healthy())).await, Phase::Running);
    assert_eq!(bootstraps(&first), "1");
    let sum: f64 = value(&first, "quorate_bootstrap_duration_seconds_sum").parse().unwrap();
    assert!((90.0..100.0).contains(&sum), "{sum}");
    assert_eq!(value(&first, r#"quorate_bootstrap_duration_seconds_bucket{le="60.0"}"#), "0");
    assert_eq!(value(&first, r#"quorate_bootstrap_duration_seconds_bucket{le="180.0"}"#), "1");
    Box::pin(sees(&first, &mut memo, &api, fixture::healthy())).await;
    assert_eq!(bootstraps(&first), "1", "it has run before");
    let next = driver(&api, Claim::forever());
    let mut memo = Memo::new(&watched(&api));
    Box::pin(sees(&next, &mut memo, &api, fixture::healthy())).await;
    assert_eq!(bootstraps(&next), "0", "the status says that it has run before");
    assert_eq!(heals(&next), ["0", "0.0"]);
}

/// As if all that the conditions say had been so since the creation.
fn is_as_created(api: &FakeApi) {
    let mut object = api.object(CLUSTER);
    let created = object["metadata"]["creationTimestamp"].clone();
    for condition in object["status"]["conditions"].as_array_mut().unwrap() {
        condition["lastTransitionTime"].clone_from(&created);
    }
    api.put(CLUSTER, object);
}

#[tokio::test]
async fn a_bootstrap_is_counted_also_by_an_operator_that_was_started_in_the_midst_of_it() {
    let api = api();
    let first = driver(&api, Claim::forever());
    Box::pin(rounds(&first, &api)).await.unwrap();
    let mut memo = Memo::new(&watched(&api));
    Box::pin(sees(&first, &mut memo, &api, one_waits())).await;
    is_as_created(&api);
    assert_ne!(api.object(CLUSTER)["status"]["clusterId"], Value::Null, "the seed serves by now");
    let second = driver(&api, Claim::forever());
    let mut memo = Memo::new(&watched(&api));
    Box::pin(sees(&second, &mut memo, &api, one_waits())).await;
    Box::pin(sees(&second, &mut memo, &api, fixture::healthy())).await;
    assert_eq!((bootstraps(&first).as_str(), bootstraps(&second).as_str()), ("0", "1"));
    let sum: f64 = value(&second, "quorate_bootstrap_duration_seconds_sum").parse().unwrap();
    assert!((90.0..100.0).contains(&sum), "{sum}");
    assert_eq!(heals(&second), ["0", "0.0"], "what is late in a bootstrap is no fault");
}

#[tokio::test]
async fn a_cluster_that_was_ready_once_is_no_bootstrap_to_the_next_operator_whatever_ails_it() {
    let api = api();
    let first = driver(&api, Claim::forever());
    Box::pin(rounds(&first, &api)).await.unwrap();
    is_as_created(&api);
    let mut memo = Memo::new(&watched(&api));
    Box::pin(sees(&first, &mut memo, &api, fixture::healthy())).await;
    Box::pin(sees(&first, &mut memo, &api, one_waits())).await;
    let mut object = api.object(CLUSTER);
    object["status"]["phase"] = json!("Growing");
    api.put(CLUSTER, object);
    let second = driver(&api, Claim::forever());
    let mut memo = Memo::new(&watched(&api));
    assert_eq!(Box::pin(sees(&second, &mut memo, &api, fixture::healthy())).await, Phase::Running);
    assert_eq!((bootstraps(&first).as_str(), bootstraps(&second).as_str()), ("1", "0"));
    assert_eq!(heals(&second), ["0", "0.0"], "the first one saw the fault, and took the time with it");
}

#[tokio::test(start_paused = true)]
async fn a_fault_is_timed_from_when_it_was_seen_until_running_and_once() {
    let api = api();
    let driver = driver(&api, Claim::forever());
    let mut memo = Memo::new(&watched(&api));
    Box::pin(sees(&driver, &mut memo, &api, fixture::healthy())).await;
    advance(Duration::from_mins(5)).await;
    assert_eq!(Box::pin(sees(&driver, &mut memo, &api, one_waits())).await, Phase::Healing);
    advance(Duration::from_secs(4)).await;
    // It gets worse: that is the same trouble still.
    Box::pin(sees(&driver, &mut memo, &api, two_wait())).await;
    Box::pin(sees(&driver, &mut memo, &api, one_waits())).await;
    advance(Duration::from_secs(3)).await;
    assert_eq!(heals(&driver), ["0", "0.0"], "it is not mended yet");
    assert_eq!(Box::pin(sees(&driver, &mut memo, &api, fixture::healthy())).await, Phase::Running);
    assert_eq!(heals(&driver), ["1", "7.0"]);
    assert_eq!(value(&driver, r#"quorate_heal_duration_seconds_bucket{le="5.0"}"#), "0");
    assert_eq!(value(&driver, r#"quorate_heal_duration_seconds_bucket{le="10.0"}"#), "1");
    advance(Duration::from_mins(5)).await;
    Box::pin(sees(&driver, &mut memo, &api, fixture::healthy())).await;
    assert_eq!(heals(&driver), ["1", "7.0"]);
    assert_eq!(value(&driver, r#"quorate_clusters{phase="Running"}"#), "1");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_late_in_a_bootstrap_is_no_fault() {
    let api = api();
    let driver = driver(&api, Claim::forever());
    let mut memo = Memo::new(&watched(&api));
    Box::pin(sees(&driver, &mut memo, &api, one_waits())).await;
    advance(Duration::from_secs(4)).await;
    Box::pin(sees(&driver, &mut memo, &api, fixture::healthy())).await;
    assert_eq!((&heals(&driver)[0][..], &bootstraps(&driver)[..]), ("0", "1"));
}

#[tokio::test]
async fn rounds_steps_and_calls_are_counted() {
    let api = api();
    let driver = driver(&api, Claim::forever());
    driver.round(watched(&api)).await.unwrap();
    Box::pin(rounds(&driver, &api)).await.unwrap();
    let written = api.written();
    let made = |what: &str| written.iter().filter(|line| line.starts_with(what)).count();
    for (kind, what) in [("Pod", "POST pods"), ("PersistentVolumeClaim", "POST persistentvolumeclaims")] {
        let calls =
            format!(r#"quorate_api_calls_total{{service="kubernetes",verb="create",kind="{kind}",outcome="ok"}}"#);
        assert_eq!(made(what), 3, "{written:?}");
        assert_eq!(value(&driver, &calls), "3");
    }
    assert_eq!(value(&driver, r#"quorate_actions_total{action="CreatePod"}"#), "3");
    assert_eq!(value(&driver, r#"quorate_reconciles_total{outcome="ok"}"#), "1");
    let took: f64 = value(&driver, "quorate_reconcile_duration_seconds_sum").parse().unwrap();
    assert!(took > 0.0 && took < 60.0, "{took}");
}
