//! The web identity of a pod for S3 (IRSA): STS exchanges the pod's token for keys of a role. STS is a double over TLS, since
//! the library asks it over nothing else; the store is versitygw.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::request::Parts;
use http::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use quorate_backup::snapshot::{Failure, Reason};
use tempfile::TempDir;
use url::form_urlencoded;

use super::answers::{Answer, Answers, with_status};
use super::certificates::Authority;
use super::place::Place;
use super::s3::{ACCESS, REGION, SECRET, VersityGw};
use crate::fake::{Mood, Served};
use crate::snapshot::large;

const ROLE: &str = "arn:aws:iam::111122223333:role/backups";
const OTHER_ROLE: &str = "arn:aws:iam::111122223333:role/others";
const SESSION: &str = "nightly";

/// STS, and the file in which the kubelet keeps the pod's token. Each token is taken once, and the next one is in the file by
/// then.
struct Sts {
    answers: Answers,
    exchanges: Arc<AtomicUsize>,
    token: String,
    ca: String,
    _folder: TempDir,
}

impl Sts {
    /// Keys that it hands out last so long.
    fn start(lasting: SignedDuration) -> Self {
        let (authority, folder) = (Authority::new("sts"), tempfile::tempdir().unwrap());
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (token, ca) = (file("token", token(0)), file("ca.crt", authority.certificate()));
        let exchanges = Arc::<AtomicUsize>::default();
        let (renewed, number) = (token.clone(), Arc::clone(&exchanges));
        let answers = Answers::over_tls(&authority, move |head, _| {
            let used = number.load(Ordering::SeqCst);
            if let Some(refusal) = objection(head, &self::token(used)) {
                return refusal;
            }
            fs::write(&renewed, self::token(used + 1)).unwrap();
            number.store(used + 1, Ordering::SeqCst);
            keys(lasting)
        });
        Self { answers, exchanges, token, ca, _folder: folder }
    }

    /// As the webhook of the cloud sets them; and whom to trust, and where STS is, which is where the region has it otherwise.
    fn variables<'a>(&'a self, role: &'a str) -> [(&'a str, &'a str); 5] {
        [
            ("AWS_ROLE_ARN", role),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", self.token.as_str()),
            ("AWS_ROLE_SESSION_NAME", SESSION),
            ("AWS_ENDPOINT_URL_STS", self.answers.url.as_str()),
            ("QUORATE_STORE_CA", self.ca.as_str()),
        ]
    }

    /// How many exchanges there have been since this was asked last.
    fn exchanges_since(&self, before: &mut usize) -> usize {
        let now = self.exchanges.load(Ordering::SeqCst);
        now - std::mem::replace(before, now)
    }
}

/// What no message may show.
fn token(number: usize) -> String {
    format!("projected-{number}")
}

/// What STS has against a request, in its words.
fn objection(head: &Parts, token: &str) -> Option<Answer> {
    let asked = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned();
    let asked: BTreeMap<String, String> = asked.collect();
    let is = |name: &str, value: &str| asked.get(name).is_some_and(|asked| asked == value);
    let action = is("Action", "AssumeRoleWithWebIdentity") && is("Version", "2011-06-15");
    if head.method != Method::POST || !action || !is("RoleSessionName", SESSION) {
        return Some(refusal(StatusCode::BAD_REQUEST, "InvalidAction", "Could not find operation"));
    }
    if !is("RoleArn", ROLE) {
        let words = "Not authorized to perform sts:AssumeRoleWithWebIdentity";
        return Some(refusal(StatusCode::FORBIDDEN, "AccessDenied", words));
    }
    if !is("WebIdentityToken", token) {
        let words = "The ID Token provided is not a valid JWT";
        return Some(refusal(StatusCode::BAD_REQUEST, "InvalidIdentityToken", words));
    }
    None
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Answer {
    let document = format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type><Code>{code}</Code>\
         <Message>{message}</Message></Error><RequestId>c0ffee</RequestId></ErrorResponse>"
    );
    with_status(status, document)
}

/// The store's own keys. They are none of a session, which versitygw would not know.
fn keys(lasting: SignedDuration) -> Answer {
    let expiration = Timestamp::now() + lasting;
    let document = format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <AssumeRoleWithWebIdentityResult><SubjectFromWebIdentityToken>system:serviceaccount:ns:backup\
         </SubjectFromWebIdentityToken><AssumedRoleUser><Arn>{ROLE}/{SESSION}</Arn></AssumedRoleUser><Credentials>\
         <AccessKeyId>{ACCESS}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken></SessionToken>\
         <Expiration>{expiration}</Expiration></Credentials></AssumeRoleWithWebIdentityResult><ResponseMetadata>\
         <RequestId>c0ffee</RequestId></ResponseMetadata></AssumeRoleWithWebIdentityResponse>"
    );
    with_status(StatusCode::OK, document)
}

fn place(server: &VersityGw, prefix: &str) -> Place {
    server.bare(prefix).with_option("region", REGION)
}

/// A backup is put, listed and read: by keys that outlast each process, and by ones that have run out by the next request.
pub fn is_exchanged() {
    let Some(server) = VersityGw::start() else { return };
    let member = Served::start(Mood::Sound, large(0));
    let scratch = tempfile::tempdir().unwrap();
    let proof = ["--lineage", "blue", "--scratch", scratch.path().to_str().unwrap()];
    for (prefix, lasting) in [("lasting", SignedDuration::from_hours(1)), ("brief", SignedDuration::ZERO)] {
        let (sts, place) = (Sts::start(lasting), place(&server, prefix));
        let variables = sts.variables(ROLE);
        let mut before = 0;
        let mut exchanged = || {
            let exchanges = sts.exchanges_since(&mut before);
            let as_often_as_needed = if lasting.is_zero() { exchanges > 1 } else { exchanges == 1 };
            assert!(as_often_as_needed, "{prefix}: {exchanges}");
        };
        let taken = place.snapshot_with(&variables, &member).json();
        assert_eq!(taken["revision"].as_u64(), Some(7), "{taken}");
        exchanged();
        let listed = place.run_with(&variables, "list", &[]).json();
        assert_eq!((listed[0]["state"].as_str(), listed.as_array().unwrap().len()), (Some("whole"), 1), "{listed}");
        exchanged();
        let proved = place.run_with(&variables, "verify", &proof).json();
        assert_eq!(proved["revision"].as_u64(), Some(7), "{proved}");
        exchanged();
    }
}

/// What was tried, for which role and why it failed; never the token or the keys.
fn expect_told(failure: &Failure, reason: Reason, words: &[&str]) {
    assert_eq!(failure.reason, reason, "{}", failure.message);
    for word in [&["web identity", "AWS_WEB_IDENTITY_TOKEN_FILE"][..], words].concat() {
        assert!(failure.message.contains(word), "{word}: {}", failure.message);
    }
    for secret in ["projected", "WebIdentityToken=", SECRET] {
        assert!(!failure.message.contains(secret), "{secret}: {}", failure.message);
    }
}

pub fn that_is_not_exchanged_is_told() {
    let Some(server) = VersityGw::start() else { return };
    let member = Served::start(Mood::Sound, large(0));
    let (sts, place) = (Sts::start(SignedDuration::from_hours(1)), place(&server, "refused"));
    let failure = place.failure_with(&sts.variables(OTHER_ROLE), &member);
    expect_told(&failure, Reason::StoreRefused, &[OTHER_ROLE, "AccessDenied: Not authorized"]);
    fs::write(&sts.token, "projected-for-somebody-else").unwrap();
    let failure = place.failure_with(&sts.variables(ROLE), &member);
    expect_told(&failure, Reason::StoreRefused, &[ROLE, "InvalidIdentityToken: The ID Token"]);
    // The token goes over TLS alone.
    let plain = sts.answers.url.replace("https:", "http:");
    let variables = [&sts.variables(ROLE)[..], &[("AWS_ENDPOINT_URL_STS", plain.as_str())]].concat();
    let failure = place.failure_with(&variables, &member);
    expect_told(&failure, Reason::StoreFailed, &[ROLE, "scheme is not allowed"]);
    fs::remove_file(&sts.token).unwrap();
    let failure = place.failure_with(&sts.variables(ROLE), &member);
    expect_told(&failure, Reason::StoreFailed, &[ROLE, "token file", &sts.token]);
    assert_eq!(sts.exchanges.load(Ordering::SeqCst), 0);
}
