//! The load: clients that write keys at a pace, whatever fails, and know what etcd has acknowledged as which revision. They
//! know nothing of the backup.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, GetOptions, Txn, TxnOp};
use futures::future::join_all;
use quorate_e2e::scene::{Cluster, PATIENCE, dial, told, wait_for};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, interval_at};

/// For how long is written: time enough for each fault to come twice, also if a kubelet takes its time to start again
/// what was killed twice.
const LOAD: Duration = Duration::from_mins(3);
/// Keys that are written a second, by all clients together.
const PACE: u32 = 5_000;
/// Keys that one transaction writes where nothing is overdue: one for each would be more revisions a second than three
/// members, their clients and their nodes reach on two processors (2,648 of 5,000).
const TOGETHER: u64 = 3;
/// Keys that one writes at most, of what is overdue: a machine that makes fewer transactions has as many keys. etcd takes 128.
const MOST_TOGETHER: u64 = 64;
/// Clients, each with a connection of its own.
const CLIENTS: u32 = 25;
/// The transactions that a client makes at once. Each group waits for the one before it.
const AT_ONCE: u64 = 7;
/// How often a client makes such a group, if it is on time.
const TICK: Duration = Duration::from_millis(105);
/// The keys of each client.
const KEYS: u64 = 200;
/// The size of a value.
const VALUE: usize = 100;

/// How often something else is written than such values.
const VARY_EVERY: Duration = Duration::from_millis(500);
/// Each so many of these times one value is large.
const LARGE_EACH: u64 = 4;
/// Its size.
const LARGE: usize = 64 << 10;
/// The keys for all else; half of them are there at a time.
const OTHERS: u64 = 40;

/// A connection to one member, and after an error to the next one.
pub struct Connection {
    db: Cluster,
    turn: usize,
    etcd: Option<Client>,
}

impl Connection {
    pub fn new(db: &Cluster, turn: usize) -> Self {
        Self { db: db.clone(), turn, etcd: None }
    }

    pub async fn client(&mut self) -> Result<Client> {
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
    pub fn turn_away(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.etcd = None;
    }
}

/// A transaction that etcd has acknowledged: which keys of a client it wrote, and as which revision.
#[derive(Debug)]
struct Acknowledged {
    revision: i64,
    client: u32,
    keys: Range<u64>,
}

impl Acknowledged {
    fn count(&self) -> u64 {
        self.keys.end - self.keys.start
    }
}

/// What became of the keys that were written.
#[derive(Debug, Default)]
pub struct Written {
    acknowledged: u64,
    /// Transactions. What they wrote was sent again.
    failed: usize,
    transactions: Vec<Acknowledged>,
}

impl Written {
    /// How many transactions were acknowledged.
    pub fn transactions(&self) -> usize {
        self.transactions.len()
    }

    /// Demands that etcd's history up to this revision has every write that was acknowledged as a revision up to it; how many
    /// transactions those were.
    pub async fn is_there(&self, db: &Cluster, revision: i64) -> Result<usize> {
        let found: HashMap<_, _> = wait_for("what was there", PATIENCE, async || {
            db.ask(async |etcd| {
                let options = GetOptions::new().with_prefix().with_revision(revision);
                let answer = etcd.get("load/", Some(options)).await.map_err(told)?;
                let pairs = answer.kvs().iter();
                Ok(pairs.map(|pair| (pair.key().to_vec(), (pair.mod_revision(), pair.value().to_vec()))).collect())
            })
            .await
        })
        .await?;
        let (mut count, mut newest) = (0, BTreeMap::new());
        for one in self.transactions.iter().filter(|one| one.revision <= revision) {
            count += 1;
            for number in one.keys.clone() {
                let last = newest.entry((one.client, number % KEYS)).or_insert((one.revision, number));
                *last = (*last).max((one.revision, number));
            }
        }
        for ((client, slot), (acknowledged, number)) in newest {
            let key = key(client, slot);
            let (modified, held) =
                found.get(key.as_bytes()).with_context(|| format!("at {revision} there is no {key}"))?;
            // A later one may have failed and be there nonetheless.
            let is_there =
                *modified > acknowledged || (*modified == acknowledged && *held == value(number).into_bytes());
            ensure!(is_there, "at {revision} {key} is of {modified}, and {number} was acknowledged as {acknowledged}");
        }
        Ok(count)
    }
}

fn key(client: u32, number: u64) -> String {
    format!("load/{client}/{}", number % KEYS)
}

fn value(number: u64) -> String {
    format!("{number:0VALUE$}")
}

/// What each of the transactions writes that a client makes at once of what is due.
fn shares(due: Range<u64>) -> Vec<Range<u64>> {
    let each = (due.end - due.start).div_ceil(AT_ONCE).clamp(TOGETHER, MOST_TOGETHER);
    let share = |number: u64| due.start + number * each..due.end.min(due.start + (number + 1) * each);
    (0..AT_ONCE).map(share).take_while(|share| !share.is_empty()).collect()
}

/// Makes these transactions at once; what of it was acknowledged.
async fn send(etcd: &Client, client: u32, shares: &[Range<u64>]) -> Vec<Acknowledged> {
    let transactions = shares.iter().map(|keys| {
        let (mut etcd, keys) = (etcd.clone(), keys.clone());
        let puts: Vec<_> = keys.clone().map(|number| TxnOp::put(key(client, number), value(number), None)).collect();
        async move {
            let answer = etcd.txn(Txn::new().and_then(puts)).await.ok()?;
            Some(Acknowledged { revision: answer.header()?.revision(), client, keys })
        }
    });
    join_all(transactions).await.into_iter().flatten().collect()
}

/// How many keys a client is to have written so long after it began.
fn due(since: Duration) -> u64 {
    let pace = u64::from(PACE / CLIENTS);
    since.as_secs() * pace + u64::from(since.subsec_millis()) * pace / 1_000
}

/// One client: what is due at each tick.
async fn write_on_time(mut connection: Connection, client: u32, end: Instant) -> Written {
    // The clients one after the other, not all at once.
    let begin = tokio::time::Instant::now() + TICK * client / CLIENTS;
    let mut ticks = interval_at(begin + TICK, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut written = Written::default();
    while Instant::now() < end {
        ticks.tick().await;
        let due = due(begin.elapsed());
        while written.acknowledged < due && Instant::now() < end {
            let shares = shares(written.acknowledged..due);
            let acknowledged = match connection.client().await {
                Ok(etcd) => send(&etcd, client, &shares).await,
                Err(_) => Vec::new(),
            };
            let failed = shares.len() - acknowledged.len();
            written.acknowledged += acknowledged.iter().map(Acknowledged::count).sum::<u64>();
            written.transactions.extend(acknowledged);
            if failed > 0 {
                written.failed += failed;
                connection.turn_away();
            }
        }
    }
    written
}

/// Writes at the pace.
pub async fn load(db: &Cluster) -> Result<Written> {
    let end = Instant::now() + LOAD;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(write_on_time(Connection::new(db, usize::try_from(client)?), client, end));
    }
    let mut all = Written::default();
    while let Some(one) = clients.join_next().await {
        let Written { acknowledged, failed, transactions } = one?;
        all.acknowledged += acknowledged;
        all.failed += failed;
        all.transactions.extend(transactions);
    }
    let rate = all.acknowledged / LOAD.as_secs();
    let transactions = all.transactions.len();
    eprintln!("{transactions} transactions wrote {rate} keys a second; {} failed first", all.failed);
    // Without a leader there are some seconds in which nobody can write; what is overdue then is written after it.
    ensure!(rate * 10 >= u64::from(PACE) * 9, "{rate} keys a second are not the load that this is about");
    Ok(all)
}

/// Writes what else a history has: values of all sizes, and keys that go. Nobody asks for these one by one: they are in etcd's
/// hash. How many times all of it was done. No key is on a lease: `etcdutl hashkv` panics where one is ("no lessor to attach
/// lease"), so leases are tried next door (`past.rs`).
pub async fn vary(db: &Cluster, over: &AtomicBool) -> u64 {
    let mut connection = Connection::new(db, 1);
    let mut ticks = interval(VARY_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut round, mut done) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        ticks.tick().await;
        let varied = async { write_others(&mut connection.client().await?, round).await };
        match varied.await {
            Ok(()) => done += 1,
            Err(_) => connection.turn_away(),
        }
        round += 1;
    }
    done
}

async fn write_others(etcd: &mut Client, round: u64) -> Result<()> {
    let other = |number: u64| format!("other/{}", number % OTHERS);
    let value = vec![b'o'; usize::try_from(round % OTHERS)? * VALUE];
    etcd.put(other(round), value, None).await?;
    etcd.delete(other(round + OTHERS / 2), None).await?;
    if round.is_multiple_of(LARGE_EACH) {
        etcd.put("other/large", vec![b'l'; LARGE], None).await?;
    }
    Ok(())
}
