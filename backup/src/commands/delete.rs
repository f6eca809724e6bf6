//! `quorate-agent delete`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use quorate_backup::care::{DeleteError, Pruned, delete};
use quorate_backup::format::{GenerationKey, Hash};
use quorate_backup::keys::KeyFiles;
use quorate_backup::snapshot::FINAL;
use serde::Serialize;

use super::arguments::StoreArguments;
use super::print::{self, Output};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Delete {
    #[command(flatten)]
    store: StoreArguments,
    /// The backup's manifest: <lineage>/<cluster>/<generation>/full, as `snapshot`, `inspect` and the status of an EtcdBackup show it
    #[arg(value_parser = GenerationKey::of_full)]
    manifest: GenerationKey,
    /// The BLAKE3 hash of the manifest, as they show it
    #[arg(long, value_name = "HASH")]
    hash: Hash,
    /// A file for why it failed
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// What is shown.
#[derive(Serialize)]
struct Result {
    objects: u64,
    bytes: u64,
}

impl Delete {
    /// Deletes it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self { store, manifest, hash, report, output } = self;
        let deleted = super::run(async {
            let store = match store.open(KeyFiles::default()) {
                Ok(store) => store,
                Err(error) => return Ok(Err(error.into())),
            };
            Ok::<core::result::Result<Pruned, DeleteError>, _>(Box::pin(delete(&store, &manifest, hash)).await)
        })?;
        match deleted {
            Ok(Pruned { objects, bytes, anew: _, failed: _ }) => {
                let result = Result { objects, bytes };
                print::show(output, &result, || format!("gone: {objects} objects, {}", print::size(bytes)))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                eprintln!("Error: {error}");
                if let Some(path) = report {
                    std::fs::write(&path, error.to_string())
                        .with_context(|| format!("failed to write {}", path.display()))?;
                }
                Ok(if error.is_final() { ExitCode::from(FINAL) } else { ExitCode::FAILURE })
            }
        }
    }
}
