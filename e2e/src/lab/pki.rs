//! The lab's certificates and keys: one authority, one certificate for each part, made once per lab. They protect
//! nothing but a lab on one machine and never expire.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use super::LabError;
use super::names::{CONTROL_PLANE, KUBERNETES_SERVICE, NODES_MAX, NodeNumber};

/// The file whose presence says that all others are complete.
const COMPLETE: &str = "complete";

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leaf {
    file: String,
    user: String,
    group: Option<&'static str>,
    names: Vec<String>,
}

/// All certificates of a lab.
fn leaves() -> Vec<Leaf> {
    let client = |file: &str, user: &str, group| Leaf { file: file.into(), user: user.into(), group, names: vec![] };
    let mut server: Vec<String> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1"].map(Into::into).into();
    server.extend([KUBERNETES_SERVICE.to_string(), CONTROL_PLANE.to_string()]);
    let mut leaves = vec![
        Leaf { file: "apiserver".into(), user: "kube-apiserver".into(), group: None, names: server },
        client("admin", "admin", Some("system:masters")),
        client("kubelet-client", "apiserver", Some("system:masters")),
        client("controller-manager", "system:kube-controller-manager", None),
        client("scheduler", "system:kube-scheduler", None),
        client("proxy", "system:kube-proxy", None),
        client("dns", "coredns", None),
    ];
    leaves.extend(NodeNumber::first(NODES_MAX).map(|node| Leaf {
        file: node.to_string(),
        user: format!("system:node:{node}"),
        group: Some("system:nodes"),
        names: vec![node.to_string(), node.address().to_string()],
    }));
    leaves
}

/// The lab's certificates on disk.
#[derive(Debug, Clone)]
pub struct Pki {
    folder: PathBuf,
}

impl Pki {
    /// Those in `folder`, made now if they aren't there.
    pub fn ensure(folder: PathBuf) -> Result<Self, LabError> {
        let pki = Self { folder };
        if !pki.folder.join(COMPLETE).exists() {
            super::create_folder(&pki.folder)?;
            Self::make().map_err(|source| LabError::Certificates(Box::new(source)))?.into_iter().try_for_each(
                |(name, text)| {
                    let path = pki.folder.join(name);
                    super::write(&path, &text)
                },
            )?;
        }
        Ok(pki)
    }

    /// The authority's certificate.
    pub fn authority(&self) -> String {
        self.path("ca.crt")
    }

    /// A certificate and its key.
    pub fn pair(&self, name: &str) -> (String, String) {
        (self.path(&format!("{name}.crt")), self.path(&format!("{name}.key")))
    }

    /// The keys with which service accounts are signed and checked: (private, public).
    pub fn service_account(&self) -> (String, String) {
        (self.path("service-account.key"), self.path("service-account.pub"))
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn make() -> Result<Vec<(String, String)>, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "quorate-lab");
        let key = KeyPair::generate()?;
        let mut files =
            vec![("ca.crt".into(), params.self_signed(&key)?.pem()), ("ca.key".into(), key.serialize_pem())];
        let issuer = Issuer::new(params, key);
        for leaf in leaves() {
            let (certificate, key) = issue(&leaf, &issuer)?;
            files.extend([(format!("{}.crt", leaf.file), certificate), (format!("{}.key", leaf.file), key)]);
        }
        let accounts = KeyPair::generate()?;
        files.push(("service-account.key".into(), accounts.serialize_pem()));
        files.push(("service-account.pub".into(), accounts.public_key_pem()));
        files.push((COMPLETE.into(), String::new()));
        Ok(files)
    }
}

fn issue(leaf: &Leaf, issuer: &Issuer<'_, KeyPair>) -> Result<(String, String), rcgen::Error> {
    let Leaf { file: _, user, group, names } = leaf;
    let mut params = CertificateParams::new(names.clone())?;
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

/// Writes a kubeconfig for the certificate `name`. The file names others by their paths, so it lives as long as the lab.
pub fn write_kubeconfig(pki: &Pki, name: &str, path: &Path) -> Result<(), LabError> {
    let (certificate, key) = pki.pair(name);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{ "name": "lab", "cluster": {
            "server": format!("https://{CONTROL_PLANE}:6443"), "certificate-authority": pki.authority() } }],
        "users": [{ "name": name, "user": { "client-certificate": certificate, "client-key": key } }],
        "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": name } }],
    });
    super::write(path, &format!("{config:#}\n"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_api_server_is_known_by_all_its_names() {
        let leaves = leaves();
        let server = leaves.iter().find(|leaf| leaf.file == "apiserver").unwrap();
        for name in [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "localhost",
            "127.0.0.1",
            "10.96.0.1",
            "10.200.0.1",
        ] {
            assert!(server.names.iter().any(|found| found == name), "{name}");
        }
    }

    #[test]
    fn a_node_is_itself_and_nobody_else() {
        let node = leaves().into_iter().find(|leaf| leaf.file == "node2").unwrap();
        assert_eq!((node.user.as_str(), node.group), ("system:node:node2", Some("system:nodes")));
        assert_eq!(node.names, ["node2", "10.200.0.12"]);
    }

    #[test]
    fn certificates_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(folder.path().join("pki")).unwrap();
        let before = fs::read_to_string(pki.authority()).unwrap();
        assert!(before.starts_with("-----BEGIN CERTIFICATE-----"));
        Pki::ensure(folder.path().join("pki")).unwrap();
        assert_eq!(before, fs::read_to_string(pki.authority()).unwrap());
        let (certificate, key) = pki.pair("node1");
        assert!(fs::read_to_string(key).unwrap().contains("PRIVATE KEY") && Path::new(&certificate).exists());
        assert!(fs::read_to_string(pki.service_account().1).unwrap().contains("PUBLIC KEY"));
    }
}
