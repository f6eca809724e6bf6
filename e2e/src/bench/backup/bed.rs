//! What is measured on: an etcd of one member or several, an S3 store on a folder, and a place for files; all of it
//! gone with the value. It measures nothing.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use etcd_client::Client;
use tempfile::TempDir;

use crate::command::Command;
use crate::scene::Process;
use crate::workspace;

/// Above what is written.
const QUOTA: u64 = 8 << 30;
const BUCKET: &str = "backups";
const ACCESS: &str = "bench";
const SECRET: &str = "bench-secret";

/// The programs that take part.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The folder of etcd, etcdctl and etcdutl.
    pub etcd: PathBuf,
    /// versitygw.
    pub store: PathBuf,
    /// quorate-agent.
    pub agent: PathBuf,
}

/// The test bed.
#[derive(Debug)]
pub struct Bed {
    programs: Programs,
    store: Process,
    _etcd: Vec<Process>,
    etcd_addresses: Vec<SocketAddr>,
    store_address: SocketAddr,
    folder: TempDir,
}

impl Bed {
    /// An empty etcd of so many members, and an empty store.
    pub async fn new(programs: Programs, members: usize) -> Result<Self> {
        // In memory it would not be what a disk takes; the system's folder for such files may be in memory.
        let place = workspace::cache().join("bench");
        std::fs::create_dir_all(&place).with_context(|| format!("failed to create {}", place.display()))?;
        let folder = tempfile::tempdir_in(place)?;
        let credentials = folder.path().join("credentials");
        std::fs::create_dir_all(folder.path().join("store").join(BUCKET))?;
        std::fs::create_dir_all(&credentials)?;
        std::fs::write(credentials.join("access-key-id"), ACCESS)?;
        std::fs::write(credentials.join("secret-access-key"), SECRET)?;
        let addresses = free_addresses(2 * members + 1)?;
        let (etcd_addresses, rest) = addresses.split_at(members);
        let (peers, rest) = rest.split_at(members);
        let store_address = rest.first().copied().context("no address is left for the store")?;
        let mut servers = etcd(&programs, etcd_addresses, peers, folder.path())?;
        let mut store = Process::start(gateway(&programs, store_address, &folder.path().join("store")))?;
        for (server, address) in servers.iter_mut().zip(etcd_addresses) {
            server.answers(*address).await?;
        }
        store.answers(store_address).await?;
        let etcd_addresses = etcd_addresses.to_vec();
        Ok(Self { programs, store, _etcd: servers, etcd_addresses, store_address, folder })
    }

    /// A client of etcd, of all its members.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect(self.urls(), None).await?)
    }

    /// The client URL of each member.
    pub fn urls(&self) -> Vec<String> {
        self.etcd_addresses.iter().map(|address| format!("http://{address}")).collect()
    }

    /// A path below the folder for files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One of etcd's tools, with the members to speak to.
    pub fn etcd_tool(&self, name: &str) -> Command {
        Command::new(self.programs.etcd.join(name)).env("ETCDCTL_ENDPOINTS", self.endpoints())
    }

    /// The agent, with the store and the members to speak to.
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
            .env("QUORATE_ENDPOINT", self.endpoints())
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
        self.store.pause(pause)
    }

    /// All client URLs, as etcd's tools and the agent take them.
    fn endpoints(&self) -> String {
        self.urls().join(",")
    }
}

fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    // Held together, so that they differ.
    let held = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>()?;
    Ok(held.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?)
}

/// Starts the members, each with one of the addresses for clients and one of those for its peers.
fn etcd(programs: &Programs, clients: &[SocketAddr], peers: &[SocketAddr], folder: &Path) -> Result<Vec<Process>> {
    let name = |number: usize| format!("etcd-{number}");
    let named: Vec<_> = peers.iter().enumerate().map(|(at, peer)| format!("{}=http://{peer}", name(at))).collect();
    let start = |(number, (client, peer)): (usize, (&SocketAddr, &SocketAddr))| {
        let name = name(number);
        let member = Command::new(programs.etcd.join("etcd"))
            .args(["--initial-cluster-state=new", "--log-level=error"])
            .arg(format!("--quota-backend-bytes={QUOTA}"))
            .arg(format!("--data-dir={}", folder.join(&name).display()))
            .args([format!("--listen-client-urls=http://{client}"), format!("--advertise-client-urls=http://{client}")])
            .args([format!("--listen-peer-urls=http://{peer}"), format!("--initial-advertise-peer-urls=http://{peer}")])
            .args([format!("--name={name}"), format!("--initial-cluster={}", named.join(","))]);
        Process::start(member)
    };
    clients.iter().zip(peers).enumerate().map(start).collect()
}

fn gateway(programs: &Programs, address: SocketAddr, folder: &Path) -> Command {
    Command::new(&programs.store)
        .args(["--access", ACCESS, "--secret", SECRET, "--region", "local", "--keep-alive", "--quiet"])
        .args(["--port", &address.to_string(), "posix"])
        .arg(folder)
}
