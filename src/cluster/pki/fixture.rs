//! What the tests of certificates speak of: a time, authorities, and a certificate of one member of `db`.

use jiff::{SignedDuration, Timestamp};
use quorate_crds::EtcdClusterSpec;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use time::OffsetDateTime;

use super::{Authority, Order, Pair, Usage};
use crate::cluster::render::Cluster;

/// The present.
pub const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
/// Long after everything but an authority has run out.
pub const LATER: Timestamp = Timestamp::constant(1_900_000_000, 0);
/// The domain of the Kubernetes cluster.
pub const DOMAIN: &str = "cluster.local";

/// An authority that is made now.
pub fn authority() -> Authority {
    Authority::make("db-peer-ca", NOW).unwrap()
}

/// A certificate for both uses.
pub fn order() -> Order {
    Order {
        subject: "db-0".into(),
        names: vec!["db-0.db.ns.svc".into(), "127.0.0.1".into()],
        usages: &[Usage::Server, Usage::Client],
        lifetime: SignedDuration::from_hours(24),
    }
}

/// `db` in `prod`.
pub fn cluster(spec: &EtcdClusterSpec) -> Cluster<'_> {
    Cluster { name: "db", namespace: "prod", uid: "0b54c1d2", spec }
}

/// An authority of the user's that has another one sign for it, as Quorate's own never do.
pub struct Root {
    /// Its certificate, as PEM: the only one that is trusted.
    pub trusted: String,
    issuer: Issuer<'static, KeyPair>,
    /// The key of the one between.
    key: KeyPair,
}

impl Root {
    /// One that lasts longer than anything else.
    pub fn make() -> Self {
        let (params, key) = (signing("root", BasicConstraints::Unconstrained), KeyPair::generate().unwrap());
        let trusted = params.self_signed(&key).unwrap().pem();
        Self { trusted, issuer: Issuer::new(params, key), key: KeyPair::generate().unwrap() }
    }

    /// The certificate of the one between, if it lasts until then, as PEM.
    pub fn between(&self, until: Timestamp) -> String {
        self.between_during(Timestamp::UNIX_EPOCH, until)
    }

    /// The same, if it is valid from one time to another.
    pub fn between_during(&self, from: Timestamp, until: Timestamp) -> String {
        self.between_seconds(from.as_second(), until.as_second())
    }

    /// The same in seconds, which may be later than any time that can be told.
    pub fn between_seconds(&self, from: i64, until: i64) -> String {
        let time = |seconds: i64| OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        let mut params = signing("between", BasicConstraints::Constrained(0));
        (params.not_before, params.not_after) = (time(from), time(until));
        params.signed_by(&self.key, &self.issuer).unwrap().pem()
    }

    /// The one between. What it signs comes without its certificate.
    pub fn signer(&self) -> Authority {
        let certificate = self.between(LATER);
        Authority::read(&certificate.clone(), Pair { certificate, key: self.key.serialize_pem() }).unwrap()
    }
}

fn signing(subject: &str, constraints: BasicConstraints) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}
