//! Installs the operator from deploy/base, as a user does, and waits until it is available.

use crate::command::CommandError;
use crate::images::OPERATOR;
use crate::progress::Progress;
use crate::provider::{Provider, ProviderError};
use crate::workspace;

/// Where the operator is installed, and under which name.
const NAMESPACE: &str = "quorate-system";
const DEPLOYMENT: &str = "deployment/quorate";
/// How long it may take until it is available: kubectl's own syntax.
const TIMEOUT: &str = "--timeout=120s";

/// Builds and loads the images, applies the manifests, restarts the operator when its image has changed under the same
/// name, and waits.
pub async fn deploy(provider: &Provider, progress: &Progress) -> Result<(), ProviderError> {
    let loaded = provider.load(&provider.images(progress).await?).await?;
    let step = progress.step("operator");
    let kubectl = |args: &[&str]| Ok::<_, ProviderError>(provider.kubectl()?.args(args));
    let was_there = kubectl(&["--namespace", NAMESPACE, "get", DEPLOYMENT])?.succeeds().await;
    let base = workspace::root().join("deploy/base");
    kubectl(&["apply", "--server-side", "--force-conflicts", "-k"])?.arg(base).run().await?;
    if was_there && loaded.iter().any(|name| name == OPERATOR) {
        kubectl(&["--namespace", NAMESPACE, "rollout", "restart", DEPLOYMENT])?.run().await?;
    }
    let rollout = kubectl(&["--namespace", NAMESPACE, "rollout", "status", DEPLOYMENT, TIMEOUT])?.run().await;
    if let Err(error) = rollout {
        let pods = kubectl(&["--namespace", NAMESPACE, "describe", "pods"])?.run().await.unwrap_or_default();
        progress.line(pods);
        return Err(CommandError::into(error));
    }
    step.done("available");
    Ok(())
}
