//! The servers that tests run: where their programs are, and when they answer. Builds none of them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_millis(20);

/// The folders of the local cluster's tools whose names begin so and that have this program, in order.
pub fn built(tool: &str, program: &str) -> Vec<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/tools");
    let entries = fs::read_dir(tools).into_iter().flatten().map(|entry| entry.unwrap());
    let mut found: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(tool))
        .map(|entry| entry.path().join("bin"))
        .filter(|folder| folder.join(program).is_file())
        .collect();
    found.sort();
    found
}

/// Says that nothing is tried for want of a program, which is a failure where it is required.
pub fn without(program: &str, variable: &str, demand: &str) {
    let required = std::env::var(demand).is_ok_and(|demand| demand == "required");
    assert!(!required, "no {program} in .cache/tools, and {demand}=required: quorate-e2e tools builds it");
    eprintln!("no {program} in .cache/tools, and {variable} is not set: nothing was tried here");
}

/// Waits until a process that was started takes connections there.
pub fn serves(process: &mut Child, address: SocketAddr) {
    until(process, address, || TcpStream::connect(address).is_ok());
}

/// Waits until it answers a `GET` of this path. That somebody takes a connection says neither that it is this process, nor
/// that it will get as far as to serve.
pub fn answers(process: &mut Child, address: SocketAddr, path: &str) {
    until(process, address, || get(address, path).is_some_and(|(status, _)| status == 200));
}

fn until(process: &mut Child, address: SocketAddr, met: impl Fn() -> bool) {
    let begun = Instant::now();
    while !met() {
        assert!(begun.elapsed() < PATIENCE, "nobody serves on {address}");
        let ended = process.try_wait().unwrap();
        assert!(ended.is_none(), "what should serve on {address} has ended: {ended:?}");
        thread::sleep(PERIOD);
    }
}

/// What a server answers to a `GET` of this path: its status and the body. Nothing while it does not answer,
/// also where it takes the connection and says no more.
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
}
