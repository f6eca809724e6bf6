//! Chaos breaks no promise; and where a promise is broken on purpose, the checks say so.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ObjectMeta, PostParams};
use quorate_e2e::chaos::book::Book;
use quorate_e2e::chaos::check::{Check, Violation, check};
use quorate_e2e::chaos::clients::pretend;
use quorate_e2e::chaos::clock::Clock;
use quorate_e2e::chaos::fault::{Fault, Victims};
use quorate_e2e::chaos::load::Load;
use quorate_e2e::chaos::report::{Report, keep};
use quorate_e2e::chaos::run::run;
use quorate_e2e::chaos::schedule::{Event, Schedule, Versions};
use quorate_e2e::chaos::session::{Session, fresh_seed};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::{pods, processes, wal};
use quorate_e2e::progress::Progress;
use quorate_e2e::scene::{
    Cluster, EtcdProcess, Membership, PATIENCE, Scene, Stage, Wish, etcd_processes, metrics, play, usual_etcd, wait_for,
};
use quorate_e2e::workspace;
use rustix::process::Signal;

/// Where members answer each other.
const PEER_PORT: u16 = 2380;

/// The usual choice always makes the same faults, those that once found a defect: what lands is not to depend on luck.
const KEPT_SEED: u64 = 1;

#[tokio::test]
async fn three_minutes_of_chaos_break_no_promise() -> Result<()> {
    breaks_no_promise("chaos", &Schedule::generate(KEPT_SEED, Duration::from_mins(3), &usual_etcd())).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn ten_minutes_of_chaos_break_no_promise() -> Result<()> {
    let schedule = Schedule::generate(fresh_seed(), Duration::from_mins(10), &usual_etcd());
    breaks_no_promise("chaos_long", &schedule).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn chaos_on_the_way_down_from_3_7_to_3_5_breaks_no_promise() -> Result<()> {
    breaks_no_promise("chaos_down", &Schedule::going_down(fresh_seed(), Duration::from_mins(5))).await
}

/// Makes these faults and judges all that was seen.
async fn breaks_no_promise(name: &str, schedule: &Schedule) -> Result<()> {
    play(name, Stage::Alone, async |scene| {
        let run = Box::pin(run(scene, schedule, &Progress::new())).await?;
        let folder = keep(&run, &workspace::cache().join("chaos"))?;
        let report = Report::of(&run);
        eprintln!("{report}");
        ensure!(report.is_sound(), "replay it from {}: {report}", folder.join("schedule.json").display());
        Ok(())
    })
    .await
}

/// A load of calls on three members that is about to be betrayed.
struct Betrayed {
    db: Cluster,
    load: Load,
    membership: Membership,
}

impl Betrayed {
    async fn start(scene: &Scene) -> Result<Self> {
        // A raft snapshot would hold what the log has lost. Whether a member answers the others is asked without a
        // certificate.
        let wish = Wish::new("db", 3)
            .with("/etcd/snapshotCount", serde_json::json!(1_000_000))
            .with("/tls/mode", serde_json::json!("Disabled"));
        let db = scene.create(&wish).await?;
        let membership = db.settles(3).await?;
        let (clock, book) = (Clock::start(), Book::open(&db).await?);
        let load = Load::start(&db, &book, clock, 1).await?;
        let betrayed = Self { db, load, membership };
        betrayed.writes(100).await?;
        Ok(betrayed)
    }

    /// Waits for some more acknowledged writes.
    async fn writes(&self, more: u64) -> Result<()> {
        let recorder = self.load.recorder();
        let until = recorder.acknowledged() + more;
        wait_for(&format!("{more} more acknowledged writes"), PATIENCE, async || {
            let now = recorder.acknowledged();
            ensure!(now >= until, "{now} of {until}");
            Ok(())
        })
        .await
    }

    /// The leader and the two others.
    fn cast(&self) -> Result<[String; 3]> {
        let leader = self.membership.leader()?.to_owned();
        let mut others = self.membership.members.keys().filter(|name| **name != leader).cloned();
        let (one, other) = (others.next().context("no follower")?, others.next().context("no second follower")?);
        Ok([leader, one, other])
    }

    /// Ends the load and judges what it saw.
    async fn judged(self) -> Result<Vec<Violation>> {
        let history = self.load.finish().await;
        Ok(tokio::task::spawn_blocking(move || check(&history)).await?)
    }
}

/// Demands that the checks caught it.
fn reported(violations: &[Violation], by: &[Check], says: &str) -> Result<()> {
    let broken: BTreeSet<Check> = violations.iter().map(|violation| violation.check).collect();
    ensure!(by.iter().all(|check| broken.contains(check)), "only {broken:?} are broken: {violations:?}");
    ensure!(violations.iter().any(|violation| violation.what.contains(says)), "nothing says {says:?}: {violations:?}");
    eprintln!("reported: {} violations of {broken:?}, first: {}", violations.len(), violations[0]);
    Ok(())
}

/// One member is away while the two others acknowledge writes; then the leader stands still, the third loses what it has,
/// and the first comes back: a majority that has not heard of those writes.
async fn majority_forgets(
    scene: &Scene,
    forget: impl AsyncFnOnce(&Cluster, &EtcdProcess) -> Result<Option<tokio::process::Child>>,
) -> Result<Vec<Violation>> {
    let betrayed = Betrayed::start(scene).await?;
    let db = betrayed.db.clone();
    let [leader, stale, forgetful] = betrayed.cast()?;
    let operator = Operator::new(scene.client());
    let seen = operator.away_during(async || {
        // Gone for good, not paused: what was sent to a paused process waits for it.
        let pod = db.pods().get(&stale).await?;
        pods::delete_by_force(&db, &[&stale]).await?;
        wait_for("the member that is to be behind to end", PATIENCE, async || {
            let running = etcd_processes(scene.namespace());
            ensure!(running.iter().all(|process| process.member() != stale), "it runs");
            Ok(())
        })
        .await?;
        betrayed.writes(100).await?;
        processes::freeze_member(scene, &leader).await?;
        let forgetful = processes::freeze_member(scene, &forgetful).await?;
        back_again(&db, pod).await?;
        // Whoever runs by hand has to live until the last look.
        let by_hand = forget(&db, &forgetful).await?;
        betrayed.writes(20).await?;
        pods::delete_by_force(&db, &[&leader]).await?;
        let violations = betrayed.judged().await;
        drop(by_hand);
        violations
    });
    seen.await
}

/// The same pod again, as whoever made it would make it: with its ticket, on its volume. Returns when its etcd answers the
/// others, which it does without a quorum.
async fn back_again(db: &Cluster, pod: Pod) -> Result<()> {
    let name = pod.metadata.name.clone().context("a pod without a name")?;
    let ObjectMeta { labels, annotations, owner_references, .. } = pod.metadata;
    let metadata =
        ObjectMeta { name: Some(name.clone()), labels, annotations, owner_references, ..ObjectMeta::default() };
    let again = Pod { metadata, status: None, ..pod };
    db.pods().create(&PostParams::default(), &again).await.context("failed to make the pod again")?;
    wait_for("the member that is behind to be back", PATIENCE, async || {
        let address = db.view().await?.address(&name).context("it has no address")?;
        let (status, members) = metrics::get(&address, PEER_PORT, "/members").await?;
        ensure!(status == 200, "it answers {status}: {members}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_started_on_an_empty_volume_is_reported() -> Result<()> {
    play("chaos_emptied", Stage::Alone, async |scene| {
        let violations = majority_forgets(scene, async |db, process| {
            let name = process.member().to_owned();
            let flags = std::fs::read_to_string(format!("/proc/{}/cmdline", process.pid))?;
            let peers = peers(scene);
            pods::empty_volume(db, &name).await?;
            processes::signal(process.pid, Signal::KILL)?;
            let launcher = refusing_launcher(db, &name).await?;
            let child = started_by_hand(launcher, flags.trim_end_matches('\0'), &peers)?;
            processes::member(scene, &name).await?;
            Ok(Some(child))
        });
        let by = [Check::Kept, Check::Order, Check::Watches];
        reported(&violations.await?, &by, "an acknowledged write is lost")
    })
    .await
}

/// The process of the launcher of this member, once it refuses the empty volume.
async fn refusing_launcher(db: &Cluster, name: &str) -> Result<i32> {
    wait_for("the launcher to refuse the empty volume", PATIENCE, async || {
        let view = db.view().await?;
        let address = view.address(name).context("the pod has no address")?;
        let (status, report) = metrics::ask(&address, "/quorate").await?;
        ensure!(status == 200 && report.contains("VolumeIsEmpty"), "it answers {status}: {report}");
        let uid = view.pods.get(name).and_then(|pod| pod.metadata.uid.clone()).context("a pod without a UID")?;
        processes::in_pod(&uid, "quorate-agent").first().copied().context("the launcher does not run")
    })
    .await
}

/// What `--initial-cluster` says of all members that run here.
fn peers(scene: &Scene) -> String {
    let peers = etcd_processes(scene.namespace()).into_iter();
    peers.map(|process| format!("{}={}", process.member(), process.identity)).collect::<Vec<_>>().join(",")
}

/// Starts etcd beside the launcher, which would not: with the flags that it had, as one of the members that there are, on
/// whatever its volume holds now. It ends when it is dropped.
fn started_by_hand(launcher: i32, flags: &str, peers: &str) -> Result<tokio::process::Child> {
    let mut command = tokio::process::Command::new("nsenter");
    command.args(["--target", &launcher.to_string(), "--mount", "--net", "/usr/local/bin/etcd"]);
    // The launcher has the port of the metrics; how the member begins was true at its first start only.
    let others = ["--listen-metrics-urls=", "--initial-cluster=", "--initial-cluster-state="];
    command.args(flags.split('\0').skip(1).filter(|flag| !others.iter().any(|other| flag.starts_with(other))));
    command.args([format!("--initial-cluster={peers}").as_str(), "--initial-cluster-state=existing"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().context("failed to start nsenter")
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_whose_log_was_cut_is_reported() -> Result<()> {
    play("chaos_cut_log", Stage::Alone, async |scene| {
        let violations = majority_forgets(scene, async |db, process| {
            let (kept, of) = wal::cut(db, process.member()).await?;
            eprintln!("{kept} of {of} records are left");
            processes::signal(process.pid, Signal::KILL)?;
            processes::member(scene, process.member()).await?;
            Ok(None)
        });
        reported(&violations.await?, &[Check::Kept], "an acknowledged write")
    })
    .await
}

#[tokio::test]
async fn a_client_that_drops_an_acknowledged_write_is_reported() -> Result<()> {
    play("chaos_dropped_write", Stage::Shared, async |scene| {
        let betrayed = Betrayed::start(scene).await?;
        pretend(&betrayed.db, betrayed.load.recorder()).await?;
        betrayed.writes(50).await?;
        reported(&betrayed.judged().await?, &[Check::Kept, Check::Order], "client 99")
    })
    .await
}

/// The seed of the run that is made to fail: no other's.
const PLANTED_SEED: u64 = 1_000_099;

/// Among faults that break nothing is one that breaks a promise: it is what is left.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_run_that_fails_is_shrunk_to_the_fault_that_breaks_a_promise() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("schedule.json");
    let faults = [
        Fault::KillProcesses { victims: Victims::Follower(0) },
        Fault::KillProcesses { victims: Victims::Leader },
        Fault::Pretend,
        Fault::KillOperators { all: false },
    ];
    let events = (1..).zip(faults).map(|(number, fault)| Event { at: number * 2000, fault }).collect();
    let schedule = Schedule {
        seed: PLANTED_SEED,
        length: 10_000,
        version: usual_etcd(),
        stays: false,
        snapshot_count: 10_000,
        events,
    };
    std::fs::write(&path, serde_json::to_string(&schedule)?)?;
    play("chaos_shrunk", Stage::Alone, async |_| {
        let (seed, version) = (None, None);
        let length = Duration::ZERO;
        let versions = Versions::Up;
        let session = Session { seed, length, version, versions, replay: Some(path), shrink: true, json: false };
        ensure!(!Box::pin(session.play()).await?, "a write that was never sent was not missed");
        // It is no run that counts, nor its failures.
        let kept = workspace::cache().join("chaos").join(format!("seed-{PLANTED_SEED}"));
        let dumped = workspace::cache().join("failures").join(format!("chaos-{PLANTED_SEED}"));
        std::fs::remove_dir_all(&dumped).context("no run that failed was dumped")?;
        let shrunk: Schedule = serde_json::from_str(&std::fs::read_to_string(kept.join("shrunk.json"))?)?;
        let left: Vec<_> = shrunk.events.iter().map(|event| &event.fault).collect();
        ensure!(left == [&Fault::Pretend], "{left:?} are left");
        std::fs::remove_dir_all(&kept)?;
        Ok(())
    })
    .await
}
