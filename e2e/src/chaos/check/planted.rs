//! The checks against histories of a simulated store: a sound one passes whatever its timing, and each planted fault is
//! caught by the check whose promise it breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use proptest::prelude::*;

use super::{Check, Violation, check, idle};
use crate::chaos::clock::Moment;
use crate::chaos::history::{
    Answer, Call, Change, ClientId, Deed, Event, Found, History, Key, Listed, MemberId, Op, Outcome, Revision, Sample,
    Step, Trouble, Value, Watched,
};

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

#[test]
fn a_run_in_which_hardly_anything_was_written_is_caught() {
    let mut history = Store::run(1);
    let written = history.calls.iter().filter(|call| call.acknowledged().is_some()).count() as u64;
    assert_eq!(idle(&history, Duration::from_secs(written)), None);
    assert!(idle(&history, Duration::from_secs(written + 1)).is_some());
    history.calls.clear();
    assert_eq!(idle(&history, Duration::from_mins(3)).map(|found| found.check), Some(Check::Complete));
}

/// Three members that are looked at four times a second for a minute, with what each look sees left to the test.
fn looks(see: impl Fn(u64, &mut Sample)) -> Vec<Sample> {
    let listed = |number: u64| (MemberId(number), Listed { name: format!("db-{number}"), learner: false });
    let look = |number: u64| {
        let begun = number * 250_000;
        let mut sample = Sample {
            begun: Moment(begun),
            ended: Moment(begun + 50_000),
            wished: 3,
            members: Some((0..3).map(listed).collect()),
            running: (0..3).map(|number| format!("db-{number}")).collect(),
        };
        see(begun / 1_000_000, &mut sample);
        sample
    };
    (0..240).map(look).collect()
}

fn with_deeds(samples: Vec<Sample>, deeds: Vec<(u64, Step)>) -> History {
    let deeds = deeds.into_iter().flat_map(|(second, step)| {
        let at = Moment(second * 1_000_000);
        let changes = matches!(step, Step::AddLearner { .. } | Step::Promote { .. } | Step::Remove { .. });
        let call = changes.then(|| Step::Calls { call: Box::new(step.clone()) });
        call.into_iter().chain([step]).map(move |step| Deed { at, step })
    });
    let deeds = deeds.collect();
    History { cluster: "db".into(), samples, deeds, ..History::default() }
}

fn ids(numbers: impl IntoIterator<Item = u64>) -> BTreeSet<MemberId> {
    numbers.into_iter().map(MemberId).collect()
}

fn learner(sample: &mut Sample, number: u64) {
    let listed = Listed { name: format!("db-{number}"), learner: true };
    sample.members.as_mut().unwrap().insert(MemberId(number), listed);
}

/// What a replacement of the dead db-2 looks like: from the 30th second it does not run, in the 45th db-3 comes.
fn replacement(second: u64, sample: &mut Sample) {
    if second >= 30 {
        sample.running.remove("db-2");
    }
    if second >= 45 {
        learner(sample, 3);
        sample.running.insert("db-3".into());
    }
    if second >= 46 {
        sample.members.as_mut().unwrap().remove(&MemberId(2));
    }
    if second >= 47 {
        sample.members.as_mut().unwrap().get_mut(&MemberId(3)).unwrap().learner = false;
    }
}

fn replacing() -> Vec<(u64, Step)> {
    vec![
        (45, Step::AddLearner { serial: 3, expect: ids(0..3) }),
        (46, Step::Remove { id: MemberId(2), expect: ids(0..4) }),
        (47, Step::Promote { serial: 3, id: MemberId(3), expect: ids([0, 1, 3]) }),
        (48, Step::DeletePod { serial: 2 }),
        (49, Step::DeleteClaim { serial: 2 }),
    ]
}

#[test]
fn a_dead_member_may_be_replaced() {
    let history = with_deeds(looks(replacement), replacing());
    assert_eq!(check(&history), []);
}

fn assert_membership(history: &History, says: &str) {
    let violations = check(history);
    let caught = violations.iter().any(|found| found.check == Check::Membership && found.what.contains(says));
    assert!(caught, "nothing says {says:?}: {violations:?}");
}

#[test]
fn a_call_planned_from_another_list_is_caught() {
    let deeds = vec![(30, Step::AddLearner { serial: 3, expect: ids(0..2) })];
    assert_membership(&with_deeds(looks(|_, _| ()), deeds), "a member list that there was not");
    // Two operators plan from one list, one of them two seconds late.
    let add = |serial| Step::AddLearner { serial, expect: ids(0..3) };
    let late = |second, sample: &mut Sample| {
        if second >= 28 {
            learner(sample, 3);
        }
    };
    assert_membership(&with_deeds(looks(late), vec![(28, add(3)), (30, add(4))]), "a member list that there was not");
}

#[test]
fn a_call_is_judged_whatever_came_of_it() {
    // The operator was killed before it could say that it was done.
    let mut deeds = replacing();
    let call = Box::new(Step::Remove { id: MemberId(1), expect: ids(0..4) });
    deeds[1].1 = Step::Calls { call };
    assert_membership(&with_deeds(looks(replacement), deeds), "the live voter db-1 was removed");
}

#[test]
fn a_member_that_comes_goes_or_votes_without_a_call_is_caught() {
    for (left_out, says) in [(0, "1 members are new"), (1, "db-2 (2) is not listed"), (2, "db-3 (3) votes")] {
        let mut deeds = replacing();
        deeds.remove(left_out);
        assert_membership(&with_deeds(looks(replacement), deeds), says);
    }
}

#[test]
fn a_live_voter_removed_while_another_is_down_is_caught() {
    let mut deeds = replacing();
    deeds[1].1 = Step::Remove { id: MemberId(1), expect: ids(0..4) };
    assert_membership(&with_deeds(looks(replacement), deeds), "the live voter db-1 was removed");
}

#[test]
fn a_live_voter_stopped_at_the_cost_of_quorum_is_caught() {
    let replacement = |second: u64, sample: &mut Sample| replacement(second.min(44), sample);
    let deeds = vec![(44, Step::DeletePod { serial: 1 })];
    assert_membership(&with_deeds(looks(replacement), deeds.clone()), "the live voter db-1 was stopped");
    let switch = vec![(44, Step::SwitchRelease { serial: 1 })];
    assert_membership(&with_deeds(looks(replacement), switch.clone()), "the live voter db-1 was switched");
    assert_eq!(check(&with_deeds(looks(|_, _| ()), switch)), []);
    // Where all are to sleep, that is what is asked for.
    let asleep = |second: u64, sample: &mut Sample| {
        replacement(second.min(43), sample);
        sample.wished = 0;
    };
    assert_eq!(check(&with_deeds(looks(asleep), deeds.clone())), []);
    // The look in which they were put to sleep may end after the deed.
    let falls_asleep = |second: u64, sample: &mut Sample| {
        replacement(second.min(43), sample);
        if second == 43 {
            sample.wished = 0;
            sample.ended = Moment(45_000_000);
        }
    };
    assert_eq!(check(&with_deeds(looks(falls_asleep), deeds)), []);
}

#[test]
fn a_dead_learner_promoted_is_caught() {
    let dead = |second, sample: &mut Sample| {
        if second >= 20 {
            learner(sample, 3);
        }
    };
    let deeds = vec![(40, Step::Promote { serial: 3, id: MemberId(3), expect: ids(0..4) })];
    assert_membership(&with_deeds(looks(dead), deeds), "the learner db-3 was promoted");
}

#[test]
fn a_learner_that_has_just_started_may_be_promoted() {
    let young = |second, sample: &mut Sample| {
        if second >= 40 {
            learner(sample, 3);
            sample.running.insert("db-3".into());
        }
    };
    let add = (39, Step::AddLearner { serial: 3, expect: ids(0..3) });
    let promote = (40, Step::Promote { serial: 3, id: MemberId(3), expect: ids(0..4) });
    let history = with_deeds(looks(young), vec![add, promote]);
    assert_eq!(check(&history), []);
}

#[test]
fn a_call_whose_answer_was_lost_may_have_changed_the_list() {
    // Nobody could list the members while it was made.
    let blind = |_, sample: &mut Sample| sample.members = None;
    let deeds = |lost: bool| {
        let mut deeds = vec![(30, Step::AddLearner { serial: 3, expect: ids(0..3) })];
        deeds.extend(lost.then(|| (31, Step::LostAnswer { verb: "add-learner".into() })));
        deeds.push((32, Step::AddLearner { serial: 5, expect: ids([0, 1, 2, 3, 9]) }));
        deeds
    };
    assert_eq!(check(&with_deeds(looks(blind), deeds(true))), []);
    let seeing = with_deeds(looks(|_, _| ()), deeds(false));
    assert_membership(&seeing, "a member list that there was not");
}

#[test]
fn a_volume_deleted_under_a_member_is_caught() {
    let deeds = vec![(40, Step::DeleteClaim { serial: 1 })];
    assert_membership(&with_deeds(looks(|_, _| ()), deeds), "the volume of db-1 was deleted");
    // A spare that was dismissed, and added on another volume later.
    let deeds = [vec![(30, Step::DeleteClaim { serial: 3 })], replacing()].concat();
    assert_eq!(check(&with_deeds(looks(replacement), deeds)), []);
}

#[test]
fn an_identity_used_twice_is_caught() {
    let mut deeds = replacing();
    deeds.push((55, Step::AddLearner { serial: 3, expect: ids([0, 1, 3]) }));
    assert_membership(&with_deeds(looks(replacement), deeds), "serial 3 was added a second time");
    let back = |second, sample: &mut Sample| {
        if (20..30).contains(&second) {
            sample.members.as_mut().unwrap().remove(&MemberId(2));
        }
    };
    assert_membership(&with_deeds(looks(back), vec![]), "is back");
    let demoted = |second, sample: &mut Sample| {
        if second >= 20 {
            learner(sample, 2);
        }
    };
    assert_membership(&with_deeds(looks(demoted), vec![]), "the voter db-2 is a learner");
}

#[test]
fn a_step_in_unknown_words_is_caught() {
    let deeds = vec![(1, Step::Unreadable { line: "did something".into() })];
    assert_membership(&with_deeds(looks(|_, _| ()), deeds), "can't be read");
}
