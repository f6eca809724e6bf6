//! Says on a port how far a snapshot is, while it is being taken. No secrets.

use std::future::ready;

use hyper::{Method, StatusCode};
use tokio::sync::watch;

use super::Progress;
use crate::serve::{self, Port, json, text};

/// Where the agent of a Job answers.
pub const PORT: u16 = 2382;
/// The path of the progress.
pub const PATH: &str = "/progress";

/// Serves until it is dropped. A snapshot without its port is taken all the same.
pub async fn serve(port: Port, progress: watch::Receiver<Option<Progress>>) {
    let answer = move |request: hyper::Request<_>| {
        let progress = *progress.borrow();
        ready(match (request.uri().path(), request.method(), progress) {
            (PATH, &Method::GET, Some(progress)) => json(&progress),
            (PATH, &Method::GET, None) => text(StatusCode::SERVICE_UNAVAILABLE, "nothing has come from etcd yet"),
            (PATH, _, _) => text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered"),
            (_, _, _) => text(StatusCode::NOT_FOUND, "not found"),
        })
    };
    serve::serve(port, answer).await;
}
