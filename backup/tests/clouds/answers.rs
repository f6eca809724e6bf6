//! A server in this process that answers each request as it is told: of the services that clouds have for credentials no more
//! is needed.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub type Answer = Response<Full<Bytes>>;

/// A server's certificate with its key, in PEM.
pub struct Shown<'a> {
    pub certificate: &'a str,
    pub key: &'a str,
}

/// The server, until it is dropped.
pub struct Answers {
    pub url: String,
    pub port: u16,
    runtime: Option<Runtime>,
}

impl Answers {
    /// The answer is made of a request's head and its body.
    pub fn start(answer: impl Fn(&Parts, &[u8]) -> Answer + Send + Sync + 'static) -> Self {
        Self::begin(Ipv4Addr::LOCALHOST, None, answer)
    }

    /// The same over TLS at this address of the machine's.
    pub fn over_tls(
        ip: Ipv4Addr,
        shown: &Shown<'_>,
        answer: impl Fn(&Parts, &[u8]) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::begin(ip, Some(acceptor(shown)), answer)
    }

    fn begin(
        ip: Ipv4Addr,
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&Parts, &[u8]) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((ip, 0))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = listener.local_addr().unwrap();
        let runtime = Runtime::new().unwrap();
        let answer = Arc::new(answer);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, answer) = (tls.clone(), Arc::clone(&answer));
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, answer).await,
                        // Who does not trust the certificate goes away.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, answer).await;
                            }
                        }
                    }
                });
            }
        });
        Self { url: format!("{scheme}://{address}"), port: address.port(), runtime: Some(runtime) }
    }
}

/// Answers what comes over one connection.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    answer: Arc<impl Fn(&Parts, &[u8]) -> Answer + Send + Sync + 'static>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = Arc::clone(&answer);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, hyper::Error>(answer(&head, &body))
        }
    });
    // A client may hang up whenever it likes.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

fn acceptor(shown: &Shown<'_>) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_slice(shown.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
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
    with_status(StatusCode::FORBIDDEN, document)
}

pub fn with_status(status: StatusCode, document: String) -> Answer {
    let mut answer = Response::new(Full::from(document));
    *answer.status_mut() = status;
    answer
}
