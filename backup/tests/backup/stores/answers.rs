//! A server in this process that answers each request as it is told: of the services that clouds have for credentials no more
//! is needed.

use std::net::TcpListener;
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::runtime::Runtime;

pub type Answer = Response<Full<Bytes>>;

/// The server, until it is dropped.
pub struct Answers {
    pub url: String,
    runtime: Option<Runtime>,
}

impl Answers {
    /// The answer is made of a request's head and its body.
    pub fn start(answer: impl Fn(&Parts, &[u8]) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let runtime = Runtime::new().unwrap();
        let answer = Arc::new(answer);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = Arc::clone(&answer);
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = Arc::clone(&answer);
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await?.to_bytes();
                        Ok::<_, hyper::Error>(answer(&head, &body))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { url, runtime: Some(runtime) }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

pub fn document(content: &serde_json::Value) -> Answer {
    Response::new(Full::from(content.to_string()))
}

/// A refusal, in the words of S3 and Azure.
pub fn forbidden(code: &str) -> Answer {
    let document = format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>{code}</Code></Error>");
    let mut answer = Response::new(Full::from(document));
    *answer.status_mut() = StatusCode::FORBIDDEN;
    answer
}
