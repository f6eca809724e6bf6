//! What is measured on: an etcd of one member, an S3 store on a folder, and a place for files; all of it gone with the
//! value. It measures nothing.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use etcd_client::Client;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::process;
use crate::command::Command;
use crate::scene::wait_for;
use crate::workspace;

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// Above what is written.
const QUOTA: u64 = 8 << 30;
const BUCKET: &str = "backups";
const ACCESS: &str = "bench";
const SECRET: &str = "bench-secret";

/// The programs that take part.
#[derive(Debug)]
pub struct Programs {
    /// The folder of etcd, etcdctl and etcdutl.
    pub etcd: PathBuf,
    /// versitygw.
    pub store: PathBuf,
    /// quorate-agent.
    pub agent: PathBuf,
}

/// A server, killed when it is dropped.
#[derive(Debug)]
struct Server(Child);

impl Server {
    fn start(command: &Command) -> Result<Self> {
        let mut command = command.to_std();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().context("failed to start a server")?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The test bed.
#[derive(Debug)]
pub struct Bed {
    programs: Programs,
    store: Server,
    _etcd: Server,
    etcd_address: SocketAddr,
    store_address: SocketAddr,
    folder: TempDir,
}

impl Bed {
    /// An empty etcd and an empty store.
    pub async fn new(programs: Programs) -> Result<Self> {
        // In memory it would not be what a disk takes; the system's folder for such files may be in memory.
        let place = workspace::cache().join("bench");
        std::fs::create_dir_all(&place).with_context(|| format!("failed to create {}", place.display()))?;
        let folder = tempfile::tempdir_in(place)?;
        let credentials = folder.path().join("credentials");
        std::fs::create_dir_all(folder.path().join("store").join(BUCKET))?;
        std::fs::create_dir_all(&credentials)?;
        std::fs::write(credentials.join("access-key-id"), ACCESS)?;
        std::fs::write(credentials.join("secret-access-key"), SECRET)?;
        let [etcd_address, peer, store_address] = free_addresses()?;
        let etcd = Server::start(&etcd(&programs, etcd_address, peer, &folder.path().join("etcd")))?;
        let store = Server::start(&gateway(&programs, store_address, &folder.path().join("store")))?;
        for (server, address) in [("etcd", etcd_address), ("the store", store_address)] {
            let look = async || Ok(TcpStream::connect(address).await?);
            wait_for(&format!("{server} to answer"), PATIENCE, look).await?;
        }
        Ok(Self { programs, store, _etcd: etcd, etcd_address, store_address, folder })
    }

    /// A client of etcd.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect([self.etcd_url()], None).await?)
    }

    /// A path below the folder for files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One of etcd's tools, with the member to speak to.
    pub fn etcd_tool(&self, name: &str) -> Command {
        Command::new(self.programs.etcd.join(name)).env("ETCDCTL_ENDPOINTS", self.etcd_url())
    }

    /// The agent, with the store and the member to speak to.
    pub fn agent(&self, subcommand: &str, lineage: &str) -> Command {
        Command::new(&self.programs.agent)
            .arg(subcommand)
            .env("QUORATE_STORE", format!("s3://{BUCKET}/agent"))
            .env(
                "QUORATE_STORE_OPTIONS",
                format!("endpoint=http://{},region=local,payload=unsigned", self.store_address),
            )
            .env("QUORATE_STORE_CREDENTIALS", self.file("credentials"))
            .env("QUORATE_LINEAGE", lineage)
            .env("QUORATE_ENDPOINT", self.etcd_url())
    }

    /// etcdutl, as somebody calls it who restores by hand, or as the agent does.
    pub fn etcdutl(&self) -> PathBuf {
        self.programs.etcd.join("etcdutl")
    }

    /// curl with an object of the store.
    pub fn curl(&self, object: &str) -> Command {
        Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--aws-sigv4", "aws:amz:local:s3"])
            .args(["--user", &format!("{ACCESS}:{SECRET}"), "--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
            .arg(format!("http://{}/{BUCKET}/{object}", self.store_address))
    }

    /// Stops the store in the middle of whatever it does, or lets it go on.
    pub fn pause_store(&self, pause: bool) -> Result<()> {
        process::signal(self.store.0.id(), if pause { Signal::STOP } else { Signal::CONT })
    }

    fn etcd_url(&self) -> String {
        format!("http://{}", self.etcd_address)
    }
}

fn free_addresses() -> Result<[SocketAddr; 3]> {
    // Held together, so that they differ.
    let listeners =
        [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let [first, second, third] = &listeners;
    Ok([first.local_addr()?, second.local_addr()?, third.local_addr()?])
}

fn etcd(programs: &Programs, client: SocketAddr, peer: SocketAddr, data: &Path) -> Command {
    Command::new(programs.etcd.join("etcd"))
        .args(["--name=default", "--initial-cluster-state=new", "--log-level=error"])
        .arg(format!("--quota-backend-bytes={QUOTA}"))
        .arg(format!("--data-dir={}", data.display()))
        .args([format!("--listen-client-urls=http://{client}"), format!("--advertise-client-urls=http://{client}")])
        .args([format!("--listen-peer-urls=http://{peer}"), format!("--initial-advertise-peer-urls=http://{peer}")])
        .arg(format!("--initial-cluster=default=http://{peer}"))
}

fn gateway(programs: &Programs, address: SocketAddr, folder: &Path) -> Command {
    Command::new(&programs.store)
        .args(["--access", ACCESS, "--secret", SECRET, "--region", "local", "--keep-alive", "--quiet"])
        .args(["--port", &address.to_string(), "posix"])
        .arg(folder)
}
