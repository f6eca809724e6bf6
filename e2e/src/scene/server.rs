//! A server beside the cluster, for scenes: a process on this machine, which the cluster's pods reach, with a folder of its
//! own. It knows nothing of what is served.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{LAB_VARIABLE, PATIENCE, wait_for};
use crate::command::Command;
use crate::lab::CONTROL_PLANE;
use crate::workspace;

/// Where pods reach what listens on this machine. Only on the local cluster is that known.
pub fn reached_at() -> Result<Ipv4Addr> {
    ensure!(std::env::var_os(LAB_VARIABLE).is_some(), "this scene needs the local cluster");
    Ok(CONTROL_PLANE)
}

/// A running server, ended when it is dropped.
#[derive(Debug)]
pub struct Server {
    process: Child,
    port: u16,
    folder: TempDir,
    url: String,
}

impl Server {
    /// Starts what `command` says for a port, at which it has to listen on all addresses, and an empty folder; waits until it
    /// answers.
    pub async fn start(command: impl FnOnce(u16, &Path) -> Result<Command>) -> Result<Self> {
        let ip = reached_at()?;
        let place = workspace::cache().join("scenes");
        std::fs::create_dir_all(&place).with_context(|| format!("failed to create {}", place.display()))?;
        let folder = tempfile::tempdir_in(place)?;
        // Free a moment ago: nobody else takes ports in this namespace.
        let port = TcpListener::bind("0.0.0.0:0")?.local_addr()?.port();
        let command = command(port, folder.path())?;
        let mut process = command.to_std();
        process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = process.spawn().with_context(|| format!("failed to start `{command}`"))?;
        let server = Self { process, port, folder, url: format!("http://{ip}:{port}") };
        wait_for("a server to answer", PATIENCE, async || {
            tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            Ok(())
        })
        .await?;
        Ok(server)
    }

    /// Its URL, for pods.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Stops it in the middle of whatever it does, or lets it go on.
    pub fn pause(&self, pause: bool) -> Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).context("no pid")?;
        kill_process(pid, if pause { Signal::STOP } else { Signal::CONT }).context("failed to signal a server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
