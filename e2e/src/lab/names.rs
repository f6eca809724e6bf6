//! The names and addresses of a lab and its nodes. Pure: looks at nothing.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The largest lab: three nodes are what members need to be apart, and each costs memory.
pub const NODES_MAX: u8 = 3;
/// A lab's longest name: network namespaces, cgroups and sockets carry it.
const NAME_MAX: usize = 20;

/// The address of the control plane.
pub const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// The range of the nodes' addresses.
pub const NODE_RANGE_BITS: u8 = 24;
/// The range of all pods.
pub const POD_RANGE: &str = "10.244.0.0/16";
/// The range of the Services.
pub const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The Service of the API server.
pub const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The Service of DNS.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

/// Why a name is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not a lab's name.
    #[error("`{0}` can't name a lab: use 1 to 20 of a-z, 0-9 and `-`, beginning and ending with a letter or digit")]
    Lab(String),
    /// Not a node's number.
    #[error("`{0}` is no node: a lab has 1 to 3, numbered from 1")]
    Node(String),
}

/// The name of a lab. Two labs with different names share nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabName(String);

impl LabName {
    /// The network namespace of the control plane.
    pub fn control_plane(&self) -> Namespace {
        Namespace(format!("{self}-cp"))
    }

    /// The network namespace of a node.
    pub fn node(&self, node: NodeNumber) -> Namespace {
        Namespace(format!("{self}-{node}"))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LabName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let whole = !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(legal);
        if whole && !text.starts_with('-') && !text.ends_with('-') {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError::Lab(text.to_owned()))
        }
    }
}

impl TryFrom<String> for LabName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<LabName> for String {
    fn from(name: LabName) -> Self {
        name.0
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A network namespace by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace(String);

impl Namespace {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.0)
    }
}

/// The number of a node, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct NodeNumber(u8);

impl NodeNumber {
    /// The first `count` nodes.
    pub fn first(count: u8) -> impl Iterator<Item = Self> {
        (1..=count.min(NODES_MAX)).map(Self)
    }

    /// Its address.
    pub const fn address(self) -> Ipv4Addr {
        let [a, b, c, d] = CONTROL_PLANE.octets();
        Ipv4Addr::new(a, b, c, d + 9 + self.0)
    }

    /// The range of its pods.
    pub fn pods(self) -> String {
        format!("10.244.{}.0/24", self.0)
    }
}

impl TryFrom<u8> for NodeNumber {
    type Error = NameError;

    fn try_from(number: u8) -> Result<Self, NameError> {
        if (1..=NODES_MAX).contains(&number) { Ok(Self(number)) } else { Err(NameError::Node(number.to_string())) }
    }
}

impl From<NodeNumber> for u8 {
    fn from(node: NodeNumber) -> Self {
        node.0
    }
}

impl FromStr for NodeNumber {
    type Err = NameError;

    /// Reads `node2` as well as `2`.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let digits = text.strip_prefix("node").unwrap_or(text);
        let number = digits.parse::<u8>().ok().and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(|| NameError::Node(text.to_owned()))
    }
}

/// The node's name in Kubernetes, as in `node1`.
impl fmt::Display for NodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

/// One end of a link that can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Where the API server, its controllers and the tests run.
    ControlPlane,
    /// A node with its pods.
    Node(NodeNumber),
}

impl Place {
    /// The addresses that packets from there carry.
    pub fn sources(self) -> Vec<String> {
        match self {
            Self::ControlPlane => vec![CONTROL_PLANE.to_string()],
            Self::Node(node) => vec![node.address().to_string(), node.pods()],
        }
    }
}

impl From<NodeNumber> for Place {
    fn from(node: NodeNumber) -> Self {
        Self::Node(node)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ControlPlane => f.write_str("cp"),
            Self::Node(node) => node.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_names_are_checked() {
        for good in ["quorate", "a", "lab-2", "x2345678901234567890"] {
            assert_eq!(good.parse::<LabName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a/b", "..", "x23456789012345678901"] {
            assert_eq!(bad.parse::<LabName>(), Err(NameError::Lab(bad.into())));
        }
    }

    #[test]
    fn nodes_have_numbers_names_and_addresses() {
        let node: NodeNumber = "node2".parse().unwrap();
        assert_eq!(node, "2".parse().unwrap());
        assert_eq!(
            (node.to_string(), node.address().to_string(), node.pods()),
            ("node2".into(), "10.200.0.12".into(), "10.244.2.0/24".into())
        );
        for bad in ["0", "4", "node", "x", "256"] {
            assert_eq!(bad.parse::<NodeNumber>(), Err(NameError::Node(bad.into())));
        }
        assert_eq!(NodeNumber::first(9).count(), 3);
    }

    #[test]
    fn a_node_sends_as_itself_and_as_its_pods() {
        let node = Place::Node(NodeNumber(1));
        assert_eq!(node.sources(), ["10.200.0.11", "10.244.1.0/24"]);
    }
}
