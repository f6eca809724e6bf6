//! How long writes take while they come at a steady pace. It writes and counts; it knows nothing of backups.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etcd_client::Client;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{load, process};

/// Writes a second: a busy cluster, and far from what etcd can take.
const PACE: u32 = 1_000;
/// For so long.
const SPAN: Duration = Duration::from_secs(10);

/// How long one try of a write may take while the leadership moves: what a follower has sent on in that moment is
/// dropped without a word, and only its client's deadline ends it. A write to a busy disk hardly ever takes so long.
const TRY: Duration = Duration::from_millis(400);
/// The pause before it is tried again: an error that comes at once must not keep the processors busy.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a write may be tried: far longer than an election. An etcd that takes none any more is no measurement.
const LIMIT: Duration = Duration::from_secs(20);

/// The 99th percentile of the time that a write took, in milliseconds. Writes are sent on time however long others take, so
/// that a pause is seen by all that fall into it.
pub async fn p99(client: &Client) -> Result<f64> {
    paced(client, once).await
}

/// The same while the leadership moves: a write that fails is repeated, and took as long as all its tries.
pub async fn p99_across_moves(client: &Client) -> Result<f64> {
    paced(client, until_acknowledged).await
}

async fn once(mut client: Client, key: String) -> Result<()> {
    client.put(key, load::value(), None).await?;
    Ok(())
}

async fn until_acknowledged(mut client: Client, key: String) -> Result<()> {
    let (key, value) = (key.into_bytes(), load::value());
    let tries = async {
        while !matches!(timeout(TRY, client.put(key.clone(), value.clone(), None)).await, Ok(Ok(_))) {
            sleep(PAUSE).await;
        }
    };
    timeout(LIMIT, tries).await.context("a write was not acknowledged, however often it was tried")
}

async fn paced<W>(client: &Client, write: impl Fn(Client, String) -> W) -> Result<f64>
where
    W: Future<Output = Result<()>> + Send + 'static,
{
    process::settle().await?;
    let mut ticks = interval(SPAN / (PACE * u32::try_from(SPAN.as_secs())?));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut calls = JoinSet::new();
    let end = Instant::now() + SPAN;
    while Instant::now() < end {
        let due = ticks.tick().await;
        let written = write(client.clone(), format!("pace-{:04}", fastrand::u32(0..PACE)));
        calls.spawn(async move { written.await.map(|()| due.elapsed()) });
    }
    let mut took = Vec::new();
    while let Some(call) = calls.join_next().await {
        took.push(call??);
    }
    percentile(took, 99).map(|span| span.as_secs_f64() * 1e3).context("nothing was written")
}

fn percentile(mut spans: Vec<Duration>, percent: usize) -> Option<Duration> {
    spans.sort_unstable();
    spans.get((spans.len() * percent).div_ceil(100).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let spans = |count: u64| (1..=count).rev().map(Duration::from_millis).collect::<Vec<_>>();
        assert_eq!(percentile(spans(200), 99), Some(Duration::from_millis(198)));
        assert_eq!(percentile(spans(1), 99), Some(Duration::from_millis(1)));
        assert_eq!(percentile(vec![], 99), None);
    }
}
