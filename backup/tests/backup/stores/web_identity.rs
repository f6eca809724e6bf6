//! The web identity of a pod for S3 (IRSA): STS exchanges the pod's token for keys of a role. STS is a double over TLS, since
//! the library asks it over nothing else; the store is versitygw.

use std::fs;
use std::net::Ipv4Addr;

use jiff::SignedDuration;
use quorate_backup::snapshot::{Failure, Reason};

use super::certificates::Authority;
use super::place::Place;
use super::pod_token::{self, HOUR, LIFETIMES, PodToken, is_enough};
use super::s3::{ACCESS, REGION, SECRET, VersityGw};
use crate::clouds::answers::{Answers, Shown};
use crate::clouds::sts::{self, Keys, Objection, ROLE, SESSION};
use crate::fake::{Mood, Served};
use crate::snapshot::large;

const OTHER_ROLE: &str = "arn:aws:iam::111122223333:role/others";

/// STS, and the token that it takes.
struct Sts {
    answers: Answers,
    token: PodToken,
    path: String,
    ca: String,
}

impl Sts {
    /// Keys that it hands out last so long.
    fn start(lasting: SignedDuration) -> Self {
        let (authority, token) = (Authority::new("sts"), PodToken::new());
        let leaf = authority.signs(Ipv4Addr::LOCALHOST);
        let shown = Shown { certificate: &leaf.certificate, key: &leaf.key };
        let (keys, judge) = (Keys { access: ACCESS, secret: SECRET, lasting }, token.clone());
        let answers = Answers::over_tls(Ipv4Addr::LOCALHOST, &shown, move |head, _| {
            sts::answer(head, &keys, |token| judge.takes(token).then_some(()).ok_or(Objection::Invalid))
        });
        Self { answers, path: token.path(), ca: token.beside("ca.crt", &authority.certificate()), token }
    }

    /// As the webhook of the cloud sets them; and whom to trust, and where STS is, which is where the region has it otherwise.
    fn variables<'a>(&'a self, role: &'a str) -> [(&'a str, &'a str); 5] {
        [
            ("AWS_ROLE_ARN", role),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", self.path.as_str()),
            ("AWS_ROLE_SESSION_NAME", SESSION),
            ("AWS_ENDPOINT_URL_STS", self.answers.url.as_str()),
            ("QUORATE_STORE_CA", self.ca.as_str()),
        ]
    }
}

fn place(server: &VersityGw, prefix: &str) -> Place {
    server.bare(prefix).with_option("region", REGION)
}

/// By keys that outlast each process, and by ones that have run out by the next request.
pub fn is_exchanged() {
    let Some(server) = VersityGw::start() else { return };
    for (prefix, lasting) in LIFETIMES {
        let sts = Sts::start(lasting);
        is_enough(&place(&server, prefix), &sts.variables(ROLE), lasting, &sts.token.taken);
    }
}

/// What was tried, for which role and why it failed; never the token or the keys.
fn expect_told(failure: &Failure, reason: Reason, words: &[&str]) {
    let words = [&["web identity", "AWS_WEB_IDENTITY_TOKEN_FILE"][..], words].concat();
    pod_token::expect_told(failure, reason, &words, &["WebIdentityToken=", SECRET]);
}

pub fn that_is_not_exchanged_is_told() {
    let Some(server) = VersityGw::start() else { return };
    let member = Served::start(Mood::Sound, large(0));
    let (sts, place) = (Sts::start(HOUR), place(&server, "refused"));
    let failure = place.failure_with(&sts.variables(OTHER_ROLE), &member);
    expect_told(&failure, Reason::StoreRefused, &[OTHER_ROLE, "AccessDenied: Not authorized"]);
    sts.token.renew("projected-for-somebody-else");
    let failure = place.failure_with(&sts.variables(ROLE), &member);
    expect_told(&failure, Reason::StoreRefused, &[ROLE, "InvalidIdentityToken: The ID Token"]);
    // The token goes over TLS alone.
    let plain = sts.answers.url.replace("https:", "http:");
    let variables = [&sts.variables(ROLE)[..], &[("AWS_ENDPOINT_URL_STS", plain.as_str())]].concat();
    let failure = place.failure_with(&variables, &member);
    expect_told(&failure, Reason::StoreFailed, &[ROLE, "scheme is not allowed"]);
    fs::remove_file(&sts.path).unwrap();
    let failure = place.failure_with(&sts.variables(ROLE), &member);
    expect_told(&failure, Reason::StoreFailed, &[ROLE, "token file", &sts.path]);
    assert_eq!(sts.token.taken.times(), 0);
}
