//! EtcdBackups that are deleted with what they stand for: what is waited for, what is deleted, and that the object always
//! goes in the end.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quorate_crds::{
    BackupPhase, BackupStore, ContinuousBackup, DeletionPolicy, EtcdBackup, EtcdBackupSpec, EtcdCluster, Reason,
    TlsMode,
};
use serde_json::{Value, json};

use super::delete::{LONGEST, PATIENCE, Seen, Step, begins_with, decide, left, refused};
use super::fixture::{CREATED, backup, cluster, complete, pod, spec, volume_spec};
use super::tests::{S3, order};
use super::{job, status};
use crate::store_secrets::{Holds, Needed};

const MANIFEST: &str = "cluster-uid/00000000000000ab/g/full";

/// What was seen, piece by piece.
struct Scene {
    backup: EtcdBackup,
    cluster: Option<EtcdCluster>,
    restored_by: Option<&'static str>,
    missing: Option<Needed<'static>>,
    job: Option<Job>,
    pods: Vec<Pod>,
    unread: Option<&'static str>,
    now: Timestamp,
}

impl Scene {
    /// A complete backup that was deleted just now.
    fn new() -> Self {
        let mut backup = backup(spec());
        backup.spec.deletion_policy = DeletionPolicy::Delete;
        let complete = serde_json::from_value(complete()).unwrap();
        let ended = status::ended(status::Now { backup: &backup, time: CREATED }, Ok(&complete));
        backup.status = Some(ended);
        let cluster = Some(cluster(TlsMode::Issued, "True"));
        let (pods, now) = (Vec::new(), CREATED);
        Self { backup, cluster, restored_by: None, missing: None, job: None, pods, unread: None, now }
    }

    /// With the Job that deletes, which has this condition, and with pods.
    fn with_job(condition: Option<&str>, pods: &[Value]) -> Self {
        let mut scene = Self::new();
        let cluster = cluster(TlsMode::Issued, "True");
        let job = job::deleting(order(&scene.backup, &cluster), MANIFEST, "bb").unwrap();
        let mut job = serde_json::to_value(job).unwrap();
        if let Some(kind) = condition {
            job["status"] = json!({ "conditions": [{ "type": kind, "status": "True", "message": "of the Job" }] });
        }
        scene.job = Some(serde_json::from_value(job).unwrap());
        scene.pods = pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect();
        scene
    }

    fn seen(&self) -> Seen<'_> {
        let Self { backup, cluster, restored_by, missing, job, pods, unread, now } = self;
        let (cluster, job) = (cluster.as_ref(), job.as_ref());
        let (restored_by, missing, unread, now) = (*restored_by, *missing, *unread, *now);
        Seen { backup, cluster, restored_by, missing, job, pods, unread, now }
    }

    /// What is waited for, in words.
    fn waits(&mut self) -> (BackupPhase, String) {
        let Step::Wait(status) = decide(self.seen()) else { panic!("{:?}", decide(self.seen())) };
        self.backup.status = Some(status.clone());
        let ready = &status.conditions[0];
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "BackupDeleting"));
        (status.phase.unwrap(), ready.message.clone())
    }

    /// With which words the object goes.
    fn leaves(&self, reason: Reason) -> String {
        farewell(decide(self.seen()), reason)
    }
}

fn farewell(step: Step, reason: Reason) -> String {
    let Step::Release(Some(told)) = step else { panic!("{step:?}") };
    let news = told.news();
    assert_eq!((news.reason, news.warning), (reason, reason == Reason::BackupLeft));
    assert!(news.note.contains(MANIFEST), "{}", news.note);
    news.note
}

#[test]
fn exactly_what_the_status_names_is_deleted() {
    let Step::Create { manifest, hash, status } = decide(Scene::new().seen()) else { panic!("nothing is in the way") };
    assert_eq!((manifest.as_str(), hash.as_str(), status.phase), (MANIFEST, "bb", Some(BackupPhase::Deleting)));
    let scene = Scene::new();
    let order = job::Order { cluster: None, ..order(&scene.backup, scene.cluster.as_ref().unwrap()) };
    let job = serde_json::to_value(job::deleting(order, &manifest, &hash).unwrap()).unwrap();
    assert_eq!(job["metadata"]["name"], "nightly-delete");
    let pod = &job["spec"]["template"]["spec"];
    let wanted = json!(["/quorate-agent", "delete", MANIFEST, "--hash", "bb", "--report", "/dev/termination-log"]);
    assert_eq!(pod["containers"][0]["command"], wanted);
    // It comes to the store as the Job that took it did, and not to etcd.
    let variables: Vec<_> = pod["containers"][0]["env"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(variables, ["QUORATE_STORE", "QUORATE_STORE_OPTIONS", "QUORATE_STORE_CREDENTIALS"]);
    assert_eq!(pod["volumes"].as_array().unwrap().len(), 1);
}

#[test]
fn what_is_to_be_kept_or_never_came_about_lets_the_object_go_at_once() {
    let mut scene = Scene::new();
    scene.backup.spec.deletion_policy = DeletionPolicy::Retain;
    assert_eq!(decide(scene.seen()), Step::Release(None));
    let mut scene = Scene::new();
    scene.backup.status = None;
    assert_eq!(decide(scene.seen()), Step::Release(None));
}

#[test]
fn what_may_be_in_the_store_without_a_name_is_told() {
    let told = |reason: &str, phase: BackupPhase, kind: DeletionPolicy| {
        let mut scene = Scene::new();
        let status = json!({ "phase": phase, "startedAt": CREATED.to_string(), "conditions": [{ "type": "Ready",
            "status": "False", "reason": reason, "message": "x", "lastTransitionTime": CREATED.to_string() }] });
        scene.backup.status = Some(serde_json::from_value(status).unwrap());
        scene.backup.spec.deletion_policy = kind;
        match decide(scene.seen()) {
            Step::Release(told) => told.map(|told| told.news()),
            other @ (Step::Wait(_) | Step::Create { .. }) => panic!("{other:?}"),
        }
    };
    for (reason, phase) in [
        ("ResultUnknown", BackupPhase::Failed),
        ("TimedOut", BackupPhase::Failed),
        ("JobGone", BackupPhase::Failed),
        ("JobFailed", BackupPhase::Failed),
        // Its Job went with the object.
        ("SnapshotRunning", BackupPhase::Running),
    ] {
        let news = told(reason, phase, DeletionPolicy::Delete).unwrap();
        assert_eq!((news.reason, news.warning), (Reason::BackupLeft, true));
        let place = "A backup of EtcdCluster db may be in s3://bucket/etcd, below cluster-uid/, and was not deleted";
        assert!(news.note.starts_with(place), "{}", news.note);
        assert_eq!(told(reason, phase, DeletionPolicy::Retain), None);
    }
    // The agent said what had come of it, or there was no Job.
    for (reason, phase) in [("StoreRefused", BackupPhase::Failed), ("ClusterMissing", BackupPhase::Pending)] {
        assert_eq!(told(reason, phase, DeletionPolicy::Delete), None, "{reason}");
    }
}

#[test]
fn a_cluster_that_came_later_is_not_the_one_that_was_backed_up() {
    let mut scene = Scene::new();
    scene.backup.spec = EtcdBackupSpec { deletion_policy: DeletionPolicy::Delete, ..volume_spec() };
    let status = json!({ "phase": "Running", "startedAt": CREATED.to_string() });
    scene.backup.status = Some(serde_json::from_value(status).unwrap());
    let Some(cluster) = &mut scene.cluster else { panic!("it has one") };
    cluster.metadata.creation_timestamp = Some(Time(CREATED + SignedDuration::from_secs(1)));
    let Step::Release(Some(told)) = decide(scene.seen()) else { panic!("there may be a backup") };
    assert!(told.news().note.contains("may be in volume claim backups, and was not deleted"), "{}", told.news().note);
}

#[test]
fn an_encrypted_backup_is_deleted_without_its_keys() {
    let mut scene = Scene::new();
    scene.missing = Some(Needed { name: "keys", holds: Holds::Keys });
    assert!(matches!(decide(scene.seen()), Step::Create { .. }));
}

#[test]
fn what_is_to_be_kept_too_late_may_be_gone_and_that_is_said() {
    let kept = |mut scene: Scene| {
        scene.backup.spec.deletion_policy = DeletionPolicy::Retain;
        scene
    };
    let words = kept(Scene::with_job(None, &[])).leaves(Reason::BackupLeft);
    assert!(words.contains("may be gone from s3://bucket/etcd") && words.contains("set to Retain"), "{words}");
    assert!(words.contains("/full (hash bb) may be gone"), "{words}");
    // Whoever wanted to stop it deleted the Job.
    let mut scene = Scene::with_job(None, &[]);
    scene.waits();
    scene.job = None;
    assert!(kept(scene).leaves(Reason::BackupLeft).contains("may be gone"));
    kept(Scene::with_job(Some("Complete"), &[])).leaves(Reason::BackupDeleted);
    assert!(kept(Scene::with_job(Some("Failed"), &[])).leaves(Reason::BackupLeft).contains("Of the Job."));
    // It only waited for a Job to be possible.
    let mut scene = Scene::new();
    scene.missing = Some(S3);
    scene.waits();
    assert_eq!(decide(kept(scene).seen()), Step::Release(None));
}

#[test]
fn the_job_tells_how_it_went() {
    let failed = pod(1, "the store refuses the credentials", 1);
    let mut scene = Scene::with_job(None, std::slice::from_ref(&failed));
    let (phase, words) = scene.waits();
    assert_eq!(phase, BackupPhase::Deleting);
    assert!(words.ends_with("It is tried again. The store refuses the credentials."), "{words}");
    Scene::with_job(Some("Complete"), std::slice::from_ref(&failed)).leaves(Reason::BackupDeleted);
    let words = Scene::with_job(Some("Failed"), &[failed]).leaves(Reason::BackupLeft);
    assert!(words.contains("s3://bucket/etcd. The store refuses the credentials."), "{words}");
    let words = Scene::with_job(Some("Failed"), &[]).leaves(Reason::BackupLeft);
    assert!(words.ends_with("Of the Job."), "{words}");
}

#[test]
fn a_job_that_does_not_end_is_waited_for_and_not_for_ever() {
    type Make = fn() -> Scene;
    fn suspended() -> Scene {
        let mut scene = silent();
        scene.job.as_mut().unwrap().spec.as_mut().unwrap().suspend = Some(true);
        scene
    }
    /// As on a node that is dead.
    fn silent() -> Scene {
        Scene::with_job(None, &[])
    }
    let tries = || Scene::with_job(None, &[pod(1, "the store refuses the credentials", 1)]);
    let never_end: [(Make, &str); 3] = [(tries, "refuses"), (suspended, "nightly-delete is suspended"), (silent, "")];
    for (make, words) in never_end {
        let mut scene = make();
        // What it needed was waited for, too.
        scene.missing = Some(S3);
        let job = scene.job.take();
        scene.waits();
        scene.now += PATIENCE - SignedDuration::from_secs(1);
        scene.missing = None;
        scene.job = job;
        let (_, told) = scene.waits();
        assert!(told.contains(words), "{told}");
        scene.now += LONGEST - PATIENCE;
        scene.waits();
        scene.now += SignedDuration::from_secs(1);
        let told = scene.leaves(Reason::BackupLeft);
        assert!(told.contains("Job nightly-delete has not ended within 30m") && told.contains(words), "{told}");
    }
}

#[test]
fn what_was_shown_as_its_end_is_not_decided_again() {
    let mut scene = Scene::with_job(Some("Complete"), &[]);
    let Step::Release(Some(told)) = decide(scene.seen()) else { panic!("it is deleted") };
    let at = status::Now { backup: &scene.backup, time: scene.now };
    scene.backup.status = Some(status::going_away(at, BackupPhase::Deleting, &told));
    // Somebody has deleted the Job, while the finalizer could not be taken off.
    scene.job = None;
    scene.backup.spec.deletion_policy = DeletionPolicy::Retain;
    assert_eq!(decide(scene.seen()), Step::Release(Some(told)));
}

#[test]
fn what_a_continuous_backup_may_go_on_from_stays() {
    let recorded = |address: &str, uid: &str| {
        let mut scene = Scene::new();
        let cluster = scene.cluster.as_mut().unwrap();
        let store = BackupStore { address: Some(address.into()), ..BackupStore::default() };
        cluster.spec.backup = Some(ContinuousBackup::to(store));
        cluster.metadata.uid = Some(uid.into());
        scene
    };
    for same in
        ["s3://bucket/etcd", "s3://bucket/etcd/", "s3://bucket//etcd", "s3://bucket/%65tcd", "s3://bucket/a/../etcd"]
    {
        let words = recorded(same, "cluster-uid").leaves(Reason::BackupLeft);
        assert!(words.contains("continuous backup"), "{same}: {words}");
    }
    let elsewhere =
        ["s3://bucket/other", "s3://bucket/etcd/etcd", "s3://bucket", "s3://other/etcd", "gs://bucket/etcd"];
    let elsewhere = elsewhere.map(|address| recorded(address, "cluster-uid"));
    for other in elsewhere.into_iter().chain([recorded("s3://bucket/etcd", "another-uid")]) {
        assert!(matches!(decide(other.seen()), Step::Create { .. }), "{:?}", other.cluster);
    }
}

#[test]
fn a_cluster_that_has_not_begun_keeps_what_it_may_begin_with() {
    let begins = |restore: Value, begun: bool| {
        let mut cluster = serde_json::to_value(cluster(TlsMode::Issued, "False")).unwrap();
        cluster["spec"]["bootstrap"] = json!({ "restore": restore });
        if begun {
            cluster["status"]["ledger"] = json!({ "seeded": true, "nextSerial": 1 });
        }
        begins_with(&serde_json::from_value(cluster).unwrap(), &Scene::new().backup)
    };
    let from = |address: &str, lineage: &str, more: Value| {
        let mut restore = json!({ "store": { "address": address }, "lineage": lineage });
        restore.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        restore
    };
    let kept = [
        json!({ "backup": { "name": "nightly" } }),
        from("s3://bucket/etcd/", "cluster-uid", json!({})),
        from("s3://bucket/etcd", "cluster-uid", json!({ "generation": "g" })),
        from("s3://bucket/etcd", "cluster-uid", json!({ "revision": 1300 })),
        from("s3://bucket/etcd", "cluster-uid", json!({ "time": "2026-01-01T00:00:00Z" })),
    ];
    for restore in kept {
        assert!(begins(restore.clone(), false), "{restore}");
        assert!(!begins(restore.clone(), true), "it has begun: {restore}");
    }
    let others = [
        json!({ "backup": { "name": "weekly" } }),
        from("s3://bucket/other", "cluster-uid", json!({})),
        from("s3://bucket/etcd", "another-uid", json!({})),
        from("s3://bucket/etcd", "cluster-uid", json!({ "generation": "h" })),
        json!({ "store": { "volumeClaim": { "name": "backups" } }, "lineage": "cluster-uid" }),
    ];
    for restore in others {
        assert!(!begins(restore.clone(), false), "{restore}");
    }
}

#[test]
fn what_stands_in_the_way_is_waited_for_and_not_for_ever() {
    type Place = fn(&mut Scene);
    fn another(scene: &mut Scene) {
        let cluster = cluster(TlsMode::Issued, "True");
        scene.job = job::deleting(order(&scene.backup, &cluster), MANIFEST, "bb");
        scene.job.as_mut().unwrap().metadata.owner_references = None;
    }
    fn earlier(scene: &mut Scene) {
        another(scene);
        scene.job.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(CREATED));
    }
    let obstacles: [(Place, &str); 4] = [
        (|scene| scene.missing = Some(S3), "no Secret s3"),
        (|scene| scene.restored_by = Some("restored"), "EtcdCluster restored is to begin with it"),
        (another, "another Job nightly-delete "),
        (earlier, "An earlier Job nightly-delete "),
    ];
    for (place, words) in obstacles {
        let mut scene = Scene::new();
        place(&mut scene);
        // However long nobody has looked.
        scene.now = CREATED + SignedDuration::from_hours(50);
        let (phase, told) = scene.waits();
        assert!(told.contains(words), "{told}");
        assert_eq!(phase, BackupPhase::Complete, "whoever restores it is not told otherwise");
        scene.now += PATIENCE - SignedDuration::from_secs(1);
        scene.waits();
        scene.now += SignedDuration::from_secs(1);
        assert!(scene.leaves(Reason::BackupLeft).contains(words));
    }
}

#[test]
fn what_can_not_be_read_is_waited_for_and_not_for_ever() {
    const UNREAD: Option<&str> = Some("failed to list EtcdCluster: 404 page not found");
    for (begun, longest) in [(false, PATIENCE), (true, LONGEST)] {
        let mut scene = Scene::with_job(None, &[]);
        if begun {
            scene.waits();
        }
        scene.job = None;
        scene.unread = UNREAD;
        // A cluster that is not seen may record there, or begin with it: nothing is deleted.
        scene.cluster = None;
        let (phase, told) = scene.waits();
        assert!(told.contains("Failed to list EtcdCluster: 404 page not found."), "{told}");
        assert_eq!(phase, if begun { BackupPhase::Deleting } else { BackupPhase::Complete });
        scene.now += longest - SignedDuration::from_secs(1);
        scene.waits();
        scene.now += SignedDuration::from_secs(1);
        assert!(scene.leaves(Reason::BackupLeft).contains("404 page not found."));
        scene.job = Scene::with_job(Some("Complete"), &[]).job;
        scene.leaves(Reason::BackupDeleted);
    }
}

#[test]
fn a_snapshot_that_can_not_be_looked_at_is_waited_for_from_then_on_and_not_for_ever() {
    let mut scene = Scene::new();
    scene.backup.status = None;
    let running = status::Told::new(Reason::SnapshotRunning, "x");
    let at = status::Now { backup: &scene.backup, time: scene.now };
    scene.backup.status = Some(status::going_on(at, BackupPhase::Running, &running));
    // It takes its time.
    scene.now += LONGEST;
    scene.unread = Some("failed to get Job nightly: forbidden");
    let (phase, told) = scene.waits();
    assert!(phase == BackupPhase::Running && told.contains("Failed to get Job nightly: forbidden."), "{told}");
    scene.now += PATIENCE - SignedDuration::from_secs(1);
    scene.waits();
    scene.now += SignedDuration::from_secs(1);
    let Step::Release(Some(told)) = decide(scene.seen()) else { panic!("that is long enough") };
    assert!(told.news().note.contains("may be in s3://bucket/etcd"), "{}", told.news().note);
}

#[test]
fn a_job_that_kubernetes_refuses_is_waited_for_and_not_for_ever() {
    let mut scene = Scene::new();
    let Step::Wait(status) = refused(scene.seen(), MANIFEST, "exceeded quota") else { panic!("it may pass") };
    assert!(status.conditions[0].message.contains("Exceeded quota."), "{}", status.conditions[0].message);
    scene.backup.status = Some(status);
    let flood = "quota ".repeat(100_000);
    let Step::Wait(status) = refused(scene.seen(), MANIFEST, &flood) else { panic!("it may pass") };
    let told = &status.conditions[0].message;
    assert!(told.len() < 3000 && told.ends_with("... It is waited, for 10m at most."), "{told}");
    scene.now += PATIENCE;
    let words = farewell(refused(scene.seen(), MANIFEST, "exceeded quota"), Reason::BackupLeft);
    assert!(words.ends_with("Exceeded quota."), "{words}");
    farewell(left(scene.seen(), MANIFEST, "the namespace goes"), Reason::BackupLeft);
}
