//! EtcdBackups from their creation to their end: what is decided, and what is rendered.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use quorate_backup::snapshot::{self, Failure, Progress, Report};
use quorate_crds::{
    BackupPhase, ConditionType, Encryption, EtcdBackup, EtcdBackupStatus, EtcdCluster, LocalSecret, Reason, TlsMode,
    TlsSecrets,
};
use serde_json::{Value, json};

use super::decide::{Decision, Seen, Step, decide};
use super::fixture::{CREATED, backup, cluster, complete, failed, pod, spec, volume_spec};
use super::job::{self, Order};
use crate::store_secrets::{Holds, Needed};

pub fn order<'a>(backup: &'a EtcdBackup, cluster: &'a EtcdCluster) -> Order<'a> {
    Order { backup, cluster: Some(cluster), deadline: SignedDuration::from_mins(9), image: "agent:1" }
}

fn rendered(backup: &EtcdBackup, cluster: &EtcdCluster) -> Value {
    let voters = ["db-0", "db-3"].map(str::to_owned);
    serde_json::to_value(job::taking(order(backup, cluster), &voters).unwrap()).unwrap()
}

fn variables(job: &Value) -> Value {
    let env = job["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    env.iter().map(|one| (one["name"].as_str().unwrap().to_owned(), one["value"].clone())).collect()
}

#[test]
fn the_job_gets_the_store_the_members_and_a_clients_certificate() {
    let job = rendered(&backup(spec()), &cluster(TlsMode::Issued, "True"));
    assert_eq!(
        variables(&job),
        json!({
            "QUORATE_STORE": "s3://bucket/etcd",
            "QUORATE_STORE_OPTIONS": "endpoint=https://s3.example.com,region=x",
            "QUORATE_STORE_CREDENTIALS": "/etc/quorate/store",
            "QUORATE_LINEAGE": "cluster-uid",
            "QUORATE_ENDPOINT": "https://db-0.db.ns.svc:2379,https://db-3.db.ns.svc:2379",
            "QUORATE_ETCD_CA": "/etc/quorate/etcd/ca.crt",
            "QUORATE_ETCD_CERT": "/etc/quorate/etcd/tls.crt",
            "QUORATE_ETCD_KEY": "/etc/quorate/etcd/tls.key",
        })
    );
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "s3");
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], "db-client");
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 540);
    assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "backup-uid");
    // It is no member: nothing of the cluster's may select it.
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    assert_eq!((&labels["quorate.dev/cluster"], &labels["quorate.dev/backup"]), (&Value::Null, &json!("nightly")));
}

#[test]
fn a_job_that_encrypts_sees_public_keys_and_one_that_deletes_none() {
    let mut own = spec();
    own.store.encryption = Some(Encryption { secret_name: "keys".into() });
    let (backup, cluster) = (backup(own), cluster(TlsMode::Issued, "True"));
    let job = rendered(&backup, &cluster);
    assert_eq!(variables(&job)["QUORATE_RECIPIENTS_FILE"], "/etc/quorate/keys/recipients");
    assert!(!job.to_string().contains("identity"), "{job}");
    let deleting = job::deleting(order(&backup, &cluster), "m", "h").unwrap();
    assert!(!serde_json::to_string(&deleting).unwrap().contains("keys"));
}

#[test]
fn a_volume_is_mounted_and_plain_text_needs_no_certificate() {
    let job = rendered(&backup(volume_spec()), &cluster(TlsMode::Disabled, "True"));
    assert_eq!(
        variables(&job),
        json!({
            "QUORATE_STORE": "file:///backups",
            "QUORATE_LINEAGE": "cluster-uid",
            "QUORATE_ENDPOINT": "http://db-0.db.ns.svc:2379,http://db-3.db.ns.svc:2379",
        })
    );
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"], json!([{ "name": "backups", "persistentVolumeClaim": { "claimName": "backups" } }]));
    assert_eq!(pod["containers"][0]["volumeMounts"], json!([{ "name": "backups", "mountPath": "/backups" }]));
}

#[test]
fn with_certificates_of_the_users_the_job_shows_theirs() {
    let mut cluster = cluster(TlsMode::Secrets, "True");
    let named = |name: &str| LocalSecret { name: name.into() };
    cluster.spec.tls.secrets = Some(TlsSecrets { peer: named("p"), server: named("s"), client: named("c") });
    let mut own = spec();
    own.store.credentials = None;
    own.store.service_account_name = Some("backup".into());
    let pod = &rendered(&backup(own), &cluster)["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "c");
    assert_eq!((&pod["serviceAccountName"], &pod["automountServiceAccountToken"]), (&json!("backup"), &json!(true)));
}

/// The Secret that the backup's store names is not there.
pub const S3: Needed<'static> = Needed { name: "s3", holds: Holds::Credentials };

/// What was seen, piece by piece.
struct Scene {
    backup: EtcdBackup,
    cluster: Option<EtcdCluster>,
    job: Option<Job>,
    pods: Vec<Pod>,
    progress: Option<Progress>,
    missing: Option<Needed<'static>>,
    minutes: i64,
    seconds: i64,
}

impl Scene {
    fn new() -> Self {
        let cluster = Some(cluster(TlsMode::Issued, "True"));
        Self {
            backup: backup(spec()),
            cluster,
            job: None,
            pods: Vec::new(),
            progress: None,
            missing: None,
            minutes: 0,
            seconds: 0,
        }
    }

    /// With a Job that has this condition, and pods.
    fn running(condition: Option<(&str, &str)>, pods: &[Value]) -> Self {
        let mut scene = Self::new();
        scene.show();
        let voters = ["db-0".to_owned()];
        let cluster = cluster(TlsMode::Issued, "True");
        let mut job = serde_json::to_value(job::taking(order(&scene.backup, &cluster), &voters).unwrap()).unwrap();
        job["metadata"]["creationTimestamp"] = json!(CREATED.to_string());
        if let Some((kind, reason)) = condition {
            let condition = json!({ "type": kind, "status": "True", "reason": reason, "message": "of the Job" });
            job["status"] = json!({ "conditions": [condition] });
        }
        scene.job = Some(serde_json::from_value(job).unwrap());
        scene.pods = pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect();
        scene
    }

    fn decide(&self) -> Decision {
        let Self { backup, cluster, job, pods, progress, missing, minutes, seconds } = self;
        let now = CREATED + SignedDuration::from_mins(*minutes) + SignedDuration::from_secs(*seconds);
        let (cluster, job) = (cluster.as_ref(), job.as_ref());
        decide(Seen { backup, cluster, missing: *missing, job, pods, progress: *progress, now })
    }

    /// Takes over the status that was decided.
    fn show(&mut self) -> EtcdBackupStatus {
        let status = self.decide().status;
        self.backup.status = Some(status.clone());
        status
    }
}

/// The phase, and reason and message of Ready.
pub fn told(status: &EtcdBackupStatus) -> (Option<BackupPhase>, &str, &str) {
    let ready = ConditionType::Ready.among(&status.conditions).unwrap();
    assert_eq!(ready.status == "True", status.phase == Some(BackupPhase::Complete));
    let stalled = ConditionType::Stalled.among(&status.conditions).unwrap();
    assert_eq!(stalled.status == "True", status.phase == Some(BackupPhase::Failed));
    (status.phase, &ready.reason, &ready.message)
}

#[test]
fn a_cluster_that_takes_no_writes_for_want_of_space_can_be_backed_up() {
    let mut scene = Scene::new();
    let of_alarm = |reason: Reason| {
        let mut cluster = cluster(TlsMode::Issued, "False");
        cluster.status.as_mut().unwrap().conditions[0].reason = reason.as_str().into();
        Some(cluster)
    };
    scene.cluster = of_alarm(Reason::NoSpace);
    assert!(matches!(scene.decide().step, Step::Create { .. }));
    // Nobody knows which member's data is right.
    scene.cluster = of_alarm(Reason::Corrupt);
    assert_eq!(scene.decide().step, Step::Wait);
}

#[test]
fn it_waits_for_a_cluster_that_serves_and_not_for_ever() {
    let mut scene = Scene::new();
    scene.cluster = None;
    let status = scene.show();
    assert_eq!(told(&status).1, "ClusterMissing");
    scene.cluster = Some(cluster(TlsMode::Issued, "False"));
    let decision = scene.decide();
    let (phase, reason, message) = told(&decision.status);
    assert_eq!((phase, reason, &decision.step), (Some(BackupPhase::Pending), "NoHealthyMember", &Step::Wait));
    assert!(message.contains("Two of three members are down."), "{message}");
    scene.minutes = 60;
    let status = scene.show();
    let (phase, reason, message) = told(&status);
    assert_eq!((phase, reason), (Some(BackupPhase::Failed), "NoHealthyMember"));
    assert!(message.ends_with("It was given up after spec.timeoutMinutes (60)."), "{message}");
    // What has failed stays so.
    scene.cluster = Some(cluster(TlsMode::Issued, "True"));
    assert_eq!(scene.decide(), Decision { step: Step::Wait, status });
}

#[test]
fn it_waits_for_the_secrets_that_it_names() {
    let mut scene = Scene::new();
    let keys = Needed { name: "keys", holds: Holds::Keys };
    for (missing, words) in [
        (S3, "There is no Secret s3, which spec.store.credentials names."),
        (keys, "There is no Secret keys, which spec.store.encryption names."),
    ] {
        scene.missing = Some(missing);
        let decision = scene.decide();
        let (_, reason, message) = told(&decision.status);
        assert_eq!((reason, message, decision.step), ("SecretMissing", words, Step::Wait));
    }
    scene.missing = None;
    assert!(matches!(scene.decide().step, Step::Create { .. }));
}

#[test]
fn the_voters_are_read_and_the_job_gets_the_time_that_is_left() {
    let mut scene = Scene::new();
    for (minutes, left) in [(0, 60), (50, 10), (90, 1)] {
        scene.minutes = minutes;
        let voters = vec!["db-0".to_owned(), "db-3".to_owned()];
        let deadline = SignedDuration::from_mins(left);
        assert_eq!(scene.decide().step, Step::Create { voters, deadline }, "{minutes}");
    }
}

#[test]
fn a_complete_backup_is_described() {
    let mut scene = Scene::running(Some(("Complete", "")), &[pod(1, &complete().to_string(), 0)]);
    let status = scene.show();
    assert_eq!(told(&status).0, Some(BackupPhase::Complete));
    assert_eq!(
        (status.revision, status.stored_bytes, status.size.as_deref()),
        (Some(1234), Some(5_242_880), Some("5.0Mi"))
    );
    assert_eq!((status.duration.as_deref(), status.lineage.as_deref()), (Some("1.3s"), Some("cluster-uid")));
    assert_eq!((status.location.as_deref(), status.hash.as_deref()), (Some("s3://bucket/etcd"), Some("bb")));
    assert_eq!(status.encrypted_to, ["0123456789abcdef"]);
    assert!(status.started_at.is_some() && status.ended_at.is_some());
    // It stays so when the Job is gone, until its time is over.
    scene.job = None;
    scene.pods.clear();
    scene.minutes = 10_000;
    assert_eq!(scene.decide(), Decision { step: Step::Wait, status });
    scene.backup.spec.ttl_minutes = Some(10_001);
    assert_eq!(scene.decide().step, Step::Wait);
    scene.backup.spec.ttl_minutes = Some(10_000);
    assert_eq!(scene.decide().step, Step::Delete);
}

#[test]
fn progress_is_shown_every_few_seconds_and_not_after_the_end() {
    let mut scene = Scene::running(None, &[]);
    assert_eq!(scene.show().progress, None);
    let mut shown = |seconds, read| {
        scene.seconds = seconds;
        scene.progress = Some(Progress { read, total: Some(3 << 20), stored: read / 4 });
        scene.show().progress.unwrap().shown
    };
    assert_eq!(shown(1, 1 << 20), "1.0Mi of 3.0Mi");
    assert_eq!(shown(5, 2 << 20), "1.0Mi of 3.0Mi");
    assert_eq!(shown(6, 2 << 20), "2.0Mi of 3.0Mi");
    // Silence says nothing.
    (scene.progress, scene.seconds) = (None, 60);
    assert_eq!(scene.show().progress.unwrap().stored_bytes, 2 << 18);
    // The next try begins with nothing, and what has ended makes no progress.
    let retried = pod(1, &failed("StoreFailed", "503").to_string(), 1);
    scene.pods = vec![serde_json::from_value(retried).unwrap()];
    assert_eq!(scene.show().progress, None);
    scene.pods = vec![serde_json::from_value(pod(2, &complete().to_string(), 0)).unwrap()];
    assert_eq!(scene.show().progress, None);
}

#[test]
fn a_failure_is_told_in_the_agents_words() {
    let refused = pod(1, &failed("StoreRefused", "the store refuses the credentials").to_string(), 3);
    let status = Scene::running(Some(("Failed", "PodFailurePolicy")), std::slice::from_ref(&refused)).show();
    assert_eq!(told(&status), (Some(BackupPhase::Failed), "StoreRefused", "The store refuses the credentials."));
    // While the Job tries again, the last failure shows.
    let status = Scene::running(None, &[refused]).show();
    let wanted = "It is tried again. The store refuses the credentials.";
    assert_eq!(told(&status), (Some(BackupPhase::Running), "StoreRefused", wanted));
    // Of several pods the last one tells; a complete one before any other.
    let late = pod(9, &failed("StoreFailed", "503").to_string(), 1);
    let early = pod(1, &failed("NoHealthyMember", "nobody").to_string(), 1);
    let status = Scene::running(Some(("Failed", "BackoffLimitExceeded")), &[late.clone(), early]).show();
    assert_eq!(told(&status).1, "StoreFailed");
    let status = Scene::running(None, &[pod(1, &complete().to_string(), 0), late]).show();
    assert_eq!(told(&status).0, Some(BackupPhase::Complete));
}

#[test]
fn a_store_that_never_answers_is_told_while_it_is_tried_again_and_when_the_job_gives_up() {
    let words = "failed to write \"quorate-backups.json\" in s3://bucket/etcd: operation timed out";
    let wanted = "Failed to write \"quorate-backups.json\" in s3://bucket/etcd: operation timed out.";
    let silent = [1, 2].map(|number| pod(number, &failed("StoreFailed", words).to_string(), 1));
    let status = Scene::running(None, &silent).show();
    let again = format!("It is tried again. {wanted}");
    assert_eq!(told(&status), (Some(BackupPhase::Running), "StoreFailed", again.as_str()));
    // After its tries, or while one of them still waits for an answer.
    for why in ["BackoffLimitExceeded", "DeadlineExceeded"] {
        let status = Scene::running(Some(("Failed", why)), &silent).show();
        assert_eq!(told(&status), (Some(BackupPhase::Failed), "StoreFailed", wanted), "{why}");
    }
}

#[test]
fn a_snapshot_that_is_ended_in_its_first_try_is_told_with_how_far_it_was() {
    let ended = Some(("Failed", "DeadlineExceeded"));
    let status = Scene::running(ended, &[]).show();
    let wanted =
        "Of the Job. Nothing of the database was seen to come by then; the store is asked before the members are.";
    assert_eq!(told(&status), (Some(BackupPhase::Failed), "TimedOut", wanted));
    let mut scene = Scene::running(None, &[]);
    scene.progress = Some(Progress { read: 1 << 30, total: Some(5 << 30), stored: 1 << 28 });
    scene.show();
    let shown = scene.backup.status.clone();
    let mut scene = Scene::running(ended, &[]);
    scene.backup.status = shown;
    let wanted = "Of the Job. Of the database 1.0Gi of 5.0Gi had come by then.";
    assert_eq!(told(&scene.show()).2, wanted);
}

#[test]
fn a_volume_that_is_full_is_told_with_what_helps() {
    let failure = Failure { reason: snapshot::Reason::StoreFull, message: "no room; make the volume larger".into() };
    let words = serde_json::to_string(&Report::Failed(failure)).unwrap();
    let status = Scene::running(Some(("Failed", "PodFailurePolicy")), &[pod(1, &words, 3)]).show();
    assert_eq!(told(&status), (Some(BackupPhase::Failed), "StoreFull", "No room; make the volume larger."));
}

#[test]
fn a_job_that_does_not_end_is_not_waited_for_for_ever() {
    let refused = pod(1, &failed("StoreRefused", "the store refuses the credentials").to_string(), 3);
    for (pods, words) in [(vec![], "Job nightly has not ended"), (vec![refused], "refuses the credentials.")] {
        let mut scene = Scene::running(None, &pods);
        let deadline = scene.job.as_ref().and_then(|job| job.spec.as_ref()?.active_deadline_seconds).unwrap();
        (scene.minutes, scene.seconds) = (10, deadline - 1);
        assert_eq!(told(&scene.show()).0, Some(BackupPhase::Running));
        // One that was made late, after an operator was away, has the same time.
        let mut late = Scene::running(None, &pods);
        late.minutes = 75;
        late.job.as_mut().unwrap().metadata.creation_timestamp = Some(Time(CREATED + SignedDuration::from_mins(75)));
        assert_eq!(told(&late.show()).0, Some(BackupPhase::Running));
        scene.seconds = deadline;
        let status = scene.show();
        let (phase, reason, message) = told(&status);
        assert_eq!((phase, reason), (Some(BackupPhase::Failed), "TimedOut"));
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn no_time_that_an_object_names_is_too_far_away_to_count_with() {
    for seconds in [i64::MIN, i64::MAX - 1, i64::MAX] {
        let mut scene = Scene::running(None, &[]);
        scene.job.as_mut().unwrap().spec.as_mut().unwrap().active_deadline_seconds = Some(seconds);
        scene.minutes = 10_000;
        let wanted = if seconds < 0 { BackupPhase::Failed } else { BackupPhase::Running };
        assert_eq!(told(&scene.show()).0, Some(wanted), "{seconds}");
    }
    for (time, step) in [(Timestamp::MIN, Step::Delete), (Timestamp::MAX, Step::Wait)] {
        let mut scene = Scene::running(Some(("Complete", "")), &[pod(1, &complete().to_string(), 0)]);
        scene.show();
        scene.backup.spec.ttl_minutes = Some(i32::MAX);
        // Four thousand years from then on.
        scene.backup.status.as_mut().unwrap().ended_at = Some(Time(time));
        assert_eq!(scene.decide().step, step, "{time}");
        let mut scene = Scene::new();
        scene.backup.metadata.creation_timestamp = Some(Time(time));
        scene.backup.spec.timeout_minutes = i32::MAX;
        assert!(matches!(scene.decide().step, Step::Create { .. }), "{time}");
    }
}

#[test]
fn a_pod_that_says_nothing_is_told_about() {
    let waiting = |reason: &str| {
        let mut pod = pod(1, "", 0);
        pod["status"]["containerStatuses"][0]["state"] =
            json!({ "waiting": { "reason": reason, "message": "secret \"s3\" not found" } });
        pod
    };
    let status = Scene::running(None, &[waiting("ContainerCreating")]).show();
    assert_eq!(told(&status).1, "SnapshotRunning");
    let status = Scene::running(None, &[waiting("CreateContainerConfigError")]).show();
    let (_, reason, message) = told(&status);
    assert!(reason == "PodWaiting" && message.contains("secret \"s3\" not found"), "{reason}: {message}");
    let status = Scene::running(Some(("Failed", "DeadlineExceeded")), &[waiting("ImagePullBackOff")]).show();
    let (_, reason, message) = told(&status);
    assert!(reason == "TimedOut" && message.contains("ImagePullBackOff"), "{reason}: {message}");
    let mut unplaced = pod(1, "", 0);
    unplaced["status"] =
        json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" }] });
    let status = Scene::running(None, &[unplaced]).show();
    assert!(told(&status).2.contains("finds no node: 0/3 nodes are available"));
    let status = Scene::running(Some(("Failed", "BackoffLimitExceeded")), &[pod(1, "exec format error", 1)]).show();
    let (_, reason, message) = told(&status);
    assert!(reason == "JobFailed" && message.contains("exec format error"), "{reason}: {message}");
    let status = Scene::running(Some(("Complete", "")), &[]).show();
    assert_eq!((told(&status).0, told(&status).1), (Some(BackupPhase::Failed), "ResultUnknown"));
}

#[test]
fn a_job_that_gets_no_pod_is_told_about() {
    let mut scene = Scene::running(None, &[]);
    scene.seconds = 9;
    assert_eq!(told(&scene.show()).1, "SnapshotRunning");
    scene.seconds = 10;
    let status = scene.show();
    let wanted = "Job nightly has no pod yet: see its events.";
    assert_eq!(told(&status), (Some(BackupPhase::Running), "PodWaiting", wanted));
    scene.pods = vec![serde_json::from_value(pod(11, "", 0)).unwrap()];
    scene.pods[0].status = None;
    assert_eq!(told(&scene.show()).1, "SnapshotRunning");
}

#[test]
fn another_job_of_that_name_is_left_alone_and_a_lost_one_is_not_made_again() {
    let mut scene = Scene::running(None, &[]);
    scene.job.as_mut().unwrap().metadata.owner_references = None;
    let status = scene.decide().status;
    let (phase, reason, message) = told(&status);
    assert_eq!((phase, reason), (Some(BackupPhase::Failed), "NameTaken"));
    assert!(message.contains("another Job nightly "), "{message}");
    // One that only names this backup is not its own either.
    let mut scene = Scene::running(None, &[]);
    scene.job.as_mut().unwrap().owner_references_mut()[0].controller = None;
    assert_eq!(told(&scene.decide().status).1, "NameTaken");
    let mut scene = Scene::running(None, &[]);
    scene.job = None;
    let decision = scene.decide();
    assert_eq!((told(&decision.status).1, decision.step), ("JobGone", Step::Wait));
}

#[test]
fn what_is_being_deleted_gets_no_job() {
    let mut scene = Scene::new();
    scene.cluster = Some(cluster(TlsMode::Issued, "False"));
    let pending = scene.show();
    scene.cluster = Some(cluster(TlsMode::Issued, "True"));
    assert!(matches!(scene.decide().step, Step::Create { .. }));
    scene.backup.metadata.deletion_timestamp = Some(Time(CREATED));
    assert_eq!(scene.decide(), Decision { step: Step::Wait, status: pending });
}

#[test]
fn the_job_of_an_earlier_backup_of_that_name_is_waited_for_and_not_for_ever() {
    type Change = fn(&mut Job);
    let earlier: [Change; 2] = [
        |job| job.owner_references_mut()[0].uid = "earlier".into(),
        |job| {
            job.metadata.owner_references = None;
            job.metadata.deletion_timestamp = Some(Time(CREATED));
        },
    ];
    for change in earlier {
        let complete = pod(1, &complete().to_string(), 0);
        let mut scene = Scene::running(Some(("Complete", "")), &[complete]);
        change(scene.job.as_mut().unwrap());
        scene.backup.status = None;
        let decision = scene.decide();
        let (phase, reason, message) = told(&decision.status);
        assert_eq!((phase, reason, &decision.step), (Some(BackupPhase::Pending), "NameTaken", &Step::Wait));
        assert!(message.contains("An earlier Job nightly is still being deleted."), "{message}");
        scene.job = None;
        assert!(matches!(scene.decide().step, Step::Create { .. }));
        // Nobody collects it.
        let mut scene = Scene::running(None, &[]);
        change(scene.job.as_mut().unwrap());
        (scene.backup.status, scene.minutes) = (None, 60);
        assert_eq!(told(&scene.decide().status).0, Some(BackupPhase::Failed));
    }
}
