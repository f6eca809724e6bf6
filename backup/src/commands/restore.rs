//! `quorate-agent restore`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use quorate_backup::restore::{self, Bump, Damaged, Making, Membership, Progress, Restored, Tool, Wanted};
use serde::Serialize;

use super::arguments::{IdentityArgument, StoreArguments};
use super::choose::WantedArguments;
use super::print::{self, Output};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Restore {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    identity: IdentityArgument,
    #[command(flatten)]
    wanted: WantedArguments,
    #[command(flatten)]
    target: Place,
    #[command(flatten)]
    member: Member,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// Where to.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Place {
    /// The data directory to make; it must not exist, or be empty
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Make no data directory, only the database file, which must not exist
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
}

/// The member that the data directory is for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Member")]
struct Member {
    /// etcdutl of the etcd version that will run: a path, or a name on PATH
    #[arg(long, value_name = "PROGRAM", default_value = "etcdutl")]
    etcdutl: PathBuf,
    /// How far the revision is moved on. It has to be above every revision that was ever handed out, so that clients notice
    /// what is gone. Not given: to the microseconds since 1970, and by 1,000,000,000 at least, which is above all that came
    /// after the backup and that earlier restores have handed out. 0 is for looking at a backup only
    #[arg(long, value_name = "REVISIONS")]
    bump_revision: Option<u64>,
    /// etcd's limit for its database: above 60 % of it the history is left out, which can't be read after a restore anyway;
    /// what is larger than the limit even so is not restored
    #[arg(long, value_name = "BYTES")]
    quota: Option<u64>,
    /// The member's name
    #[arg(long, default_value = "default")]
    name: String,
    /// The first members of the new cluster
    #[arg(long, value_name = "NAME=URL", default_value = "default=http://localhost:2380")]
    initial_cluster: String,
    /// What makes the new cluster another one than the old
    #[arg(long, value_name = "TOKEN", default_value = "etcd-cluster")]
    initial_cluster_token: String,
    /// The member's peer URLs
    #[arg(long, value_name = "URL", default_value = "http://localhost:2380")]
    initial_advertise_peer_urls: String,
}

/// What is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Result {
    generation: String,
    revision: u64,
    events: u64,
    later: u64,
    leases: u64,
    leases_of_unknown_ttl: u64,
    alarms: u64,
    left_out: u64,
    database_bytes: u64,
    apply_seconds: f64,
    seconds: f64,
}

impl Restore {
    /// Restores.
    pub fn run(self) -> anyhow::Result<()> {
        super::run(Box::pin(self.restore()))
    }

    async fn restore(self) -> anyhow::Result<()> {
        let Self { store, identity, wanted, target, member, output } = self;
        let begun = std::time::Instant::now();
        let store = store.open(identity)?;
        let wanted = Wanted::from(wanted);
        let choice = restore::find(&store, &wanted, Damaged::NewestFails).await?;
        let bar = print::bytes_bar("restore");
        let report = |progress| show(&bar, progress);
        let Place { data_dir, database } = target;
        let restored = match (data_dir, database) {
            (Some(folder), _) => {
                let Member {
                    etcdutl,
                    bump_revision,
                    quota,
                    name,
                    initial_cluster,
                    initial_cluster_token: token,
                    initial_advertise_peer_urls: peer_urls,
                } = member;
                let tool = Tool { program: etcdutl, bump: bump_revision.map_or(Bump::ToTheClock, Bump::By) };
                let membership = Membership { name, initial_cluster, token, peer_urls };
                let making = Making { tool: &tool, membership: &membership, quota };
                restore::data_folder(&store, &choice, &folder, &making, &report).await
            }
            (None, Some(file)) => restore::database_file(&store, &choice, &file, &report).await,
            (None, None) => anyhow::bail!("give --data-dir or --database"),
        };
        bar.finish_and_clear();
        let Restored { revision, events, later, leases, leases_of_unknown_ttl, alarms, left_out, bytes, applying } =
            restored?;
        let took = begun.elapsed();
        let result = Result {
            generation: choice.chain.key.to_string(),
            revision: revision.get(),
            events,
            later,
            leases,
            leases_of_unknown_ttl,
            alarms,
            left_out,
            database_bytes: bytes,
            apply_seconds: applying.as_secs_f64(),
            seconds: took.as_secs_f64(),
        };
        print::show(output, &result, || {
            let mut text = format!(
                "revision {revision} of {}: {}, {events} events applied, in {}",
                result.generation,
                print::size(bytes),
                print::span(took)
            );
            if later > 0 {
                let _ = write!(
                    text,
                    "\n{later} later events of its full snapshot were left out; users and roles are as in that"
                );
            }
            if leases_of_unknown_ttl > 0 {
                let ttl = restore::UNKNOWN_TTL;
                let unknown = leases_of_unknown_ttl;
                let _ = write!(text, "\n{unknown} leases got {ttl} s: nobody had learned how long they last");
            }
            if alarms > 0 {
                let _ = write!(text, "\n{alarms} alarms of the old cluster were left out");
            }
            if left_out > 0 {
                let _ =
                    write!(text, "\n{left_out} events of the history were left out: with them it came near the quota");
            }
            text
        })
    }
}

/// Shows how far a restore is.
pub fn show(bar: &ProgressBar, progress: Progress) {
    match progress {
        Progress::Fetching { done, total } => print::set(bar, done, total),
        Progress::Rewinding { reached: done, target: total } | Progress::Applying { reached: done, target: total } => {
            count(bar, "revision", done, total);
        }
        Progress::Thinning { done, total } => count(bar, "live", done, total),
    }
}

fn count(bar: &ProgressBar, what: &'static str, done: u64, total: u64) {
    bar.set_style(print::count_style(what));
    print::set(bar, done, total);
}
