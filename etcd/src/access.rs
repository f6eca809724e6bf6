//! How members are dialled: in plain text. The one place that certificates and passwords will go through; it opens no
//! connection itself.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::error::CallError;

/// How long a TCP connection may take to come about. In a cluster's network it takes below a millisecond; a pod whose
/// address is gone never answers.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);

/// After how long without a byte the kernel asks whether the other side is still there. HTTP/2 pings are no way to find
/// that out: etcd takes pings without an open stream for an attack and closes the connection (grpc-go's enforcement
/// policy, `PermitWithoutStream` is false in etcd's `embed/etcd.go`).
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// What it takes to be let in by the members of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    transport: Transport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Plaintext,
}

impl Access {
    /// No certificates, no password.
    pub fn plaintext() -> Self {
        Self { transport: Transport::Plaintext }
    }

    /// A channel to one member, which dials at the first call and again whenever the connection is lost.
    pub(crate) fn channel(self, url: &str) -> Result<Channel, CallError> {
        let scheme = match self.transport {
            Transport::Plaintext => "http://",
        };
        let endpoint = Endpoint::from_shared(url.to_owned())
            .ok()
            .filter(|endpoint| url.starts_with(scheme) && endpoint.uri().host().is_some_and(|host| !host.is_empty()))
            .ok_or_else(|| CallError::Url { url: url.to_owned(), scheme })?;
        Ok(endpoint
            .connect_timeout(CONNECT_DEADLINE)
            .tcp_keepalive(Some(TCP_KEEPALIVE))
            .tcp_nodelay(true)
            .connect_lazy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_without_scheme_or_with_another_is_refused_by_name() {
        for url in ["10.0.0.1:2379", "https://10.0.0.1:2379", "unix:/tmp/x", "", "http://", "http://a b"] {
            let error = Access::plaintext().channel(url).unwrap_err();
            assert!(
                matches!(&error, CallError::Url { url: named, scheme: "http://" } if named == url),
                "{url}: {error}"
            );
        }
        Access::plaintext().channel("http://10.0.0.1:2379").unwrap();
        Access::plaintext().channel("http://[fd00::1]:2379").unwrap();
        Access::plaintext().channel("http://db-0.db.prod.svc:2379").unwrap();
    }
}
