//! The cluster of the user's kubeconfig. Must neither change the kubeconfig nor take the cluster down.

use super::{ProviderError, program_missing};
use crate::command::Command;
use crate::images::{AGENT, Archive, OPERATOR};

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

    /// It takes its images from a registry, which only the user can write to: says what to do.
    pub fn load(&self, archives: &[Archive]) -> Result<Vec<String>, ProviderError> {
        let ours = archives.iter().filter(|archive| [OPERATOR, AGENT].contains(&archive.name.as_str()));
        let pushes: Vec<String> = ours.map(push).collect();
        Err(ProviderError::NoLoading(format!(
            "images can't be loaded into the cluster of the current kubeconfig: it pulls them from a registry, and the \
             operator has to be installed by you.\n\
             1. Push both images where its nodes can pull them:\n{}\n\
             2. Name both in deploy/overlays/mine/kustomization.yaml, as docs/quick-start.md shows, and install:\n     \
             kubectl apply --server-side -k deploy/overlays/mine\n     \
             kubectl -n quorate-system rollout status deployment/quorate\n\
             3. Give the same command again with --no-deploy, or with QUORATE_NO_DEPLOY=1 before it, as for make.",
            pushes.join("\n")
        )))
    }
}

/// The commands that push an image to a registry of the user's.
fn push(archive: &Archive) -> String {
    let Archive { name, key: _, path } = archive;
    let short = name.trim_start_matches("quorate.dev/");
    let path = path.display();
    format!("     docker load -i {path} && docker tag {name} REGISTRY/{short} && docker push REGISTRY/{short}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_images_to_load_is_told_each_command() {
        let archive = |name: &str| Archive { name: name.into(), key: "1".into(), path: "/cache/a.tar".into() };
        let archives = [archive(OPERATOR), archive(AGENT), archive("quay.io/coreos/etcd:v3.6.16")];
        let said = Current.load(&archives).unwrap_err().to_string();
        let push = "docker load -i /cache/a.tar && docker tag quorate.dev/operator:dev REGISTRY/operator:dev && docker \
                    push REGISTRY/operator:dev";
        let install = "kubectl apply --server-side -k deploy/overlays/mine\n";
        for words in [push, "push REGISTRY/agent:dev", install, "--no-deploy", "QUORATE_NO_DEPLOY=1"] {
            assert!(said.contains(words), "{words} in {said}");
        }
        assert!(!said.contains("coreos"), "others' images are in their registries: {said}");
    }
}
