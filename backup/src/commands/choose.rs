//! Arguments that say which backup is meant.

use clap::Args;
use quorate_backup::format::{Cluster, GenerationName, Hash, Lineage, Target};
use quorate_backup::restore::Wanted;

/// Which backup.
#[derive(Debug, Args)]
#[command(next_help_heading = "Backup")]
pub struct WantedArguments {
    /// Whose backup: the UID of the EtcdCluster, or the name that was given
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Lineage,
    /// Only of this cluster id (16 hexadecimal digits)
    #[arg(long, value_name = "ID")]
    cluster: Option<Cluster>,
    /// Only of this generation
    #[arg(long, value_name = "NAME")]
    generation: Option<GenerationName>,
    /// The state to restore: latest, a revision, or a time such as 2026-11-21T14:25:36Z
    #[arg(long, value_name = "TARGET", default_value = "latest")]
    to: Target,
    /// The hash of its full snapshot's manifest, as snapshot and the status.hash of an EtcdBackup tell it: with another one
    /// nothing is restored
    #[arg(long, value_name = "BLAKE3")]
    manifest_blake3: Option<Hash>,
}

impl From<WantedArguments> for Wanted {
    fn from(WantedArguments { lineage, cluster, generation, to, manifest_blake3 }: WantedArguments) -> Self {
        Self { lineage, cluster, generation, target: to, manifest: manifest_blake3 }
    }
}
