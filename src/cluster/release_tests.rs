//! Tests of the steps that change a pod while it is there, and of trials, against an API server in this process: what is
//! written, in how many writes, and under which guard.

use std::io::{BufRead as _, Write as _};

use http::StatusCode;
use quorate_backup::ticket::Ticket as Written;
use quorate_crds::{BackupStore, ContinuousBackup, Reason};
use quorate_statemachine::{
    Bind, Birth, Image, MemberId, Membership, Minor, NodeName, Phase, Release, Role, RoleLabel, Serial, Sight, Start,
    Step, Ticket, Uid, Version,
};
use serde_json::{Value, json};

use super::act::{Acted, Stop};
use super::observe::Observed;
use super::observe::pods::EtcdContainer;
use super::render;
use super::report::fixture;
use super::tests::{CLUSTER, act, act_with_budget};
use crate::api::DEADLINE;
use crate::fake_api::{FakeApi, Fault};

const POD: &str = "/api/v1/namespaces/ns/pods/db-1";
const CLAIM: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/db-1";
const SERIAL: Serial = Serial(1);

fn release(version: Version, tag: &str) -> Release {
    Release { version, image: Image::new(&format!("quay.io/coreos/etcd:{tag}")) }
}

/// A cluster at rest, and the API server that holds it, without its finalizer being due.
pub fn cluster() -> (FakeApi, Observed) {
    let api = FakeApi::default();
    let mut observed = fixture::healthy();
    let mut object = (*observed.cluster).clone();
    object.metadata.finalizers = Some(vec![quorate_crds::names::FINALIZER.into()]);
    // What is issued and applied for every cluster is not what these tests are about.
    object.spec.tls.mode = quorate_crds::TlsMode::Disabled;
    api.put(CLUSTER, serde_json::to_value(&object).unwrap());
    observed.cluster = std::sync::Arc::new(serde_json::from_value(api.object(CLUSTER)).unwrap());
    // Its only voter, so that nobody else has to be looked at.
    if let Membership::Known(list) = &mut observed.world.membership {
        list.members.retain(|_, listed| listed.serial == Some(SERIAL));
    }
    let etcd = json!({ "name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16" });
    api.put(POD, json!({ "metadata": { "name": "db-1", "uid": "pod-1" }, "spec": { "containers": [etcd] } }));
    let pod = observed.pods.get_mut(&SERIAL).unwrap();
    pod.resource_version = api.object(POD)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    pod.container = Some(EtcdContainer { id: "containerd://1".into(), ended: false });
    (api, observed)
}

async fn does(api: &FakeApi, observed: &Observed, step: Step) -> (Acted, Vec<String>) {
    let before = api.written().len();
    let acted = act(api, observed, Phase::Upgrading, step).await;
    let written = api.written()[before..].iter().filter(|line| line.contains("pods")).cloned().collect();
    (acted, written)
}

fn switch(to: &Release) -> Step {
    let ticket = Ticket { start: Start::Resume, volume: Uid::new("claim-1"), mark: None, version: Some(to.version) };
    Step::SwitchRelease { serial: SERIAL, pod: Uid::new("pod-1"), release: to.clone(), ticket: Some(ticket) }
}

#[tokio::test]
async fn image_version_and_ticket_change_in_one_write() {
    let (api, observed) = cluster();
    let (acted, written) = does(&api, &observed, switch(&release(Version::new(7, 3), "v3.7.3"))).await;
    assert!(acted.stop.is_none(), "{:?}", acted.stop);
    assert_eq!(written, ["PATCH pods db-1"]);
    let pod = api.object(POD);
    assert_eq!(pod["spec"]["containers"][0], json!({ "name": "etcd", "image": "quay.io/coreos/etcd:v3.7.3" }));
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["quorate.dev/version"], "3.7.3");
    assert_eq!(annotations["quorate.dev/image"], "quay.io/coreos/etcd:v3.7.3");
    assert_eq!(annotations["quorate.dev/switched-from"], "containerd://1");
    let ticket = Written::parse(annotations["quorate.dev/ticket"].as_str().unwrap()).unwrap();
    assert_eq!((ticket.version.as_str(), ticket.volume.as_str()), ("3.7.3", "claim-1"));
    assert!(ticket.flags.iter().any(|flag| flag == "--name=db-1"));
}

#[tokio::test]
async fn nobody_waits_for_the_end_of_a_container_that_stays() {
    let (api, observed) = cluster();
    let (_, written) = does(&api, &observed, switch(&release(Version::new(6, 17), "v3.6.16"))).await;
    assert_eq!(written.len(), 1);
    assert_eq!(api.object(POD)["metadata"]["annotations"]["quorate.dev/switched-from"], Value::Null);
}

#[tokio::test]
async fn a_pod_that_somebody_else_changed_is_not_switched() {
    let (api, observed) = cluster();
    let pod = api.object(POD);
    api.put(POD, pod.clone());
    let (acted, written) = does(&api, &observed, switch(&release(Version::new(7, 3), "v3.7.3"))).await;
    assert!(acted.stop.is_some_and(|stop| stop.is_surprise()));
    assert_eq!((written, &api.object(POD)["spec"]), (Vec::new(), &pod["spec"]));
}

/// The kubelet reports one that is stopped as ready for a while: no drain may take another one then.
#[tokio::test(start_paused = true)]
async fn a_voter_is_stopped_only_once_the_budget_is_in_force() {
    let lags = Fault::Lag { there: DEADLINE, back: DEADLINE };
    let delete = || Step::DeletePod { serial: SERIAL, pod: Uid::new("pod-1") };
    for step in [switch(&release(Version::new(7, 3), "v3.7.3")), delete()] {
        for fault in [Some(Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR)), Some(Fault::Lose), Some(lags), None] {
            let (api, observed) = cluster();
            if let Some(fault) = fault {
                api.disturb("poddisruptionbudgets", fault);
            }
            let acted = act_with_budget(&api, &observed, Some(3), Phase::Upgrading, step.clone()).await;
            let written = api.written();
            let of = |kind: &str| written.iter().position(|line| line.contains(kind));
            match fault {
                Some(_) => assert!(acted.stop.is_some() && of(" pods ").is_none(), "{fault:?}: {written:?}"),
                None => assert!(acted.stop.is_none() && of(" poddisruptionbudgets ") < of(" pods "), "{written:?}"),
            }
            assert_eq!(fault.is_none(), of(" poddisruptionbudgets ").is_some() && of(" pods ").is_some());
        }
    }
}

/// Another operator may be about to stop another member: it writes that down first.
#[tokio::test]
async fn nobody_is_stopped_once_somebody_wrote_the_object() {
    let delete = Step::DeletePod { serial: SERIAL, pod: Uid::new("pod-1") };
    for step in [switch(&release(Version::new(7, 3), "v3.7.3")), delete] {
        let (api, observed) = cluster();
        assert!(does(&api, &observed, step.clone()).await.0.stop.is_none());
        let (api, observed) = cluster();
        let (object, pod) = (api.object(CLUSTER), api.object(POD));
        api.put(CLUSTER, object);
        let (acted, written) = does(&api, &observed, step).await;
        assert!(acted.stop.is_some_and(|stop| stop.is_surprise()));
        assert_eq!((written, api.object(POD)), (Vec::new(), pod));
    }
}

/// Since they were looked at, somebody may have died.
#[tokio::test]
async fn nobody_who_serves_is_stopped_unless_all_others_serve_now() {
    let delete = Step::DeletePod { serial: SERIAL, pod: Uid::new("pod-1") };
    // The others have no address by now.
    let of_three = || {
        let (api, mut observed) = cluster();
        observed.world.membership = fixture::healthy().world.membership;
        observed.pods.retain(|serial, _| *serial == SERIAL);
        (api, observed)
    };
    for step in [switch(&release(Version::new(7, 3), "v3.7.3")), delete.clone()] {
        let (api, observed) = of_three();
        let (acted, written) = does(&api, &observed, step).await;
        assert!(acted.stop.is_some_and(|stop| stop.is_surprise()));
        assert_eq!(written, Vec::<String>::new());
    }
    // What doesn't serve may go, and so may all when the cluster is to sleep.
    let (api, mut observed) = of_three();
    observed.said.seen.get_mut(&SERIAL).unwrap().sight = Sight::Unknown;
    assert!(does(&api, &observed, delete.clone()).await.0.stop.is_none());
    let (api, mut observed) = of_three();
    observed.world.wish.replicas = 0;
    assert!(does(&api, &observed, delete).await.0.stop.is_none());
}

/// What an etcd at this address tells at its metrics port.
pub fn an_etcd_answers_at(ip: [u8; 4]) {
    const METRICS: &str = "etcd_server_has_leader 1\netcd_server_is_leader 0\netcd_server_is_learner 0\n\
        etcd_server_proposals_committed_total 9\netcd_server_proposals_applied_total 9\nprocess_start_time_seconds 5\n";
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::from(ip), render::METRICS_PORT)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = std::io::BufReader::new(stream.unwrap());
            let (mut line, mut status) = (String::new(), "");
            while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                if line.starts_with("GET ") {
                    status = if line.starts_with("GET /quorate ") { "404 Not Found" } else { "200 OK" };
                }
                if line.trim().is_empty() {
                    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", METRICS.len());
                    let _ = stream.get_mut().write_all((head + METRICS).as_bytes());
                }
                line.clear();
            }
        }
    });
}

/// One look that found nothing is no proof that nobody serves.
#[tokio::test]
async fn one_that_was_not_seen_to_serve_and_answers_now_is_neither_stopped_nor_removed() {
    const IP: [u8; 4] = [127, 0, 81, 1];
    let member = MemberId(101);
    let remove = |observed: &Observed| {
        let Membership::Known(list) = &observed.world.membership else { panic!("it is known") };
        let expect = list.members.iter().map(|(id, listed)| (*id, listed.role)).collect();
        Step::Remove { serial: Some(SERIAL), id: member, expect }
    };
    let unheard = || {
        let (api, mut observed) = cluster();
        observed.said.seen.get_mut(&SERIAL).unwrap().sight = Sight::Unknown;
        observed.pods.get_mut(&SERIAL).unwrap().ip = Some(IP.into());
        (api, observed)
    };
    let delete = Step::DeletePod { serial: SERIAL, pod: Uid::new("pod-1") };
    let (api, observed) = unheard();
    assert!(does(&api, &observed, delete.clone()).await.0.stop.is_none(), "nobody answers there");
    an_etcd_answers_at(IP);
    for step in [delete, switch(&release(Version::new(7, 3), "v3.7.3")), remove(&observed)] {
        let (api, observed) = unheard();
        let (acted, written) = does(&api, &observed, step.clone()).await;
        let Some(Stop::Surprise(words)) = acted.stop else { panic!("{step:?}: {:?}", acted.stop) };
        assert!(words.contains("answers"), "{words}");
        assert_eq!(written, [""; 0]);
    }
    // Nor is a learner, which has caught up for hours perhaps.
    let (api, mut observed) = unheard();
    if let Membership::Known(list) = &mut observed.world.membership {
        list.members.values_mut().for_each(|listed| listed.role = Role::Learner);
    }
    let Some(Stop::Surprise(words)) = does(&api, &observed, remove(&observed)).await.0.stop else {
        panic!("it was to be removed")
    };
    assert!(words.contains("answers"), "{words}");
}

/// A leader takes no writes while it hands over to one that is not there.
#[tokio::test]
async fn nobody_is_handed_the_leadership_who_does_not_serve_by_now() {
    const IP: [u8; 4] = [127, 0, 81, 2];
    let heir = || {
        let (api, mut observed) = cluster();
        observed.pods.get_mut(&SERIAL).unwrap().ip = Some(IP.into());
        (api, observed)
    };
    let stopped_by = async |to: u64| {
        let (api, observed) = heir();
        let step = Step::MoveLeader { from: MemberId(100), to: MemberId(to) };
        does(&api, &observed, step).await.0.stop.unwrap().to_string()
    };
    let silent = stopped_by(101).await;
    assert!(silent.contains("does not serve"), "{silent}");
    an_etcd_answers_at(IP);
    // Then it is what comes next that fails.
    let handed = stopped_by(101).await;
    assert!(handed.contains("nothing yet to show the members"), "{handed}");
    let unlisted = stopped_by(102).await;
    assert!(unlisted.contains("does not serve"), "{unlisted}");
}

#[tokio::test]
async fn a_voters_new_pod_has_the_budgets_label_from_birth() {
    for (role, label) in [(Role::Voter, json!("returning-voter")), (Role::Learner, Value::Null)] {
        let (api, observed) = cluster();
        api.remove(POD);
        api.put(CLAIM, json!({ "metadata": { "name": "db-1", "uid": "claim-1" } }));
        let (bind, release) = (Bind::Claim(Uid::new("claim-1")), release(Version::new(6, 16), "v3.6.16"));
        let step = Step::CreatePod { serial: SERIAL, bind, birth: Birth::Resuming(role), release };
        let (acted, written) = does(&api, &observed, step).await;
        assert!(acted.stop.is_none() && written.len() == 1, "{:?} {written:?}", acted.stop);
        assert_eq!(api.object(POD)["metadata"]["labels"]["quorate.dev/role"], label);
    }
}

#[tokio::test]
async fn that_a_pod_is_not_resized_is_noted_on_it() {
    let (api, observed) = cluster();
    let (acted, written) = does(&api, &observed, Step::ResizePod { serial: SERIAL, pod: Uid::new("pod-1") }).await;
    assert!(acted.stop.is_none(), "{:?}", acted.stop);
    assert_eq!(written, ["PATCH pods db-1"]);
    let annotations = &api.object(POD)["metadata"]["annotations"];
    assert!(annotations["quorate.dev/resize-refused"].is_string(), "{annotations}");
    assert!(annotations["quorate.dev/resources"].is_null(), "{annotations}");
}

fn trial(of: &Release) -> Step {
    Step::TryRelease { serial: SERIAL, node: NodeName::new("n1"), release: of.clone() }
}

#[tokio::test]
async fn a_trial_is_a_pod_on_the_members_node() {
    let (api, observed) = cluster();
    let (acted, written) = does(&api, &observed, trial(&release(Version::new(7, 3), "v3.7.3"))).await;
    assert!(acted.stop.is_none() && written.len() == 1, "{:?} {written:?}", acted.stop);
    let names = api.names("/api/v1/namespaces/ns/pods");
    let name = names.iter().find(|name| name.starts_with("db-1-trial-")).unwrap();
    assert_eq!(api.object(&format!("/api/v1/namespaces/ns/pods/{name}"))["spec"]["nodeName"], "n1");
}

#[tokio::test]
async fn an_image_that_runs_already_under_that_name_as_another_version_is_refused() {
    let (api, observed) = cluster();
    let (acted, written) = does(&api, &observed, trial(&release(Version::new(6, 17), "v3.6.16"))).await;
    let Some(Stop::Refused(reason, words)) = acted.stop else { panic!("{:?}", acted.stop) };
    assert_eq!(reason, Reason::SpecInvalid);
    assert!(words.contains("spec.image.tag") && words.contains("3.6.17"), "{words}");
    assert_eq!(written, [""; 0]);
}

const SNAPSHOT: &str = "/apis/quorate.dev/v1alpha1/namespaces/ns/etcdbackups/db-to-3-7-4";

/// The same cluster with a store, at the fourth generation of its spec.
fn backed_up() -> (FakeApi, Observed) {
    let (api, mut observed) = cluster();
    let mut object = (*observed.cluster).clone();
    object.metadata.generation = Some(4);
    let store = BackupStore { address: Some("s3://bucket/etcd".into()), ..BackupStore::default() };
    object.spec.backup = Some(ContinuousBackup::to(store));
    observed.cluster = std::sync::Arc::new(object);
    (api, observed)
}

#[tokio::test]
async fn a_snapshot_is_a_backup_of_the_clusters_own_in_its_store() {
    let (api, observed) = backed_up();
    let (acted, _) = does(&api, &observed, Step::TakeSnapshot(Minor(7))).await;
    assert!(acted.stop.is_none(), "{:?}", acted.stop);
    let backup = api.object(SNAPSHOT);
    assert_eq!(
        (&backup["spec"]["cluster"], &backup["spec"]["store"]["address"]),
        (&"db".into(), &"s3://bucket/etcd".into())
    );
    assert_eq!(backup["metadata"]["ownerReferences"][0]["uid"], observed.cluster.metadata.uid.clone().unwrap());
    assert_eq!(backup["metadata"]["annotations"]["quorate.dev/before-version"], "3.7");
    let (again, _) = does(&api, &observed, Step::TakeSnapshot(Minor(7))).await;
    assert!(again.done.is_empty(), "nothing to tell of");
    assert!(again.stop.is_some_and(|stop| stop.is_surprise()), "that it is there already is no fault");
}

#[tokio::test]
async fn a_backup_of_that_name_that_is_a_users_own_is_not_taken_for_the_snapshot() {
    let (api, observed) = backed_up();
    api.put(SNAPSHOT, json!({ "metadata": { "name": "db-to-3-7-4" }, "spec": { "cluster": "db", "store": {} } }));
    let (acted, _) = does(&api, &observed, Step::TakeSnapshot(Minor(7))).await;
    let Some(Stop::Refused(reason, words)) = acted.stop else { panic!("{:?}", acted.stop) };
    assert_eq!(reason, Reason::SnapshotFailed);
    assert!(words.contains("db-to-3-7-4"), "{words}");
}

#[tokio::test]
async fn a_pods_label_says_whether_the_budget_counts_it() {
    let (api, observed) = cluster();
    let labels = [
        (RoleLabel::Returning, json!("returning-voter")),
        (RoleLabel::Voter, json!("voter")),
        (RoleLabel::Absent, Value::Null),
    ];
    for (label, said) in labels {
        let step = Step::LabelPod { serial: SERIAL, pod: Uid::new("pod-1"), label };
        let (acted, written) = does(&api, &observed, step).await;
        assert!(acted.stop.is_none(), "{:?}", acted.stop);
        assert_eq!(
            (written, &api.object(POD)["metadata"]["labels"]["quorate.dev/role"]),
            (vec!["PATCH pods db-1".to_owned()], &said)
        );
    }
}
