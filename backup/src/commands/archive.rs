//! `quorate-agent archive`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use quorate_backup::archive::{self, Settings};
use quorate_backup::format::Lineage;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::arguments::{SourceArguments, StoreArguments};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Archive {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    source: SourceArguments,
    /// Whose record it is: the UID of the EtcdCluster, or any name outside of Kubernetes
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Lineage,
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
}

impl Archive {
    /// Records until it is told to stop.
    pub fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(Box::pin(self.record()))
    }

    async fn record(self) -> anyhow::Result<()> {
        let Self { store, source, lineage, flush_every, full_every, full_after, spill, spill_limit } = self;
        let settings = Settings { lineage, flush_every, full_every, full_after, spill, spill_limit };
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
        Ok(archive::run(&store.open()?, member, &settings, stop).await?)
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
