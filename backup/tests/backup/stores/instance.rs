//! The account of an instance of Google's, or of a pod with a workload identity there: the metadata server hands out its tokens to
//! whoever asks from there. That server is a double, as the store is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use jiff::SignedDuration;
use quorate_backup::snapshot::Reason;

use super::ambient::STRAY;
use super::google::Double;
use super::place::Place;
use crate::clouds::answers::Answers;
use crate::clouds::google::metadata;
use crate::clouds::google::tokens::Account;
use crate::fake::{Mood, Served};
use crate::snapshot::large;

const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// The metadata server of an instance.
struct Instance {
    /// Where it is, without what it is asked in.
    host: String,
    token: Arc<Mutex<Option<String>>>,
    asked: Arc<AtomicUsize>,
    _answers: Answers,
}

impl Instance {
    /// Each token is said to last so long. It has no account yet.
    fn start(lasting: SignedDuration) -> Self {
        let (token, asked) = (Arc::<Mutex<Option<String>>>::default(), Arc::<AtomicUsize>::default());
        let (handed_out, number) = (Arc::clone(&token), Arc::clone(&asked));
        let answers = Answers::start(move |head, _| {
            number.fetch_add(1, Ordering::SeqCst);
            metadata::answer(head, handed_out.lock().unwrap().as_deref(), lasting)
        });
        Self { host: format!("127.0.0.1:{}", answers.port), token, asked, _answers: answers }
    }

    /// From now on it has this account.
    fn has(&self, account: &Account) {
        *self.token.lock().unwrap() = Some(account.token());
    }

    /// As somebody sets them who has the metadata server elsewhere: the library asks both, one after the other.
    fn variables(&self) -> Vec<(&str, &str)> {
        [&[("GCE_METADATA_HOST", self.host.as_str()), ("GCE_METADATA_IP", self.host.as_str())][..], &STRAY].concat()
    }

    /// How often it has been asked since this was asked last.
    fn asked_since(&self, before: &mut usize) -> usize {
        let now = self.asked.load(Ordering::SeqCst);
        now - std::mem::replace(before, now)
    }
}

/// A backup is put, listed and read: by a token that outlasts each process, and by ones that have run out by the next request.
pub fn is_asked_for() {
    let server = Double::start();
    let member = Served::start(Mood::Sound, large(0));
    let scratch = tempfile::tempdir().unwrap();
    let proof = ["--lineage", "blue", "--scratch", scratch.path().to_str().unwrap()];
    for (prefix, lasting) in [("lasting", HOUR), ("brief", SignedDuration::ZERO)] {
        let (instance, place) = (Instance::start(lasting), server.bare(prefix));
        instance.has(server.writer());
        let variables = instance.variables();
        let mut before = 0;
        let mut asked = || {
            let times = instance.asked_since(&mut before);
            let as_often_as_needed = if lasting.is_zero() { times > 1 } else { times == 1 };
            assert!(as_often_as_needed, "{prefix}: {times}");
        };
        let taken = place.snapshot_with(&variables, &member).json();
        assert_eq!(taken["revision"].as_u64(), Some(7), "{taken}");
        asked();
        let listed = place.run_with(&variables, "list", &[]).json();
        assert_eq!((listed[0]["state"].as_str(), listed.as_array().unwrap().len()), (Some("whole"), 1), "{listed}");
        asked();
        let proved = place.run_with(&variables, "verify", &proof).json();
        assert_eq!(proved["revision"].as_u64(), Some(7), "{proved}");
        asked();
    }
}

fn is_told(place: &Place, instance: &Instance, reason: Reason, words: &str) {
    let failure = place.failure_with(&instance.variables(), &Served::start(Mood::Sound, large(0)));
    assert_eq!(failure.reason, reason, "{}", failure.message);
    assert!(failure.message.contains(words), "{words}: {}", failure.message);
    // How each of these tokens begins.
    assert!(!failure.message.contains("eyJ"), "{}", failure.message);
}

pub fn that_may_not_write_is_told() {
    let (server, instance) = (Double::start(), Instance::start(HOUR));
    let place = server.bare("refused");
    is_told(&place, &instance, Reason::StoreFailed, "404");
    // One that the store does not know, one that calls itself as one does that it knows, and one that may only read.
    for account in [&Account::new("nobody@quorate.example"), &Account::new(server.writer().email())] {
        instance.has(account);
        is_told(&place, &instance, Reason::StoreRefused, "AuthenticationRequired");
    }
    instance.has(server.reader());
    is_told(&place, &instance, Reason::StoreRefused, "AccessDenied");
    assert_eq!(server.count(""), 0);
}
