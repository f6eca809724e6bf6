//! A store behind a gate that can be shut, and that keeps each answer back: S3 as versitygw serves it from a folder. What lies
//! there is read in the folder, past the gate.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::stores::place::Place;
use crate::stores::s3::VersityGw;

const PREFIX: &str = "agent";

/// What is handed on at once, in bytes.
const PIECE: usize = 64 << 10;

/// The store, until it is dropped.
pub struct Gated {
    server: VersityGw,
    is_open: watch::Sender<bool>,
    arguments: Vec<String>,
    runtime: Option<Runtime>,
    _place: Place,
}

impl Gated {
    /// It is open, and keeps each answer back for so long. None: there is no server to be had.
    pub fn start(pause: Duration) -> Option<Self> {
        let server = VersityGw::start()?;
        fs::create_dir_all(server.folder(PREFIX)).unwrap();
        let gate = TcpListener::bind("127.0.0.1:0").unwrap();
        gate.set_nonblocking(true).unwrap();
        let place = server.behind(gate.local_addr().unwrap(), PREFIX);
        let (is_open, open) = watch::channel(true);
        let runtime = Runtime::new().unwrap();
        runtime.spawn(serve(gate, server.address(), pause, open));
        Some(Self { server, is_open, arguments: place.arguments(), runtime: Some(runtime), _place: place })
    }

    /// The agent's arguments that say where it is, and some more.
    pub fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        self.arguments.iter().map(String::as_str).chain(more.iter().copied()).collect()
    }

    /// Where it keeps what it was given.
    pub fn folder(&self) -> PathBuf {
        self.server.folder(PREFIX)
    }

    /// How many parts it has of uploads that are not complete.
    pub fn parts(&self) -> usize {
        self.server.parts()
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
    }
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
