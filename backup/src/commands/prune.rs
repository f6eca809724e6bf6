//! `quorate-agent prune`.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use quorate_backup::care::{Keep, Plan, Pruned, Removal, plan, prune};
use quorate_backup::format::Lineage;
use quorate_backup::keys::KeyFiles;
use serde::Serialize;

use super::archive::duration;
use super::arguments::StoreArguments;
use super::print::{self, Output};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Prune {
    #[command(flatten)]
    store: StoreArguments,
    /// Whose
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Lineage,
    /// Keep this many of the newest generations of each cluster, whatever their age; the newest is always kept
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    keep: usize,
    /// Keep what is needed to restore any moment since this long ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    keep_last: Duration,
    /// Only show what would go
    #[arg(long)]
    dry_run: bool,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// What is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Result {
    dry_run: bool,
    kept: usize,
    generations: Vec<String>,
    garbage: Vec<String>,
    objects: u64,
    bytes: u64,
    failed: Vec<String>,
}

impl Prune {
    /// Removes what is old.
    pub fn run(self) -> anyhow::Result<()> {
        super::run(Box::pin(self.prune()))
    }

    async fn prune(self) -> anyhow::Result<()> {
        let Self { store, lineage, keep, keep_last, dry_run, output } = self;
        let store = store.open(KeyFiles::default())?;
        store.check().await?;
        let keep = Keep { newest: keep, last: keep_last };
        let bar = print::count_bar("prune");
        let report = |done, total| print::set(&bar, done, total);
        let planned = plan(&store, &lineage, keep, Timestamp::now(), &report).await;
        bar.finish_and_clear();
        let plan: Plan = planned?;
        let Pruned { objects, bytes, anew, failed } =
            if dry_run { Pruned::default() } else { prune(&store, &plan).await? };
        let (mut generations, mut garbage) = (Vec::new(), Vec::new());
        for removal in &plan.removals {
            match removal {
                Removal::Generation(key) => generations.push(key.to_string()),
                // What somebody has written anew since was none.
                Removal::Garbage(listed) | Removal::Staged(listed) if anew.contains(&listed.key) => {}
                Removal::Garbage(listed) | Removal::Staged(listed) => garbage.push(listed.key.to_string()),
            }
        }
        let result = Result { dry_run, kept: plan.kept, generations, garbage, objects, bytes, failed };
        print::show(output, &result, || text(&result))?;
        if result.failed.is_empty() {
            Ok(())
        } else {
            anyhow::bail!("{} objects could not be removed", result.failed.len())
        }
    }
}

fn text(result: &Result) -> String {
    let Result { dry_run, kept, generations, garbage, objects, bytes, failed } = result;
    let mut lines: Vec<String> = generations.iter().map(|name| format!("generation {name}")).collect();
    lines.extend(garbage.iter().map(|name| format!("garbage {name}")));
    lines.extend(failed.iter().map(|error| format!("left: {error}")));
    let end =
        if *dry_run { "would go".to_owned() } else { format!("gone: {objects} objects, {}", print::size(*bytes)) };
    lines.push(format!(
        "{} generations and {} objects of garbage {end}; {kept} generations stay",
        generations.len(),
        garbage.len()
    ));
    lines.join("\n")
}
