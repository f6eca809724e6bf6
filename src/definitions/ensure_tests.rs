//! Tests of the operator's definitions against an API server in this process: what is made and brought up to date, what
//! is waited for, and which words tell what is in the way.

use http::StatusCode;
use tokio::time::{Instant, sleep};

use super::*;
use crate::fake_api::{FakeApi, Fault};

const CLUSTERS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/etcdclusters.quorate.dev";
const BACKUPS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/etcdbackups.quorate.dev";
const PAUSED: &str = "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.paused";
const MOMENT: Duration = ESTABLISH_INTERVAL.saturating_mul(2);

/// What Kubernetes says of a definition, in the end.
fn is_established(api: &FakeApi, path: &str, truth: &str) {
    let mut live = api.object(path);
    live["status"] = serde_json::json!({ "conditions": [{ "type": "Established", "status": truth }] });
    api.put(path, live);
}

/// As this operator knows it, and served.
fn there(api: &FakeApi, path: &str, definition: CustomResourceDefinition) {
    api.put(path, serde_json::to_value(definition).unwrap());
    is_established(api, path, "True");
}

/// As an operator of before `spec.paused` left it, and served.
fn outdated(api: &FakeApi) {
    there(api, CLUSTERS, manifest::cluster());
    there(api, BACKUPS, manifest::backup());
    let mut older = api.object(CLUSTERS);
    let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    older.pointer_mut(fields).unwrap().as_object_mut().unwrap().remove("paused").unwrap();
    api.put(CLUSTERS, older);
}

fn lacks(api: &FakeApi, path: &str, wished: CustomResourceDefinition) -> BTreeSet<String> {
    lacking(&api.object(path), &serde_json::to_value(wished).unwrap())
}

/// Why it fails, with its causes, and after how long.
async fn failure(api: &FakeApi) -> (Error, String, Duration) {
    let begun = Instant::now();
    let error = ensure(&api.client()).await.unwrap_err();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    let words = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    (error, words, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_made_and_waited_for_until_it_is_served() {
    let api = FakeApi::default();
    let client = api.client();
    let ensured = tokio::spawn(async move { ensure(&client).await });
    sleep(MOMENT).await;
    is_established(&api, CLUSTERS, "False");
    sleep(ESTABLISH_DEADLINE / 2).await;
    assert_eq!(api.written(), ["PATCH customresourcedefinitions etcdclusters.quorate.dev"]);
    is_established(&api, CLUSTERS, "True");
    sleep(ESTABLISH_DEADLINE / 2).await;
    assert_eq!(api.written()[1..], ["PATCH customresourcedefinitions etcdbackups.quorate.dev"]);
    assert!(!ensured.is_finished(), "that the other one is served says nothing of this");
    is_established(&api, BACKUPS, "True");
    sleep(MOMENT).await;
    assert!(ensured.is_finished());
    ensured.await.unwrap().unwrap();
    assert!(lacks(&api, CLUSTERS, manifest::cluster()).is_empty());
    assert!(lacks(&api, BACKUPS, manifest::backup()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_of_a_later_operator_is_left_as_it_is() {
    for (version, stays) in [("99.0.0", true), (QUORATE_VERSION, false), ("0.0.1", false), ("new", false)] {
        let api = FakeApi::default();
        outdated(&api);
        there(&api, CLUSTERS, manifest::cluster());
        let mut live = api.object(CLUSTERS);
        let rules = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations";
        live.pointer_mut(rules).unwrap().as_array_mut().unwrap().push(serde_json::json!({ "rule": "true" }));
        live["metadata"]["annotations"][ANNOTATION_QUORATE] = version.into();
        api.put(CLUSTERS, live.clone());
        ensure(&api.client()).await.unwrap();
        assert_eq!(api.object(CLUSTERS)["spec"] == live["spec"], stays, "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_a_later_operator_that_lacks_a_field_is_not_worked_with() {
    let api = FakeApi::default();
    outdated(&api);
    let mut live = api.object(CLUSTERS);
    live["metadata"]["annotations"][ANNOTATION_QUORATE] = "99.0.0".into();
    api.put(CLUSTERS, live);
    let (error, words, _) = failure(&api).await;
    assert!(matches!(&error, Error::TooNew { field, .. } if field == PAUSED) && !error.may_pass(), "{words}");
    assert!(words.contains("it is of Quorate 99.0.0 and lacks"), "{words}");
    assert!(api.written().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_older_definition_is_brought_up_to_date_and_one_that_is_not_is_left_alone() {
    let api = FakeApi::default();
    outdated(&api);
    assert!(lacks(&api, CLUSTERS, manifest::cluster()).iter().all(|path| path.starts_with(PAUSED)));
    ensure(&api.client()).await.unwrap();
    assert_eq!(api.written(), ["PATCH customresourcedefinitions etcdclusters.quorate.dev"]);
    assert!(lacks(&api, CLUSTERS, manifest::cluster()).is_empty());
    ensure(&api.client()).await.unwrap();
    assert_eq!(api.written().len(), 1, "nothing is due any more");
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_change_them_what_is_good_enough_will_do() {
    let api = FakeApi::default();
    outdated(&api);
    ensure(&api.client()).await.unwrap();
    let mut newer = api.object(CLUSTERS);
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["more"] =
        serde_json::json!({ "type": "string" });
    api.put(CLUSTERS, newer);
    for calls in ["PATCH", "POST"] {
        api.disturb(calls, Fault::Refuse(StatusCode::FORBIDDEN));
    }
    ensure(&api.client()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_make_them_the_one_that_is_missing_is_named() {
    let api = FakeApi::default();
    api.disturb("PATCH", Fault::Refuse(StatusCode::FORBIDDEN));
    let (error, words, _) = failure(&api).await;
    assert!(matches!(error, Error::Missing(_)), "{error:?}");
    let told = |name: &str| {
        format!("failed to find the definition {name}, and it may not be created: install deploy/base/crds")
    };
    assert_eq!(words, told("etcdclusters.quorate.dev"));
    there(&api, CLUSTERS, manifest::cluster());
    assert_eq!(failure(&api).await.1, told("etcdbackups.quorate.dev"));
    assert_eq!(api.written(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_change_them_the_field_that_is_lacking_is_named() {
    let api = FakeApi::default();
    outdated(&api);
    api.disturb("PATCH", Fault::Refuse(StatusCode::FORBIDDEN));
    let (error, words, _) = failure(&api).await;
    assert!(matches!(error, Error::Outdated { .. }), "{error:?}");
    let told = "failed to use the definition etcdclusters.quorate.dev: it lacks";
    assert_eq!(words, format!("{told} {PAUSED}, and it may not be changed: install deploy/base/crds"));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_says_nothing_is_waited_for_so_long_and_no_longer() {
    for (calls, verb) in [("GET", "read"), ("PATCH", "apply")] {
        let api = FakeApi::default();
        api.disturb(calls, Fault::Lose);
        let (error, words, after) = failure(&api).await;
        assert!(matches!(error, Error::Deadline(_)), "{error:?}");
        assert_eq!(words, format!("failed to {verb} a definition: no answer in time"));
        assert_eq!(after.as_secs(), DEADLINE.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_fails_is_told_with_its_words() {
    for (calls, verb) in [("GET", "read"), ("PATCH", "apply")] {
        let api = FakeApi::default();
        api.disturb(calls, Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR));
        let (error, words, _) = failure(&api).await;
        assert!(matches!(error, Error::Kube(..)), "{error:?}");
        assert!(words.starts_with(&format!("failed to {verb} a definition: ")), "{words}");
        assert!(words.contains("InternalServerError"), "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_or_only_just_back_does_not_end_the_start() {
    for fault in [
        Fault::Lose,
        Fault::Refuse(StatusCode::UNAUTHORIZED),
        Fault::Refuse(StatusCode::FORBIDDEN),
        Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let api = FakeApi::default();
        outdated(&api);
        api.disturb("GET", fault);
        let client = api.client();
        let (hinder, hindrance) = watch::channel(None);
        let ensured = tokio::spawn(async move { ensure_in_the_end(&client, &hinder).await });
        sleep(Duration::from_mins(2)).await;
        assert!(!ensured.is_finished(), "{fault:?}");
        assert!(hindrance.borrow().as_deref().is_some_and(|why| why.contains("read a definition")), "{hindrance:?}");
        api.mend();
        sleep(DEADLINE + AGAIN_LONGEST * 3).await;
        assert!(ensured.is_finished(), "{fault:?}");
        ensured.await.unwrap().unwrap();
        assert_eq!(*hindrance.borrow(), None);
        assert!(lacks(&api, CLUSTERS, manifest::cluster()).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn what_only_somebody_else_can_mend_ends_the_start() {
    let api = FakeApi::default();
    api.disturb("PATCH", Fault::Refuse(StatusCode::FORBIDDEN));
    let (hinder, _hindrance) = watch::channel(None);
    let error = ensure_in_the_end(&api.client(), &hinder).await.unwrap_err();
    assert!(matches!(error, Error::Missing(_)), "{error:?}");
    outdated(&api);
    let error = ensure_in_the_end(&api.client(), &hinder).await.unwrap_err();
    assert!(matches!(error, Error::Outdated { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_is_never_served_is_waited_for_so_long_and_no_longer() {
    let api = FakeApi::default();
    let (error, words, after) = failure(&api).await;
    assert!(matches!(error, Error::NotServed(_)), "{error:?}");
    assert_eq!(
        (words.as_str(), after.as_secs()),
        ("failed to see the definition etcdclusters.quorate.dev served", ESTABLISH_DEADLINE.as_secs())
    );
}
