//! Somebody before an S3 server who has troubles with requests, as such servers do now and then: what is not troubled, the server
//! answers. So it is the library's client of S3 that meets them.

use std::error::Error;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Listener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::header::TRANSFER_ENCODING;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::google::trouble::{Sent, Trouble, Troubles, half_of, half_sent, whole};

/// Whoever stands there, until it is dropped.
pub struct Gate {
    address: SocketAddr,
    troubles: Arc<Troubles>,
    runtime: Option<Runtime>,
}

impl Gate {
    /// Before the server at this address, which keeps its buckets as folders in that one; at an address of the machine's. Without
    /// trouble, for now.
    pub fn before(s3: SocketAddr, buckets: &Path, ip: Ipv4Addr) -> Self {
        let listener = Listener::bind((ip, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, troubles) = (listener.local_addr().unwrap(), Arc::new(Troubles::new(Trouble::None)));
        let runtime = Runtime::new().unwrap();
        // A socket that listens belongs to a runtime.
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener).unwrap()
        };
        runtime.spawn(serve(listener, (s3, buckets.to_owned()), Arc::clone(&troubles)));
        Self { address, troubles, runtime: Some(runtime) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on requests meet this, and none has met it yet.
    pub fn turn_to(&self, trouble: Trouble) {
        self.troubles.turn_to(trouble);
    }

    /// How many requests have met it.
    pub fn troubled_requests(&self) -> usize {
        self.troubles.count()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

async fn serve(listener: TcpListener, (s3, buckets): (SocketAddr, PathBuf), troubles: Arc<Troubles>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (troubles, buckets) = (Arc::clone(&troubles), buckets.clone());
        let answer = service_fn(move |request| {
            let (troubles, buckets) = (Arc::clone(&troubles), buckets.clone());
            async move { sent(request, (s3, &buckets), &troubles).await }
        });
        tokio::spawn(server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// What is sent to a request. On an error the connection is closed.
async fn sent(
    request: Request<Incoming>,
    (s3, buckets): (SocketAddr, &Path),
    troubles: &Troubles,
) -> Result<Sent, Box<dyn Error + Send + Sync>> {
    let trouble = troubles.of(&request);
    match trouble {
        Trouble::Cut => return Err(half_of(request.into_body()).await.into()),
        Trouble::Refused | Trouble::Overloaded => return refusal(StatusCode::SERVICE_UNAVAILABLE, "SlowDown"),
        Trouble::Conflict => return refusal(StatusCode::CONFLICT, "ConditionalRequestConflict"),
        // What it must not overwrite is not there when it looks. The demand itself is signed, and stays.
        Trouble::Overwrites => match fs::remove_file(buckets.join(request.uri().path().trim_start_matches('/'))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => (),
        },
        Trouble::None | Trouble::AnswerLost | Trouble::HalfRead | Trouble::NeverRead => (),
    }
    let answer = pass_on(request, s3).await?;
    match trouble {
        // What it refuses is no object.
        _ if !answer.status().is_success() => Ok(whole(answer)),
        Trouble::AnswerLost => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        Trouble::HalfRead | Trouble::NeverRead => Ok(half_sent(answer)),
        Trouble::None
        | Trouble::Refused
        | Trouble::Overloaded
        | Trouble::Cut
        | Trouble::Conflict
        | Trouble::Overwrites => Ok(whole(answer)),
    }
}

/// As <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html> has it.
fn refusal(status: StatusCode, code: &str) -> Result<Sent, Box<dyn Error + Send + Sync>> {
    let document = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code></Error>");
    Ok(whole(Response::builder().status(status).body(Full::from(document))?))
}

/// What the server answers, as it signs and reads each request as it came.
async fn pass_on(
    request: Request<Incoming>,
    s3: SocketAddr,
) -> Result<Response<Full<Bytes>>, Box<dyn Error + Send + Sync>> {
    let (head, body) = request.into_parts();
    let body = Full::new(body.collect().await?.to_bytes());
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(TcpStream::connect(s3).await?)).await?;
    tokio::spawn(connection);
    let (mut head, body) = sender.send_request(Request::from_parts(head, body)).await?.into_parts();
    // It is in one piece by now.
    head.headers.remove(TRANSFER_ENCODING);
    Ok(Response::from_parts(head, Full::new(body.collect().await?.to_bytes())))
}
