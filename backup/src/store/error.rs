//! What can go wrong with a store, told apart by what a person would do about it. Stores answer the same fault in
//! different ways, and the library below folds several into one, so the texts of their answers are read too.

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt::{self, Write as _};
use std::ops::Range;

use quick_xml::escape::unescape;
use rustix::io::Errno;

use super::Key;
use super::address::{Address, AddressError, Provider};
use super::credentials::{CredentialsError, NOT_EXCHANGED};
use super::options::OptionsError;

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Reading an object.
    Read,
    /// Writing an object.
    Write,
    /// Listing a folder.
    List,
    /// Deleting an object.
    Delete,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
            Self::Delete => "delete",
        })
    }
}

/// What was being done to what, when it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What was being done.
    pub act: Act,
    /// To which object or folder.
    pub key: String,
    /// In which store.
    pub address: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { act, key, address } = self;
        write!(f, "failed to {act} {key:?} in {address}")
    }
}

/// Why a store can't be used, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address makes no sense.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An option makes no sense.
    #[error("failed to open the store: {0}")]
    Options(#[from] OptionsError),
    /// The credentials can't be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The authorities to trust are no certificates.
    #[error("failed to read the certificates in {file}: {source}")]
    Certificates {
        /// Where they were.
        file: String,
        /// What is wrong.
        source: Box<object_store::Error>,
    },
    /// The store can't even be tried.
    #[error("failed to open the store {address}: {source}")]
    Open {
        /// Which.
        address: String,
        /// What is wrong.
        source: Box<object_store::Error>,
    },
    /// There is no such bucket, container or folder.
    #[error("{0}: the bucket does not exist; create it, or mend its name or region")]
    NoBucket(Box<Failure>),
    /// The bucket is in another region than it is asked for in, for which what is asked is signed.
    #[error(
        "{failure}: the bucket is not in the region that is named; set the option region to the bucket's, and the endpoint with \
         it if one is named: {detail}"
    )]
    OtherRegion {
        /// What failed.
        failure: Box<Failure>,
        /// The store's words, which may name the region.
        detail: String,
    },
    /// The store refuses these credentials, or they may not do this.
    #[error("{failure}: the store refuses the credentials: {detail}")]
    Refused {
        /// What failed.
        failure: Box<Failure>,
        /// The store's words.
        detail: String,
    },
    /// The store keeps the object as it is: by an object lock, a retention policy or a legal hold.
    #[error(
        "{failure}: the object is locked until its retention ends or its hold is removed; try again then, and let the bucket \
         lock for no longer than backups are kept: {detail}"
    )]
    Locked {
        /// What failed.
        failure: Box<Failure>,
        /// The store's words.
        detail: String,
    },
    /// The object is not there.
    #[error("{0}: it is not there")]
    Missing(Box<Failure>),
    /// The store is a volume, and takes no more.
    #[error("{failure}: {detail}")]
    Full {
        /// What failed.
        failure: Box<Failure>,
        /// What helps, and what was seen.
        detail: String,
    },
    /// Nobody answers, or not in time, or with a server's fault, also after repeating.
    #[error("{failure}: {detail}")]
    Failed {
        /// What failed.
        failure: Box<Failure>,
        /// What was seen, down to its cause.
        detail: String,
    },
    /// The store overwrites what it was told only to create, so two writers could destroy each other's backups.
    #[error(
        "failed to open the store {address}: it does not support create-only puts (If-None-Match), \
         which keep backups from overwriting each other; use a store or a version of it that does"
    )]
    Overwrites {
        /// Which.
        address: String,
    },
    /// A volume on which a file can't be made so that it overwrites no other one.
    #[error(
        "failed to {failure}: the volume's file system makes no hard links, which keep backups from overwriting each other; use \
         a volume of another kind: {detail}"
    )]
    Unlinked {
        /// What failed.
        failure: Box<Failure>,
        /// What the volume answered.
        detail: String,
    },
    /// The prefix is used by something else, or by a later version of this format.
    #[error("failed to open the store {address}: {FORMAT_KEY} there is not of this format: {detail}", FORMAT_KEY = super::FORMAT_KEY)]
    OtherFormat {
        /// Which.
        address: String,
        /// What was found.
        detail: String,
    },
    /// An object is larger than its kind can be.
    #[error("failed to read {key}: it has {bytes} bytes, and no more than {limit} are allowed")]
    TooLarge {
        /// The object.
        key: Key,
        /// Its size.
        bytes: u64,
        /// The most there may be.
        limit: u64,
    },
    /// An object ends too early.
    #[error("failed to read {key}: bytes {} to {} were asked for, and only {got} came", range.start, range.end)]
    Short {
        /// The object.
        key: Key,
        /// What was asked for.
        range: Range<u64>,
        /// How many bytes came.
        got: usize,
    },
}

impl StoreError {
    pub(super) fn of(address: &Address, act: Act, key: &Key, source: &object_store::Error) -> Self {
        use object_store::Error;
        let detail = causes(source);
        let failure = Box::new(Failure { act, key: key.to_string(), address: address.to_string() });
        let short = shown(&detail);
        match source {
            _ if says(&detail, NO_BUCKET) => Self::NoBucket(failure),
            _ if is_of_another_region(address, &detail) => Self::OtherRegion { failure, detail: short },
            // Before the credentials: most stores answer AccessDenied or 403 to this as well.
            _ if says(&detail, LOCKED) => Self::Locked { failure, detail: short },
            _ if says(&detail, BAD_CREDENTIALS) => Self::Refused { failure, detail: short },
            Error::NotFound { .. } if says(&detail, NO_OBJECT) || !says(&detail, ANSWERED_404) => {
                Self::Missing(failure)
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Self::Refused { failure, detail: short },
            _ if says(&detail, UNTRUSTED) => Self::Failed { failure, detail: format!("{TRUST_IT}: {short}") },
            _ if makes_no_links(address, act, &detail) => Self::Unlinked { failure, detail: short },
            _ => match without_room(address, act, &detail) {
                Some(remedy) => Self::Full { failure, detail: format!("{remedy}: {short}") },
                None => Self::Failed { failure, detail: short },
            },
        }
    }
}

/// The codes by which S3, Google and Azure say so. Some come with 404, as a missing object does; others with 400.
const NO_BUCKET: &[&str] = &[
    "NoSuchBucket",
    "InvalidBucketName",
    "ContainerNotFound",
    "The specified bucket does not exist",
    "The specified container does not exist",
];
/// What S3 says to who signs for another region (the rest of `AuthorizationHeaderMalformed` is about the key), and the library of a
/// bucket whose own server is another one: it shows nothing of an answer with 301.
const OTHER_REGION: &[&str] = &["is wrong; expecting", "indicates an incorrectly configured region"];
/// What stores say of an object that they keep as it is. Nothing in a key looks like it.
const LOCKED: &[&str] = &[
    // Amazon's and versitygw's, Ceph's, and MinIO's.
    "protected by object lock",
    "forbidden by object lock",
    "WORM protected",
    // Google's, of a retention policy and of a hold.
    "RetentionPolicyNotMet",
    "ObjectUnderActiveHold",
    // Azure's, of a policy and of a legal hold. Of a deletion the library tells the message alone.
    "BlobImmutableDueTo",
    "blob is immutable due to",
];
const BAD_CREDENTIALS: &[&str] = &[
    "InvalidAccessKeyId",
    // versitygw's word for the same, which comes with 404.
    "XAdminUserNotFound",
    "SignatureDoesNotMatch",
    // Of a key that is none, as an empty one, or the secret in its stead.
    "AuthorizationHeaderMalformed",
    "InvalidToken",
    "ExpiredToken",
    // STS's for a pod's token that it does not take, which comes with 400.
    "InvalidIdentityToken",
    // Entra's of a client that it does not know, which comes with 400, too.
    "unauthorized_client",
    "AuthenticationFailed",
    "AuthorizationFailure",
    // azurite's for an account that it doesn't have. A missing object is BlobNotFound.
    "ResourceNotFound",
    "AccessDenied",
    // The library tells only some requests' statuses by the kind of its error: of lists and deletions they are in the text.
    "status code: 401",
    "status code: 403",
    "(code: 401)",
    "(code: 403)",
];
/// What every store calls an object that isn't there. Any other 404 says nothing about objects: an endpoint that is no
/// store answers it to everything, and must not be taken for a store in which nothing is.
const NO_OBJECT: &[&str] = &["NoSuchKey", "BlobNotFound"];
const ANSWERED_404: &[&str] = &["status code: 404"];
/// What TLS says of a certificate that nobody who is trusted has signed, and what to do about it.
const UNTRUSTED: &[&str] = &["invalid peer certificate: UnknownIssuer"];
const TRUST_IT: &str = "no authority that is trusted has signed the store's certificate; put the one that has as ca.crt \
                        beside the credentials, or name its file by --store-ca";
/// What Linux says when a file system has no room, or a user or a file has no more of it, and what helps.
const NO_ROOM: [(Errno, &str); 3] =
    [(Errno::NOSPC, MAKE_ROOM), (Errno::DQUOT, MAKE_ROOM), (Errno::FBIG, ALLOW_LARGER_FILES)];
/// What Linux says where a file system has no hard links: CIFS, FAT, some of FUSE.
const NO_LINKS: [Errno; 3] = [Errno::OPNOTSUPP, Errno::PERM, Errno::NOSYS];
/// How the library begins to say that a file that was written did not get its name.
const NAMING: &str = "Unable to rename file";
const MAKE_ROOM: &str = "make the volume larger, or remove old backups from it (quorate-agent prune)";
const ALLOW_LARGER_FILES: &str = "no file may get that large there; raise the limit, which is the file system's or the \
                                  process's own, or keep the backups elsewhere";
/// The most characters of a store's answer that are shown: a message is for a person, and ends up in an object's status.
const LONGEST: usize = 400;

/// What helps, if nothing more can be written to a volume. What a server tells of its own disk is not about a volume of ours.
fn without_room(address: &Address, act: Act, detail: &str) -> Option<&'static str> {
    let on_volume = is_written_to_volume(address, act);
    NO_ROOM.iter().find(|(fault, _)| on_volume && is_fault(detail, *fault)).map(|(_, remedy)| *remedy)
}

/// Whether a volume has refused the hard link by which a file gets its name only if no other one has it.
fn makes_no_links(address: &Address, act: Act, detail: &str) -> bool {
    let refused = NO_LINKS.iter().any(|fault| is_fault(detail, *fault));
    refused && detail.contains(NAMING) && is_written_to_volume(address, act)
}

fn is_written_to_volume(address: &Address, act: Act) -> bool {
    act == Act::Write && matches!(address.provider, Provider::Volume { .. })
}

/// The words name the number of the fault, and the library says nothing else of it.
fn is_fault(detail: &str, fault: Errno) -> bool {
    detail.contains(&format!("(os error {})", fault.raw_os_error()))
}

/// That a token was not exchanged is no matter of the bucket's, whatever the library says of it.
fn is_of_another_region(address: &Address, detail: &str) -> bool {
    matches!(address.provider, Provider::S3 { .. }) && says(detail, OTHER_REGION) && !detail.contains(NOT_EXCHANGED)
}

fn says(detail: &str, codes: &[&str]) -> bool {
    codes.iter().any(|code| detail.contains(code))
}

/// The text in one line of bounded length.
fn shown(text: &str) -> String {
    let mut line = without_document(text).split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}

/// The text with the store's XML document reduced to what it says: S3 repeats the whole signed request in it, and Azure has
/// lines about the request below its message.
fn without_document(text: &str) -> String {
    let Some((before, document)) = text.find('<').map(|start| text.split_at(start)) else { return text.to_owned() };
    let element = |name: &str| {
        let (_, rest) = document.split_once(&format!("<{name}>"))?;
        let line = rest.split_once(&format!("</{name}>"))?.0.trim().lines().next()?;
        Some(unescape(line).unwrap_or(Cow::Borrowed(line)))
    };
    match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{before}{code}: {message}"),
        (Some(code), None) => format!("{before}{code}"),
        (None, _) => text.to_owned(),
    }
}

/// The whole chain of causes in one line: the uppermost alone often says no more than "generic error".
fn causes(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            let _ = write!(text, ": {inner_text}");
        }
        cause = inner.source();
    }
    text
}
