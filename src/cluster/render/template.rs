//! The hash that tells whether a pod is up to date: over everything in it that comes from the spec, and over nothing
//! else. An operator that is upgraded may render pods in another way; that alone restarts no member.

use std::collections::BTreeMap;

use quorate_crds::{
    AutoCompaction, ClientService, EtcdClusterSpec, EtcdSettings, Image, LocalSecret, PullPolicy, Resources,
    Scheduling, Storage, Tls, TlsMode, TlsSecrets,
};
use quorate_statemachine::TemplateHash;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// What is hashed, in its JSON form. **A field that is added to it later must be left out of the JSON while it has its
/// default**, else every member of every cluster is restarted by the upgrade that brings it.
#[derive(Serialize)]
struct Template<'a> {
    version: &'a str,
    image: String,
    pull_policy: PullPolicy,
    pull_secrets: &'a [LocalSecret],
    /// The limit of the emptyDir, for ephemeral storage. A claim's size is not the pod's.
    ephemeral: Option<&'a str>,
    /// In bytes. `None` if it can't be told, as for a size that is no quantity; then no ticket is rendered either.
    quota: Option<u64>,
    auto_compaction: &'a AutoCompaction,
    heartbeat_interval_millis: i32,
    election_timeout_millis: i32,
    snapshot_count: i32,
    extra_flags: &'a BTreeMap<String, String>,
    resources: &'a Resources,
    /// Who provides the certificates, unless that is Quorate, which is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<(TlsMode, Option<&'a TlsSecrets>)>,
}

/// The hash of the pods that this spec asks for: the first eight bytes of a SHA-256. It is no secret and no proof; two
/// specs of one cluster that collide cost a restart that doesn't happen, once in 10^19 changes.
pub fn hash(spec: &EtcdClusterSpec) -> TemplateHash {
    // Without `..`: whoever adds a field has to decide whether a change of it restarts the members.
    let EtcdClusterSpec { replicas: _, version, image, storage, tls, etcd, resources, scheduling, service, paused: _ } =
        spec;
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
    let template = Template {
        version,
        image: spec.image_reference(),
        pull_policy: *pull_policy,
        pull_secrets,
        ephemeral: ephemeral.then(|| size.as_str()),
        quota: etcd.quota_bytes(storage).ok(),
        auto_compaction,
        heartbeat_interval_millis: *heartbeat_interval_millis,
        election_timeout_millis: *election_timeout_millis,
        snapshot_count: *snapshot_count,
        extra_flags,
        resources,
        tls: (*mode != TlsMode::default()).then_some((*mode, secrets.as_ref())),
    };
    hash_of(template)
}

/// The hash of where the pods that this spec asks for may run.
pub fn scheduling_hash(spec: &EtcdClusterSpec) -> TemplateHash {
    hash_of(&spec.scheduling)
}

fn hash_of(what: impl Serialize) -> TemplateHash {
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
    use quorate_crds::{AntiAffinity, CompactionMode, OnDelete, Quantity, Retention, ServiceType};

    use super::super::fixture;
    use super::*;

    type Change = fn(&mut EtcdClusterSpec);

    /// If this fails, the operator that is being built restarts every member of every cluster: see [`Template`].
    #[test]
    fn the_hash_of_a_spec_stays_what_it_always_was() {
        assert_eq!(write_hash(hash(&EtcdClusterSpec::default())), "988b7098352b8c96");
    }

    #[test]
    fn what_is_in_the_pod_changes_the_hash() {
        let changes: [Change; 16] = [
            |s| s.tls.mode = TlsMode::Disabled,
            |s| s.version = "3.6.17".into(),
            |s| s.image.repository = "mirror.example.com/etcd".into(),
            |s| s.image.tag = Some("v3.6.16-own".into()),
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
            |s| s.resources.requests = [("cpu".to_owned(), Amount("1".into()))].into(),
        ];
        let mut seen = vec![hash(&EtcdClusterSpec::default())];
        for (number, change) in changes.into_iter().enumerate() {
            let found = hash(&fixture::spec(change));
            assert!(!seen.contains(&found), "change {number}");
            seen.push(found);
        }
    }

    #[test]
    fn what_is_not_in_the_pod_and_where_it_runs_does_not() {
        let changes: [Change; 12] = [
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
            // The image in force, said aloud.
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
