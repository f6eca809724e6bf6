//! The continuous backup under load: whatever fails meanwhile, any revision and any time of it restores to what etcd
//! held then. It tells how fast it was, and demands nothing of that.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, GetOptions, Txn, TxnOp};
use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use quorate_crds::BackupState;
use quorate_e2e::faults::processes;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Scene, Stage, dial, play, told, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, interval_at, sleep};

use crate::archive::{self, begin_with, is_healthy, leader, records, revision, wish};

/// For how long is written: time enough for each fault to come twice, also if a kubelet takes its time to start again
/// what was killed twice.
const LOAD: Duration = Duration::from_mins(2);
/// Keys that are written a second, by all clients together.
const PACE: u32 = 5_000;
/// Keys that one transaction writes: one for each would be more revisions a second than three members, their clients and
/// their nodes reach on two processors (2,648 of 5,000).
const TOGETHER: u32 = 3;
/// Clients, each with a connection of its own.
const CLIENTS: u32 = 25;
/// The keys that a client writes at once. Each group waits for the one before it: of this size they keep the pace as long as a
/// transaction takes less than 100 ms.
const GROUP: u32 = 21;
/// The keys of each client.
const KEYS: u64 = 200;
/// The size of a value.
const VALUE: usize = 100;
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
/// How many restores one pod makes. What they restore, some 150 MB each, stays on the node as long as the pod.
const AT_A_TIME: usize = 5;
/// Who tells the hash of what was restored.
const ETCD_IMAGE: &str = "quay.io/coreos/etcd:v3.6.16";

/// A connection to one member, and after an error to the next one.
struct Connection {
    db: Cluster,
    turn: usize,
    etcd: Option<Client>,
}

impl Connection {
    fn new(db: &Cluster, turn: usize) -> Self {
        Self { db: db.clone(), turn, etcd: None }
    }

    async fn client(&mut self) -> Result<Client> {
        if let Some(etcd) = &self.etcd {
            return Ok(etcd.clone());
        }
        let doors = self.db.voters_doors().await?;
        let door = doors.values().nth(self.turn % doors.len().max(1)).context("no member has an address")?;
        let etcd = dial(door).await?;
        self.etcd = Some(etcd.clone());
        Ok(etcd)
    }

    /// This member has failed.
    fn turn_away(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.etcd = None;
    }
}

/// What became of the keys that were written.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    acknowledged: u64,
    /// Each was sent again.
    failed: u64,
}

/// Writes so many keys at once; how many were acknowledged.
async fn send(etcd: &Client, client: u32, first: u64, count: u32) -> u32 {
    let put = |at: u32| {
        let number = first + u64::from(at);
        TxnOp::put(format!("load/{client}/{}", number % KEYS), format!("{number:0VALUE$}"), None)
    };
    let step = usize::try_from(TOGETHER).unwrap_or(1);
    let transactions = (0..count).step_by(step).map(|at| {
        let (mut etcd, some) = (etcd.clone(), at..count.min(at + TOGETHER));
        let (puts, length) = (some.clone().map(put).collect::<Vec<_>>(), some.end - some.start);
        async move { if etcd.txn(Txn::new().and_then(puts)).await.is_ok() { length } else { 0 } }
    });
    join_all(transactions).await.into_iter().sum()
}

/// One client: a group at each tick, and after a fault those that are overdue.
async fn write_on_time(mut connection: Connection, client: u32, end: Instant) -> Written {
    let tick = Duration::from_secs(1) * (CLIENTS * GROUP) / PACE;
    // The clients one after the other, not all at once.
    let mut ticks = interval_at(tokio::time::Instant::now() + tick * client / CLIENTS, tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut written = Written::default();
    while Instant::now() < end {
        ticks.tick().await;
        let mut missing = GROUP;
        while missing > 0 && Instant::now() < end {
            let acknowledged = match connection.client().await {
                Ok(etcd) => send(&etcd, client, written.acknowledged, missing).await,
                Err(_) => 0,
            };
            missing -= acknowledged;
            written.acknowledged += u64::from(acknowledged);
            if missing > 0 {
                written.failed += u64::from(missing);
                connection.turn_away();
            }
        }
    }
    written
}

/// Writes at the pace.
async fn load(db: &Cluster) -> Result<Written> {
    let end = Instant::now() + LOAD;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(write_on_time(Connection::new(db, usize::try_from(client)?), client, end));
    }
    let mut all = Written::default();
    while let Some(one) = clients.join_next().await {
        let Written { acknowledged, failed } = one?;
        all.acknowledged += acknowledged;
        all.failed += failed;
    }
    let rate = all.acknowledged / LOAD.as_secs();
    eprintln!("{} keys were written, {rate} a second; {} failed first", all.acknowledged, all.failed);
    Ok(all)
}

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
        let (written, Disturbance { times: _, without_sidecar }) = (written?, disturbance?);
        db.settles(3).await?;
        // After all times that are asked for: of what is later than its end a record does not speak.
        let asked = Timestamp::now();
        db.put("ended", "").await?;
        let last = revision(db).await?;
        samples.push(Sample { asked, revision: last, answered: Timestamp::now() });
        eprintln!("revisions {first} to {last}, {} samples", samples.len());
        let revisions = u64::try_from(last - first)?;
        let transactions = written.acknowledged / u64::from(TOGETHER);
        ensure!(revisions >= transactions, "{written:?} are only {revisions} revisions");
        Ok(Self { first, last, begun, ended, samples, without_sidecar })
    }

    /// What is wanted back, at random.
    fn points(&self) -> Result<Vec<Point>> {
        let span = self.begun.as_millisecond()..=self.ended.as_millisecond();
        let revisions = (0..POINTS).map(|_| anyhow::Ok(Point::Revision(fastrand::i64(self.first..=self.last))));
        let time = |_| anyhow::Ok(Point::Time(Timestamp::from_millisecond(fastrand::i64(span.clone()))?));
        // The last one has all that was acknowledged.
        std::iter::once(anyhow::Ok(Point::Revision(self.last))).chain(revisions).chain((0..POINTS).map(time)).collect()
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
