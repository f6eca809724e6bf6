//! The cluster that the tests of rendering speak of.

use quorate_crds::EtcdClusterSpec;

use quorate_statemachine::{Image, Release, Version};

use super::{Agent, Cluster};

/// `db` in `prod`.
pub(super) fn cluster(spec: &EtcdClusterSpec) -> Cluster<'_> {
    Cluster { name: "db", namespace: "prod", uid: "0b54c1d2", spec }
}

/// An agent that takes no tickets but from the annotation.
pub fn agent() -> Agent {
    Agent { image: "quorate.dev/agent:dev".into(), ticket_key: None }
}

/// What the default spec asks for.
pub fn release() -> Release {
    Release { version: Version::new(6, 16), image: Image::new("quay.io/coreos/etcd:v3.6.16") }
}

/// A spec in which the given change was made to the default.
pub(super) fn spec(change: impl FnOnce(&mut EtcdClusterSpec)) -> EtcdClusterSpec {
    let mut spec = EtcdClusterSpec::default();
    change(&mut spec);
    spec
}
