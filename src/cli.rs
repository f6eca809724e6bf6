//! The command line: each setting as a flag and as an environment variable. It reads no files and starts nothing.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A Kubernetes operator for etcd.
#[derive(Debug, Parser)]
#[command(name = "quorate", version, about)]
pub struct Cli {
    /// What to do. Without it: run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// What to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Watch EtcdClusters and act for them, until told to stop.
    #[default]
    Run,
}

/// How the operator runs.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// The image that brings the agent into each member's pod.
    #[arg(long, env = "QUORATE_AGENT_IMAGE", default_value = "quorate.dev/agent:dev", global = true)]
    pub agent_image: String,
    /// The domain of the Kubernetes cluster: what the names of Services end in. Certificates carry it.
    #[arg(long, env = "QUORATE_CLUSTER_DOMAIN", default_value = "cluster.local", global = true)]
    pub cluster_domain: String,
    /// The namespaces whose EtcdClusters are looked after, comma-separated. Without it: all of them.
    #[arg(long, env = "QUORATE_NAMESPACES", value_delimiter = ',', global = true)]
    pub namespaces: Vec<String>,
    /// The namespace of the Lease by which several operators agree on one that acts.
    #[arg(long, env = "QUORATE_LEASE_NAMESPACE", default_value = "quorate-system", global = true)]
    pub lease_namespace: String,
    /// The name of that Lease.
    #[arg(long, env = "QUORATE_LEASE_NAME", default_value = "quorate", global = true)]
    pub lease_name: String,
    /// Who this operator is in the Lease; the name of its pod. No two that run at once may share one.
    #[arg(long, env = "QUORATE_IDENTITY", default_value_t = default_identity(), global = true)]
    pub identity: String,
    /// Where /livez, /readyz and /metrics are served. The default listens on IPv6 and IPv4, or only on IPv4 where a
    /// node has no IPv6.
    #[arg(long, env = "QUORATE_LISTEN", default_value_t = default_listen(), global = true)]
    pub listen: SocketAddr,
    /// How many clusters of one namespace setting are worked on at once.
    #[arg(long, env = "QUORATE_CONCURRENCY", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..), global = true)]
    pub concurrency: u16,
    /// Which log lines are written, as `tracing`'s filters: `info`, `quorate=debug,info`.
    #[arg(long, env = "QUORATE_LOG", default_value = "info", global = true)]
    pub log: String,
    /// The form of the log.
    #[arg(long, env = "QUORATE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Human, global = true)]
    pub log_format: LogFormat,
    /// For tests only: exit with code 86 right after the n-th write to Kubernetes or etcd (the Lease apart).
    #[arg(long, env = "QUORATE_CRASH_AFTER_WRITES", hide = true, global = true)]
    pub crash_after_writes: Option<u64>,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

fn default_listen() -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8080)
}

/// The host's name, which in a pod is the pod's name.
fn default_identity() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "quorate".into(), |name| name.trim().into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_are_taken_before_and_after_the_command() {
        let before = Cli::try_parse_from(["quorate", "--agent-image=a:1", "--namespaces=x,y"]).unwrap();
        assert_eq!(before.settings.agent_image, "a:1");
        assert_eq!(before.settings.namespaces, ["x", "y"]);
        let after = Cli::try_parse_from(["quorate", "run", "--log-format=json", "--concurrency=3"]).unwrap();
        assert_eq!(after.settings.log_format, LogFormat::Json);
        assert_eq!(after.settings.concurrency, 3);
        assert!(Cli::try_parse_from(["quorate", "--concurrency=0"]).is_err());
    }
}
