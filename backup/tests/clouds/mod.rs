//! What the clouds have of their own and no server here does for them, in every crate that has tests of stores: what an owner of
//! an account of Azure's or of a bucket of S3 signs, a double of Google, what Amazon's STS and Microsoft's Entra answer, and who
//! stands before a server of S3 or Azure with troubles. It knows nothing of what is tried there.

pub mod answers;
pub mod azure;
pub mod entra;
pub mod gate;
pub mod google;
pub mod s3;
pub mod sts;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// How long an answer may take: all that is asked here takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends a request, which has to say that it is the only one, and demands this status.
fn is_answered(server: SocketAddr, request: &str, status: u16) {
    is_answered_over(connected(server), request, status);
}

/// The same over TLS, with a server whose certificate this authority has signed.
fn is_answered_over_tls(server: SocketAddr, authority: &str, request: &str, status: u16) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = ClientConnection::new(Arc::new(config), server.ip().into()).unwrap();
    is_answered_over(StreamOwned::new(session, connected(server)), request, status);
}

fn connected(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn is_answered_over(mut stream: impl Read + Write, request: &str, status: u16) {
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
