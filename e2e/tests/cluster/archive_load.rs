//! The continuous backup under load: whatever fails meanwhile, any revision and any time of it restores to what etcd
//! held then, and what the archive says of itself is so. It tells how fast it was, and demands nothing of that.

mod faults;
mod load;
pub mod restores;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, GetOptions};
use fastrand::Rng;
use k8s_openapi::jiff::Timestamp;
use quorate_e2e::chaos::session::fresh_seed;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Stage, play, told};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use self::faults::{Disturbance, Reported, disturb};
use self::load::{Connection, Written, load, vary};
use self::restores::{Point, Restored, is_the_live_history, restore};
use crate::archive::{begin_with, is_healthy, leader, records, revision, wish};

/// The volume of a member. A quarter of it is etcd's quota, and events of a quarter of that begin a new generation:
/// what is written here, some 230 MB, stays in one.
const VOLUME: &str = "4Gi";
/// Names the seed of what is restored: the points of an earlier run, as far as another history has the same.
const SEED_VARIABLE: &str = "QUORATE_POINTS_SEED";

/// How often etcd is asked how far it is.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// How far back what a time restores to may lie, and how old may be what is told of the lag: one second between two moments
/// that are noted, and as much each for an event to be heard of and for etcd to be asked, on a busy machine. That the
/// store fails, or that a new generation begins, makes no difference.
const SLACK: Duration = Duration::from_secs(3);
/// The same of a time when a leader or its sidecar was killed, beside the time without a sidecar: nothing comes for as long
/// as an election takes, and a sidecar that has started anew notes what it missed as of the moment when it hears of it.
const SLACK_OF_A_KILL: Duration = Duration::from_secs(10);

/// How often something else is written than the load, at least.
const VARIED: u64 = 100;
/// How many revisions are restored, and how many times.
const POINTS: u32 = 20;
/// How many of the revisions that were told to be in the store before something was killed, or while the store failed, are
/// restored beside those.
const TOLD: usize = 4;

/// How far etcd was at some moment between the question and the answer.
#[derive(Clone, Copy, Debug)]
struct Sample {
    asked: Timestamp,
    revision: i64,
    answered: Timestamp,
}

/// How far etcd is. Linearizable: a member that is behind would tell of an earlier time.
async fn reached(etcd: &mut Client) -> Result<i64> {
    let options = GetOptions::new().with_count_only();
    let answer = etcd.get("load", Some(options)).await.map_err(told)?;
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
        let asking = async { reached(&mut connection.client().await?).await };
        match asking.await {
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
    disturbance: Disturbance,
}

impl History {
    /// Writes it, while all sorts of things go wrong.
    async fn write(db: &Cluster, gateway: &mut Gateway) -> Result<Self> {
        let (first, begun) = (revision(db).await?, Timestamp::now());
        let over = AtomicBool::new(false);
        let loading = async {
            let written = load(db).await;
            over.store(true, Ordering::Relaxed);
            (written, Timestamp::now())
        };
        let ((written, ended), disturbance, mut samples, varied) =
            tokio::join!(loading, disturb(db, gateway, &over), sample(db, &over), vary(db, &over));
        let (written, disturbance) = (written?, disturbance?);
        eprintln!("{varied} times something else was written");
        ensure!(varied >= VARIED, "only {varied} times something else was written");
        db.settles(3).await?;
        // After all times that are asked for: of what is later than its end a record does not speak.
        let asked = Timestamp::now();
        db.put("ended", "").await?;
        let last = revision(db).await?;
        samples.push(Sample { asked, revision: last, answered: Timestamp::now() });
        eprintln!("revisions {first} to {last}, {} samples", samples.len());
        let (revisions, transactions) = (usize::try_from(last - first)?, written.transactions());
        ensure!(revisions >= transactions, "{transactions} transactions are only {revisions} revisions");
        Ok(Self { first, last, begun, ended, samples, written, disturbance })
    }

    /// Demands that what was told of the store was so: no more than there was, no less behind than it was, and etcd
    /// itself has every write there that was acknowledged up to it. That it restores as etcd has it is seen by the points.
    async fn was_told_right(&self, db: &Cluster) -> Result<()> {
        let (mut most, mut furthest) = (0, 0);
        for reported in &self.disturbance.reports {
            ensure!(reported.head <= self.last, "{reported:?}, and {} is the last revision", self.last);
            let known = self.samples.iter().rfind(|sample| sample.answered + SLACK <= reported.asked);
            let is_behind_enough = known.is_none_or(|known| known.revision <= reported.reached);
            ensure!(is_behind_enough, "{reported:?}, and etcd had told {known:?}");
            let writes = self.written.is_there(db, reported.head).await?;
            let Reported { asked: _, head, reached } = *reported;
            eprintln!("{head} of {reached} was told to be in the store: {writes} acknowledged transactions");
            (most, furthest) = (most.max(writes), furthest.max(reached - head));
        }
        ensure!(most > 0, "no report speaks of a write that was acknowledged");
        ensure!(furthest > 0, "no report tells that the store is behind");
        Ok(())
    }

    /// What is wanted back: what was told to be there, and at random.
    fn points(&self, mut random: Rng) -> Result<Vec<Point>> {
        let span = self.begun.as_millisecond()..=self.ended.as_millisecond();
        // The last one has all that was acknowledged.
        let told = self.disturbance.reports.iter().rev().take(TOLD).map(|reported| reported.head).chain([self.last]);
        let mut points: Vec<_> = told.map(Point::Revision).collect();
        for _ in 0..POINTS {
            points.push(Point::Revision(random.i64(self.first..=self.last)));
            points.push(Point::Time(Timestamp::from_millisecond(random.i64(span.clone()))?));
        }
        Ok(points)
    }

    /// How far back what this time restores to may lie.
    fn slack(&self, time: Timestamp) -> Duration {
        let Disturbance { kills, without_sidecar, .. } = &self.disturbance;
        if kills.iter().any(|kill| kill.contains(&time)) { SLACK_OF_A_KILL + *without_sidecar } else { SLACK }
    }

    /// Demands that what a time restored to was not later, and lies back no further than it may: etcd has not had more for
    /// longer by then.
    fn had(&self, time: Timestamp, revision: i64) -> Result<()> {
        let later = self.samples.iter().find(|sample| sample.asked >= time).context("it was not sampled")?;
        ensure!(revision <= later.revision, "{time} restored to {revision}, and later there was {later:?}");
        let missing = self.samples.iter().find(|sample| sample.revision > revision);
        let behind = missing.map(|sample| Duration::try_from(time.duration_since(sample.answered)));
        // Less than nothing: etcd had more only later.
        let behind = behind.and_then(Result::ok).unwrap_or_default();
        let slack = self.slack(time);
        eprintln!("{time} restored to what was there {behind:.1?} before it, of {slack:.1?}");
        ensure!(behind <= slack, "{time} restored to {revision}, and {behind:.1?} before it there was {missing:?}");
        Ok(())
    }
}

/// Demands that what was restored is the live history, up to where it should be.
async fn judge(db: &Cluster, history: &History, point: Point, restored: Restored) -> Result<()> {
    is_the_live_history(db, (point, restored)).await?;
    let revision = restored.revision;
    match point {
        Point::Revision(wanted) => {
            ensure!(revision == wanted, "{revision} was restored, not {wanted}");
            Ok(())
        }
        Point::Time(time) => history.had(time, revision),
    }
}

/// Restores all sorts of points, and demands of each that it is as it should be.
async fn points_restore(db: &Cluster, gateway: &Gateway, history: &History) -> Result<()> {
    let state = is_healthy(db, true).await?;
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(seed) => seed.parse().with_context(|| format!("{SEED_VARIABLE} is {seed:?}"))?,
        Err(_) => fresh_seed(),
    };
    eprintln!("the points are those of {SEED_VARIABLE}={seed}");
    let points = history.points(Rng::with_seed(seed))?;
    let begun = Instant::now();
    let restored = restore(db.scene(), gateway, &state, &points).await?;
    eprintln!("{} restores took {:.1?}", restored.len(), begun.elapsed());
    for (point, came_to) in restored {
        judge(db, history, point, came_to).await.with_context(|| format!("{SEED_VARIABLE}={seed}"))?;
    }
    Ok(())
}

// The clients have threads of their own: what is done to the cluster, and the samples, must not wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make e2e"]
async fn any_revision_and_time_of_minutes_under_load_restores() -> Result<()> {
    play("archive_load", Stage::Alone, async |scene| {
        let mut gateway = Gateway::start().await?;
        let db = begin_with(scene, wish(&gateway).with("/storage/size", json!(VOLUME))).await?;
        let history = History::write(&db, &mut gateway).await?;
        let loaded = Instant::now();
        records(&db, &leader(&db).await?, history.last, PATIENCE).await?;
        eprintln!("all was in the store {:.1?} after the cluster had settled", loaded.elapsed());
        history.was_told_right(&db).await?;
        points_restore(&db, &gateway, &history).await
    })
    .await
}
