//! `quorate-agent`: the command line of what runs beside etcd. It only reads arguments and hands over: what `install` and
//! `launch` do is on the way of every start of a pod, so neither touches anything of the other commands.

mod commands;
mod trial;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use quorate_backup::launch::{self, Identity, PushSettings, Settings};
use quorate_backup::{install, ticket};

/// What runs beside each etcd member of a Quorate cluster, and what keeps and restores its backups.
#[derive(Debug, Parser)]
#[command(name = "quorate-agent", version, arg_required_else_help = true)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Copy this program to PATH
    ///
    /// An init container does this, onto a volume that it shares with etcd's container. The copy appears whole or not at
    /// all, with mode 0755, also over an older one.
    Install {
        /// Where to put the copy: a file in a folder that exists
        path: PathBuf,
    },
    /// Wait for the start ticket, check the volume, become etcd
    ///
    /// The command of etcd's container. It waits until the operator has written a ticket on the
    /// pod, then holds it against this pod, the etcd binary and the volume:
    ///
    ///   create  the volume carries the ticket's mark and no more (it is marked while it is empty and
    ///           no ticket is there), or an earlier create on it left a log with neither an entry nor
    ///           a vote; such data is deleted
    ///   restored
    ///           a backup was restored onto the volume for this member, and etcd has not run on it
    ///   resume  the volume carries this member's marker (quorate.json) and a log with an entry
    ///
    /// If all fits, this process becomes etcd, with the ticket's flags and no others. If not, it
    /// changes nothing, says why, and waits for another ticket or a mended volume: it never exits
    /// by itself, because Kubernetes would start it again ever more slowly. SIGTERM and SIGINT
    /// end it at once.
    ///
    /// Until then it answers on the metrics port:
    ///
    ///   /quorate  state, reason and message as JSON
    ///   /livez    200
    ///   /readyz   503
    ///   /ticket   takes one ticket ahead of the file, by POST, signed by the operator for this pod
    ///
    /// Reasons: NoTicket, OtherMember, OtherVolume, VolumeIsEmpty, VolumeHasOtherData,
    /// VolumeHasNoEntry, VolumeNotRestored, VolumeInUse, VolumeUnreadable, WrongVersion, BadTicket,
    /// BinaryMissing.
    #[command(verbatim_doc_comment)]
    Launch(Launch),
    /// Say whether the image's etcd has a version and takes flags, without starting it
    ///
    /// The command of a trial: a pod that ends at once, on the node of a member that is to run the image. It ends with 0 if
    /// the binary has the version and reads all of the flags; else with 1, and says why.
    Try(trial::Try),
    /// Take a full snapshot of etcd into a store
    ///
    /// It streams: etcd's snapshot is checked against etcd's own hash, compressed and uploaded in bounded memory,
    /// whatever the database's size. The backup is there when its manifest is, which is written last; when this fails,
    /// there is none. With --listen it says at /progress how far it is.
    Snapshot(commands::snapshot::Snapshot),
    /// Record a cluster: a full snapshot now and then, and every event between
    ///
    /// It reads one member until it is told to stop, and can be started again at any time. When it can't go on with what
    /// is there (the history was compacted, another one, or too far ahead) it begins a new generation with a full
    /// snapshot. Two at once do no harm: one of them wins. With --listen it answers /status, /metrics, /livez and /readyz.
    Archive(commands::archive::Archive),
    /// Restore a member's data directory, or a database file
    ///
    /// To the newest state, a revision, or a time. Every byte is checked, and nothing appears under its name before it is
    /// complete. A restore that was stopped is simply repeated.
    Restore(commands::restore::Restore),
    /// Restore onto the volume of a new cluster's first member, before its launcher
    ///
    /// The command of an init container. The volume's marker says how far it is: a restore that was killed is repeated,
    /// one that was done is not, and nothing is restored onto a volume on which etcd was started, or in a pod that has a
    /// ticket. It tries until it is done, and says on the metrics port, at /quorate, how far it is and what is wrong.
    Seed(commands::seed::Seed),
    /// Show the backups in a store
    List(commands::list::List),
    /// Show one backup with all its parts
    Inspect(commands::list::Inspect),
    /// Prove that a backup restores: do it, in scratch space, and read all of it
    Verify(commands::verify::Verify),
    /// Copy backups to another store
    Copy(commands::copy::Copy),
    /// Delete one backup
    ///
    /// It must be the one that is named by its manifest and the hash of that. If a continuous backup has gone on from it,
    /// nothing is deleted. What is gone already is as good as deleted.
    Delete(commands::delete::Delete),
    /// Remove old backups, and data that no backup refers to
    Prune(commands::prune::Prune),
}

#[derive(Debug, clap::Args)]
struct Launch {
    /// The file in which the kubelet shows the pod's ticket annotation
    #[arg(long, value_name = "FILE", default_value = "/etc/quorate/ticket")]
    ticket: PathBuf,
    /// Where the member's volume is mounted; etcd's data directory is the folder "data" in it
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/etcd")]
    volume: PathBuf,
    /// Where to answer until etcd starts; [::] also serves IPv4, and falls back to 0.0.0.0
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from(([0_u16; 8], launch::PORT)))]
    listen: SocketAddr,
    /// The etcd binary: a path, or a name on PATH (else /usr/local/bin/etcd)
    #[arg(long, value_name = "PROGRAM", default_value = "etcd")]
    etcd: PathBuf,
    /// A folder that lives as long as the pod, for the version of etcd, which so is asked for once; need not be there
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
    memory: PathBuf,
    /// The member that this pod is: its name
    #[arg(long, value_name = "NAME", env = "QUORATE_MEMBER")]
    member: String,
    /// The UID of the member's claim; for ephemeral storage the pod's
    #[arg(long, value_name = "UID", env = "QUORATE_VOLUME")]
    volume_uid: String,
    /// The UID of this pod; without it no pushed ticket is taken
    #[arg(long, value_name = "UID", env = "QUORATE_POD_UID")]
    pod_uid: Option<String>,
    /// The operator's public key in hexadecimal; without it no pushed ticket is taken
    #[arg(long, value_name = "KEY", env = "QUORATE_TICKET_KEY")]
    ticket_key: Option<String>,
}

impl From<Launch> for Settings {
    fn from(Launch { ticket, volume, listen, etcd, memory, member, volume_uid, pod_uid, ticket_key }: Launch) -> Self {
        let identity = Identity { member: ticket::MemberName::new(member), volume: ticket::VolumeUid::new(volume_uid) };
        Self { ticket, volume, listen, etcd, memory, identity, push: push(pod_uid, ticket_key.as_deref()) }
    }
}

/// Whose pushed tickets are taken. A key that can't be read only costs the shorter way: the annotation still arrives.
fn push(pod: Option<String>, key: Option<&str>) -> Option<PushSettings> {
    let pod = ticket::PodUid::new(pod?);
    match key?.parse() {
        Ok(key) => Some(PushSettings { pod, key }),
        Err(fault) => {
            tracing::warn!("no pushed ticket will be taken: {fault}");
            None
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false).init();
    match Command::parse().action {
        Action::Install { path } => {
            install::install(&path).with_context(|| format!("failed to install a copy at {}", path.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Launch(launch) => Ok(launch::run(launch.into())?),
        Action::Try(trial) => trial.run(),
        Action::Snapshot(snapshot) => snapshot.run(),
        Action::Archive(archive) => archive.run().map(|()| ExitCode::SUCCESS),
        Action::Restore(restore) => restore.run().map(|()| ExitCode::SUCCESS),
        Action::Seed(seed) => seed.run().map(|()| ExitCode::SUCCESS),
        Action::List(list) => list.run().map(|()| ExitCode::SUCCESS),
        Action::Inspect(inspect) => inspect.run().map(|()| ExitCode::SUCCESS),
        Action::Verify(verify) => verify.run().map(|()| ExitCode::SUCCESS),
        Action::Copy(copy) => copy.run().map(|()| ExitCode::SUCCESS),
        Action::Delete(delete) => delete.run(),
        Action::Prune(prune) => prune.run().map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};

    use super::Command;

    #[test]
    fn the_arguments_of_every_command_fit_together() {
        Command::command().debug_assert();
    }

    #[test]
    fn the_help_of_every_command_names_each_of_its_arguments_and_what_it_is_for() {
        let all = Command::command();
        assert!(all.get_subcommands().count() > 10);
        for one in all.get_subcommands() {
            let name = one.get_name();
            let help = Command::try_parse_from(["quorate-agent", name, "--help"]).unwrap_err();
            assert_eq!((help.kind(), help.use_stderr()), (ErrorKind::DisplayHelp, false), "{name}: {help}");
            // Its lines are as wide as a terminal.
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            let text = words(&help.to_string());
            for argument in one.get_arguments() {
                let option = argument.get_long().map(|long| format!("--{long} "));
                let called = option.unwrap_or_else(|| format!("<{}>", argument.get_id().as_str().to_uppercase()));
                assert!(text.contains(&called), "{name}: {called} is not in {text}");
                let purpose = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string);
                let purpose = words(&purpose.unwrap_or_default());
                assert!(!purpose.is_empty() && text.contains(&purpose), "{name}: {called} is for {purpose:?}");
            }
        }
    }
}
