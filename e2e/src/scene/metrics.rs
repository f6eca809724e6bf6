//! The metrics listener of a member, which answers long before its client port does. It fetches and reads numbers; it
//! judges only what "a healthy voter" is for the benchmark.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use hyper::body::Bytes;
use tokio::net::TcpStream;

use super::exchange::exchange;

/// The port of the metrics listener.
pub const PORT: u16 = 2381;
/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(2);
/// The gauge of the raft index that is known as committed.
const COMMITTED: &str = "etcd_server_proposals_committed_total";
/// How many raft entries a member may be behind what it knows as committed and still count as caught up.
const LAG: f64 = 100.0;

/// `GET http://<address>:<port><path>`: the status and the body.
pub async fn get(address: &str, port: u16, path: &str) -> Result<(u16, String)> {
    call(Method::GET, address, port, path, Bytes::new()).await
}

/// `POST http://<address>:<port><path>` with this body: the status and the answer.
pub async fn post(address: &str, port: u16, path: &str, body: String) -> Result<(u16, String)> {
    call(Method::POST, address, port, path, body.into()).await
}

async fn call(method: Method, address: &str, port: u16, path: &str, body: Bytes) -> Result<(u16, String)> {
    let asked = async {
        let stream = TcpStream::connect((address, port)).await?;
        exchange(stream, address, (method, path, body)).await
    };
    tokio::time::timeout(DEADLINE, asked).await.context("no answer in time")?
}

/// The path on the metrics listener.
pub async fn ask(address: &str, path: &str) -> Result<(u16, String)> {
    get(address, PORT, path).await
}

/// Brings a body to the path on the metrics listener.
pub async fn bring(address: &str, path: &str, body: String) -> Result<(u16, String)> {
    post(address, PORT, path, body).await
}

/// The value of a gauge or counter without labels in Prometheus' text form.
pub fn gauge(text: &str, name: &str) -> Option<f64> {
    let line = format!("\n{name} ");
    let value = match text.strip_prefix(line.trim_start()) {
        Some(value) => value,
        None => &text[text.find(&line)? + line.len()..],
    };
    value.lines().next()?.trim().parse().ok()
}

/// The sum of a counter over all label sets that `wanted` accepts.
pub fn sum(text: &str, name: &str, wanted: impl Fn(&str) -> bool) -> f64 {
    let values = text.lines().filter_map(|line| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once('}')?;
        if wanted(labels) { value.trim().parse::<f64>().ok() } else { None }
    });
    values.sum()
}

/// The raft index that this member knows as committed.
pub async fn committed(address: &str) -> Result<f64> {
    let (_, text) = ask(address, "/metrics").await?;
    gauge(&text, COMMITTED).context("no raft index in its metrics")
}

/// How far a member says it is, in raft entries.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What it knows as committed.
    pub committed: f64,
    /// What it has applied.
    pub applied: f64,
}

/// Demands that this member votes, sees a leader, and has applied what it knows as committed. That is its own word: one that
/// has not applied the entry that added it says of itself that it is no learner, so it is to be held against what the others
/// know as committed.
pub async fn is_healthy_voter(address: &str) -> Result<Progress> {
    let (status, _) = ask(address, "/livez").await?;
    ensure!(status == 200, "/livez answers {status}");
    let (_, text) = ask(address, "/metrics").await?;
    let value = |name| gauge(&text, name).with_context(|| format!("no {name} in its metrics"));
    ensure!(value("etcd_server_has_leader")? > 0.5, "it sees no leader");
    ensure!(value("etcd_server_is_learner")? < 0.5, "it is a learner");
    let progress = Progress { committed: value(COMMITTED)?, applied: value("etcd_server_proposals_applied_total")? };
    let behind = progress.committed - progress.applied;
    ensure!(behind <= LAG, "it is {behind} entries behind");
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE a gauge\na 1\nab 7\nr{verb=\"PUT\",resource=\"pods\"} 3\nr{verb=\"GET\",resource=\"pods\"} 40\nr{verb=\"PUT\",resource=\"leases\"} 500\n";

    #[test]
    fn a_gauge_is_found_by_its_whole_name() {
        assert_eq!(gauge(TEXT, "a"), Some(1.0));
        assert_eq!(gauge(TEXT, "b"), None);
    }

    #[test]
    fn counters_are_summed_over_the_wanted_labels() {
        let writes = sum(TEXT, "r", |labels| labels.contains("PUT") && !labels.contains("leases"));
        assert!((writes - 3.0).abs() < f64::EPSILON);
    }
}
