//! Knocks at a member's port with whatever one has: to see who is let in and who is not, and what the member shows. One
//! request on a connection of its own; what an answer means is the scene's business.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// etcd's client port.
pub const CLIENT_PORT: u16 = 2379;
/// etcd's peer port.
pub const PEER_PORT: u16 = 2380;
/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// What both ports answer whoever they let in.
const PATH: &str = "/version";

/// What is shown at a port.
#[derive(Clone, Debug)]
pub enum Shown {
    /// No TLS at all.
    Plaintext,
    /// TLS, without a certificate.
    Nothing {
        /// Who is trusted, as PEM.
        trusted: String,
    },
    /// TLS, with a certificate.
    Certificate {
        /// Who is trusted, as PEM.
        trusted: String,
        /// The certificate, as PEM.
        certificate: String,
        /// Its key.
        key: String,
    },
}

/// Who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The certificate that the member showed; empty in plain text.
    pub certificate: Vec<u8>,
}

/// Asks the member called `host` at this port for its version; fails if one is not let in.
pub async fn knock(address: &str, port: u16, host: &str, shown: &Shown) -> Result<Answer> {
    let asked = async {
        let tcp = TcpStream::connect((address, port)).await?;
        let (trusted, identity) = match shown {
            Shown::Plaintext => return Ok(Answer { status: ask(tcp, host).await?, certificate: Vec::new() }),
            Shown::Nothing { trusted } => (trusted, None),
            Shown::Certificate { trusted, certificate, key } => (trusted, Some((certificate, key))),
        };
        let config = config(trusted, identity)?;
        let tls = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(host.to_owned())?, tcp).await?;
        let theirs = tls.get_ref().1.peer_certificates().and_then(<[_]>::first).context("it showed no certificate")?;
        let certificate = theirs.to_vec();
        Ok(Answer { status: ask(tls, host).await?, certificate })
    };
    tokio::time::timeout(DEADLINE, asked).await.context("no answer in time")?
}

fn config(trusted: &str, identity: Option<(&String, &String)>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(authority?)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?
        }
    })
}

/// With TLS 1.3 a client learns only by the first answer whether its certificate was taken.
async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, host: &str) -> Result<u16> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::get(PATH).header(http::header::HOST, host).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await;
    connection.abort();
    Ok(answer?.status().as_u16())
}
