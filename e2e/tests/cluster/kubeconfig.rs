//! A cluster of which there is nothing but a kubeconfig, as users have one: here the local cluster, looked at from outside.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::lab::Lab;
use quorate_e2e::scene::{LAB_VARIABLE, Stage, kubectl, play};
use tokio::process::Command;

/// The longest that a command may take: the demo has seven steps.
const PATIENCE: Duration = Duration::from_mins(5);

/// `quorate-e2e --provider current`, with a kubectl on the path and a kubeconfig; it knows of no lab. Whether it ended well,
/// and what it said.
async fn quorate(args: &[&str]) -> Result<(bool, String)> {
    let lab = Lab::from_env()?;
    let program = lab.kubectl_program();
    let folder = program.parent().context("kubectl lies in no folder")?.to_path_buf();
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&others)))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate-e2e"));
    command.args(["--provider", "current"]).args(args).env("PATH", path).env("KUBECONFIG", lab.kubeconfig());
    command.env_remove(LAB_VARIABLE).kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = ended.with_context(|| format!("{args:?} did not end within {} s", PATIENCE.as_secs()))??;
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    Ok((output.status.success(), said))
}

async fn fine(args: &[&str]) -> Result<String> {
    let (fine, said) = quorate(args).await?;
    ensure!(fine, "{args:?} failed: {said}");
    Ok(said)
}

/// Takes away what the demo leaves.
async fn clear() -> Result<()> {
    kubectl(&["delete", "namespace", "demo", "--ignore-not-found"], None).await?.well().map(drop)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_kubeconfig_is_all_that_the_demo_needs() -> Result<()> {
    ensure!(std::env::var_os(LAB_VARIABLE).is_some(), "it takes the local cluster for a user's");
    play("kubeconfig", Stage::Shared, async |_| {
        ensure!(fine(&["up"]).await?.contains("The current cluster"), "another one was brought up");
        ensure!(fine(&["status"]).await?.contains("node1"), "no nodes are shown");
        // It lies beside a local cluster, whose nodes these are not.
        for of_a_lab in [&["node", "cut", "node1"][..], &["logs", "kubelet-node1"]] {
            let (done, said) = quorate(of_a_lab).await?;
            ensure!(!done && said.contains("only a local cluster can do that"), "{of_a_lab:?}: {said}");
        }

        let shown = fine(&["demo", "--no-deploy"]).await;
        let shown = shown.and_then(|shown| {
            ensure!(shown.contains("greeting = written-at-the-start: nothing was lost."), "it ended with {shown}");
            Ok(())
        });
        clear().await?;
        shown?;

        ensure!(fine(&["down"]).await?.contains("nothing was done"), "it says something else");
        kubectl(&["get", "--raw", "/readyz"], None).await?.well().map(drop)
    })
    .await
}
