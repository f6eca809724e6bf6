//! Whether every key is linearizable: there is an order if the one by etcd's own revisions is one, and else stateright's
//! tester looks for another. Each key has a history of its own, kept short by those who call; it is a register that can be
//! absent. Whether the revisions are right is the business of `order`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};

use crate::chaos::clock::Moment;
use crate::chaos::history::{Answer, Call, Key, Op, Outcome, Revision, Value};

/// How many steps the search for an order may take for one key. It is exponential for a history that has none; a sound
/// one of forty calls takes some hundreds. About a quarter of a second's worth.
const MOST_STEPS: u64 = 100_000;

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
    let in_doubt = by_key.into_iter().filter(|(_, calls)| !is_in_order_of_revisions(calls));
    let judged = in_doubt.filter_map(|(key, calls)| match judge(&calls) {
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

/// Whether the order by revisions is one that a register could have gone through, and in which nothing comes before what
/// had ended when it began. A write without an answer is where it was seen; one that nobody saw comes where the next answer
/// makes no sense without it, or never. "No" says only that another order has to be looked for.
fn is_in_order_of_revisions(calls: &[&Call]) -> bool {
    let seen = seen(calls);
    let mut unseen: Vec<&Call> = Vec::new();
    let mut order: Vec<(Revision, bool, &Call)> = Vec::new();
    for call in calls {
        match (call.done(), &call.outcome) {
            (Some((revision, answer)), _) => order.push((revision, !answer.wrote(), call)),
            (None, Outcome::Unknown(_)) if call.op.writes() => {
                match call.op.leaves().and_then(|value| seen.get(&value)) {
                    Some(revision) => order.push((*revision, false, call)),
                    None => unseen.push(call),
                }
            }
            (None, _) => (),
        }
    }
    order.sort_by_key(|(revision, reads, call)| (*revision, *reads, call.invoked));
    unseen.sort_by_key(|call| call.invoked);
    let mut course = Course::default();
    order.iter().all(|(_, _, call)| {
        course.takes(call) || {
            let helps = unseen.iter().position(|other| course.clone().both(other, call));
            helps.is_some_and(|index| course.both(unseen.remove(index), call))
        }
    })
}

/// Which values were read, and at which revision they had been written.
fn seen(calls: &[&Call]) -> BTreeMap<Value, Revision> {
    let found = calls.iter().filter_map(|call| match call.done()?.1 {
        Answer::Get(found) => found.map(|found| (found.value, found.modified)),
        Answer::Put | Answer::Delete(_) | Answer::Swap(_) => None,
    });
    found.collect()
}

/// An order of calls, as far as it is taken.
#[derive(Clone, Default)]
struct Course {
    value: Option<Value>,
    /// When the last of them began: whatever ended before that can't come any more.
    begun: Option<Moment>,
}

impl Course {
    /// Takes a call as the next one, if it can be.
    fn takes(&mut self, call: &Call) -> bool {
        let mut register = Register { value: self.value, steps: Arc::default() };
        let returned = register.invoke(&call.op);
        let answered = call.done();
        let in_time = answered.is_none() || self.begun.is_none_or(|begun| call.returned >= begun);
        let fits = in_time && answered.is_none_or(|(_, answer)| Return::from(answer) == returned);
        if fits {
            *self = Self { value: register.value, begun: self.begun.max(Some(call.invoked)) };
        }
        fits
    }

    fn both(&mut self, first: &Call, then: &Call) -> bool {
        self.takes(first) && self.takes(then)
    }
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
    let mut threads = Threads::default();
    for (_, edge, index) in edges {
        let call = calls[index];
        let told = match (edge, call.done()) {
            (Edge::Begins, _) => tester.on_invoke(threads.begin(index, Patience::of(call, calls)), call.op).map(drop),
            (Edge::Ends, Some((_, answer))) => match threads.end(index) {
                Some(thread) => tester.on_return(thread, answer.into()).map(drop),
                None => Err("a call ended that had not begun".into()),
            },
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

/// The tester wants calls by threads that make one at a time, and tries threads in the order of their numbers. Who really
/// made a call does not matter: few threads, and those calls last that went on while many others came and went, make its
/// search short. Calls without an answer have the last numbers of all.
#[derive(Default)]
struct Threads {
    of: BTreeMap<usize, Thread>,
    free: BTreeMap<Patience, Vec<Thread>>,
    next: BTreeMap<Patience, usize>,
}

/// How late a call is tried: the binary logarithm of how many others were made and answered while it went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Patience {
    Answered(u32),
    Unanswered,
}

/// A thread: the more patient, the later; then by number.
type Thread = (Patience, usize);

impl Patience {
    fn of(call: &Call, calls: &[&Call]) -> Self {
        let within =
            |other: &&&Call| other.done().is_some() && other.invoked >= call.invoked && other.returned <= call.returned;
        match call.done() {
            // It is one of them itself.
            Some(_) => Self::Answered(calls.iter().filter(within).count().max(1).ilog2()),
            None => Self::Unanswered,
        }
    }
}

impl Threads {
    fn begin(&mut self, index: usize, patience: Patience) -> Thread {
        let next = self.next.entry(patience).or_default();
        let thread = self.free.get_mut(&patience).and_then(Vec::pop).unwrap_or_else(|| {
            *next += 1;
            (patience, *next)
        });
        self.of.insert(index, thread);
        thread
    }

    /// The thread of a call that ends, which is free from now on.
    fn end(&mut self, index: usize) -> Option<Thread> {
        let thread = self.of.remove(&index)?;
        self.free.entry(thread.0).or_default().push(thread);
        Some(thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::history::{ClientId, Found};

    fn call(op: Op, invoked: u64, returned: u64, revision: i64, answer: Answer) -> Call {
        let outcome = Outcome::Done { revision: Revision(revision), answer };
        let (member, key) = ("db-0".into(), Key("k".into()));
        Call { client: ClientId(0), member, key, op, invoked: Moment(invoked), returned: Moment(returned), outcome }
    }

    /// What a write looks like that hung on a member that had lost its leader: all others happened meanwhile.
    fn long_write_around_many(last: i64) -> Vec<Call> {
        let mut calls = vec![call(Op::Put(Value(100)), 0, 1000, 40, Answer::Put)];
        for number in 0..18 {
            let (at, revision) = (10 + 20 * number, i64::try_from(number).unwrap() + 2);
            calls.push(call(Op::Put(Value(number)), at, at + 15, revision, Answer::Put));
            let found = Found { value: Value(number), modified: Revision(revision) };
            calls.push(call(Op::Get, at + 10, at + 18, revision, Answer::Get(Some(found))));
        }
        let found = Found { value: Value(100), modified: Revision(last) };
        calls.push(call(Op::Get, 2000, 2001, last, Answer::Get(Some(found))));
        let mut unknown = call(Op::Delete, 0, 900, 0, Answer::Put);
        unknown.outcome = Outcome::Unknown("no answer".into());
        calls.extend(vec![unknown; 3]);
        calls
    }

    #[test]
    fn a_write_that_took_long_does_not_make_the_search_long() {
        assert_eq!(check(&long_write_around_many(40)), Vec::<String>::new());
    }
}
