//! One request of HTTP/1.1 over a connection that is there, and its whole answer. It neither dials nor judges.

use anyhow::Result;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

/// Asks this host: the status and the body.
pub(super) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    (method, path, body): (Method, &str, Bytes),
) -> Result<(u16, String)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with what was asked.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::builder().method(method).uri(path).header(header::HOST, host).body(Full::new(body))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
