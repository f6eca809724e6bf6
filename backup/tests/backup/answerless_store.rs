//! A store that takes connections and never answers: a snapshot gives it up in time, and says so. It waits for a minute, so
//! it is among the first to begin: tests do in the order of their names.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use quorate_backup::snapshot::Reason;

use crate::fake::{Mood, Served};
use crate::snapshot::large;
use crate::stores::place::Place;
use crate::stores::s3::{ACCESS, REGION, SECRET};

/// A request may take a minute, and none is repeated later than a minute and a half after the first.
const LONGEST: Duration = Duration::from_secs(150);

#[test]
fn a_store_that_never_answers_is_given_up_in_time_and_told() {
    // The system takes the connections, and nobody ever reads what comes.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place::at("s3://backups/silent".to_owned())
        .with_option("endpoint", &format!("http://{}", silent.local_addr().unwrap()))
        .with_option("region", REGION)
        .with_credentials(&[("access-key-id", ACCESS), ("secret-access-key", SECRET)]);
    let member = Served::start(Mood::Sound, large(0));
    let begun = Instant::now();
    let failure = place.failure(&member);
    let took = begun.elapsed();
    assert!(took < LONGEST, "{took:?}: {}", failure.message);
    // Its Job tries again: a store may be back by then.
    assert!(failure.reason == Reason::StoreFailed && !failure.reason.is_final(), "{}", failure.message);
    for words in ["failed to write", "s3://backups/silent", "timed out"] {
        assert!(failure.message.contains(words), "{words}: {}", failure.message);
    }
    assert!(!failure.message.contains(SECRET), "{}", failure.message);
}
