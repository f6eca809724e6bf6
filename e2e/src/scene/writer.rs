//! A client that writes numbered keys all the time, over all members, and remembers what was acknowledged: the judge of
//! "no acknowledged write is lost" and of how long writes failed. It never repairs anything.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use etcd_client::{Client, GetOptions};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::members::{Door, dial_patiently, told};
use super::wait::wait_for;
use super::{Cluster, PATIENCE};

/// How long one put may take before the next member is asked as well: a leader change takes one to two seconds, and a
/// member that was cut off never answers.
const PUT_PATIENCE: Duration = Duration::from_secs(1);
/// The same for a client that measures how long writes fail: a put that a follower has sent on when the leadership moves is
/// dropped by raft without a word, and the client finds that out by its own patience only.
const HASTY_PATIENCE: Duration = Duration::from_millis(400);
/// How long the answer to one put is waited for, whoever else is asked meanwhile: one that is only slow is no failure.
const PUT_DEADLINE: Duration = Duration::from_secs(4);
/// The pause between puts: some hundred a second, and the machine has other things to do.
const PAUSE: Duration = Duration::from_millis(5);
/// How often the list of members is read anew.
const ADDRESSES_INTERVAL: Duration = Duration::from_millis(500);
/// How long the API server may take for that. No put waits for it.
const ADDRESSES_DEADLINE: Duration = Duration::from_secs(5);
/// How many keys are read back at a time.
const PAGE: i64 = 2000;

/// The longest that writes may fail in a scene. A leader change takes one to two seconds; a put that was under way then
/// and one to the member that doesn't answer are given up after a second at most. The rest is for two cores on which three
/// nodes run. The benchmark measures how long it really takes.
pub const LONGEST_GAP: Duration = Duration::from_secs(5);
/// The same where a member is lost without a word, which may lead. The others stand for election one to two seconds after its
/// last heartbeat (etcd waits for a random time between one and two of its election timeouts, which are of 1 s here). With two
/// of three left both may stand at once, and neither is elected: that is one to two seconds more, and one time in ten with
/// timeouts that differ by tenths. The put that finds the new leader is sent a second after the one before it at most. So it
/// is 5 s with one such draw; the rest, as above, is for two cores that also start what was lost again.
const LONGEST_GAP_OF_A_LOSS: Duration = Duration::from_secs(8);
/// The same where a pod is killed while another of three members is started anew, as planned or as it was killed before:
/// nobody leads until one of them is back. On two cores 3.6 to 5.4 s were seen, and each new leader may be killed in turn.
const LONGEST_GAP_OF_TWO: Duration = Duration::from_secs(15);

/// A client that writes until it is stopped.
#[derive(Debug)]
pub struct Writer {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    task: JoinHandle<Result<Written>>,
    prefix: String,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Below this prefix.
    pub prefix: String,
    /// How many: the keys 0 to this were acknowledged.
    pub acknowledged: u64,
    /// How many puts failed or were not acknowledged in time; each was tried again until it was.
    pub failed: u64,
    /// The longest time between two acknowledged writes.
    pub longest_gap: Duration,
}

fn key(prefix: &str, number: u64) -> String {
    format!("{prefix}/{number:010}")
}

fn value(number: u64) -> String {
    format!("value of {number}")
}

impl Writer {
    /// Begins to write below `prefix`, once the cluster serves.
    pub async fn start(cluster: &Cluster, prefix: &str) -> Result<Self> {
        Self::start_with(cluster, prefix, PUT_PATIENCE).await
    }

    /// The same with a client that soon asks the next member.
    pub async fn start_hasty(cluster: &Cluster, prefix: &str) -> Result<Self> {
        Self::start_with(cluster, prefix, HASTY_PATIENCE).await
    }

    async fn start_with(cluster: &Cluster, prefix: &str, patience: Duration) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let writing = write(Members::new(cluster.clone(), patience), prefix.to_owned(), stop.clone(), done.clone());
        let writer = Self { stop, done, task: tokio::spawn(writing), prefix: prefix.to_owned() };
        writer.writes(1).await?;
        Ok(writer)
    }

    /// Waits until `more` further writes have been acknowledged.
    pub async fn writes(&self, more: u64) -> Result<()> {
        let until = self.done.load(Ordering::Relaxed) + more;
        wait_for(&format!("{more} more acknowledged writes below {}", self.prefix), PATIENCE, async || {
            let done = self.done.load(Ordering::Relaxed);
            ensure!(done >= until, "{done} of {until}");
            Ok(())
        })
        .await
    }

    /// Writes once more, stops, and says what was written.
    pub async fn stop(self) -> Result<Written> {
        self.writes(1).await?;
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.context("the writer ended early")?
    }
}

async fn write(mut members: Members, prefix: String, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> Result<Written> {
    let mut written = Written { prefix, acknowledged: 0, failed: 0, longest_gap: Duration::ZERO };
    let mut last = None;
    while !stop.load(Ordering::Relaxed) {
        let number = written.acknowledged;
        written.failed += members.put(&key(&written.prefix, number), &value(number)).await;
        let now = Instant::now();
        // The time before the first write is no gap: the cluster may only just be coming up.
        written.longest_gap = written.longest_gap.max(last.map_or(Duration::ZERO, |last| now - last));
        last = Some(now);
        written.acknowledged += 1;
        done.store(written.acknowledged, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(written)
}

/// The members to write to, in turn.
struct Members {
    /// How long one is waited for before the next one is asked as well.
    patience: Duration,
    doors: watch::Receiver<BTreeMap<String, Door>>,
    clients: HashMap<String, Client>,
    turn: usize,
}

impl Members {
    fn new(cluster: Cluster, patience: Duration) -> Self {
        let (shown, doors) = watch::channel(BTreeMap::new());
        tokio::spawn(show_members(cluster, shown));
        Self { patience, doors, clients: HashMap::new(), turn: 0 }
    }

    /// Puts one key through one member after the other, until one of them has acknowledged it; how many tries had not. A
    /// member that failed is dialled anew next time.
    async fn put(&mut self, key: &str, value: &str) -> u64 {
        let mut tries = 0;
        let mut asked = FuturesUnordered::new();
        loop {
            if let Some(door) = self.whose_turn() {
                let client = self.clients.remove(&door.address);
                asked.push(put(door, client, key, value));
                tries += 1;
            }
            match tokio::time::timeout(self.patience, asked.next()).await {
                Ok(Some(Ok((address, client)))) => {
                    self.clients.insert(address, client);
                    return tries - 1;
                }
                Ok(Some(Err(_)) | None) => tokio::time::sleep(PAUSE).await,
                // Whoever was asked may answer yet.
                Err(_) => (),
            }
        }
    }

    /// The way to the member whose turn it is.
    fn whose_turn(&mut self) -> Option<Door> {
        self.turn = self.turn.wrapping_add(1);
        let doors = self.doors.borrow();
        doors.values().nth(self.turn % doors.len().max(1)).cloned()
    }
}

/// Puts one key through one member. Returns its address and the client, once that was acknowledged.
async fn put(door: Door, client: Option<Client>, key: &str, value: &str) -> Result<(String, Client)> {
    let put = async {
        let mut client = match client {
            Some(client) => client,
            None => dial_patiently(&door).await?,
        };
        client.put(key, value, None).await.map_err(told)?;
        anyhow::Ok(client)
    };
    let client = tokio::time::timeout(PUT_DEADLINE, put).await??;
    Ok((door.address, client))
}

/// Shows the ways to the members for as long as anybody looks. Without an answer of the API server they stay those known
/// so far.
async fn show_members(cluster: Cluster, shown: watch::Sender<BTreeMap<String, Door>>) {
    while !shown.is_closed() {
        if let Ok(Ok(doors)) = tokio::time::timeout(ADDRESSES_DEADLINE, cluster.voters_doors()).await {
            shown.send_replace(doors);
        }
        tokio::time::sleep(ADDRESSES_INTERVAL).await;
    }
}

impl Written {
    /// Reads everything back, linearizably, and demands that no acknowledged write is lost.
    pub async fn check(&self, cluster: &Cluster) -> Result<()> {
        let found = wait_for("a linearizable read of all that was written", PATIENCE, async || {
            read(cluster, &self.prefix).await
        })
        .await?;
        for number in 0..self.acknowledged {
            match found.get(&key(&self.prefix, number)) {
                Some(read) if *read == value(number) => (),
                Some(read) => bail!("acknowledged write {number} reads {read:?}"),
                None => bail!("acknowledged write {number} of {} below {} is lost", self.acknowledged, self.prefix),
            }
        }
        Ok(())
    }

    /// Demands that writes never failed for longer than a leader change takes on a busy machine.
    pub fn was_never_long_without(&self) -> Result<()> {
        self.was_never_without_for("with a leader change", LONGEST_GAP)
    }

    /// The same where one member at a time was lost without a word, and a quorum stayed.
    pub fn outlived_a_member(&self) -> Result<()> {
        self.was_never_without_for("with a member lost", LONGEST_GAP_OF_A_LOSS)
    }

    /// The same where members were killed while others of them were away for a moment.
    pub fn outlived_two_members(&self) -> Result<()> {
        self.was_never_without_for("with two members away at times", LONGEST_GAP_OF_TWO)
    }

    fn was_never_without_for(&self, why: &str, longest: Duration) -> Result<()> {
        ensure!(
            self.longest_gap <= longest,
            "no write was acknowledged for {:.1} s; {why} it may be {} s",
            self.longest_gap.as_secs_f64(),
            longest.as_secs()
        );
        Ok(())
    }
}

/// All keys below the prefix, read page by page from one member.
async fn read(cluster: &Cluster, prefix: &str) -> Result<HashMap<String, String>> {
    cluster.ask(async |client| read_from(client, prefix).await).await
}

async fn read_from(client: &mut Client, prefix: &str) -> Result<HashMap<String, String>> {
    let mut found = HashMap::new();
    let mut from = format!("{prefix}/");
    let end = format!("{prefix}0"); // '0' follows '/'.
    loop {
        let options = GetOptions::new().with_range(end.as_str()).with_limit(PAGE);
        let page = client.get(from.as_str(), Some(options)).await.map_err(told)?;
        for pair in page.kvs() {
            found.insert(
                String::from_utf8_lossy(pair.key()).into_owned(),
                String::from_utf8_lossy(pair.value()).into_owned(),
            );
        }
        match page.kvs().last() {
            Some(last) if page.more() => from = format!("{}\0", String::from_utf8_lossy(last.key())),
            Some(_) | None => return Ok(found),
        }
    }
}
