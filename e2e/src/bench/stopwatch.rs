//! Measures how long it takes until members are up, seen as finely as the API server allows. What "up" means is the same
//! for the floor and for Quorate.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;

use super::pod_watch::PodWatch;
use crate::scene::metrics::{self, Progress};
use crate::scene::{Scene, is_ready};

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
    let mut members = Members::open((scene, label), count, old, up).await?;
    until("the members", started, async || members.are_up().await).await
}

/// How members are asked.
trait Ask {
    /// How far a member is; an error unless it is a healthy voter by its own word.
    async fn healthy_voter(&self, pod: &Pod) -> Result<Progress>;
    /// What a member knows as committed.
    async fn committed(&self, pod: &Pod) -> Result<f64>;
}

/// Asks the metrics listener.
struct Metrics;

impl Ask for Metrics {
    async fn healthy_voter(&self, pod: &Pod) -> Result<Progress> {
        metrics::is_healthy_voter(address(pod)?).await
    }

    async fn committed(&self, pod: &Pod) -> Result<f64> {
        metrics::committed(address(pod)?).await
    }
}

/// The members of the pods with a label, which are awaited.
pub struct Members {
    watch: PodWatch,
    awaited: Awaited,
}

impl Members {
    /// Awaits that exactly `count` are up, none of them one of `old`.
    pub async fn open((scene, label): (&Scene, &str), count: usize, old: &BTreeSet<String>, up: Up) -> Result<Self> {
        let awaited = Awaited { count, old: old.clone(), up, said_so: BTreeSet::new() };
        Ok(Self { watch: PodWatch::open(scene, label).await?, awaited })
    }

    /// The pods that are not on their way out.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.watch.pods()
    }

    /// Demands that they are up now.
    pub async fn are_up(&mut self) -> Result<()> {
        self.awaited.are_up(&self.watch.pods(), &Metrics).await
    }
}

/// Which members are awaited, and the UIDs of the pods of those that have said that they are healthy voters. Nobody is asked for
/// that again until all have: whoever tells its metrics takes from the others the time of the processor that is being measured.
struct Awaited {
    count: usize,
    old: BTreeSet<String>,
    up: Up,
    said_so: BTreeSet<String>,
}

impl Awaited {
    /// The oldest of the others is asked alone until it says so; then all are asked together.
    async fn are_up(&mut self, pods: &[Arc<Pod>], ask: &impl Ask) -> Result<()> {
        let (others, mut new): (Vec<&Pod>, Vec<&Pod>) =
            pods.iter().map(Arc::as_ref).partition(|pod| self.old.contains(uid(pod)));
        new.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        ensure!(new.len() == self.count, "{} pods, not {}", new.len(), self.count);
        ensure!(self.up == Up::Voting || new.iter().all(|pod| is_ready(pod)), "a pod is not Ready");
        let mut said = Vec::new();
        if let Some(first) = new.iter().position(|pod| !self.said_so.contains(uid(pod))) {
            let first = new.remove(first);
            said.push((first, ask.healthy_voter(first).await?));
        }
        let rest = join_all(new.into_iter().map(async |pod| (pod, ask.healthy_voter(pod).await)));
        let others = try_join_all(others.into_iter().map(|pod| ask.committed(pod)));
        let (rest, known) = tokio::join!(rest, others);
        let mut not_so = None;
        for (pod, answer) in rest {
            match answer {
                Ok(progress) => said.push((pod, progress)),
                Err(error) => not_so = Some(error),
            }
        }
        self.said_so.extend(said.iter().map(|(pod, _)| uid(pod).to_owned()));
        if let Some(error) = not_so {
            return Err(error);
        }
        // By their own word only. Now that all say so, it is held against how far anybody has come.
        let furthest = said.iter().map(|(_, said)| said.committed).chain(known?).fold(0.0, f64::max);
        for (pod, _) in said.into_iter().filter(|(_, said)| said.applied < furthest) {
            let applied = ask.healthy_voter(pod).await?.applied;
            ensure!(applied >= furthest, "a member has applied {applied} entries, not {furthest}");
        }
        Ok(())
    }
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
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

    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use anyhow::anyhow;
    use serde_json::json;

    /// Members that answer what they are told to, and who was asked: `uid` for all, `uid?` for what it knows as committed.
    #[derive(Default)]
    struct Told {
        healthy: BTreeMap<&'static str, Progress>,
        committed: BTreeMap<&'static str, f64>,
        asked: RefCell<Vec<String>>,
    }

    impl Told {
        fn says(&mut self, uid: &'static str, applied: f64, committed: f64) {
            self.healthy.insert(uid, Progress { committed, applied });
            self.committed.insert(uid, committed);
        }

        fn asked(&self) -> Vec<String> {
            self.asked.take()
        }
    }

    impl Ask for Told {
        async fn healthy_voter(&self, pod: &Pod) -> Result<Progress> {
            self.asked.borrow_mut().push(uid(pod).to_owned());
            self.healthy.get(uid(pod)).copied().ok_or_else(|| anyhow!("not healthy"))
        }

        async fn committed(&self, pod: &Pod) -> Result<f64> {
            self.asked.borrow_mut().push(format!("{}?", uid(pod)));
            self.committed.get(uid(pod)).copied().ok_or_else(|| anyhow!("no answer"))
        }
    }

    fn pod(uid: &str, second: u32, ready: bool) -> Arc<Pod> {
        let conditions = json!([{ "type": "Ready", "status": if ready { "True" } else { "False" } }]);
        let created = format!("2026-01-01T00:00:0{second}Z");
        let metadata = json!({ "uid": uid, "creationTimestamp": created });
        Arc::new(
            serde_json::from_value(json!({ "metadata": metadata, "status": { "conditions": conditions } })).unwrap(),
        )
    }

    fn awaited(old: &[&str], count: usize, up: Up) -> Awaited {
        let old = old.iter().map(|uid| (*uid).to_owned()).collect();
        Awaited { count, old, up, said_so: BTreeSet::new() }
    }

    #[tokio::test]
    async fn who_has_said_enough_is_not_asked_for_it_again() {
        let mut told = Told::default();
        let mut awaited = awaited(&[], 3, Up::Voting);
        let pods = [pod("c", 3, false), pod("a", 1, false), pod("b", 2, false)];
        awaited.are_up(&pods, &told).await.unwrap_err();
        assert_eq!(told.asked(), ["a"], "the oldest alone");
        told.says("a", 7.0, 7.0);
        told.says("c", 7.0, 7.0);
        awaited.are_up(&pods, &told).await.unwrap_err();
        assert_eq!(told.asked(), ["a", "b", "c"], "once it says so, all");
        awaited.are_up(&pods, &told).await.unwrap_err();
        assert_eq!(told.asked(), ["b"], "the only one who has not");
        told.says("b", 7.0, 7.0);
        awaited.are_up(&pods, &told).await.unwrap();
        assert_eq!(told.asked(), ["b", "a", "c"], "all have, and are asked once more");
    }

    #[tokio::test]
    async fn who_said_so_by_its_own_word_only_is_held_against_what_others_know_by_then() {
        let mut told = Told::default();
        let mut awaited = awaited(&["old"], 2, Up::Voting);
        let pods = [pod("old", 0, false), pod("a", 1, false), pod("b", 2, false)];
        told.says("a", 2.0, 2.0);
        told.committed.insert("old", 9.0);
        awaited.are_up(&pods, &told).await.unwrap_err();
        told.asked();
        told.says("b", 9.0, 9.0);
        let error = awaited.are_up(&pods, &told).await.unwrap_err();
        assert_eq!(told.asked(), ["b", "a", "old?", "a"]);
        assert!(error.to_string().contains("has applied 2 entries, not 9"), "{error}");
        told.says("a", 9.0, 9.0);
        awaited.are_up(&pods, &told).await.unwrap();
        told.committed.insert("old", 12.0);
        awaited.are_up(&pods, &told).await.unwrap_err();
    }

    #[tokio::test]
    async fn nobody_is_up_who_is_not_healthy_any_more_or_is_not_ready_or_is_one_too_many() {
        let mut told = Told::default();
        let mut two = awaited(&[], 2, Up::Ready);
        let pods = |second_is_ready| [pod("a", 1, true), pod("b", 2, second_is_ready)];
        told.says("a", 1.0, 1.0);
        two.are_up(&pods(true), &told).await.unwrap_err();
        told.says("b", 1.0, 1.0);
        told.healthy.remove("a");
        let error = two.are_up(&pods(true), &told).await.unwrap_err();
        assert_eq!(error.to_string(), "not healthy");
        told.says("a", 1.0, 1.0);
        two.are_up(&pods(false), &told).await.unwrap_err();
        two.are_up(&pods(true), &told).await.unwrap();
        awaited(&[], 1, Up::Voting).are_up(&pods(true), &told).await.unwrap_err();
    }

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
