//! The web identity of a pod for S3 (IRSA): STS exchanges the pod's token for keys of a role. STS is a double over TLS, since
//! the library asks it over nothing else; the store is versitygw.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::SignedDuration;
use quorate_backup::snapshot::{Failure, Reason};
use tempfile::TempDir;

use super::certificates::Authority;
use super::place::Place;
use super::s3::{ACCESS, REGION, SECRET, VersityGw};
use crate::clouds::answers::{Answers, Shown};
use crate::clouds::sts::{self, Keys, Objection, ROLE, SESSION};
use crate::fake::{Mood, Served};
use crate::snapshot::large;

const OTHER_ROLE: &str = "arn:aws:iam::111122223333:role/others";

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
        let leaf = authority.signs(Ipv4Addr::LOCALHOST);
        let shown = Shown { certificate: &leaf.certificate, key: &leaf.key };
        let keys = Keys { access: ACCESS, secret: SECRET, lasting };
        let answers = Answers::over_tls(Ipv4Addr::LOCALHOST, &shown, move |head, _| {
            sts::answer(head, &keys, |token| {
                let used = number.load(Ordering::SeqCst);
                if token != self::token(used) {
                    return Err(Objection::Invalid);
                }
                fs::write(&renewed, self::token(used + 1)).unwrap();
                number.store(used + 1, Ordering::SeqCst);
                Ok(())
            })
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
