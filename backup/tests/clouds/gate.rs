//! Somebody before a server of S3 or Azure who has troubles with requests, as such servers do now and then: what is not troubled,
//! the server answers. So it is the library's clients of S3 and Azure that meet them.

use std::error::Error;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Listener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use http::header::{HOST, TRANSFER_ENCODING};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::google::trouble::{Sent, Trouble, Troubles, half_of, half_sent, whole};

/// Who is behind, and by what an object is taken away there that must not be overwritten. The demand itself is signed, and stays.
enum Behind {
    /// It keeps its buckets as folders in that one.
    S3 { server: SocketAddr, buckets: PathBuf },
    /// This token is enough to delete.
    Azure { server: SocketAddr, token: String },
}

impl Behind {
    fn server(&self) -> SocketAddr {
        match self {
            Self::S3 { server, buckets: _ } | Self::Azure { server, token: _ } => *server,
        }
    }

    /// What it says when it has too much to do, as <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html> has it, and
    /// <https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes>.
    fn overload(&self) -> &'static str {
        match self {
            Self::S3 { .. } => "SlowDown",
            Self::Azure { .. } => "ServerBusy",
        }
    }

    /// What another put on its way is called there. Azure documents no such thing: of two puts that only create one is done, and the
    /// other is told that it exists (`BlobAlreadyExists`).
    fn conflict(&self) -> Option<&'static str> {
        match self {
            Self::S3 { .. } => Some("ConditionalRequestConflict"),
            Self::Azure { .. } => None,
        }
    }

    /// Takes away what is at this path, if anything is.
    async fn take_away(&self, path: &str) -> Result<(), Fault> {
        match self {
            Self::S3 { server: _, buckets } => match fs::remove_file(buckets.join(path.trim_start_matches('/'))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
                Ok(()) | Err(_) => Ok(()),
            },
            Self::Azure { server, token } => {
                let question = Request::delete(format!("{path}?{token}")).header(HOST, server.to_string());
                let answer = ask(question.body(Full::default())?, *server).await?;
                match answer.status() {
                    StatusCode::ACCEPTED | StatusCode::NOT_FOUND => Ok(()),
                    status => Err(format!("{path} is not deleted: {status}").into()),
                }
            }
        }
    }
}

type Fault = Box<dyn Error + Send + Sync>;

/// Whoever stands there, until it is dropped.
pub struct Gate {
    address: SocketAddr,
    behind: Arc<Behind>,
    troubles: Arc<Troubles>,
    runtime: Option<Runtime>,
}

impl Gate {
    /// Before the server at this address, which keeps its buckets as folders in that one; at an address of the machine's. Without
    /// trouble, for now.
    pub fn before(s3: SocketAddr, buckets: &Path, ip: Ipv4Addr) -> Self {
        Self::begin(Behind::S3 { server: s3, buckets: buckets.to_owned() }, ip)
    }

    /// The same before a server of Azure, with a token by which all can be deleted that is put there.
    pub fn before_azure(azure: SocketAddr, token: String, ip: Ipv4Addr) -> Self {
        Self::begin(Behind::Azure { server: azure, token }, ip)
    }

    fn begin(behind: Behind, ip: Ipv4Addr) -> Self {
        let listener = Listener::bind((ip, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, troubles) = (listener.local_addr().unwrap(), Arc::new(Troubles::new(Trouble::None)));
        let runtime = Runtime::new().unwrap();
        // A socket that listens belongs to a runtime.
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener).unwrap()
        };
        let behind = Arc::new(behind);
        runtime.spawn(serve(listener, Arc::clone(&behind), Arc::clone(&troubles)));
        Self { address, behind, troubles, runtime: Some(runtime) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether a server such as the one behind has this trouble at all.
    pub fn knows(&self, trouble: Trouble) -> bool {
        trouble != Trouble::Conflict || self.behind.conflict().is_some()
    }

    /// From now on requests meet this, and none has met it yet.
    pub fn turn_to(&self, trouble: Trouble) {
        self.troubles.turn_to(trouble);
    }

    /// Does now what was sent while each put came late. It tells how each ended.
    pub fn carry_out_late(&self) -> Vec<StatusCode> {
        let (late, server) = (self.troubles.take_late(), self.behind.server());
        let (ended, all) = mpsc::channel();
        self.runtime.as_ref().unwrap().spawn(async move {
            for request in late {
                ended.send(ask(request.map(Full::new), server).await.unwrap().status()).unwrap();
            }
        });
        all.into_iter().collect()
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

async fn serve(listener: TcpListener, behind: Arc<Behind>, troubles: Arc<Troubles>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (behind, troubles) = (Arc::clone(&behind), Arc::clone(&troubles));
        let answer = service_fn(move |request| {
            let (behind, troubles) = (Arc::clone(&behind), Arc::clone(&troubles));
            async move { sent(request, &behind, &troubles).await }
        });
        tokio::spawn(server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// What is sent to a request. On an error the connection is closed.
async fn sent(request: Request<Incoming>, behind: &Behind, troubles: &Troubles) -> Result<Sent, Fault> {
    let trouble = troubles.of(&request);
    match trouble {
        Trouble::Cut => return Err(half_of(request.into_body()).await.into()),
        Trouble::Late => return Err(troubles.keep(in_one_piece(request).await?).into()),
        Trouble::Refused | Trouble::Overloaded => {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, behind.overload());
        }
        // Whoever turns to it has to ask before whether it is known.
        Trouble::Conflict => return refusal(StatusCode::CONFLICT, behind.conflict().unwrap()),
        // What it must not overwrite is not there when it looks.
        Trouble::Overwrites => behind.take_away(request.uri().path()).await?,
        Trouble::None | Trouble::AnswerLost | Trouble::HalfRead | Trouble::NeverRead => (),
    }
    // The server checks what is signed, and so is sent each request as it came.
    let answer = ask(in_one_piece(request).await?.map(Full::new), behind.server()).await?;
    match trouble {
        // What it refuses is no object.
        _ if !answer.status().is_success() => Ok(whole(answer)),
        Trouble::AnswerLost => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        Trouble::HalfRead | Trouble::NeverRead => Ok(half_sent(answer)),
        Trouble::None
        | Trouble::Refused
        | Trouble::Overloaded
        | Trouble::Cut
        | Trouble::Late
        | Trouble::Conflict
        | Trouble::Overwrites => Ok(whole(answer)),
    }
}

/// Both have it in this form.
fn refusal(status: StatusCode, code: &str) -> Result<Sent, Fault> {
    let document = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code></Error>");
    Ok(whole(Response::builder().status(status).body(Full::from(document))?))
}

async fn in_one_piece(request: Request<Incoming>) -> Result<Request<Bytes>, Fault> {
    let (head, body) = request.into_parts();
    Ok(Request::from_parts(head, body.collect().await?.to_bytes()))
}

/// What the server answers, in one piece.
async fn ask(request: Request<Full<Bytes>>, server: SocketAddr) -> Result<Response<Full<Bytes>>, Fault> {
    let stream = TokioIo::new(TcpStream::connect(server).await?);
    let (mut sender, connection) = client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    let (mut head, body) = sender.send_request(request).await?.into_parts();
    // It is in one piece by now.
    head.headers.remove(TRANSFER_ENCODING);
    Ok(Response::from_parts(head, Full::new(body.collect().await?.to_bytes())))
}
