//! What the tests of certificates speak of: a time, an authority, and a certificate of one member of `db`.

use jiff::{SignedDuration, Timestamp};
use quorate_crds::EtcdClusterSpec;

use super::{Authority, Order, Usage};
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
