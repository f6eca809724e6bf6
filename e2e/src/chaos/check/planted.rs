//! The checks of data against histories of a simulated store: a sound one passes whatever its timing, and each planted
//! fault is caught by the check whose promise it breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use proptest::prelude::*;

use super::{
    Check, ONE_LANDS_OF, ONE_LANDS_OF_LOSSES, ONE_LANDS_OF_MEMBERS, Violation, check, idle, log, never_landed,
    undisturbed,
};
use crate::chaos::clock::Moment;
use crate::chaos::history::{
    Answer, Call, Change, ClientId, Event, Found, History, Key, Op, Outcome, Revision, Trouble, Value, Watched,
};
use crate::chaos::inject::{Carried, Deed};
use crate::chaos::schedule::Schedule;

/// The calls of one simulated run.
const CALLS: u64 = 300;
/// The calls of one key, as in a real run.
const CALLS_OF_A_KEY: u64 = 40;
/// Microseconds between the moments at which calls take effect.
const STEP: u64 = 100;
/// How long before and after its moment a call begins and ends at most: some six are under way at once.
const SLACK: u64 = 350;

/// A store that does everything right, and clients that don't always hear its answers.
struct Store {
    rng: Rng,
    revision: Revision,
    keys: BTreeMap<Key, Found>,
    events: Vec<Event>,
    calls: Vec<Call>,
    values: u64,
}

impl Store {
    fn run(seed: u64) -> History {
        let mut store = Self {
            rng: Rng::with_seed(seed),
            revision: Revision(7),
            keys: BTreeMap::new(),
            events: Vec::new(),
            calls: Vec::new(),
            values: 0,
        };
        for number in 1..=CALLS {
            store.call(number);
        }
        store.calls.sort_by_key(|call| call.returned);
        let watched = |name: &str| Watched {
            name: name.to_owned(),
            after: Revision(7),
            events: store.events.clone(),
            refused: None,
        };
        History {
            cluster: "db".into(),
            base: Revision(7),
            last: store.events.last().map(|event| event.revision),
            watches: vec![watched("watch 0"), watched("watch 1")],
            replays: ["db-0", "db-1"].map(|member| (member.to_owned(), watched(member))).into(),
            hashes: [("db-0".to_owned(), 1), ("db-1".to_owned(), 1)].into(),
            calls: store.calls,
            ..History::default()
        }
    }

    fn call(&mut self, number: u64) {
        let key = Key(format!("chaos/{}-{}", self.rng.u8(..2), number / (2 * CALLS_OF_A_KEY)));
        let here = self.keys.get(&key).copied();
        self.values += 1;
        let value = Value(self.values);
        let op = match self.rng.u8(..10) {
            0..4 => Op::Put(value),
            4..7 => Op::Get,
            7 => Op::Delete,
            _ => {
                let from = if self.rng.bool() { here.map(|found| found.value) } else { None };
                Op::Swap { from, to: value }
            }
        };
        let heard = self.rng.u8(..20) > 0;
        let happens = heard || self.rng.bool();
        let answer = if happens { Some(self.apply(&key, op)) } else { None };
        let moment = number * STEP + SLACK;
        let outcome = match answer {
            Some(answer) if heard => Outcome::Done { revision: self.revision, answer },
            Some(_) | None => Outcome::Unknown("no answer".into()),
        };
        self.calls.push(Call {
            client: ClientId(0),
            member: "db-0".into(),
            key,
            op,
            invoked: Moment(moment - self.rng.u64(..SLACK)),
            returned: Moment(moment + self.rng.u64(..SLACK)),
            outcome,
        });
    }

    fn apply(&mut self, key: &Key, op: Op) -> Answer {
        let here = self.keys.get(key).copied();
        let (answer, change) = match op {
            Op::Put(value) => (Answer::Put, Some(Change::Put(value))),
            Op::Get => (Answer::Get(here), None),
            Op::Delete => (Answer::Delete(here.is_some()), here.map(|_| Change::Deleted)),
            Op::Swap { from, to } => {
                let swaps = here.map(|found| found.value) == from;
                (Answer::Swap(swaps), swaps.then_some(Change::Put(to)))
            }
        };
        if let Some(change) = change {
            self.revision = self.revision.next();
            match change {
                Change::Put(value) => self.keys.insert(key.clone(), Found { value, modified: self.revision }),
                Change::Deleted => self.keys.remove(key),
            };
            self.events.push(Event { revision: self.revision, key: key.clone(), change });
        }
        answer
    }
}

fn checks(violations: &[Violation]) -> BTreeSet<Check> {
    violations.iter().map(|violation| violation.check).collect()
}

fn assert_caught(history: &History, by: Check) {
    let violations = check(history);
    assert!(checks(&violations).contains(&by), "{by} did not catch it, only {violations:?}");
}

/// A read that was answered, found something, and began after a later write to its key had ended.
fn late_read(history: &History) -> Option<(usize, &Call)> {
    history.calls.iter().enumerate().find_map(|(index, read)| {
        let Some((_, Answer::Get(Some(found)))) = read.done() else { return None };
        let older = history.calls.iter().find(|call| {
            let wrote = call.acknowledged().filter(|(_, change)| matches!(change, Change::Put(_)));
            call.key == read.key && wrote.is_some_and(|(revision, _)| revision < found.modified)
        })?;
        let newer = history.calls.iter().any(|call| {
            call.key == read.key
                && call.returned < read.invoked
                && call.invoked > older.returned
                && call.acknowledged().is_some()
        });
        newer.then_some((index, older))
    })
}

#[test]
fn an_acknowledged_write_that_a_member_lost_is_caught() {
    let mut history = Store::run(1);
    let lost = history.calls.iter().find_map(Call::acknowledged).unwrap().0;
    history.replays.get_mut("db-1").unwrap().events.retain(|event| event.revision != lost);
    assert_caught(&history, Check::Kept);
}

#[test]
fn a_history_that_went_back_and_on_from_there_is_caught() {
    // The last fifty revisions are forgotten, and what was written last comes after the rest.
    let mut history = Store::run(5);
    for watch in history.replays.values_mut() {
        let kept = watch.events.len() - 50;
        watch.events.truncate(kept);
    }
    history.last = history.replays.values().map(Watched::reached).max();
    let lost = |violation: &Violation| violation.check == Check::Kept && violation.what.contains("is lost on db-0");
    assert!(check(&history).iter().any(lost));
    // A member that can't be asked has not lost anything that anybody knows of.
    history.replays.insert("db-2".into(), Watched { events: vec![], ..history.watches[0].clone() });
    let of_it = |violation: &Violation| violation.what.contains("db-2");
    assert!(!check(&history).iter().any(|violation| violation.check == Check::Kept && of_it(violation)));
}

#[test]
fn a_client_that_drops_an_acknowledged_write_is_caught() {
    let mut history = Store::run(2);
    // It says that it wrote, with the revision of the moment, and nothing reached the store.
    let (key, revision, moment) = history
        .calls
        .iter()
        .rev()
        .find_map(|call| call.done().map(|(revision, _)| (call.key.clone(), revision, call.returned)))
        .unwrap();
    let (op, outcome) = (Op::Put(Value(9999)), Outcome::Done { revision, answer: Answer::Put });
    let call = |op, at: u64, outcome| Call {
        client: ClientId(9),
        member: "db-0".into(),
        key: key.clone(),
        op,
        invoked: Moment(at),
        returned: Moment(at + 1),
        outcome,
    };
    let read = history.calls.iter().rev().find(|call| call.key == key && call.done().is_some()).unwrap().clone();
    let later = moment.0 + SLACK * 10;
    history.calls.push(call(op, later, outcome));
    // The last look at that key finds what was there before.
    let here = history.replays["db-0"].events.iter().rev().find(|event| event.key == read.key).cloned();
    let found = here.and_then(|event| match event.change {
        Change::Put(value) => Some(Found { value, modified: event.revision }),
        Change::Deleted => None,
    });
    let last = history.last.unwrap();
    history.calls.push(call(Op::Get, later + 10, Outcome::Done { revision: last, answer: Answer::Get(found) }));
    for by in [Check::Linearizable, Check::Order, Check::Kept] {
        assert_caught(&history, by);
    }
}

#[test]
fn a_write_under_another_revision_is_caught() {
    let mut history = Store::run(3);
    for replay in history.replays.values_mut() {
        let event = replay.events.iter_mut().rev().find(|event| matches!(event.change, Change::Put(_))).unwrap();
        event.change = Change::Deleted;
    }
    assert_caught(&history, Check::Kept);
    assert_caught(&history, Check::Watches);
}

#[test]
fn members_with_different_data_are_caught() {
    let mut history = Store::run(4);
    history.hashes.insert("db-2".into(), 2);
    assert_caught(&history, Check::Kept);
    let history = History { replays: BTreeMap::new(), ..Store::run(4) };
    assert_caught(&history, Check::Kept);
}

#[test]
fn what_was_seen_on_the_way_is_told() {
    for (trouble, by) in [
        (Trouble::RanTwice("db-0".into()), Check::Identity),
        (Trouble::NotConverged("no leader".into()), Check::Converged),
        (Trouble::Unfinished("no last write".into()), Check::Complete),
    ] {
        assert_caught(&History { troubles: vec![trouble], ..History::default() }, by);
    }
}

/// The search for an order once gave up on this one, in which many writes have no answer.
#[test]
fn a_sound_history_that_is_hard_to_order_passes() {
    assert_eq!(check(&Store::run(13_740_684_721_946_571_375)), Vec::new());
}

#[test]
fn a_key_without_an_order_is_given_up_after_a_while() {
    // Twelve reads at once, and then one of what was never there: the search for an order is as long as can be.
    let call = |op, from, to, answer| Call {
        client: ClientId(0),
        member: "db-0".into(),
        key: Key("k".into()),
        op,
        invoked: Moment(from),
        returned: Moment(to),
        outcome: Outcome::Done { revision: Revision(1), answer },
    };
    let mut calls: Vec<Call> = (0..12).map(|_| call(Op::Get, 10, 20, Answer::Get(None))).collect();
    calls.push(call(Op::Delete, 30, 40, Answer::Delete(true)));
    let wrong = super::linear::check(&calls);
    assert!(wrong.len() == 1 && wrong[0].starts_with("k is undecided"), "{wrong:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_sound_history_passes(seed: u64) {
        let violations = check(&Store::run(seed));
        prop_assert!(violations.is_empty(), "{:?}", violations);
    }

    #[test]
    fn a_stale_read_is_caught(seed: u64) {
        let mut history = Store::run(seed);
        let Some((index, older)) = late_read(&history) else { return Ok(()) };
        let Some((modified, Change::Put(value))) = older.acknowledged() else { return Ok(()) };
        let revision = history.calls[index].done().unwrap().0;
        let stale = Answer::Get(Some(Found { value, modified }));
        // From a member that is up to date in all but this key.
        history.calls[index].outcome = Outcome::Done { revision, answer: stale };
        assert_caught(&history, Check::Linearizable);
        // From a member that is behind: its revision tells too.
        history.calls[index].outcome = Outcome::Done { revision: modified, answer: stale };
        assert_caught(&history, Check::Linearizable);
        assert_caught(&history, Check::Order);
    }

    #[test]
    fn a_watch_that_misses_an_event_is_caught(seed: u64, which: prop::sample::Index) {
        let mut history = Store::run(seed);
        let events = &mut history.watches[1].events;
        events.remove(which.index(events.len()));
        assert_caught(&history, Check::Watches);
    }

    #[test]
    fn a_watch_out_of_order_is_caught(seed: u64, which: prop::sample::Index) {
        let mut history = Store::run(seed);
        let events = &mut history.watches[0].events;
        let first = which.index(events.len() - 1);
        events.swap(first, first + 1);
        assert_caught(&history, Check::Watches);
    }

    #[test]
    fn a_watch_that_sees_an_event_twice_or_invents_one_is_caught(seed: u64, which: prop::sample::Index) {
        let mut history = Store::run(seed);
        let events = &mut history.watches[0].events;
        let event = events[which.index(events.len())].clone();
        events.push(event);
        assert_caught(&history, Check::Watches);
        let mut history = Store::run(seed);
        let last = history.last.unwrap().next();
        history.watches[0].events.push(Event { revision: last, key: Key("k".into()), change: Change::Put(Value(0)) });
        assert_caught(&history, Check::Watches);
    }

    #[test]
    fn a_watch_that_stops_early_is_caught(seed: u64) {
        let mut history = Store::run(seed);
        history.watches[0].events.pop();
        assert_caught(&history, Check::Watches);
        let mut history = Store::run(seed);
        history.watches[0].refused = Some("compacted".into());
        assert_caught(&history, Check::Watches);
    }
}

/// A history with one event more at its end, which all have seen.
fn with_event(mut history: History, change: impl Fn(&Event) -> Event) -> History {
    let told = history.replays.values_mut().chain(&mut history.watches);
    for watch in told {
        let last = watch.events.last().unwrap().revision.next();
        let event = change(&watch.events[0]);
        watch.events.push(Event { revision: last, ..event });
        history.last = Some(last);
    }
    history
}

/// The first event that is this, and its call.
fn told(history: &History, is_it: impl Fn(&Call) -> bool) -> usize {
    history.calls.iter().position(|call| call.acknowledged().is_some() && is_it(call)).unwrap()
}

proptest! {
    #[test]
    fn a_write_that_is_there_twice_is_caught(seed: u64) {
        let first = |event: &Event| event.clone();
        prop_assert!(matches!(Store::run(seed).watches[0].events[0].change, Change::Put(_)));
        let history = with_event(Store::run(seed), first);
        prop_assert_eq!(log::check(&history).len(), 1);
    }

    #[test]
    fn a_deletion_that_nobody_asked_for_is_caught(seed: u64) {
        let mut history = Store::run(seed);
        let unanswered = |call: &Call| call.op == Op::Delete && call.done().is_none();
        // Of a key of which no deletion had no answer.
        let known = |key: &Key| !history.calls.iter().any(|call| call.key == *key && unanswered(call));
        let deleted = history.calls.iter().position(|call| {
            call.op == Op::Delete && call.acknowledged().is_some() && known(&call.key)
        });
        prop_assume!(deleted.is_some());
        history.calls.remove(deleted.unwrap());
        prop_assert_eq!(log::check(&history).len(), 1);
    }

    #[test]
    fn a_write_that_was_refused_and_is_there_is_caught(seed: u64) {
        for (op, outcome) in [
            (Op::Swap { from: None, to: Value(0) }, None),
            (Op::Put(Value(0)), Some(Outcome::Failed("no connection".into()))),
        ] {
            let mut history = Store::run(seed);
            let index = told(&history, |call| std::mem::discriminant(&call.op) == std::mem::discriminant(&op));
            let (revision, _) = history.calls[index].done().unwrap();
            let refused = Outcome::Done { revision, answer: Answer::Swap(false) };
            history.calls[index].outcome = outcome.clone().unwrap_or(refused);
            prop_assert_eq!(log::check(&history).len(), 1);
        }
    }

    #[test]
    fn a_swap_that_found_something_else_is_caught(seed: u64) {
        let mut history = Store::run(seed);
        let index = told(&history, |call| matches!(call.op, Op::Swap { .. }));
        let Op::Swap { from: _, to } = history.calls[index].op else { unreachable!("it is one") };
        history.calls[index].op = Op::Swap { from: Some(Value(u64::MAX - 1)), to };
        prop_assert_eq!(log::check(&history).len(), 1);
    }
}

#[test]
fn what_the_log_is_found_to_hold_breaks_the_order() {
    let history = with_event(Store::run(1), Event::clone);
    let violations = check(&history);
    let order: Vec<_> = violations.iter().filter(|violation| violation.check == Check::Order).collect();
    assert!(order.len() == 1 && order[0].what.contains("it was there before"), "{violations:?}");
}

#[test]
fn a_run_in_which_hardly_anything_was_written_is_caught() {
    let mut history = Store::run(1);
    let written = history.calls.iter().filter(|call| call.acknowledged().is_some()).count() as u64;
    assert_eq!(idle(&history, &[], Duration::from_secs(written)), None);
    assert!(idle(&history, &[], Duration::from_secs(written + 1)).is_some());
    // What was written before the faults, or after them, says nothing of them.
    let second = Duration::from_secs(1);
    let begun = |late: u64| {
        let mut deeds = carried_out(&Schedule::staying(1, Duration::from_mins(3), "3.6.16"), |_, _| done());
        deeds.truncate(1);
        deeds[0].begun = Moment(u64::from(deeds[0].event.at) * 1_000 + late);
        deeds
    };
    assert_eq!(idle(&history, &begun(0), second), None);
    assert!(idle(&history, &begun(1_000_000), second).is_some());
    for call in &mut history.calls {
        call.returned = call.returned.later_by(second);
    }
    assert!(idle(&history, &begun(0), second).is_some());
    history.calls.clear();
    assert_eq!(idle(&history, &[], Duration::from_mins(3)).map(|found| found.check), Some(Check::Complete));
}

/// What came of all faults of a schedule, each told by its number and its kind.
fn carried_out(schedule: &Schedule, carried: impl Fn(usize, &str) -> Carried) -> Vec<Deed> {
    let deeds = schedule.events.iter().enumerate().map(|(at, event)| Deed {
        event: event.clone(),
        begun: Moment(0),
        ended: Moment(0),
        carried: carried(at, event.fault.name()),
    });
    deeds.collect()
}

fn done() -> Carried {
    Carried::Done("all".into())
}

fn left_out() -> Carried {
    Carried::Skipped("early".into())
}

#[test]
fn a_run_in_which_hardly_a_fault_was_made_is_caught() {
    let schedule = Schedule::generate(1, Duration::from_mins(3), "3.6.16");
    let judged = |carried: &dyn Fn(usize) -> Carried| {
        undisturbed(&schedule, &carried_out(&schedule, |at, _| carried(at))).map(|found| found.check)
    };
    assert_eq!(judged(&|_| done()), None);
    assert_eq!(judged(&|at| if at % 3 == 0 { left_out() } else { done() }), None);
    assert_eq!(judged(&|at| if at % 3 == 0 { done() } else { left_out() }), Some(Check::Complete));
    assert_eq!(judged(&|at| if at % 5 == 0 { Carried::Failed("late".into()) } else { done() }), Some(Check::Complete));
    assert_eq!(undisturbed(&schedule, &[]).map(|found| found.check), Some(Check::Complete));
}

#[test]
fn a_kind_of_fault_that_never_lands_is_caught() {
    let schedule = Schedule::staying(1, Duration::from_hours(1), "3.6.16");
    let kinds: BTreeSet<&str> = schedule.events.iter().map(|event| event.fault.name()).collect();
    assert_eq!(never_landed(&schedule, &carried_out(&schedule, |_, _| done())), Vec::new());
    for planted in kinds {
        let deeds = carried_out(&schedule, |_, kind| if kind == planted { left_out() } else { done() });
        assert_eq!(undisturbed(&schedule, &deeds), None, "the others hide {planted}");
        let found = never_landed(&schedule, &deeds);
        assert!(found.len() == 1 && found[0].what.contains(planted), "{planted}: {found:?}");
        assert_eq!(found[0].check, Check::Complete);
        // One that could not be done has not landed either, and one that was done is enough.
        let failed = |_: usize, kind: &str| if kind == planted { Carried::Failed("late".into()) } else { done() };
        assert_eq!(never_landed(&schedule, &carried_out(&schedule, failed)), found);
        let mut once = deeds;
        once.iter_mut().rfind(|deed| deed.event.fault.name() == planted).unwrap().carried = done();
        assert_eq!(never_landed(&schedule, &once), Vec::new());
    }
}

#[test]
fn a_kind_of_fault_that_was_dealt_seldom_may_be_left_out() {
    let whole = Schedule::staying(1, Duration::from_hours(1), "3.6.16");
    for (kind, bound) in
        [("stop node", ONE_LANDS_OF), ("kill processes", ONE_LANDS_OF_MEMBERS), ("lose volumes", ONE_LANDS_OF_LOSSES)]
    {
        let dealt = |times: usize| {
            let of_it = whole.events.iter().filter(|event| event.fault.name() == kind);
            let schedule = whole.with_only(of_it.take(times).cloned().collect());
            never_landed(&schedule, &carried_out(&schedule, |_, _| left_out())).len()
        };
        assert_eq!((dealt(bound - 1), dealt(bound)), (0, 1), "{kind}");
    }
    // As it was in `make test`.
    let short = Schedule::generate(1, Duration::from_mins(3), "3.6.16");
    let lost = short.events.iter().filter(|event| event.fault.name() == "lose volumes").count();
    let deeds = carried_out(&short, |_, kind| if kind == "lose volumes" { left_out() } else { done() });
    assert_eq!((lost, never_landed(&short, &deeds)), (3, Vec::new()));
}
