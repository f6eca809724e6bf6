//! The names and numbers that decisions speak of, each a type of its own. Nothing here parses or formats for a wire.

use std::{fmt, sync::Arc};

/// The serial of a member: `db-3` has serial 3. Serials only go up and are never used again, so a serial *is* the
/// identity of a member, its pod and its claim for the whole life of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(pub u32);

impl Serial {
    /// The serial after this one. Saturates: four billion members later, nothing is handed out twice by wrapping.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id etcd gave a member. A removed id never comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The id of an etcd cluster, made at its seed from the token and the seed's peer URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The UID of a Kubernetes object: of a pod, or of the claim that is a member's volume. Opaque.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Arc<str>);

impl Uid {
    /// Takes a UID as Kubernetes gave it.
    pub fn new(uid: &str) -> Self {
        Self(uid.into())
    }

    /// The UID as Kubernetes gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// By what a launcher has marked a volume that was empty when it began to wait: random, so that one that was emptied since
/// carries another, or none. Opaque.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(Arc<str>);

impl Mark {
    /// Takes a mark as the launcher tells it.
    pub fn new(mark: &str) -> Self {
        Self(mark.into())
    }

    /// The mark as the launcher tells it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// Takes a node's name as Kubernetes gave it.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name as Kubernetes gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A hash over everything in a member's pod that comes from the spec: pods with another hash are out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateHash(pub u64);

/// Milliseconds since the Unix epoch, by the operator's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// How long ago `earlier` was; zero if it lies in the future, as it may where clocks differ.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
