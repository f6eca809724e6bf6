//! A store that speaks S3, for scenes: versitygw, where the cluster's pods reach it. What it keeps are files, so that a scene
//! can take one away.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{LAB_VARIABLE, PATIENCE, wait_for};
use crate::command::Command;
use crate::lab::CONTROL_PLANE;
use crate::progress::Progress;
use crate::tools::{self, Tool};
use crate::workspace;

const BUCKET: &str = "bucket";
const REGION: &str = "local";
/// The credentials that it takes.
const ACCESS: &str = "scene";
const SECRET: &str = "not-a-secret";

/// A running store, ended when it is dropped.
#[derive(Debug)]
pub struct Gateway {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl Gateway {
    /// An empty one. Only on the local cluster, whose pods reach this machine at a known address.
    pub async fn start() -> Result<Self> {
        ensure!(std::env::var_os(LAB_VARIABLE).is_some(), "this scene needs the local cluster");
        let program = tools::build(Tool::VersityGw, &Progress::new()).await?.program("versitygw");
        let place = workspace::cache().join("scenes");
        std::fs::create_dir_all(&place).with_context(|| format!("failed to create {}", place.display()))?;
        let folder = tempfile::tempdir_in(place)?;
        std::fs::create_dir(folder.path().join(BUCKET))?;
        // Free a moment ago: nobody else takes ports in this namespace.
        let port = TcpListener::bind("0.0.0.0:0")?.local_addr()?.port();
        let mut command = Command::new(program)
            .args(["--access", ACCESS, "--secret", SECRET, "--region", REGION, "--keep-alive", "--quiet"])
            .args(["--port", &format!("0.0.0.0:{port}"), "posix"])
            .arg(folder.path())
            .to_std();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().context("failed to start versitygw")?;
        let gateway = Self { process, port, folder };
        wait_for("versitygw to answer", PATIENCE, async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(())
        })
        .await?;
        Ok(gateway)
    }

    /// The store as a spec describes it, with credentials out of this Secret.
    pub fn store(&self, secret: &str) -> Value {
        json!({
            "address": format!("s3://{BUCKET}/etcd"),
            "options": { "endpoint": format!("http://{CONTROL_PLANE}:{}", self.port), "region": REGION },
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
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).context("no pid")?;
        kill_process(pid, if pause { Signal::STOP } else { Signal::CONT }).context("failed to signal versitygw")
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
        files(&self.folder.path().join(BUCKET), &mut found)?;
        found.retain(|path| path.to_string_lossy().contains(part));
        Ok(found)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
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
