//! Tests of names that are taken, against an API server in this process: what somebody else made is left as it is and told,
//! what an earlier cluster left is waited for, and what is ours stays ours though no watch shows it.

use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::runtime::watcher::Event;
use quorate_crds::{Reason, names};
use quorate_statemachine::{Bind, Birth, Memory, NodeName, Phase, Serial, Step};
use serde_json::{Value, json};

use super::furnish_tests::{BUDGET, CLIENT, HEADLESS, cluster, furnishes};
use super::{Acted, Stop, Ungrown};
use crate::cluster::Driver;
use crate::cluster::ledger;
use crate::cluster::memo::Memo;
use crate::cluster::observe::{Observed, facts};
use crate::cluster::pki::Wallet;
use crate::cluster::report::fixture;
use crate::cluster::tests::{CLUSTER, act, driver, object, rounds, watched};
use crate::fake_api::{FakeApi, Fault};
use crate::lease::Claim;

const FURNITURE: [(&str, &str); 3] =
    [("Service db", HEADLESS), ("Service db-client", CLIENT), ("PodDisruptionBudget db", BUDGET)];
const POD: &str = "/api/v1/namespaces/ns/pods/db-1";
const CLAIM: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/db-1";
/// Set by the cloud's controller of Services (`k8s.io/cloud-provider/service/helpers`, `LoadBalancerCleanupFinalizer`).
const LOAD_BALANCER: &str = "service.kubernetes.io/load-balancer-cleanup";
const SERIAL: Serial = Serial(1);

fn name(path: &str) -> &str {
    path.rsplit_once('/').unwrap().1
}

/// Puts an object there that has these labels and this owner.
fn put(api: &FakeApi, path: &str, labels: &Value, owner: Option<&str>) {
    let owner = owner.map(|uid| {
        json!([{ "apiVersion": "quorate.dev/v1alpha1", "kind": "EtcdCluster", "name": "db", "uid": uid,
            "controller": true }])
    });
    let metadata = json!({ "name": name(path), "labels": labels, "ownerReferences": owner });
    api.put(path, json!({ "metadata": metadata, "spec": {} }));
}

fn ours() -> Value {
    json!({ names::LABEL_CLUSTER: "db" })
}

/// What the user is told, of what stops the round or what no step needs.
fn told(acted: &Acted) -> Option<(Reason, String)> {
    match acted.stop.as_ref().or(acted.refused.as_ref()) {
        Some(Stop::Refused(reason, words)) => Some((*reason, words.clone())),
        Some(Stop::Surprise(_) | Stop::Kube(_) | Stop::Etcd(_) | Stop::Render(_) | Stop::Issue(_) | Stop::Shut(_))
        | None => None,
    }
}

fn condition(api: &FakeApi, kind: &str) -> (String, String, String) {
    let status = watched(api).status.clone().unwrap_or_default();
    let found = status.conditions.into_iter().find(|condition| condition.type_ == kind).unwrap();
    (found.status, found.reason, found.message)
}

#[tokio::test]
async fn services_and_budgets_of_somebody_else_are_left_alone_and_named() {
    for (what, path) in FURNITURE {
        for (labels, owner) in [(json!({}), None), (ours(), None), (ours(), Some("other"))] {
            let (api, observed) = cluster();
            put(&api, path, &labels, owner);
            if owner.is_some() {
                let mut other = api.object(path);
                other["metadata"]["ownerReferences"][0]["name"] = json!("other");
                api.put(path, other);
            }
            let before = api.object(path);
            let mut ungrown = Ungrown::default();
            for _ in 0..2 {
                let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut ungrown).await;
                let (reason, words) = told(&acted).unwrap();
                assert!(reason == Reason::NameTaken && words.contains(what), "{reason}: {words}");
                assert_eq!(api.object(path), before);
            }
            api.remove(path);
            let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut ungrown).await;
            assert!(acted.stop.is_none() && acted.refused.is_none(), "{acted:?}");
            assert_eq!(api.object(path)["metadata"]["ownerReferences"][0]["uid"], "uid");
        }
    }
}

/// Labels of ours, and by whom Kubernetes says that it was written, and how.
fn written_by(api: &FakeApi, path: &str, manager: &str, operation: &str) {
    let mut object = api.object(path);
    object["metadata"]["labels"] = json!({ names::LABEL_CLUSTER: "db", names::LABEL_MANAGED_BY: names::MANAGED_BY });
    object["metadata"]["managedFields"] = json!([{ "manager": manager, "operation": operation }]);
    api.put(path, object);
}

#[tokio::test]
async fn services_and_budgets_of_ours_that_lost_their_owner_get_it_back() {
    for (_, path) in FURNITURE {
        let (api, observed) = cluster();
        put(&api, path, &json!({}), None);
        written_by(&api, path, names::FIELD_MANAGER, "Apply");
        let uid = api.object(path)["metadata"]["uid"].clone();
        let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut Ungrown::default()).await;
        assert!(acted.stop.is_none() && acted.refused.is_none(), "{acted:?}");
        let metadata = &api.object(path)["metadata"];
        assert_eq!((&metadata["uid"], &metadata["ownerReferences"][0]["uid"]), (&uid, &json!("uid")));
    }
}

#[tokio::test]
async fn what_was_not_applied_by_us_or_is_anothers_is_not_taken_over() {
    for (what, path) in FURNITURE {
        for (manager, operation, owner, controls) in [
            ("helm", "Apply", None, true),
            (names::FIELD_MANAGER, "Update", None, true),
            (names::FIELD_MANAGER, "Apply", Some("x"), true),
            (names::FIELD_MANAGER, "Apply", Some("x"), false),
        ] {
            let (api, observed) = cluster();
            put(&api, path, &json!({}), owner);
            if owner.is_some() {
                let mut other = api.object(path);
                other["metadata"]["ownerReferences"][0]["name"] = json!("other");
                other["metadata"]["ownerReferences"][0]["controller"] = json!(controls);
                api.put(path, other);
            }
            written_by(&api, path, manager, operation);
            let before = api.object(path);
            let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut Ungrown::default()).await;
            let (reason, words) = told(&acted).unwrap();
            assert!(reason == Reason::NameTaken && words.contains(what), "{reason}: {words}");
            assert_eq!(api.object(path), before);
        }
    }
}

#[tokio::test]
async fn a_claim_or_pod_without_an_owner_is_never_taken_over() {
    let release = fixture::healthy().world.wish.release;
    let pod = Step::CreatePod { serial: SERIAL, bind: Bind::Ephemeral, birth: Birth::Waiting, release };
    for (path, step) in [(CLAIM, Step::CreateClaim(SERIAL)), (POD, pod)] {
        let (api, observed) = cluster();
        put(&api, path, &json!({}), None);
        written_by(&api, path, names::FIELD_MANAGER, "Apply");
        let before = api.object(path);
        let acted = makes(&api, &observed, step).await;
        assert!(acted.stop.is_some() && acted.done.is_empty(), "{acted:?}");
        assert_eq!(api.object(path), before);
    }
}

#[tokio::test]
async fn what_is_left_of_an_earlier_cluster_of_the_name_is_waited_for_and_not_told() {
    for (_, path) in FURNITURE {
        let (api, observed) = cluster();
        put(&api, path, &ours(), Some("earlier"));
        let before = api.object(path);
        let mut ungrown = Ungrown::default();
        let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut ungrown).await;
        let waits = acted.stop.as_ref().or(acted.refused.as_ref()).is_some_and(Stop::is_surprise);
        assert!(waits && told(&acted).is_none(), "{acted:?}");
        assert_eq!(api.object(path), before);
        api.remove(path);
        let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut ungrown).await;
        assert!(acted.stop.is_none() && acted.refused.is_none(), "{acted:?}");
    }
}

/// It is deleted at this time, and held by the cloud's load balancer.
fn is_held(api: &FakeApi, path: &str, since: &str) {
    let mut held = api.object(path);
    held["metadata"]["deletionTimestamp"] = json!(since);
    held["metadata"]["finalizers"] = json!([LOAD_BALANCER]);
    api.put(path, held);
}

#[tokio::test]
async fn what_is_held_while_it_is_deleted_is_told_only_if_it_lasts() {
    for (what, path) in FURNITURE {
        let (api, observed) = cluster();
        put(&api, path, &ours(), Some("earlier"));
        for (since, lasts) in [("2020-01-01T00:00:00Z".to_owned(), true), (Timestamp::now().to_string(), false)] {
            is_held(&api, path, &since);
            let before = api.object(path);
            let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut Ungrown::default()).await;
            let named = told(&acted).is_some_and(|(reason, words)| {
                reason == Reason::NameTaken && words.contains(what) && words.contains(LOAD_BALANCER)
            });
            assert_eq!(named, lasts, "{acted:?}");
            let waits = acted.stop.as_ref().or(acted.refused.as_ref()).is_some_and(Stop::is_surprise);
            assert_eq!((waits, api.object(path)), (!lasts, before));
        }
    }
}

#[tokio::test]
async fn an_earlier_client_service_that_is_held_holds_up_nobody_and_is_in_the_conditions() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    put(&api, CLIENT, &ours(), Some("earlier"));
    is_held(&api, CLIENT, "2020-01-01T00:00:00Z");
    Box::pin(rounds(&driver(&api, Claim::forever()), &api)).await.unwrap();
    let (truth, reason, message) = condition(&api, "Stalled");
    assert_eq!((truth.as_str(), reason.as_str()), ("True", "NameTaken"), "{message}");
    assert!(message.contains("Service db-client") && message.contains(LOAD_BALANCER), "{message}");
    let available = condition(&api, "Available");
    assert!(!available.2.contains("db-client"), "it says nothing of etcd: {available:?}");
    assert_eq!(api.written().iter().filter(|line| line.starts_with("POST pods")).count(), 3);
}

#[tokio::test]
async fn an_object_of_ours_that_lost_its_labels_gets_them_back() {
    for (_, path) in FURNITURE {
        let (api, observed) = cluster();
        put(&api, path, &json!({}), Some("uid"));
        let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut Ungrown::default()).await;
        assert!(acted.stop.is_none() && acted.refused.is_none(), "{acted:?}");
        assert_eq!(api.object(path)["metadata"]["labels"][names::LABEL_CLUSTER], "db");
    }
}

/// Nothing that lists by label shows it, and what was created on it is a member that must not be taken for lost.
#[tokio::test]
async fn a_claim_that_lost_its_label_is_no_lost_volume_and_gets_the_label_back() {
    let (api, mut glanced) = cluster();
    let Memory::Ledger(ledger) = &glanced.world.memory else { panic!("it has one") };
    let mut object = api.object(CLUSTER);
    object["status"] = json!({ "ledger": ledger::write("db", ledger) });
    api.put(CLUSTER, object);
    glanced.cluster = watched(&api);
    let driver = driver(&api, Claim::forever());
    let stares = async |uid: &str| {
        let annotations = json!({ names::ANNOTATION_CLUSTER_UID: "uid" });
        let labels = json!({ names::LABEL_CLUSTER: "other" });
        api.put(
            CLAIM,
            json!({ "metadata": { "name": "db-1", "uid": uid, "annotations": annotations, "labels": labels } }),
        );
        let wallet = Wallet::default();
        let stare = Box::pin(driver.observer.stare(&glanced, &wallet));
        stare.await.unwrap().unwrap()
    };
    let anothers = stares("another-claim").await;
    assert!(!anothers.claims.contains_key(&SERIAL), "the member was not created on it");
    let observed = stares("claim-1").await;
    assert_eq!(observed.claims.keys().collect::<Vec<_>>(), [&SERIAL]);
    assert!(observed.world.seats[&SERIAL].claim.as_ref().is_some_and(|claim| claim.ours && !claim.terminating));
    let acted = furnishes(&driver, &observed, &mut Ungrown::default()).await;
    assert!(acted.stop.is_none() && acted.refused.is_none(), "{acted:?}");
    assert_eq!(api.object(CLAIM)["metadata"]["labels"][names::LABEL_CLUSTER], "db");
    let told = driver.observer.stare(&glanced, &Wallet::default()).await.unwrap().unwrap();
    assert_eq!(told.claims[&SERIAL].label.as_deref(), Some("db"), "now lists show it");
}

/// The watch still shows the one that was ours.
#[tokio::test]
async fn somebody_elses_object_in_place_of_one_of_ours_is_not_taken_for_it() {
    for (_, path) in FURNITURE {
        let (api, mut observed) = cluster();
        put(&api, path, &ours(), Some("uid"));
        let shown = api.object(path);
        let furniture = &mut observed.furniture;
        let shelf = if path == BUDGET { &mut furniture.budgets } else { &mut furniture.services };
        shelf.insert(name(path).to_owned(), shown);
        api.remove(path);
        put(&api, path, &json!({}), None);
        let before = api.object(path);
        let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut Ungrown::default()).await;
        assert!(acted.stop.as_ref().or(acted.refused.as_ref()).is_some_and(Stop::is_surprise), "{acted:?}");
        assert_eq!(api.object(path), before);
    }
}

#[tokio::test]
async fn nobody_asks_whose_is_what_a_watch_shows_as_ours() {
    let api = FakeApi::default();
    let mut plain = object();
    plain["spec"]["tls"] = json!({ "mode": "Disabled" });
    api.put(CLUSTER, plain);
    Box::pin(rounds(&driver(&api, Claim::forever()), &api)).await.unwrap();
    let next = driver(&api, Claim::forever());
    for path in [HEADLESS, CLIENT] {
        let made: Service = serde_json::from_value(api.object(path)).unwrap();
        next.observer.watched.services.take(Event::Apply(made), facts::furniture);
    }
    let before = api.written().len();
    Box::pin(rounds(&next, &api)).await.unwrap();
    let looked = |driver: &Driver| driver.metrics.render().unwrap().contains(r#"verb="list",kind="Service""#);
    assert!(!looked(&next), "{}", next.metrics.render().unwrap());
    assert!(!api.written()[before..].iter().any(|line| line.contains("services")), "{:?}", &api.written()[before..]);
    // Of what carries our label without being ours it is not taken for granted.
    let another = driver(&api, Claim::forever());
    let mut made = api.object(CLIENT);
    made["metadata"]["ownerReferences"] = json!([]);
    let made: Service = serde_json::from_value(made).unwrap();
    another.observer.watched.services.take(Event::Apply(made), facts::furniture);
    Box::pin(rounds(&another, &api)).await.unwrap();
    assert!(looked(&another));
}

#[tokio::test]
async fn a_taken_name_is_in_the_conditions_and_a_taken_client_service_holds_up_nobody() {
    for (what, path, goes_on) in
        [("Service db-client", CLIENT, true), ("Service db", HEADLESS, false), ("Pod db-1", POD, false)]
    {
        let api = FakeApi::default();
        api.put(CLUSTER, object());
        put(&api, path, &json!({}), None);
        let before = api.object(path);
        for _ in 0..3 {
            let done = Box::pin(rounds(&driver(&api, Claim::forever()), &api)).await;
            assert_eq!(done.is_ok(), goes_on, "{what}: {done:?}");
        }
        assert_eq!(api.object(path), before);
        let (truth, reason, message) = condition(&api, "Stalled");
        assert_eq!((truth.as_str(), reason.as_str()), ("True", "NameTaken"), "{message}");
        assert!(message.contains(what), "{message}");
        api.remove(path);
        Box::pin(rounds(&driver(&api, Claim::forever()), &api)).await.unwrap();
        assert_eq!(condition(&api, "Stalled").0, "False");
        assert_eq!(api.written().iter().filter(|line| line.starts_with("POST pods")).count(), 3);
    }
}

/// Else it would be stored, and told once more, only by the next round.
#[tokio::test]
async fn a_taken_name_is_stored_in_the_very_round_that_writes_the_ledger() {
    for (what, path) in [("Service db-client", CLIENT), ("Service db", HEADLESS)] {
        let api = FakeApi::default();
        api.put(CLUSTER, object());
        put(&api, path, &json!({}), None);
        let driver = driver(&api, Claim::forever());
        let _ = Box::pin(driver.drive(&mut Memo::new(&watched(&api)), watched(&api))).await;
        let stored = api.written().iter().filter(|line| *line == "PUT etcdclusters db status").count();
        assert_eq!(stored, 2, "with the ledger, and after it: {:?}", api.written());
        assert!(!api.object(CLUSTER)["status"]["ledger"].is_null());
        let (truth, reason, message) = condition(&api, "Stalled");
        assert_eq!((truth.as_str(), reason.as_str()), ("True", "NameTaken"), "{message}");
        assert!(message.contains(what), "{message}");
    }
}

/// Else it would be told anew after each round that ends so.
#[tokio::test]
async fn a_taken_client_service_is_told_also_where_a_surprise_ends_the_round() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    put(&api, CLIENT, &json!({}), None);
    api.disturb("POST /api/v1/namespaces/ns/pods", Fault::Refuse(StatusCode::CONFLICT));
    for _ in 0..3 {
        Box::pin(rounds(&driver(&api, Claim::forever()), &api)).await.unwrap();
    }
    let (truth, reason, message) = condition(&api, "Stalled");
    assert_eq!((truth.as_str(), reason.as_str()), ("True", "NameTaken"), "{message}");
}

async fn makes(api: &FakeApi, observed: &Observed, step: Step) -> Acted {
    act(api, observed, Phase::Growing, step).await
}

#[tokio::test]
async fn a_claim_or_pod_of_somebody_else_in_a_members_place_is_left_alone_and_named() {
    let release = fixture::healthy().world.wish.release;
    let pod = Step::CreatePod { serial: SERIAL, bind: Bind::Ephemeral, birth: Birth::Waiting, release };
    for (what, path, step) in [("PersistentVolumeClaim db-1", CLAIM, Step::CreateClaim(SERIAL)), ("Pod db-1", POD, pod)]
    {
        let (api, observed) = cluster();
        put(&api, path, &json!({}), None);
        let before = api.object(path);
        let acted = makes(&api, &observed, step.clone()).await;
        let (reason, words) = told(&acted).unwrap();
        assert!(reason == Reason::NameTaken && words.contains(what), "{reason}: {words}");
        assert_eq!((api.object(path), acted.done), (before, Vec::new()));
        api.remove(path);
        let acted = makes(&api, &observed, step.clone()).await;
        assert_eq!(acted.done, std::slice::from_ref(&step));
        // Another operator was faster, or the watch lags: that is no trouble.
        let again = makes(&api, &observed, step).await;
        assert!(again.stop.is_some_and(|stop| stop.is_surprise()));
    }
}

#[tokio::test]
async fn a_pod_of_ours_without_its_label_is_told_and_one_of_an_earlier_cluster_is_not() {
    let release = fixture::healthy().world.wish.release;
    let step = Step::CreatePod { serial: SERIAL, bind: Bind::Ephemeral, birth: Birth::Waiting, release };
    let (api, observed) = cluster();
    put(&api, POD, &json!({}), Some("uid"));
    let (reason, words) = told(&makes(&api, &observed, step.clone()).await).unwrap();
    assert!(reason == Reason::NameTaken && words.ends_with("pod db-1 quorate.dev/cluster=db"), "{reason}: {words}");
    put(&api, POD, &json!({}), Some("earlier"));
    assert!(makes(&api, &observed, step).await.stop.is_some_and(|stop| stop.is_surprise()));
}

/// That of a claim with our label is the plan's to tell: it sees it.
#[tokio::test]
async fn a_claim_of_an_earlier_cluster_is_left_to_the_plan() {
    let (api, observed) = cluster();
    put(&api, CLAIM, &ours(), None);
    let acted = makes(&api, &observed, Step::CreateClaim(SERIAL)).await;
    assert!(acted.stop.is_some_and(|stop| stop.is_surprise()));
}

#[tokio::test]
async fn a_pod_of_somebody_else_in_place_of_a_trial_is_named() {
    let (api, observed) = cluster();
    let release = observed.world.wish.release.clone();
    let step = Step::TryRelease { serial: SERIAL, node: NodeName::new("n1"), release };
    assert!(makes(&api, &observed, step.clone()).await.stop.is_none());
    let trial = api.names("/api/v1/namespaces/ns/pods").pop().unwrap();
    let path = format!("/api/v1/namespaces/ns/pods/{trial}");
    api.remove(&path);
    put(&api, &path, &json!({}), None);
    let (reason, words) = told(&makes(&api, &observed, step).await).unwrap();
    assert!(reason == Reason::NameTaken && words.contains(&trial), "{reason}: {words}");
}
