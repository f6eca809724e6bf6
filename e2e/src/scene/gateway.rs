//! A store that speaks S3, for scenes: versitygw, where the cluster's pods reach it. What it keeps are files, so that a scene
//! can take one away.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::Server;
use crate::command::Command;
use crate::progress::Progress;
use crate::tools::{self, Tool};

const BUCKET: &str = "bucket";
const REGION: &str = "local";
/// The credentials that it takes.
const ACCESS: &str = "scene";
const SECRET: &str = "not-a-secret";

/// A running store, ended when it is dropped.
#[derive(Debug)]
pub struct Gateway(Server);

impl Gateway {
    /// An empty one. Only on the local cluster, whose pods reach this machine at a known address.
    pub async fn start() -> Result<Self> {
        let program = tools::build(Tool::VersityGw, &Progress::new()).await?.program("versitygw");
        let server = Server::start(|port, folder| {
            std::fs::create_dir(folder.join(BUCKET))?;
            Ok(Command::new(program)
                .args(["--access", ACCESS, "--secret", SECRET, "--region", REGION, "--keep-alive", "--quiet"])
                .args(["--port", &format!("0.0.0.0:{port}"), "posix"])
                .arg(folder))
        })
        .await?;
        Ok(Self(server))
    }

    /// The store as a spec describes it, with credentials out of this Secret.
    pub fn store(&self, secret: &str) -> Value {
        json!({
            "address": format!("s3://{BUCKET}/etcd"),
            "options": { "endpoint": self.0.url(), "region": REGION },
            "credentials": { "name": secret },
        })
    }

    /// A Secret of this name with the credentials, or with a wrong key.
    pub fn credentials(secret: &str, right: bool) -> Value {
        let key = if right { SECRET } else { "another" };
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": secret },
            "stringData": { "access-key-id": ACCESS, "secret-access-key": key },
        })
    }

    /// Stops it in the middle of whatever it does, or lets it go on.
    pub fn pause(&self, pause: bool) -> Result<()> {
        self.0.pause(pause)
    }

    /// Ends it: whoever connects is refused. What it keeps stays.
    pub fn stop(&mut self) -> Result<()> {
        self.0.stop()
    }

    /// Starts it anew with what it kept, where it was.
    pub async fn start_again(&mut self) -> Result<()> {
        self.0.start_again().await
    }

    /// The only file whose path has this part.
    pub fn object(&self, part: &str) -> Result<PathBuf> {
        let found = self.objects(part)?;
        let [only] = found.as_slice() else { anyhow::bail!("{} objects have {part} in their names", found.len()) };
        Ok(only.clone())
    }

    /// The files whose paths have this part.
    pub fn objects(&self, part: &str) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        files(&self.0.folder().join(BUCKET), &mut found)?;
        found.retain(|path| path.to_string_lossy().contains(part));
        Ok(found)
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
