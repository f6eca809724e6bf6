//! Tests of the member's pod: one whole pod against a file, and each field of the spec against its effect.

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use quorate_backup::{launch, ticket::Ticket};
use quorate_crds::{
    AntiAffinity, EtcdClusterSpec, LocalSecret, PullPolicy, Quantity, TopologySpread, WhenUnsatisfiable,
};
use quorate_statemachine::{Image, Millis, Version};
use serde_json::{Value, json, to_value};

use super::super::{Begin, fixture, ticket};
use super::*;

/// The pod of member 4 on a claim, without a ticket.
fn rendered(change: impl FnOnce(&mut EtcdClusterSpec)) -> Value {
    let spec = fixture::spec(change);
    let volume = Uid::new("7d1e");
    to_value(pod(
        &fixture::cluster(&spec),
        Serial(4),
        &fixture::release(),
        (&fixture::agent(), Delivery::InitContainer),
        Volume::Claim(&volume),
        None,
    ))
    .unwrap()
}

/// The same with the agent's image mounted.
fn mounted() -> Value {
    let spec = fixture::spec(|_| ());
    let volume = Uid::new("7d1e");
    let agent = fixture::agent();
    let agent = (&agent, Delivery::ImageVolume);
    to_value(pod(&fixture::cluster(&spec), Serial(4), &fixture::release(), agent, Volume::Claim(&volume), None))
        .unwrap()
}

fn etcd(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]
}

#[test]
fn a_pod_of_the_default_spec_is_this_one() {
    let golden: Value = serde_json::from_str(include_str!("testdata/pod.json")).unwrap();
    let pod = rendered(|_| ());
    assert_eq!(pod, golden, "rendered: {}", serde_json::to_string_pretty(&pod).unwrap());
}

#[test]
fn a_ticket_from_birth_is_in_the_annotations_and_shown_as_a_file() {
    let spec = EtcdClusterSpec::default();
    let cluster = fixture::cluster(&spec);
    let volume = Uid::new("7d1e");
    let own = ticket(&cluster, Serial(4), &volume, fixture::release().version, &Begin::Resume).unwrap();
    let sealed = Sealed::new(&own, Millis(17)).unwrap();
    let pod = to_value(pod(
        &cluster,
        Serial(4),
        &fixture::release(),
        (&fixture::agent(), Delivery::InitContainer),
        Volume::Claim(&volume),
        Some(&sealed),
    ))
    .unwrap();
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(Ticket::parse(annotations["quorate.dev/ticket"].as_str().unwrap()).unwrap(), own);
    assert_eq!(annotations["quorate.dev/ticket-since"], "17");
    assert_eq!(
        annotations["quorate.dev/template"],
        rendered(|_| ())["metadata"]["annotations"]["quorate.dev/template"]
    );
    let shown = &pod["spec"]["volumes"][2]["downwardAPI"]["items"][0];
    assert_eq!(shown["fieldRef"]["fieldPath"], "metadata.annotations['quorate.dev/ticket']");
}

#[test]
fn ephemeral_storage_lives_and_dies_with_the_pod() {
    let spec = fixture::spec(|s| {
        s.storage.ephemeral = true;
        s.storage.size = Quantity::new("2Gi");
    });
    let pod = to_value(pod(
        &fixture::cluster(&spec),
        Serial(4),
        &fixture::release(),
        (&fixture::agent(), Delivery::InitContainer),
        Volume::Ephemeral,
        None,
    ))
    .unwrap();
    assert_eq!(pod["spec"]["volumes"][0], json!({"name": "data", "emptyDir": {"sizeLimit": "2Gi"}}));
    let volume = &etcd(&pod)["env"][1];
    assert_eq!(volume["name"], "QUORATE_VOLUME");
    assert_eq!(volume["valueFrom"]["fieldRef"]["fieldPath"], "metadata.uid");
}

/// What the Pod Security Standard `restricted` finds fault with, as the API server's admission plugin checks it.
fn not_restricted(pod: &Value) -> Vec<&'static str> {
    let spec = &pod["spec"];
    let containers = || ["containers", "initContainers"].into_iter().filter_map(|kind| spec[kind].as_array()).flatten();
    let all = |holds: fn(&Value) -> bool| containers().all(|container| holds(&container["securityContext"]));
    let volume_kinds =
        ["configMap", "downwardAPI", "emptyDir", "image", "persistentVolumeClaim", "projected", "secret"];
    let known = |volume: &Value| volume_kinds.iter().any(|kind| volume.get(kind).is_some());
    let checks = [
        ("runAsNonRoot", spec["securityContext"]["runAsNonRoot"] == true),
        ("runAsUser", spec["securityContext"]["runAsUser"].as_i64().is_some_and(|user| user > 0)),
        ("seccompProfile", spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"),
        ("allowPrivilegeEscalation", all(|context| context["allowPrivilegeEscalation"] == false)),
        ("capabilities", all(|context| context["capabilities"] == json!({"drop": ["ALL"]}))),
        ("privileged", all(|context| context.get("privileged").is_none())),
        ("hostNetwork", ["hostNetwork", "hostPID", "hostIPC"].iter().all(|field| spec.get(field).is_none())),
        ("hostPort", containers().all(|c| !c["ports"].to_string().contains("hostPort"))),
        ("volumes", spec["volumes"].as_array().is_some_and(|volumes| volumes.iter().all(known))),
    ];
    checks.into_iter().filter(|(_, holds)| !holds).map(|(name, _)| name).collect()
}

#[test]
fn every_pod_is_restricted() {
    assert_eq!(not_restricted(&rendered(|_| ())), [""; 0]);
    assert_eq!(not_restricted(&rendered(|s| s.storage.ephemeral = true)), [""; 0]);
    assert_eq!(not_restricted(&mounted()), [""; 0]);
    let mut planted = rendered(|_| ());
    planted["spec"]["securityContext"] = json!({});
    planted["spec"]["initContainers"][0]["securityContext"] = json!({"privileged": true});
    planted["spec"]["hostNetwork"] = json!(true);
    planted["spec"]["containers"][0]["ports"][0]["hostPort"] = json!(2379);
    planted["spec"]["volumes"][0] = json!({"name": "data", "hostPath": {"path": "/"}});
    assert_eq!(not_restricted(&planted).len(), 9);
}

#[test]
fn etcd_can_write_its_volume_and_nothing_else() {
    let pod = rendered(|_| ());
    assert_eq!(etcd(&pod)["securityContext"]["readOnlyRootFilesystem"], true);
    let mounts = etcd(&pod)["volumeMounts"].as_array().unwrap();
    let writable: Vec<_> = mounts.iter().filter(|m| m.get("readOnly").is_none()).map(|m| &m["mountPath"]).collect();
    assert_eq!(writable, ["/var/lib/etcd"]);
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    assert_eq!(pod["spec"]["enableServiceLinks"], false);
}

#[test]
fn only_readiness_is_probed_and_where_the_launcher_answers() {
    let pod = rendered(|_| ());
    let etcd = etcd(&pod);
    assert_eq!((etcd.get("livenessProbe"), etcd.get("startupProbe")), (None, None));
    let port = etcd["readinessProbe"]["httpGet"]["port"].as_str().unwrap();
    let named = etcd["ports"].as_array().unwrap().iter().find(|p| p["name"] == port).unwrap();
    assert_eq!(named["containerPort"], launch::PORT);
}

#[test]
fn the_image_is_the_releases_and_how_it_is_pulled_the_specs() {
    let spec = fixture::spec(|s| {
        s.image.pull_policy = PullPolicy::Never;
        s.image.pull_secrets = vec![LocalSecret { name: "mirror".into() }];
    });
    let release = Release { version: Version::new(7, 3), image: Image::new("mirror.example.com/etcd:own") };
    let agent = fixture::agent();
    let agent = (&agent, Delivery::ImageVolume);
    let pod = pod(&fixture::cluster(&spec), Serial(4), &release, agent, Volume::Ephemeral, None);
    let pod = to_value(pod).unwrap();
    assert_eq!(etcd(&pod)["image"], "mirror.example.com/etcd:own");
    assert_eq!(pod["metadata"]["annotations"]["quorate.dev/version"], "3.7.3");
    assert_eq!(etcd(&pod)["imagePullPolicy"], "Never");
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "mirror"}]));
}

#[test]
fn the_agents_image_is_the_operators_and_does_not_make_a_pod_out_of_date() {
    let spec = EtcdClusterSpec::default();
    let volume = Uid::new("7d1e");
    let with = |image: &str, ticket_key: Option<&str>| {
        let agent = Agent { image: image.into(), ticket_key: ticket_key.map(Into::into) };
        to_value(pod(
            &fixture::cluster(&spec),
            Serial(4),
            &fixture::release(),
            (&agent, Delivery::InitContainer),
            Volume::Claim(&volume),
            None,
        ))
        .unwrap()
    };
    let (old, new) = (with("agent:1", None), with("agent:2", Some("00ff")));
    assert_eq!(new["spec"]["initContainers"][0]["image"], "agent:2");
    let named = |pod: &Value| {
        etcd(pod)["env"].as_array().unwrap().iter().find(|env| env["name"] == "QUORATE_TICKET_KEY").cloned()
    };
    assert_eq!(named(&old), None);
    assert_eq!(named(&new), Some(json!({"name": "QUORATE_TICKET_KEY", "value": "00ff"})));
    assert_eq!(old["metadata"], new["metadata"]);
}

#[test]
fn an_agent_from_a_mounted_image_differs_in_nothing_else() {
    let (mut mounted, mut copied) = (mounted(), rendered(|_| ()));
    assert_eq!(
        mounted["spec"]["volumes"][1],
        json!({"name": "quorate", "image": {"reference": fixture::agent().image, "pullPolicy": "IfNotPresent"}})
    );
    assert_eq!(mounted["spec"].get("initContainers"), None);
    assert_eq!(copied["spec"]["volumes"][1]["name"], "quorate");
    copied["spec"].as_object_mut().unwrap().remove("initContainers");
    for pod in [&mut mounted, &mut copied] {
        pod["spec"]["volumes"].as_array_mut().unwrap().remove(1);
    }
    assert_eq!(mounted, copied);
}

#[test]
fn resources_are_etcds_and_the_agent_asks_for_no_more() {
    let pod = rendered(|s| {
        s.resources.requests = [("cpu".to_owned(), Amount("500m".into()))].into();
        s.resources.limits = [("memory".to_owned(), Amount("4Gi".into()))].into();
    });
    assert_eq!(etcd(&pod)["resources"], json!({"requests": {"cpu": "500m"}, "limits": {"memory": "4Gi"}}));
    assert_eq!(pod["spec"]["initContainers"][0]["resources"], etcd(&pod)["resources"]);
}

#[test]
fn where_it_may_run_is_the_specs() {
    let pod = rendered(|s| {
        s.scheduling.node_selector = [("disk".to_owned(), "ssd".to_owned())].into();
        s.scheduling.priority_class_name = Some("high".into());
        s.scheduling.anti_affinity = AntiAffinity::None;
        s.scheduling.tolerations = vec![Toleration { key: Some("db".into()), ..Toleration::default() }];
        s.scheduling.topology_spread_constraints = vec![TopologySpread {
            topology_key: "topology.kubernetes.io/zone".into(),
            max_skew: 1,
            when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        }];
    });
    let spec = &pod["spec"];
    assert_eq!(spec["nodeSelector"], json!({"disk": "ssd"}));
    assert_eq!(spec["priorityClassName"], "high");
    assert_eq!(spec.get("affinity"), None);
    assert_eq!(spec["tolerations"][2]["key"], "db");
    assert_eq!(spec["topologySpreadConstraints"][0]["topologyKey"], "topology.kubernetes.io/zone");
}
