//! Measures how long it takes until members are up, seen as finely as the API server allows. What "up" means is the same
//! for the floor and for Quorate.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;

use super::pod_watch::PodWatch;
use crate::scene::{Scene, is_ready, metrics};

/// How often it is looked: fine against the seconds that are measured. Not more often, as a member takes 7 ms of the
/// processor to tell its metrics.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// After this a run counts as hung.
const LIMIT: Duration = Duration::from_mins(3);

/// What is demanded of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Up {
    /// Their members are healthy voters, and the kubelet calls the pods Ready.
    Ready,
    /// Their members are healthy voters.
    Voting,
}

/// Looks until `look` succeeds; the time since `started`.
pub async fn until(what: &str, started: Instant, mut look: impl AsyncFnMut() -> Result<()>) -> Result<f64> {
    loop {
        match look().await {
            Ok(()) => return Ok(started.elapsed().as_secs_f64()),
            Err(last) if started.elapsed() > LIMIT => {
                bail!("waited {} s for {what}; last seen: {last:#}", LIMIT.as_secs())
            }
            Err(_) => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}

/// The pods with this label that are not on their way out.
pub async fn pods(scene: &Scene, label: &str) -> Result<Vec<Pod>> {
    let pods = scene.api::<Pod>().list(&ListParams::default().labels(label)).await?.items;
    Ok(pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
}

/// The UIDs of pods.
pub fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect()
}

/// The seconds since `started` until exactly `count` pods with this label are up, none of them one of `old`.
pub async fn until_up(
    (scene, label): (&Scene, &str),
    started: Instant,
    count: usize,
    old: &BTreeSet<String>,
    up: Up,
) -> Result<f64> {
    let watch = PodWatch::open(scene, label).await?;
    until("the members", started, async || are_up(&watch, count, old, up).await).await
}

/// Demands that exactly `count` of these pods are up, none of them one of `old`. The youngest are looked at first, and no
/// member is asked twice that has said enough: whoever tells its metrics takes from the others the time of the processor
/// that is being measured.
pub async fn are_up(watch: &PodWatch, count: usize, old: &BTreeSet<String>, up: Up) -> Result<()> {
    let pods = watch.pods();
    let is_new = |pod: &&Arc<Pod>| pod.metadata.uid.as_ref().is_some_and(|uid| !old.contains(uid));
    let mut new: Vec<&Pod> = pods.iter().filter(is_new).map(Arc::as_ref).collect();
    new.sort_by_key(|pod| std::cmp::Reverse(pod.metadata.creation_timestamp.as_ref().map(|time| time.0)));
    ensure!(new.len() == count, "{} pods, not {count}", new.len());
    let mut furthest = 0.0_f64;
    let mut applied = Vec::new();
    for pod in &new {
        ensure!(up == Up::Voting || is_ready(pod), "a pod is not Ready");
        let progress = metrics::is_healthy_voter(address(pod)?).await?;
        furthest = furthest.max(progress.committed);
        applied.push((pod, progress.applied));
    }
    // By their own word only. Now that they say so, it is held against how far anybody has come.
    for pod in pods.iter().filter(|pod| !is_new(pod)) {
        furthest = furthest.max(metrics::committed(address(pod)?).await?);
    }
    for (pod, _) in applied.into_iter().filter(|(_, applied)| *applied < furthest) {
        let applied = metrics::is_healthy_voter(address(pod)?).await?.applied;
        ensure!(applied >= furthest, "a member has applied {applied} entries, not {furthest}");
    }
    Ok(())
}

fn address(pod: &Pod) -> Result<&str> {
    pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).context("a pod without an address")
}

/// Demands that a pod's etcd runs and is ready from the image of this version: what the kubelet says of the container of
/// the image before is no answer.
pub fn runs(pod: &Pod, version: &str) -> Result<()> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let etcd = statuses.iter().find(|status| status.name == "etcd").context("a pod without the container etcd")?;
    ensure!(etcd.ready && etcd.image.ends_with(&format!(":v{version}")), "{} runs, ready: {}", etcd.image, etcd.ready);
    Ok(())
}

/// Waits for the moment of a second at which this run is to begin: those of all runs are spread evenly over it, however many
/// there are. Kubelets list their containers once a second and probe them once a second: what begins whenever a pod was just seen
/// to be Ready is met by that always as late, or always as early, and what begins at random needs hundreds of runs.
pub async fn moment_of(run: u32) {
    tokio::time::sleep(until_moment_of(run, SystemTime::now())).await;
}

/// How much of a second passes before this run begins. A multiple of the golden ratio falls into the widest gap that those before
/// it have left.
pub fn share_of(run: u32) -> f64 {
    (f64::from(run) * std::f64::consts::GOLDEN_RATIO).fract()
}

fn until_moment_of(run: u32, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64().fract();
    Duration::from_secs_f64((share_of(run) - now).rem_euclid(1.0))
}

/// Measures the floor and the value in turn, each run from its moment of a second on.
pub async fn in_turn(
    runs: u32,
    mut floor: impl AsyncFnMut(u32) -> Result<f64>,
    mut value: impl AsyncFnMut(u32) -> Result<f64>,
) -> Result<super::Measured> {
    let floor = async |run| {
        moment_of(run).await;
        floor(run).await
    };
    let value = async |run| {
        moment_of(run).await;
        value(run).await
    };
    alternately(runs, floor, value).await
}

/// Measures the floor and the value in turn, so that a slow minute of the machine meets both.
pub async fn alternately(
    runs: u32,
    mut floor: impl AsyncFnMut(u32) -> Result<f64>,
    mut value: impl AsyncFnMut(u32) -> Result<f64>,
) -> Result<super::Measured> {
    let mut measured = super::Measured::default();
    for run in 0..runs {
        let floor = floor(run).await.context("the floor")?;
        let value = value(run).await.context("the value")?;
        eprintln!("  run {}: floor {floor:.2} s, value {value:.2} s", run + 1);
        measured.floor.push(floor);
        measured.value.push(value);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moments_of_all_runs_are_spread_evenly_over_a_second() {
        let begins = |run: u32| {
            let now = UNIX_EPOCH + Duration::from_millis(7_321 * u64::from(run));
            let wait = until_moment_of(run, now);
            assert!(wait <= Duration::from_secs(1), "{wait:?}");
            (now + wait).duration_since(UNIX_EPOCH).unwrap().as_secs_f64().fract()
        };
        for runs in [5, 15] {
            let mut moments: Vec<_> = (1..=runs).map(begins).collect();
            moments.sort_by(f64::total_cmp);
            let around = moments.last().map(|last| last - 1.0).into_iter().chain(moments.iter().copied());
            let widest = around.zip(&moments).map(|(before, after)| after - before).fold(0.0, f64::max);
            assert!(widest < 2.0 / f64::from(runs), "{runs} runs: {widest}");
        }
    }
}
