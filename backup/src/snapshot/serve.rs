//! Says on a port how far a snapshot is, while it is being taken. No secrets.

use std::future::ready;

use hyper::{Method, StatusCode};
use tokio::sync::watch;

use super::Progress;
use crate::serve::{self, Answer, Port, json, text};

/// Where the agent of a Job answers.
pub const PORT: u16 = 2382;
/// The path of the progress.
pub const PATH: &str = "/progress";

/// Serves until it is dropped. A snapshot without its port is taken all the same.
pub async fn serve(port: Port, progress: watch::Receiver<Option<Progress>>) {
    let answer = move |request: hyper::Request<_>| {
        let progress = *progress.borrow();
        ready(answer(request.method(), request.uri().path(), progress))
    };
    serve::serve(port, answer).await;
}

/// What anybody is answered: it is in plain HTTP, so that it tells how far the snapshot is and nothing else, and takes nothing.
fn answer(method: &Method, path: &str, progress: Option<Progress>) -> Answer {
    match (path, method, progress) {
        (PATH, &Method::GET, Some(progress)) => json(&progress),
        (PATH, &Method::GET, None) => text(StatusCode::SERVICE_UNAVAILABLE, "nothing has come from etcd yet"),
        (PATH, _, _) => text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered"),
        (_, _, _) => text(StatusCode::NOT_FOUND, "not found"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_how_far_the_snapshot_is_and_takes_nothing() {
        let progress = Some(Progress { read: 5, total: Some(9), stored: 2 });
        let status = |method, path, progress| answer(&method, path, progress).status();
        assert_eq!(status(Method::GET, PATH, progress), StatusCode::OK);
        assert_eq!(status(Method::GET, PATH, None), StatusCode::SERVICE_UNAVAILABLE);
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD, Method::OPTIONS] {
            assert_eq!(status(method.clone(), PATH, progress), StatusCode::METHOD_NOT_ALLOWED, "{method}");
        }
        for path in ["/", "/ticket", "/metrics", "/progress/", "/v3/kv/put", ""] {
            assert_eq!(status(Method::GET, path, progress), StatusCode::NOT_FOUND, "{path}");
        }
    }
}
