//! `quorate-agent archive`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use quorate_backup::archive::{self, Board, Duty, Settings};
use quorate_backup::care::Keep;
use quorate_backup::format::Lineage;
use quorate_backup::store::taken_back;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::arguments::{ListenArguments, RecipientsArgument, SourceArguments, StoreArguments};
use super::on_threads;

/// How long it waits in its end until a full snapshot that it gave up is taken back. Its member's pod ends with it, and must not
/// wait for long.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(3);

/// Its arguments.
#[derive(Debug, Args)]
pub struct Archive {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    recipients: RecipientsArgument,
    #[command(flatten)]
    source: SourceArguments,
    /// Whose record it is: the UID of the EtcdCluster, or any name outside of Kubernetes
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Lineage,
    /// Record only while the member leads, else follow what another archive records and be ready to go on. For one archive
    /// beside each member of a cluster. It never ends because the store or the member can't be used
    #[arg(long)]
    beside_leader: bool,
    #[command(flatten)]
    listen: ListenArguments,
    /// How often what came is stored: what may be lost with the cluster
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    flush_every: Duration,
    /// How often a full snapshot begins a new generation
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    full_every: Duration,
    /// After how many bytes of events a full snapshot begins a new generation: a quarter of etcd's quota
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20)]
    full_after: u64,
    /// A folder for events that the store does not take in time
    #[arg(long, value_name = "FOLDER", default_value = "/tmp")]
    spill: PathBuf,
    /// How many bytes may lie there; beyond that a full snapshot begins a new generation
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    spill_limit: u64,
    /// Now and then remove generations that no rule keeps: keep this many of the newest. Without a rule all are kept
    #[arg(long, value_name = "COUNT")]
    keep: Option<usize>,
    /// The same: keep what is needed to restore any moment since this long ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    keep_last: Option<Duration>,
}

impl Archive {
    /// Records until it is told to stop.
    pub fn run(self) -> anyhow::Result<()> {
        on_threads(Box::pin(self.record()))
    }

    async fn record(self) -> anyhow::Result<()> {
        let Self {
            store,
            recipients,
            source,
            lineage,
            beside_leader,
            listen,
            flush_every,
            full_every,
            full_after,
            spill,
            spill_limit,
            keep,
            keep_last,
        } = self;
        let keep = (keep.is_some() || keep_last.is_some())
            .then(|| Keep { newest: keep.unwrap_or(1), last: keep_last.unwrap_or_default() });
        let duty = if beside_leader { Duty::BesideLeader } else { Duty::Always };
        let settings = Settings { lineage, duty, flush_every, full_every, full_after, spill, spill_limit, keep };
        let (tell, stop) = watch::channel(false);
        let mut terminate = signal(SignalKind::terminate())?;
        // It ends in its own time: what has come by then is stored first.
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            tell.send_replace(true);
        });
        let members = source.members();
        let member = members.first().ok_or_else(|| anyhow::anyhow!("give --endpoint"))?;
        let store = store.settings(recipients);
        let board = Board::new(&store.address, &settings.lineage);
        if let Some(port) = listen.port() {
            tokio::spawn(archive::serve(port, board.clone()));
        }
        let ended = archive::run(&store, member, &settings, &board, stop).await;
        // It may have been taking a full snapshot.
        taken_back(TAKEN_BACK_WITHIN).await;
        Ok(ended?)
    }
}

/// A time span as `10s`, `24h` or `7d`. Days have 24 hours.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time span: write 10s, 24h or 7d");
    let span: SignedDuration = match text.strip_suffix('d') {
        Some(days) => SignedDuration::from_hours(days.parse::<i64>().map_err(|_| wrong())?.saturating_mul(24)),
        None => text.parse().map_err(|_| wrong())?,
    };
    Duration::try_from(span).ok().filter(|span| !span.is_zero()).ok_or_else(wrong)
}
