//! The Secrets that hold what Quorate issues: how they are written, and whether what is in them is still right. Reading
//! and writing them in Kubernetes is not done here.
//!
//! The Secret of an authority keeps apart what signs (`tls.crt`, `tls.key`) and what is trusted (`ca.crt`, a bundle), so
//! that an authority can be exchanged: a second one is trusted first, signs next, and the first is dropped last.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use quorate_crds::names;
use quorate_statemachine::Serial;

use super::{Authority, Certificate, Demand, Fault, Order, Pair, Span, Terms, check};
use crate::cluster::render::{Cluster, TlsFiles};

/// The type of a Secret with a certificate, its key and an authority.
const TLS: &str = "kubernetes.io/tls";
/// What such a Secret holds.
pub(super) const TLS_CERTIFICATE: &str = "tls.crt";
pub(super) const TLS_KEY: &str = "tls.key";
pub(super) const TLS_TRUSTED: &str = "ca.crt";

/// Which authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realm {
    /// Between members.
    Peer,
    /// Between members and clients.
    Client,
}

impl Realm {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Peer, Self::Client];

    /// The name of its Secret, which is also the authority's.
    pub fn secret(self, cluster: &str) -> String {
        match self {
            Self::Peer => names::peer_authority(cluster),
            Self::Client => names::client_authority(cluster),
        }
    }
}

/// What a member shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberKeys {
    /// To other members.
    pub peer: Pair,
    /// To clients.
    pub server: Pair,
}

/// The Secret of an authority.
pub fn authority_secret(cluster: &Cluster<'_>, realm: Realm, authority: &Authority) -> Secret {
    tls(cluster, realm.secret(cluster.name), authority.own(), authority.trusted())
}

/// The Secret that applications mount.
pub fn client_secret(cluster: &Cluster<'_>, pair: &Pair, trusted: &str) -> Secret {
    tls(cluster, names::client_secret(cluster.name), pair, trusted)
}

fn tls(cluster: &Cluster<'_>, name: String, pair: &Pair, trusted: &str) -> Secret {
    let Pair { certificate, key } = pair;
    let data = [(TLS_CERTIFICATE, certificate.as_str()), (TLS_KEY, key), (TLS_TRUSTED, trusted)];
    Secret { type_: Some(TLS.into()), ..secret(cluster, name, data) }
}

/// The Secret of a member, with the files that its pod mounts.
pub fn member_secret(
    cluster: &Cluster<'_>,
    serial: Serial,
    keys: &MemberKeys,
    peer_trusted: &str,
    client_trusted: &str,
) -> Secret {
    let MemberKeys { peer, server } = keys;
    let data = [
        (TlsFiles::PEER_CERTIFICATE, peer.certificate.as_str()),
        (TlsFiles::PEER_KEY, &peer.key),
        (TlsFiles::PEER_TRUSTED, peer_trusted),
        (TlsFiles::SERVER_CERTIFICATE, &server.certificate),
        (TlsFiles::SERVER_KEY, &server.key),
        (TlsFiles::CLIENTS_TRUSTED, client_trusted),
    ];
    secret(cluster, cluster.member(serial), data)
}

fn secret<const N: usize>(cluster: &Cluster<'_>, name: String, data: [(&str, &str); N]) -> Secret {
    let data = data.map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec())));
    Secret { metadata: cluster.owned(name), data: Some(BTreeMap::from(data)), ..Secret::default() }
}

/// One text of a Secret.
pub(super) fn text(secret: &Secret, key: &'static str) -> Result<String, Fault> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key)).ok_or(Fault::KeyMissing(key))?;
    String::from_utf8(bytes.0.clone()).map_err(|_| Fault::KeyMissing(key))
}

/// A certificate of a Secret with its key.
pub(super) fn pair(secret: &Secret, certificate: &'static str, key: &'static str) -> Result<Pair, Fault> {
    Ok(Pair { certificate: text(secret, certificate)?, key: text(secret, key)? })
}

/// The private key that a Secret holds, to be used again.
pub fn kept_key(secret: Option<&Secret>, key: &'static str) -> Option<String> {
    text(secret?, key).ok()
}

/// The authority that a Secret holds.
pub fn read_authority(secret: &Secret) -> Result<Authority, Fault> {
    Authority::read(&text(secret, TLS_TRUSTED)?, pair(secret, TLS_CERTIFICATE, TLS_KEY)?)
}

/// Whether an authority is one that none of these Secrets trusts, of members and for applications: it was exchanged, and what
/// it signed would cut off whoever has its certificate from those who have not. One that is being exchanged in order is
/// trusted before it signs, and one trusting Secret is enough, for the others may be on their way. Secrets that tell nothing,
/// or none at all, speak against nobody.
pub fn is_strange<'s>(authority: &Authority, realm: Realm, issued: impl IntoIterator<Item = &'s Secret>) -> bool {
    let own = Certificate::read(&authority.own().certificate).unwrap_or_default();
    let mut bundles = issued.into_iter().filter_map(|secret| trusted(secret, realm)).peekable();
    let told = bundles.peek().is_some();
    told && !bundles.any(|bundle| bundle.iter().any(|trusted| own.first() == Some(trusted)))
}

/// Whom a Secret that was issued trusts in a realm, if it tells.
fn trusted(secret: &Secret, realm: Realm) -> Option<Vec<Certificate>> {
    let bundle = match realm {
        Realm::Peer => text(secret, TlsFiles::PEER_TRUSTED),
        Realm::Client => text(secret, TlsFiles::CLIENTS_TRUSTED).or_else(|_| text(secret, TLS_TRUSTED)),
    };
    Certificate::read(&bundle.ok()?).ok()
}

/// From when until when a member's Secret is right for it.
pub fn judge_member(
    secret: &Secret,
    terms: &Terms<'_>,
    serial: Serial,
    peer: &Authority,
    client: &Authority,
    now: Timestamp,
) -> Result<Span, Vec<Fault>> {
    let of_peers = judge(
        secret,
        [TlsFiles::PEER_CERTIFICATE, TlsFiles::PEER_KEY, TlsFiles::PEER_TRUSTED],
        &terms.peer(serial),
        peer,
        now,
    );
    let of_clients = judge(
        secret,
        [TlsFiles::SERVER_CERTIFICATE, TlsFiles::SERVER_KEY, TlsFiles::CLIENTS_TRUSTED],
        &terms.server(serial),
        client,
        now,
    );
    match (of_peers, of_clients) {
        (Ok(one), Ok(other)) => Ok(one.min(other)),
        (Err(one), Err(other)) => Err([one, other].concat()),
        (Err(faults), Ok(_)) | (Ok(_), Err(faults)) => Err(faults),
    }
}

/// From when until when the Secret for applications is right.
pub fn judge_client(
    secret: &Secret,
    terms: &Terms<'_>,
    client: &Authority,
    now: Timestamp,
) -> Result<Span, Vec<Fault>> {
    judge(secret, [TLS_CERTIFICATE, TLS_KEY, TLS_TRUSTED], &terms.client(), client, now)
}

fn judge(
    secret: &Secret,
    [certificate, key, trusted]: [&'static str; 3],
    order: &Order,
    authority: &Authority,
    now: Timestamp,
) -> Result<Span, Vec<Fault>> {
    let pair = pair(secret, certificate, key).map_err(|fault| vec![fault])?;
    let found = text(secret, trusted).map_err(|fault| vec![fault])?;
    if found != authority.trusted() {
        return Err(vec![Fault::OtherTrust(trusted)]);
    }
    let demand = Demand { names: &order.names, usages: order.usages };
    // The one that signs now, and none that is trusted beside it while it is exchanged: that could never be dropped.
    check(&pair, &authority.own().certificate, trusted, &demand, now)
}

#[cfg(test)]
mod tests {
    use quorate_crds::EtcdClusterSpec;

    use super::super::fixture::{DOMAIN, LATER, NOW, authority, cluster};
    use super::*;

    fn keys(terms: &Terms<'_>, serial: Serial, peer: &Authority, client: &Authority) -> MemberKeys {
        MemberKeys {
            peer: peer.issue(&terms.peer(serial), None, NOW).unwrap(),
            server: client.issue(&terms.server(serial), None, NOW).unwrap(),
        }
    }

    #[test]
    fn an_authority_survives_its_secret_and_a_damage_is_named() {
        let spec = EtcdClusterSpec::default();
        let made = authority();
        let secret = authority_secret(&cluster(&spec), Realm::Peer, &made);
        assert_eq!(secret.metadata.name.as_deref(), Some("db-peer-ca"));
        assert_eq!(read_authority(&secret).unwrap().own(), made.own());
        let mut damaged = secret.clone();
        damaged.data.as_mut().unwrap().remove(TLS_KEY);
        assert_eq!(read_authority(&damaged).unwrap_err(), Fault::KeyMissing("tls.key"));
    }

    #[test]
    fn a_members_secret_is_right_for_that_member_alone_and_for_a_time() {
        let mut spec = EtcdClusterSpec::default();
        let (peer, client) = (authority(), authority());
        let with = |spec: &EtcdClusterSpec, serial: u32, now: Timestamp| {
            let terms = Terms { cluster: cluster(spec), domain: DOMAIN };
            let own = Terms { cluster: cluster(spec), domain: DOMAIN };
            let keys = keys(&own, Serial(0), &peer, &client);
            let secret = member_secret(&own.cluster, Serial(0), &keys, peer.trusted(), client.trusted());
            judge_member(&secret, &terms, Serial(serial), &peer, &client, now)
        };
        let lifetime = Terms { cluster: cluster(&spec), domain: DOMAIN }.lifetime();
        assert_eq!(with(&spec, 0, NOW).map(|span| span.until), Ok(NOW + lifetime));
        assert!(with(&spec, 1, NOW).unwrap_err().contains(&Fault::Name("db-1.db.prod.svc".into())));
        assert!(matches!(with(&spec, 0, LATER).unwrap_err()[..], [Fault::Expired(_), Fault::Expired(_)]));
        let before = spec.clone();
        spec.tls.extra_names = vec!["etcd.example.com".into()];
        let terms = Terms { cluster: cluster(&before), domain: DOMAIN };
        let old = keys(&terms, Serial(0), &peer, &client);
        let secret = member_secret(&terms.cluster, Serial(0), &old, peer.trusted(), client.trusted());
        let wished = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let faults = judge_member(&secret, &wished, Serial(0), &peer, &client, NOW).unwrap_err();
        assert_eq!(faults, [Fault::Name("etcd.example.com".into())]);
    }

    #[test]
    fn what_another_authority_signed_or_trusts_is_not_right() {
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let (peer, client, foreign) = (authority(), authority(), authority());
        let own = keys(&terms, Serial(0), &peer, &client);
        let exchanged = MemberKeys { peer: own.server.clone(), server: own.server.clone() };
        let judged = |keys: &MemberKeys, peer_trusted: &str| {
            let secret = member_secret(&terms.cluster, Serial(0), keys, peer_trusted, client.trusted());
            judge_member(&secret, &terms, Serial(0), &peer, &client, NOW)
        };
        judged(&own, peer.trusted()).unwrap();
        assert_eq!(judged(&own, foreign.trusted()), Err(vec![Fault::OtherTrust("peer-ca.crt")]));
        // What is shown to clients is none to show to members: the authorities are not the same.
        assert_eq!(judged(&exchanged, peer.trusted()), Err(vec![Fault::UnknownAuthority("peer-ca.crt".into())]));
    }

    #[test]
    fn what_the_authority_of_before_has_signed_is_issued_anew_though_it_is_trusted_yet() {
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let (first, second) = (authority(), authority());
        let bundle = format!("{}{}", first.trusted(), second.trusted());
        let both = |own: &Authority| Authority::read(&bundle, own.own().clone()).unwrap();
        let pair = both(&first).issue(&terms.client(), None, NOW).unwrap();
        let secret = client_secret(&terms.cluster, &pair, &bundle);
        judge_client(&secret, &terms, &both(&first), NOW).unwrap();
        let faults = judge_client(&secret, &terms, &both(&second), NOW).unwrap_err();
        assert_eq!(faults, [Fault::UnknownAuthority("ca.crt".into())]);
    }

    #[test]
    fn an_authority_that_no_secret_of_its_realm_trusts_is_strange() {
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let (peer, client, foreign) = (authority(), authority(), authority());
        let member = |peer: &Authority, peers: &str, clients: &str| {
            member_secret(&terms.cluster, Serial(0), &keys(&terms, Serial(0), peer, &client), peers, clients)
        };
        let own = member(&peer, peer.trusted(), client.trusted());
        assert!(!is_strange(&peer, Realm::Peer, [&own]) && !is_strange(&client, Realm::Client, [&own]));
        assert!(is_strange(&foreign, Realm::Peer, [&own]) && is_strange(&foreign, Realm::Client, [&own]));
        assert!(is_strange(&client, Realm::Peer, [&own]), "the authority of the other realm");
        let pair = client.issue(&terms.client(), None, NOW).unwrap();
        let of_applications = client_secret(&terms.cluster, &pair, client.trusted());
        assert!(!is_strange(&client, Realm::Client, [&of_applications]));
        assert!(is_strange(&foreign, Realm::Client, [&of_applications]));
        assert!(!is_strange(&foreign, Realm::Peer, [&of_applications]), "it says nothing of members");
        assert!(!is_strange(&foreign, Realm::Peer, []), "nobody says anything");
        let damaged = member(&peer, "x", client.trusted());
        assert!(!is_strange(&foreign, Realm::Peer, [&damaged]) && is_strange(&foreign, Realm::Peer, [&damaged, &own]));
    }

    #[test]
    fn an_authority_that_is_being_exchanged_in_order_is_not_strange() {
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let (old, new, client) = (authority(), authority(), authority());
        let both = format!("{}{}", old.trusted(), new.trusted());
        let member = |trusted: &str| {
            member_secret(&terms.cluster, Serial(0), &keys(&terms, Serial(0), &old, &client), trusted, client.trusted())
        };
        let (before, renewed, after) = (member(old.trusted()), member(&both), member(new.trusted()));
        let signs = |authority: &Authority, bundle: &str| Authority::read(bundle, authority.own().clone()).unwrap();
        for (authority, secrets) in [
            (signs(&old, &both), [&before, &before]),
            (signs(&old, &both), [&before, &renewed]),
            (signs(&new, &both), [&renewed, &renewed]),
            (signs(&new, &both), [&before, &renewed]),
            (signs(&new, new.trusted()), [&renewed, &after]),
        ] {
            assert!(!is_strange(&authority, Realm::Peer, secrets));
        }
        assert!(is_strange(&signs(&new, &both), Realm::Peer, [&before]), "it signs before it is trusted");
    }

    #[test]
    fn applications_get_what_clients_need() {
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let client = authority();
        let pair = client.issue(&terms.client(), None, NOW).unwrap();
        let secret = client_secret(&terms.cluster, &pair, client.trusted());
        assert_eq!(secret.metadata.name.as_deref(), Some("db-client"));
        assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
        judge_client(&secret, &terms, &client, NOW).unwrap();
        assert!(judge_client(&secret, &terms, &authority(), NOW).is_err());
        assert_eq!(kept_key(Some(&secret), TLS_KEY), Some(pair.key));
        assert_eq!(kept_key(None, TLS_KEY), None);
    }
}
