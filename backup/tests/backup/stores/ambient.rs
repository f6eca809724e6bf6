//! Credentials that a process has from where it runs, where no Secret is given: its environment holds them, or names a service
//! of the cloud that hands them out. Those that S3 and Azure have over TLS alone are in `web_identity` and `workload_identity`,
//! that of an instance of Google's in `instance`.

use std::fs;

use http::header::AUTHORIZATION;
use jiff::{SignedDuration, Timestamp};
use quorate_backup::snapshot::Reason;
use serde_json::json;

use super::Server;
use super::google::{Double, KEY_FILE};
use super::place::Place;
use super::s3::{ACCESS, REGION, SECRET, VersityGw};
use crate::clouds::answers::{Answers, document, forbidden};
use crate::fake::{Mood, Served};
use crate::snapshot::large;

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1";
/// What the library below would take, and what nobody means who sets it for something else.
pub const STRAY: [(&str, &str); 10] = [
    ("TOKEN", "stray"),
    ("ENDPOINT", NOWHERE),
    ("AWS_TOKEN", "stray"),
    ("AWS_ENDPOINT", NOWHERE),
    ("AWS_ENDPOINT_URL", NOWHERE),
    ("AWS_ENDPOINT_URL_S3", NOWHERE),
    ("AWS_BUCKET", "stray"),
    ("AWS_SKIP_SIGNATURE", "true"),
    ("AZURE_STORAGE_TOKEN", "stray"),
    ("GOOGLE_SERVICE_ACCOUNT", "/nowhere/stray"),
];

fn member() -> Served {
    Served::start(Mood::Sound, large(0))
}

/// A snapshot is taken in a process with these variables, beside stray ones.
fn is_taken(place: &Place, variables: &[(&str, &str)]) {
    let taken = place.snapshot_with(&[variables, &STRAY].concat(), &member()).json();
    assert_eq!(taken["revision"].as_u64(), Some(7), "{taken}");
}

/// A snapshot in a process with these variables is refused by the store.
fn is_refused(place: &Place, variables: &[(&str, &str)]) {
    let failure = place.failure_with(variables, &member());
    assert_eq!(failure.reason, Reason::StoreRefused, "{variables:?}: {}", failure.message);
}

pub fn keys_of_s3_are_taken() {
    let Some(server) = VersityGw::start() else { return };
    let place = server.bare("environment");
    let keys = [("AWS_ACCESS_KEY_ID", ACCESS), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", REGION)];
    is_taken(&place, &keys);
    // The last of two counts. A token is of a session, and versitygw knows none.
    for wrong in [("AWS_ACCESS_KEY_ID", "nobody"), ("AWS_SECRET_ACCESS_KEY", "another"), ("AWS_SESSION_TOKEN", "x")] {
        is_refused(&place, &[&keys[..], &[wrong]].concat());
    }
    // A Secret goes before what the environment says.
    let place = server.place("secret");
    is_taken(&place, &[("AWS_ACCESS_KEY_ID", "nobody"), ("AWS_SECRET_ACCESS_KEY", "another")]);
}

/// As EKS does it (Pod Identity): an agent on the node gives keys to who shows the pod's token.
pub fn an_identity_of_a_pod_is_exchanged_for_keys_of_s3() {
    let Some(server) = VersityGw::start() else { return };
    let agent = Answers::start(|head, _| {
        if head.headers.get(AUTHORIZATION).is_none_or(|token| token != "projected") {
            return forbidden("AccessDenied");
        }
        let expiration = Timestamp::now() + SignedDuration::from_hours(1);
        // The keys are none of a session, which versitygw would not know.
        document(&json!({"AccessKeyId": ACCESS, "SecretAccessKey": SECRET, "Token": "", "Expiration": expiration}))
    });
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, token: &str| {
        let path = folder.path().join(name);
        fs::write(&path, token).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (own, others) = (file("own", "projected"), file("others", "of-another-pod"));
    let variables = |token| {
        [("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.url.as_str()), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)]
    };
    let place = server.bare("pod").with_option("region", REGION);
    is_taken(&place, &variables(&own));
    is_refused(&place, &variables(&others));
}

pub fn a_key_file_of_google_is_taken() {
    let mut server = Double::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(KEY_FILE);
    fs::write(&file, server.key()).unwrap();
    let variables = [("GOOGLE_APPLICATION_CREDENTIALS", file.to_str().unwrap())];
    let place = server.bare("environment");
    is_taken(&place, &variables);
    server.change_key();
    is_refused(&place, &variables);
}
