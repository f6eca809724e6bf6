//! `quorate-agent verify`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use quorate_backup::care::{Proved, Report, verify};
use quorate_backup::restore::{self, Damaged, Wanted};

use super::arguments::{IdentityArgument, StoreArguments};
use super::choose::WantedArguments;
use super::print::{self, Output};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    identity: IdentityArgument,
    #[command(flatten)]
    wanted: WantedArguments,
    /// A folder with room for the restored database
    #[arg(long, value_name = "FOLDER", default_value = "/tmp")]
    scratch: PathBuf,
    /// It is an error if the newest generation is damaged or has lost its full snapshot, also if an older one is sound
    #[arg(long)]
    strict: bool,
    /// A file for what came of it, success or failure, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

impl Verify {
    /// Proves it.
    pub fn run(self) -> anyhow::Result<()> {
        let (report, output) = (self.report.clone(), self.output);
        let result = super::run(Box::pin(self.verify()));
        if let Some(path) = report {
            let told = match &result {
                Ok(proved) => Report::Proved(proved.clone()),
                Err(error) => Report::failed(&format!("{error:#}")),
            };
            let json = serde_json::to_vec(&told)?;
            std::fs::write(&path, json).with_context(|| format!("failed to write {}", path.display()))?;
        }
        let proved = result?;
        print::show(output, &proved, || text(&proved))
    }

    async fn verify(self) -> anyhow::Result<Proved> {
        let Self { store, identity, wanted, scratch, strict, report: _, output: _ } = self;
        let store = store.open(identity)?;
        let wanted = Wanted::from(wanted);
        let damaged = if strict { Damaged::NewestFails } else { Damaged::LeftOut };
        let choice = restore::find(&store, &wanted, damaged).await?;
        let bar = print::bytes_bar("verify");
        let report = |progress| super::restore::show(&bar, progress);
        let verified = verify(&store, &choice, &scratch, &report).await;
        bar.finish_and_clear();
        Ok(Proved::of(&choice.chain.key, &verified?))
    }
}

fn text(proved: &Proved) -> String {
    let Proved { generation, revision, entries, events_applied: _, database_bytes, seconds } = proved;
    let size = print::size(*database_bytes);
    format!("{generation} restores to revision {revision}: {entries} entries in {size}, in {seconds:.1} s")
}
