//! Clients that write and read over all members, and record every call with its interval and outcome. They judge nothing
//! and try nothing twice.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use etcd_client::{Client, Compare, CompareOp, Error, KeyValue, ResponseHeader, Txn, TxnOp};
use fastrand::Rng;

use super::book::Book;
use super::clock::Clock;
use super::history::{Answer, Call, ClientId, Found, Key, Op, Outcome, Revision, Value};
use super::keys::Keys;
use crate::scene::{Cluster, Door, PATIENCE, dial, wait_for};

/// How long a call may take before its outcome counts as unknown: longer than most leader changes, and shorter than
/// what a stuck member would cost.
const CALL_DEADLINE: Duration = Duration::from_millis(1500);
/// How long a connection may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);
/// The pause between two calls of one client: together they make some two hundred a second, on a machine that also has
/// to run the cluster.
const PAUSE: Duration = Duration::from_millis(20);
/// Who says that it wrote, where that is planted.
pub const PRETENDER: ClientId = ClientId(99);
/// How much of an error's text is recorded.
const REASON_LENGTH: usize = 160;

/// What all clients of a run share: its clock, its values, and the record.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    calls: Mutex<Vec<Call>>,
    values: AtomicU64,
    acknowledged: AtomicU64,
}

impl Recorder {
    /// An empty record.
    pub fn new(clock: Clock) -> Self {
        Self { clock, calls: Mutex::default(), values: AtomicU64::new(1), acknowledged: AtomicU64::new(0) }
    }

    /// The clock of the run.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A value that nobody has written.
    pub fn fresh_value(&self) -> Value {
        Value(self.values.fetch_add(1, Ordering::Relaxed))
    }

    /// Records a call.
    pub fn record(&self, call: Call) {
        if call.acknowledged().is_some() {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// How many writes have been acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// How many calls have been recorded.
    pub fn len(&self) -> usize {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether nothing has been recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All keys that were called.
    pub fn keys(&self) -> BTreeSet<Key> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().map(|call| call.key.clone()).collect()
    }

    /// Takes the record.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One client.
pub struct Caller {
    /// Who it is.
    pub id: ClientId,
    /// What it chooses by.
    pub rng: Rng,
    /// Where they are.
    pub book: Book,
    /// The keys in use.
    pub keys: Arc<Keys>,
    /// The record.
    pub recorder: Arc<Recorder>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Caller {
    /// Makes calls until it is told to stop.
    pub async fn call_until(mut self, stop: Arc<AtomicBool>) {
        let mut clients: HashMap<String, Client> = HashMap::new();
        let mut seen: Option<Seen> = None;
        while !stop.load(Ordering::Relaxed) {
            if let Some((member, place)) = self.book.any(self.rng.usize(..64)) {
                let call = self.call(&mut clients, member, &place.door, seen.as_ref()).await;
                if let Outcome::Unknown(_) = call.outcome {
                    self.keys.unknown(&call.key);
                }
                seen = Seen::by(&call).or(seen);
                self.recorder.record(call);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn call(
        &mut self,
        clients: &mut HashMap<String, Client>,
        member: String,
        door: &Door,
        seen: Option<&Seen>,
    ) -> Call {
        let key = self.keys.take(self.rng.usize(..64));
        let op = self.op(&key, seen);
        let client = Self::client(clients, door).await;
        // Whatever was acknowledged while a connection came about was so before this call.
        let invoked = self.recorder.clock.now();
        let outcome = match client {
            Ok(mut client) => {
                let answer = tokio::time::timeout(CALL_DEADLINE, perform(&mut client, &key, op)).await;
                if let Ok(Ok(_)) = answer {
                    clients.insert(door.address.clone(), client);
                }
                outcome(op, answer.ok())
            }
            Err(why) => Outcome::Failed(why),
        };
        Call { client: self.id, member, key, op, invoked, returned: self.recorder.clock.now(), outcome }
    }

    fn op(&mut self, key: &Key, seen: Option<&Seen>) -> Op {
        match self.rng.u8(..10) {
            0..4 => Op::Put(self.recorder.fresh_value()),
            4..8 => Op::Get,
            8 => Op::Delete,
            _ => {
                let from = seen.filter(|seen| seen.key == *key).and_then(|seen| seen.value);
                Op::Swap { from, to: self.recorder.fresh_value() }
            }
        }
    }

    /// The connection to this member, taken out; whoever finds it working puts it back.
    async fn client(clients: &mut HashMap<String, Client>, door: &Door) -> Result<Client, String> {
        if let Some(client) = clients.remove(&door.address) {
            return Ok(client);
        }
        match tokio::time::timeout(CONNECT_DEADLINE, dial(door)).await {
            Ok(dialled) => dialled.map_err(|error| reason(&error)),
            Err(_) => Err("no connection in time".into()),
        }
    }
}

/// What a client last saw in a key, for a swap that may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    key: Key,
    value: Option<Value>,
}

impl Seen {
    /// What the key surely held right after this call.
    fn by(call: &Call) -> Option<Self> {
        let (_, answer) = call.done()?;
        let value = match (call.op, answer) {
            (_, Answer::Get(found)) => found.map(|found| found.value),
            (Op::Put(value) | Op::Swap { to: value, .. }, Answer::Put | Answer::Swap(true)) => Some(value),
            (_, Answer::Delete(_)) => None,
            (_, Answer::Put | Answer::Swap(_)) => return None,
        };
        Some(Self { key: call.key.clone(), value })
    }
}

/// What came of a call that was sent; without an answer nobody knows.
fn outcome(op: Op, answer: Option<Result<(Revision, Answer), Error>>) -> Outcome {
    let why = match answer {
        Some(Ok((revision, answer))) => return Outcome::Done { revision, answer },
        // A learner refuses before it does anything.
        Some(Err(Error::GRpcStatus(status))) if status.message().contains("learner") => {
            return Outcome::Failed(reason(&status.message()));
        }
        Some(Err(error)) => reason(&error),
        None => "no answer in time".into(),
    };
    if op.writes() { Outcome::Unknown(why) } else { Outcome::Failed(why) }
}

fn reason(error: &impl ToString) -> String {
    error.to_string().chars().take(REASON_LENGTH).collect()
}

/// Makes one call.
pub async fn perform(client: &mut Client, key: &Key, op: Op) -> Result<(Revision, Answer), Error> {
    let key = key.0.as_str();
    match op {
        Op::Put(value) => {
            let answer = client.put(key, value.to_string(), None).await?;
            Ok((revision(answer.header())?, Answer::Put))
        }
        Op::Get => {
            let answer = client.get(key, None).await?;
            Ok((revision(answer.header())?, Answer::Get(answer.kvs().first().map(found))))
        }
        Op::Delete => {
            let answer = client.delete(key, None).await?;
            Ok((revision(answer.header())?, Answer::Delete(answer.deleted() > 0)))
        }
        Op::Swap { from, to } => {
            let holds = match from {
                Some(value) => Compare::value(key, CompareOp::Equal, value.to_string()),
                None => Compare::version(key, CompareOp::Equal, 0),
            };
            let swap = Txn::new().when([holds]).and_then([TxnOp::put(key, to.to_string(), None)]);
            let answer = client.txn(swap).await?;
            Ok((revision(answer.header())?, Answer::Swap(answer.succeeded())))
        }
    }
}

/// Records a write that was never sent as one that was acknowledged, at the revision of the moment: what the checks have to
/// find.
pub async fn pretend(cluster: &Cluster, recorder: &Recorder) -> Result<Call> {
    let key = recorder.keys().into_iter().next_back().context("no key was called yet")?;
    let read = async || cluster.ask(async |client| Ok(perform(client, &key, Op::Get).await?)).await;
    let (revision, _) = wait_for("a read", PATIENCE, read).await?;
    let invoked = recorder.clock().now();
    let call = Call {
        client: PRETENDER,
        member: "none".into(),
        key,
        op: Op::Put(recorder.fresh_value()),
        invoked,
        returned: recorder.clock().now(),
        outcome: Outcome::Done { revision, answer: Answer::Put },
    };
    recorder.record(call.clone());
    Ok(call)
}

fn revision(header: Option<&ResponseHeader>) -> Result<Revision, Error> {
    let header = header.ok_or_else(|| Error::Internal("an answer without a header".into()))?;
    Ok(Revision(header.revision()))
}

/// What a pair holds.
pub fn found(pair: &KeyValue) -> Found {
    Found { value: value(pair.value()), modified: Revision(pair.mod_revision()) }
}

/// The value in these bytes.
pub fn value(bytes: &[u8]) -> Value {
    let number = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    number.map_or(Value::FOREIGN, Value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_number_and_anything_else_is_foreign() {
        assert_eq!(value(b"17"), Value(17));
        assert_eq!([value(b""), value(b"x"), value(&[0xff])], [Value::FOREIGN; 3]);
    }

    #[test]
    fn a_write_without_an_answer_may_have_happened_and_a_read_has_not() {
        assert!(matches!(outcome(Op::Delete, None), Outcome::Unknown(_)));
        assert!(matches!(outcome(Op::Get, None), Outcome::Failed(_)));
        let error = || Some(Err(Error::Internal("x".repeat(1000))));
        match outcome(Op::Put(Value(1)), error()) {
            Outcome::Unknown(why) => assert_eq!(why.len(), REASON_LENGTH),
            other => panic!("{other:?}"),
        }
        assert!(matches!(outcome(Op::Get, error()), Outcome::Failed(_)));
    }
}
