//! Tests of the tickets that are put on pods, against an API server in this process: under which guard, and who is awaited
//! before the next is told.

use std::collections::BTreeSet;
use std::net::IpAddr;

use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use quorate_crds::names;
use quorate_statemachine::{
    Bind, Birth, Listed, MemberId, Membership, Phase, Role, RoleLabel, Serial, Start, Step, Ticket, Uid, Version,
};
use serde_json::{Value, json};

use super::act::{Acted, Stop};
use super::observe::pods::PodFacts;
use super::observe::{Observed, key};
use super::release_tests::{an_etcd_answers_at, cluster};
use super::report::fixture;
use super::tests::{CLUSTER, act_in_order, driver, object, watched};
use crate::fake_api::{FakeApi, Fault};
use crate::lease::Claim;

fn path(serial: u32) -> String {
    format!("/api/v1/namespaces/ns/pods/db-{serial}")
}

/// A cluster, and the pods of two of its members as the API server shows them.
fn with_pods() -> (FakeApi, Observed) {
    let (api, mut observed) = cluster();
    for serial in [1, 2] {
        let labels = json!({ "quorate.dev/cluster": "db" });
        let owner = json!([{ "apiVersion": "quorate.dev/v1alpha1", "kind": "EtcdCluster", "name": "db", "uid": "uid",
            "controller": true }]);
        let metadata = json!({ "name": format!("db-{serial}"), "uid": format!("pod-{serial}"), "labels": labels,
            "annotations": { "quorate.dev/version": "3.6.16" }, "ownerReferences": owner });
        let etcd = json!({ "name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16" });
        let status = json!({ "podIP": format!("127.0.82.{serial}"), "phase": "Running" });
        let spec = json!({ "nodeName": "n1", "containers": [etcd] });
        api.put(&path(serial), json!({ "metadata": metadata, "spec": spec, "status": status }));
        let pod: Pod = serde_json::from_value(api.object(&path(serial))).unwrap();
        observed.pods.insert(Serial(serial), PodFacts::of(&pod).unwrap());
    }
    (api, observed)
}

/// It is a member that does not vote.
fn learns(observed: &mut Observed, serial: u32) {
    let Membership::Known(list) = &mut observed.world.membership else { panic!("the list is not known") };
    let learner = Listed { serial: Some(Serial(serial)), role: Role::Learner, started: true };
    list.members.insert(MemberId(200 + u64::from(serial)), learner);
}

fn issue(serial: u32, start: Start) -> Step {
    let volume = Uid::new(&format!("claim-{serial}"));
    let ticket = Ticket { start, volume, mark: None, version: Some(Version::new(6, 16)) };
    Step::IssueTicket { serial: Serial(serial), pod: Uid::new(&format!("pod-{serial}")), ticket }
}

async fn does(api: &FakeApi, observed: &Observed, steps: Vec<Step>) -> Acted {
    act_in_order(api, observed, None, Phase::Growing, steps).await
}

fn told(api: &FakeApi, serial: u32) -> bool {
    api.object(&path(serial))["metadata"]["annotations"]["quorate.dev/ticket"].is_string()
}

/// Whether a ticket is put on a pod that was changed like this since it was observed.
async fn is_put_after(change: impl Fn(&mut Value)) -> bool {
    let (api, observed) = with_pods();
    let mut pod = api.object(&path(1));
    change(&mut pod);
    let ticket = |pod: &Value| pod["metadata"]["annotations"]["quorate.dev/ticket"].clone();
    let before = ticket(&pod);
    api.put(&path(1), pod);
    let acted = does(&api, &observed, vec![issue(1, Start::Resume)]).await;
    let put = acted.stop.is_none();
    assert!(put || acted.stop.is_some_and(|stop| stop.is_surprise()));
    assert_eq!(ticket(&api.object(&path(1))) != before, put);
    put
}

#[tokio::test]
async fn a_ticket_is_put_on_a_pod_to_which_only_its_kubelet_wrote() {
    assert!(is_put_after(|_| ()).await);
    let reports = |pod: &mut Value| {
        let etcd = json!({ "name": "etcd", "image": "", "imageID": "", "ready": true, "restartCount": 1,
            "containerID": "containerd://2", "state": { "running": {} } });
        pod["status"]["containerStatuses"] = json!([etcd]);
        pod["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
    };
    assert!(is_put_after(reports).await);
    assert!(!is_put_after(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")).await);
    assert!(!is_put_after(|pod| pod["metadata"]["uid"] = json!("another")).await);
    assert!(!is_put_after(|pod| pod["metadata"]["labels"]["quorate.dev/role"] = json!("voter")).await);
    assert!(!is_put_after(|pod| pod["spec"]["nodeName"] = json!("n2")).await);
    let by_another = |pod: &mut Value| {
        let ticket =
            json!({ "start": "resume", "member": "db-1", "volume": "claim-1", "version": "3.6.16", "flags": [] });
        pod["metadata"]["annotations"]["quorate.dev/ticket"] = json!(ticket.to_string());
    };
    assert!(!is_put_after(by_another).await);
}

/// Two that begin at once wait for each other's version.
#[tokio::test]
async fn a_learner_is_told_to_join_once_the_one_before_it_answers() {
    let ids = BTreeSet::from([MemberId(101)]);
    let both = || vec![issue(1, Start::Join(ids.clone())), issue(2, Start::Join(ids.clone()))];
    let (api, observed) = with_pods();
    let acted = does(&api, &observed, both()).await;
    let Some(Stop::Surprise(words)) = acted.stop else { panic!("{:?}", acted.stop) };
    assert!(words.contains("not come up"), "{words}");
    assert_eq!((told(&api, 1), told(&api, 2)), (true, false));
    assert_eq!(acted.done, both()[..1], "what was done is told all the same");

    let IpAddr::V4(first) = observed.pods[&Serial(1)].ip.unwrap() else { panic!("it has an IPv4 address") };
    an_etcd_answers_at(first.octets());
    let (api, observed) = with_pods();
    let acted = does(&api, &observed, both()).await;
    assert_eq!((told(&api, 1), told(&api, 2)), (true, true), "{:?}", acted.stop);
    // The user wrote something else while the first came up.
    let (api, observed) = with_pods();
    let object = api.object(CLUSTER);
    api.put(CLUSTER, object);
    let acted = does(&api, &observed, both()).await;
    assert!(acted.stop.is_some_and(|stop| stop.is_surprise()));
    assert_eq!((told(&api, 1), told(&api, 2)), (true, false));
}

#[tokio::test]
async fn what_is_due_at_others_pods_is_written_while_one_begins() {
    let steps = || vec![issue(2, Start::Join(BTreeSet::from([MemberId(101)]))), issue(1, Start::Resume)];
    let (api, observed) = with_pods();
    let acted = does(&api, &observed, steps()).await;
    assert!(acted.stop.is_some_and(|stop| stop.to_string().contains("not come up")));
    assert_eq!(acted.done, steps());
    assert!(told(&api, 1));
}

#[tokio::test]
async fn a_ticket_to_resume_and_the_label_of_one_that_is_to_vote_are_one_write() {
    for (label, writes) in [(RoleLabel::Returning, 1), (RoleLabel::Voter, 2), (RoleLabel::Absent, 2)] {
        let (api, observed) = with_pods();
        let before = api.written().len();
        let pod = Uid::new("pod-1");
        let steps = vec![issue(1, Start::Resume), Step::LabelPod { serial: Serial(1), pod, label }];
        let acted = does(&api, &observed, steps.clone()).await;
        assert!(acted.stop.is_none(), "{:?}", acted.stop);
        assert_eq!(acted.done, steps);
        let at_pod = |write: &&String| write.ends_with(" db-1");
        assert_eq!(api.written()[before..].iter().filter(at_pod).count(), writes, "{label:?}: {:?}", api.written());
        let role = &api.object(&path(1))["metadata"]["labels"]["quorate.dev/role"];
        assert_eq!(role.as_str() == Some(names::ROLE_RETURNING), label == RoleLabel::Returning, "{role}");
        assert!(told(&api, 1));
    }
}

#[tokio::test]
async fn what_is_refused_of_one_member_keeps_others_from_nothing_but_what_comes_after() {
    let (api, observed) = with_pods();
    let mut pod = api.object(&path(1));
    pod["metadata"]["uid"] = json!("another");
    api.put(&path(1), pod);
    let label = |serial: u32| Step::LabelPod {
        serial: Serial(serial),
        pod: Uid::new(&format!("pod-{serial}")),
        label: RoleLabel::Returning,
    };
    let resume = |serial| issue(serial, Start::Resume);
    let steps = vec![resume(1), resume(2), label(1), label(2), issue(2, Start::Seed), label(2)];
    let acted = does(&api, &observed, steps).await;
    assert!(acted.stop.is_some_and(|stop| stop.is_surprise()));
    assert_eq!(acted.done, [resume(2), label(2)]);
    assert!(!told(&api, 1) && api.object(&path(1))["metadata"]["labels"]["quorate.dev/role"].is_null());
}

/// A quota or a policy may refuse it for days.
#[tokio::test]
async fn a_pod_or_claim_that_is_refused_holds_up_nobody_else() {
    let pod = Step::CreatePod {
        serial: Serial(3),
        bind: Bind::Ephemeral,
        birth: Birth::Waiting,
        release: fixture::healthy().world.wish.release,
    };
    let release = fixture::healthy().world.wish.release;
    let on_it = Step::CreatePod { serial: Serial(3), bind: Bind::NewClaim, birth: Birth::Waiting, release };
    let goes = |serial| Step::DeletePod { serial: Serial(serial), pod: Uid::new(&format!("pod-{serial}")) };
    let claim = Step::CreateClaim(Serial(3));
    let calls = "POST /api/v1/namespaces/ns/";
    for (step, code, goes_on) in [
        (&pod, StatusCode::FORBIDDEN, true),
        (&pod, StatusCode::BAD_REQUEST, true),
        (&claim, StatusCode::FORBIDDEN, true),
        // Nobody knows what came of it.
        (&pod, StatusCode::INTERNAL_SERVER_ERROR, false),
        // It is not as it was observed.
        (&pod, StatusCode::CONFLICT, false),
    ] {
        let (api, mut observed) = with_pods();
        learns(&mut observed, 2);
        api.disturb(calls, Fault::Refuse(code));
        // One votes: its next pod might be refused as well.
        let acted = does(&api, &observed, vec![step.clone(), on_it.clone(), goes(1), goes(2)]).await;
        assert_eq!(acted.done, if goes_on { vec![goes(2)] } else { Vec::new() }, "{step:?}: {code}");
        assert!(!api.written().iter().any(|line| line.starts_with("POST")), "{:?}", api.written());
        let stop = acted.stop.unwrap();
        assert_eq!(stop.is_surprise(), code == StatusCode::CONFLICT, "{stop}");
    }
    // What is refused is told, and not what passes by itself later on.
    let (api, observed) = with_pods();
    api.disturb(calls, Fault::Refuse(StatusCode::FORBIDDEN));
    let another = Step::DeletePod { serial: Serial(1), pod: Uid::new("another") };
    let acted = does(&api, &observed, vec![pod, another]).await;
    assert!(acted.stop.is_some_and(|stop| !stop.is_surprise()));
}

/// Of those who stay nobody answers here: whether they have its removal on their disks is not known.
#[tokio::test]
async fn the_pod_of_one_that_was_removed_stays_until_that_is_written_down() {
    let (api, mut observed) = with_pods();
    let goes = || vec![Step::DeletePod { serial: Serial(2), pod: Uid::new("pod-2") }];
    let acted = does(&api, &observed, goes()).await;
    assert!(acted.done.is_empty() && acted.stop.is_some(), "{:?}", acted.stop);
    assert!(!api.written().iter().any(|line| line.starts_with("DELETE")), "{:?}", api.written());
    learns(&mut observed, 2);
    assert_eq!(does(&api, &observed, goes()).await.done, goes(), "a member's");
}

#[tokio::test]
async fn what_is_refused_for_one_makes_nobody_slow_with_the_others() {
    let api = FakeApi::default();
    api.put(CLUSTER, object());
    let (driver, key) = (driver(&api, Claim::forever()), key(&watched(&api)));
    let failures = async || {
        assert!(Box::pin(driver.round(watched(&api))).await.is_err());
        driver.memos.failures(&key)
    };
    let pods = "POST /api/v1/namespaces/ns/pods";
    api.disturb("POST /api/v1/namespaces/ns/", Fault::Refuse(StatusCode::FORBIDDEN));
    assert_eq!((failures().await, failures().await, failures().await), (1, 2, 3), "nothing is done");
    api.mend();
    api.disturb(pods, Fault::Refuse(StatusCode::FORBIDDEN));
    assert_eq!(failures().await, 1, "claims are made");
    assert_eq!(failures().await, 2, "there is nothing else to do");
}
