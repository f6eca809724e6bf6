//! The sidecar that keeps the continuous backup: an archive beside each member. It alone mounts the store's credentials, and
//! nothing of etcd waits for it: it has no probe, and what it needs may be missing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use quorate_backup::archive::status::PORT;
use quorate_crds::{BackupRetention, ContinuousBackup, Resources};
use quorate_statemachine::Serial;

use super::pod::{AGENT_IN_IMAGE, AGENT_PULL_POLICY, container_security, empty_dir, mount, port, value};
use super::store;
use super::tls::TlsFiles;
use super::{Cluster, tls};

/// Where the member's own certificate is, for the sidecar's port.
const MEMBER_TLS_FOLDER: &str = "/etc/quorate/member";
/// The flag that has the port demand a certificate.
const LOCKS: &str = "--listen-cert=";
/// The name of the container.
pub const ARCHIVE_CONTAINER: &str = "archive";
/// Where it puts aside what the store doesn't take.
const SPILL_FOLDER: &str = "/spill";
/// What its volumes' names begin with: a restore of the same pod mounts a store too.
const VOLUMES: &str = "archive-";
/// Put aside is never more than was told; the kubelet, which would evict the pod for it, gets a limit that is larger.
const SPILL_MARGIN: u64 = 64 << 20;
/// What is put aside where the spec has no amount that can be read: the default.
const SPILL: u64 = 1 << 30;
/// What part of etcd's quota the events since the last full snapshot may reach: a restore puts them all to the database, before
/// it leaves out what is not live.
const PART_OF_QUOTA: u64 = 4;
/// What it asks for, and the most memory that it may have. While it follows it takes some 20 MiB, with a snapshot and a store
/// that is slow some 100.
const REQUESTS: [(&str, &str); 2] = [("cpu", "50m"), ("memory", "64Mi")];
const LIMITS: [(&str, &str); 1] = [("memory", "256Mi")];
/// The same where etcd's own requests are its limits: else the sidecar would cost the pod its class Guaranteed.
const GUARANTEED: [(&str, &str); 2] = [("cpu", "500m"), ("memory", "256Mi")];

/// The pod with the sidecar, if the spec asks for one.
pub(super) fn with_archive(mut pod: Pod, cluster: &Cluster<'_>, serial: Serial, image: &str) -> Pod {
    let (Some(backup), Some(spec)) = (&cluster.spec.backup, pod.spec.as_mut()) else { return pod };
    let spill = backup.spill_limit.bytes().unwrap_or(SPILL);
    let mut access = store::access(&backup.store, store::Use::WriteBeside);
    access.env.push(value("QUORATE_LINEAGE", cluster.uid));
    let access = access.and_etcd(cluster, &tls::own_endpoint(cluster, serial), true);
    let store::Access { env, mut mounts, mut volumes } = access;
    let (member_mount, member_volume) = member_certificate(cluster, serial);
    mounts.extend(member_mount);
    volumes.extend(member_volume);
    mounts.push(mount("spill", SPILL_FOLDER, false));
    let room = empty_dir(Quantity((spill + SPILL_MARGIN).to_string()));
    volumes.push(Volume { name: "spill".into(), empty_dir: Some(room), ..Volume::default() });
    for name in mounts.iter_mut().map(|mount| &mut mount.name).chain(volumes.iter_mut().map(|volume| &mut volume.name))
    {
        name.insert_str(0, VOLUMES);
    }
    let container = Container {
        name: ARCHIVE_CONTAINER.into(),
        image: Some(image.to_owned()),
        image_pull_policy: Some(AGENT_PULL_POLICY.into()),
        command: Some(command(cluster, backup, spill)),
        env: Some(env),
        ports: Some(vec![port("archive", PORT)]),
        volume_mounts: Some(mounts),
        resources: Some(resources(&cluster.spec.resources)),
        // A sidecar (KEP-753): it is started before etcd, which does not wait for more than that, and ends after it.
        restart_policy: Some("Always".into()),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    };
    spec.init_containers.get_or_insert_default().push(container);
    spec.volumes.get_or_insert_default().extend(volumes);
    // Its token stays out of the pod: what ties credentials to an account brings its own.
    spec.service_account_name.clone_from(&backup.store.service_account_name);
    pod
}

fn command(cluster: &Cluster<'_>, backup: &ContinuousBackup, spill: u64) -> Vec<String> {
    let ContinuousBackup {
        store: _,
        flush_interval_seconds,
        full_interval_minutes,
        spill_limit: _,
        retention,
        verify: _,
        before_upgrade: _,
    } = backup;
    let mut command = vec![
        AGENT_IN_IMAGE.to_owned(),
        "archive".to_owned(),
        "--beside-leader".to_owned(),
        format!("--listen=[::]:{PORT}"),
        format!("--flush-every={flush_interval_seconds}s"),
        format!("--full-every={full_interval_minutes}m"),
        format!("--spill={SPILL_FOLDER}"),
        format!("--spill-limit={spill}"),
    ];
    // Without a quota that can be read no ticket is rendered either.
    let quota = cluster.spec.etcd.quota_bytes(&cluster.spec.storage).ok();
    command.extend(quota.map(|quota| format!("--full-after={}", quota / PART_OF_QUOTA)));
    command.extend(lock(cluster).into_iter().flatten());
    if let Some(BackupRetention { generations, minutes }) = retention {
        command.extend(generations.map(|generations| format!("--keep={generations}")));
        command.extend(minutes.map(|minutes| format!("--keep-last={minutes}m")));
    }
    command
}

/// What it shows callers, and nothing else of the member's: by its peer's key it could pass for it.
fn member_certificate(cluster: &Cluster<'_>, serial: Serial) -> (Option<VolumeMount>, Option<Volume>) {
    let Some(volume) = tls::server_volume(cluster, serial, "member") else { return (None, None) };
    (Some(mount("member", MEMBER_TLS_FOLDER, true)), Some(volume))
}

/// Whom a sidecar answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Everybody, in the clear.
    All,
    /// Whom its member lets in at the client port.
    Clients,
}

impl Audience {
    /// That of this sidecar. None at all speaks as one that answers everybody.
    pub fn of(archive: Option<&Container>) -> Self {
        let mut words = archive.iter().flat_map(|archive| archive.command.iter().flatten());
        if words.any(|word| word.starts_with(LOCKS)) { Self::Clients } else { Self::All }
    }
}

/// What it shows callers and demands of them: what its member does at the client port.
fn lock(cluster: &Cluster<'_>) -> Option<[String; 3]> {
    let files = [
        (LOCKS, TlsFiles::SERVER_CERTIFICATE),
        ("--listen-key=", TlsFiles::SERVER_KEY),
        ("--listen-client-ca=", TlsFiles::CLIENTS_TRUSTED),
    ];
    let lock = files.map(|(flag, file)| format!("{flag}{MEMBER_TLS_FOLDER}/{file}"));
    cluster.spec.tls.mode.encrypts().then_some(lock)
}

fn resources(of_etcd: &Resources) -> ResourceRequirements {
    let Resources { requests, limits } = of_etcd;
    let guaranteed = ["cpu", "memory"]
        .iter()
        .all(|name| limits.get(*name).is_some_and(|limit| requests.get(*name).is_none_or(|request| request == limit)));
    let amounts = |pairs: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
    };
    let (requests, limits) =
        if guaranteed { (amounts(&GUARANTEED), amounts(&GUARANTEED)) } else { (amounts(&REQUESTS), amounts(&LIMITS)) };
    ResourceRequirements { requests: Some(requests), limits: Some(limits), claims: None }
}

#[cfg(test)]
mod tests {
    use quorate_crds::{BackupStore, Encryption, EtcdClusterSpec, LocalSecret, TlsMode};
    use quorate_statemachine::Uid;
    use serde_json::{Value, json, to_value};

    use super::super::{Delivery, fixture, pod};
    use super::*;

    fn backup() -> ContinuousBackup {
        ContinuousBackup::to(BackupStore {
            address: Some("s3://bucket/etcd".into()),
            credentials: Some(LocalSecret { name: "s3".into() }),
            encryption: Some(Encryption { secret_name: "keys".into() }),
            service_account_name: Some("archiver".into()),
            ..BackupStore::default()
        })
    }

    fn rendered(change: impl FnOnce(&mut EtcdClusterSpec)) -> Value {
        let spec = fixture::spec(|spec| {
            spec.backup = Some(backup());
            change(spec);
        });
        let (cluster, volume) = (fixture::cluster(&spec), Uid::new("claim-4"));
        let agent = (&fixture::agent(), Delivery::InitContainer);
        let volume = super::super::Volume::Claim(&volume);
        to_value(pod(&cluster, Serial(4), &fixture::release(), agent, volume, None)).unwrap()["spec"].clone()
    }

    fn archive(pod: &Value) -> &Value {
        pod["initContainers"].as_array().unwrap().iter().find(|one| one["name"] == ARCHIVE_CONTAINER).unwrap()
    }

    fn variable(container: &Value, name: &str) -> Option<String> {
        let found = container["env"].as_array()?.iter().find(|one| one["name"] == name)?;
        Some(found["value"].as_str()?.to_owned())
    }

    #[test]
    fn nothing_of_etcd_waits_for_it() {
        let pod = rendered(|_| ());
        let archive = archive(&pod);
        assert_eq!(archive["restartPolicy"], "Always");
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert_eq!(archive[probe], Value::Null, "{probe}");
        }
        let secrets: Vec<_> =
            pod["volumes"].as_array().unwrap().iter().filter(|one| one["name"].to_string().contains(VOLUMES)).collect();
        assert_eq!(secrets.len(), 5);
        for volume in secrets.iter().filter(|one| one.get("secret").is_some()) {
            assert_eq!(volume["secret"]["optional"], true, "{volume}");
        }
        let names: std::collections::BTreeSet<_> =
            pod["volumes"].as_array().unwrap().iter().map(|one| one["name"].to_string()).collect();
        assert_eq!(names.len(), pod["volumes"].as_array().unwrap().len(), "names are unique");
    }

    #[test]
    fn it_alone_sees_the_credentials_and_the_public_keys_and_nobody_the_private_one() {
        let pod = rendered(|_| ());
        for kind in ["initContainers", "containers"] {
            for container in pod[kind].as_array().unwrap() {
                for volume in ["archive-store", "archive-keys"] {
                    let mounts = container["volumeMounts"].to_string().contains(volume);
                    assert_eq!(mounts, container["name"] == ARCHIVE_CONTAINER, "{volume}: {}", container["name"]);
                }
            }
        }
        let text = pod.to_string();
        assert!(text.contains("/etc/quorate/keys/recipients") && !text.contains("identity"), "{text}");
        assert_eq!(
            (&pod["serviceAccountName"], &pod["automountServiceAccountToken"]),
            (&json!("archiver"), &json!(false))
        );
    }

    #[test]
    fn it_reads_its_own_member_as_a_client_does() {
        let of = |mode| {
            let pod = rendered(|spec| spec.tls.mode = mode);
            let archive = archive(&pod).clone();
            (variable(&archive, "QUORATE_ENDPOINT").unwrap(), variable(&archive, "QUORATE_ETCD_CERT"))
        };
        let file = Some("/etc/quorate/etcd/tls.crt".to_owned());
        assert_eq!(of(TlsMode::Issued), ("https://127.0.0.1:2379".to_owned(), file));
        assert_eq!(of(TlsMode::Disabled), ("http://127.0.0.1:2379".to_owned(), None));
    }

    #[test]
    fn its_port_is_locked_as_the_client_port_is() {
        let of = |mode| {
            let pod = rendered(|spec| spec.tls.mode = mode);
            let (archive, volumes) = (archive(&pod).clone(), pod["volumes"].clone());
            let words: Vec<_> = archive["command"].as_array().unwrap().iter().map(ToString::to_string).collect();
            let locks: Vec<_> = words.into_iter().filter(|word| word.contains("--listen-")).collect();
            let mounts = archive["volumeMounts"].as_array().unwrap();
            let folder = mounts.iter().find(|one| one["mountPath"] == MEMBER_TLS_FOLDER).cloned();
            (locks, folder, volumes)
        };
        let (locks, folder, volumes) = of(TlsMode::Issued);
        for flag in ["cert=/etc/quorate/member/server.crt", "key=/etc/quorate/member/server.key"] {
            assert!(locks.iter().any(|word| word.contains(flag)), "{flag}: {locks:?}");
        }
        assert!(locks.iter().any(|word| word.contains("client-ca=/etc/quorate/member/client-ca.crt")), "{locks:?}");
        let volume = folder.unwrap()["name"].clone();
        let volume = volumes.as_array().unwrap().iter().find(|one| one["name"] == volume).unwrap();
        assert_eq!(volume["secret"]["secretName"], "db-4");
        let brought: Vec<_> =
            volume["secret"]["items"].as_array().unwrap().iter().map(|item| item["path"].clone()).collect();
        assert_eq!(brought, ["server.crt", "server.key", "client-ca.crt"], "and no peer's");
        let (locks, folder, _) = of(TlsMode::Disabled);
        assert_eq!((locks, folder), (Vec::new(), None));
        let answers = |mode| {
            let pod = rendered(|spec| spec.tls.mode = mode);
            Audience::of(Some(&serde_json::from_value(archive(&pod).clone()).unwrap()))
        };
        assert_eq!((answers(TlsMode::Issued), answers(TlsMode::Disabled)), (Audience::Clients, Audience::All));
    }

    #[test]
    fn each_field_of_the_spec_is_told() {
        let words = |change: fn(&mut ContinuousBackup)| {
            let pod = rendered(|spec| change(spec.backup.as_mut().unwrap()));
            archive(&pod)["command"].as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
        };
        let all: Vec<String> = words(|_| ());
        for word in ["--flush-every=10s", "--full-every=1440m", "--spill-limit=1073741824", "--full-after=536870912"] {
            assert!(all.iter().any(|own| own == word), "{word}: {all:?}");
        }
        assert!(!all.iter().any(|word| word.starts_with("--keep")), "{all:?}");
        let other: Vec<String> = words(|backup| {
            backup.flush_interval_seconds = 2;
            backup.retention = Some(BackupRetention { generations: Some(3), minutes: Some(90) });
        });
        for word in ["--flush-every=2s", "--keep=3", "--keep-last=90m"] {
            assert!(other.iter().any(|own| own == word), "{word}: {other:?}");
        }
    }

    #[test]
    fn a_guaranteed_pod_stays_one() {
        let amounts: BTreeMap<_, _> =
            [("cpu".to_owned(), Quantity("1".into())), ("memory".to_owned(), Quantity("1Gi".into()))].into();
        let pod = rendered(|spec| spec.resources = Resources { requests: amounts.clone(), limits: amounts });
        let resources = &archive(&pod)["resources"];
        assert_eq!(resources["requests"], resources["limits"]);
        let pod = rendered(|_| ());
        assert_eq!(archive(&pod)["resources"]["limits"], json!({ "memory": "256Mi" }));
    }
}
