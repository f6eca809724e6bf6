//! S3 over TLS, with a certificate that only an authority of this test has signed.

use std::fs;

use quorate_backup::archive::status;
use quorate_backup::snapshot::Reason;

use super::Server;
use super::certificates::Authority;
use super::checks;
use super::place::Place;
use super::s3::VersityGw;
use crate::archive_roles::{Archive, put, reached};
use crate::fake::{Mood, Served};
use crate::real::{Etcd, newest};
use crate::snapshot::large;

pub async fn does_what_a_store_has_to() {
    if let Some(server) = VersityGw::over_tls(&Authority::new("backups")) {
        checks::all(&server).await;
    }
}

/// How many backups are shown to who has these arguments as well.
fn listed(place: &Place, more: &[&str]) -> usize {
    place.run("list", more).json().as_array().unwrap().len()
}

pub fn is_trusted_where_its_authority_is_told() {
    let authority = Authority::new("backups");
    let Some(server) = VersityGw::over_tls(&authority) else { return };
    let member = Served::start(Mood::Sound, large(0));
    let (told, untold) = (server.place("agent"), server.untrusted("agent"));
    // By `ca.crt` in the Secret, and by a file.
    told.snapshot(&member, &[]).json();
    assert_eq!(listed(&told, &[]), 1);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, authority: &Authority| {
        let path = folder.path().join(name);
        fs::write(&path, authority.certificate()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (own, others) = (file("own", &authority), file("others", &Authority::new("others")));
    untold.snapshot(&member, &["--store-ca", &own]).json();
    assert_eq!(listed(&untold, &["--store-ca", &own]), 2);

    let failure = untold.failure(&member);
    assert_eq!(failure.reason, Reason::StoreFailed, "{}", failure.message);
    let ended = untold.run("list", &["--store-ca", &others]);
    for text in [failure.message.as_str(), ended.error()] {
        for word in ["no authority that is trusted", "ca.crt", "--store-ca", "s3://backups/agent"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
    // Nothing was written by who did not trust it.
    assert_eq!(listed(&told, &[]), 2);
}

/// An archive goes on in its generation when another authority has signed the store's certificate, once it is told to trust that.
pub async fn is_trusted_anew_without_a_restart() {
    let Some(binaries) = newest() else { return };
    let Some(mut server) = VersityGw::over_tls(&Authority::new("backups")) else { return };
    let (etcd, place) = (Etcd::start(&binaries), server.place("agent"));
    let store = place.arguments();
    let arguments: Vec<_> = store.iter().map(String::as_str).chain(["--flush-every", "200ms"]).collect();
    let mut archive = Archive::into(&etcd, &arguments);
    let before = put(&etcd).await;
    let first = archive.says("all of it", |report| reached(report, before)).await;

    let next = Authority::new("next");
    server.restart(Some(&next));
    let meanwhile = put(&etcd).await;
    let is_told =
        |fault: &status::Fault| fault.reason == status::Reason::StoreFailed && fault.message.contains("ca.crt");
    archive.says("whom to trust", |report| report.fault.as_ref().is_some_and(is_told)).await;
    place.renew("ca.crt", &next.certificate());
    let well = archive.says("all of it", |report| report.fault.is_none() && reached(report, meanwhile)).await;
    assert_eq!(well.generation, first.generation);
}
