//! `quorate-agent verify`.

use std::path::PathBuf;

use clap::Args;
use quorate_backup::care::{Verified, verify};
use quorate_backup::restore::{self, Damaged, Wanted};
use serde::Serialize;

use super::arguments::StoreArguments;
use super::choose::WantedArguments;
use super::print::{self, Output};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    wanted: WantedArguments,
    /// A folder with room for the restored database
    #[arg(long, value_name = "FOLDER", default_value = "/tmp")]
    scratch: PathBuf,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// What is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Result {
    generation: String,
    revision: u64,
    entries: u64,
    events_applied: u64,
    database_bytes: u64,
    seconds: f64,
}

impl Verify {
    /// Proves it.
    pub fn run(self) -> anyhow::Result<()> {
        super::run(Box::pin(self.verify()))
    }

    async fn verify(self) -> anyhow::Result<()> {
        let Self { store, wanted, scratch, output } = self;
        let store = store.open()?;
        let wanted = Wanted::from(wanted);
        let chains = restore::survey(&store, &wanted, Damaged::LeftOut).await?;
        let choice = restore::pick(&chains, &wanted)?;
        let bar = print::bytes_bar("verify");
        let report = |progress| super::restore::show(&bar, progress);
        let verified = verify(&store, choice.chain, choice.revision, &scratch, &report).await;
        bar.finish_and_clear();
        let Verified { restored, entries, took } = verified?;
        let result = Result {
            generation: choice.chain.key.to_string(),
            revision: restored.revision.get(),
            entries,
            events_applied: restored.events,
            database_bytes: restored.bytes,
            seconds: took.as_secs_f64(),
        };
        print::show(output, &result, || {
            format!(
                "{} restores to revision {}: {} entries in {}, in {}",
                result.generation,
                result.revision,
                entries,
                print::size(restored.bytes),
                print::span(took)
            )
        })
    }
}
