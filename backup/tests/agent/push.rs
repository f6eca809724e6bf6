//! A ticket pushed to a waiting launcher: the one way in which it is taken, and all those in which it is not.

use std::net::SocketAddr;

use quorate_backup::launch::Reason;
use quorate_backup::ticket::{Start, Ticket};
use quorate_backup::ticket_push::{MAX_BYTES, PATH, SigningKey, sign};

use crate::process::{Launcher, Pod, ask, report, reports};

const POD: &str = "pod-1";

/// A launcher that takes pushes, and the operator's key.
struct Receiver {
    pod: Pod,
    key: SigningKey,
    launcher: Launcher,
    address: SocketAddr,
}

impl Receiver {
    fn new() -> Self {
        let key = SigningKey::generate().unwrap();
        let public = key.public_key().unwrap().to_string();
        let pod = Pod::new().with("QUORATE_POD_UID", POD).with("QUORATE_TICKET_KEY", &public);
        let mut launcher = pod.launch();
        let address = launcher.address();
        Self { pod, key, launcher, address }
    }

    fn envelope(&self, pod: &str, ticket: &Ticket) -> String {
        serde_json::to_string(&sign(&self.key, &pod.into(), &ticket.render().unwrap())).unwrap()
    }

    fn post(&self, body: &str) -> u16 {
        let (status, line) = ask(self.address, "POST", PATH, body);
        assert!(line.ends_with('\n') && line.lines().count() == 1, "{line:?}");
        status
    }

    /// Still waiting for its first ticket.
    fn waits(&self) {
        assert_eq!(report(self.address).reason, Reason::NoTicket);
        assert!(!self.pod.was_started());
    }
}

#[test]
fn a_signed_ticket_for_this_pod_is_followed_at_once() {
    let mut receiver = Receiver::new();
    let ticket = receiver.pod.ticket(Start::Create);
    assert_eq!(receiver.post(&receiver.envelope(POD, &ticket)), 202);
    assert_eq!(receiver.launcher.ends().code(), Some(42));
    assert!(receiver.pod.record().contains("argument --name=blue-0\n"));
    assert!(!receiver.pod.record().contains("QUORATE_"));
}

#[test]
fn what_is_forged_foreign_malformed_or_too_long_is_not_followed() {
    let mut receiver = Receiver::new();
    let ticket = receiver.pod.ticket(Start::Create);
    let good = receiver.envelope(POD, &ticket);

    let stranger = SigningKey::generate().unwrap();
    let forged = sign(&stranger, &POD.into(), &ticket.render().unwrap());
    assert_eq!(receiver.post(&serde_json::to_string(&forged).unwrap()), 403);
    assert_eq!(receiver.post(&good.replace("create", "resume")), 403);
    // Signed for another pod, and the same with this pod's name written over it.
    let foreign = receiver.envelope("pod-2", &ticket);
    assert_eq!(receiver.post(&foreign), 403);
    assert_eq!(receiver.post(&foreign.replace("pod-2", POD)), 403);

    for malformed in
        ["", "{}", "[1]", &good.replace("\"pod\"", "\"pods\""), &good.replace("\"signature\":\"", "\"signature\":\"x")]
    {
        assert_eq!(receiver.post(malformed), 400, "{malformed}");
    }
    assert_eq!(receiver.post(&good.replace('{', &" ".repeat(MAX_BYTES))), 413);
    assert_eq!(ask(receiver.address, "GET", PATH, "").0, 405);
    receiver.waits();

    // None of this has closed the inbox.
    assert_eq!(receiver.post(&good), 202);
    assert_eq!(receiver.launcher.ends().code(), Some(42));
}

#[test]
fn only_the_first_is_taken_also_if_it_is_refused_later() {
    let mut receiver = Receiver::new();
    let refused = receiver.pod.ticket(Start::Resume);
    let better = receiver.pod.ticket(Start::Create);
    assert_eq!(receiver.post(&receiver.envelope(POD, &refused)), 202);
    reports(receiver.address, Reason::VolumeHasNoEntry);
    assert_eq!(receiver.post(&receiver.envelope(POD, &refused)), 409, "a replay");
    assert_eq!(receiver.post(&receiver.envelope(POD, &better)), 409);
    assert!(!receiver.pod.was_started());
    // The annotation is what counts in the end.
    receiver.pod.show(&better);
    assert_eq!(receiver.launcher.ends().code(), Some(42));
}

#[test]
fn once_the_file_has_shown_a_ticket_no_push_is_taken() {
    let receiver = Receiver::new();
    receiver.pod.show(&receiver.pod.ticket(Start::Resume));
    reports(receiver.address, Reason::VolumeHasNoEntry);
    let good = receiver.envelope(POD, &receiver.pod.ticket(Start::Create));
    assert_eq!(receiver.post(&good), 409);
    receiver.pod.show_text("");
    reports(receiver.address, Reason::NoTicket);
    assert_eq!(receiver.post(&good), 409);
    receiver.waits();
}

#[test]
fn without_a_key_or_with_a_broken_one_there_is_no_inbox() {
    for pod in [
        Pod::new().with("QUORATE_POD_UID", POD),
        Pod::new().with("QUORATE_POD_UID", POD).with("QUORATE_TICKET_KEY", "00"),
    ] {
        let mut launcher = pod.launch();
        let address = launcher.address();
        let key = SigningKey::generate().unwrap();
        let pushed = sign(&key, &POD.into(), &pod.ticket(Start::Create).render().unwrap());
        assert_eq!(ask(address, "POST", PATH, &serde_json::to_string(&pushed).unwrap()).0, 404);
        assert_eq!(report(address).reason, Reason::NoTicket);
    }
}
