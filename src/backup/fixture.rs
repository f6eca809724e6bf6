//! A cluster that serves, and a backup of it, for tests.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quorate_crds::{
    BackupStore, DeletionPolicy, EtcdBackup, EtcdBackupSpec, EtcdCluster, EtcdClusterSpec, LocalSecret, TlsMode,
    VolumeClaim,
};
use serde_json::{Value, json};

/// When the backup was asked for.
pub const CREATED: Timestamp = Timestamp::constant(1_700_000_000, 0);

/// The spec of a backup to S3.
pub fn spec() -> EtcdBackupSpec {
    let store = BackupStore {
        address: Some("s3://bucket/etcd".into()),
        options: [("endpoint", "https://s3.example.com"), ("region", "x")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        credentials: Some(LocalSecret { name: "s3".into() }),
        ..BackupStore::default()
    };
    EtcdBackupSpec {
        cluster: "db".into(),
        store,
        timeout_minutes: 60,
        ttl_minutes: None,
        deletion_policy: DeletionPolicy::Retain,
    }
}

/// The same to a volume.
pub fn volume_spec() -> EtcdBackupSpec {
    let store = BackupStore { volume_claim: Some(VolumeClaim { name: "backups".into() }), ..BackupStore::default() };
    EtcdBackupSpec { store, ..spec() }
}

/// A backup, as an API server shows it.
pub fn backup(spec: EtcdBackupSpec) -> EtcdBackup {
    let mut backup = EtcdBackup::new("nightly", spec);
    backup.metadata.namespace = Some("ns".into());
    backup.metadata.uid = Some("backup-uid".into());
    backup.metadata.generation = Some(1);
    backup.metadata.creation_timestamp = Some(Time(CREATED));
    backup
}

/// Its cluster, of two voters and a learner.
pub fn cluster(tls: TlsMode, available: &str) -> EtcdCluster {
    let mut spec = EtcdClusterSpec::default();
    spec.tls.mode = tls;
    let mut object = serde_json::to_value(EtcdCluster::new("db", spec)).unwrap();
    object["metadata"]["namespace"] = json!("ns");
    object["metadata"]["uid"] = json!("cluster-uid");
    object["status"] = json!({
        "conditions": [{
            "type": "Available", "status": available, "reason": "X", "message": "Two of three members are down.",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
        "members": [
            { "name": "db-0", "role": "Voter" }, { "name": "db-3", "role": "Voter" }, { "name": "db-4", "role": "Learner" },
        ],
    });
    serde_json::from_value(object).unwrap()
}

/// What the agent tells of a backup that is in the store.
pub fn complete() -> Value {
    json!({
        "outcome": "complete", "location": "s3://bucket/etcd", "manifest": "cluster-uid/00000000000000ab/g/full",
        "endpoint": "https://db-3.db.ns.svc:2379", "etcdVersion": "3.6.16", "clusterId": "00000000000000ab",
        "revision": 1234, "compactRevision": 1000, "databaseBytes": 20_000_000, "storedBytes": 5_242_880,
        "blake3": "aa", "manifestBlake3": "bb", "encryptedTo": ["0123456789abcdef"], "taken": "2026-01-01T00:00:00Z", "seconds": 1.26,
    })
}

/// What it tells of one that failed.
pub fn failed(reason: &str, message: &str) -> Value {
    json!({ "outcome": "failed", "reason": reason, "message": message })
}

/// A pod of the Job that ended with these last words.
pub fn pod(number: i64, words: &str, code: i32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("nightly-{number}"), "labels": { "quorate.dev/backup": "nightly" },
            "creationTimestamp": (CREATED + jiff::SignedDuration::from_secs(number)).to_string(),
        },
        "spec": { "containers": [] },
        "status": { "containerStatuses": [{
            "name": "agent", "image": "x", "imageID": "x", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": code, "message": words } },
        }] },
    })
}
