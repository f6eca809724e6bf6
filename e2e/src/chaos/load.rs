//! The load on a cluster: clients and watches that record all they see. It ends with a last look at everything, and hands
//! over the history; what it could not do it says there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use etcd_client::{Client, GetOptions};
use fastrand::Rng;
use futures::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::book::{Book, Place};
use super::clients::{Caller, Recorder, found, perform};
use super::clock::Clock;
use super::history::{Answer, Call, ClientId, Found, History, Key, Op, Outcome, Revision, Trouble, Watched};
use super::keys::{Keys, PREFIX};
use super::watchers::{self, Seen};
use crate::scene::{Cluster, PATIENCE, dial, wait_for};

/// How many clients call.
const CLIENTS: u32 = 6;
/// How many watches are open.
const WATCHES: usize = 4;
/// How long each part of the last look may take: the cluster has converged by then, and answers at once where the machine
/// does. How fast it answers is no promise that is judged here, and disks of shared machines were seen to stand still for a
/// minute and more.
const LAST_LOOK: Duration = PATIENCE;
/// How many keys are read at a time in the last look.
const PAGE: i64 = 2000;
/// The key of the last write.
const LAST_KEY: &str = "last";
/// The one who looks last.
const LAST_CLIENT: ClientId = ClientId(u32::MAX);

/// A load that goes on until it is finished.
#[derive(Debug)]
pub struct Load {
    cluster: Cluster,
    book: Book,
    recorder: Arc<Recorder>,
    base: Revision,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
    watches: Vec<(Seen, JoinHandle<()>)>,
    goal: watch::Sender<Option<Revision>>,
}

impl Load {
    /// Starts it on a cluster that serves. The seed decides what the clients call.
    pub async fn start(cluster: &Cluster, book: &Book, clock: Clock, seed: u64) -> Result<Self> {
        let base = wait_for("a read before the load", LAST_LOOK, async || {
            cluster.ask(async |client| Ok(perform(client, &last_key(), Op::Get).await?.0)).await
        });
        let base = base.await?;
        let (recorder, keys) = (Arc::new(Recorder::new(clock)), Arc::new(Keys::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (goal, wanted) = watch::channel(None);
        let watches = (0..WATCHES).map(|number| {
            let record = watchers::record(format!("watch {number}"), base);
            let whom = book.clone();
            let whom = move |tried: usize| whom.any(number + tried).map(|(_, place)| place.door);
            let follow = watchers::follow(record.clone(), wanted.clone(), whom);
            (record, tokio::spawn(follow))
        });
        let clients = (0..CLIENTS).map(|number| {
            let caller = Caller {
                id: ClientId(number),
                rng: Rng::with_seed(seed.wrapping_add(u64::from(number) + 1)),
                book: book.clone(),
                keys: keys.clone(),
                recorder: recorder.clone(),
            };
            tokio::spawn(caller.call_until(stop.clone()))
        });
        let (watches, clients) = (watches.collect(), clients.collect());
        Ok(Self { cluster: cluster.clone(), book: book.clone(), recorder, base, stop, clients, watches, goal })
    }

    /// The record of calls.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Stops the clients, writes once more, lets every watch come to that, and looks at everything once more.
    pub async fn finish(self) -> History {
        let Self { cluster, book, recorder, base, stop, clients, watches, goal } = self;
        stop.store(true, Ordering::Relaxed);
        let mut end = End { cluster: &cluster, book: &book, recorder: &recorder, base, troubles: Vec::new() };
        for client in clients {
            if let Err(error) = client.await {
                end.unfinished("a client ended early", &error.into());
            }
        }
        let last = end.last_write().await;
        goal.send_replace(last);
        // Without a last write there is nothing to wait for.
        let patience = last.map_or(Duration::ZERO, |_| LAST_LOOK);
        let reached = join_all(watches.into_iter().map(|(seen, task)| end_of(seen, task, patience)));
        let watches = reached.await;
        let (mut replays, mut hashes) = (BTreeMap::new(), BTreeMap::new());
        if let Some(last) = last {
            end.read_all().await;
            let places = end.places().await;
            replays = end.replays(&places, last).await;
            hashes = end.hashes(&places, last).await;
        }
        let troubles = end.troubles;
        let calls = recorder.take();
        let cluster = cluster.name().to_owned();
        History { cluster, base, last, calls, watches, replays, hashes, troubles, ..History::default() }
    }
}

/// A call that is under way. It is recorded whatever becomes of it: one whose answer nobody waits for any more may have had
/// its effect.
struct Pending<'a> {
    recorder: &'a Recorder,
    call: Option<Call>,
}

impl<'a> Pending<'a> {
    fn begin(recorder: &'a Recorder, member: &str, op: Op) -> Self {
        let invoked = recorder.clock().now();
        let (member, outcome) = (member.to_owned(), Outcome::Unknown("nobody waited for its answer".into()));
        let call = Call { client: LAST_CLIENT, member, key: last_key(), op, invoked, returned: invoked, outcome };
        Self { recorder, call: Some(call) }
    }

    fn end(mut self, outcome: Outcome) {
        if let Some(call) = &mut self.call {
            call.outcome = outcome;
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.recorder.record(Call { returned: self.recorder.clock().now(), ..call });
        }
    }
}

/// What a watch has seen when it came to its end, or was given enough time for that.
async fn end_of(seen: Seen, task: JoinHandle<()>, patience: Duration) -> Watched {
    let abort = task.abort_handle();
    if tokio::time::timeout(patience, task).await.is_err() {
        abort.abort();
    }
    watchers::taken(&seen)
}

fn last_key() -> Key {
    Key(format!("{PREFIX}{LAST_KEY}"))
}

/// The last look.
struct End<'a> {
    cluster: &'a Cluster,
    book: &'a Book,
    recorder: &'a Recorder,
    base: Revision,
    troubles: Vec<Trouble>,
}

impl End<'_> {
    fn unfinished(&mut self, what: &str, error: &anyhow::Error) {
        self.troubles.push(Trouble::Unfinished(format!("{what}: {error:#}")));
    }

    /// Writes a last key, after all others. Each try writes a value of its own and is recorded, since one that failed may
    /// have had its effect.
    async fn last_write(&mut self) -> Option<Revision> {
        let recorder = self.recorder;
        let written = wait_for("the last write", LAST_LOOK, async || {
            self.cluster
                .ask(async |client| {
                    let op = Op::Put(recorder.fresh_value());
                    let pending = Pending::begin(recorder, "any", op);
                    match perform(client, &last_key(), op).await {
                        Ok((revision, answer)) => {
                            pending.end(Outcome::Done { revision, answer });
                            Ok(revision)
                        }
                        Err(error) => {
                            pending.end(Outcome::Unknown(error.to_string()));
                            Err(error.into())
                        }
                    }
                })
                .await
        });
        match written.await {
            Ok(revision) => Some(revision),
            Err(error) => {
                self.unfinished("the last write", &error);
                None
            }
        }
    }

    /// Reads every key that was called, linearizably, and records that as calls.
    async fn read_all(&mut self) {
        let keys = self.recorder.keys();
        let invoked = self.recorder.clock().now();
        let read = wait_for("a last read of all keys", LAST_LOOK, async || self.cluster.ask(read_pages).await).await;
        let returned = self.recorder.clock().now();
        match read {
            Ok((revision, pairs)) => {
                for key in keys {
                    let answer = Answer::Get(pairs.get(&key).copied());
                    let outcome = Outcome::Done { revision, answer };
                    let (client, member, op) = (LAST_CLIENT, "any".to_owned(), Op::Get);
                    self.recorder.record(Call { client, member, key, op, invoked, returned, outcome });
                }
            }
            Err(error) => self.unfinished("the last read", &error),
        }
    }

    /// Where the members are now. What was known may be seconds old, and name one that has gone and tells no history.
    async fn places(&mut self) -> BTreeMap<String, Place> {
        let what = "the places of the members";
        let now = wait_for(what, LAST_LOOK, async || self.book.now().await).await;
        now.unwrap_or_else(|error| {
            self.unfinished(what, &error);
            self.book.places().as_ref().clone()
        })
    }

    /// The whole history from each member.
    async fn replays(&self, places: &BTreeMap<String, Place>, last: Revision) -> BTreeMap<String, Watched> {
        let (_goal, wanted) = watch::channel(Some(last));
        let replays = places.clone().into_iter().map(|(name, place)| {
            let seen = watchers::record(format!("the replay of {name}"), self.base);
            let whom = move |_: usize| Some(place.door.clone());
            let follow = watchers::follow(seen.clone(), wanted.clone(), whom);
            async { (name, end_of(seen, tokio::spawn(follow), LAST_LOOK).await) }
        });
        join_all(replays).await.into_iter().collect()
    }

    /// The hash of each member's keys.
    async fn hashes(&mut self, places: &BTreeMap<String, Place>, last: Revision) -> BTreeMap<String, u32> {
        let mut hashes = BTreeMap::new();
        for (name, place) in places {
            let what = format!("the hash of {name}");
            let hash = wait_for(&what, LAST_LOOK, async || {
                let mut client = dial(&place.door).await?;
                Ok(client.hash_kv(last.0).await?.hash())
            });
            match hash.await {
                Ok(hash) => {
                    hashes.insert(name.clone(), hash);
                }
                Err(error) => self.unfinished(&what, &error),
            }
        }
        hashes
    }
}

/// All keys of the run at one revision, page by page.
async fn read_pages(client: &mut Client) -> Result<(Revision, HashMap<Key, Found>)> {
    let mut pairs = HashMap::new();
    let mut from = PREFIX.to_owned();
    let end = format!("{}0", PREFIX.trim_end_matches('/')); // '0' follows '/'.
    let mut at = None;
    loop {
        let options = GetOptions::new().with_range(end.as_str()).with_limit(PAGE);
        let options = match at {
            Some(Revision(revision)) => options.with_revision(revision),
            None => options,
        };
        let page = client.get(from.as_str(), Some(options)).await?;
        let header = page.header().context("an answer without a header")?;
        let revision = *at.get_or_insert_with(|| Revision(header.revision()));
        for pair in page.kvs() {
            pairs.insert(Key(String::from_utf8_lossy(pair.key()).into_owned()), found(pair));
        }
        match page.kvs().last() {
            Some(last) if page.more() => from = format!("{}\0", String::from_utf8_lossy(last.key())),
            Some(_) | None => return Ok((revision, pairs)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::history::Value;

    #[test]
    fn a_write_that_nobody_waits_for_any_more_is_recorded_as_one_that_may_have_happened() {
        let recorder = Recorder::new(Clock::start());
        let op = |value| Op::Put(Value(value));
        drop(Pending::begin(&recorder, "any", op(1)));
        let outcome = Outcome::Done { revision: Revision(5), answer: Answer::Put };
        Pending::begin(&recorder, "any", op(2)).end(outcome.clone());
        let calls = recorder.take();
        assert!(matches!(&calls[0], Call { op: Op::Put(Value(1)), outcome: Outcome::Unknown(_), .. }), "{calls:?}");
        assert_eq!((calls.len(), calls[1].op, &calls[1].outcome), (2, op(2), &outcome));
        assert!(calls.iter().all(|call| call.returned >= call.invoked && call.key == last_key()));
    }
}
