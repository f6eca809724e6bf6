//! Waiting for a condition, with what was last seen in the message when it does not come. Nothing here sleeps for a
//! fixed time and hopes.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

/// How often a condition is looked at: often enough that waiting adds nothing one would notice, seldom enough for a
/// small API server.
const LOOK_INTERVAL: Duration = Duration::from_millis(150);
/// How long one look may take. A hung connection is a look that saw nothing.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);

/// How long [`wait_for`] takes at most with this deadline: its last look may begin right before that.
pub const fn longest(deadline: Duration) -> Duration {
    deadline.saturating_add(LOOK_INTERVAL).saturating_add(LOOK_DEADLINE)
}

/// Looks until `look` succeeds and returns what it saw. What a look fails with is what the message of a wait that ran
/// out of time says was last seen.
pub async fn wait_for<T>(what: &str, deadline: Duration, mut look: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        match in_time(look()).await {
            Ok(seen) => return Ok(seen),
            Err(last) if started.elapsed() >= deadline => {
                bail!("waited {} s for {what}; last seen: {last:#}", deadline.as_secs())
            }
            Err(_) => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}

/// Demands that something holds at every look for as long as `span`. That something does *not* happen can only be seen
/// by looking for a while; a look that hangs has not seen it.
pub async fn stays(what: &str, span: Duration, mut look: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < span {
        if let Err(seen) = in_time(look()).await {
            bail!("{what} did not last: after {:.1} s: {seen:#}", started.elapsed().as_secs_f64());
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}

/// What was looked at, if that came in time.
fn in_time<T>(look: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>> {
    // Boxed: it would take its room in whoever waits several times over.
    let looked = tokio::time::timeout(LOOK_DEADLINE, Box::pin(look));
    async { looked.await.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", LOOK_DEADLINE.as_secs()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_returns_what_it_waited_for() {
        let mut looks = 0;
        let seen = wait_for("three looks", Duration::from_secs(5), async || {
            looks += 1;
            anyhow::ensure!(looks == 3, "look {looks}");
            Ok(looks)
        });
        assert_eq!(seen.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_wait_that_runs_out_says_what_was_last_seen() {
        let seen = wait_for("rain", Duration::ZERO, async || -> Result<()> { bail!("sun") }).await;
        assert_eq!(seen.unwrap_err().to_string(), "waited 0 s for rain; last seen: sun");
    }

    #[tokio::test]
    async fn what_changes_did_not_stay() {
        let mut looks = 0;
        let seen = stays("silence", Duration::from_secs(5), async || {
            looks += 1;
            anyhow::ensure!(looks < 2, "a noise");
            Ok(())
        });
        let error = seen.await.unwrap_err().to_string();
        assert!(error.starts_with("silence did not last") && error.ends_with("a noise"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_did_not_stay() {
        let seen = stays("silence", Duration::from_secs(5), async || std::future::pending().await);
        assert_eq!(seen.await.unwrap_err().to_string(), "silence did not last: after 0.0 s: no answer within 10 s");
    }
}
