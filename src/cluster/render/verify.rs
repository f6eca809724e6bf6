//! The CronJob that proves that the continuous backup restores: into scratch space, away from the members, from the store
//! alone. When it does so is Kubernetes' matter.

use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::{
    Affinity, PodAffinityTerm, PodAntiAffinity, PodTemplateSpec, Volume, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use quorate_crds::names;

use super::agent::{AgentOrder, agent_pod};
use super::pod::{empty_dir, mount, value};
use super::{Cluster, labels, store};

/// Where the backup is restored.
const SCRATCH: &str = "/scratch";
/// How much larger than etcd's quota the restored database may become: it holds what was deleted or overwritten since the
/// last full snapshot, too, of which there is a quarter of the quota at most.
const MOST: u64 = 2;
/// The quota where the spec has none that can be read. Then no member is started either.
const QUOTA: u64 = 8 << 30;
/// How long it may take: 8 GiB from a slow store.
const LONGEST_SECONDS: i64 = 6 * 3600;
/// How often it is tried again. A store that was away for a moment is no backup that does not restore.
const TRIES_AGAIN: i32 = 2;
/// How late it may begin. Without a limit, Kubernetes gives up for good after a hundred that were missed.
const LATEST_SECONDS: i64 = 3600;

/// The CronJob, if the spec asks for one.
pub fn verification(cluster: &Cluster<'_>, image: &str) -> Option<CronJob> {
    let backup = cluster.spec.backup.as_ref()?;
    let schedule = backup.verify.as_ref()?.schedule.clone();
    let mut access = store::access(&backup.store, store::Use::Prove);
    access.env.push(value("QUORATE_LINEAGE", cluster.uid));
    access.mounts.push(mount("scratch", SCRATCH, false));
    access.volumes.push(Volume {
        name: "scratch".into(),
        // What takes more is evicted, alone.
        empty_dir: Some(empty_dir(room(cluster, MOST))),
        ..Volume::default()
    });
    let arguments = ["verify", "--strict", "--scratch", SCRATCH];
    let pull_secrets = &cluster.spec.image.pull_secrets;
    // What the database may take as etcd keeps it: a node without that is none for it, and the kubelet, when its disk runs
    // short, first ends pods that take more than they asked for.
    let disk = Some(room(cluster, 1));
    let store = &backup.store;
    let mut pod = agent_pod(AgentOrder { image, pull_secrets, arguments: &arguments, store, access, disk });
    pod.affinity = Some(away_from_members(cluster));
    let labels = labels([
        (names::LABEL_NAME, names::BACKUP_APP_NAME),
        (names::LABEL_INSTANCE, cluster.name),
        (names::LABEL_MANAGED_BY, names::MANAGED_BY),
        (names::LABEL_VERIFY, cluster.name),
    ]);
    let metadata = Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() });
    let job = JobSpec {
        active_deadline_seconds: Some(LONGEST_SECONDS),
        backoff_limit: Some(TRIES_AGAIN),
        template: PodTemplateSpec { metadata: metadata.clone(), spec: Some(pod) },
        ..JobSpec::default()
    };
    Some(CronJob {
        metadata: cluster.owned(names::verification(cluster.name)),
        spec: Some(CronJobSpec {
            schedule,
            time_zone: Some("Etc/UTC".into()),
            concurrency_policy: Some("Forbid".into()),
            starting_deadline_seconds: Some(LATEST_SECONDS),
            successful_jobs_history_limit: Some(1),
            failed_jobs_history_limit: Some(1),
            job_template: JobTemplateSpec { metadata, spec: Some(job) },
            suspend: None,
        }),
        status: None,
    })
}

/// Room for so many databases of the size that etcd's quota allows.
fn room(cluster: &Cluster<'_>, times: u64) -> Quantity {
    let quota = cluster.spec.etcd.quota_bytes(&cluster.spec.storage).unwrap_or(QUOTA);
    let mebibytes = quota.saturating_mul(times).div_ceil(1 << 20);
    // As the API server writes it: else it would look different each time.
    if mebibytes.is_multiple_of(1024) {
        Quantity(format!("{}Gi", mebibytes / 1024))
    } else {
        Quantity(format!("{mebibytes}Mi"))
    }
}

/// Where there is another node: the disk and the processor of a member are etcd's.
fn away_from_members(cluster: &Cluster<'_>) -> Affinity {
    let term = PodAffinityTerm {
        label_selector: Some(cluster.label_selector()),
        topology_key: "kubernetes.io/hostname".into(),
        ..PodAffinityTerm::default()
    };
    let rather = WeightedPodAffinityTerm { pod_affinity_term: term, weight: 100 };
    let anti = PodAntiAffinity {
        preferred_during_scheduling_ignored_during_execution: Some(vec![rather]),
        ..PodAntiAffinity::default()
    };
    Affinity { pod_anti_affinity: Some(anti), ..Affinity::default() }
}

#[cfg(test)]
mod tests {
    use quorate_crds::{
        BackupStore, BackupVerification, ContinuousBackup, Encryption, EtcdClusterSpec, LocalSecret, Quantity,
    };
    use serde_json::{Value, json, to_value};

    use super::super::{fixture, hash};
    use super::*;

    fn backed_up(verify: Option<&str>) -> EtcdClusterSpec {
        let store = BackupStore {
            address: Some("s3://bucket/etcd".into()),
            credentials: Some(LocalSecret { name: "s3".into() }),
            encryption: Some(Encryption { secret_name: "keys".into() }),
            ..BackupStore::default()
        };
        let verify = verify.map(|schedule| BackupVerification { schedule: schedule.into() });
        fixture::spec(|spec| spec.backup = Some(ContinuousBackup { verify, ..ContinuousBackup::to(store) }))
    }

    fn rendered(spec: &EtcdClusterSpec) -> Value {
        to_value(verification(&fixture::cluster(spec), "agent:1").unwrap()).unwrap()
    }

    #[test]
    fn it_is_there_only_if_it_is_asked_for() {
        for spec in [backed_up(None), fixture::spec(|_| ())] {
            assert_eq!(verification(&fixture::cluster(&spec), "agent:1"), None);
        }
    }

    #[test]
    fn it_restores_from_the_store_alone_and_away_from_the_members() {
        let job = rendered(&backed_up(Some("30 3 * * *")));
        assert_eq!((&job["metadata"]["name"], &job["spec"]["schedule"]), (&json!("db-verify"), &json!("30 3 * * *")));
        let template = &job["spec"]["jobTemplate"]["spec"]["template"];
        let labels = &template["metadata"]["labels"];
        assert_eq!((&labels["quorate.dev/cluster"], &labels["quorate.dev/verify"]), (&Value::Null, &json!("db")));
        let pod = &template["spec"];
        let command = json!([
            "/quorate-agent",
            "verify",
            "--strict",
            "--scratch",
            "/scratch",
            "--report",
            "/dev/termination-log"
        ]);
        assert_eq!(pod["containers"][0]["command"], command);
        let secrets: Vec<_> =
            pod["volumes"].as_array().unwrap().iter().map(|one| &one["secret"]["secretName"]).collect();
        assert_eq!(secrets, [&json!("s3"), &json!("keys"), &Value::Null]);
        let identity = json!({ "name": "QUORATE_IDENTITY_FILE", "value": "/etc/quorate/keys/identity" });
        assert!(pod["containers"][0]["env"].as_array().unwrap().contains(&identity));
        let away = &pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(away["podAffinityTerm"]["labelSelector"]["matchLabels"]["quorate.dev/cluster"], "db");
    }

    #[test]
    fn its_room_follows_the_quota_and_is_written_as_kubernetes_does() {
        for (quota, asked, most) in [
            ("2Gi", "2Gi", "4Gi"),
            ("100Mi", "100Mi", "200Mi"),
            ("1000000000", "954Mi", "1908Mi"),
            ("8Gi", "8Gi", "16Gi"),
        ] {
            let mut spec = backed_up(Some("30 3 * * *"));
            spec.etcd.quota = Some(Quantity::new(quota));
            let job = rendered(&spec);
            let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
            assert_eq!(pod["volumes"][2]["emptyDir"]["sizeLimit"], most, "{quota}");
            let requests = &pod["containers"][0]["resources"]["requests"];
            assert_eq!(
                (&requests["ephemeral-storage"], &requests["memory"]),
                (&json!(asked), &json!("128Mi")),
                "{quota}"
            );
        }
    }

    #[test]
    fn asking_for_it_restarts_no_member() {
        assert_eq!(hash(&backed_up(Some("30 3 * * *"))), hash(&backed_up(None)));
    }
}
