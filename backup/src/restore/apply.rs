//! Applies deltas to a database file: records are fetched and decompressed ahead, and appended by one thread. It checks what
//! the manifests say of them on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::{DeltaFault, Progress, RestoreError, Restored};
use crate::bolt::mvcc::{ALARM, CLUSTER, DOWNGRADE, LEASE, Lease, lease_of};
use crate::bolt::{self, Appender, Database};
use crate::format::{
    Chain, DataObject, DataReader, Delta, EventHash, Hasher, Link, Record, RecordReader, Revision, write_record,
};
use crate::store::{Key, Store};

/// The TTL in seconds of a lease that a key names and whose own TTL nobody had learned: it was granted, used and revoked
/// between two looks. An hour gives its owner, if there is one, time to come back; a lease that no entry is there for would
/// never run out, and makes etcd panic when its key is written with `--ignore-lease`.
pub const UNKNOWN_TTL: i64 = 3600;

/// Pieces of records that wait to be applied, each of at most 8 MiB.
const AHEAD: usize = 1;
/// How many events are applied between two reports.
const REPORT_EVERY: u64 = 50_000;

/// Leases by id, with their TTL as far as it is known.
type Leases = BTreeMap<i64, Option<i64>>;

/// What the thread that applies is told.
enum Order {
    /// The records that follow are of this delta, whose `lastEvents` was made in this way, if that is known.
    Begin(Key, Box<Delta>, Option<EventHash>),
    /// Some of them.
    Records(Vec<u8>),
    /// That was all of it, and its hash was right.
    End,
    /// There are no more deltas.
    Done,
}

/// Brings the database at `path`, which is that of the full snapshot, to a revision. `named` are leases that it names, and may
/// not have.
pub(super) async fn deltas(
    store: &Store,
    chain: &Chain,
    (target, named): (Revision, BTreeSet<i64>),
    path: &Path,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Restored, RestoreError> {
    let begun = Instant::now();
    let links: Vec<&Link> = chain.links.iter().take_while(|link| link.delta.from <= target).collect();
    let mut granted = Leases::new();
    for lease in links.iter().flat_map(|link| &link.delta.leases) {
        granted.insert(lease.id, Some(lease.ttl));
    }
    let (orders, received) = mpsc::channel(AHEAD);
    // Of one that was brought back, the end is there already.
    let first = chain.full.revision.min(target).get();
    let named = named.into_iter().map(|lease| (lease, None)).collect();
    let (reached, mut seen) = tokio::sync::watch::channel(first);
    let path = path.to_owned();
    let applying = spawn_blocking(move || {
        let fault = |source| RestoreError::Write { path: path.clone(), source };
        let file = bolt::open(&path).map_err(fault)?;
        let applier = Applier::new(&file, first, target.get(), (granted, named))?;
        applier.run(received, &reached)
    });
    let sending = async {
        for link in links {
            send(store, chain, link, &orders).await?;
        }
        // Where the other side has ended, it has an error of its own to tell.
        let _ = orders.send(Order::Done).await;
        drop(orders);
        Ok::<_, RestoreError>(())
    };
    let reporting = async {
        while seen.changed().await.is_ok() {
            report(Progress::Applying { reached: *seen.borrow_and_update(), target: target.get() });
        }
    };
    let (sent, (), applied) = tokio::join!(sending, reporting, applying);
    // What is wrong with the data shows on the sending side, and ends the other one early without a commit.
    sent?;
    Ok(Restored { applying: begun.elapsed(), ..applied?? })
}

async fn send(store: &Store, chain: &Chain, link: &Link, orders: &mpsc::Sender<Order>) -> Result<(), RestoreError> {
    let key = chain.key.delta(link.delta.from);
    let object = DataObject::new(store, &chain.key, &link.delta.data)?;
    let mut reader = DataReader::new(&object);
    // Where the other side has ended, it has an error of its own to tell.
    if orders.send(Order::Begin(key, Box::new(link.delta.clone()), object.event_hash())).await.is_err() {
        return Ok(());
    }
    while let Some(piece) = reader.next().await? {
        if orders.send(Order::Records(piece)).await.is_err() {
            return Ok(());
        }
    }
    let _ = orders.send(Order::End).await;
    Ok(())
}

/// The delta that is being applied.
struct Current {
    key: Key,
    delta: Box<Delta>,
    reader: RecordReader,
    events: u64,
    /// The last record that was read, whether it was applied or not; at first its predecessor's revision.
    last: u64,
    /// The number that the next event of that revision would have.
    next_sub: u64,
    /// `None` if the manifest's hash can't be made here: the data's own hash stands for it.
    last_events: Option<Hasher>,
    record: Vec<u8>,
}

/// Applies records, one delta after the other.
struct Applier<'a> {
    appender: Appender<'a>,
    target: u64,
    last: u64,
    events: u64,
    granted: Leases,
    /// Leases that applied events name.
    named: Leases,
    current: Option<Current>,
}

impl<'a> Applier<'a> {
    fn new(
        file: &'a std::fs::File,
        first: u64,
        target: u64,
        (granted, named): (Leases, Leases),
    ) -> Result<Self, RestoreError> {
        let appender = Appender::new(file)?;
        Ok(Self { appender, target, last: first, events: 0, granted, named, current: None })
    }

    fn run(
        mut self,
        mut orders: mpsc::Receiver<Order>,
        reached: &tokio::sync::watch::Sender<u64>,
    ) -> Result<Restored, RestoreError> {
        while let Some(order) = orders.blocking_recv() {
            match order {
                Order::Begin(key, delta, event_hash) => {
                    let last = delta.from.get() - 1;
                    let (reader, last_events) = (RecordReader::new(), event_hash.map(EventHash::hasher));
                    self.current = Some(Current {
                        key,
                        delta,
                        reader,
                        events: 0,
                        last,
                        next_sub: 0,
                        last_events,
                        record: Vec::new(),
                    });
                }
                Order::Records(piece) => self.records(&piece, reached)?,
                Order::End => self.end()?,
                Order::Done => return self.commit(),
            }
        }
        // The sender met an error, which it tells itself; nothing is committed.
        Err(RestoreError::Append(std::io::Error::from(std::io::ErrorKind::Interrupted).into()))
    }

    fn records(&mut self, piece: &[u8], reached: &tokio::sync::watch::Sender<u64>) -> Result<(), RestoreError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let fault = |key: &Key, fault: DeltaFault| RestoreError::Delta { key: key.clone(), fault };
        current.reader.feed(piece);
        while let Some(Record { key, value }) =
            current.reader.take().map_err(|error| fault(&current.key, error.into()))?
        {
            // Revisions have no gaps, and the events of one are numbered without gaps too.
            let same = key.main == current.last && current.events > 0 && key.sub == current.next_sub;
            let next = key.main == current.last + 1 && key.sub == 0;
            if !(same || next) || key.main > current.delta.to.get() {
                return Err(fault(&current.key, DeltaFault::Order { found: key, last: current.last }));
            }
            current.last = key.main;
            current.next_sub = key.sub + 1;
            current.events += 1;
            if key.main == current.delta.to.get() {
                current.record.clear();
                write_record(&mut current.record, Record { key, value })
                    .map_err(|error| fault(&current.key, error.into()))?;
                if let Some(last_events) = &mut current.last_events {
                    last_events.update(&current.record);
                }
            }
            if key.main > self.target {
                continue;
            }
            self.appender.push(key, value)?;
            self.last = key.main;
            self.events += 1;
            if !key.tombstone {
                let lease = lease_of(value).ok_or_else(|| fault(&current.key, DeltaFault::Value(key)))?;
                if lease != 0 {
                    self.named.insert(lease, self.granted.get(&lease).copied().flatten());
                }
            }
            if self.events.is_multiple_of(REPORT_EVERY) {
                reached.send_replace(self.last);
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), RestoreError> {
        let Some(Current { key, delta, reader, events, last, next_sub: _, last_events, record: _ }) =
            self.current.take()
        else {
            return Ok(());
        };
        let fault = |fault| Err(RestoreError::Delta { key: key.clone(), fault });
        if let Err(error) = reader.finish() {
            return fault(error.into());
        }
        if last != delta.to.get() {
            return fault(DeltaFault::LastRevision { found: last, said: delta.to });
        }
        if events != delta.events {
            return fault(DeltaFault::Count { found: events, said: delta.events });
        }
        match last_events.map(|hasher| hasher.finish()) {
            Some(hash) if hash != delta.last_events => fault(DeltaFault::LastEvents),
            Some(_) | None => Ok(()),
        }
    }

    fn commit(mut self) -> Result<Restored, RestoreError> {
        let mut additions = BTreeMap::new();
        // Also those that no key names: a client that was granted one may still mean to use it.
        let mut leases = self.granted;
        leases.extend(self.named);
        // Zero stands for none.
        leases.remove(&0);
        let unknown = {
            let known = known_leases(self.appender.database())?;
            // One that was granted anew after the full snapshot has the time for which it was granted last.
            leases.retain(|id, ttl| known.get(id).is_none_or(|known| ttl.is_some_and(|ttl| ttl != *known)));
            leases.values().filter(|ttl| ttl.is_none()).count() as u64
        };
        for (id, ttl) in &leases {
            let lease = Lease { id: *id, ttl: ttl.unwrap_or(UNKNOWN_TTL), remaining_ttl: 0 };
            additions.insert(id.to_be_bytes().to_vec(), Some(lease.encode_to_vec()));
        }
        if !additions.is_empty() {
            self.appender.change(LEASE, &additions)?;
        }
        // An alarm of the old cluster (no space, corruption) would stop the new one.
        let alarms = self.appender.clear(ALARM)?;
        // So would a downgrade that was enabled in that moment: the new cluster would go on with it, and newcomers be refused.
        // etcdutl leaves it in (seen on 3.6).
        if self.appender.database().find_bucket(CLUSTER)?.is_some() {
            self.appender.change(CLUSTER, &[(DOWNGRADE.to_vec(), None)].into())?;
        }
        let bytes = self.appender.commit()?;
        Ok(Restored {
            revision: Revision::new(self.last).unwrap_or_default(),
            events: self.events,
            later: 0,
            leases: additions.len() as u64,
            leases_of_unknown_ttl: unknown,
            alarms,
            left_out: 0,
            bytes,
            applying: Duration::ZERO,
        })
    }
}

/// The leases that the full snapshot has, with the time in seconds for which each was granted.
fn known_leases<P: bolt::Pages>(database: &Database<P>) -> Result<BTreeMap<i64, i64>, RestoreError> {
    let bucket = database.bucket(LEASE)?;
    let mut cursor = database.cursor(&bucket);
    let mut known = BTreeMap::new();
    let mut more = cursor.first()?;
    while more {
        let (key, value) = cursor.pair()?;
        // What is no lease is not touched.
        if let (Some(id), Ok(lease)) = (key.first_chunk(), Lease::decode(value)) {
            known.insert(i64::from_be_bytes(*id), lease.ttl);
        }
        more = cursor.forward()?;
    }
    Ok(known)
}
