//! What the clouds have of their own and no server here does for them, in every crate that has tests of stores: what an owner of
//! an account of Azure's or of a bucket of S3 signs, a double of Google, and who stands before a server of S3 with troubles. It
//! knows nothing of what is tried there.

pub mod azure;
pub mod gate;
pub mod google;
pub mod s3;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use data_encoding::BASE64;

/// How long an answer may take: all that is asked here takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends a request, which has to say that it is the only one, and demands this status.
fn is_answered(server: SocketAddr, request: &str, status: u16) {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
}

/// As files have it.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
