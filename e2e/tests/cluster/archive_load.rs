//! The continuous backup under load: whatever fails meanwhile, any revision and any time of it restores to what etcd
//! held then, and what the archive says of itself is so. It tells how fast it was, and demands nothing of that.

mod load;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::GetOptions;
use k8s_openapi::jiff::Timestamp;
use quorate_crds::BackupState;
use quorate_e2e::faults::processes;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Scene, Stage, play, told, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::load::{Connection, TOGETHER, Written, load};
use crate::archive::{self, begin_with, is_healthy, leader, records, revision, wish};

/// The volume of a member. A quarter of it is etcd's quota, and events of a quarter of that begin a new generation:
/// what is written here, some 150 MB, stays in one.
const VOLUME: &str = "4Gi";

/// How long the cluster is left alone between two faults.
const BETWEEN_FAULTS: Duration = Duration::from_secs(3);
/// For how long the store hangs, or is slow.
const STORE_FAULT: Duration = Duration::from_secs(5);
/// A slow store stops for so long, goes on for so long, and so on.
const STUTTER: Duration = Duration::from_millis(200);
/// How often a fault has to come at least.
const TIMES: u32 = 2;
/// How often is looked whether the cluster is well enough for the next fault.
const LOOK: Duration = Duration::from_millis(250);

/// How often etcd is asked how far it is.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// How far back what a time restores to may lie, beside the time without a sidecar. While the watch keeps up, moments
/// are noted each second; while the leader is being killed nothing comes for as long as an election takes, and a
/// sidecar that has started anew notes what it missed as of the moment when it hears of it.
const SLACK: Duration = Duration::from_secs(10);

/// How many revisions are restored, and how many times.
const POINTS: u32 = 10;
/// How many of the revisions that were told to be in the store before something was killed are restored beside those.
const TOLD: usize = 4;
/// How many restores one pod makes. What they restore, some 150 MB each, stays on the node as long as the pod.
const AT_A_TIME: usize = 5;
/// Who tells the hash of what was restored.
const ETCD_IMAGE: &str = "quay.io/coreos/etcd:v3.6.16";

/// What happens to the cluster and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    LeaderKilled,
    /// The kubelet holds a second start back for 10 s, a third one for 20 s. In that time more comes than an archive goes on
    /// after (`MOST_BEHIND`): it begins a new generation, and another one has what lies between.
    SidecarKilled,
    StoreHangs,
    StoreSlow,
    /// No watch shows it, so a new generation begins.
    RoleAdded,
}

/// In this order.
const FAULTS: [Fault; 5] =
    [Fault::LeaderKilled, Fault::StoreHangs, Fault::SidecarKilled, Fault::RoleAdded, Fault::StoreSlow];

/// What has happened.
#[derive(Debug, Default)]
struct Disturbance {
    times: BTreeMap<Fault, u32>,
    /// The longest time for which the leader had no sidecar.
    without_sidecar: Duration,
    /// What the archive told before each kill.
    reports: Vec<Reported>,
}

/// What the archive tells of itself.
#[derive(Clone, Copy, Debug)]
struct Reported {
    asked: Timestamp,
    /// Up to where all is in the store.
    head: i64,
    /// How far the cluster is, by how far the store is said to be behind.
    reached: i64,
}

impl Reported {
    /// Of all that tell it, and of the cluster's status, the furthest; demands that the store has as much already.
    async fn now(db: &Cluster, gateway: &Gateway) -> Result<Self> {
        let reported = wait_for("the archive to tell how far it is", PATIENCE, async || {
            let asked = Timestamp::now();
            let status = db.view().await?.status().backup.map(|state| state.head_revision);
            let reports = archive::reports(db).await?;
            let head = |report: &Value| report["head"]["revision"].as_i64();
            let reached = |report: &Value| Some(head(report)? + report["lag"]["revisions"].as_i64()?);
            let told = || format!("{reports:?}");
            Ok(Self {
                asked,
                head: reports.values().filter_map(head).chain(status).max().with_context(told)?,
                reached: reports.values().filter_map(reached).max().with_context(told)?,
            })
        })
        .await?;
        let ends = ends(gateway).await?;
        ensure!(ends.contains(&reported.head), "{reported:?}, and the store has {ends:?}");
        Ok(reported)
    }
}

/// The last revisions of all that is in the store, as the manifests say.
async fn ends(gateway: &Gateway) -> Result<BTreeSet<i64>> {
    let mut ends = BTreeSet::new();
    for (part, field) in [("/full", "revision"), ("/m/", "to")] {
        // Folders of uploads come and go while they are looked through.
        let paths = wait_for("the names in the store", PATIENCE, async || gateway.objects(part)).await?;
        for path in paths {
            let manifest: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
            ends.insert(manifest[field].as_i64().with_context(|| format!("{}: {manifest}", path.display()))?);
        }
    }
    Ok(ends)
}

/// Waits until all members are well; not so once the load is over.
async fn are_well(db: &Cluster, over: &AtomicBool) -> bool {
    while !over.load(Ordering::Relaxed) {
        if db.view().await.is_ok_and(|view| view.status().ready_replicas == 3) {
            return true;
        }
        sleep(LOOK).await;
    }
    false
}

/// Kills the sidecar that records; how long it took until there was another one.
async fn kill_sidecar(db: &Cluster, leader: &str) -> Result<Duration> {
    let before = wait_for("a sidecar to kill", PATIENCE, async || archive::sidecar(db, leader).await).await?;
    processes::signal(before, Signal::KILL)?;
    let killed = Instant::now();
    wait_for("another sidecar", PATIENCE, async || {
        let after = archive::sidecar(db, leader).await?;
        ensure!(after != before, "it is still the same");
        Ok(())
    })
    .await?;
    Ok(killed.elapsed())
}

async fn add_role(db: &Cluster, number: u32) -> Result<()> {
    let name = format!("role-{number}");
    db.ask(async |etcd| Ok(etcd.role_add(name.clone()).await.map(drop)?)).await
}

async fn hang(gateway: &Gateway, span: Duration) -> Result<()> {
    gateway.pause(true)?;
    sleep(span).await;
    gateway.pause(false)
}

async fn slow(gateway: &Gateway) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < STORE_FAULT {
        hang(gateway, STUTTER).await?;
        sleep(STUTTER).await;
    }
    Ok(())
}

/// One fault after the other, each when all is well again, until the load is over.
async fn disturb(db: &Cluster, gateway: &Gateway, over: &AtomicBool) -> Result<Disturbance> {
    let mut done = Disturbance::default();
    for fault in FAULTS.into_iter().cycle() {
        sleep(BETWEEN_FAULTS).await;
        if !are_well(db, over).await {
            break;
        }
        if matches!(fault, Fault::LeaderKilled | Fault::SidecarKilled) {
            done.reports.push(Reported::now(db, gateway).await?);
        }
        match fault {
            Fault::LeaderKilled => processes::kill_member(db.scene(), &leader(db).await?).await?,
            Fault::SidecarKilled => {
                let leader = leader(db).await?;
                done.without_sidecar = done.without_sidecar.max(kill_sidecar(db, &leader).await?);
            }
            Fault::StoreHangs => hang(gateway, STORE_FAULT).await?,
            Fault::StoreSlow => slow(gateway).await?,
            Fault::RoleAdded => add_role(db, done.times.get(&fault).copied().unwrap_or_default()).await?,
        }
        *done.times.entry(fault).or_default() += 1;
    }
    eprintln!("{:?}; for {:.1?} there was no sidecar", done.times, done.without_sidecar);
    for fault in FAULTS {
        let times = done.times.get(&fault).copied().unwrap_or_default();
        ensure!(times >= TIMES, "{fault:?} only {times} times");
    }
    Ok(done)
}

/// How far etcd was at some moment between the question and the answer.
#[derive(Clone, Copy, Debug)]
struct Sample {
    asked: Timestamp,
    revision: i64,
    answered: Timestamp,
}

/// How far etcd is. Linearizable: a member that is behind would tell of an earlier time.
async fn reached(connection: &mut Connection) -> Result<i64> {
    let options = GetOptions::new().with_count_only();
    let answer = connection.client().await?.get("load", Some(options)).await.map_err(told)?;
    Ok(answer.header().context("an answer without a header")?.revision())
}

/// How far etcd is, all the time until the load is over.
async fn sample(db: &Cluster, over: &AtomicBool) -> Vec<Sample> {
    let mut connection = Connection::new(db, 0);
    let mut ticks = interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut samples = Vec::new();
    while !over.load(Ordering::Relaxed) {
        ticks.tick().await;
        let asked = Timestamp::now();
        match reached(&mut connection).await {
            Ok(revision) => samples.push(Sample { asked, revision, answered: Timestamp::now() }),
            Err(_) => connection.turn_away(),
        }
    }
    samples
}

/// What was there to be recorded.
#[derive(Debug)]
struct History {
    first: i64,
    last: i64,
    begun: Timestamp,
    ended: Timestamp,
    samples: Vec<Sample>,
    written: Written,
    reports: Vec<Reported>,
    without_sidecar: Duration,
}

impl History {
    /// Writes it, while all sorts of things go wrong.
    async fn write(db: &Cluster, gateway: &Gateway) -> Result<Self> {
        let (first, begun) = (revision(db).await?, Timestamp::now());
        let over = AtomicBool::new(false);
        let loading = async {
            let written = load(db).await;
            over.store(true, Ordering::Relaxed);
            (written, Timestamp::now())
        };
        let ((written, ended), disturbance, mut samples) =
            tokio::join!(loading, disturb(db, gateway, &over), sample(db, &over));
        let (written, Disturbance { times: _, without_sidecar, reports }) = (written?, disturbance?);
        db.settles(3).await?;
        // After all times that are asked for: of what is later than its end a record does not speak.
        let asked = Timestamp::now();
        db.put("ended", "").await?;
        let last = revision(db).await?;
        samples.push(Sample { asked, revision: last, answered: Timestamp::now() });
        eprintln!("revisions {first} to {last}, {} samples", samples.len());
        let revisions = u64::try_from(last - first)?;
        let transactions = written.acknowledged / u64::from(TOGETHER);
        ensure!(revisions >= transactions, "{transactions} transactions are only {revisions} revisions");
        Ok(Self { first, last, begun, ended, samples, written, reports, without_sidecar })
    }

    /// Demands that what was told of the store was so: no more than there was, no less behind than it was, and etcd
    /// itself has every write there that was acknowledged up to it. That it restores as etcd has it is seen by the points.
    async fn was_told_right(&self, db: &Cluster) -> Result<()> {
        let mut most = 0;
        for reported in &self.reports {
            ensure!(reported.head <= self.last, "{reported:?}, and {} is the last revision", self.last);
            let known = self.samples.iter().rfind(|sample| sample.answered + SLACK <= reported.asked);
            let is_behind_enough = known.is_none_or(|known| known.revision <= reported.reached);
            ensure!(is_behind_enough, "{reported:?}, and etcd had told {known:?}");
            let writes = self.written.is_there(db, reported.head).await?;
            eprintln!("{} was told to be in the store: {writes} acknowledged transactions", reported.head);
            most = most.max(writes);
        }
        ensure!(most > 0, "no report speaks of a write that was acknowledged");
        Ok(())
    }

    /// What is wanted back: what was told to be there, and at random.
    fn points(&self) -> Result<Vec<Point>> {
        let span = self.begun.as_millisecond()..=self.ended.as_millisecond();
        let revisions = (0..POINTS).map(|_| anyhow::Ok(Point::Revision(fastrand::i64(self.first..=self.last))));
        let time = |_| anyhow::Ok(Point::Time(Timestamp::from_millisecond(fastrand::i64(span.clone()))?));
        // The last one has all that was acknowledged.
        let told = self.reports.iter().rev().take(TOLD).map(|reported| reported.head).chain([self.last]);
        let told = told.map(|revision| anyhow::Ok(Point::Revision(revision)));
        told.chain(revisions).chain((0..POINTS).map(time)).collect()
    }

    /// How far back what a time restored to lies: for how long etcd had had more by then. It must not have been later.
    fn behind(&self, time: Timestamp, revision: i64) -> Result<Duration> {
        let later = self.samples.iter().find(|sample| sample.asked >= time).context("it was not sampled")?;
        ensure!(revision <= later.revision, "{time} restored to {revision}, and later there was {later:?}");
        let missing = self.samples.iter().find(|sample| sample.revision > revision);
        let behind = missing.map(|sample| Duration::try_from(time.duration_since(sample.answered)));
        // Less than nothing: etcd had more only later.
        let behind = behind.and_then(Result::ok).unwrap_or_default();
        let limit = SLACK + self.without_sidecar;
        ensure!(behind <= limit, "{time} restored to {revision}, and {behind:.1?} before it there was {missing:?}");
        Ok(behind)
    }
}

/// What is restored.
#[derive(Clone, Copy, Debug)]
enum Point {
    Revision(i64),
    Time(Timestamp),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Revision(revision) => write!(f, "{revision}"),
            Self::Time(time) => write!(f, "{time}"),
        }
    }
}

/// What came of a restore.
#[derive(Clone, Copy, Debug)]
struct Restored {
    revision: i64,
    /// etcd's own hash of all that is in the database.
    hash: u64,
}

impl Restored {
    /// What the containers of this number have told.
    fn read(logs: &BTreeMap<String, String>, number: usize) -> Result<Self> {
        let (restore, hash) = (&logs[&format!("restore-{number}")], &logs[&format!("hash-{number}")]);
        // It warns on its other output, and a log has both.
        let document = restore.find('{').map(|begin| &restore[begin..]).unwrap_or_default();
        let came_to: Value = serde_json::from_str(document).with_context(|| restore.clone())?;
        let line = hash.lines().last().unwrap_or_default();
        let found: Value = serde_json::from_str(line).with_context(|| hash.clone())?;
        let revision = came_to["revision"].as_i64().with_context(|| restore.clone())?;
        Ok(Self { revision, hash: found["hash"].as_u64().with_context(|| hash.clone())? })
    }
}

/// A pod that restores these one after the other, and then hashes each.
fn restores(name: &str, gateway: &Gateway, lineage: &str, points: &[Point]) -> Value {
    let restore = |(number, point): (usize, &Point)| {
        json!({
            "name": format!("restore-{number}"),
            "image": "quorate.dev/agent:dev",
            "command": [
                "/quorate-agent", "restore", format!("--lineage={lineage}"), format!("--to={point}"),
                format!("--database=/scratch/{number}"), "--output=json",
            ],
        })
    };
    // Of the whole database: what was restored beyond the revision shows, too.
    let hash = |number: usize| {
        json!({
            "name": format!("hash-{number}"),
            "image": ETCD_IMAGE,
            "command": ["etcdutl", "hashkv", format!("/scratch/{number}"), "-w=json"],
        })
    };
    let restores: Vec<_> = points.iter().enumerate().map(restore).collect();
    let hashes: Vec<_> = (0..points.len()).map(hash).collect();
    archive::agent_pod(name, &gateway.store("s3"), &json!({ "initContainers": restores, "containers": hashes }))
}

/// Restores each of these.
async fn restore(
    scene: &Scene,
    gateway: &Gateway,
    state: &BackupState,
    points: &[Point],
) -> Result<Vec<(Point, Restored)>> {
    let mut restored = Vec::new();
    for (turn, points) in points.chunks(AT_A_TIME).enumerate() {
        let pod = restores(&format!("restores-{turn}"), gateway, &state.lineage, points);
        let logs = archive::run(scene, &pod).await?;
        for (number, point) in points.iter().enumerate() {
            let came_to =
                Restored::read(&logs, number).with_context(|| format!("failed to restore {point}: {logs:#?}"))?;
            restored.push((*point, came_to));
        }
    }
    Ok(restored)
}

/// Demands that what was restored is the live history, up to where it should be; how far back that lies.
async fn judge(db: &Cluster, history: &History, point: Point, restored: Restored) -> Result<Duration> {
    let Restored { revision, hash } = restored;
    let live = wait_for("a hash of the history", PATIENCE, async || {
        db.ask(async |etcd| Ok(etcd.hash_kv(revision).await?.hash())).await
    })
    .await?;
    ensure!(hash == u64::from(live), "{point} restored to {revision} with the hash {hash}, etcd says {live}");
    match point {
        Point::Revision(wanted) => {
            ensure!(revision == wanted, "{revision} was restored, not {wanted}");
            Ok(Duration::ZERO)
        }
        Point::Time(time) => history.behind(time, revision),
    }
}

// The clients have threads of their own: what is done to the cluster, and the samples, must not wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make e2e"]
async fn any_revision_and_time_of_minutes_under_load_restores() -> Result<()> {
    play("archive_load", Stage::Alone, async |scene| {
        let gateway = Gateway::start().await?;
        let db = begin_with(scene, wish(&gateway).with("/storage/size", json!(VOLUME))).await?;
        let history = History::write(&db, &gateway).await?;
        let loaded = Instant::now();
        records(&db, &leader(&db).await?, history.last, PATIENCE).await?;
        eprintln!("all was in the store {:.1?} after the cluster had settled", loaded.elapsed());
        let state = is_healthy(&db, true).await?;
        history.was_told_right(&db).await?;
        let begun = Instant::now();
        let restored = restore(scene, &gateway, &state, &history.points()?).await?;
        eprintln!("{} restores took {:.1?}", restored.len(), begun.elapsed());
        let mut longest = Duration::ZERO;
        for (point, came_to) in restored {
            longest = longest.max(judge(&db, &history, point, came_to).await?);
        }
        eprintln!("what a time restored to lay back {longest:.1?} at most");
        Ok(())
    })
    .await
}
