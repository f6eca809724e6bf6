//! `quorate-agent snapshot`.

use clap::Args;
use quorate_backup::format::Lineage;
use quorate_backup::snapshot::{self, Progress, Taken};
use serde::Serialize;

use super::arguments::{SourceArguments, StoreArguments};
use super::print::{self, Output};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Snapshot {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    source: SourceArguments,
    /// Whose backup it is: the UID of the EtcdCluster, or any name outside of Kubernetes
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Lineage,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// What is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Result<'a> {
    location: String,
    manifest: String,
    etcd_version: &'a str,
    revision: u64,
    compact_revision: u64,
    database_bytes: u64,
    stored_bytes: u64,
    blake3: String,
    manifest_blake3: String,
    taken: jiff::Timestamp,
    seconds: f64,
}

impl Snapshot {
    /// Takes the snapshot.
    pub fn run(self) -> anyhow::Result<()> {
        super::run(self.take())
    }

    async fn take(self) -> anyhow::Result<()> {
        let Self { store, source, lineage, output } = self;
        let store = store.open()?;
        let bar = print::bytes_bar("snapshot");
        let taken = snapshot::take(&store, &source.access(), &lineage, |Progress { read, total, stored: _ }| {
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(read);
        })
        .await;
        bar.finish_and_clear();
        let Taken { generation, full, hash, took } = taken?;
        let result = Result {
            location: store.address().to_string(),
            manifest: generation.full().to_string(),
            etcd_version: &full.etcd_version,
            revision: full.revision.get(),
            compact_revision: full.compact_revision.get(),
            database_bytes: full.database_bytes,
            stored_bytes: full.data.stored_bytes(),
            blake3: full.data.blake3.to_string(),
            manifest_blake3: hash.to_string(),
            taken: full.taken,
            seconds: took.as_secs_f64(),
        };
        print::show(output, &result, || {
            format!(
                "revision {} of etcd {} is in {}\n{}: {} as {}, in {}",
                result.revision,
                result.etcd_version,
                result.location,
                result.manifest,
                print::size(result.database_bytes),
                print::size(result.stored_bytes),
                print::span(took),
            )
        })
    }
}
