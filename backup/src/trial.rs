//! `try`: says whether the image's etcd has a version and takes flags. It starts nothing and touches no volume.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use quorate_backup::{launch, ticket};

/// The arguments of `try`.
#[derive(Debug, clap::Args)]
pub struct Try {
    /// The version that the binary must have
    #[arg(long, value_name = "VERSION")]
    etcd_version: String,
    /// The etcd binary: a path, or a name on PATH (else /usr/local/bin/etcd)
    #[arg(long, value_name = "PROGRAM", default_value = "etcd")]
    etcd: PathBuf,
    /// Where to say why not: the kubelet shows this file in the pod's status
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    report: PathBuf,
    /// The flags that it must take
    #[arg(last = true)]
    flags: Vec<String>,
}

impl Try {
    /// Tries; a failure is told in the report.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self { etcd_version, etcd, report, flags } = self;
        match launch::try_binary(etcd, &ticket::EtcdVersion::new(etcd_version), flags)? {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(why) => {
                tracing::error!("{why}");
                std::fs::write(&report, why).with_context(|| format!("failed to write {}", report.display()))?;
                Ok(ExitCode::FAILURE)
            }
        }
    }
}
