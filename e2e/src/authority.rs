//! Certificates for scenes: an authority of the user's, or a cluster's own as a thief would use it, and what it signs. It
//! shares no code with the operator.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use crate::scene::Keys;

/// How long what is signed here lasts, and how long ago what has run out did.
const DAY: Duration = Duration::DAY;

/// An authority.
#[derive(Debug)]
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// What a certificate is to say.
#[derive(Clone, Debug)]
pub struct Order {
    name: String,
    names: Vec<String>,
    server: bool,
    until: OffsetDateTime,
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Signed {
    certificate: String,
    key: String,
}

impl Order {
    /// For a client, without names.
    pub fn client(name: &str) -> Self {
        Self { name: name.to_owned(), names: Vec::new(), server: false, until: OffsetDateTime::now_utc() + DAY }
    }

    /// For a server that is also a client.
    pub fn both(name: &str, names: &[&str]) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self { names, server: true, ..Self::client(name) }
    }

    /// The same, and its time is over.
    pub fn expired(self) -> Self {
        Self { until: OffsetDateTime::now_utc() - DAY, ..self }
    }
}

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        Ok(Self { certificate: params.self_signed(&key)?.pem(), issuer: Issuer::new(params, key) })
    }

    /// One that is there already.
    pub fn read(certificate: &str, key: &str) -> Result<Self> {
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        Ok(Self { certificate: certificate.to_owned(), issuer })
    }

    /// The certificate by which what it signed is trusted, as PEM.
    pub fn trusted(&self) -> String {
        self.certificate.clone()
    }

    /// Its key, as PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Signs what was ordered.
    pub fn signs(&self, order: &Order) -> Result<Signed> {
        let Order { name, names, server, until } = order;
        let mut params = CertificateParams::new(names.clone())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.extended_key_usages.extend(server.then_some(ExtendedKeyUsagePurpose::ServerAuth));
        (params.not_before, params.not_after) = (*until - DAY * 2, *until);
        let key = KeyPair::generate()?;
        Ok(Signed { certificate: params.signed_by(&key, &self.issuer)?.pem(), key: key.serialize_pem() })
    }
}

impl Signed {
    /// To be shown where this authority is trusted.
    pub fn keys(&self, trusted: &str) -> Keys {
        Keys { trusted: trusted.to_owned(), certificate: self.certificate.clone(), key: self.key.clone() }
    }
}
