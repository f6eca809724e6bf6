//! The command line: what there is to say, and to whom it is handed on. Does no work itself.

mod chaos;
mod cluster;
mod rbac;
mod show;
mod suite;

use clap::builder::FalseyValueParser;
use clap::{Parser, Subcommand, ValueEnum};

use crate::bench::{self, RUNS, Row};
use crate::lab::{Component, DEFAULT_LAB, LabName, NODES_MAX, NodeNumber};
use crate::provider::ProviderKind;

/// Says of all commands that install the operator that it is there: `make` hands on what is set.
const NO_DEPLOY: &str = "QUORATE_NO_DEPLOY";

/// A real Kubernetes for Quorate's tests, benchmarks and demo.
///
/// `up` brings up a cluster: on Linux as root with Go it is built from pinned sources and
/// needs no Docker (`local`); else kind makes one (`kind`); else the cluster of your kubeconfig
/// is used (`current`). Everything lies under .cache in the repository; nothing touches the
/// host's network.
///
/// Examples:
///   quorate-e2e up                         three nodes, ready in about 20 s once built
///   quorate-e2e kubectl -- get nodes       kubectl against it
///   quorate-e2e deploy                     build and install the operator
///   quorate-e2e demo                       the main job, step by step
///   quorate-e2e test                       the usual choice of tests; --all for every one
///   quorate-e2e chaos --seed 7 --minutes 3 faults at random under load, and a judge of them
///   quorate-e2e node cut node2             pull a node's cable; `heal` plugs it in again
///   quorate-e2e exec -- curl 10.96.0.1     a program where pods and Services can be reached
///   quorate-e2e down                       all of it gone
#[derive(Debug, Parser)]
#[command(name = "quorate-e2e", verbatim_doc_comment)]
pub struct Cli {
    /// The lab to work on; labs with different names share nothing.
    #[arg(long, global = true, env = "QUORATE_LAB", default_value = DEFAULT_LAB)]
    pub lab: LabName,
    /// What brings up the cluster; the best that works here when not given.
    #[arg(long, global = true, env = "QUORATE_PROVIDER")]
    pub provider: Option<ProviderKind>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build the tools that a local cluster is made of (each once).
    Tools,
    /// Build all images and load them into the running cluster.
    Images {
        /// Only write the archives.
        #[arg(long)]
        no_load: bool,
    },
    /// Bring up the cluster, or what is missing of it.
    Up {
        /// How many nodes.
        #[arg(long, default_value_t = NODES_MAX, value_parser = clap::value_parser!(u8).range(1..=i64::from(NODES_MAX)))]
        nodes: u8,
    },
    /// Take the cluster down and remove its files; built tools and images stay.
    Down,
    /// Show what runs.
    Status,
    /// Run kubectl against the cluster.
    Kubectl {
        /// Its arguments.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Show the log of a part of a local cluster.
    Logs {
        /// Such as kube-apiserver or kubelet-node1.
        component: Component,
        /// Go on showing what is added.
        #[arg(long, short)]
        follow: bool,
    },
    /// Run a program where the API server, pods and Services can be reached.
    Exec {
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Do something to a node of a local cluster and see what Kubernetes makes of it.
    Node {
        /// What to do.
        act: NodeAct,
        /// To which.
        node: NodeNumber,
    },
    /// Build and install the operator, and wait until it is available.
    Deploy,
    /// Bring up the cluster, install the operator and run the tests against them.
    Test {
        /// Every test; else the usual choice.
        #[arg(long)]
        all: bool,
        /// How many tests at a time; else as many as there are processors.
        #[arg(long)]
        jobs: Option<u16>,
        /// Don't install the operator: it is there.
        #[arg(long, env = NO_DEPLOY, value_parser = FalseyValueParser::new())]
        no_deploy: bool,
        /// The version of etcd for clusters whose test names none; the operator's default when not given.
        #[arg(long, value_name = "VERSION")]
        etcd: Option<String>,
        /// Only tests whose name contains one of these.
        filter: Vec<String>,
    },
    /// Show how often the operator of a local cluster has used each of its rights, and what it was denied.
    Rbac,
    /// Bring up the cluster, install the operator and show the main job step by step.
    Demo {
        /// Don't install the operator: it is there.
        #[arg(long, env = NO_DEPLOY, value_parser = FalseyValueParser::new())]
        no_deploy: bool,
    },
    /// Bring up the cluster, install the operator and measure how fast it is.
    Bench {
        /// Only these rows.
        #[arg(long, value_delimiter = ',')]
        only: Vec<Row>,
        /// How often each row is measured.
        #[arg(long, default_value_t = RUNS, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Don't install the operator: it is there.
        #[arg(long, env = NO_DEPLOY, value_parser = FalseyValueParser::new())]
        no_deploy: bool,
        /// Measure at once: this program was started where pods can be reached.
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// Measure how fast backups are and how little they disturb, without a cluster.
    BenchBackup {
        /// How often each row is measured.
        #[arg(long, default_value_t = RUNS, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// The keys of the database.
        #[arg(long, default_value_t = bench::backup::KEYS)]
        keys: u64,
        /// The events that are recorded after its full snapshot.
        #[arg(long, default_value_t = bench::backup::EVENTS)]
        events: u64,
    },
    /// Bring up the cluster, install the operator and disturb a cluster under load at random; then judge what was seen.
    Chaos(chaos::Options),
    /// Serve volumes (started by `up`).
    #[command(hide = true)]
    Provisioner,
    /// Start again what has ended of the control plane (started by `up`).
    #[command(hide = true)]
    Keeper,
}

/// What can be done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodeAct {
    /// Switch it off, at once and without a word.
    Stop,
    /// Switch it on, and wait until it is Ready.
    Start,
    /// Stop all its processes where they are.
    Freeze,
    /// Let them go on.
    Thaw,
    /// Pull its cable.
    Cut,
    /// Plug its cable in.
    Heal,
}

/// Does what the command line says. Returns the exit code.
pub async fn run(cli: Cli) -> anyhow::Result<u8> {
    let Cli { lab, provider, command } = cli;
    let cluster = cluster::Context { lab, provider };
    match command {
        Command::Tools => cluster::tools().await.map(|()| 0),
        Command::Images { no_load } => cluster.images(no_load).await.map(|()| 0),
        Command::Up { nodes } => cluster.up(nodes).await.map(|()| 0),
        Command::Down => cluster.down().await.map(|()| 0),
        Command::Status => cluster.status().await,
        Command::Kubectl { args } => cluster.kubectl(&args).await,
        Command::Logs { component, follow } => cluster.logs(component, follow).await,
        Command::Exec { command } => cluster.exec(&command).await,
        Command::Node { act, node } => cluster.node(act, node).await.map(|()| 0),
        Command::Deploy => cluster.deploy().await.map(|()| 0),
        Command::Test { all, jobs, no_deploy, etcd, filter } => {
            suite::run(&cluster, suite::Choice { all, jobs, no_deploy, etcd, filter }).await
        }
        Command::Rbac => rbac::show(&cluster.lab).await,
        Command::Demo { no_deploy } => show::demo(&cluster, no_deploy).await.map(|()| 0),
        Command::Bench { only, runs, no_deploy: _, inside: true } => {
            Box::pin(bench::run(&only, runs)).await.map(|()| 0)
        }
        Command::Bench { only, runs, no_deploy, inside: false } => show::bench(&cluster, &only, runs, no_deploy).await,
        Command::BenchBackup { runs, keys, events } => bench::backup::run(runs, keys, events).await.map(|()| 0),
        Command::Chaos(options) => chaos::run(&cluster, options).await,
        Command::Provisioner => cluster.provisioner().await.map(|()| 0),
        Command::Keeper => cluster.keeper().await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_lab_has_one_to_three_nodes() {
        let nodes = |line| match parse(line).unwrap().command {
            Command::Up { nodes } => nodes,
            other => panic!("{other:?}"),
        };
        assert_eq!((nodes("quorate-e2e up"), nodes("quorate-e2e up --nodes 1")), (3, 1));
        assert!(parse("quorate-e2e up --nodes 4").is_err() && parse("quorate-e2e up --nodes 0").is_err());
    }

    #[test]
    fn whoever_installs_the_operator_can_be_told_by_the_environment_not_to() {
        let cli = Cli::command();
        for name in ["test", "demo", "bench"] {
            let command = cli.find_subcommand(name).unwrap();
            let flag = command.get_arguments().find(|argument| argument.get_long() == Some("no-deploy")).unwrap();
            assert_eq!(flag.get_env().unwrap(), NO_DEPLOY, "{name}");
        }
        let no_deploy = |line| match parse(line).unwrap().command {
            Command::Demo { no_deploy } => no_deploy,
            other => panic!("{other:?}"),
        };
        assert!(no_deploy("quorate-e2e demo --no-deploy"));
    }

    #[test]
    fn what_follows_two_dashes_is_left_alone() {
        match parse("quorate-e2e --lab x kubectl -- get pods --all-namespaces").unwrap() {
            Cli { command: Command::Kubectl { args }, lab, .. } => {
                assert_eq!((lab.as_str(), args), ("x", vec!["get".into(), "pods".into(), "--all-namespaces".into()]));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_wrong_lab_or_component_is_refused_with_a_remedy() {
        let refusal = |line| parse(line).unwrap_err().to_string();
        assert!(refusal("quorate-e2e --lab A/B up").contains("can't name a lab"));
        assert!(refusal("quorate-e2e logs kubelet").contains("kubelet-node1"));
    }
}
