//! HTTP/1.1 to one address: one connection, a few requests, each within a deadline. In the clear, or as a member is dialled.
//! No pool, no redirects.

use std::{io, net::SocketAddr, time::Duration};

use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
    rt::{Read, Write},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::access::{Access, Endpoint};

/// How long one request may take, from the connection to the last byte. In a cluster's network they take milliseconds;
/// a paused process or a node that is cut off never answers, and a round of looking waits for the slowest.
pub const DEADLINE: Duration = Duration::from_millis(500);

/// The most that is kept of an answer, in bytes. The launcher's report has some hundred, a member list a few thousand.
const BODY_LIMIT: usize = 256 * 1024;

/// Why a request got no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection came about, or no handshake.
    #[error("failed to connect to {addr}")]
    Connect {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The other side does not speak HTTP, or the connection broke.
    #[error("failed to exchange HTTP with {addr}")]
    Exchange {
        /// With whom.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: hyper::Error,
    },
    /// The request can't be written: its path is none.
    #[error("failed to write a request for {path:?}")]
    Request {
        /// The path.
        path: String,
        /// Why.
        #[source]
        source: http::Error,
    },
    /// No whole answer in time.
    #[error("failed to get an answer from {addr} within {deadline:?}")]
    TimedOut {
        /// From whom.
        addr: SocketAddr,
        /// How long was waited.
        deadline: Duration,
    },
    /// The answer is longer than will be read.
    #[error("failed to read the answer of {addr}: it has more than {limit} bytes")]
    TooLong {
        /// Whose.
        addr: SocketAddr,
        /// How many bytes are read.
        limit: usize,
    },
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// `GET path`, on a connection of its own, within [`DEADLINE`].
pub async fn get(addr: SocketAddr, path: &str) -> Result<Answer, HttpError> {
    alone(addr, Method::GET, path, Bytes::new()).await
}

/// `POST path` with this body, on a connection of its own, within [`DEADLINE`].
pub async fn post(addr: SocketAddr, path: &str, body: impl Into<Bytes>) -> Result<Answer, HttpError> {
    alone(addr, Method::POST, path, body.into()).await
}

/// `GET path` of what stands at this endpoint and lets in whom the member itself does, within [`DEADLINE`].
pub async fn get_as(access: &Access, endpoint: &Endpoint, path: &str) -> Result<Answer, HttpError> {
    let addr = endpoint.addr;
    let asked = async {
        let stream = access.connect(endpoint).await.map_err(|source| HttpError::Connect { addr, source })?;
        Connection::over(addr, stream).await?.ask(Method::GET, path, Bytes::new()).await
    };
    within(addr, asked).await
}

async fn alone(addr: SocketAddr, method: Method, path: &str, body: Bytes) -> Result<Answer, HttpError> {
    within(addr, async { Connection::open(addr).await?.ask(method, path, body).await }).await
}

/// Bounds what is done with one address by [`DEADLINE`].
pub(crate) async fn within<T>(
    addr: SocketAddr,
    work: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    timeout(DEADLINE, work).await.unwrap_or(Err(HttpError::TimedOut { addr, deadline: DEADLINE }))
}

/// One connection, for several requests one after the other. It has no deadline of its own: wrap it in [`within`].
pub(crate) struct Connection {
    addr: SocketAddr,
    sender: http1::SendRequest<Full<Bytes>>,
    /// Drives the connection; ends with it.
    _driver: JoinSet<()>,
}

impl Connection {
    pub(crate) async fn open(addr: SocketAddr) -> Result<Self, HttpError> {
        let stream = TcpStream::connect(addr).await.map_err(|source| HttpError::Connect { addr, source })?;
        // Requests are single small packets; holding them back for more gains nothing. Without the option it works too.
        let _ = stream.set_nodelay(true);
        Self::over(addr, TokioIo::new(stream)).await
    }

    /// Over a connection that has come about.
    async fn over(addr: SocketAddr, stream: impl Read + Write + Unpin + Send + 'static) -> Result<Self, HttpError> {
        let (sender, connection) =
            http1::handshake(stream).await.map_err(|source| HttpError::Exchange { addr, source })?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Its end shows in the request that it cut short.
            let _ = connection.await;
        });
        Ok(Self { addr, sender, _driver: driver })
    }

    /// A request whose answer is read whole.
    pub(crate) async fn ask(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answer, HttpError> {
        let answer = self.send(method, path, body).await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let mut body = Vec::new();
        self.read(answer.into_body(), BODY_LIMIT, |bytes| body.extend_from_slice(bytes)).await?;
        Ok(Answer { status, headers, body: body.into() })
    }

    /// A request whose answer is still to be read: by [`Connection::read`], else the connection is of no more use.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, HttpError> {
        let addr = self.addr;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, addr.to_string())
            .body(Full::new(body))
            .map_err(|source| HttpError::Request { path: path.to_owned(), source })?;
        self.sender.ready().await.map_err(|source| HttpError::Exchange { addr, source })?;
        self.sender.send_request(request).await.map_err(|source| HttpError::Exchange { addr, source })
    }

    /// Reads a body as it comes, piece by piece, up to `limit` bytes.
    pub(crate) async fn read(
        &mut self,
        mut body: Incoming,
        limit: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), HttpError> {
        let addr = self.addr;
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|source| HttpError::Exchange { addr, source })?;
            let Ok(bytes) = frame.into_data() else { continue };
            read += bytes.len();
            if read > limit {
                return Err(HttpError::TooLong { addr, limit });
            }
            take(&bytes);
        }
        Ok(())
    }
}
