//! A store that does not serve when an archive starts: it refuses the credentials, has too much to do, or is not there at all.
//! The archive says so and waits, and records by itself once the store serves.

use quorate_backup::archive::status::{Fault, Reason, Role};

use super::google::{Double, KEY_FILE, Trouble};
use super::place::Place;
use super::s3::{SECRET, VersityGw};
use super::{Flaw, Server};
use crate::archive_roles::{Archive, put, reached};
use crate::real::{Etcd, newest};

const PREFIX: &str = "late";

/// An archive that starts now says this of the store, and records once that is mended.
async fn begins_once_it_serves(etcd: &Etcd, place: &Place, reason: Reason, mend: impl FnOnce()) {
    let store = place.arguments();
    let arguments: Vec<_> = store.iter().map(String::as_str).chain(["--flush-every", "200ms"]).collect();
    let mut archive = Archive::into(etcd, &arguments);
    let says = |fault: &Fault| fault.reason == reason;
    let told = archive.says("of the store", |report| report.fault.as_ref().is_some_and(says)).await;
    assert_eq!((&told.head, &told.generation), (&None, &None), "nothing is stored");
    let message = told.fault.unwrap().message;
    assert!(message.contains(&place.address().to_string()), "{message}");
    assert!(!archive.is_ready(), "there is nothing to go on with");
    // Nobody has lost what is written meanwhile: the full snapshot will have it.
    let meanwhile = put(etcd).await;
    mend();
    let well = archive.says("well", |report| report.fault.is_none() && reached(report, meanwhile)).await;
    assert_eq!(well.role, Role::Committer);
    assert!(archive.is_ready());
    let last = put(etcd).await;
    archive.says("all of it", |report| reached(report, last)).await;
    archive.kill();

    let chain = place.only_chain().await;
    assert!(chain.full.revision.to_etcd() >= meanwhile && chain.head().to_etcd() >= last, "{}", chain.head());
}

/// Whatever keeps the store from serving.
pub async fn is_waited_for() {
    let Some(binaries) = newest() else { return };
    let etcd = Etcd::start(&binaries);
    // An account that may only read, and a key that is not known: 403 and 401.
    for flaw in [Flaw::ReadOnly, Flaw::WrongKey] {
        let server = Double::start();
        let place = server.flawed(PREFIX, flaw).unwrap();
        begins_once_it_serves(&etcd, &place, Reason::StoreRefused, || place.renew(KEY_FILE, &server.key())).await;
    }
    // S3 says 403 to a wrong key, whatever it is asked.
    if let Some(server) = VersityGw::start() {
        let place = server.flawed(PREFIX, Flaw::WrongKey).unwrap();
        begins_once_it_serves(&etcd, &place, Reason::StoreRefused, || place.renew("secret-access-key", SECRET)).await;
    }
    // 503 to each request, however often it comes.
    let server = Double::troubled(Trouble::Overloaded);
    let place = server.place(PREFIX);
    begins_once_it_serves(&etcd, &place, Reason::StoreFailed, || server.turn_to(Trouble::None)).await;
    assert_eq!(server.count("/full"), 1);
    // No connection.
    let mut server = Double::away();
    let place = server.place(PREFIX);
    begins_once_it_serves(&etcd, &place, Reason::StoreFailed, || server.listen()).await;
}
