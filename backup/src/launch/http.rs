//! What the launcher answers on the metrics port until etcd takes it over: its report, the probes, and the inbox for a
//! pushed ticket. Plain HTTP, no secrets, bounded in bytes.

use std::net::SocketAddr;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::PATH;
use super::board::Board;
use super::inbox::{Inbox, Outcome};
use crate::serve::{self, Answer, Port, json, text};
use crate::ticket_push;

/// What callers may ask for and bring to.
#[derive(Debug, Clone)]
pub struct Desk {
    /// The report.
    pub board: Board,
    /// Where a pushed ticket goes.
    pub inbox: Inbox,
}

/// Serves until it is dropped. A launcher without its port still starts etcd.
pub async fn serve(address: SocketAddr, desk: Desk) {
    serve::serve(Port::open(address), move |request| answer(request, desk.clone())).await;
}

async fn answer(request: Request<Incoming>, desk: Desk) -> Answer {
    let path = request.uri().path();
    match (path, request.method()) {
        (PATH, &Method::GET) => json(&desk.board.read()),
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
