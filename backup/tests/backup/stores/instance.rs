//! The account of an instance of Google's, or of a pod with a workload identity there: the metadata server hands out its tokens to
//! whoever asks from there. That server is a double, as the store is.

use std::sync::{Arc, Mutex};

use jiff::SignedDuration;
use quorate_backup::snapshot::Reason;

use super::ambient::STRAY;
use super::google::Double;
use super::place::Place;
use super::pod_token::{Given, HOUR, LIFETIMES, expect_told, is_enough};
use crate::clouds::answers::Answers;
use crate::clouds::google::metadata;
use crate::clouds::google::tokens::Account;
use crate::fake::{Mood, Served};
use crate::snapshot::large;

/// The metadata server of an instance.
struct Instance {
    /// Where it is, without what it is asked in.
    host: String,
    token: Arc<Mutex<Option<String>>>,
    asked: Given,
    _answers: Answers,
}

impl Instance {
    /// Each token is said to last so long. It has no account yet.
    fn start(lasting: SignedDuration) -> Self {
        let (token, asked) = (Arc::<Mutex<Option<String>>>::default(), Given::default());
        let (handed_out, number) = (Arc::clone(&token), asked.clone());
        let answers = Answers::start(move |head, _| {
            number.once_more();
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
}

/// By a token that outlasts each process, and by ones that have run out by the next request.
pub fn is_asked_for() {
    let server = Double::start();
    for (prefix, lasting) in LIFETIMES {
        let instance = Instance::start(lasting);
        instance.has(server.writer());
        is_enough(&server.bare(prefix), &instance.variables(), lasting, &instance.asked);
    }
}

fn is_told(place: &Place, instance: &Instance, reason: Reason, words: &str) {
    let failure = place.failure_with(&instance.variables(), &Served::start(Mood::Sound, large(0)));
    // How each of these tokens begins.
    expect_told(&failure, reason, &[words], &["eyJ"]);
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
