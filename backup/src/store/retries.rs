//! How long a store may take, and how often it is asked again: each request has an end, and so has repeating it.

use std::time::Duration;

use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use tokio::time::sleep;

/// For a TCP and TLS connection. Across continents it takes a second.
const CONNECT: Duration = Duration::from_secs(5);
/// For a request with its whole content, of which the largest is a part of 8 MiB: 140 KB/s are still enough.
const REQUEST: Duration = Duration::from_mins(1);
/// How often a request is repeated after a server's error, a throttle or a lost connection.
const RETRIES: usize = 6;
/// After which time no request is repeated. Longer outages are for the caller, who knows what is worth waiting for.
const RETRY_FOR: Duration = Duration::from_secs(90);
/// The first pause. Each next one is up to twice as long, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause: stores ask for seconds when they throttle.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often a creation is tried of which it is not clear what came. Each request of it has been repeated already.
pub(crate) const TRIES: u32 = 5;
/// The pause after the first of these tries; each next one is twice as long.
const PAUSE_AFTER_TRY: Duration = Duration::from_millis(200);

/// The pause before such a try: none before the first.
pub(crate) async fn before_try(attempt: u32) {
    if attempt > 0 {
        sleep(PAUSE_AFTER_TRY * 2_u32.pow(attempt - 1)).await;
    }
}

pub(super) fn client() -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT).with_timeout(REQUEST)
}

pub(super) fn policy() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff: LONGEST_PAUSE, base: 2.0 },
        max_retries: RETRIES,
        retry_timeout: RETRY_FOR,
    }
}
