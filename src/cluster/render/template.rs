//! The hash that tells whether a pod is up to date: over everything in it that comes from the spec and that only a new pod
//! can have, and over nothing else. What a pod can be given while it is there (its image, its resources) is compared by
//! itself. An operator that is upgraded may render pods in another way; that alone restarts no member.

use std::collections::{BTreeMap, BTreeSet};

use quorate_crds::{
    AutoCompaction, BeforeUpgrade, ClientService, ContinuousBackup, EtcdClusterSpec, EtcdSettings, Image, LocalSecret,
    PullPolicy, Scheduling, Storage, Tls, TlsMode, TlsSecrets,
};
use quorate_statemachine::{Release, TemplateHash};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// What is hashed, in its JSON form, each under its name in the spec. **A field that is added to it later must be left out
/// of the JSON while it has its default**, else every member of every cluster is restarted by the upgrade that brings it.
#[derive(Serialize)]
struct Template<'a> {
    #[serde(rename = "spec.image.pullPolicy")]
    pull_policy: PullPolicy,
    #[serde(rename = "spec.image.pullSecrets")]
    pull_secrets: &'a [LocalSecret],
    /// The limit of the emptyDir, for ephemeral storage. A claim's size is not the pod's.
    #[serde(rename = "spec.storage.size")]
    ephemeral: Option<&'a str>,
    /// In bytes. `None` if it can't be told, as for a size that is no quantity; then no ticket is rendered either.
    #[serde(rename = "spec.etcd.quota")]
    quota: Option<u64>,
    #[serde(rename = "spec.etcd.autoCompaction")]
    auto_compaction: &'a AutoCompaction,
    #[serde(rename = "spec.etcd.heartbeatIntervalMillis")]
    heartbeat_interval_millis: i32,
    #[serde(rename = "spec.etcd.electionTimeoutMillis")]
    election_timeout_millis: i32,
    #[serde(rename = "spec.etcd.snapshotCount")]
    snapshot_count: i32,
    #[serde(rename = "spec.etcd.extraFlags")]
    extra_flags: &'a BTreeMap<String, String>,
    /// Who provides the certificates, unless that is Quorate, which is the default.
    #[serde(rename = "spec.tls", skip_serializing_if = "Option::is_none")]
    tls: Option<(TlsMode, Option<&'a TlsSecrets>)>,
    /// The sidecar, if there is one.
    #[serde(rename = "spec.backup", skip_serializing_if = "Option::is_none")]
    backup: Option<ContinuousBackup>,
}

/// The hash of the pods that this spec asks for: the first eight bytes of a SHA-256. It is no secret and no proof; two
/// specs of one cluster that collide cost a restart that doesn't happen, once in 10^19 changes.
pub fn hash(spec: &EtcdClusterSpec) -> TemplateHash {
    hash_of(template(spec))
}

/// A hash for each field of the spec that the pods' template is made of, for a pod's annotation: by it is told later which
/// ones have changed.
pub fn settings(spec: &EtcdClusterSpec) -> String {
    serde_json::to_string(&setting_hashes(spec)).unwrap_or_default()
}

/// The fields of the spec that say something else than they did when a pod with this annotation was made.
pub fn changed_settings(spec: &EtcdClusterSpec, annotation: &str) -> Vec<String> {
    let Ok(before) = serde_json::from_str::<BTreeMap<String, String>>(annotation) else { return Vec::new() };
    let now = setting_hashes(spec);
    let fields: BTreeSet<_> = before.keys().chain(now.keys()).collect();
    fields.into_iter().filter(|field| before.get(*field) != now.get(*field)).cloned().collect()
}

fn setting_hashes(spec: &EtcdClusterSpec) -> BTreeMap<String, String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(template(spec)) else { return BTreeMap::new() };
    let short = |value: Value| format!("{:08x}", hash_of(value).0 >> 32);
    fields.into_iter().map(|(field, value)| (field, short(value))).collect()
}

/// What tells the trial of one release from that of another, or of the same with other flags.
pub fn trial_hash(spec: &EtcdClusterSpec, release: &Release) -> String {
    let Release { version, image } = release;
    let what = (version.to_string(), image.as_str(), write_hash(hash(spec)));
    format!("{:08x}", hash_of(what).0 >> 32)
}

fn template(spec: &EtcdClusterSpec) -> Template<'_> {
    // Without `..`: whoever adds a field has to decide whether a change of it restarts the members.
    let EtcdClusterSpec {
        replicas: _,
        // Given to the pod that is there.
        version: _,
        resources: _,
        image,
        storage,
        tls,
        etcd,
        scheduling,
        service,
        paused: _,
        backup,
        // In one pod, which reads it once.
        bootstrap: _,
    } = spec;
    // What certificates say is in their Secrets, which are exchanged without a restart.
    let Tls { mode, lifetime_minutes: _, extra_names: _, secrets } = tls;
    let Image { repository: _, tag: _, pull_policy, pull_secrets } = image;
    let Storage { size, storage_class_name: _, ephemeral, retention: _ } = storage;
    let EtcdSettings {
        quota: _,
        auto_compaction,
        heartbeat_interval_millis,
        election_timeout_millis,
        snapshot_count,
        extra_flags,
    } = etcd;
    // A change of these applies to pods that are created after it, as the API reference says, and to those that no node
    // has taken yet: they have a hash of their own.
    let Scheduling {
        node_selector: _,
        tolerations: _,
        anti_affinity: _,
        topology_spread_constraints: _,
        priority_class_name: _,
    } = scheduling;
    // Not in the pod at all.
    let ClientService { type_: _, annotations: _, node_port: _ } = service;
    Template {
        pull_policy: *pull_policy,
        pull_secrets,
        ephemeral: ephemeral.then(|| size.as_str()),
        quota: etcd.quota_bytes(storage).ok(),
        auto_compaction,
        heartbeat_interval_millis: *heartbeat_interval_millis,
        election_timeout_millis: *election_timeout_millis,
        snapshot_count: *snapshot_count,
        extra_flags,
        // What proves it, and what is taken besides it, is no part of a pod.
        backup: backup.clone().map(|backup| ContinuousBackup {
            verify: None,
            before_upgrade: BeforeUpgrade::default(),
            ..backup
        }),
        tls: (*mode != TlsMode::default()).then_some((*mode, secrets.as_ref())),
    }
}

/// The hash of the compute resources that this spec asks for.
pub fn resources_hash(spec: &EtcdClusterSpec) -> TemplateHash {
    hash_of(&spec.resources)
}

/// The hash of where the pods that this spec asks for may run.
pub fn scheduling_hash(spec: &EtcdClusterSpec) -> TemplateHash {
    hash_of(&spec.scheduling)
}

/// A steady hash of something, whatever the order of its fields is.
pub fn hash_of(what: impl Serialize) -> TemplateHash {
    let mut sha = Sha256::new();
    // Sorted, since serde_json keeps the order of fields where any crate of the build asks it to. It can't fail: the keys
    // of all these maps are strings. If it could, the hash would be that of nothing, and steady too.
    let text = serde_json::to_value(what).map(|mut value| {
        value.sort_all_objects();
        value.to_string()
    });
    sha.update(text.unwrap_or_default());
    let digest: [u8; 32] = sha.finalize().into();
    TemplateHash(digest[..8].iter().fold(0, |hash, byte| hash << 8 | u64::from(*byte)))
}

/// The hash as a pod's annotation carries it.
pub fn write_hash(hash: TemplateHash) -> String {
    format!("{:016x}", hash.0)
}

/// The hash that a pod's annotation carries; `None` if it is none.
pub fn read_hash(text: &str) -> Option<TemplateHash> {
    let hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then(|| u64::from_str_radix(text, 16).ok().map(TemplateHash)).flatten()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
    use proptest::prelude::*;
    use quorate_crds::{
        AntiAffinity, BackupStore, BackupVerification, CompactionMode, OnDelete, Quantity, Retention, ServiceType,
    };

    use super::super::fixture;
    use super::*;

    type Change = fn(&mut EtcdClusterSpec);

    /// If this fails, the operator that is being built restarts every member of every cluster: see [`Template`].
    #[test]
    fn the_hash_of_a_spec_stays_what_it_always_was() {
        assert_eq!(write_hash(hash(&EtcdClusterSpec::default())), "4ee3194e0f19aa54");
        assert_eq!(write_hash(hash(&backed_up(|_| ()))), "6425e6283128ca0d");
        assert_eq!(write_hash(resources_hash(&EtcdClusterSpec::default())), "091ddf4bed3acbb2");
    }

    fn backed_up(change: fn(&mut ContinuousBackup)) -> EtcdClusterSpec {
        let mut backup = ContinuousBackup::to(BackupStore::default());
        change(&mut backup);
        fixture::spec(|spec| spec.backup = Some(backup.clone()))
    }

    #[test]
    fn what_is_done_beside_the_sidecars_restarts_nobody() {
        let changes: [fn(&mut ContinuousBackup); 2] = [
            |backup| backup.verify = Some(BackupVerification { schedule: "30 3 * * *".into() }),
            |backup| backup.before_upgrade = BeforeUpgrade::Skip,
        ];
        for change in changes {
            assert_eq!(hash(&backed_up(change)), hash(&backed_up(|_| ())));
        }
    }

    #[test]
    fn what_is_in_the_pod_changes_the_hash() {
        let changes: [Change; 14] = [
            |s| s.backup = Some(ContinuousBackup::to(BackupStore::default())),
            |s| {
                s.backup = Some(ContinuousBackup {
                    flush_interval_seconds: 5,
                    ..ContinuousBackup::to(BackupStore::default())
                });
            },
            |s| s.tls.mode = TlsMode::Disabled,
            |s| s.image.pull_policy = PullPolicy::Always,
            |s| s.image.pull_secrets = vec![LocalSecret { name: "mirror".into() }],
            |s| s.storage.ephemeral = true,
            |s| s.storage.size = Quantity::new("1Gi"),
            |s| s.etcd.quota = Some(Quantity::new("1Gi")),
            |s| s.etcd.auto_compaction.mode = CompactionMode::Revision,
            |s| s.etcd.auto_compaction.retention = "2h".into(),
            |s| s.etcd.heartbeat_interval_millis = 200,
            |s| s.etcd.election_timeout_millis = 2000,
            |s| s.etcd.snapshot_count = 5000,
            |s| s.etcd.extra_flags = [("log-level".to_owned(), "debug".to_owned())].into(),
        ];
        let mut seen = vec![hash(&EtcdClusterSpec::default())];
        for (number, change) in changes.into_iter().enumerate() {
            let found = hash(&fixture::spec(change));
            assert!(!seen.contains(&found), "change {number}");
            seen.push(found);
        }
    }

    #[test]
    fn each_setting_that_changed_is_named() {
        let before = settings(&EtcdClusterSpec::default());
        assert_eq!(changed_settings(&EtcdClusterSpec::default(), &before), [""; 0]);
        let after = fixture::spec(|s| {
            s.etcd.snapshot_count = 5000;
            s.etcd.extra_flags = [("log-level".to_owned(), "debug".to_owned())].into();
            s.tls.mode = TlsMode::Disabled;
            s.version = "3.7.3".into();
        });
        let named = ["spec.etcd.extraFlags", "spec.etcd.snapshotCount", "spec.tls"];
        assert_eq!(changed_settings(&after, &before), named);
        assert_eq!(changed_settings(&EtcdClusterSpec::default(), &settings(&after)), named);
        for unreadable in ["", "[]", "{\"spec.etcd.quota\":1}"] {
            assert_eq!(changed_settings(&after, unreadable), [""; 0], "{unreadable}");
        }
    }

    #[test]
    fn resources_have_a_hash_of_their_own() {
        let more = fixture::spec(|s| s.resources.requests = [("cpu".to_owned(), Amount("1".into()))].into());
        assert_ne!(resources_hash(&more), resources_hash(&EtcdClusterSpec::default()));
    }

    #[test]
    fn what_is_not_in_the_pod_and_what_it_can_be_given_does_not() {
        let changes: [Change; 15] = [
            |s| s.version = "3.6.17".into(),
            |s| s.image.repository = "mirror.example.com/etcd".into(),
            |s| s.resources.requests = [("cpu".to_owned(), Amount("1".into()))].into(),
            |s| s.tls.lifetime_minutes = 60,
            |s| s.tls.extra_names = vec!["etcd.example.com".into()],
            |s| s.replicas = 5,
            |s| s.paused = true,
            |s| s.storage.size = Quantity::new("20Gi"),
            |s| s.storage.storage_class_name = Some("fast".into()),
            |s| s.storage.retention = Some(Retention { on_delete: OnDelete::Delete, ..Retention::default() }),
            |s| s.service.type_ = ServiceType::NodePort,
            |s| s.scheduling.anti_affinity = AntiAffinity::Required,
            |s| s.scheduling.priority_class_name = Some("high".into()),
            // The quota in force, said aloud.
            |s| s.etcd.quota = Some(Quantity::new("2Gi")),
            |s| s.image.tag = Some("v3.6.16".into()),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(hash(&fixture::spec(change)), hash(&EtcdClusterSpec::default()), "change {number}");
        }
    }

    #[test]
    fn what_is_no_hash_is_none() {
        for text in ["", "1", "0123456789abcdeg", "+123456789abcdef", "0123456789abcdef0"] {
            assert_eq!(read_hash(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_hash_survives_its_annotation(hash: u64) {
            prop_assert_eq!(read_hash(&write_hash(TemplateHash(hash))), Some(TemplateHash(hash)));
        }

        #[test]
        fn any_annotation_is_read_without_panic(text in ".{0,20}") {
            let _ = read_hash(&text);
        }
    }
}
