//! TLS in a member's pod: the files, the volume that brings them, etcd's flags, and what etcdctl in the pod needs to know.
//! The files have the same names whoever provides them. etcd reads certificates and keys again at each handshake, so an
//! exchanged file needs no restart; the authorities that it trusts it reads once.

use k8s_openapi::api::core::v1::{
    KeyToPath, ProjectedVolumeSource, SecretProjection, SecretVolumeSource, Volume as PodVolume, VolumeProjection,
};
use quorate_crds::{Tls, TlsMode, TlsSecrets, names};
use quorate_statemachine::Serial;

use super::{CLIENT_PORT, Cluster};

/// Where the files are in etcd's container.
pub(super) const FOLDER: &str = "/etc/etcd/tls";
/// The volume that brings them.
pub(super) const VOLUME: &str = "tls";
/// Only for the group of the pod, which etcd's process is in.
const FILE_MODE: i32 = 0o440;

/// The names of the files; a member's Secret has its keys by the same names.
#[derive(Debug)]
pub enum TlsFiles {}

impl TlsFiles {
    /// What the member shows other members.
    pub const PEER_CERTIFICATE: &'static str = "peer.crt";
    /// Its key.
    pub const PEER_KEY: &'static str = "peer.key";
    /// Who signs what members show.
    pub const PEER_TRUSTED: &'static str = "peer-ca.crt";
    /// What the member shows clients.
    pub const SERVER_CERTIFICATE: &'static str = "server.crt";
    /// Its key.
    pub const SERVER_KEY: &'static str = "server.key";
    /// Who signs what clients show; unless the Secrets are the user's, also what members show clients.
    pub const CLIENTS_TRUSTED: &'static str = "client-ca.crt";
    /// With Secrets of the user's: what the pod itself shows as a client.
    const CLIENT_CERTIFICATE: &'static str = "client.crt";
    /// Its key.
    const CLIENT_KEY: &'static str = "client.key";
    /// With Secrets of the user's: who signs what members show clients.
    const SERVERS_TRUSTED: &'static str = "server-ca.crt";
}

fn path(file: &str) -> String {
    format!("{FOLDER}/{file}")
}

/// etcd's flags.
pub(super) fn flags(tls: &Tls) -> Vec<(&'static str, String)> {
    let mut flags = match tls.mode {
        TlsMode::Disabled => return Vec::new(),
        TlsMode::Issued => Vec::new(),
        // etcd is a client of itself, for JSON. Else it shows what it shows its clients, which may be no client's.
        TlsMode::Secrets => vec![
            ("client-cert-file", path(TlsFiles::CLIENT_CERTIFICATE)),
            ("client-key-file", path(TlsFiles::CLIENT_KEY)),
        ],
    };
    flags.extend([
        ("cert-file", path(TlsFiles::SERVER_CERTIFICATE)),
        ("key-file", path(TlsFiles::SERVER_KEY)),
        ("trusted-ca-file", path(TlsFiles::CLIENTS_TRUSTED)),
        ("client-cert-auth", true.to_string()),
        ("peer-cert-file", path(TlsFiles::PEER_CERTIFICATE)),
        ("peer-key-file", path(TlsFiles::PEER_KEY)),
        ("peer-trusted-ca-file", path(TlsFiles::PEER_TRUSTED)),
        ("peer-client-cert-auth", true.to_string()),
    ]);
    flags
}

/// Where something in the pod calls its own member: by an address that its certificate carries.
pub(super) fn own_endpoint(cluster: &Cluster<'_>, serial: Serial) -> String {
    let host = match cluster.spec.tls.mode {
        TlsMode::Disabled => return format!("http://127.0.0.1:{CLIENT_PORT}"),
        TlsMode::Issued => "127.0.0.1".to_owned(),
        TlsMode::Secrets => cluster.host(serial),
    };
    format!("https://{host}:{CLIENT_PORT}")
}

/// The Secret with what clients of the cluster show.
pub fn client_secret(cluster: &Cluster<'_>) -> Option<String> {
    match (cluster.spec.tls.mode, &cluster.spec.tls.secrets) {
        (TlsMode::Disabled, _) => None,
        (TlsMode::Secrets, Some(secrets)) => Some(secrets.client.name.clone()),
        (TlsMode::Issued, _) | (TlsMode::Secrets, None) => Some(names::client_secret(cluster.name)),
    }
}

/// What etcdctl in the pod takes from the environment, so that it works without a flag.
pub(super) fn etcdctl(cluster: &Cluster<'_>, serial: Serial) -> Vec<(&'static str, String)> {
    let (certificate, key, trusted) = match cluster.spec.tls.mode {
        TlsMode::Disabled => return Vec::new(),
        TlsMode::Issued => (TlsFiles::SERVER_CERTIFICATE, TlsFiles::SERVER_KEY, TlsFiles::CLIENTS_TRUSTED),
        TlsMode::Secrets => (TlsFiles::CLIENT_CERTIFICATE, TlsFiles::CLIENT_KEY, TlsFiles::SERVERS_TRUSTED),
    };
    vec![
        ("ETCDCTL_ENDPOINTS", own_endpoint(cluster, serial)),
        ("ETCDCTL_CERT", path(certificate)),
        ("ETCDCTL_KEY", path(key)),
        ("ETCDCTL_CACERT", path(trusted)),
    ]
}

/// The volume with the files: the member's own Secret, or the user's three in one folder.
pub(super) fn volume(cluster: &Cluster<'_>, serial: Serial) -> Option<PodVolume> {
    let volume = PodVolume { name: VOLUME.into(), ..PodVolume::default() };
    match (cluster.spec.tls.mode, &cluster.spec.tls.secrets) {
        (TlsMode::Disabled, _) => None,
        (TlsMode::Secrets, Some(secrets)) => Some(PodVolume { projected: Some(own(secrets)), ..volume }),
        (TlsMode::Issued, _) | (TlsMode::Secrets, None) => Some(PodVolume {
            secret: Some(SecretVolumeSource {
                secret_name: Some(cluster.member(serial)),
                default_mode: Some(FILE_MODE),
                ..SecretVolumeSource::default()
            }),
            ..volume
        }),
    }
}

/// A volume of this name with only what the member shows clients, and whom it trusts as such: for who stands beside it.
pub(super) fn server_volume(cluster: &Cluster<'_>, serial: Serial, name: &str) -> Option<PodVolume> {
    let own = [TlsFiles::SERVER_CERTIFICATE, TlsFiles::SERVER_KEY, TlsFiles::CLIENTS_TRUSTED];
    let (secret, keys) = match (cluster.spec.tls.mode, &cluster.spec.tls.secrets) {
        (TlsMode::Disabled, _) => return None,
        (TlsMode::Secrets, Some(secrets)) => (secrets.server.name.clone(), OWN_KEYS),
        (TlsMode::Issued, _) | (TlsMode::Secrets, None) => (cluster.member(serial), own),
    };
    let source = SecretVolumeSource {
        secret_name: Some(secret),
        items: Some(items(keys, own)),
        default_mode: Some(FILE_MODE),
        // etcd itself waits for it, and for nothing on behalf of who stands beside it.
        optional: Some(true),
    };
    Some(PodVolume { name: name.to_owned(), secret: Some(source), ..PodVolume::default() })
}

/// The keys of a Secret of the user's.
const OWN_KEYS: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

fn items(keys: [&str; 3], files: [&str; 3]) -> Vec<KeyToPath> {
    let item = |(key, path): (&str, &str)| KeyToPath { key: key.into(), path: path.into(), mode: None };
    keys.into_iter().zip(files).map(item).collect()
}

fn own(secrets: &TlsSecrets) -> ProjectedVolumeSource {
    let TlsSecrets { peer, server, client } = secrets;
    let source = |name: &str, files: [&str; 3]| {
        let items = Some(items(OWN_KEYS, files));
        let projection = SecretProjection { name: name.to_owned(), items, optional: None };
        VolumeProjection { secret: Some(projection), ..VolumeProjection::default() }
    };
    ProjectedVolumeSource {
        default_mode: Some(FILE_MODE),
        sources: Some(vec![
            source(&peer.name, [TlsFiles::PEER_CERTIFICATE, TlsFiles::PEER_KEY, TlsFiles::PEER_TRUSTED]),
            source(&server.name, [TlsFiles::SERVER_CERTIFICATE, TlsFiles::SERVER_KEY, TlsFiles::CLIENTS_TRUSTED]),
            source(&client.name, [TlsFiles::CLIENT_CERTIFICATE, TlsFiles::CLIENT_KEY, TlsFiles::SERVERS_TRUSTED]),
        ]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use quorate_crds::{EtcdClusterSpec, LocalSecret};
    use serde_json::{Value, to_value};

    use super::super::fixture;
    use super::*;

    fn spec(mode: TlsMode) -> EtcdClusterSpec {
        let named = |name: &str| LocalSecret { name: name.into() };
        let secrets = TlsSecrets { peer: named("my-peer"), server: named("my-server"), client: named("my-client") };
        fixture::spec(|spec| {
            spec.tls.mode = mode;
            spec.tls.secrets = (mode == TlsMode::Secrets).then_some(secrets);
        })
    }

    /// The files that a volume brings; of a member's Secret, those that such a Secret has.
    fn files(volume: &Value) -> BTreeSet<String> {
        let sources = volume["projected"]["sources"].as_array().cloned().unwrap_or_default();
        let items = sources.iter().flat_map(|source| source["secret"]["items"].as_array().cloned().unwrap_or_default());
        let projected: BTreeSet<_> = items.map(|item| item["path"].as_str().unwrap().to_owned()).collect();
        if projected.is_empty() {
            let own = [
                TlsFiles::PEER_CERTIFICATE,
                TlsFiles::PEER_KEY,
                TlsFiles::PEER_TRUSTED,
                TlsFiles::SERVER_CERTIFICATE,
                TlsFiles::SERVER_KEY,
                TlsFiles::CLIENTS_TRUSTED,
            ];
            return own.map(str::to_owned).into();
        }
        projected
    }

    #[test]
    fn every_file_that_is_named_is_brought() {
        for mode in [TlsMode::Issued, TlsMode::Secrets] {
            let spec = spec(mode);
            let cluster = fixture::cluster(&spec);
            let brought = files(&to_value(volume(&cluster, Serial(4)).unwrap()).unwrap());
            let named = flags(&spec.tls).into_iter().chain(etcdctl(&cluster, Serial(4)));
            let named: Vec<_> =
                named.filter_map(|(_, value)| Some(value.strip_prefix("/etc/etcd/tls/")?.to_owned())).collect();
            assert_eq!(named.len(), if mode == TlsMode::Issued { 9 } else { 11 });
            for file in named {
                assert!(brought.contains(&file), "{mode:?}: {file}");
            }
        }
    }

    #[test]
    fn plain_text_needs_nothing() {
        let spec = spec(TlsMode::Disabled);
        let cluster = fixture::cluster(&spec);
        assert_eq!(volume(&cluster, Serial(4)), None);
        assert!(flags(&spec.tls).is_empty() && etcdctl(&cluster, Serial(4)).is_empty());
    }

    #[test]
    fn a_member_mounts_its_own_secret_or_the_users() {
        let of = |mode| {
            let spec = spec(mode);
            to_value(volume(&fixture::cluster(&spec), Serial(4)).unwrap()).unwrap()
        };
        assert_eq!(of(TlsMode::Issued)["secret"]["secretName"], "db-4");
        let own = of(TlsMode::Secrets);
        let names: Vec<_> = (0..3).map(|at| own["projected"]["sources"][at]["secret"]["name"].clone()).collect();
        assert_eq!(names, ["my-peer", "my-server", "my-client"]);
    }

    #[test]
    fn etcdctl_calls_its_own_member() {
        let endpoint = |mode| {
            let spec = spec(mode);
            etcdctl(&fixture::cluster(&spec), Serial(4)).remove(0).1
        };
        assert_eq!(endpoint(TlsMode::Issued), "https://127.0.0.1:2379");
        assert_eq!(endpoint(TlsMode::Secrets), "https://db-4.db.prod.svc:2379");
    }
}
