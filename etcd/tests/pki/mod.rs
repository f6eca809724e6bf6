//! Authorities and what they sign, for tests.

use quorate_etcd::{Credentials, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// The name that a member's certificate carries.
pub const HOST: &str = "db-0.db.ns.svc";

/// An authority and what it signs.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
pub struct Leaf {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// Signs a certificate for a member that is also a client, with whatever is changed of it.
    pub fn signs(&self, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let mut params = CertificateParams::new([HOST.to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Leaf { certificate: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
    }
}

/// What is shown, and whom it trusts.
pub fn pem<'a>(leaf: &'a Leaf, trusted: &'a Authority) -> Pem<'a> {
    Pem { certificate: &leaf.certificate, key: &leaf.key, trusted: &trusted.certificate }
}

/// Credentials of this certificate.
pub fn credentials(leaf: &Leaf, trusted: &Authority) -> Credentials {
    Credentials::new(pem(leaf, trusted)).unwrap()
}
