//! What S3 reads in a request of what somebody has set: from a server that keeps the first one and refuses it.

use std::sync::{Arc, Mutex};

use http::Method;
use http::request::Parts;
use quorate_backup::snapshot::Reason;

use super::place::Place;
use super::s3::{ACCESS, REGION, SECRET};
use crate::clouds::answers::{Answers, forbidden};
use crate::fake::{Mood, Served};
use crate::snapshot::large;

const KEY: &str = "arn:aws:kms:eu-central-1:111122223333:key/backups";
const SESSION: &str = "token-of-a-session";
/// The headers by which it is told them, and the one that names what is signed.
const ENCRYPTION: &str = "x-amz-server-side-encryption";
const ENCRYPTION_KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";
const TOKEN: &str = "x-amz-security-token";
const AUTHORIZATION: &str = "authorization";

/// The first request of who puts something there.
fn first_put(place: impl Fn(&str) -> Place) -> Parts {
    let asked = Arc::<Mutex<Vec<Parts>>>::default();
    let tell = Arc::clone(&asked);
    let server = Answers::start(move |head, _| {
        tell.lock().unwrap().push(head.clone());
        forbidden("AccessDenied")
    });
    let failure = place(&server.url).failure(&Served::start(Mood::Sound, large(0)));
    assert_eq!(failure.reason, Reason::StoreRefused, "{}", failure.message);
    let first = asked.lock().unwrap().remove(0);
    assert_eq!(first.method, Method::PUT, "{first:?}");
    first
}

fn header<'a>(request: &'a Parts, name: &str) -> Option<&'a str> {
    request.headers.get(name).map(|value| value.to_str().unwrap())
}

fn place(endpoint: &str, more: &[(&str, &str)]) -> Place {
    let keys = [&[("access-key-id", ACCESS), ("secret-access-key", SECRET)][..], more].concat();
    let place = Place::at("s3://backups/prefix".to_owned()).with_option("endpoint", endpoint);
    place.with_option("region", REGION).with_credentials(&keys)
}

pub fn has_what_options_and_credentials_say() {
    let plain = first_put(|endpoint| place(endpoint, &[]));
    assert_eq!(plain.uri.path(), "/backups/prefix/quorate-backups.json");
    assert_eq!([ENCRYPTION, ENCRYPTION_KEY, TOKEN].map(|name| header(&plain, name)), [None; 3]);

    let told = first_put(|endpoint| {
        let place = place(endpoint, &[("session-token", SESSION)]);
        place.with_option("kms-key", KEY).with_option("addressing", "virtual-hosted")
    });
    // The endpoint names the bucket, so the path does not.
    assert_eq!(told.uri.path(), "/prefix/quorate-backups.json");
    let wanted = ["aws:kms", KEY, SESSION].map(Some);
    assert_eq!([ENCRYPTION, ENCRYPTION_KEY, TOKEN].map(|name| header(&told, name)), wanted);
    let signed = header(&told, AUTHORIZATION).unwrap();
    for name in [ENCRYPTION, ENCRYPTION_KEY, TOKEN] {
        assert!(signed.contains(name), "{name} is not among what is signed: {signed}");
    }
}
