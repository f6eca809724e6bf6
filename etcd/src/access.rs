//! How members are dialled: in plain text, or with the credentials of their cluster. It opens no connection by itself.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tonic::transport::Channel;
use tower::service_fn;

use crate::{credentials::Credentials, error::CallError};

/// How long a connection may take to come about, with its handshake. In a cluster's network it takes some milliseconds;
/// a pod whose address is gone never answers.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);

/// After how long without a byte the kernel asks whether the other side is still there. HTTP/2 pings are no way to find
/// that out: etcd takes pings without an open stream for an attack and closes the connection (grpc-go's enforcement
/// policy, `PermitWithoutStream` is false in etcd's `embed/etcd.go`).
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a member serves clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// What is dialled.
    pub addr: SocketAddr,
    /// The host name that its certificate has to carry, and that it is called by.
    pub host: String,
}

/// What it takes to be let in by the members of one cluster.
#[derive(Clone, Debug)]
pub struct Access(Transport);

#[derive(Clone, Debug)]
enum Transport {
    Plaintext,
    Tls(Credentials),
}

impl Access {
    /// No certificates.
    pub const fn plaintext() -> Self {
        Self(Transport::Plaintext)
    }

    /// With these credentials, as they are whenever a connection is made.
    pub const fn tls(credentials: Credentials) -> Self {
        Self(Transport::Tls(credentials))
    }

    /// Whether it is the same access, and not one of another cluster or of an earlier one of that name.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Transport::Plaintext, Transport::Plaintext) => true,
            (Transport::Tls(one), Transport::Tls(other)) => one.is_same(other),
            (Transport::Plaintext, Transport::Tls(_)) | (Transport::Tls(_), Transport::Plaintext) => false,
        }
    }

    /// A channel to one member, which dials at the first call and again whenever the connection is lost.
    pub(crate) fn channel(&self, endpoint: &Endpoint) -> Result<Channel, CallError> {
        let Endpoint { addr, host } = endpoint;
        let unusable = || CallError::Host { host: host.clone() };
        let (scheme, way) = match &self.0 {
            Transport::Plaintext => ("http", Way::Plain),
            Transport::Tls(credentials) => ("https", Way::Tls(credentials.clone(), name(host).ok_or_else(unusable)?)),
        };
        let named = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.clone() };
        let uri = |scheme: &str| {
            let uri = format!("{scheme}://{named}:{}", addr.port()).parse::<Uri>().ok();
            uri.filter(|uri| !host.is_empty() && uri.host() == Some(&named) && uri.path() == "/").ok_or_else(unusable)
        };
        // tonic itself would do the handshake for `https`. The member is told how it was reached all the same: Go's server
        // hides the client's certificate, which names the user, from a request that calls itself `http`.
        let (dialled, origin) = (uri("http")?, uri(scheme)?);
        let endpoint = tonic::transport::Endpoint::from(dialled).origin(origin).connect_timeout(CONNECT_DEADLINE);
        let addr = *addr;
        Ok(endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| dial(addr, way.clone()))))
    }

    /// A connection over which HTTP/1.1 is spoken, to what answers at this endpoint as the member does.
    pub(crate) async fn connect(&self, endpoint: &Endpoint) -> io::Result<TokioIo<Box<dyn Stream>>> {
        let Endpoint { addr, host } = endpoint;
        let unusable = || io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is no host"));
        let tls = match &self.0 {
            Transport::Plaintext => None,
            Transport::Tls(credentials) => Some((credentials.now_for_http_1(), name(host).ok_or_else(unusable)?)),
        };
        open(*addr, tls).await
    }
}

/// As a certificate carries it; `None` if none could.
fn name(host: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).ok()
}

/// How one member is dialled.
#[derive(Clone)]
enum Way {
    Plain,
    Tls(Credentials, ServerName<'static>),
}

/// A connection, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn dial(addr: SocketAddr, way: Way) -> io::Result<TokioIo<Box<dyn Stream>>> {
    let tls = match way {
        Way::Plain => None,
        Way::Tls(credentials, name) => Some((credentials.now(), name)),
    };
    open(addr, tls).await
}

async fn open(
    addr: SocketAddr,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
) -> io::Result<TokioIo<Box<dyn Stream>>> {
    let tcp = TcpStream::connect(addr).await?;
    tcp.set_nodelay(true)?;
    SockRef::from(&tcp).set_tcp_keepalive(&TcpKeepalive::new().with_time(TCP_KEEPALIVE))?;
    let stream: Box<dyn Stream> = match tls {
        None => Box::new(tcp),
        Some((config, name)) => Box::new(TlsConnector::from(config).connect(name, tcp).await?),
    };
    Ok(TokioIo::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(host: &str) -> Result<Channel, CallError> {
        let addr = SocketAddr::from(([127, 0, 0, 1], 2379));
        Access::plaintext().channel(&Endpoint { addr, host: host.to_owned() })
    }

    #[tokio::test]
    async fn what_is_no_host_is_refused_by_name() {
        for host in ["", "http://db-0", "a b", "db-0/x"] {
            let error = channel(host).unwrap_err();
            assert!(matches!(&error, CallError::Host { host: named } if named == host), "{host}: {error}");
        }
        for host in ["10.0.0.1", "fd00::1", "db-0.db.prod.svc"] {
            channel(host).unwrap();
        }
    }
}
