//! `quorate-agent copy`.

use std::path::PathBuf;

use clap::Args;
use quorate_backup::care::{Copied, Overview, State, copy, keys};
use quorate_backup::format::{GenerationName, Lineage, has_deltas};
use quorate_backup::keys::KeyFiles;
use quorate_backup::store::{Address, CredentialsFolder, Settings, Store};
use serde::Serialize;

use super::arguments::{self, StoreArguments};
use super::print::{self, Output};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Copy {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    destination: Destination,
    /// Whose
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Lineage,
    /// Which generation; all, if not said
    #[arg(long, value_name = "NAME")]
    generation: Option<GenerationName>,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// Where to: as the store, with `target` for `store`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Target")]
struct Destination {
    /// The store to copy to, written as --store
    #[arg(long, value_name = "ADDRESS")]
    target: Address,
    /// An option of the target
    #[arg(long, value_name = "NAME=VALUE", value_parser = arguments::pair, value_delimiter = ',')]
    target_option: Vec<(String, String)>,
    /// The target's credentials, as --store-credentials
    #[arg(long, value_name = "FOLDER")]
    target_credentials: Option<PathBuf>,
    /// Authorities to trust beside the system's, in PEM
    #[arg(long, value_name = "FILE")]
    target_ca: Option<PathBuf>,
}

/// What is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    generation: String,
    manifests: u64,
    present: u64,
    bytes: u64,
}

impl Copy {
    /// Copies.
    pub fn run(self) -> anyhow::Result<()> {
        super::run(Box::pin(self.copy()))
    }

    async fn copy(self) -> anyhow::Result<()> {
        let Self { store, destination, lineage, generation, output } = self;
        let Destination { target, target_option, target_credentials, target_ca } = destination;
        let from = store.open(KeyFiles::default())?;
        from.check().await?;
        let to = Store::open(&Settings {
            address: target,
            options: target_option.into_iter().collect(),
            credentials: target_credentials.map(CredentialsFolder),
            ca: target_ca,
            keys: KeyFiles::default(),
        })?;
        let (mut lines, mut left_out, mut broken_off) = (Vec::new(), 0, 0);
        for key in keys(&from, Some(&lineage)).await? {
            if generation.as_ref().is_some_and(|name| *name != key.name) {
                continue;
            }
            let Overview { key, state } = Overview::read(&from, key, &|_, _| {}).await?;
            let chain = match state {
                State::Whole(chain) => chain,
                State::BrokenOff { sound, damage } => {
                    tracing::warn!("{key} is copied up to where it is damaged: {damage}");
                    broken_off += 1;
                    sound
                }
                State::WithoutFull => {
                    tracing::warn!("{key} has no full snapshot, and is left out");
                    // One that has only begun is no backup yet.
                    left_out += usize::from(has_deltas(&from, &key).await?);
                    continue;
                }
                State::Damaged(damage) => {
                    tracing::warn!("{key} is damaged, and is left out: {damage}");
                    left_out += 1;
                    continue;
                }
            };
            let bar = print::bytes_bar("copy");
            let copied = copy(&from, &to, &chain, |done, total| print::set(&bar, done, total)).await;
            bar.finish_and_clear();
            let Copied { manifests, present, bytes } = copied?;
            lines.push(Line { generation: key.to_string(), manifests, present, bytes });
        }
        if lines.is_empty() && left_out == 0 {
            anyhow::bail!("there is no such backup of {lineage} in {}", from.address());
        }
        print::show(output, &lines, || {
            let row = |line: &Line| {
                let (manifests, present) = (line.manifests.to_string(), line.present.to_string());
                vec![line.generation.clone(), manifests, present, print::size(line.bytes)]
            };
            let rows: Vec<_> = lines.iter().map(row).collect();
            print::table(&["GENERATION", "COPIED", "PRESENT", "SIZE"], &rows)
        })?;
        match (left_out, broken_off) {
            (0, 0) => Ok(()),
            (_, 0) => anyhow::bail!("{left_out} damaged generations were left out"),
            (0, _) => anyhow::bail!("{broken_off} damaged generations were copied only up to the damage"),
            (_, _) => anyhow::bail!(
                "{left_out} damaged generations were left out, and {broken_off} were copied only up to the damage"
            ),
        }
    }
}
