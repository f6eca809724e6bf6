//! Tests of what is applied and asked for besides the steps, against an API server in this process: what failed is tried
//! again, nothing waits for one call after the other, and what was done is told whatever else failed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use quorate_crds::{EtcdClusterStatus, Quantity, Reason, TlsMode, names};
use quorate_statemachine::{
    Ledger, LookAgain, Memory, Phase, Plan, PodStage, Roster, Seeding, Serial, Sight, Start, Step, Ticket, Uid,
};
use serde_json::json;
use tokio::time::Instant;

use super::{Acted, Stop, Ungrown, Urged};
use crate::cluster::Driver;
use crate::cluster::observe::Observed;
use crate::cluster::observe::endpoints;
use crate::cluster::observe::facts::ClaimFacts;
use crate::cluster::pki::{self, Certificates, Wallet};
use crate::cluster::report::fixture::{self, SERIALS};
use crate::cluster::report::status;
use crate::cluster::tests::{CLUSTER, driver, first_glance, object, rounds};
use crate::fake_api::{FakeApi, Fault};
use crate::lease::Claim;

pub const HEADLESS: &str = "/api/v1/namespaces/ns/services/db";
pub const CLIENT: &str = "/api/v1/namespaces/ns/services/db-client";
pub const BUDGET: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/db";
/// How long a call takes each way where the line lags: it is answered in time, but only just.
const WAY: Duration = Duration::from_secs(2);

/// A cluster at rest, and the API server that holds it.
pub fn cluster() -> (FakeApi, Observed) {
    let api = FakeApi::default();
    let mut observed = fixture::healthy();
    let mut object = (*observed.cluster).clone();
    object.metadata.finalizers = Some(vec![names::FINALIZER.into()]);
    object.spec.tls.mode = TlsMode::Disabled;
    api.put(CLUSTER, serde_json::to_value(&object).unwrap());
    observed.cluster = Arc::new(serde_json::from_value(api.object(CLUSTER)).unwrap());
    (api, observed)
}

/// Carries out a plan that has a budget and no steps.
pub async fn furnishes(driver: &Driver, observed: &Observed, ungrown: &mut Ungrown) -> Acted {
    carries_out(driver, observed, ungrown, Vec::new()).await
}

/// Carries out a plan that has a budget and these steps.
async fn carries_out(driver: &Driver, observed: &Observed, ungrown: &mut Ungrown, steps: Vec<Step>) -> Acted {
    let plan = Plan {
        phase: Phase::Running,
        ledger: None,
        steps,
        budget: Some(2),
        heading: None,
        findings: BTreeMap::new(),
        look_again: LookAgain::AtRest,
    };
    let status = EtcdClusterStatus::default();
    driver.actor.act(observed, &plan, &status, ungrown, &Wallet::default()).await
}

/// The same cluster, whose client Service is to have these annotations.
fn annotated(observed: &Observed, annotations: &[&str]) -> Observed {
    let mut cluster = (*observed.cluster).clone();
    cluster.spec.service.annotations = annotations.iter().map(|&name| (name.to_owned(), "1".to_owned())).collect();
    Observed { cluster: Arc::new(cluster), ..observed.clone() }
}

#[tokio::test]
async fn an_annotation_that_could_not_be_taken_away_is_taken_away_later_whatever_else_failed() {
    let (api, observed) = cluster();
    let (driver, mut ungrown) = (driver(&api, Claim::forever()), Ungrown::default());
    let mut rich = annotated(&observed, &["a", "b"]);
    assert!(furnishes(&driver, &rich, &mut ungrown).await.stop.is_none());
    // The headless one is not shown yet, so it is applied along with it.
    rich.furniture.services.insert("db-client".to_owned(), api.object(CLIENT));
    let poor = annotated(&rich, &["a"]);
    api.disturb("services/db", Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR));
    assert!(furnishes(&driver, &poor, &mut ungrown).await.stop.is_some());
    api.mend();
    let before = api.written().len();
    assert!(furnishes(&driver, &poor, &mut ungrown).await.stop.is_none());
    let written = api.written()[before..].to_vec();
    assert!(written.contains(&"PATCH services db-client".to_owned()), "{written:?}");
}

/// A cluster that was not begun yet, as its first look shows it; some pods of its members are there, and its certificates last
/// too long for what is wished for now.
async fn with_certificates_to_renew() -> (FakeApi, Driver, Wallet, Observed, Plan) {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    Box::pin(rounds(&driver(&api, Claim::forever()), &api)).await.unwrap();
    let mut shorter = api.object(CLUSTER);
    shorter["spec"]["tls"] = json!({ "lifetimeMinutes": 60 });
    api.put(CLUSTER, shorter);
    api.remove("/api/v1/namespaces/ns/pods/db-1");
    let (driver, wallet) = (driver(&api, Claim::forever()), Wallet::default());
    let glanced = first_glance(&driver, &api, &wallet).await;
    let (observed, plan) = Box::pin(driver.decide(glanced, &wallet)).await.unwrap().unwrap();
    (api, driver, wallet, observed, plan)
}

fn expired() -> Certificates {
    Certificates::Faulty(vec![("db-0".to_owned(), pki::Fault::Expired(Timestamp::UNIX_EPOCH))])
}

#[tokio::test]
async fn what_is_due_is_renewed_also_where_nothing_may_be_started_for_want_of_it() {
    let (api, driver, wallet, mut observed, plan) = with_certificates_to_renew().await;
    assert!(plan.steps.iter().any(|step| matches!(step, Step::CreatePod { .. })), "{:?}", plan.steps);
    observed.tls.certificates = expired();
    let (status, before) = (status(&observed, &plan, Timestamp::now()), api.written().len());
    let acted = driver.actor.act(&observed, &plan, &status, &mut Ungrown::default(), &wallet).await;
    assert!(matches!(acted.stop, Some(Stop::Refused(..))), "{:?}", acted.stop);
    let mut renewed: Vec<_> = acted.renewed.iter().map(|renewed| renewed.secret.as_str()).collect();
    renewed.sort_unstable();
    assert_eq!(renewed, ["db-0", "db-1", "db-2", "db-client"]);
    let written = api.written().split_off(before);
    assert!(written.iter().all(|line| line.contains(" secrets ")), "{written:?}");
}

/// The ledger that comes with the first ticket says already that it was begun.
#[tokio::test]
async fn no_seed_gets_its_ticket_with_certificates_that_can_not_be_used() {
    let (api, driver, wallet, mut observed, plan) = with_certificates_to_renew().await;
    let Memory::Ledger(ledger) = &observed.world.memory else { panic!("{:?}", observed.world.memory) };
    assert_eq!(ledger.seeding, Seeding::NotBegun);
    let (pod, ticket) =
        (Uid::new("p"), Ticket { start: Start::Seed, volume: Uid::new("v"), mark: None, version: None });
    let plan = Plan {
        ledger: Some(Ledger { seeding: Seeding::Begun(Serial(0)), ..ledger.clone() }),
        steps: vec![Step::IssueTicket { serial: Serial(0), pod, ticket }],
        ..plan
    };
    observed.tls.certificates = expired();
    let (status, before) = (status(&observed, &plan, Timestamp::now()), api.written().len());
    let acted = driver.actor.act(&observed, &plan, &status, &mut Ungrown::default(), &wallet).await;
    assert!(matches!(acted.stop, Some(Stop::Refused(..))), "{:?}", acted.stop);
    assert!(!acted.status_written, "{:?}", api.written().split_off(before));
}

#[tokio::test]
async fn what_was_renewed_is_told_also_of_a_member_whose_pod_is_made_or_refused() {
    for refused in [true, false] {
        let (api, driver, wallet, observed, plan) = with_certificates_to_renew().await;
        if refused {
            api.disturb("POST /api/v1/namespaces/ns/pods", Fault::Refuse(StatusCode::FORBIDDEN));
        }
        let status = status(&observed, &plan, Timestamp::now());
        let acted = driver.actor.act(&observed, &plan, &status, &mut Ungrown::default(), &wallet).await;
        assert!(acted.stop.is_some() || !refused, "{:?}", plan.steps);
        let mut renewed: Vec<_> = acted.renewed.iter().map(|renewed| renewed.secret.as_str()).collect();
        renewed.sort_unstable();
        assert_eq!(renewed, ["db-0", "db-1", "db-2", "db-client"], "refused: {refused}");
    }
}

/// A cluster whose claims are smaller than its spec asks for.
fn with_small_claims() -> (FakeApi, Observed) {
    let (api, mut observed) = cluster();
    for serial in SERIALS {
        let (name, uid) = (format!("db-{serial}"), format!("claim-{serial}"));
        let spec = json!({ "resources": { "requests": { "storage": "1Gi" } } });
        let path = format!("/api/v1/namespaces/ns/persistentvolumeclaims/{name}");
        api.put(&path, json!({ "metadata": { "name": name, "uid": uid }, "spec": spec }));
        let claim = ClaimFacts {
            uid: Uid::new(&uid),
            cluster_uid: Some("uid".into()),
            label: Some("db".into()),
            terminating: false,
            volume_name: None,
            volume_gone: false,
            class: None,
            requested: Some("1Gi".into()),
        };
        observed.claims.insert(serial, claim);
    }
    (api, observed)
}

#[tokio::test]
async fn nobody_is_stopped_or_added_whose_certificates_can_not_be_used() {
    let (api, mut observed) = cluster();
    let serial = SERIALS[1];
    let (name, pod) = (format!("db-{serial}"), observed.pods[&serial].uid.clone());
    let path = format!("/api/v1/namespaces/ns/pods/{name}");
    api.put(&path, json!({ "metadata": { "name": name, "uid": pod.as_str(), "resourceVersion": "1" } }));
    observed.tls.certificates = Certificates::Faulty(vec![("my-peer".into(), pki::Fault::KeyMismatch)]);
    let (driver, roster) = (driver(&api, Claim::forever()), Roster::default());
    for step in [
        Step::DeletePod { serial, pod: pod.clone() },
        Step::AddLearner { serial: Serial(3), expect: roster.clone(), after: None },
    ] {
        let acted = carries_out(&driver, &observed, &mut Ungrown::default(), vec![step.clone()]).await;
        assert!(matches!(acted.stop, Some(Stop::Refused(Reason::CertificatesFaulty, _))), "{step:?}: {acted:?}");
    }
    // With an authority that is lost nobody could issue those that it has not.
    observed.tls.certificates = Certificates::Lost { secret: "db-peer-ca".into(), fault: pki::Fault::SecretMissing };
    let delete = || vec![Step::DeletePod { serial, pod: pod.clone() }];
    let acted = carries_out(&driver, &observed, &mut Ungrown::default(), delete()).await;
    assert!(matches!(acted.stop, Some(Stop::Refused(Reason::AuthorityLost, _))), "{acted:?}");
    assert!(api.written().iter().all(|line| !line.contains("pods")), "{:?}", api.written());
    // One that does not serve has nothing to lose, and may only need to be made anew.
    observed.said.seen.get_mut(&serial).unwrap().sight = Sight::Unknown;
    let acted = carries_out(&driver, &observed, &mut Ungrown::default(), delete()).await;
    assert!(!matches!(acted.stop, Some(Stop::Refused(..))), "{acted:?}");
}

#[tokio::test]
async fn claims_of_an_earlier_object_are_taken_over_if_the_ledger_knows_them() {
    let (api, mut observed) = with_small_claims();
    for claim in observed.claims.values_mut() {
        (claim.cluster_uid, claim.requested) = (Some("an-earlier-one".into()), None);
    }
    let uid_of = |serial: Serial| {
        let claim = api.object(&format!("/api/v1/namespaces/ns/persistentvolumeclaims/db-{serial}"));
        claim["metadata"]["annotations"]["quorate.dev/cluster-uid"].clone()
    };
    let Memory::Ledger(ledger) = &mut observed.world.memory else { panic!("there is one") };
    let [first, second, third] = SERIALS;
    ledger.members.get_mut(&first).unwrap().create = Some(Uid::new("claim-0"));
    // One that it knows by another UID, and one that it knows of no volume of.
    ledger.members.get_mut(&second).unwrap().create = Some(Uid::new("another-claim"));
    ledger.members.get_mut(&third).unwrap().create = None;
    let acted = furnishes(&driver(&api, Claim::forever()), &observed, &mut Ungrown::default()).await;
    assert!(acted.refused.is_none(), "{acted:?}");
    assert_eq!(SERIALS.map(uid_of), [json!("uid"), json!(null), json!(null)]);
}

fn growths(api: &FakeApi) -> usize {
    api.written().iter().filter(|line| line.starts_with("PATCH persistentvolumeclaims")).count()
}

#[tokio::test(start_paused = true)]
async fn all_claims_are_asked_to_grow_at_once() {
    let (api, observed) = with_small_claims();
    let driver = driver(&api, Claim::forever());
    api.disturb("persistentvolumeclaims", Fault::Lag { there: WAY, back: WAY });
    let begun = Instant::now();
    let acted = furnishes(&driver, &observed, &mut Ungrown::default()).await;
    assert!(acted.refused.is_none() && growths(&api) == 3, "{acted:?}");
    assert!(begun.elapsed() < 3 * WAY, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_may_not_grow_is_told_in_every_round_and_asked_for_now_and_then() {
    let (api, observed) = with_small_claims();
    let (driver, mut ungrown) = (driver(&api, Claim::forever()), Ungrown::default());
    let asked = |driver: &Driver| {
        let text = driver.metrics.render().unwrap();
        let refused = text.lines().find(|line| line.contains(r#"kind="PersistentVolumeClaim",outcome="error""#));
        refused.and_then(|line| line.rsplit_once(' ')).map(|(_, count)| count.to_owned()).unwrap_or_default()
    };
    api.disturb("persistentvolumeclaims", Fault::Refuse(StatusCode::FORBIDDEN));
    let mut words = Vec::new();
    for _ in 0..3 {
        let acted = furnishes(&driver, &observed, &mut ungrown).await;
        let Some(Stop::Refused(Reason::ObjectRefused, told)) = acted.refused else { panic!("{acted:?}") };
        assert!(told.contains("db-0"), "{told}");
        words.push(told);
    }
    assert_eq!((asked(&driver).as_str(), words[0] == words[2]), ("3", true));
    // It is asked for at once where something else is wished for.
    let mut larger = observed.clone();
    let mut cluster = (*larger.cluster).clone();
    cluster.spec.storage.size = Quantity::new("9Gi");
    larger.cluster = Arc::new(cluster);
    assert!(furnishes(&driver, &larger, &mut ungrown).await.refused.is_some());
    assert_eq!(asked(&driver), "6");
    api.mend();
    assert!(furnishes(&driver, &larger, &mut ungrown).await.refused.is_some());
    assert_eq!(growths(&api), 0);
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(furnishes(&driver, &larger, &mut ungrown).await.refused.is_none());
    assert_eq!(growths(&api), 3);
}

#[tokio::test(start_paused = true)]
async fn for_an_address_that_is_late_the_service_is_touched_once() {
    const SERVICE: &str = "/api/v1/namespaces/ns/services/db";
    let (api, mut observed) = cluster();
    api.put(SERVICE, json!({ "metadata": { "name": "db", "uid": "service" } }));
    observed.furniture.services.insert("db".to_owned(), api.object(SERVICE));
    let seen = observed.said.seen.get_mut(&SERIALS[1]).unwrap();
    (seen.sight, seen.pod) = (Sight::Waiting(None), Uid::new("late"));
    observed.pods.get_mut(&SERIALS[1]).unwrap().uid = Uid::new("late");
    let (driver, mut urged) = (driver(&api, Claim::forever()), Urged::default());
    let touched = || api.written().iter().filter(|line| *line == "PATCH services db").count();
    for expected in [0, 1, 1] {
        let kube = &driver.observer.kube;
        let looked =
            endpoints::look(kube, &observed.cluster, &observed.pods, &observed.said, &observed.endpoints).await;
        observed.endpoints = looked;
        driver.actor.urge(&observed, &mut urged).await;
        assert_eq!(touched(), expected);
        tokio::time::advance(Duration::from_millis(50)).await;
    }
    assert_eq!(api.object(SERVICE)["metadata"]["annotations"][names::ANNOTATION_URGED], "late");
}

#[tokio::test(start_paused = true)]
async fn all_kubelets_are_urged_at_once() {
    let (api, mut observed) = cluster();
    for serial in SERIALS {
        let (name, uid) = (format!("db-{serial}"), format!("pod-{serial}"));
        api.put(&format!("/api/v1/namespaces/ns/pods/{name}"), json!({ "metadata": { "name": name, "uid": uid } }));
        observed.pods.get_mut(&serial).unwrap().stage = PodStage::Pending;
    }
    api.disturb("pods/", Fault::Lag { there: WAY, back: WAY });
    let begun = Instant::now();
    driver(&api, Claim::forever()).actor.urge(&observed, &mut Urged::default()).await;
    assert_eq!(api.written().iter().filter(|line| line.starts_with("PATCH pods")).count(), 3);
    assert!(begun.elapsed() < 3 * WAY, "{:?}", begun.elapsed());
}
