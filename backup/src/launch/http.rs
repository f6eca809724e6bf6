//! What the launcher answers on the metrics port until etcd takes it over: its report, the probes, and the inbox for a
//! pushed ticket. Plain HTTP, no secrets, bounded in connections, bytes and time.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::board::Board;
use super::inbox::{Inbox, Outcome};
use super::{PATH, report::Report};
use crate::ticket_push;

/// How soon a port that is still taken is tried again: by an etcd of the last container that has not ended yet.
const BIND_PERIOD: Duration = Duration::from_millis(500);
/// More callers than the kubelet, the operator and a few curious ones wait in the listener's queue.
const MAX_CONNECTIONS: usize = 32;
/// A caller that has not sent its request and taken its answer by then is cut off.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(5);

type Answer = Response<Full<Bytes>>;

/// What callers may ask for and bring to.
#[derive(Debug, Clone)]
pub struct Desk {
    /// The report.
    pub board: Board,
    /// Where a pushed ticket goes.
    pub inbox: Inbox,
}

/// Serves until it is dropped.
pub async fn serve(address: SocketAddr, desk: Desk) {
    let listener = listen(address).await;
    if let Ok(address) = listener.local_addr() {
        tracing::info!("listening on {address}");
    }
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, desk.clone(), slot));
            }
            Err(fault) => {
                tracing::debug!("failed to accept a connection: {fault}");
                sleep(BIND_PERIOD).await;
            }
        }
    }
}

/// Listens as soon as the port is free. A launcher without its port still starts etcd.
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

async fn converse(stream: TcpStream, desk: Desk, _slot: OwnedSemaphorePermit) {
    let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request, &desk).await) });
    // No caller is kept: an idle connection would only be cut when etcd starts.
    let mut server = http1::Builder::new();
    let connection = server.timer(TokioTimer::new()).keep_alive(false).serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(fault)) = timeout(CONNECTION_DEADLINE, connection).await {
        tracing::debug!("a connection failed: {fault}");
    }
}

async fn answer(request: Request<Incoming>, desk: &Desk) -> Answer {
    let path = request.uri().path();
    match (path, request.method()) {
        (PATH, &Method::GET) => report(&desk.board.read()),
        ("/livez", &Method::GET) => text(StatusCode::OK, "the launcher is waiting"),
        ("/readyz", &Method::GET) => text(StatusCode::SERVICE_UNAVAILABLE, "etcd has not been started"),
        (ticket_push::PATH, &Method::POST) => take(request.into_body(), &desk.inbox).await,
        (PATH | "/livez" | "/readyz", _) => text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here"),
        (ticket_push::PATH, _) => text(StatusCode::METHOD_NOT_ALLOWED, "only POST is answered here"),
        _ => text(StatusCode::NOT_FOUND, "not found"),
    }
}

/// Reads a pushed ticket and puts it into the inbox.
async fn take(body: Incoming, inbox: &Inbox) -> Answer {
    let body = match Limited::new(body, ticket_push::MAX_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(fault) if fault.is::<LengthLimitError>() => {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "the pushed ticket is too long");
        }
        Err(_) => return text(StatusCode::BAD_REQUEST, "the body broke off"),
    };
    match inbox.offer(&body) {
        Outcome::Taken => {
            tracing::info!("took a pushed ticket");
            text(StatusCode::ACCEPTED, "taken")
        }
        Outcome::Off => text(StatusCode::NOT_FOUND, "this launcher knows no key for pushed tickets"),
        Outcome::Malformed(fault) => text(StatusCode::BAD_REQUEST, format!("not a pushed ticket: {fault}")),
        Outcome::Forbidden(fault) => text(StatusCode::FORBIDDEN, fault.to_string()),
        Outcome::TooLate => text(StatusCode::CONFLICT, "there is a ticket already"),
    }
}

fn report(report: &Report) -> Answer {
    match serde_json::to_vec(report) {
        Ok(body) => of(StatusCode::OK, "application/json", body.into()),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "failed to write the report"),
    }
}

/// One line.
fn text(status: StatusCode, line: impl Into<String>) -> Answer {
    let mut line = line.into();
    line.push('\n');
    of(status, "text/plain; charset=utf-8", line.into())
}

fn of(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    answer
}
