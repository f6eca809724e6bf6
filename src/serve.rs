//! What the operator serves over HTTP: whether it lives, whether it is ready, and its metrics. Nothing can be changed
//! through it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::{Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing::get};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::lists::Lists;
use crate::metrics::Metrics;

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address can't be had.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The server stopped.
    #[error("failed to serve")]
    Serve(#[source] std::io::Error),
}

/// What the handlers look at.
#[derive(Clone)]
struct Shown {
    metrics: Arc<Metrics>,
    lists: Arc<[Arc<Lists>]>,
    hindrance: watch::Receiver<Option<String>>,
}

/// Opens the address. An unspecified IPv6 address falls back to IPv4: a node may have been started without IPv6.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
            TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
        }
        Err(source) => Err(Error::Listen { address, source }),
    }
}

/// Serves until `stop` resolves. It is ready once all lists are there; an operator that waits for the Lease is
/// ready as well, else a Deployment of two would never be rolled out. `hindrance` is what keeps it from asking for them.
pub async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    lists: Arc<[Arc<Lists>]>,
    hindrance: watch::Receiver<Option<String>>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let router = router(Shown { metrics, lists, hindrance });
    axum::serve(listener, router).with_graceful_shutdown(stop).await.map_err(Error::Serve)
}

fn router(shown: Shown) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(shown)
}

async fn readyz(State(shown): State<Shown>) -> (StatusCode, String) {
    if let Some(hindrance) = shown.hindrance.borrow().as_ref() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("waits for Kubernetes: {hindrance}"));
    }
    let missing: Vec<_> = shown.lists.iter().filter_map(|lists| lists.missing()).collect();
    if missing.is_empty() {
        return (StatusCode::OK, "ok".to_owned());
    }
    let text = format!("waits for the lists of {}; its log tells whether they are refused", missing.join("; "));
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn metrics(State(shown): State<Shown>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match shown.metrics.render() {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn it_is_ready_once_the_lists_are_there_and_names_those_that_are_not() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let lists: Arc<[_]> = Arc::new([Arc::new(Lists::new(None, ["CronJob".into()]))]);
        let (hinder, hindrance) = watch::channel(Some("no answer in time".to_owned()));
        let never = std::future::pending();
        let server = tokio::spawn(serve(listener, Arc::new(Metrics::new()), lists.clone(), hindrance, never));
        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 200"), "a restart would not bring Kubernetes back");
        let hindered = ask(address, "/readyz").await;
        assert!(hindered.starts_with("HTTP/1.1 503") && hindered.ends_with("waits for Kubernetes: no answer in time"));
        hinder.send_replace(None);
        let waiting = ask(address, "/readyz").await;
        assert!(waiting.starts_with("HTTP/1.1 503") && waiting.contains("the lists of CronJob;"), "{waiting}");
        lists[0].has("CronJob");
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("quorate_leader 0"));
        server.abort();
    }
}
