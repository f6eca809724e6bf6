//! Whether every key is linearizable, by stateright's tester. Each key has a history of its own, kept short by those who
//! call; it is a register that can be absent. Looks at no revision: that is the business of `order`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};

use crate::chaos::clock::Moment;
use crate::chaos::history::{Answer, Call, Key, Op, Outcome, Value};

/// How many steps the search for an order may take for one key. It is exponential for a history that has none; a sound
/// one of forty calls takes some hundreds. About a second's worth.
const MOST_STEPS: u64 = 400_000;

/// What a call of the register returns.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Return {
    Put,
    Get(Option<Value>),
    Delete(bool),
    Swap(bool),
}

impl From<Answer> for Return {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Put => Self::Put,
            Answer::Get(found) => Self::Get(found.map(|found| found.value)),
            Answer::Delete(was_there) => Self::Delete(was_there),
            Answer::Swap(swapped) => Self::Swap(swapped),
        }
    }
}

/// One key: a register that may be absent.
#[derive(Clone, Debug)]
struct Register {
    value: Option<Value>,
    /// Steps taken by the whole search. Beyond the most it may take no step is valid, so that it ends soon.
    steps: Arc<AtomicU64>,
}

impl SequentialSpec for Register {
    type Op = Op;
    type Ret = Return;

    fn invoke(&mut self, op: &Op) -> Return {
        match *op {
            Op::Put(value) => {
                self.value = Some(value);
                Return::Put
            }
            Op::Get => Return::Get(self.value),
            Op::Delete => Return::Delete(self.value.take().is_some()),
            Op::Swap { from, to } => {
                let swaps = self.value == from;
                if swaps {
                    self.value = Some(to);
                }
                Return::Swap(swaps)
            }
        }
    }

    fn is_valid_step(&mut self, op: &Op, returned: &Return) -> bool {
        self.steps.fetch_add(1, Ordering::Relaxed) < MOST_STEPS && self.invoke(op) == *returned
    }
}

/// What the search found.
enum Verdict {
    Sound,
    NoOrder,
    Undecided,
    /// The calls could not even be told to the tester.
    Malformed(String),
}

/// What is wrong, a sentence a key.
pub fn check(calls: &[Call]) -> Vec<String> {
    let mut by_key: BTreeMap<&Key, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        by_key.entry(&call.key).or_default().push(call);
    }
    let judged = by_key.into_iter().filter_map(|(key, calls)| match judge(&calls) {
        Verdict::Sound => None,
        Verdict::NoOrder => Some(format!("{key} has no order of its {} calls:{}", calls.len(), told(&calls))),
        Verdict::Undecided => Some(format!("{key} is undecided after {MOST_STEPS} steps:{}", told(&calls))),
        Verdict::Malformed(why) => Some(format!("the history of {key} is malformed: {why}")),
    });
    judged.collect()
}

fn told(calls: &[&Call]) -> String {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.invoked);
    let lines: Vec<String> = calls.iter().map(|call| format!("\n    {call}")).collect();
    lines.concat()
}

/// Begin or end of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    // At one and the same moment beginnings come first: such calls count as concurrent.
    Begins,
    Ends,
}

fn judge(calls: &[&Call]) -> Verdict {
    let mut edges: Vec<(Moment, Edge, usize)> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        match call.outcome {
            Outcome::Done { .. } => {
                edges.push((call.invoked, Edge::Begins, index));
                edges.push((call.returned, Edge::Ends, index));
            }
            // It may happen at any time after its beginning, or never.
            Outcome::Unknown(_) if call.op.writes() => edges.push((call.invoked, Edge::Begins, index)),
            Outcome::Unknown(_) | Outcome::Failed(_) => (),
        }
    }
    edges.sort_unstable();
    let steps = Arc::new(AtomicU64::new(0));
    let mut tester = LinearizabilityTester::new(Register { value: None, steps: steps.clone() });
    let mut threads = Threads { of: vec![0; calls.len()], free: Vec::new(), next: 0, unknown: calls.len() };
    for (_, edge, index) in edges {
        let call = calls[index];
        let told = match (edge, call.done()) {
            (Edge::Begins, done) => tester.on_invoke(threads.begin(index, done.is_some()), call.op).map(drop),
            (Edge::Ends, Some((_, answer))) => tester.on_return(threads.end(index), answer.into()).map(drop),
            (Edge::Ends, None) => Ok(()),
        };
        if let Err(why) = told {
            return Verdict::Malformed(why);
        }
    }
    match (tester.is_consistent(), steps.load(Ordering::Relaxed)) {
        (true, _) => Verdict::Sound,
        (false, taken) if taken >= MOST_STEPS => Verdict::Undecided,
        (false, _) => Verdict::NoOrder,
    }
}

/// The tester wants calls by threads that make one at a time. Who really made a call does not matter, and few threads
/// make its search short. Calls without an answer have the last numbers, so that they are tried last.
struct Threads {
    of: Vec<usize>,
    free: Vec<usize>,
    next: usize,
    unknown: usize,
}

impl Threads {
    fn begin(&mut self, call: usize, ends: bool) -> usize {
        let thread = if ends {
            self.free.pop().unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            })
        } else {
            self.unknown += 1;
            self.unknown - 1
        };
        self.of[call] = thread;
        thread
    }

    fn end(&mut self, call: usize) -> usize {
        self.free.push(self.of[call]);
        self.of[call]
    }
}
