//! What goes wrong with a store for a moment: each request meets it when it comes for the first time, and is well when it comes
//! again.

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

use http::Method;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// The server refuses, as one that has too much to do.
    Refused,
    /// The connection is lost in the middle of a part of an upload.
    Cut,
}

/// The requests that have met it.
#[derive(Debug)]
pub struct Troubles {
    kind: Trouble,
    met: Mutex<BTreeSet<String>>,
}

impl Troubles {
    pub fn new(kind: Trouble) -> Self {
        Self { kind, met: Mutex::default() }
    }

    /// How many requests have met it.
    pub fn count(&self) -> usize {
        self.met.lock().unwrap().len()
    }

    /// What this request meets.
    pub fn of(&self, head: &Parts) -> Trouble {
        let is_part = head.method == Method::PUT && head.uri.query().is_some_and(|query| query.contains("uploadId="));
        let concerned = match self.kind {
            Trouble::None => false,
            Trouble::Refused => true,
            Trouble::Cut => is_part,
        };
        let meets = concerned && self.met.lock().unwrap().insert(format!("{} {}", head.method, head.uri));
        if meets { self.kind } else { Trouble::None }
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
