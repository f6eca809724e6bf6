//! A store behind a gate that can be shut, and that keeps each answer back: S3 as versitygw serves it from a folder. What lies
//! there is read in the folder, past the gate.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::ports::free_address;
use crate::programs::{built, serves, without};

/// Set to `required` where the server's program must be there.
const DEMAND: &str = "QUORATE_REAL_STORES";
const VARIABLE: &str = "QUORATE_VERSITYGW";
const ACCESS: &str = "quorate";
const SECRET: &str = "not-a-secret";

/// The bucket with the prefix, as an address and as a folder.
const ADDRESS: &str = "s3://backups/agent";
const PLACE: &str = "store/backups/agent";

/// What is handed on at once, in bytes.
const PIECE: usize = 64 << 10;

/// The store, until it is dropped.
pub struct Gated {
    folder: TempDir,
    server: Child,
    is_open: watch::Sender<bool>,
    endpoint: String,
    credentials: String,
    runtime: Option<Runtime>,
}

impl Gated {
    /// It is open, and keeps each answer back for so long.
    pub fn start(program: &Path, pause: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(PLACE)).unwrap();
        let credentials = folder.path().join("credentials");
        fs::create_dir(&credentials).unwrap();
        for (name, value) in [("access-key-id", ACCESS), ("secret-access-key", SECRET)] {
            fs::write(credentials.join(name), value).unwrap();
        }
        let address = free_address();
        let server = Command::new(program)
            .args(["--access", ACCESS, "--secret", SECRET, "--region", "local", "--keep-alive", "--quiet"])
            .args(["--port", &address.to_string(), "posix"])
            .arg(folder.path().join("store"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let gate = TcpListener::bind("127.0.0.1:0").unwrap();
        gate.set_nonblocking(true).unwrap();
        let endpoint = format!("endpoint=http://{}", gate.local_addr().unwrap());
        let (is_open, open) = watch::channel(true);
        let runtime = Runtime::new().unwrap();
        runtime.spawn(serve(gate, address, pause, open));
        let credentials = credentials.to_str().unwrap().to_owned();
        let mut gated = Self { folder, server, is_open, endpoint, credentials, runtime: Some(runtime) };
        serves(&mut gated.server, address);
        gated
    }

    /// The agent's arguments that say where it is.
    pub fn arguments(&self) -> [&str; 8] {
        const OPTION: &str = "--store-option";
        let Self { endpoint, credentials, .. } = self;
        ["--store", ADDRESS, OPTION, endpoint, OPTION, "region=local", "--store-credentials", credentials]
    }

    /// Where it keeps what it was given.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().join(PLACE)
    }

    /// From now on it takes no request and gives no answer.
    pub fn shut(&self) {
        self.is_open.send_replace(false);
    }

    /// It goes on where it was shut.
    pub fn open(&self) {
        self.is_open.send_replace(true);
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
        // Of one that has ended this is an error that says so.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The program that the variable names, or else that of the tool.
pub fn program() -> Option<PathBuf> {
    let found = match std::env::var_os(VARIABLE) {
        Some(path) => Some(PathBuf::from(path)),
        None => built("versitygw-", "versitygw").pop().map(|folder| folder.join("versitygw")),
    };
    if found.is_none() {
        without("versitygw", VARIABLE, DEMAND);
    }
    found
}

async fn serve(gate: TcpListener, server: SocketAddr, pause: Duration, open: watch::Receiver<bool>) {
    let gate = tokio::net::TcpListener::from_std(gate).unwrap();
    loop {
        let (client, _) = gate.accept().await.unwrap();
        tokio::spawn(pass(client, server, pause, open.clone()));
    }
}

/// Hands on what the two say, until one of them has ended.
async fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    pause: Duration,
    mut open: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut request, mut answer) = (vec![0; PIECE], vec![0; PIECE]);
    let mut is_asked = false;
    loop {
        let (bytes, of_client) = tokio::select! {
            bytes = client.read(&mut request) => (bytes?, true),
            bytes = server.read(&mut answer) => (bytes?, false),
        };
        // It is dropped while somebody waits at it.
        let is_gone = open.wait_for(|open| *open).await.is_err();
        if bytes == 0 || is_gone {
            return Ok(());
        }
        if of_client {
            is_asked = true;
            server.write_all(&request[..bytes]).await?;
        } else {
            if std::mem::take(&mut is_asked) {
                tokio::time::sleep(pause).await;
            }
            client.write_all(&answer[..bytes]).await?;
        }
    }
}
