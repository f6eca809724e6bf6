//! What goes wrong with a store. Most of it does for a moment: each request meets it when it comes for the first time, and is
//! well when it comes again.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::{io, mem};

use futures::stream::{self, StreamExt as _};
use http::header::{IF_NONE_MATCH, RANGE};
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body as _, Bytes, Frame, Incoming};

/// The header of a put that only creates. S3 and Azure have another.
pub const ONLY_CREATES: &str = "x-goog-if-generation-match";

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// The server refuses, as one that has too much to do.
    Refused,
    /// It does so however often it is asked.
    Overloaded,
    /// The connection is lost in the middle of a part of an upload.
    Cut,
    /// A put that only creates is done, and the connection is lost where its answer would be.
    AnswerLost,
    /// The connection of a put that only creates is lost, however often it comes, and it is done when that is asked for.
    Late,
    /// A put that only creates is refused as if another one were on its way, and nothing is written.
    Conflict,
    /// The connection is lost in the middle of an object that is read.
    HalfRead,
    /// It is lost in the middle of each part of an object that is read, however often that is asked for.
    NeverRead,
    /// A put that only creates overwrites what is there, however often it comes.
    Overwrites,
}

/// What goes wrong now, the requests that have met it, and those that are still on their way.
#[derive(Debug)]
pub struct Troubles {
    now: Mutex<(Trouble, BTreeSet<String>)>,
    late: Mutex<Vec<Request<Bytes>>>,
}

impl Troubles {
    pub fn new(kind: Trouble) -> Self {
        Self { now: Mutex::new((kind, BTreeSet::new())), late: Mutex::default() }
    }

    /// From now on it is this, and nobody has met it yet.
    pub fn turn_to(&self, kind: Trouble) {
        *self.now.lock().unwrap() = (kind, BTreeSet::new());
    }

    /// How many requests have met it.
    pub fn count(&self) -> usize {
        self.now.lock().unwrap().1.len()
    }

    /// Keeps a request until somebody takes it. Where this error is the answer, the connection is closed.
    pub fn keep(&self, request: Request<Bytes>) -> io::Error {
        self.late.lock().unwrap().push(request);
        io::ErrorKind::ConnectionReset.into()
    }

    /// What was kept, in the order in which it came.
    pub fn take_late(&self) -> Vec<Request<Bytes>> {
        mem::take(&mut *self.late.lock().unwrap())
    }

    /// What this request meets.
    pub fn of<B>(&self, request: &Request<B>) -> Trouble {
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let (kind, met) = &mut *self.now.lock().unwrap();
        // Of an upload, which Azure calls a block, and has begun with the first of them.
        let names_part = |query: &str| query.contains("uploadId=") || query.contains("blockid=");
        let is_part = method == Method::PUT && uri.query().is_some_and(names_part);
        let is_read = method == Method::GET && uri.query().is_none();
        let only_creates = headers.contains_key(ONLY_CREATES) || headers.contains_key(IF_NONE_MATCH);
        let range = headers.get(RANGE).and_then(|range| range.to_str().ok());
        let (concerned, lasts) = match *kind {
            Trouble::None => (false, false),
            Trouble::Refused => (true, false),
            Trouble::Overloaded => (true, true),
            Trouble::Cut => (is_part, false),
            Trouble::AnswerLost | Trouble::Conflict => (only_creates, false),
            Trouble::Late | Trouble::Overwrites => (only_creates, true),
            Trouble::HalfRead => (is_read, false),
            Trouble::NeverRead => (is_read && range.is_some(), true),
        };
        // Who asks for the rest of a part comes again: it has the same end.
        let end = range.and_then(|range| range.rsplit_once('-')).map_or("", |(_, end)| end);
        let first = concerned && met.insert(format!("{method} {uri} {end}"));
        if first || (concerned && lasts) { *kind } else { Trouble::None }
    }
}

/// Reads half of a body. Where this error is the answer, the connection is closed.
pub async fn half_of(mut body: Incoming) -> io::Error {
    let half = body.size_hint().exact().unwrap_or_default() / 2;
    let mut read = 0;
    while read < half
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
    }
    io::ErrorKind::ConnectionReset.into()
}

/// What is sent.
pub type Sent = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// All of an answer.
pub fn whole(answer: Response<Full<Bytes>>) -> Sent {
    answer.map(|body| body.map_err(|never| match never {}).boxed_unsync())
}

/// Half of an answer that has told its length. Then the connection is closed.
pub fn half_sent(answer: Response<Full<Bytes>>) -> Sent {
    answer.map(|body| {
        let content = body.into_inner().unwrap_or_default();
        let half = content.slice(..content.len() / 2);
        let lost = async {
            // What came before is sent when there is nothing more for a moment, and else goes down with the connection.
            tokio::task::yield_now().await;
            Err(io::Error::from(io::ErrorKind::ConnectionReset))
        };
        let frames = stream::iter([Ok(Frame::data(half))]).chain(stream::once(lost));
        StreamBody::new(frames).boxed_unsync()
    })
}
