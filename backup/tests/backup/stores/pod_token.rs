//! A pod's own token, as the kubelet keeps it in a file, and what comes of one that a cloud exchanges for credentials. Who
//! exchanges it is next door.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::SignedDuration;
use quorate_backup::snapshot::{Failure, Reason};
use tempfile::TempDir;

use super::place::Place;
use crate::fake::{Mood, Served};
use crate::snapshot::large;

/// What no message may show of it.
pub const SECRET: &str = "projected";

pub const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// How long credentials last, by a name: they outlast each process, or have run out by the next request.
pub const LIFETIMES: [(&str, SignedDuration); 2] = [("lasting", HOUR), ("brief", SignedDuration::ZERO)];

/// How often somebody was asked for credentials and gave them. Clones share it.
#[derive(Clone, Default)]
pub struct Given(Arc<AtomicUsize>);

impl Given {
    pub fn once_more(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The file with the token. Each is taken once, and the next one is in the file by then.
#[derive(Clone)]
pub struct PodToken {
    folder: Arc<TempDir>,
    pub taken: Given,
}

impl PodToken {
    pub fn new() -> Self {
        let token = Self { folder: Arc::new(tempfile::tempdir().unwrap()), taken: Given::default() };
        token.renew(&numbered(0));
        token
    }

    /// Its file.
    pub fn path(&self) -> String {
        self.file("token")
    }

    /// Another token is in the file.
    pub fn renew(&self, token: &str) {
        fs::write(self.path(), token).unwrap();
    }

    /// A file beside it with this text.
    pub fn beside(&self, name: &str, text: &str) -> String {
        let path = self.file(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Whether it is the one that is in the file, which is another one then.
    pub fn takes(&self, token: &str) -> bool {
        let right = token == numbered(self.taken.times());
        if right {
            self.renew(&numbered(self.taken.times() + 1));
            self.taken.once_more();
        }
        right
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

fn numbered(number: usize) -> String {
    format!("{SECRET}-{number}")
}

/// A backup is put, listed and proved by processes with these variables, to which credentials are given once each where they last,
/// and more often where they have run out by the next request.
pub fn is_enough(place: &Place, variables: &[(&str, &str)], lasting: SignedDuration, given: &Given) {
    let member = Served::start(Mood::Sound, large(0));
    let scratch = tempfile::tempdir().unwrap();
    let proof = ["--lineage", "blue", "--scratch", scratch.path().to_str().unwrap()];
    let mut before = given.times();
    let mut as_often_as_needed = || {
        let times = given.times() - std::mem::replace(&mut before, given.times());
        assert!(if lasting.is_zero() { times > 1 } else { times == 1 }, "{lasting}: {times}");
    };
    let taken = place.snapshot_with(variables, &member).json();
    assert_eq!(taken["revision"].as_u64(), Some(7), "{taken}");
    as_often_as_needed();
    let listed = place.run_with(variables, "list", &[]).json();
    assert_eq!((listed[0]["state"].as_str(), listed.as_array().unwrap().len()), (Some("whole"), 1), "{listed}");
    as_often_as_needed();
    let proved = place.run_with(variables, "verify", &proof).json();
    assert_eq!(proved["revision"].as_u64(), Some(7), "{proved}");
    as_often_as_needed();
}

/// A failure is told with this reason and these words, and never with a pod's token or another secret.
pub fn expect_told(failure: &Failure, reason: Reason, words: &[&str], secrets: &[&str]) {
    assert_eq!(failure.reason, reason, "{}", failure.message);
    for word in words {
        assert!(failure.message.contains(word), "{word}: {}", failure.message);
    }
    for secret in [&[SECRET], secrets].concat() {
        assert!(!failure.message.contains(secret), "{secret}: {}", failure.message);
    }
}
