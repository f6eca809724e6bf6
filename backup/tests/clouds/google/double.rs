//! A double of Google Cloud Storage in this process: of its XML API no more than the library uses, over objects in memory. It
//! shows that what is sent and understood there is what Google documents. It is no proof of what Google's own servers do: that
//! takes a bucket (`backup/tests/backup/stores/google/bucket.rs`).

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED, RANGE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use url::form_urlencoded;

use super::objects::{Condition, Fault, Listing, Object, Objects, escaped};
use super::tokens::{Account, Accounts, Right};
use super::trouble::{ONLY_CREATES, Sent, Trouble, Troubles, half_of, half_sent, whole};

/// The only bucket.
pub const BUCKET: &str = "backups";
/// What the file with the key is called.
pub const KEY_FILE: &str = "service-account.json";
/// How many connections may wait until they are taken.
const WAITING: u32 = 128;

/// A server with one bucket.
pub struct Double {
    address: SocketAddr,
    accounts: Arc<Accounts>,
    writer: Account,
    reader: Account,
    objects: Arc<Mutex<Objects>>,
    troubles: Arc<Troubles>,
    pause: Arc<Pause>,
    /// Its port, until it listens there.
    silent: Option<TcpSocket>,
    runtime: Option<Runtime>,
}

/// How long each answer is kept back.
#[derive(Debug, Default)]
struct Pause(Mutex<Duration>);

impl Pause {
    fn get(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn set(&self, pause: Duration) {
        *self.0.lock().unwrap() = pause;
    }
}

impl Double {
    pub fn start() -> Self {
        Self::on(Ipv4Addr::LOCALHOST)
    }

    /// One that listens at this address of the machine's.
    pub fn on(ip: Ipv4Addr) -> Self {
        Self::begin(ip, Trouble::None)
    }

    /// One whose requests meet this.
    pub fn troubled(trouble: Trouble) -> Self {
        Self::begin(Ipv4Addr::LOCALHOST, trouble)
    }

    fn begin(ip: Ipv4Addr, trouble: Trouble) -> Self {
        let mut double = Self::bound(ip, trouble);
        double.listen();
        double
    }

    /// One that is not there yet: whoever asks it is refused the connection.
    pub fn away() -> Self {
        Self::bound(Ipv4Addr::LOCALHOST, Trouble::None)
    }

    fn bound(ip: Ipv4Addr, trouble: Trouble) -> Self {
        let (writer, reader) = (Account::new("writer@quorate.example"), Account::new("reader@quorate.example"));
        let accounts = Arc::<Accounts>::default();
        accounts.know(&writer, Right::ReadWrite);
        accounts.know(&reader, Right::Read);
        let objects = Arc::<Mutex<Objects>>::default();
        // Bound, so that nobody else is given the port.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((ip, 0))).unwrap();
        let address = socket.local_addr().unwrap();
        let (pause, troubles) = (Arc::<Pause>::default(), Arc::new(Troubles::new(trouble)));
        let (silent, runtime) = (Some(socket), Some(Runtime::new().unwrap()));
        Self { address, accounts, writer, reader, objects, troubles, pause, silent, runtime }
    }

    /// It is there from now on.
    pub fn listen(&mut self) {
        let (Some(socket), Some(runtime)) = (self.silent.take(), &self.runtime) else { return };
        // A socket that listens belongs to a runtime.
        let _entered = runtime.enter();
        let listener = socket.listen(WAITING).unwrap();
        let ills = (Arc::clone(&self.pause), Arc::clone(&self.troubles));
        runtime.spawn(serve(listener, Arc::clone(&self.accounts), Arc::clone(&self.objects), ills));
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Revokes the key of those who write. It gives the file with the new one.
    pub fn change_key(&mut self) -> String {
        self.writer = Account::new(self.writer.email());
        self.accounts.know(&self.writer, Right::ReadWrite);
        self.writer.file()
    }

    /// How many objects have this in their names.
    pub fn count(&self, part: &str) -> usize {
        locked(&self.objects).count(part)
    }

    /// From now on its requests meet this, and none has met it yet.
    pub fn turn_to(&self, trouble: Trouble) {
        self.troubles.turn_to(trouble);
    }

    /// Does now what was sent while each put came late. It tells how each ended.
    pub fn carry_out_late(&self) -> Vec<StatusCode> {
        let carry_out = |request: Request<Bytes>| {
            let (head, body) = request.into_parts();
            answer(&head, body, &self.accounts, &self.objects).unwrap_or_else(refusal).status()
        };
        self.troubles.take_late().into_iter().map(carry_out).collect()
    }

    /// From now on it keeps each answer back for so long.
    pub fn slow_down(&self, pause: Duration) {
        self.pause.set(pause);
    }

    /// How many requests have met its trouble.
    pub fn troubled_requests(&self) -> usize {
        self.troubles.count()
    }

    /// The file with the key of those who write.
    pub fn key(&self) -> String {
        self.writer.file()
    }

    /// Who may write.
    pub fn writer(&self) -> &Account {
        &self.writer
    }

    /// Who may read and list, and nothing else.
    pub fn reader(&self) -> &Account {
        &self.reader
    }

    /// How many parts it has of uploads that are not complete.
    pub fn parts(&self) -> usize {
        locked(&self.objects).parts()
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

async fn serve(
    listener: TcpListener,
    accounts: Arc<Accounts>,
    objects: Arc<Mutex<Objects>>,
    (pause, troubles): (Arc<Pause>, Arc<Troubles>),
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (accounts, objects) = (Arc::clone(&accounts), Arc::clone(&objects));
        let (pause, troubles) = (Arc::clone(&pause), Arc::clone(&troubles));
        let answer = service_fn(move |request| {
            let (accounts, objects) = (Arc::clone(&accounts), Arc::clone(&objects));
            let (pause, troubles) = (Arc::clone(&pause), Arc::clone(&troubles));
            async move { sent(request, &accounts, &objects, (&pause, &troubles)).await }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// What is sent to a request. On an error the connection is closed.
async fn sent(
    request: Request<Incoming>,
    accounts: &Accounts,
    objects: &Mutex<Objects>,
    (pause, troubles): (&Pause, &Troubles),
) -> Result<Sent, Box<dyn Error + Send + Sync>> {
    let trouble = troubles.of(&request);
    let (mut head, body) = request.into_parts();
    if trouble == Trouble::Cut {
        return Err(half_of(body).await.into());
    }
    if trouble == Trouble::Overwrites {
        head.headers.remove(ONLY_CREATES);
    }
    let body = body.collect().await?.to_bytes();
    if trouble == Trouble::Late {
        return Err(troubles.keep(Request::from_parts(head, body)).into());
    }
    let result = match trouble {
        Trouble::Refused | Trouble::Overloaded => Err(Fault::ServiceUnavailable),
        Trouble::Conflict => Err(Fault::OperationAborted),
        _ => answer(&head, body, accounts, objects),
    };
    tokio::time::sleep(pause.get()).await;
    match (trouble, result) {
        (Trouble::AnswerLost, Ok(_)) => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        (Trouble::HalfRead | Trouble::NeverRead, Ok(answer)) => Ok(half_sent(answer)),
        (_, result) => Ok(whole(result.unwrap_or_else(refusal))),
    }
}

/// What comes of a request that meets no trouble.
fn answer(head: &Parts, body: Bytes, accounts: &Accounts, objects: &Mutex<Objects>) -> Result<Answer, Fault> {
    accounts.allow(&head.method, &head.headers)?;
    Call::new(head, body).answer(objects)
}

fn locked(objects: &Mutex<Objects>) -> MutexGuard<'_, Objects> {
    objects.lock().unwrap()
}

type Answer = Response<Full<Bytes>>;

fn refusal(fault: Fault) -> Answer {
    let (status, code, message) = fault.words();
    let document =
        format!("<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>");
    let mut answer = Response::new(Full::from(document));
    *answer.status_mut() = status;
    answer
}

fn document(element: &str, content: &str) -> Answer {
    Response::new(Full::from(format!("<?xml version='1.0' encoding='UTF-8'?><{element}>{content}</{element}>")))
}

/// A request, read.
struct Call<'a> {
    method: &'a Method,
    headers: &'a HeaderMap,
    bucket: String,
    object: Option<String>,
    query: BTreeMap<String, String>,
    body: Bytes,
}

impl<'a> Call<'a> {
    fn new(head: &'a Parts, body: Bytes) -> Self {
        let Parts { method, uri, headers, .. } = head;
        let query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        let mut words = uri.path().trim_start_matches('/').splitn(2, '/').map(decoded);
        let bucket = words.next().unwrap_or_default();
        let object = words.next().filter(|name| !name.is_empty());
        Self { method, headers, bucket, object, query: query.into_owned().collect(), body }
    }

    fn answer(self, objects: &Mutex<Objects>) -> Result<Answer, Fault> {
        if self.bucket != BUCKET {
            return Err(Fault::NoSuchBucket);
        }
        let mut objects = locked(objects);
        match (&self.object, self.query.get("uploadId")) {
            (None, _) => Ok(document("ListBucketResult", &self.listed(&objects))),
            (Some(name), None) => self.on_object(name, &mut objects),
            (Some(name), Some(upload)) => self.on_upload(name, upload, &mut objects),
        }
    }

    fn on_object(&self, name: &str, objects: &mut Objects) -> Result<Answer, Fault> {
        match self.method.as_str() {
            "GET" | "HEAD" => self.read(objects.get(name)?),
            "PUT" => {
                let condition = match self.headers.get(ONLY_CREATES) {
                    Some(generation) if generation == "0" => Condition::Missing,
                    Some(_) => return Err(Fault::NotImplemented),
                    None => Condition::None,
                };
                Ok(described(objects.put(name, self.body.clone(), condition)?))
            }
            "DELETE" => objects.delete(name).map(|()| empty(StatusCode::NO_CONTENT)),
            "POST" if self.query.contains_key("uploads") => {
                Ok(document("InitiateMultipartUploadResult", &format!("<UploadId>{}</UploadId>", objects.begin())))
            }
            _ => Err(Fault::NotImplemented),
        }
    }

    fn on_upload(&self, name: &str, upload: &str, objects: &mut Objects) -> Result<Answer, Fault> {
        match self.method.as_str() {
            "PUT" => {
                let number = self.query.get("partNumber").and_then(|number| number.parse().ok());
                let tag = objects.add_part(upload, number.ok_or(Fault::InvalidPart)?, self.body.clone())?;
                Ok(with(empty(StatusCode::OK), ETAG, &tag))
            }
            "POST" => {
                let text = String::from_utf8_lossy(&self.body);
                let object = objects.complete(name, upload, &elements(&text, "ETag"))?;
                Ok(document("CompleteMultipartUploadResult", &format!("<ETag>{}</ETag>", object.tag())))
            }
            "DELETE" => objects.abort(upload).map(|()| empty(StatusCode::NO_CONTENT)),
            _ => Err(Fault::NotImplemented),
        }
    }

    fn read(&self, object: &Object) -> Result<Answer, Fault> {
        let length = object.content.len();
        let (first, end) = match self.headers.get(RANGE) {
            None => (0, length),
            Some(range) => {
                let (first, last) = range_of(range).ok_or(Fault::InvalidRange)?;
                (first, length.min(last + 1))
            }
        };
        let mut answer = described(object);
        if self.headers.contains_key(RANGE) {
            if first >= end {
                return Err(Fault::InvalidRange);
            }
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
            answer = with(answer, CONTENT_RANGE, &format!("bytes {first}-{}/{length}", end - 1));
        }
        // hyper sends nothing to a HEAD, and tells no length of an empty object.
        answer = with(answer, CONTENT_LENGTH, &(end - first).to_string());
        *answer.body_mut() = Full::new(object.content.slice(first..end));
        Ok(answer)
    }

    fn listed(&self, objects: &Objects) -> String {
        let word = |name: &str| self.query.get(name).map(String::as_str);
        let after = word("continuation-token").or_else(|| word("start-after"));
        let Listing { found, folders, next } =
            objects.list(word("prefix").unwrap_or_default(), word("delimiter"), after);
        let found = found.into_iter().map(|(name, object)| {
            let (name, bytes, modified, tag) = (escaped(name), object.content.len(), object.modified, object.tag());
            format!(
                "<Contents><Key>{name}</Key><Size>{bytes}</Size><LastModified>{modified}</LastModified>\
                 <ETag>{tag}</ETag></Contents>"
            )
        });
        let folders = folders.iter().map(|folder| {
            let folder = escaped(folder);
            format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>")
        });
        let next = next.map(|next| format!("<NextContinuationToken>{}</NextContinuationToken>", escaped(&next)));
        found.chain(folders).chain(next).collect()
    }
}

/// The first and the last byte, as in `bytes=3-6`.
fn range_of(value: &HeaderValue) -> Option<(usize, usize)> {
    let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn with(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    answer.headers_mut().insert(name, value.parse().unwrap());
    answer
}

/// An answer with the headers that say which object it is.
fn described(object: &Object) -> Answer {
    let modified = object.modified.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let answer = with(empty(StatusCode::OK), LAST_MODIFIED, &modified);
    let answer = with(answer, HeaderName::from_static("x-goog-generation"), &object.generation.to_string());
    with(answer, ETAG, &object.tag())
}

/// A word of a path. The library escapes all but letters and digits in it, so that no plus sign stands for itself.
fn decoded(word: &str) -> String {
    let field = format!("word={word}");
    form_urlencoded::parse(field.as_bytes()).map(|(_, word)| word.into_owned()).next().unwrap_or_default()
}

/// The texts of all elements of this name.
fn elements<'a>(document: &'a str, name: &str) -> Vec<&'a str> {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    document.split(&start).skip(1).filter_map(|rest| Some(rest.split_once(&end)?.0)).collect()
}
