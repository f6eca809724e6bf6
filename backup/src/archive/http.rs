//! What an archive answers on its port: its report, its metrics, and whether it is ready. No secrets.

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::board::Board;
use super::status::PATH;
use crate::serve::{self, Answer, Port, json, of, text};

/// The form of metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until it is dropped. An archive without its port still records.
pub async fn serve(port: Port, board: Board) {
    serve::serve(port, move |request| std::future::ready(answer(&request, &board))).await;
}

fn answer(request: &Request<Incoming>, board: &Board) -> Answer {
    match (request.uri().path(), request.method()) {
        (PATH, &Method::GET) => json(&board.read()),
        ("/metrics", &Method::GET) => match board.metrics() {
            Ok(metrics) => of(StatusCode::OK, OPEN_METRICS, metrics.into()),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "failed to write the metrics"),
        },
        ("/livez", &Method::GET) => text(StatusCode::OK, "it runs"),
        ("/readyz", &Method::GET) => ready(board),
        (PATH | "/metrics" | "/livez" | "/readyz", _) => text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered"),
        _ => text(StatusCode::NOT_FOUND, "not found"),
    }
}

/// Ready is who records or could go on at once: it has a generation, and nothing is wrong.
fn ready(board: &Board) -> Answer {
    let report = board.read();
    match (report.fault, report.generation) {
        (Some(fault), _) => {
            text(StatusCode::SERVICE_UNAVAILABLE, format!("{}: {}", fault.reason.as_str(), fault.message))
        }
        (None, None) => text(StatusCode::SERVICE_UNAVAILABLE, "there is no full snapshot yet"),
        (None, Some(generation)) => text(StatusCode::OK, generation),
    }
}
