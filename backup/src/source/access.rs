//! How the member is dialled: over TLS or not, with a user or not.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use tonic::transport::{Channel, Endpoint};

/// How long a connection may take. The member is usually on the same host.
const CONNECT: Duration = Duration::from_secs(5);
/// After how long without a byte the kernel asks whether the other side is still there.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// What it takes to be let in.
#[derive(Debug, Clone)]
pub struct Access {
    /// The member's client URL.
    pub endpoint: String,
    /// Certificates, for an endpoint of `https`.
    pub tls: Tls,
    /// A user, if etcd asks for one.
    pub user: Option<Credentials>,
}

/// Files in PEM. They are read at each connection, since certificates are renewed.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// Whom to trust.
    pub ca: Option<PathBuf>,
    /// The own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user and the file that holds its password.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The user's name.
    pub name: String,
    /// Where its password is.
    pub password: PathBuf,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file can't be read.
    #[error("failed to read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// The endpoint is no URL of etcd, or the certificates are none.
    #[error("failed to dial etcd at {endpoint}: {source}; write http://host:2379 or https://host:2379")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// What is wrong.
        source: tonic::transport::Error,
    },
    /// etcd does not answer, or does not let us in.
    #[error("failed to connect to etcd at {endpoint}: {source}")]
    Connect {
        /// Where.
        endpoint: String,
        /// How it failed.
        source: Box<etcd_client::Error>,
    },
}

/// A connection to the member.
#[derive(Clone)]
pub struct Connection {
    /// For everything that etcd-client can ask.
    pub client: Client,
    /// For what it can't.
    pub(super) channel: Channel,
    /// Name and password.
    pub(super) user: Option<(String, String)>,
}

impl Access {
    /// Connects, and logs in if there is a user. The connection comes about again by itself when it is lost.
    pub async fn connect(&self) -> Result<Connection, AccessError> {
        let Self { endpoint, tls: Tls { ca, identity }, user } = self;
        let fault = |source| AccessError::Endpoint { endpoint: endpoint.clone(), source };
        let mut dial = Endpoint::from_shared(endpoint.clone())
            .map_err(fault)?
            .connect_timeout(CONNECT)
            .tcp_keepalive(Some(TCP_KEEPALIVE))
            .tcp_nodelay(true);
        if endpoint.starts_with("https:") {
            let mut tls = TlsOptions::new();
            if let Some(ca) = ca {
                tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
            }
            if let Some((certificate, key)) = identity {
                tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            dial = dial.tls_config(tls).map_err(fault)?;
        }
        let user = user.as_ref().map(|Credentials { name, password }| {
            let password = String::from_utf8_lossy(&read(password)?).trim_end_matches(['\r', '\n']).to_owned();
            Ok((name.clone(), password))
        });
        let user = user.transpose()?;
        let channel = dial.connect_lazy();
        // etcd forgets a login that is not used for some minutes.
        let options = ConnectOptions::new().with_auto_token_refresh(true);
        let options = user.iter().fold(options, |options, (name, password)| options.with_user(name, password));
        let raw = etcd_client::Channel::Tonic(channel.clone());
        // On the heap, as all of etcd-client's calls: its futures have tens of kilobytes.
        let client = Box::pin(Client::from_channel(raw, Some(options)))
            .await
            .map_err(|source| AccessError::Connect { endpoint: endpoint.clone(), source: Box::new(source) })?;
        Ok(Connection { client, channel, user })
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, AccessError> {
    fs::read(path).map_err(|source| AccessError::File { path: path.clone(), source })
}
