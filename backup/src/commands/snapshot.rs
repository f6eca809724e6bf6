//! `quorate-agent snapshot`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use quorate_backup::format::Lineage;
use quorate_backup::keys::Fingerprints;
use quorate_backup::snapshot::{self, Complete, FINAL, Failure, Progress, Report};
use tokio::sync::watch;

use super::arguments::{ListenArguments, RecipientsArgument, SourceArguments, StoreArguments};
use super::print::{self, Output};

/// Its arguments.
#[derive(Debug, Args)]
pub struct Snapshot {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    recipients: RecipientsArgument,
    #[command(flatten)]
    source: SourceArguments,
    /// Whose backup it is: the UID of the EtcdCluster, or any name outside of Kubernetes
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Lineage,
    /// A file for what came of it, success or failure, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    listen: ListenArguments,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

impl Snapshot {
    /// Takes the snapshot.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (report, output) = (self.report.clone(), self.output);
        let result = super::run(async { Ok(self.take().await) })?;
        if let Some(path) = report {
            let told = match result.clone() {
                Ok(complete) => Report::Complete(Box::new(complete)),
                Err(failure) => Report::Failed(failure),
            };
            let json = serde_json::to_vec(&told)?;
            std::fs::write(&path, json).with_context(|| format!("failed to write {}", path.display()))?;
        }
        match result {
            Ok(complete) => {
                print::show(output, &complete, || text(&complete))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(Failure { reason, message }) => {
                eprintln!("Error: {message}");
                Ok(if reason.is_final() { ExitCode::from(FINAL) } else { ExitCode::FAILURE })
            }
        }
    }

    async fn take(self) -> Result<Complete, Failure> {
        let Self { store, recipients, source, lineage, report: _, listen, output: _ } = self;
        let (tell, progress) = watch::channel(None);
        if let Some(port) = listen.port() {
            tokio::spawn(snapshot::serve(port, progress));
        }
        let store = store.open(recipients).map_err(|error| Failure::of_store(&error))?;
        let bar = print::bytes_bar("snapshot");
        let report = |progress| {
            tell.send_replace(Some(progress));
            let Progress { read, total, stored: _ } = progress;
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(read);
        };
        let taken = snapshot::take(&store, &source.members(), &lineage, report).await;
        bar.finish_and_clear();
        taken.map(|taken| Complete::of(&store, &taken)).map_err(|error| Failure::of(&error))
    }
}

fn text(complete: &Complete) -> String {
    let mut text = format!(
        "revision {} of etcd {} is in {}\n{} (hash {}): {} as {}, in {:.1} s",
        complete.revision,
        complete.etcd_version,
        complete.location,
        complete.manifest,
        complete.manifest_blake3,
        print::size(complete.database_bytes),
        print::size(complete.stored_bytes),
        complete.seconds,
    );
    if !complete.encrypted_to.is_empty() {
        let _ = write!(text, "\nencrypted to {}", Fingerprints(complete.encrypted_to.clone()));
    }
    text
}
