//! A cluster made by kind. Calls the `kind` program and leaves all else to it.

use std::fs;
use std::path::PathBuf;

use super::{ProviderError, program_missing};
use crate::command::Command;
use crate::images::{Archive, PAUSE, container_tool};
use crate::lab::{Folders, LabName};
use crate::progress::Progress;

/// What is missing for kind, if anything.
pub async fn missing() -> Option<String> {
    if let Some(missing) = program_missing("kind").or_else(|| program_missing("kubectl")) {
        return Some(missing);
    }
    container_tool().await.is_none().then(|| "neither docker nor podman answers".into())
}

/// A kind cluster.
#[derive(Debug, Clone)]
pub struct Kind {
    program: PathBuf,
    name: String,
    folder: PathBuf,
}

impl Kind {
    /// The cluster for a lab of this name.
    pub fn new(lab: &LabName) -> Self {
        Self { program: "kind".into(), name: lab.to_string(), folder: Folders::of(lab).run.with_extension("kind") }
    }

    /// Its kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Creates it, unless it is there.
    pub async fn up(&self, nodes: u8, progress: &Progress) -> Result<(), ProviderError> {
        let clusters = self.kind(&["get", "clusters"]).await.run().await?;
        fs::create_dir_all(&self.folder).map_err(|source| ProviderError::File(self.folder.clone(), source))?;
        if clusters.lines().any(|cluster| cluster == self.name) {
            let export = self.kind(&["export", "kubeconfig", "--name", &self.name]).await;
            return Ok(export.arg("--kubeconfig").arg(self.kubeconfig()).run().await.map(drop)?);
        }
        let step = progress.step(format_args!("kind cluster {}", self.name));
        self.kind(&["create", "cluster", "--name", &self.name, "--wait", "180s", "--config", "-"])
            .await
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .input(config(nodes))
            .run()
            .await?;
        step.done("created");
        Ok(())
    }

    /// Deletes it.
    pub async fn down(&self) -> Result<(), ProviderError> {
        self.kind(&["delete", "cluster", "--name", &self.name]).await.run().await?;
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ProviderError::File(self.folder.clone(), error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Loads images, each only when it has changed. kind brings a pause image of its own.
    pub async fn load(&self, archives: &[Archive]) -> Result<Vec<String>, ProviderError> {
        let mut loaded = vec![];
        for archive in archives.iter().filter(|archive| archive.name != PAUSE) {
            let record = self.folder.join(archive.name.replace(['/', ':'], "_"));
            if fs::read_to_string(&record).is_ok_and(|key| key == archive.key) {
                continue;
            }
            self.kind(&["load", "image-archive", "--name", &self.name]).await.arg(&archive.path).run().await?;
            fs::write(&record, &archive.key).map_err(|source| ProviderError::File(record, source))?;
            loaded.push(archive.name.clone());
        }
        Ok(loaded)
    }

    async fn kind(&self, args: &[&str]) -> Command {
        let command = Command::new(&self.program).args(args);
        match container_tool().await {
            Some("podman") => command.env("KIND_EXPERIMENTAL_PROVIDER", "podman"),
            Some(_) | None => command,
        }
    }
}

/// A control plane that takes no pods of ours, and `nodes` nodes that do, as the local lab has them.
fn config(nodes: u8) -> String {
    let workers = "\n- role: worker".repeat(nodes.into());
    format!("kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane{workers}\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    /// A program that writes down how it is called, in the place of kind.
    fn recording(folder: &Path) -> Kind {
        let program = folder.join("kind");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", folder.join("calls").display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Kind { program, name: "lab".into(), folder: folder.join("lab") }
    }

    #[tokio::test]
    async fn an_image_is_loaded_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let kind = recording(folder.path());
        kind.up(3, &Progress::new()).await.unwrap();
        let archive = |name: &str, key: &str| Archive { name: name.into(), key: key.into(), path: "/a.tar".into() };
        let image = archive("quorate.dev/agent:dev", "1");
        assert_eq!(kind.load(&[image.clone(), archive(PAUSE, "1")]).await.unwrap(), ["quorate.dev/agent:dev"]);
        assert!(kind.load(&[image]).await.unwrap().is_empty());
        assert_eq!(kind.load(&[archive("quorate.dev/agent:dev", "2")]).await.unwrap().len(), 1);
        kind.down().await.unwrap();
        let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
        let calls: Vec<&str> = calls.lines().filter_map(|call| call.split(" --").next()).collect();
        let load = "load image-archive";
        assert_eq!(calls, ["get clusters", "create cluster", load, load, "delete cluster"]);
    }

    #[test]
    fn the_nodes_that_take_pods_are_counted() {
        assert_eq!(config(3).matches("role: worker").count(), 3);
        assert_eq!(config(3).matches("role: control-plane").count(), 1);
    }
}
