//! The lab's network: a namespace for the control plane with a bridge in it, one for each node, and the cuts that faults
//! make. Must not touch the host's own network.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use super::LabError;
use super::names::{CONTROL_PLANE, LabName, NODE_RANGE_BITS, NODES_MAX, Namespace, NodeNumber, Place, SERVICE_RANGE};
use crate::command::{Command, CommandError};

/// The bridge that joins the nodes, in the control plane's namespace.
const BRIDGE: &str = "lab";
/// What statfs says of a mounted namespace (linux/magic.h, NSFS_MAGIC).
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// How the tables of all cuts begin.
const CUT_TABLES: &str = "inet quorate_cut_";

/// Which packets of a pod are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodEnd {
    /// Those that it sends.
    Source,
    /// Those that are sent to it.
    Destination,
}

impl PodEnd {
    /// The field of a packet that holds its address then, in nft's words.
    const fn field(self) -> &'static str {
        match self {
            Self::Source => "saddr",
            Self::Destination => "daddr",
        }
    }
}

/// Brings up the control plane's namespace. Returns whether it is new, and so whether processes of an older one of that
/// name are cut off from it.
pub async fn ensure_control_plane(lab: &LabName) -> Result<bool, LabError> {
    let namespace = lab.control_plane();
    let fresh = ensure_namespace(&namespace).await?;
    if !has_link(&namespace, BRIDGE).await {
        ip(&namespace, &format!("link add {BRIDGE} type bridge")).await?;
    }
    ip(&namespace, &format!("address replace {CONTROL_PLANE}/{NODE_RANGE_BITS} dev {BRIDGE}")).await?;
    ip(&namespace, &format!("link set {BRIDGE} up")).await?;
    for node in NodeNumber::first(NODES_MAX) {
        ip(&namespace, &format!("route replace {} via {}", node.pods(), node.address())).await?;
    }
    route_services(&namespace, BRIDGE).await?;
    // Frames between nodes cross this bridge as they are; only the nodes' own rules may look at them.
    set(&namespace, &[("bridge/bridge-nf-call-iptables", "0")]).await?;
    Ok(fresh)
}

/// Brings up a node's namespace and its link. Returns whether it is new.
pub async fn ensure_node(lab: &LabName, node: NodeNumber) -> Result<bool, LabError> {
    let (hub, namespace) = (lab.control_plane(), lab.node(node));
    let fresh = ensure_namespace(&namespace).await?;
    if !has_link(&hub, &node.to_string()).await || !has_link(&namespace, "eth0").await {
        // One end without the other is left of a namespace that is gone.
        let _ = ip(&hub, &format!("link delete {node}")).await;
        let end = namespace.as_str();
        ip(&hub, &format!("link add {node} type veth peer name eth0 netns {end}")).await?;
        ip(&hub, &format!("link set {node} master {BRIDGE} up")).await?;
    }
    ip(&namespace, &format!("address replace {}/{NODE_RANGE_BITS} dev eth0", node.address())).await?;
    ip(&namespace, "link set eth0 up").await?;
    for other in NodeNumber::first(NODES_MAX).filter(|other| *other != node) {
        ip(&namespace, &format!("route replace {} via {}", other.pods(), other.address())).await?;
    }
    route_services(&namespace, "eth0").await?;
    // Pods on one node reach each other through a Service only if the bridge shows its frames to kube-proxy's rules.
    set(&namespace, &[("ipv4/ip_forward", "1"), ("bridge/bridge-nf-call-iptables", "1")]).await?;
    Ok(fresh)
}

/// Services have no place. But a packet needs a route before kube-proxy's rules get to see it and send it elsewhere.
async fn route_services(namespace: &Namespace, link: &str) -> Result<(), CommandError> {
    ip(namespace, &format!("route replace {SERVICE_RANGE} dev {link}")).await
}

/// Deletes all of the lab's namespaces, and with them its links.
pub async fn remove(lab: &LabName) -> Result<(), LabError> {
    let nodes = NodeNumber::first(NODES_MAX).map(|node| lab.node(node));
    for namespace in nodes.chain([lab.control_plane()]) {
        if namespace.path().exists() {
            Command::new("ip").args(["netns", "delete", namespace.as_str()]).run().await?;
        }
    }
    Ok(())
}

/// Pulls a node's cable: nothing gets in or out, and nobody is told.
pub async fn cut(lab: &LabName, node: NodeNumber) -> Result<(), CommandError> {
    // The far end of the link goes down, not the node's own: that would also remove the node's routes.
    ip(&lab.control_plane(), &format!("link set {node} down")).await
}

/// Plugs a node's cable in again.
pub async fn heal(lab: &LabName, node: NodeNumber) -> Result<(), CommandError> {
    ip(&lab.control_plane(), &format!("link set {node} up")).await
}

/// Whether a node's cable is in.
pub async fn is_linked(lab: &LabName, node: NodeNumber) -> bool {
    let shown = ip_output(&lab.control_plane(), &format!("-o link show {node} up")).await;
    shown.is_ok_and(|text| !text.trim().is_empty())
}

/// Drops all that two places send to each other, silently, at the receiver.
pub async fn cut_between(lab: &LabName, one: Place, other: Place) -> Result<(), CommandError> {
    nft(lab, one, &drop_rules(other)).await?;
    nft(lab, other, &drop_rules(one)).await
}

/// Undoes `cut_between`.
pub async fn heal_between(lab: &LabName, one: Place, other: Place) -> Result<(), CommandError> {
    nft(lab, one, &undrop_rules(other)).await?;
    nft(lab, other, &undrop_rules(one)).await
}

/// Drops all that a pod sends (`Source`), or all that is sent to it (`Destination`), at its node.
pub async fn cut_pod(lab: &LabName, node: NodeNumber, pod: Ipv4Addr, at: PodEnd) -> Result<(), CommandError> {
    nft(lab, node.into(), &rules(&pod_table(pod, at), &format!("ip {} {pod}", at.field()))).await
}

/// Undoes `cut_pod`.
pub async fn heal_pod(lab: &LabName, node: NodeNumber, pod: Ipv4Addr, at: PodEnd) -> Result<(), CommandError> {
    nft(lab, node.into(), &no_rules(&pod_table(pod, at))).await
}

/// Drops all that one pod sends to another, at the node of the latter.
pub async fn cut_way(lab: &LabName, node: NodeNumber, from: Ipv4Addr, to: Ipv4Addr) -> Result<(), CommandError> {
    nft(lab, node.into(), &rules(&way_table(from, to), &format!("ip saddr {from} ip daddr {to}"))).await
}

/// Undoes `cut_way`.
pub async fn heal_way(lab: &LabName, node: NodeNumber, from: Ipv4Addr, to: Ipv4Addr) -> Result<(), CommandError> {
    nft(lab, node.into(), &no_rules(&way_table(from, to))).await
}

/// Takes all cuts back that were made at a place.
pub async fn uncut(lab: &LabName, place: Place) -> Result<(), CommandError> {
    let listed = Command::in_namespace(&namespace_of(lab, place).path(), "nft").args(["list", "tables"]).run().await?;
    nft(lab, place, &cut_tables(&listed).map(no_rules).collect::<String>()).await
}

/// The tables of cuts among those that nft lists, a line each: `table <family> <name>`.
fn cut_tables(listed: &str) -> impl Iterator<Item = &str> {
    let tables = listed.lines().filter_map(|line| line.trim().strip_prefix("table "));
    tables.filter(|table| table.starts_with(CUT_TABLES))
}

fn table(from: Place) -> String {
    format!("{CUT_TABLES}{from}")
}

fn pod_table(pod: Ipv4Addr, at: PodEnd) -> String {
    format!("{CUT_TABLES}{}_{}", at.field(), in_a_name(pod))
}

fn way_table(from: Ipv4Addr, to: Ipv4Addr) -> String {
    format!("{CUT_TABLES}{}_to_{}", in_a_name(from), in_a_name(to))
}

/// An address as a part of a table's name, which may hold no dots.
fn in_a_name(pod: Ipv4Addr) -> String {
    pod.to_string().replace('.', "_")
}

fn drop_rules(from: Place) -> String {
    rules(&table(from), &format!("ip saddr {{ {} }}", from.sources().join(", ")))
}

/// A table that drops what matches, before anything else looks at it.
fn rules(table: &str, matches: &str) -> String {
    format!(
        "table {table}
delete table {table}
table {table} {{
    chain cut {{
        type filter hook prerouting priority -400;
        {matches} drop;
    }}
}}
"
    )
}

/// The table is declared first, since deleting one that isn't there is an error.
fn undrop_rules(from: Place) -> String {
    no_rules(&table(from))
}

fn no_rules(table: &str) -> String {
    format!("table {table}\ndelete table {table}\n")
}

async fn nft(lab: &LabName, place: Place, rules: &str) -> Result<(), CommandError> {
    Command::in_namespace(&namespace_of(lab, place).path(), "nft").args(["-f", "-"]).input(rules).run().await.map(drop)
}

fn namespace_of(lab: &LabName, place: Place) -> Namespace {
    match place {
        Place::ControlPlane => lab.control_plane(),
        Place::Node(node) => lab.node(node),
    }
}

/// Makes sure that a namespace of that name exists. Returns whether it is new.
async fn ensure_namespace(namespace: &Namespace) -> Result<bool, LabError> {
    if is_mounted(namespace) {
        return Ok(false);
    }
    // A file without a namespace mounted on it is left of a machine that went down.
    match fs::remove_file(namespace.path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(LabError::io("remove", namespace.path())(error));
        }
        Ok(()) | Err(_) => {}
    }
    Command::new("ip").args(["netns", "add", namespace.as_str()]).run().await?;
    ip(namespace, "link set lo up").await?;
    Ok(true)
}

/// Whether the namespace is there.
pub fn is_mounted(namespace: &Namespace) -> bool {
    rustix::fs::statfs(namespace.path()).is_ok_and(|found| found.f_type == NSFS_MAGIC)
}

async fn has_link(namespace: &Namespace, link: &str) -> bool {
    ip_output(namespace, &format!("link show {link}")).await.is_ok()
}

async fn ip(namespace: &Namespace, command: &str) -> Result<(), CommandError> {
    ip_output(namespace, command).await.map(drop)
}

async fn ip_output(namespace: &Namespace, command: &str) -> Result<String, CommandError> {
    Command::new("ip").args(["-n", namespace.as_str()]).args(command.split(' ')).run().await
}

/// Sets kernel parameters below /proc/sys/net, which shows those of the namespace that looks.
async fn set(namespace: &Namespace, parameters: &[(&str, &str)]) -> Result<(), CommandError> {
    let writes: Vec<String> =
        parameters.iter().map(|(name, value)| format!("echo {value} > /proc/sys/net/{name}")).collect();
    Command::in_namespace(&namespace.path(), "sh").args(["-c", &writes.join(" && ")]).run().await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_drops_what_the_other_end_sends() {
        let node: NodeNumber = "2".parse().unwrap();
        let rules = drop_rules(Place::Node(node));
        assert!(rules.contains("ip saddr { 10.200.0.12, 10.244.2.0/24 } drop"), "{rules}");
        assert!(rules.starts_with("table inet quorate_cut_node2\ndelete table inet quorate_cut_node2\n"), "{rules}");
        assert!(drop_rules(Place::ControlPlane).contains("ip saddr { 10.200.0.1 } drop"));
    }

    #[test]
    fn a_pod_is_cut_in_one_direction_and_all_cuts_are_found_again() {
        let pod = Ipv4Addr::new(10, 244, 1, 7);
        assert_eq!(pod_table(pod, PodEnd::Source), "inet quorate_cut_saddr_10_244_1_7");
        let listed = "table ip kube-proxy\ntable inet quorate_cut_saddr_10_244_1_7\ntable inet quorate_cut_cp\n";
        let found: Vec<&str> = cut_tables(listed).collect();
        assert_eq!(found, ["inet quorate_cut_saddr_10_244_1_7", "inet quorate_cut_cp"]);
    }
}
