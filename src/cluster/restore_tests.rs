//! Tests of restores as the operator shows and makes them: what the conditions say, and which pod is written.

use jiff::Timestamp;
use quorate_backup::launch;
use quorate_crds::{EtcdClusterStatus, LocalBackup, Reason, Restore as Asked};
use quorate_statemachine::{
    Bind, Birth, Entry, Freshness, Ledger, Membership, Memory, Origin, Phase, Plan, Readiness, Restore, RoleLabel,
    Seeding, Serial, Sight, Step, Uid, plan,
};
use serde_json::{Value, json};

use super::act::Acted;
use super::observe::Observed;
use super::observe::backup::{Backup, Source};
use super::observe::said::Complaint;
use super::report::{events, fixture, status};
use super::tests::{CLUSTER, act};
use crate::fake_api::FakeApi;

const SEED: Serial = Serial(0);
const POD: &str = "/api/v1/namespaces/ns/pods/db-0";
const CLAIM: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/db-0";

fn source() -> Source {
    let store = serde_json::from_value(json!({ "address": "s3://bucket/etcd", "credentials": { "name": "s3" } }));
    Source { store: store.unwrap(), lineage: "blue".into(), cluster: None, generation: None, to: None, manifest: None }
}

/// A cluster of one that is to begin with this backup; its first pod restores, with this sight.
fn restoring(backup: Backup, sight: Option<Sight>) -> Observed {
    let mut observed = fixture::healthy();
    let mut object = (*observed.cluster).clone();
    object.spec.tls.mode = quorate_crds::TlsMode::Disabled;
    object.spec.replicas = 1;
    let restore = Asked { backup: Some(LocalBackup { name: "b".into() }), ..Asked::default() };
    object.spec.bootstrap = Some(quorate_crds::Bootstrap { restore });
    object.metadata.finalizers = Some(vec![quorate_crds::names::FINALIZER.into()]);
    observed.cluster = std::sync::Arc::new(object);
    let ledger = Ledger {
        seeding: Seeding::NotBegun,
        next_serial: Serial(1),
        members: [(SEED, Entry::default())].into(),
        ..Ledger::default()
    };
    let world = &mut observed.world;
    world.freshness = Freshness::Quorum;
    world.memory = Memory::Ledger(ledger);
    world.membership = Membership::Unknown;
    world.wish.replicas = 1;
    world.wish.origin = match &backup {
        Backup::Ready(_) => Origin::Backup(Readiness::Ready),
        Backup::Awaited(_) => Origin::Backup(Readiness::Awaited),
        Backup::Unfit(..) => Origin::Backup(Readiness::Unfit),
    };
    world.seats.retain(|serial, _| *serial == SEED);
    let seat = world.seats.get_mut(&SEED).unwrap();
    match (sight, seat.pod.as_mut()) {
        (Some(sight), Some(pod)) => {
            pod.ticket = None;
            pod.restores = true;
            pod.label = RoleLabel::Absent;
            pod.sight = sight;
        }
        (Some(_) | None, _) => seat.pod = None,
    }
    observed.pods.retain(|serial, _| *serial == SEED && seat.pod.is_some());
    observed.said.seen.retain(|serial, _| *serial == SEED && seat.pod.is_some());
    observed.backup = Some(backup);
    observed
}

fn complains(mut observed: Observed, reason: launch::Reason, message: &str) -> Observed {
    let complaint = Complaint { reason, message: message.into() };
    observed.said.seen.get_mut(&SEED).unwrap().refusal = Some(complaint);
    observed
}

fn shown(observed: &Observed) -> (Plan, EtcdClusterStatus) {
    let plan = plan(&observed.world);
    let status = status(observed, &plan, Timestamp::UNIX_EPOCH);
    (plan, status)
}

fn condition(status: &EtcdClusterStatus, kind: &str) -> (String, String, String) {
    let found = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

#[test]
fn why_a_restore_does_not_go_on_is_in_the_conditions_and_told_once() {
    let fails = || restoring(Backup::Ready(Box::new(source())), Some(Sight::Restoring(Restore::Fails)));
    let cases = [
        (complains(fails(), launch::Reason::StoreRefused, "no"), "StoreRefused", "db-0: the backup can't be restored"),
        (complains(fails(), launch::Reason::BackupDamaged, "d/1f is damaged"), "BackupDamaged", "d/1f is damaged"),
        (complains(fails(), launch::Reason::NoRoom, "full"), "NoRoomToRestore", "full"),
        (fails(), "RestoreFailed", "the log of the container restore"),
        (
            restoring(Backup::Unfit(Reason::BackupMissing, "There is none.".into()), None),
            "BackupMissing",
            "There is none.",
        ),
    ];
    for (observed, reason, words) in cases {
        let (plan, status) = shown(&observed);
        assert_eq!((plan.phase, status.phase), (Phase::Restoring, Some(quorate_crds::Phase::Restoring)));
        let (truth, told, message) = condition(&status, "Stalled");
        assert_eq!((truth.as_str(), told.as_str()), ("True", reason));
        assert!(message.contains(words), "{message}");
        assert_eq!(condition(&status, "Ready").1, reason);
        let news: Vec<_> = events::of_turns(&observed, &plan, &status).into_iter().map(|news| news.reason).collect();
        assert_eq!(news.iter().map(|reason| reason.as_str()).collect::<Vec<_>>(), [reason]);
        let again = fixture::after(observed, status);
        let (plan, same) = shown(&again);
        assert_eq!(events::of_turns(&again, &plan, &same), []);
    }
}

#[test]
fn a_restore_under_way_and_a_backup_that_is_awaited_are_no_trouble() {
    let at_work = restoring(Backup::Ready(Box::new(source())), Some(Sight::Restoring(Restore::UnderWay)));
    let awaited = restoring(Backup::Awaited("EtcdBackup b is not complete yet.".into()), None);
    for (observed, words) in [(at_work, "being restored"), (awaited, "EtcdBackup b is not complete yet.")] {
        let (_, status) = shown(&observed);
        assert_eq!(condition(&status, "Stalled").0, "False");
        let (truth, reason, message) = condition(&status, "Reconciling");
        assert_eq!((truth.as_str(), reason.as_str()), ("True", "Restoring"));
        assert!(message.contains(words), "{message}");
    }
}

async fn makes(api: &FakeApi, observed: &Observed, birth: Birth) -> Acted {
    let release = observed.world.wish.release.clone();
    let step = Step::CreatePod { serial: SEED, bind: Bind::Claim(Uid::new("claim-0")), birth, release };
    act(api, observed, Phase::Restoring, step).await
}

fn api(observed: &Observed) -> FakeApi {
    let api = FakeApi::default();
    api.put(CLUSTER, serde_json::to_value(&*observed.cluster).unwrap());
    api.put(CLAIM, json!({ "metadata": { "name": "db-0", "uid": "claim-0" } }));
    api
}

fn inits(api: &FakeApi) -> Vec<Value> {
    let all = api.object(POD)["spec"]["initContainers"].as_array().cloned().unwrap_or_default();
    all.into_iter().map(|container| container["name"].clone()).collect()
}

#[tokio::test]
async fn the_pod_that_is_to_restore_has_the_container_and_any_other_has_not() {
    let observed = restoring(Backup::Ready(Box::new(source())), None);
    let first = api(&observed);
    let acted = makes(&first, &observed, Birth::Restoring).await;
    assert!(acted.stop.is_none(), "{:?}", acted.stop);
    assert_eq!(inits(&first), ["agent", "restore"]);
    let second = api(&observed);
    assert!(makes(&second, &observed, Birth::Waiting).await.stop.is_none());
    assert_eq!(inits(&second), ["agent"]);
}

#[tokio::test]
async fn without_a_backup_no_pod_is_made_to_restore() {
    let observed = restoring(Backup::Awaited(String::new()), None);
    let api = api(&observed);
    let acted = makes(&api, &observed, Birth::Restoring).await;
    assert!(acted.stop.is_some_and(|stop| stop.is_surprise()));
    assert!(!api.written().iter().any(|line| line.contains("POST pods")), "{:?}", api.written());
}
