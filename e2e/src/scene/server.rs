//! Servers beside the cluster: processes on this machine, and for scenes such as the cluster's pods reach, with a folder of
//! its own. It knows nothing of what is served.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::{NamedTempFile, TempDir};
use tokio::net::TcpStream;

use super::{LAB_VARIABLE, PATIENCE, wait_for};
use crate::command::Command;
use crate::lab::CONTROL_PLANE;
use crate::workspace;

/// Where pods reach what listens on this machine. Only on the local cluster is that known.
pub fn reached_at() -> Result<Ipv4Addr> {
    ensure!(std::env::var_os(LAB_VARIABLE).is_some(), "this scene needs the local cluster");
    Ok(CONTROL_PLANE)
}

/// A server's process, ended when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    command: Command,
    /// What it prints.
    output: NamedTempFile,
}

impl Process {
    /// Starts it.
    pub fn start(command: Command) -> Result<Self> {
        let output = NamedTempFile::new().context("failed to make a file for what a server prints")?;
        let file = output.reopen()?;
        let mut process = command.to_std();
        process.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = process.spawn().with_context(|| format!("failed to start `{command}`"))?;
        Ok(Self { child, command, output })
    }

    /// Waits until it answers at this address; an error, with the end of what it printed, as soon as it has ended.
    pub async fn answers(&mut self, address: SocketAddr) -> Result<()> {
        let Self { child, command, output } = self;
        wait_for(&format!("`{command}` to answer"), PATIENCE, async || {
            // Before anything else: who answers may be another, to whom it lost the port.
            if let Some(status) = child.try_wait()? {
                let printed = std::fs::read(output.path())?;
                return Ok(Err(command.failed(status, &String::from_utf8_lossy(&printed))));
            }
            TcpStream::connect(address).await?;
            Ok(Ok(()))
        })
        .await??;
        Ok(())
    }

    /// Stops it in the middle of whatever it does, or lets it go on.
    pub fn pause(&self, pause: bool) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no pid")?;
        kill_process(pid, if pause { Signal::STOP } else { Signal::CONT }).context("failed to signal a server")
    }

    /// Ends it in the middle of whatever it does. When this returns, nobody listens where it did.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("failed to kill a server")?;
        self.child.wait().context("failed to wait for the end of a server").map(drop)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.kill();
    }
}

/// A running server with a folder, ended when it is dropped.
#[derive(Debug)]
pub struct Server {
    process: Process,
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
        let mut process = Process::start(command(port, folder.path())?)?;
        process.answers(address(port)).await?;
        Ok(Self { process, port, folder, url: format!("http://{ip}:{port}") })
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
        self.process.pause(pause)
    }

    /// Ends it: whoever connects is refused. Its folder stays.
    pub fn stop(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Starts it anew with what is in its folder, at the same port, and waits until it answers.
    pub async fn start_again(&mut self) -> Result<()> {
        self.process = Process::start(self.process.command.clone())?;
        self.process.answers(address(self.port)).await
    }
}

/// Where this machine itself reaches who listens at this port.
fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_ends_is_not_waited_for() {
        let command = Command::new("sh").args(["-c", "echo no room >&2; exit 3"]);
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = Process::start(command).unwrap().answers(nobody).await.unwrap_err().to_string();
        assert!(error.contains("(exit status: 3):\nno room"), "{error}");
    }

    #[test]
    fn a_server_that_is_killed_has_ended_and_may_be_killed_again() {
        let mut process = Process::start(Command::new("sleep").arg("60")).unwrap();
        for _ in 0..2 {
            process.kill().unwrap();
            assert!(process.child.try_wait().unwrap().is_some(), "it runs");
        }
    }

    #[tokio::test]
    async fn a_server_that_answers_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut process = Process::start(Command::new("sleep").arg("60")).unwrap();
        process.answers(listener.local_addr().unwrap()).await.unwrap();
        assert!(process.child.try_wait().unwrap().is_none(), "it was ended");
    }
}
