//! Knocks at a member's port with whatever one has: to see who is let in, whom the member itself turns away, and what
//! it shows and says. One request on a connection of its own; who should be let in is the scene's business.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::Method;
use hyper::body::Bytes;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::exchange::exchange;
use super::members::{Door, Keys};

/// etcd's client port.
pub const CLIENT_PORT: u16 = 2379;
/// etcd's peer port.
pub const PEER_PORT: u16 = 2380;
/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// The port of the sidecar that keeps the continuous backup.
pub const AGENT_PORT: u16 = 2382;
/// What etcd's ports answer whoever they let in, and the agent's says it has not.
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

impl From<Keys> for Shown {
    fn from(Keys { trusted, certificate, key }: Keys) -> Self {
        Self::Certificate { trusted, certificate, key }
    }
}

/// What a member did with who knocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It answered.
    LetIn {
        /// The status.
        status: u16,
        /// What it said.
        body: String,
        /// The certificate that it showed; empty in plain text.
        certificate: Vec<u8>,
    },
    /// It sent an alert of TLS, or closed the connection that it had taken; in what words.
    Refused(String),
}

impl Answer {
    /// Demands that one was let in, and returns the certificate that the member showed.
    pub fn let_in(self) -> Result<Vec<u8>> {
        match self {
            Self::LetIn { certificate, status: _, body: _ } => Ok(certificate),
            Self::Refused(how) => bail!("refused: {how}"),
        }
    }

    /// Demands that one was turned away, and returns how.
    pub fn refused(self) -> Result<String> {
        match self {
            Self::LetIn { status, body: _, certificate: _ } => bail!("let in, with status {status}"),
            Self::Refused(how) => Ok(how),
        }
    }
}

/// Asks the member called `host` at this port for its version. Fails if nobody listens, nobody answers in time, or the
/// member is not trusted: that refuses nobody.
pub async fn knock(address: &str, port: u16, host: &str, shown: &Shown) -> Result<Answer> {
    ask(address, port, host, shown, PATH).await
}

/// What stands at this path of a member's port, for who has this way to it: the status and the body.
pub async fn fetch(door: &Door, port: u16, path: &str) -> Result<(u16, String)> {
    let Door { address, host, keys } = door;
    let shown = keys.as_deref().map_or(Shown::Plaintext, |keys| Shown::from(keys.clone()));
    match ask(address, port, host, &shown, path).await? {
        Answer::LetIn { status, body, certificate: _ } => Ok((status, body)),
        Answer::Refused(how) => bail!("refused: {how}"),
    }
}

async fn ask(address: &str, port: u16, host: &str, shown: &Shown, path: &str) -> Result<Answer> {
    let asked = async {
        let tcp = TcpStream::connect((address, port)).await.context("nobody listens")?;
        match show(tcp, host, shown, path).await {
            Err(error) if error.chain().any(is_refusal) => Ok(Answer::Refused(format!("{error:#}"))),
            answer => answer,
        }
    };
    tokio::time::timeout(DEADLINE, asked).await.context("no answer in time")?
}

async fn show(tcp: TcpStream, host: &str, shown: &Shown, path: &str) -> Result<Answer> {
    let get = (Method::GET, path, Bytes::new());
    let (trusted, identity) = match shown {
        Shown::Plaintext => {
            let (status, body) = exchange(tcp, host, get).await?;
            return Ok(Answer::LetIn { status, body, certificate: Vec::new() });
        }
        Shown::Nothing { trusted } => (trusted, None),
        Shown::Certificate { trusted, certificate, key } => (trusted, Some((certificate, key))),
    };
    let config = config(trusted, identity)?;
    let tls = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(host.to_owned())?, tcp).await?;
    let theirs = tls.get_ref().1.peer_certificates().and_then(<[_]>::first).context("it showed no certificate")?;
    let certificate = theirs.to_vec();
    // With TLS 1.3 a client learns only by the first answer whether its certificate was taken.
    let (status, body) = exchange(tls, host, get).await?;
    Ok(Answer::LetIn { status, body, certificate })
}

/// Whether this is how the other end turns somebody away. etcd closes without a word on plain text, to which the agent sends
/// an alert of TLS, which is no HTTP; etcd closes also after the handshake with one whose address it does not take; and what
/// is sent meanwhile can make the close a reset, by which an alert is lost.
fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return error.is_incomplete_message() || error.is_canceled() || error.is_closed() || error.is_parse();
    }
    let Some(error) = error.downcast_ref::<io::Error>() else { return false };
    let said = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match said {
        Some(said) => matches!(said, rustls::Error::AlertReceived(_)),
        None => matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
        ),
    }
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
