//! The cluster of the user's kubeconfig. Must neither change the kubeconfig nor take the cluster down.

use super::{ProviderError, program_missing};
use crate::command::Command;
use crate::images::Archive;

/// What is missing to use it, if anything.
pub async fn missing() -> Option<String> {
    if let Some(missing) = program_missing("kubectl") {
        return Some(missing);
    }
    let context = Command::new("kubectl").args(["config", "current-context"]).succeeds().await;
    (!context).then(|| "the kubeconfig has no current context; choose one with: kubectl config use-context".into())
}

/// The user's cluster.
#[derive(Debug, Clone)]
pub struct Current;

impl Current {
    /// Checks that it answers.
    pub async fn check(&self) -> Result<(), ProviderError> {
        let answer = Command::new("kubectl").args(["get", "--raw", "/readyz", "--request-timeout=10s"]).run().await;
        answer.map(drop).map_err(ProviderError::Command)
    }

    /// It takes its images from a registry, which only the user can write to.
    pub fn load(&self, archives: &[Archive]) -> Result<Vec<String>, ProviderError> {
        let ours = archives.iter().filter(|archive| archive.name.starts_with("quorate.dev/"));
        let lines: Vec<String> =
            ours.map(|archive| format!("  {}  from {}", archive.name, archive.path.display())).collect();
        Err(ProviderError::NoLoading(format!(
            "images can't be loaded into the cluster of the current kubeconfig. Push these where it can pull them, name \
             them in deploy/base/kustomization.yaml (images:), install with `kubectl apply -k deploy/base`, and use \
             --no-deploy:\n{}",
            lines.join("\n")
        )))
    }
}
