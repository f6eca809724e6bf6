//! Tests of what the driver does about certificates, against an API server in this process: what is issued, in which
//! order, what is renewed, and what keeps a cluster from being begun.

use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use quorate_crds::EtcdClusterStatus;
use serde_json::{Value, json};

use super::Driver;
use super::observe::pods::AnyPod;
use super::pki::Wallet;
use super::tests::{CLUSTER, driver, first_glance, object, rounds, watched};
use crate::fake_api::{FakeApi, Fault};
use crate::lease::Claim;

const SECRETS: &str = "/api/v1/namespaces/ns/secrets";
const PODS: &str = "/api/v1/namespaces/ns/pods";

/// An operator that has just been started looks at a cluster for some rounds.
async fn looks(api: &FakeApi) -> bool {
    Box::pin(rounds(&driver(api, Claim::forever()), api)).await.is_ok()
}

/// A cluster that has its Secrets and its pods.
async fn begun() -> FakeApi {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    assert!(looks(&api).await);
    api
}

/// As if a watch had brought the pods.
fn shows_pods(driver: &Driver, api: &FakeApi) {
    for name in api.names(PODS) {
        let pod: Pod = serde_json::from_value(api.object(&format!("{PODS}/{name}"))).unwrap();
        driver.observer.watched.pods.take(Event::Apply(pod), AnyPod::of);
    }
}

/// What of Secrets was written after so many writes.
fn written_to_secrets(api: &FakeApi, after: usize) -> Vec<String> {
    api.written().into_iter().skip(after).filter(|line| line.contains(" secrets ")).collect()
}

fn spec(change: Value) -> Value {
    let mut object = object();
    object["spec"]["tls"] = change;
    object
}

fn condition(api: &FakeApi, kind: &str) -> (String, String, String) {
    let status: EtcdClusterStatus = watched(api).status.clone().unwrap_or_default();
    let condition = status.conditions.into_iter().find(|condition| condition.type_ == kind).unwrap();
    (condition.status, condition.reason, condition.message)
}

#[tokio::test]
async fn what_kubernetes_does_not_show_is_told_once_and_until_it_does() {
    let api = begun().await;
    let driver = driver(&api, Claim::forever());
    let before = (condition(&api, "Available"), api.written().len());
    api.disturb(&format!("GET {SECRETS}"), Fault::Refuse(StatusCode::FORBIDDEN));
    for _ in 0..3 {
        assert!(driver.round(watched(&api)).await.is_err());
    }
    let (status, reason, message) = condition(&api, "Stalled");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "ObjectRefused"), "{message}");
    assert!(message.contains("failed to list") && message.contains("Forbidden"), "{message}");
    assert_eq!(condition(&api, "Available"), before.0, "nobody knows better");
    let written = api.written().split_off(before.1);
    assert_eq!(written, ["PUT etcdclusters db status"], "once, and nothing else");
    assert!(driver.metrics.render().unwrap().contains("quorate_clusters_stalled 1"));
    api.mend();
    driver.round(watched(&api)).await.unwrap();
    assert_eq!(condition(&api, "Stalled").0, "False");
}

#[tokio::test]
async fn a_pod_is_made_after_its_secret_and_that_after_the_authorities() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    assert!(looks(&api).await);
    assert_eq!(api.names(SECRETS), ["db-0", "db-1", "db-2", "db-client", "db-client-ca", "db-peer-ca"]);
    let written = api.written();
    let made = |what: &str| written.iter().position(|line| line == what).unwrap_or(usize::MAX);
    for serial in 0..3 {
        let (secret, pod) = (made(&format!("POST secrets db-{serial}")), made(&format!("POST pods db-{serial}")));
        assert!(secret < pod && pod < usize::MAX, "{written:?}");
        assert!(made("POST secrets db-peer-ca") < secret && made("POST secrets db-client-ca") < secret, "{written:?}");
    }
    for name in api.names(SECRETS) {
        let owner = &api.object(&format!("{SECRETS}/{name}"))["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], api.object(CLUSTER)["metadata"]["uid"], "{name} goes when the cluster goes");
    }
    assert_eq!(condition(&api, "CertificatesValid").0, "True");
}

#[tokio::test]
async fn in_plain_text_there_are_no_secrets() {
    let api = FakeApi::default();
    api.put(CLUSTER, spec(json!({ "mode": "Disabled" })));
    assert!(looks(&api).await);
    assert_eq!(api.names(SECRETS), [""; 0]);
    let (truth, reason, _) = condition(&api, "CertificatesValid");
    assert_eq!((truth.as_str(), reason.as_str()), ("True", "TlsDisabled"));
}

#[tokio::test]
async fn a_renewal_exchanges_the_certificates_and_keeps_keys_and_authorities() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    assert!(looks(&api).await);
    let data = |name: &str, key: &str| api.object(&format!("{SECRETS}/{name}"))["data"][key].clone();
    let keys = || [("db-0", "peer.key"), ("db-0", "server.key"), ("db-client", "tls.key"), ("db-peer-ca", "tls.crt")];
    let certificates = || [("db-0", "peer.crt"), ("db-1", "server.crt"), ("db-client", "tls.crt")];
    let before = (keys().map(|(n, k)| data(n, k)), certificates().map(|(n, k)| data(n, k)));
    // They last too long for what is wished for now, as after half their time they would not last long enough.
    let mut shorter = api.object(CLUSTER);
    shorter["spec"]["tls"] = json!({ "lifetimeMinutes": 60 });
    api.put(CLUSTER, shorter);
    let writes = api.written().len();
    assert!(looks(&api).await);
    let written = api.written()[writes..].to_vec();
    for name in ["db-0", "db-1", "db-2", "db-client"] {
        assert!(written.contains(&format!("PATCH secrets {name}")), "{written:?}");
    }
    assert!(!written.iter().any(|line| line.contains("pods") || line.contains("-ca")), "{written:?}");
    assert_eq!(keys().map(|(n, k)| data(n, k)), before.0);
    for (new, old) in certificates().map(|(n, k)| data(n, k)).iter().zip(&before.1) {
        assert_ne!(new, old);
    }
    let writes = api.written().len();
    assert!(looks(&api).await);
    assert!(!api.written()[writes..].iter().any(|line| line.contains("secrets")), "once");
}

#[tokio::test]
async fn a_deleted_or_damaged_secret_of_a_member_is_put_right() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    assert!(looks(&api).await);
    api.remove(&format!("{SECRETS}/db-1"));
    let path = format!("{SECRETS}/db-2");
    let mut damaged = api.object(&path);
    damaged["data"]["peer.crt"] = damaged["data"]["server.crt"].clone();
    api.put(&path, damaged.clone());
    assert!(looks(&api).await);
    assert!(api.names(SECRETS).contains(&"db-1".to_owned()));
    assert_ne!(api.object(&path)["data"]["peer.crt"], damaged["data"]["peer.crt"]);
}

#[tokio::test]
async fn a_lost_authority_is_told_and_never_replaced_by_itself() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    assert!(looks(&api).await);
    let path = format!("{SECRETS}/db-peer-ca");
    let authority = api.object(&path);
    api.remove(&path);
    let writes = api.written().len();
    looks(&api).await;
    assert!(!api.written()[writes..].iter().any(|line| line.contains("secrets")), "{:?}", api.written());
    let (truth, reason, message) = condition(&api, "CertificatesValid");
    assert_eq!((truth.as_str(), reason.as_str()), ("False", "AuthorityLost"));
    assert!(message.contains("db-peer-ca") && message.contains("docs/tls.md"), "{message}");
    api.put(&path, authority);
    assert!(looks(&api).await);
    assert_eq!(condition(&api, "CertificatesValid").0, "True");
}

#[tokio::test]
async fn a_secret_of_somebody_else_in_our_place_is_left_alone_and_named() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    let path = format!("{SECRETS}/db-peer-ca");
    let theirs = json!({ "metadata": { "name": "db-peer-ca" }, "data": { "x": "eA==" } });
    api.put(&path, theirs);
    let before = api.object(&path);
    assert!(!looks(&api).await && !looks(&api).await);
    assert_eq!(api.object(&path), before);
    let (truth, reason, message) = condition(&api, "Stalled");
    assert_eq!((truth.as_str(), reason.as_str()), ("True", "NameTaken"));
    assert!(message.contains("db-peer-ca"), "{message}");
}

#[tokio::test]
async fn an_authority_that_was_exchanged_is_told_and_signs_nothing() {
    let elsewhere = begun().await;
    for name in ["db-peer-ca", "db-client-ca"] {
        let api = begun().await;
        let path = format!("{SECRETS}/{name}");
        let authority = api.object(&path);
        let mut exchanged = authority.clone();
        exchanged["data"] = elsewhere.object(&path)["data"].clone();
        api.put(&path, exchanged);
        let writes = api.written().len();
        looks(&api).await;
        assert_eq!(written_to_secrets(&api, writes), [""; 0], "{name}");
        let (truth, reason, message) = condition(&api, "CertificatesValid");
        assert_eq!((truth.as_str(), reason.as_str()), ("False", "AuthorityLost"), "{name}");
        for words in [name, "another authority", "Restore it"] {
            assert!(message.contains(words), "{message}");
        }
        api.put(&path, authority);
        assert!(looks(&api).await, "{name}");
        assert_eq!(condition(&api, "CertificatesValid").0, "True", "{name}");
    }
}

#[tokio::test]
async fn under_members_with_pods_no_authority_is_made_though_all_secrets_are_gone() {
    let api = begun().await;
    for name in api.names(SECRETS) {
        api.remove(&format!("{SECRETS}/{name}"));
    }
    // Whether or not a watch has shown the pods.
    for shown in [false, true] {
        let driver = driver(&api, Claim::forever());
        if shown {
            shows_pods(&driver, &api);
        }
        assert!(Box::pin(rounds(&driver, &api)).await.is_err(), "the members' Secrets can't be issued");
        assert_eq!(api.names(SECRETS), [""; 0]);
        let told = driver.metrics.render().unwrap();
        assert!(told.contains("quorate_clusters_certificates_invalid 1"), "{told}");
        let (truth, reason, message) = condition(&api, "Stalled");
        assert_eq!((truth.as_str(), reason.as_str()), ("True", "AuthorityLost"), "{message}");
    }
    let (truth, reason, _) = condition(&api, "CertificatesValid");
    assert_eq!((truth.as_str(), reason.as_str()), ("False", "AuthorityLost"));
    for name in api.names(PODS) {
        api.remove(&format!("{PODS}/{name}"));
    }
    assert!(looks(&api).await);
    assert_eq!(api.names(SECRETS), ["db-0", "db-1", "db-2", "db-client", "db-client-ca", "db-peer-ca"]);
    assert_eq!(api.names(PODS), ["db-0", "db-1", "db-2"]);
    assert_eq!(condition(&api, "CertificatesValid").0, "True");
}

#[tokio::test]
async fn a_secret_that_lost_its_labels_is_given_them_back_and_is_left_as_it_is() {
    for name in ["db-1", "db-client", "db-client-ca"] {
        let api = begun().await;
        let path = format!("{SECRETS}/{name}");
        let before = api.object(&path);
        let mut bare = before.clone();
        bare["metadata"].as_object_mut().unwrap().remove("labels");
        api.put(&path, bare);
        let writes = api.written().len();
        assert!(looks(&api).await, "{name}");
        assert_eq!(written_to_secrets(&api, writes), [format!("PATCH secrets {name}")]);
        let after = api.object(&path);
        assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"], "{name}");
        assert_eq!(after["data"], before["data"], "{name}");
        assert_eq!(condition(&api, "CertificatesValid").0, "True", "{name}");
    }
}

#[tokio::test]
async fn a_secret_of_somebody_else_in_one_place_holds_up_the_renewal_of_no_other() {
    let api = begun().await;
    let path = format!("{SECRETS}/db-client");
    api.put(&path, json!({ "metadata": { "name": "db-client" }, "data": { "x": "eA==" } }));
    let before = api.object(&path);
    let mut shorter = api.object(CLUSTER);
    shorter["spec"]["tls"] = json!({ "lifetimeMinutes": 60 });
    api.put(CLUSTER, shorter);
    let writes = api.written().len();
    assert!(!looks(&api).await, "it is still told");
    let renewed = ["db-0", "db-1", "db-2"].map(|name| format!("PATCH secrets {name}"));
    assert_eq!(written_to_secrets(&api, writes), renewed);
    assert_eq!(api.object(&path), before);
    let (truth, reason, message) = condition(&api, "Stalled");
    assert_eq!((truth.as_str(), reason.as_str()), ("True", "NameTaken"));
    assert!(message.contains("db-client"), "{message}");
}

#[tokio::test]
async fn certificates_are_renewed_also_while_somebody_else_has_the_name_of_the_service_that_members_need() {
    let api = begun().await;
    api.put("/api/v1/namespaces/ns/services/db", json!({ "metadata": { "name": "db" } }));
    let mut shorter = api.object(CLUSTER);
    shorter["spec"]["tls"] = json!({ "lifetimeMinutes": 60 });
    api.put(CLUSTER, shorter);
    let writes = api.written().len();
    assert!(!looks(&api).await, "it is still told");
    let renewed = ["db-client", "db-0", "db-1", "db-2"].map(|name| format!("PATCH secrets {name}"));
    assert_eq!(written_to_secrets(&api, writes), renewed);
    assert_eq!(condition(&api, "Stalled").1, "NameTaken");
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_told_also_where_a_surprise_ends_the_steps() {
    let api = begun().await;
    api.put(&format!("{SECRETS}/db-client"), json!({ "metadata": { "name": "db-client" } }));
    api.remove(&format!("{PODS}/db-1"));
    api.disturb(&format!("POST {PODS}"), Fault::Refuse(StatusCode::CONFLICT));
    for _ in 0..2 {
        assert!(!looks(&api).await);
    }
    let (truth, _, message) = condition(&api, "Stalled");
    assert!(truth == "True" && message.contains("db-client"), "{message}");
}

#[tokio::test]
async fn a_cluster_is_not_begun_with_secrets_that_can_not_be_used() {
    let api = FakeApi::default();
    let named = json!({ "peer": { "name": "a" }, "server": { "name": "b" }, "client": { "name": "c" } });
    api.put(CLUSTER, spec(json!({ "mode": "Secrets", "secrets": named })));
    assert!(!looks(&api).await);
    assert!(!api.written().iter().any(|line| line.contains("pods")), "{:?}", api.written());
    for kind in ["Stalled", "CertificatesValid"] {
        let (_, reason, message) = condition(&api, kind);
        assert_eq!(reason, "CertificatesFaulty");
        for told in ["Secret a: it does not exist", "Secret b:", "Secret c:"] {
            assert!(message.contains(told), "{message}");
        }
    }
}

/// They may have come with the very change that is acted on, and no watch tells of them.
#[tokio::test]
async fn the_users_own_secrets_are_read_again_for_a_plan_that_weighs() {
    let named = json!({ "peer": { "name": "a" }, "server": { "name": "b" }, "client": { "name": "c" } });
    for (tls, is_read) in [(json!({ "mode": "Secrets", "secrets": named }), true), (json!({ "mode": "Issued" }), false)]
    {
        let api = FakeApi::default();
        api.put(CLUSTER, spec(tls));
        let (driver, wallet) = (driver(&api, Claim::forever()), Wallet::default());
        let glanced = first_glance(&driver, &api, &wallet).await;
        api.disturb("secrets", Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR));
        let stared = Box::pin(driver.observer.stare(&glanced, &wallet)).await;
        assert_eq!(stared.is_err(), is_read);
    }
}
