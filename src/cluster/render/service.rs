//! The two Services: one that gives each member its name, one that leads clients to the members that are ready.

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use quorate_crds::{ClientService, names};

use super::{CLIENT_PORT, Cluster, METRICS_PORT, PEER_PORT};

/// Both address families where the Kubernetes cluster has them.
const FAMILIES: &str = "PreferDualStack";

/// The Service by which members find each other. It names them from the first moment on: a member that joins has to be
/// found long before it is ready, and a learner never is (etcd's `/readyz` says no for learners).
pub fn headless_service(cluster: &Cluster<'_>) -> Service {
    Service {
        metadata: cluster.owned(cluster.name.to_owned()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            ip_family_policy: Some(FAMILIES.into()),
            selector: Some(cluster.selector()),
            ports: Some(vec![
                port("client", CLIENT_PORT, None),
                port("peer", PEER_PORT, None),
                port("metrics", METRICS_PORT, None),
            ]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The Service for clients.
pub fn client_service(cluster: &Cluster<'_>) -> Service {
    let ClientService { type_, annotations, node_port } = &cluster.spec.service;
    let mut metadata = cluster.owned(names::client_service(cluster.name));
    metadata.annotations = (!annotations.is_empty()).then(|| annotations.clone());
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(type_.as_str().to_owned()),
            ip_family_policy: Some(FAMILIES.into()),
            selector: Some(cluster.selector()),
            ports: Some(vec![port("client", CLIENT_PORT, *node_port)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn port(name: &str, number: u16, node_port: Option<i32>) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(number),
        target_port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".into()),
        node_port,
        app_protocol: None,
    }
}

#[cfg(test)]
mod tests {
    use quorate_crds::ServiceType;
    use serde_json::{Value, json, to_value};

    use super::super::fixture;
    use super::*;

    fn client(change: impl FnOnce(&mut ClientService)) -> Value {
        let spec = fixture::spec(|spec| change(&mut spec.service));
        to_value(client_service(&fixture::cluster(&spec))).unwrap()
    }

    #[test]
    fn the_headless_one_names_members_that_are_not_ready() {
        let spec = fixture::spec(|_| ());
        let service = to_value(headless_service(&fixture::cluster(&spec))).unwrap();
        assert_eq!(service["metadata"]["name"], "db");
        assert_eq!(service["metadata"]["ownerReferences"][0]["kind"], "EtcdCluster");
        assert_eq!(
            service["spec"],
            json!({
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "ipFamilyPolicy": "PreferDualStack",
                "selector": {"quorate.dev/cluster": "db", "app.kubernetes.io/name": "etcd"},
                "ports": [
                    {"name": "client", "port": 2379, "targetPort": "client", "protocol": "TCP"},
                    {"name": "peer", "port": 2380, "targetPort": "peer", "protocol": "TCP"},
                    {"name": "metrics", "port": 2381, "targetPort": "metrics", "protocol": "TCP"},
                ],
            })
        );
    }

    /// A target twice would be two series of each member.
    #[test]
    fn the_monitor_of_members_finds_the_headless_one_alone() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring/members.yaml");
        let monitor: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let port = &monitor["spec"]["endpoints"][0]["port"];
        let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
        let target = &monitor["spec"]["targetLabels"][0];
        let finds = |service: Value| {
            let labels = &service["metadata"]["labels"];
            assert_eq!(labels[target.as_str().unwrap()], "db");
            let ports = service["spec"]["ports"].as_array().unwrap().iter();
            wanted.iter().all(|(label, value)| labels[label] == *value)
                && ports.filter(|one| one["name"] == *port).count() == 1
        };
        let spec = fixture::spec(|_| ());
        assert!(finds(to_value(headless_service(&fixture::cluster(&spec))).unwrap()));
        assert!(!finds(client(|_| ())));
    }

    #[test]
    fn the_one_for_clients_leads_to_ready_members_on_the_client_port_only() {
        let service = client(|_| ());
        assert_eq!(service["metadata"]["name"], "db-client");
        assert_eq!(service["metadata"].get("annotations"), None);
        assert_eq!(
            service["spec"],
            json!({
                "type": "ClusterIP",
                "ipFamilyPolicy": "PreferDualStack",
                "selector": {"quorate.dev/cluster": "db", "app.kubernetes.io/name": "etcd"},
                "ports": [{"name": "client", "port": 2379, "targetPort": "client", "protocol": "TCP"}],
            })
        );
    }

    #[test]
    fn type_annotations_and_node_port_come_from_the_spec() {
        for (type_, name) in [(ServiceType::NodePort, "NodePort"), (ServiceType::LoadBalancer, "LoadBalancer")] {
            let service = client(|service| {
                service.type_ = type_;
                service.node_port = Some(30_379);
                service.annotations = [("example.com/lb".to_owned(), "internal".to_owned())].into();
            });
            assert_eq!(service["spec"]["type"], name);
            assert_eq!(service["spec"]["ports"][0]["nodePort"], 30_379);
            assert_eq!(service["metadata"]["annotations"], json!({"example.com/lb": "internal"}));
        }
    }
}
