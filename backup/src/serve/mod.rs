//! Serves HTTP to the kubelet, the operator and a few curious ones: small answers, no secrets, bounded in connections and
//! time. In the clear, or behind a lock to those who show a certificate. What is answered is decided elsewhere.

mod lock;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

pub use lock::{Lock, LockError};

/// How soon a port that is still taken is tried again: by a process of the last container that has not ended yet.
const BIND_PERIOD: Duration = Duration::from_millis(500);
/// More callers than the kubelet, the operator and a few curious ones wait in the listener's queue.
const MAX_CONNECTIONS: usize = 32;
/// A stranger has a place among the callers for no longer than this.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(1);
/// A caller that has not shown itself, sent its request and taken its answer by then is cut off.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(5);

/// What a caller gets.
pub type Answer = Response<Full<Bytes>>;

/// Where is served, and to whom.
#[derive(Debug)]
pub struct Port {
    /// The address to listen on.
    pub address: SocketAddr,
    /// What callers have to show. `None`: nothing, and all is said in the clear.
    pub lock: Option<Lock>,
}

impl Port {
    /// Open to all.
    pub const fn open(address: SocketAddr) -> Self {
        Self { address, lock: None }
    }
}

/// Serves until it is dropped. A port that can't be had is tried for again and again.
pub async fn serve<F>(port: Port, answer: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static)
where
    F: Future<Output = Answer> + Send + 'static,
{
    let Port { address, lock } = port;
    let listener = listen(address).await;
    if let Ok(address) = listener.local_addr() {
        tracing::info!("listening on {address}");
    }
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (answer, lock) = (Arc::new(answer), lock.map(Arc::new));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (answer, lock) = (answer.clone(), lock.clone());
                tokio::spawn(async move {
                    // What came of it is told; the slot is free again in any case.
                    let _ = timeout(CONNECTION_DEADLINE, receive(stream, lock, &*answer)).await;
                    drop(slot);
                });
            }
            Err(fault) => {
                tracing::debug!("failed to accept a connection: {fault}");
                sleep(BIND_PERIOD).await;
            }
        }
    }
}

/// Listens as soon as the port is free.
async fn listen(address: SocketAddr) -> TcpListener {
    let mut told = false;
    loop {
        match bind(address).await {
            Ok(listener) => return listener,
            Err(fault) if !told => {
                tracing::warn!("failed to listen on {address}, trying on: {fault}");
                told = true;
            }
            Err(_) => (),
        }
        sleep(BIND_PERIOD).await;
    }
}

/// Binds; a node without IPv6 can't bind `[::]`, which means any address.
async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(fault)
            if fault.kind() != io::ErrorKind::AddrInUse && address.is_ipv6() && address.ip().is_unspecified() =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
}

/// Lets a caller in, or not.
async fn receive<F>(stream: TcpStream, lock: Option<Arc<Lock>>, answer: &impl Fn(Request<Incoming>) -> F)
where
    F: Future<Output = Answer>,
{
    let Some(lock) = lock else { return converse(stream, answer).await };
    match timeout(HANDSHAKE_DEADLINE, lock.opens(stream)).await {
        Ok(Ok(stream)) => converse(stream, answer).await,
        Ok(Err(fault)) => lock.tell(&fault),
        Err(_) => tracing::debug!("a caller has not shown itself within {HANDSHAKE_DEADLINE:?}"),
    }
}

async fn converse<F>(stream: impl AsyncRead + AsyncWrite + Unpin, answer: &impl Fn(Request<Incoming>) -> F)
where
    F: Future<Output = Answer>,
{
    let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
    // No caller is kept: an idle connection would only be cut when the process ends.
    let mut server = http1::Builder::new();
    let connection = server.timer(TokioTimer::new()).keep_alive(false).serve_connection(TokioIo::new(stream), service);
    if let Err(fault) = connection.await {
        tracing::debug!("a connection failed: {fault}");
    }
}

/// One line.
pub fn text(status: StatusCode, line: impl Into<String>) -> Answer {
    let mut line = line.into();
    line.push('\n');
    of(status, "text/plain; charset=utf-8", line.into())
}

/// A value as JSON.
pub fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => of(StatusCode::OK, "application/json", body.into()),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "failed to write the report"),
    }
}

/// An answer of this kind.
pub fn of(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
