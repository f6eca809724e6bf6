//! The Kubernetes objects of one cluster, rendered from its spec and its names. Pure: no client, no clock, no decision.
//!
//! What every part relies on (ports, paths, labels) is named here once.

mod agent;
mod archive;
mod budget;
mod claim;
mod pod;
mod restore;
mod scheduling;
mod service;
mod snapshot;
pub mod store;
mod template;
mod ticket;
mod tls;
mod trial;
mod verify;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use quorate_crds::{EtcdCluster, EtcdClusterSpec, names};
use quorate_statemachine::Serial;

pub use agent::{AGENT_CONTAINER, AgentOrder, agent_pod};
pub use archive::{ARCHIVE_CONTAINER, Audience};
pub use budget::budget;
pub use claim::claim;
pub use pod::{Agent, Delivery, ETCD_CONTAINER, Volume, pod, told, value};
pub use restore::{RESTORE_CONTAINER, with_restore};
pub use service::{client_service, headless_service};
pub use snapshot::snapshot;
pub use template::{changed_settings, hash, hash_of, read_hash, resources_hash, scheduling_hash, write_hash};
pub use ticket::{Begin, RenderError, Sealed, ticket};
pub use tls::TlsFiles;
use tls::client_secret;
pub use trial::trial;
pub use verify::verification;

/// etcd's client port.
pub const CLIENT_PORT: u16 = 2379;
/// etcd's peer port.
pub const PEER_PORT: u16 = 2380;
/// The port of etcd's metrics listener; until etcd is started, the launcher's.
pub const METRICS_PORT: u16 = 2381;

/// What the objects of one cluster are rendered from.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its UID: another one is another cluster, whatever its name.
    pub uid: &'a str,
    /// What the user asks for.
    pub spec: &'a EtcdClusterSpec,
}

impl<'a> Cluster<'a> {
    /// Takes an object as the API server gave it; `None` if it lacks its name, namespace or UID, which none from there
    /// does.
    pub fn of(object: &'a EtcdCluster) -> Option<Self> {
        Some(Self {
            name: object.metadata.name.as_deref()?,
            namespace: object.metadata.namespace.as_deref()?,
            uid: object.metadata.uid.as_deref()?,
            spec: &object.spec,
        })
    }

    /// The name that a member, its pod and its claim share.
    pub fn member(&self, serial: Serial) -> String {
        names::member(self.name, serial.0)
    }

    /// Where the other members find a member. It is the same for the whole life of the member.
    pub fn peer_url(&self, serial: Serial) -> String {
        self.url(serial, PEER_PORT)
    }

    /// Where clients in the Kubernetes cluster find a member.
    pub fn client_url(&self, serial: Serial) -> String {
        self.url(serial, CLIENT_PORT)
    }

    /// The host name of a member, which its certificates carry.
    pub fn host(&self, serial: Serial) -> String {
        // No trailing `cluster.local`: the cluster's domain need not be that, and a pod's search list adds it.
        format!("{}.{}.{}.svc", self.member(serial), self.name, self.namespace)
    }

    /// Whose peer URL this is; `None` if it is none that this cluster gives out.
    pub fn serial_of_peer_url(&self, url: &str) -> Option<Serial> {
        let (member, _) = url.split_once("://")?.1.split_once('.')?;
        let serial = Serial(names::serial(self.name, member)?);
        (self.peer_url(serial) == url).then_some(serial)
    }

    /// The labels that each child carries.
    pub fn labels(&self) -> BTreeMap<String, String> {
        labels([
            (names::LABEL_NAME, names::APP_NAME),
            (names::LABEL_INSTANCE, self.name),
            (names::LABEL_MANAGED_BY, names::MANAGED_BY),
            (names::LABEL_CLUSTER, self.name),
        ])
    }

    /// What selects the pods of the cluster's members, and no trial.
    fn selector(&self) -> BTreeMap<String, String> {
        labels([(names::LABEL_CLUSTER, self.name), (names::LABEL_NAME, names::APP_NAME)])
    }

    /// The same for where a selector object is asked for.
    fn label_selector(&self) -> LabelSelector {
        LabelSelector { match_labels: Some(self.selector()), match_expressions: None }
    }

    /// The metadata of a child that goes away with the EtcdCluster.
    pub fn owned(&self, name: String) -> ObjectMeta {
        ObjectMeta { owner_references: Some(vec![self.owner()]), ..self.unowned(name) }
    }

    /// The metadata of a child that outlives the EtcdCluster.
    fn unowned(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(self.labels()),
            ..ObjectMeta::default()
        }
    }

    fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: format!("{}/{}", names::GROUP, names::VERSION),
            kind: "EtcdCluster".into(),
            name: self.name.to_owned(),
            uid: self.uid.to_owned(),
            controller: Some(true),
            // Whoever sets this needs the right to update the owner's finalizers where the admission plugin
            // OwnerReferencesPermissionEnforcement is on (OpenShift); nothing here waits for a child in a foreground
            // deletion.
            block_owner_deletion: None,
        }
    }

    fn url(&self, serial: Serial, port: u16) -> String {
        format!("{}://{}:{port}", self.scheme(), self.host(serial))
    }

    /// How members are spoken to, by each other and by clients.
    fn scheme(&self) -> &'static str {
        if self.spec.tls.mode.encrypts() { "https" } else { "http" }
    }
}

/// These labels, as an object carries them.
pub fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

#[cfg(test)]
pub mod fixture;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_object_without_a_uid_is_not_rendered() {
        let mut object = EtcdCluster::new("db", EtcdClusterSpec::default());
        assert!(Cluster::of(&object).is_none());
        object.metadata.namespace = Some("prod".into());
        object.metadata.uid = Some("uid-1".into());
        let cluster = Cluster::of(&object).unwrap();
        assert_eq!((cluster.name, cluster.namespace, cluster.uid), ("db", "prod", "uid-1"));
    }

    #[test]
    fn a_url_names_pod_service_and_namespace() {
        let spec = EtcdClusterSpec::default();
        let cluster = fixture::cluster(&spec);
        assert_eq!(cluster.peer_url(Serial(3)), "https://db-3.db.prod.svc:2380");
        assert_eq!(cluster.client_url(Serial(3)), "https://db-3.db.prod.svc:2379");
        let spec = fixture::spec(|spec| spec.tls.mode = quorate_crds::TlsMode::Disabled);
        assert_eq!(fixture::cluster(&spec).peer_url(Serial(3)), "http://db-3.db.prod.svc:2380");
    }

    #[test]
    fn foreign_urls_have_no_serial() {
        let spec = EtcdClusterSpec::default();
        let cluster = fixture::cluster(&spec);
        for url in [
            "",
            "https://db-3.db.prod.svc:2379",
            "http://db-3.db.prod.svc:2380",
            "https://db-3.db.other.svc:2380",
            "https://db-3.other.prod.svc:2380",
            "https://other-3.db.prod.svc:2380",
            "https://db-03.db.prod.svc:2380",
            "https://db-3.db.prod.svc.cluster.local:2380",
            "https://10.0.0.1:2380",
        ] {
            assert_eq!(cluster.serial_of_peer_url(url), None, "{url}");
        }
    }

    proptest! {
        #[test]
        fn a_peer_url_leads_back_to_its_serial(serial: u32) {
            let spec = EtcdClusterSpec::default();
            let cluster = fixture::cluster(&spec);
            prop_assert_eq!(cluster.serial_of_peer_url(&cluster.peer_url(Serial(serial))), Some(Serial(serial)));
        }

        #[test]
        fn any_url_is_read_without_panic(url in "(https?://)?.{0,40}") {
            let spec = EtcdClusterSpec::default();
            let _ = fixture::cluster(&spec).serial_of_peer_url(&url);
        }
    }
}
