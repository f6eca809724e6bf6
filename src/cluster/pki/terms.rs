//! What the certificates of one cluster say: names, uses, lifetimes. Pure.

use jiff::SignedDuration;
use quorate_crds::names;
use quorate_statemachine::Serial;

use crate::cluster::render::Cluster;

/// What a certificate is shown for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// By who is connected to.
    Server,
    /// By who connects.
    Client,
}

/// What a certificate is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Whose it is: the common name. Where etcd's own users are turned on, it names the user.
    pub subject: String,
    /// DNS names and IP addresses.
    pub names: Vec<String>,
    /// What for.
    pub usages: &'static [Usage],
    /// How long it lasts.
    pub lifetime: SignedDuration,
}

/// What certificates have to fit: the cluster, and the domain of the Kubernetes cluster.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The cluster.
    pub cluster: Cluster<'a>,
    /// The domain, e.g. `cluster.local`.
    pub domain: &'a str,
}

/// The user that etcd lets do everything, once its users are turned on.
const ROOT: &str = "root";

impl Terms<'_> {
    /// How long what is issued lasts.
    pub fn lifetime(&self) -> SignedDuration {
        SignedDuration::from_mins(self.cluster.spec.tls.lifetime_minutes.into())
    }

    /// What a member shows other members, whether it connects or is connected to. etcd looks up from which of these names
    /// a connection comes (`checkCertSAN` in its `client/pkg/transport/listener_tls.go`), so they are this member's alone,
    /// in the form that addresses are given out in and in the form that a reverse lookup answers with.
    pub fn peer(&self, serial: Serial) -> Order {
        let host = self.cluster.host(serial);
        let names = vec![format!("{host}.{}", self.domain), host];
        self.order(self.cluster.member(serial), names, &[Usage::Server, Usage::Client])
    }

    /// What a member shows its clients: by its own name, the client Service's, or from its own pod. It is a client too:
    /// etcd's JSON gateway and etcdctl in the pod show it.
    pub fn server(&self, serial: Serial) -> Order {
        let (namespace, domain) = (self.cluster.namespace, self.domain);
        let (host, service) = (self.cluster.host(serial), names::client_service(self.cluster.name));
        let mut names = vec![
            format!("{host}.{domain}"),
            host,
            format!("{}.{}", self.cluster.member(serial), self.cluster.name),
            format!("{service}.{namespace}.svc.{domain}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}"),
            service,
        ];
        names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        names.extend(self.cluster.spec.tls.extra_names.iter().cloned());
        self.order(self.cluster.member(serial), names, &[Usage::Server, Usage::Client])
    }

    /// What applications show.
    pub fn client(&self) -> Order {
        self.order(names::client_secret(self.cluster.name), Vec::new(), &[Usage::Client])
    }

    /// What the operator itself shows.
    pub fn operator(&self) -> Order {
        self.order(ROOT.to_owned(), Vec::new(), &[Usage::Client])
    }

    /// The names that a certificate needs which all members show each other: those of one whose serial nobody has yet.
    pub fn shared_peer_names(&self) -> Vec<String> {
        self.peer(ANY).names
    }

    /// The names that a certificate needs which all members show their clients.
    pub fn shared_server_names(&self) -> Vec<String> {
        let service = names::client_service(self.cluster.name);
        vec![self.cluster.host(ANY), format!("{service}.{}.svc", self.cluster.namespace)]
    }

    /// How a name that [`Terms::shared_peer_names`] and its like ask for is told to people.
    pub fn as_wildcard(&self, name: &str) -> String {
        let any = format!("{}.", self.cluster.member(ANY));
        name.strip_prefix(&any).map_or_else(|| name.to_owned(), |rest| format!("*.{rest}"))
    }

    fn order(&self, subject: String, names: Vec<String>, usages: &'static [Usage]) -> Order {
        Order { subject, names, usages, lifetime: self.lifetime() }
    }
}

/// A serial that stands for all of them: only a wildcard covers a member that is not there yet.
const ANY: Serial = Serial(u32::MAX);

#[cfg(test)]
mod tests {
    use quorate_crds::EtcdClusterSpec;

    use super::super::fixture::{DOMAIN, cluster};
    use super::*;

    #[test]
    fn a_member_has_its_own_names_for_members_and_more_for_clients() {
        let mut spec = EtcdClusterSpec::default();
        spec.tls.extra_names = vec!["etcd.example.com".into(), "192.0.2.7".into()];
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let peer = terms.peer(Serial(3));
        assert_eq!(peer.names, ["db-3.db.prod.svc.cluster.local", "db-3.db.prod.svc"]);
        assert_eq!(peer.subject, "db-3");
        let server = terms.server(Serial(3));
        for name in ["db-3.db.prod.svc", "db-client", "db-client.prod.svc.cluster.local", "127.0.0.1", "::1"] {
            assert!(server.names.iter().any(|own| own == name), "{name}: {:?}", server.names);
        }
        assert_eq!(server.names[server.names.len() - 2..], ["etcd.example.com", "192.0.2.7"]);
        assert!(terms.client().names.is_empty() && terms.client().usages == [Usage::Client]);
        assert_eq!(terms.operator().subject, "root");
        assert_eq!(terms.lifetime(), SignedDuration::from_hours(90 * 24));
    }

    #[test]
    fn a_certificate_for_all_members_is_asked_for_by_wildcards() {
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let told: Vec<_> = terms.shared_peer_names().iter().map(|name| terms.as_wildcard(name)).collect();
        assert_eq!(told, ["*.db.prod.svc.cluster.local", "*.db.prod.svc"]);
        let told: Vec<_> = terms.shared_server_names().iter().map(|name| terms.as_wildcard(name)).collect();
        assert_eq!(told, ["*.db.prod.svc", "db-client.prod.svc"]);
    }
}
