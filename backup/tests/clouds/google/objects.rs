//! What the double of Google keeps: objects, and uploads that are not complete. Its rules are those of Google's reference of
//! the XML API, as far as they are asked of it. It knows nothing of HTTP but the codes.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use hyper::body::Bytes;
use jiff::Timestamp;

/// How many a listing shows at once: few, so that every listing has several pages. Google shows 1,000.
const PAGE: usize = 2;
/// The least that any part but the last may have (`EntityTooSmall`).
const SMALLEST_PART: usize = 5 << 20;

/// What is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    AuthenticationRequired,
    AccessDenied,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    InvalidPart,
    EntityTooSmall,
    InvalidRange,
    PreconditionFailed,
    OperationAborted,
    NotImplemented,
    ServiceUnavailable,
}

impl Fault {
    /// The status, the code and the message, after the reference.
    pub const fn words(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::AuthenticationRequired => {
                (StatusCode::UNAUTHORIZED, "AuthenticationRequired", "Authentication required.")
            }
            Self::AccessDenied => (StatusCode::FORBIDDEN, "AccessDenied", "Access denied."),
            Self::NoSuchBucket => (StatusCode::NOT_FOUND, "NoSuchBucket", "The specified bucket does not exist."),
            Self::NoSuchKey => (StatusCode::NOT_FOUND, "NoSuchKey", "The specified key does not exist."),
            Self::NoSuchUpload => (StatusCode::NOT_FOUND, "NoSuchUpload", "The requested upload was not found."),
            Self::InvalidPart => (StatusCode::BAD_REQUEST, "InvalidPart", "A part could not be found."),
            Self::EntityTooSmall => (StatusCode::BAD_REQUEST, "EntityTooSmall", "The upload is too small."),
            Self::InvalidRange => {
                (StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", "The requested range cannot be satisfied.")
            }
            Self::PreconditionFailed => {
                (StatusCode::PRECONDITION_FAILED, "PreconditionFailed", "A precondition you specified did not hold.")
            }
            Self::OperationAborted => {
                (StatusCode::CONFLICT, "OperationAborted", "A conflicting conditional operation is in progress.")
            }
            Self::NotImplemented => (StatusCode::NOT_IMPLEMENTED, "NotImplemented", "The double does not know this."),
            Self::ServiceUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "Service unavailable. Please retry.")
            }
        }
    }
}

/// What a put demands of what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    None,
    Missing,
}

/// An object.
#[derive(Debug)]
pub struct Object {
    pub content: Bytes,
    pub generation: u64,
    pub modified: Timestamp,
}

impl Object {
    pub fn tag(&self) -> String {
        format!("\"{:016x}\"", self.generation)
    }
}

/// An upload: its parts by their numbers, each with its tag.
type Parts = BTreeMap<u32, (String, Bytes)>;

/// A page of a listing.
pub struct Listing<'a> {
    pub found: Vec<(&'a str, &'a Object)>,
    pub folders: Vec<String>,
    /// What the next page begins behind.
    pub next: Option<String>,
}

/// All that is in the bucket.
#[derive(Debug, Default)]
pub struct Objects {
    by_name: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Parts>,
    /// Of objects, parts and uploads.
    last_generation: u64,
}

impl Objects {
    pub fn get(&self, name: &str) -> Result<&Object, Fault> {
        self.by_name.get(name).ok_or(Fault::NoSuchKey)
    }

    /// How many have this in their names.
    pub fn count(&self, part: &str) -> usize {
        self.by_name.keys().filter(|name| name.contains(part)).count()
    }

    pub fn put(&mut self, name: &str, content: Bytes, condition: Condition) -> Result<&Object, Fault> {
        if condition == Condition::Missing && self.by_name.contains_key(name) {
            return Err(Fault::PreconditionFailed);
        }
        let object = Object { content, generation: self.next_generation(), modified: Timestamp::now() };
        self.by_name.insert(name.to_owned(), object);
        self.get(name)
    }

    pub fn delete(&mut self, name: &str) -> Result<(), Fault> {
        self.by_name.remove(name).map(drop).ok_or(Fault::NoSuchKey)
    }

    pub fn list(&self, prefix: &str, delimiter: Option<&str>, after: Option<&str>) -> Listing<'_> {
        let (mut found, mut folders) = (Vec::new(), BTreeSet::new());
        let (mut last, mut more) = (None, false);
        for (name, object) in self.by_name.iter().filter(|(name, _)| name.starts_with(prefix)) {
            // A folder counts once, and where its first object is.
            let folder = delimiter.and_then(|delimiter| {
                let end = name[prefix.len()..].find(delimiter)? + prefix.len() + delimiter.len();
                Some(name[..end].to_owned())
            });
            let entry = folder.clone().unwrap_or_else(|| name.clone());
            if after.is_some_and(|after| entry.as_str() <= after) || folders.contains(&entry) {
                continue;
            }
            if found.len() + folders.len() == PAGE {
                more = true;
                break;
            }
            last = Some(entry);
            match folder {
                Some(folder) => drop(folders.insert(folder)),
                None => found.push((name.as_str(), object)),
            }
        }
        Listing { found, folders: folders.into_iter().collect(), next: last.filter(|_| more) }
    }

    /// Begins an upload. What it will be called is told again when it is completed.
    pub fn begin(&mut self) -> String {
        let upload = format!("upload-{}", self.next_generation());
        self.uploads.insert(upload.clone(), Parts::new());
        upload
    }

    pub fn add_part(&mut self, upload: &str, number: u32, content: Bytes) -> Result<String, Fault> {
        let tag = format!("\"part-{}\"", self.next_generation());
        self.uploads.get_mut(upload).ok_or(Fault::NoSuchUpload)?.insert(number, (tag.clone(), content));
        Ok(tag)
    }

    /// Makes an object of the parts with these tags, which have to be all.
    pub fn complete(&mut self, name: &str, upload: &str, tags: &[&str]) -> Result<&Object, Fault> {
        let parts = self.uploads.get(upload).ok_or(Fault::NoSuchUpload)?;
        let known: Vec<_> = parts.values().map(|(tag, _)| tag.as_str()).collect();
        if known != tags || !parts.keys().copied().eq((1..).take(parts.len())) {
            return Err(Fault::InvalidPart);
        }
        if parts.values().rev().skip(1).any(|(_, content)| content.len() < SMALLEST_PART) {
            return Err(Fault::EntityTooSmall);
        }
        let content: Vec<_> = parts.values().flat_map(|(_, content)| content.iter().copied()).collect();
        self.uploads.remove(upload);
        self.put(name, content.into(), Condition::None)
    }

    pub fn abort(&mut self, upload: &str) -> Result<(), Fault> {
        self.uploads.remove(upload).map(drop).ok_or(Fault::NoSuchUpload)
    }

    /// Parts of uploads that are not complete.
    pub fn parts(&self) -> usize {
        self.uploads.values().map(Parts::len).sum()
    }

    fn next_generation(&mut self) -> u64 {
        self.last_generation += 1;
        self.last_generation
    }
}

/// A text as XML has it.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
