//! Tests of calls to Kubernetes: what an answer means, how long one is waited for, what is counted.

use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::*;
use crate::fake_api::{FakeApi, Fault};
use crate::lease::Claim;

/// What the API server has answered.
fn answered(status: serde_json::Value) -> Error {
    let status: kube::core::Status = serde_json::from_value(status).unwrap();
    let cause = Cause::Kube(Box::new(kube::Error::Api(Box::new(status))));
    Error { verb: "patch", kind: "Service".into(), name: "db".into(), cause }
}

#[test]
fn of_a_refusal_no_more_is_told_than_a_condition_takes() {
    let told = |words: &str| {
        let refused = json!({ "code": 403, "reason": "Forbidden", "message": words });
        answered(refused).told_refusal().unwrap()
    };
    assert_eq!(told("no"), "failed to patch Service db: no");
    let long = told(&"denied ".repeat(10_000));
    assert!(long.len() < 3000 && long.ends_with("..."), "{long}");
}

#[test]
fn that_an_object_is_another_one_by_now_is_a_surprise_and_no_refusal() {
    let invalid = |field: &str| {
        let cause = json!({ "reason": "FieldValueInvalid", "message": "field is immutable", "field": field });
        answered(json!({ "code": 422, "reason": "Invalid", "details": { "causes": [cause] } }))
    };
    let kinds = |error: &Error| (error.is_surprise(), error.refusal().is_some(), error.is_not_done_here());
    assert_eq!(kinds(&invalid("metadata.uid")), (true, false, false));
    assert_eq!(kinds(&invalid("spec.clusterIP")), (false, true, true));
    assert_eq!(kinds(&answered(json!({ "code": 409, "reason": "Conflict" }))), (true, false, false));
}

#[test]
fn what_a_webhook_that_failed_was_to_be_asked_about_is_not_stored() {
    let failed = |words: &str| answered(json!({ "code": 500, "reason": "InternalError", "message": words }));
    let webhook = failed("Internal error occurred: failed calling webhook \"a.b\": no endpoints available");
    assert_eq!((webhook.is_of_a_webhook(), webhook.is_unanswered()), (true, false));
    let storage = failed("Internal error occurred: etcdserver: request timed out");
    assert_eq!((storage.is_of_a_webhook(), storage.is_unanswered()), (false, true));
}

#[test]
fn a_watch_at_which_nothing_happens_ends_before_it_counts_as_silent() {
    assert!(Duration::from_secs(WATCH_SECONDS.into()) < SILENCE);
    assert!(DEADLINE < SILENCE);
}

#[tokio::test]
async fn nothing_was_asked_for_where_no_connection_came_about() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = Client::try_from(Config::new(format!("http://{nobody}").parse().unwrap())).unwrap();
    let (_going_on, stopping) = watch::channel(false);
    let kube = Kube::new(client, Arc::new(Metrics::new()), Writes::new(Claim::forever(), stopping, None));
    let error = kube.get::<ConfigMap>("ns", "m").await.unwrap_err();
    assert!(matches!(&error.cause, Cause::Kube(_)) && !error.is_unanswered(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn each_call_is_counted_by_verb_kind_and_outcome() {
    let (api, metrics, (stop, stopping)) = (FakeApi::default(), Arc::new(Metrics::new()), watch::channel(false));
    let kube = Kube::new(api.client(), metrics.clone(), Writes::new(Claim::forever(), stopping, None));
    let mut map = ConfigMap::default();
    map.metadata.name = Some("m".into());
    kube.create("ns", &map).await.unwrap();
    assert!(kube.create("ns", &map).await.unwrap_err().is_surprise());
    assert!(kube.get::<ConfigMap>("ns", "m").await.unwrap().is_some());
    assert!(kube.get::<ConfigMap>("ns", "none").await.unwrap().is_none());
    assert_eq!(kube.list::<ConfigMap>("ns", "").await.unwrap().len(), 1);
    assert!(!kube.delete::<ConfigMap>("ns", "none", Preconditions::default()).await.unwrap_err().is_unanswered());
    api.disturb("GET", Fault::Refuse(http::StatusCode::INTERNAL_SERVER_ERROR));
    assert!(kube.get::<ConfigMap>("ns", "m").await.unwrap_err().is_unanswered());
    api.mend();
    api.disturb("PATCH", Fault::Lose);
    let begun = tokio::time::Instant::now();
    let lost = kube.merge::<ConfigMap>("ns", "m", &json!({})).await.unwrap_err();
    assert!(matches!(lost.cause, Cause::Deadline(_)) && begun.elapsed().as_secs() == DEADLINE.as_secs());
    assert!(lost.is_unanswered());
    stop.send_replace(true);
    let shut = kube.apply("ns", &map).await.unwrap_err();
    assert!(shut.is_shut() && !shut.is_unanswered());
    let text = metrics.render().unwrap();
    let counted: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("quorate_api_calls_total")).collect();
    let of = |verb: &str, outcome: &str, count: u8| {
        format!(r#"{{service="kubernetes",verb="{verb}",kind="ConfigMap",outcome="{outcome}"}} {count}"#)
    };
    let expected = [
        of("create", "ok", 1),
        of("create", "conflict", 1),
        of("get", "ok", 2),
        of("list", "ok", 1),
        of("delete", "not-found", 1),
        of("get", "error", 1),
        of("patch", "deadline", 1),
        of("apply", "shut", 1),
    ];
    assert!(expected.iter().all(|line| counted.contains(&line.as_str())), "{text}");
    assert_eq!(counted.len(), expected.len(), "{text}");
}

/// It takes connections and never says a word, as an API server whose machine stands still.
#[tokio::test]
async fn a_list_that_nobody_answers_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let accepted = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            held.push(connection);
        }
    });
    let client = client_of(Config::new(url), Duration::from_millis(200)).unwrap();
    let begun = Instant::now();
    let api = Api::<ConfigMap>::all(client);
    let mut events = Box::pin(watcher(api, watcher::Config::default().timeout(WATCH_SECONDS)));
    let ended = timeout(DEADLINE, async {
        while let Some(event) = events.next().await {
            if event.is_err() {
                return true;
            }
        }
        false
    });
    assert_eq!(ended.await, Ok(true));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    accepted.abort();
}
