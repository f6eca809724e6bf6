//! Demo and benchmark against a cluster: brings up what they need, then hands over. Shows and measures nothing itself.

use anyhow::Context as _;
use clap::ValueEnum as _;

use super::cluster::{Context, code};
use crate::bench::Row;
use crate::lab::NODES_MAX;
use crate::progress::Progress;
use crate::{demo, deploy};

/// Brings everything up and shows the main job.
pub async fn demo(context: &Context, no_deploy: bool) -> anyhow::Result<()> {
    let progress = Progress::new();
    let provider = context.provider().await?;
    println!("A real Kubernetes ({}), then the operator. The first time, everything is built.", provider.kind());
    provider.up(NODES_MAX, &progress).await?;
    if !no_deploy {
        deploy::deploy(&provider, &progress).await?;
    }
    demo::play(provider.kubectl()?).await
}

/// Brings everything up and measures where pods can be reached.
pub async fn bench(context: &Context, only: &[Row], runs: u32, no_deploy: bool) -> anyhow::Result<u8> {
    let progress = Progress::new();
    let provider = context.provider().await?;
    provider.up(NODES_MAX, &progress).await?;
    if !no_deploy {
        deploy::deploy(&provider, &progress).await?;
    }
    let own = std::env::current_exe().context("failed to find this program")?;
    let own = own.to_str().context("the path of this program is not text")?;
    let mut command = provider.exec(own)?.env("QUORATE_PROVIDER", provider.kind().to_string()).args([
        "bench",
        "--inside",
        "--runs",
        &runs.to_string(),
    ]);
    for row in only {
        let name = row.to_possible_value().context("a row without a name")?;
        command = command.args(["--only", name.get_name()]);
    }
    Ok(code(command.show().await?))
}
