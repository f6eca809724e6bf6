//! The rows: each does the same by hand and with the agent, in turn. It starts programs and takes times.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use etcd_client::Client;
use serde_json::Value;

use super::super::reach::{Figure, Reach};
use super::super::report::Measured;
use super::bed::Bed;
use super::process::{self, Running};
use super::{latency, load};
use crate::command::Command;
use crate::scene::{PUT_ASIDE, wait_for};

/// Names, units, what they are to reach, and samples.
pub type Rows = Vec<(&'static str, &'static str, Option<Reach>, Measured)>;

/// Faster than by hand.
const FASTER: Option<Reach> = Some(Reach::RatioBelow(1.0));
/// The memory of the agent at its most, in MiB.
const SLIM: Option<Reach> = Some(Reach::ValueAtMost(Figure::Max, 128.0));

/// What the record of events is called.
const RECORD: &str = "archive";
/// How often the archive stores what came.
const FLUSH: &str = "1s";
/// How long the archive may take to have stored what was written.
const PATIENCE: Duration = Duration::from_mins(3);
/// How far a restore moves the revision on, by hand as with the agent.
const BUMP: &str = "1000000000";

/// Rounds of writes that are measured for each run of the others: the 99th percentile of a busy disk swings.
const ROUNDS: u32 = 3;
/// So many events come while the store is away: with what each takes beside its value, more than an archive holds in memory
/// (16 MiB) and is about to store (4 MiB).
const TOO_MANY: u64 = 36_000;

/// How often the leadership moves while writes are measured: to each of the others among three, and back.
const MOVES: u32 = 3;
/// How long it stays: all moves fall into a measurement of ten seconds, and an archive, which looks each half second
/// whether its member leads, has taken over before the next one.
const BETWEEN_MOVES: Duration = Duration::from_millis(2_500);

fn only(value: Vec<f64>) -> Measured {
    Measured { floor: vec![], value }
}

/// Removes what a run has left, so that the next one finds the same. What is not there is fine.
fn clear(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
    let _ = std::fs::remove_file(path);
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}

/// A snapshot in the store.
pub async fn snapshot(bed: &Bed, runs: u32) -> Result<Rows> {
    let (mut time, mut memory) = (Measured::default(), only(vec![]));
    let (file, packed) = (bed.file("by-hand.db"), bed.file("by-hand.db.zst"));
    for run in 0..runs {
        clear(&file);
        let by_hand = [
            bed.etcd_tool("etcdctl").args(["snapshot", "save", text(&file)?]),
            Command::new("zstd").args(["-T0", "-q", "-f", text(&file)?, "-o", text(&packed)?]),
            bed.curl("by-hand.db.zst").args(["--upload-file", text(&packed)?]),
        ];
        let floor = process::run_all(&by_hand).await?;
        let ended = process::run(&bed.agent("snapshot", &format!("full-{run}"))).await?;
        eprintln!("  snapshot {}: by hand {floor:.2} s, agent {:.2} s", run + 1, ended.seconds);
        time.floor.push(floor);
        time.value.push(ended.seconds);
        memory.value.push(ended.memory);
    }
    Ok(vec![("snapshot-s3", "s", FASTER, time), ("snapshot-rss-mib", "MiB", SLIM, memory)])
}

/// A data folder from a full snapshot.
pub async fn restore_full(bed: &Bed, runs: u32) -> Result<Rows> {
    let (mut time, mut memory) = (Measured::default(), only(vec![]));
    let (packed, file, data) = (bed.file("fetched.db.zst"), bed.file("fetched.db"), bed.file("restored"));
    for run in 0..runs {
        clear(&file);
        clear(&data);
        let by_hand = [
            bed.curl("by-hand.db.zst").args(["--output", text(&packed)?]),
            Command::new("zstd").args(["-d", "-q", "-f", text(&packed)?, "-o", text(&file)?]),
            etcdutl(bed, &file, &data)?,
        ];
        let floor = process::run_all(&by_hand).await?;
        clear(&data);
        let ended = process::run(&restore(bed, "full-0", &data)?).await?;
        eprintln!("  restore {}: by hand {floor:.2} s, agent {:.2} s", run + 1, ended.seconds);
        time.floor.push(floor);
        time.value.push(ended.seconds);
        memory.value.push(ended.memory);
    }
    clear(&data);
    clear(&packed);
    clear(&file);
    Ok(vec![("restore-full", "s", FASTER, time), ("restore-full-rss-mib", "MiB", None, memory)])
}

fn etcdutl(bed: &Bed, snapshot: &Path, data: &Path) -> Result<Command> {
    Ok(bed.etcd_tool("etcdutl").args(["snapshot", "restore", text(snapshot)?, "--data-dir", text(data)?]).args([
        "--bump-revision",
        BUMP,
        "--mark-compacted",
    ]))
}

fn restore(bed: &Bed, lineage: &str, data: &Path) -> Result<Command> {
    Ok(bed
        .agent("restore", lineage)
        .args(["--output=json", "--bump-revision", BUMP, "--data-dir", text(data)?])
        .args(["--etcdutl", text(&bed.etcdutl())?]))
}

fn archive(bed: &Bed, lineage: &str) -> Command {
    let spill = bed.file("spill");
    bed.agent("archive", lineage).args(["--flush-every", FLUSH, "--spill"]).arg(&spill)
}

/// Records a full snapshot and then events as [`RECORD`], and looks at the memory that it takes all its life: for the snapshot,
/// while events come, and until all of them are stored.
pub async fn record(bed: &Bed, events: u64) -> Result<Rows> {
    std::fs::create_dir_all(bed.file("spill"))?;
    let client = bed.client().await?;
    let running = Running::start(&archive(bed, RECORD).args(["--full-after", "1000000000"]))?;
    let recorded = async {
        reaches(bed, RECORD, load::revision(&client).await?).await?;
        eprintln!("{events} events");
        load::events(&client, events).await?;
        reaches(bed, RECORD, load::revision(&client).await?).await
    };
    let memory = running.memory_until(Box::pin(recorded)).await?;
    let ended = running.terminate().await?;
    Ok(vec![("archive-rss-mib", "MiB", SLIM, only(vec![memory.max(ended.memory)]))])
}

/// Waits until the record has that revision, and demands that it is one generation: events that began another one with a
/// full snapshot would not be restored as deltas.
async fn reaches(bed: &Bed, lineage: &str, revision: i64) -> Result<()> {
    let wanted = format!("the archive to reach {revision}");
    let generations = wait_for(&wanted, PATIENCE, async || {
        let listed: Value = serde_json::from_str(&bed.agent("list", lineage).arg("--output=json").run().await?)?;
        let generations = listed.as_array().map_or(&[][..], Vec::as_slice);
        let last = generations.first().and_then(|one| one["whole"]["lastRevision"].as_i64());
        // More will never be one again.
        ensure!(generations.len() > 1 || last >= Some(revision), "it ends with {last:?}: {listed}");
        Ok(generations.len())
    });
    ensure!(generations.await? == 1, "the archive began anew");
    Ok(())
}

/// A data folder from a full snapshot and the events after it, against etcd's own tool on a snapshot of the same size that
/// is there already.
pub async fn restore_with_deltas(bed: &Bed, runs: u32) -> Result<Rows> {
    let (mut time, mut speed, mut memory) = (Measured::default(), only(vec![]), only(vec![]));
    let (file, data) = (bed.file("final.db"), bed.file("restored"));
    bed.etcd_tool("etcdctl").args(["snapshot", "save", text(&file)?]).run().await?;
    for run in 0..runs {
        clear(&data);
        let floor = process::run_all(&[etcdutl(bed, &file, &data)?]).await?;
        clear(&data);
        let ended = process::run(&restore(bed, RECORD, &data)?).await?;
        let told: Value = serde_json::from_str(&ended.printed)?;
        let field = |name: &str| told[name].as_f64().with_context(|| format!("no {name} in {told}"));
        let rate = field("events")? / field("applySeconds")?;
        eprintln!("  restore {}: etcdutl {floor:.2} s, agent {:.2} s, {rate:.0} events/s", run + 1, ended.seconds);
        time.floor.push(floor);
        time.value.push(ended.seconds);
        speed.value.push(rate);
        memory.value.push(ended.memory);
    }
    clear(&data);
    clear(&file);
    Ok(vec![
        ("restore-with-deltas", "s", Some(Reach::RatioAtMost(1.5)), time),
        ("delta-apply-events-per-second", "1/s", Some(Reach::ValueAtLeast(Figure::Median, 600_000.0)), speed),
        ("restore-rss-mib", "MiB", SLIM, memory),
    ])
}

/// How long writes take beside an archive, against none; also while its store does not answer, when what comes is put aside on
/// the disk on which etcd lives. The disk has good and bad minutes: in every other round the floor comes last.
pub async fn disturbance(bed: &mut Bed, runs: u32) -> Result<Rows> {
    let client = bed.client().await?;
    let (mut rest, mut outage) = (Measured::default(), Measured::default());
    for round in 0..runs * ROUNDS {
        let lineage = format!("beside-{round}");
        let (floor, (beside, without_store)) = if round.is_multiple_of(2) {
            (latency::p99(&client).await?, beside_an_archive(bed, &client, &lineage).await?)
        } else {
            let beside = beside_an_archive(bed, &client, &lineage).await?;
            (latency::p99(&client).await?, beside)
        };
        eprintln!("  p99 {}: alone {floor:.2} ms, beside {beside:.2} ms, store away {without_store:.2} ms", round + 1);
        rest.floor.push(floor);
        rest.value.push(beside);
        outage.floor.push(floor);
        outage.value.push(without_store);
    }
    Ok(vec![
        ("archive-write-p99", "ms", Some(Reach::RatioAtMost(1.05)), rest),
        ("archive-write-p99-outage", "ms", Some(Reach::RatioAtMost(1.5)), outage),
    ])
}

/// The 99th percentile beside an archive, and while its store is away and more has come than it holds in memory.
async fn beside_an_archive(bed: &mut Bed, client: &Client, lineage: &str) -> Result<(f64, f64)> {
    let running = Running::start(&archive(bed, lineage))?;
    reaches(bed, lineage, load::revision(client).await?).await?;
    let beside = latency::p99(client).await?;
    bed.pause_store(true)?;
    let without_store = p99_with_what_is_put_aside(client).await;
    bed.pause_store(false)?;
    let without_store = without_store?;
    let ended = running.terminate().await?;
    ensure!(ended.told.contains(PUT_ASIDE), "the archive held all in memory: {}", ended.told);
    Ok((beside, without_store))
}

async fn p99_with_what_is_put_aside(client: &Client) -> Result<f64> {
    load::events(client, TOO_MANY).await?;
    latency::p99(client).await
}

/// A member's id, and a client of it alone.
type Member = (u64, Client);

async fn members(bed: &Bed) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    for url in bed.urls() {
        let mut client = Client::connect([url], None).await?;
        let status = client.status().await?;
        members.push((status.header().context("an answer without a header")?.member_id(), client));
    }
    Ok(members)
}

/// Moves the leadership to the member after the one that has it.
async fn move_leadership(members: &mut [Member]) -> Result<()> {
    let (_, any) = members.first_mut().context("no member")?;
    let leader = any.status().await?.leader();
    let at = members.iter().position(|(id, _)| *id == leader).context("nobody leads")?;
    // The order in which it goes round stays.
    members.rotate_left(at);
    let [(_, leader), (next, _), ..] = members else { bail!("there is nobody to lead next") };
    leader.move_leader(*next).await.context("failed to move the leadership")?;
    Ok(())
}

/// The 99th percentile while the leadership moves.
async fn p99_across_moves(client: &Client, members: &mut [Member]) -> Result<f64> {
    // What was written before must not hold up the first write until after the first move.
    process::settle().await?;
    let moves = async {
        for _ in 0..MOVES {
            tokio::time::sleep(BETWEEN_MOVES).await;
            move_leadership(members).await?;
        }
        anyhow::Ok(())
    };
    let (p99, ()) = tokio::try_join!(latency::p99_across_moves(client), moves)?;
    Ok(p99)
}

/// Starts an archive beside a member, which records as long as that leads.
fn archive_beside(bed: &Bed, lineage: &str, url: &str, spill: &Path) -> Result<Running> {
    std::fs::create_dir_all(spill)?;
    let archive = bed.agent("archive", lineage).args(["--beside-leader", "--endpoint", url, "--flush-every", FLUSH]);
    Running::start(&archive.arg("--spill").arg(spill))
}

/// How long writes take while the leadership moves, with an archive beside each member, against none. The record goes
/// on in one generation, whoever leads.
pub async fn handover(bed: &Bed, runs: u32) -> Result<Rows> {
    let client = bed.client().await?;
    wait_for("the members to elect a leader", PATIENCE, async || load::revision(&client).await).await?;
    let mut members = members(bed).await?;
    let mut measured = Measured::default();
    for run in 0..runs {
        let floor = p99_across_moves(&client, &mut members).await?;
        let lineage = format!("hand-over-{run}");
        let mut archives = Vec::new();
        for (number, url) in bed.urls().iter().enumerate() {
            archives.push(archive_beside(bed, &lineage, url, &bed.file(&format!("spill-{number}")))?);
        }
        reaches(bed, &lineage, load::revision(&client).await?).await?;
        let beside = p99_across_moves(&client, &mut members).await?;
        reaches(bed, &lineage, load::revision(&client).await?).await?;
        for archive in archives {
            archive.terminate().await?;
        }
        eprintln!("  p99 {}: leadership moves {floor:.2} ms, with archives {beside:.2} ms", run + 1);
        measured.floor.push(floor);
        measured.value.push(beside);
    }
    Ok(vec![("archive-write-p99-handover", "ms", None, measured)])
}
