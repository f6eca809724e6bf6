//! The commands that work on a cluster. Each says what it did, and what to do when it can't.

use std::process::ExitStatus;

use anyhow::Context as _;

use super::NodeAct;
use crate::deploy;
use crate::lab::{Component, Lab, LabName, NodeNumber};
use crate::progress::Progress;
use crate::provider::{Provider, ProviderKind, all_images};
use crate::{images, provisioner};

/// Which cluster.
#[derive(Debug, Clone)]
pub struct Context {
    /// The lab.
    pub lab: LabName,
    /// The provider asked for.
    pub provider: Option<ProviderKind>,
}

/// Builds the tools.
pub async fn tools() -> anyhow::Result<()> {
    let progress = Progress::new();
    for built in crate::tools::build_all(&progress).await? {
        println!("{:<12} {}", built.tool.name(), built.bin().display());
    }
    Ok(())
}

impl Context {
    /// The provider to use.
    pub async fn provider(&self) -> anyhow::Result<Provider> {
        Ok(Provider::choose(self.provider, &self.lab).await?)
    }

    /// The lab, for what only a local cluster has.
    fn local(&self) -> anyhow::Result<Lab> {
        match self.provider {
            None | Some(ProviderKind::Local) => Ok(Lab::open(self.lab.clone())?),
            Some(other @ (ProviderKind::Kind | ProviderKind::Current)) => {
                anyhow::bail!("only a local cluster can do that, and provider `{other}` was asked for")
            }
        }
    }

    pub(super) async fn images(&self, no_load: bool) -> anyhow::Result<()> {
        let progress = Progress::new();
        let archives = all_images(&progress).await?;
        for archive in &archives {
            println!("{:<32} {}", archive.name, archive.path.display());
        }
        if !no_load {
            let loaded = self.provider().await?.load(&archives).await?;
            println!("loaded: {}", if loaded.is_empty() { "nothing has changed".into() } else { loaded.join(", ") });
        }
        Ok(())
    }

    pub(super) async fn up(&self, nodes: u8) -> anyhow::Result<()> {
        let provider = self.provider().await?;
        provider.up(nodes, &Progress::new()).await?;
        println!("The {} cluster `{}` is up. Try: quorate-e2e kubectl -- get nodes", provider.kind(), self.lab);
        Ok(())
    }

    pub(super) async fn down(&self) -> anyhow::Result<()> {
        let provider = self.provider().await?;
        provider.down().await?;
        match provider.kind() {
            ProviderKind::Local | ProviderKind::Kind => println!("The cluster `{}` is gone.", self.lab),
            ProviderKind::Current => println!("The cluster of your kubeconfig is yours; nothing was done."),
        }
        Ok(())
    }

    pub(super) async fn status(&self) -> anyhow::Result<u8> {
        let provider = self.provider().await?;
        if let Provider::Local(name) = &provider {
            let parts = Lab::open(name.clone())?.status().await;
            for part in &parts {
                println!("{} {:<26} {}", if part.running { "✔" } else { "✘" }, part.part, part.detail);
            }
            if parts.iter().any(|part| !part.running) {
                println!("Bring up what is missing with: quorate-e2e up");
                return Ok(1);
            }
        }
        Ok(code(provider.kubectl()?.args(["get", "nodes", "-o", "wide"]).show().await?))
    }

    pub(super) async fn kubectl(&self, args: &[String]) -> anyhow::Result<u8> {
        Ok(code(self.provider().await?.kubectl()?.args(args).show().await?))
    }

    pub(super) async fn logs(&self, component: Component, follow: bool) -> anyhow::Result<u8> {
        let log = self.local()?.log(component);
        let tail = crate::command::Command::new("tail").args(["-n", "+1"]);
        let tail = if follow { tail.arg("-F") } else { tail };
        Ok(code(tail.arg(log).show().await?))
    }

    pub(super) async fn node(&self, act: NodeAct, node: NodeNumber) -> anyhow::Result<()> {
        let node = self.local()?.node(node.into())?;
        match act {
            NodeAct::Stop => node.stop().await?,
            NodeAct::Start => {
                node.start().await?;
                node.wait_ready().await?;
            }
            NodeAct::Freeze => node.freeze(),
            NodeAct::Thaw => node.thaw(),
            NodeAct::Cut => node.cut().await?,
            NodeAct::Heal => node.heal().await?,
        }
        Ok(())
    }

    pub(super) async fn exec(&self, command: &[String]) -> anyhow::Result<u8> {
        let (program, args) = command.split_first().context("no program was given")?;
        Ok(code(self.provider().await?.exec(program)?.args(args).show().await?))
    }

    pub(super) async fn deploy(&self) -> anyhow::Result<()> {
        let provider = self.provider().await?;
        deploy::deploy(&provider, &Progress::new()).await?;
        println!("The operator {} is available.", images::OPERATOR);
        Ok(())
    }

    pub(super) async fn keeper(&self) -> anyhow::Result<u8> {
        Lab::open(self.lab.clone())?.keep().await
    }

    pub(super) async fn provisioner(&self) -> anyhow::Result<()> {
        Ok(provisioner::run(&Lab::open(self.lab.clone())?).await?)
    }
}

/// The exit code of a program that we ran for the user; 1 when a signal ended it.
pub(super) fn code(status: ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
