//! The container that restores a backup onto the volume of who is to be the seed, before the launcher. It alone mounts the
//! store's credentials. Only a pod that is made before a seed is chosen has it.

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use quorate_statemachine::{Release, Serial};

use super::pod::{AGENT, AGENT_FOLDER, ETCD_CONTAINER, POD_INFO_FOLDER, VOLUME_PATH, container_security, mount};
use super::{Cluster, RenderError, store};
use crate::cluster::observe::backup::Source;

/// The name of the container.
pub const RESTORE_CONTAINER: &str = "restore";
/// The variables of etcd's container that say whose the volume is.
const IDENTITY: [&str; 2] = ["QUORATE_MEMBER", "QUORATE_VOLUME"];

/// A member's pod that first restores a backup. It has etcd's own image, whose etcdutl makes the member's data: with the
/// name, the peer URL and the token that the seed's ticket has too.
pub fn with_restore(
    mut pod: Pod,
    cluster: &Cluster<'_>,
    serial: Serial,
    release: &Release,
    source: &Source,
) -> Result<Pod, RenderError> {
    let Source { store, lineage, cluster: cluster_id, generation, to, manifest } = source;
    let quota = cluster.spec.etcd.quota_bytes(&cluster.spec.storage)?;
    let mut command: Vec<String> = vec![AGENT.into(), "seed".into(), format!("--lineage={lineage}")];
    let chosen = [("cluster", cluster_id), ("generation", generation), ("to", to)];
    command.extend(chosen.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value.as_ref()?))));
    command.extend(manifest.map(|hash| format!("--manifest-blake3={hash}")));
    command.extend([
        format!("--peer-url={}", cluster.peer_url(serial)),
        format!("--token={}", cluster.uid),
        format!("--etcd-version={}", release.version),
        format!("--quota={quota}"),
    ]);
    let store::Access { env, mounts, volumes } = store::access(store, store::Use::ReadOnce);
    let Some(spec) = pod.spec.as_mut() else { return Ok(pod) };
    let etcd = spec.containers.iter().find(|container| container.name == ETCD_CONTAINER);
    let identity = etcd.into_iter().flat_map(|etcd| etcd.env.iter().flatten());
    let identity = identity.filter(|variable| IDENTITY.contains(&variable.name.as_str())).cloned();
    let env: Vec<EnvVar> = identity.chain(env).collect();
    let own =
        [mount("data", VOLUME_PATH, false), mount("quorate", AGENT_FOLDER, true), mount("pod", POD_INFO_FOLDER, true)];
    let container = Container {
        name: RESTORE_CONTAINER.into(),
        image: Some(release.image.as_str().to_owned()),
        image_pull_policy: Some(cluster.spec.image.pull_policy.as_str().to_owned()),
        command: Some(command),
        env: Some(env),
        volume_mounts: Some(own.into_iter().chain(mounts).collect()),
        // As the agent's: a pod is counted at the larger of these and etcd's.
        resources: Some(cluster.spec.resources.clone().into()),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    };
    spec.init_containers.get_or_insert_default().push(container);
    spec.volumes.get_or_insert_default().extend(volumes);
    // For credentials that the provider ties to it. Its token stays out of the pod all the same.
    if store.service_account_name.is_some() {
        spec.service_account_name.clone_from(&store.service_account_name);
    }
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use quorate_crds::{BackupStore, Encryption, EtcdClusterSpec, LocalSecret, VolumeClaim};
    use quorate_statemachine::Uid;
    use serde_json::{Value, json, to_value};

    use super::super::{Begin, Delivery, Volume, fixture, pod, ticket};
    use super::*;

    /// Of nothing.
    const HASH: &str = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

    fn s3() -> BackupStore {
        BackupStore {
            address: Some("s3://bucket/etcd".into()),
            options: [("region".to_owned(), "x".to_owned())].into(),
            credentials: Some(LocalSecret { name: "s3".into() }),
            encryption: Some(Encryption { secret_name: "keys".into() }),
            service_account_name: Some("restorer".into()),
            ..BackupStore::default()
        }
    }

    fn source(store: BackupStore) -> Source {
        let (lineage, generation) = ("blue".to_owned(), Some("g".to_owned()));
        Source {
            store,
            lineage,
            cluster: None,
            generation,
            to: Some("41".into()),
            manifest: Some(HASH.parse().unwrap()),
        }
    }

    fn rendered(volume: Volume<'_>, delivery: Delivery, source: &Source) -> Value {
        let spec = EtcdClusterSpec::default();
        let (cluster, release, agent) = (fixture::cluster(&spec), fixture::release(), fixture::agent());
        let pod = pod(&cluster, Serial(4), &release, (&agent, delivery), volume, None);
        to_value(with_restore(pod, &cluster, Serial(4), &release, source).unwrap()).unwrap()["spec"].clone()
    }

    fn words(container: &Value) -> Vec<String> {
        container["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn it_makes_the_member_that_its_ticket_starts() {
        let claim = Uid::new("claim-4");
        let pod = rendered(Volume::Claim(&claim), Delivery::InitContainer, &source(s3()));
        let names: Vec<_> =
            pod["initContainers"].as_array().unwrap().iter().map(|container| &container["name"]).collect();
        assert_eq!(names, ["agent", "restore"]);
        let restore = &pod["initContainers"][1];
        assert_eq!(restore["image"], "quay.io/coreos/etcd:v3.6.16");
        let words = words(restore);
        assert_eq!(words[..3], ["/quorate/quorate-agent", "seed", "--lineage=blue"]);
        let hash = format!("--manifest-blake3={HASH}");
        for word in ["--generation=g", "--to=41", &hash, "--etcd-version=3.6.16", "--quota=2147483648"] {
            assert!(words.iter().any(|own| own == word), "{word}: {words:?}");
        }
        let spec = EtcdClusterSpec::default();
        let cluster = fixture::cluster(&spec);
        let ticket = ticket(&cluster, Serial(4), &claim, fixture::release().version, &Begin::Seed).unwrap();
        let flag = |name: &str| ticket.flags.iter().find_map(|flag| flag.strip_prefix(name)).unwrap().to_owned();
        assert!(words.contains(&format!("--peer-url={}", flag("--initial-advertise-peer-urls="))));
        assert!(words.contains(&format!("--token={}", flag("--initial-cluster-token="))));
        let env = restore["env"].as_array().unwrap();
        assert!(env.contains(&json!({ "name": "QUORATE_MEMBER", "value": "db-4" })));
        assert!(env.contains(&json!({ "name": "QUORATE_VOLUME", "value": "claim-4" })));
        assert!(env.contains(&json!({ "name": "QUORATE_STORE_OPTIONS", "value": "region=x" })));
        let ephemeral = rendered(Volume::Ephemeral, Delivery::ImageVolume, &source(s3()));
        let restore = &ephemeral["initContainers"][0];
        assert_eq!(restore["name"], "restore");
        let volume = restore["env"].as_array().unwrap().iter().find(|one| one["name"] == "QUORATE_VOLUME").unwrap();
        assert_eq!(volume["valueFrom"]["fieldRef"]["fieldPath"], "metadata.uid");
    }

    #[test]
    fn it_alone_sees_the_credentials_and_the_keys_and_may_miss_them_later() {
        let claim = Uid::new("claim-4");
        let pod = rendered(Volume::Claim(&claim), Delivery::InitContainer, &source(s3()));
        let mounts = |container: &Value| {
            let mounts = container["volumeMounts"].as_array().unwrap().iter();
            mounts.filter(|mount| mount["name"] == "store" || mount["name"] == "keys").count()
        };
        assert_eq!(mounts(&pod["initContainers"][1]), 2);
        assert_eq!(mounts(&pod["initContainers"][0]) + mounts(&pod["containers"][0]), 0);
        let volume = pod["volumes"].as_array().unwrap().iter().find(|one| one["name"] == "store").unwrap();
        assert_eq!(volume["secret"], json!({ "secretName": "s3", "defaultMode": 288, "optional": true }));
        assert_eq!(
            (&pod["serviceAccountName"], &pod["automountServiceAccountToken"]),
            (&json!("restorer"), &json!(false))
        );
    }

    #[test]
    fn a_volume_with_backups_is_only_read() {
        let store =
            BackupStore { volume_claim: Some(VolumeClaim { name: "backups".into() }), ..BackupStore::default() };
        let pod = rendered(Volume::Ephemeral, Delivery::ImageVolume, &source(store));
        let restore = &pod["initContainers"][0];
        let mount = restore["volumeMounts"].as_array().unwrap().iter().find(|one| one["name"] == "backups").unwrap();
        assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&json!("/backups"), &json!(true)));
        assert!(
            restore["env"]
                .as_array()
                .unwrap()
                .contains(&json!({ "name": "QUORATE_STORE", "value": "file:///backups" }))
        );
        assert_eq!(pod["serviceAccountName"], Value::Null);
    }
}
