//! The pod of a trial: on a member's node, with the image of a release and the flags that the member would get, it says
//! whether that image is there, runs, has the version and takes the flags; and ends. It touches no volume and no member.

use k8s_openapi::api::core::v1::{Container, LocalObjectReference, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use quorate_crds::names;
use quorate_statemachine::{NodeName, Release, Serial, Uid};

use super::pod::{self, Agent, Delivery};
use super::{Begin, Cluster, RenderError, scheduling, template, ticket};

/// It says a version and ends; what it has written is in its status by then.
const GRACE_SECONDS: i64 = 1;
/// What it asks for, and the most it may take: a Go program that only prints.
const REQUESTS: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "32Mi")];
const LIMITS: [(&str, &str); 2] = [("cpu", "1"), ("memory", "128Mi")];

/// The pod in which a release is tried for a member, on its node.
pub fn trial(
    cluster: &Cluster<'_>,
    serial: Serial,
    node: &NodeName,
    release: &Release,
    (agent, delivery): (&Agent, Delivery),
) -> Result<Pod, RenderError> {
    // Of the flags none speaks of the volume.
    let ticket = ticket(cluster, serial, &Uid::new(""), release.version, &Begin::Resume)?;
    let member = cluster.member(serial);
    let mut metadata = cluster.owned(names::trial(&member, &template::trial_hash(cluster.spec, release)));
    metadata.labels.get_or_insert_default().insert(names::LABEL_NAME.to_owned(), names::TRIAL_NAME.to_owned());
    let annotations = [
        (names::ANNOTATION_TRIAL_OF, member),
        (names::ANNOTATION_TEMPLATE, template::write_hash(template::hash(cluster.spec))),
        ("sidecar.istio.io/inject", "false".to_owned()),
    ];
    let annotations = annotations.into_iter().chain(pod::told(release));
    metadata.annotations = Some(annotations.map(|(name, value)| (name.to_owned(), value)).collect());
    let mut command: Vec<String> =
        [pod::AGENT, "try", "--etcd-version", &release.version.to_string(), "--"].map(str::to_owned).into();
    command.extend(ticket.flags);
    let etcd = Container {
        name: pod::ETCD_CONTAINER.into(),
        image: Some(release.image.as_str().to_owned()),
        image_pull_policy: Some(cluster.spec.image.pull_policy.as_str().to_owned()),
        command: Some(command),
        volume_mounts: Some(vec![pod::mount("quorate", pod::AGENT_FOLDER, true)]),
        resources: Some(resources()),
        security_context: Some(pod::container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    };
    let secrets = &cluster.spec.image.pull_secrets;
    let spec = PodSpec {
        // No scheduler is asked: this node is the question.
        node_name: Some(node.as_str().to_owned()),
        init_containers: pod::agent_container(&agent.image, delivery, resources()).map(|container| vec![container]),
        containers: vec![etcd],
        volumes: Some(vec![pod::agent_volume(&agent.image, delivery)]),
        image_pull_secrets: (!secrets.is_empty())
            .then(|| secrets.iter().map(|secret| LocalObjectReference { name: secret.name.clone() }).collect()),
        // Some registries are opened by what is on the account of the members, whose token stays out of this pod too.
        service_account_name: cluster.spec.backup.as_ref().and_then(|backup| backup.store.service_account_name.clone()),
        security_context: Some(pod::pod_security()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        restart_policy: Some("Never".into()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        tolerations: Some(scheduling::tolerations(cluster)),
        priority_class_name: cluster.spec.scheduling.priority_class_name.clone(),
        ..PodSpec::default()
    };
    Ok(Pod { metadata, spec: Some(spec), status: None })
}

fn resources() -> ResourceRequirements {
    let amounts = |all: [(&str, &str); 2]| all.map(|(name, amount)| (name.to_owned(), Quantity(amount.into()))).into();
    ResourceRequirements {
        requests: Some(amounts(REQUESTS)),
        limits: Some(amounts(LIMITS)),
        ..ResourceRequirements::default()
    }
}

#[cfg(test)]
mod tests {
    use quorate_crds::{EtcdClusterSpec, LocalSecret};
    use quorate_statemachine::{Image, Version};
    use serde_json::{Value, json, to_value};

    use super::super::fixture;
    use super::*;

    fn rendered(spec: &EtcdClusterSpec, minor: u16, delivery: Delivery) -> Value {
        let release = Release { version: Version::new(minor, 3), image: Image::new("mirror.example.com/etcd:x") };
        let agent = fixture::agent();
        let made = trial(&fixture::cluster(spec), Serial(4), &NodeName::new("n1"), &release, (&agent, delivery));
        to_value(made.unwrap()).unwrap()
    }

    #[test]
    fn it_tries_this_image_on_this_node_with_the_members_flags() {
        let spec = fixture::spec(|s| s.image.pull_secrets = vec![LocalSecret { name: "mirror".into() }]);
        let pod = rendered(&spec, 7, Delivery::ImageVolume);
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "mirror"}]));
        let etcd = &pod["spec"]["containers"][0];
        assert_eq!((&etcd["image"], &etcd["name"]), (&json!("mirror.example.com/etcd:x"), &json!("etcd")));
        let command: Vec<_> = etcd["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(command[..5], ["/quorate/quorate-agent", "try", "--etcd-version", "3.7.3", "--"]);
        assert!(command.contains(&"--name=db-4") && command.contains(&"--max-learners=2"), "{command:?}");
        assert!(!command.iter().any(|flag| flag.starts_with("--initial-cluster")), "{command:?}");
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
    }

    #[test]
    fn it_pulls_as_the_account_of_the_members_and_has_no_token_of_it() {
        let backup = json!({ "store": { "address": "s3://b", "serviceAccountName": "archiver" } });
        let spec = fixture::spec(|s| s.backup = Some(serde_json::from_value(backup.clone()).unwrap()));
        let pod = rendered(&spec, 7, Delivery::ImageVolume);
        assert_eq!(pod["spec"]["serviceAccountName"], "archiver");
        assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
        assert_eq!(
            rendered(&EtcdClusterSpec::default(), 7, Delivery::ImageVolume)["spec"]["serviceAccountName"],
            Value::Null
        );
    }

    #[test]
    fn it_touches_no_volume_and_nothing_of_the_cluster_selects_it() {
        let spec = EtcdClusterSpec::default();
        let pod = rendered(&spec, 5, Delivery::InitContainer);
        let volumes: Vec<_> = pod["spec"]["volumes"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
        assert_eq!(volumes, ["quorate"]);
        let selector = fixture::cluster(&spec).selector();
        let labels = &pod["metadata"]["labels"];
        assert!(selector.iter().any(|(label, value)| labels[label] != value.as_str()), "{labels}");
        assert_eq!(labels[names::LABEL_CLUSTER], "db");
        assert_eq!(names::serial("db", pod["metadata"]["name"].as_str().unwrap()), None);
        assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "EtcdCluster");
    }

    #[test]
    fn another_release_or_another_template_is_another_trial() {
        let name = |spec: &EtcdClusterSpec, minor| {
            rendered(spec, minor, Delivery::ImageVolume)["metadata"]["name"].as_str().unwrap().to_owned()
        };
        let spec = EtcdClusterSpec::default();
        let other = fixture::spec(|s| s.etcd.snapshot_count = 5000);
        let names = [name(&spec, 6), name(&spec, 7), name(&other, 6)];
        assert!(names[0] != names[1] && names[0] != names[2], "{names:?}");
        assert_eq!(name(&spec, 6), names[0]);
    }
}
