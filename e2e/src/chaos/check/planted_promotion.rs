//! The check of promotions against what members say of themselves: one that had caught up passes whatever the timing, one that
//! was far behind is caught, and what nobody saw is counted as not judged.

use std::collections::BTreeSet;

use fastrand::Rng;
use proptest::prelude::*;

use super::promotion::{CLOSE, LAG};
use super::{Check, ONE_JUDGED_OF, Promotions, check, promotions, unjudged};
use crate::chaos::clock::Moment;
use crate::chaos::history::{Deed, History, Listed, MemberId, Role, Sample, Standing, Step};

const LEADER: MemberId = MemberId(1);
const LEARNER: MemberId = MemberId(3);
/// When the learner is promoted, in milliseconds. Its replica said something 20 ms before.
const PROMOTED: u64 = 10_000;

const fn at(milli: u64) -> Moment {
    Moment(milli * 1000)
}

/// What the leader has committed by a moment: three entries in a millisecond.
const fn committed(milli: u64) -> u64 {
    5000 + 3 * milli
}

/// A member that answers within 10 ms.
fn told(member: MemberId, milli: u64, applied: u64) -> Standing {
    let (asked, answered) = (at(milli), at(milli + 10));
    Standing { asked, answered, member, started: at(8000), committed: committed(milli), applied }
}

fn deed(by: &str, milli: u64, step: Step) -> Deed {
    Deed { at: at(milli), by: Some(by.into()), step }
}

fn promotion() -> Step {
    let expect = [(LEADER, Role::Voter), (LEARNER, Role::Learner)].into();
    Step::Calls { call: Box::new(Step::Promote { serial: 3, id: LEARNER, expect }) }
}

/// Both are looked at ten times a second from the eighth second to the twelfth, and the learner is always so far behind.
fn history(behind: u64) -> History {
    let looks = (8000..12_000).step_by(100);
    let both = |milli| {
        let learner = Standing { committed: 0, ..told(LEARNER, milli, committed(milli) - behind) };
        [told(LEADER, milli, committed(milli)), learner]
    };
    let listed = |name: &str, learner| Listed { name: name.into(), learner };
    let look = |milli: u64, learner| Sample {
        begun: at(milli),
        ended: at(milli + 50),
        wished: 3,
        members: Some([(LEADER, listed("db-1", false)), (LEARNER, listed("db-3", learner))].into()),
        running: BTreeSet::from(["db-1".to_owned(), "db-3".to_owned()]),
        cut: BTreeSet::new(),
    };
    History {
        cluster: "db".into(),
        samples: vec![look(8000, true), look(9900, true), look(10_100, false)],
        standings: looks.flat_map(both).collect(),
        deeds: vec![
            deed("quorate-1", PROMOTED - 20, Step::Harmless { name: "LabelPod".into() }),
            deed("quorate-1", PROMOTED, promotion()),
        ],
        ..History::default()
    }
}

/// The same, with what a test makes of what was told.
fn with(behind: u64, keep: impl Fn(&mut Standing) -> bool) -> History {
    let mut history = history(behind);
    history.standings.retain_mut(keep);
    history
}

fn judged(history: &History) -> (usize, usize) {
    let Promotions { asked, judged } = promotions(history);
    (asked, judged)
}

fn assert_sound(history: &History, of: (usize, usize)) {
    assert_eq!(check(history), []);
    assert_eq!(judged(history), of);
}

fn assert_behind(history: &History) {
    let violations = check(history);
    let caught = |what: &str| what.contains("the learner db-3 was promoted, which had applied raft index");
    let found: Vec<_> =
        violations.iter().filter(|found| found.check == Check::Membership && caught(&found.what)).collect();
    assert_eq!(found.len(), 1, "{violations:?}");
    assert_eq!(judged(history), (1, 1));
}

#[test]
fn a_learner_far_behind_is_caught() {
    assert_behind(&history(4000));
    let what = check(&history(4000)).remove(0).what;
    // The last word on what was committed before 9.93 s is of 9.9 s, and the first of the learner after 10.05 s of 10.1 s.
    assert!(
        what.contains("raft index 31300 at 10.100 s, 3400 behind the 34700 that was committed at 9.910 s"),
        "{what}"
    );
}

#[test]
fn a_learner_within_the_lag_may_be_promoted() {
    assert_sound(&history(0), (1, 1));
    assert_sound(&history(LAG), (1, 1));
}

/// The lag counts from what was committed when the operator looked: in the 200 ms from that look to the one at the
/// learner, which then applies nothing, much comes after it.
#[test]
fn the_lag_is_that_of_the_moment_and_exact() {
    let stuck = |applied: u64| {
        with(0, |told| {
            if told.member == LEARNER {
                told.applied = applied;
            }
            true
        })
    };
    assert_sound(&stuck(committed(9900) - LAG), (1, 1));
    assert_behind(&stuck(committed(9900) - LAG - 1));
}

#[test]
fn a_learner_that_nobody_saw_is_not_judged() {
    assert_sound(&with(4000, |told| told.member != LEARNER), (1, 0));
    assert_sound(&with(4000, |told| told.member != LEARNER || told.asked < at(PROMOTED)), (1, 0));
    assert_sound(&with(4000, |told| told.member != LEADER), (1, 0));
    assert_sound(&with(4000, |_| false), (1, 0));
}

/// Which says nothing of the process that was promoted.
#[test]
fn a_learner_that_was_started_anew_meanwhile_is_not_judged() {
    let anew = with(0, |told| {
        if told.member == LEARNER && told.asked >= at(PROMOTED) {
            (told.started, told.applied) = (at(PROMOTED - 10), 0);
        }
        true
    });
    assert_sound(&anew, (1, 0));
}

/// What comes after that may be caught up by then. One that is far behind even so was so before.
#[test]
fn a_learner_that_was_seen_late_is_judged_only_if_it_is_behind() {
    let (close, late) = (u64::try_from(CLOSE.as_millis()).unwrap(), at(PROMOTED + 1800));
    let seen_late =
        |behind| with(behind, |told| told.member == LEADER || told.asked < at(PROMOTED) || told.asked >= late);
    assert!(PROMOTED + 1800 < PROMOTED - 90 + close);
    assert_sound(&seen_late(0), (1, 1));
    // And with a word on what was committed that is older.
    let older = |behind| {
        let mut history = seen_late(behind);
        history.standings.retain(|told| told.member == LEARNER || told.answered < at(9500));
        history
    };
    assert_sound(&older(0), (1, 0));
    assert_behind(&older(9000));
}

/// An address may be another's by now, of this cluster or of another one.
#[test]
fn what_others_say_of_themselves_counts_for_nobody_else() {
    let stranger = MemberId(99);
    let mut history = history(0);
    let far = Standing { committed: 10_000_000, ..told(stranger, 9000, 1) };
    history.standings.extend([far, told(stranger, 10_100, 1), told(LEADER, 10_060, 1)]);
    assert_sound(&history, (1, 1));
}

/// A replica that was paused looked at the learner long before it called etcd, and another one has led meanwhile.
#[test]
fn what_was_committed_after_the_replica_last_spoke_is_not_asked_of_the_learner() {
    let mut history = history(4000);
    history.deeds = vec![
        deed("quorate-1", PROMOTED - 1500, Step::MoveLeader),
        deed("quorate-2", PROMOTED - 20, Step::MoveLeader),
        deed("quorate-1", PROMOTED, promotion()),
    ];
    assert_sound(&history, (1, 1));
    history.deeds[0].at = at(PROMOTED - 500);
    assert_behind(&history);
}

#[test]
fn of_a_replica_that_said_nothing_before_nothing_is_known() {
    let mut first = history(4000);
    first.deeds.remove(0);
    assert_sound(&first, (1, 0));
    // As in histories of before, which don't tell who spoke.
    let mut older = history(4000);
    older.deeds.iter_mut().for_each(|deed| deed.by = None);
    assert_sound(&older, (1, 0));
}

#[test]
fn a_call_is_judged_whatever_came_of_it_and_once() {
    let mut history = history(4000);
    let Step::Calls { call } = promotion() else { unreachable!() };
    history.deeds.push(deed("quorate-1", PROMOTED + 20, *call));
    assert_behind(&history);
    history.deeds[2].step = Step::Refused { verb: "promote".into() };
    assert_behind(&history);
}

#[test]
fn a_run_of_which_no_promotion_could_be_judged_says_so() {
    let says = |asked, judged| unjudged(Promotions { asked, judged }).map(|found| found.check);
    assert_eq!(says(ONE_JUDGED_OF, 0), Some(Check::Complete));
    assert_eq!((says(ONE_JUDGED_OF, 1), says(ONE_JUDGED_OF - 1, 0), says(0, 0)), (None, None, None));
}

/// How long a simulated run is, in milliseconds.
const LENGTH: u64 = 3000;

fn index(milli: u64) -> usize {
    usize::try_from(milli).unwrap()
}

/// A cluster whose operator does right, if only just: the learner is as far behind as it may be when it is looked at, and
/// stands still from then on, or goes on, or is started anew.
struct Simulated {
    rng: Rng,
    /// By millisecond.
    committed: Vec<u64>,
    applied: Vec<u64>,
    /// When the learner is started anew.
    restarted: Option<u64>,
}

impl Simulated {
    fn run(seed: u64) -> History {
        let mut rng = Rng::with_seed(seed);
        let mut committed = vec![rng.u64(..2000)];
        let most = rng.u64(1..20);
        for milli in 1..LENGTH {
            committed.push(committed[index(milli - 1)] + rng.u64(..most));
        }
        // It speaks; its list is told; it looks at the learner; it says that it calls.
        let spoke = rng.u64(200..1500);
        let list = spoke + rng.u64(..100);
        let look = list + rng.u64(..300);
        let called = look + rng.u64(..300);
        let restarted = rng.bool().then(|| rng.u64(1..LENGTH));
        let least = committed[index(list)].saturating_sub(LAG);
        let more = rng.u64(..3);
        let applied = (0..LENGTH).map(|milli| match restarted {
            Some(restarted) if milli >= restarted && restarted > look => more * (milli - restarted),
            Some(_) | None if milli < look => least.saturating_sub(look - milli),
            Some(_) | None => least + more * (milli - look),
        });
        let applied = applied.collect();
        let mut it = Self { rng, committed, applied, restarted };
        let standings = it.standings();
        let mut by_the_wall = |milli: u64| Moment(milli * 1000 + it.rng.u64(..100_000) - 50_000);
        let deeds = vec![
            Deed { at: by_the_wall(spoke), by: Some("quorate-1".into()), step: Step::MoveLeader },
            Deed { at: by_the_wall(called), by: Some("quorate-1".into()), step: promotion() },
        ];
        History { standings, deeds, ..history(0) }
    }

    fn standings(&mut self) -> Vec<Standing> {
        let mut standings = Vec::new();
        for member in [LEADER, LEARNER] {
            let mut milli = self.rng.u64(..100);
            loop {
                let said = milli + self.rng.u64(..40);
                let answered = said + self.rng.u64(..40);
                if answered >= LENGTH {
                    break;
                }
                let (committed, applied) = (self.committed[index(said)], self.applied[index(said)]);
                let (committed, applied) = if member == LEADER { (committed, committed) } else { (0, applied) };
                let started = at(self.restarted.filter(|restarted| *restarted <= said).unwrap_or(0));
                standings.push(Standing {
                    asked: at(milli),
                    answered: at(answered),
                    member,
                    started,
                    committed,
                    applied,
                });
                milli = answered + self.rng.u64(..100);
            }
        }
        standings
    }
}

proptest! {
    #[test]
    fn an_operator_that_does_right_is_never_blamed(seed in any::<u64>()) {
        let history = Simulated::run(seed);
        let violations: Vec<_> =
            check(&history).into_iter().filter(|found| found.what.contains("raft index")).collect();
        prop_assert_eq!(violations, vec![]);
    }
}

/// It is at the limit: with so much more committed than it comes forward meanwhile, it is told wherever anybody looked.
#[test]
fn a_simulated_learner_that_is_farther_behind_is_caught() {
    let mut caught = 0;
    for seed in 0..200 {
        let mut history = Simulated::run(seed);
        let (_, judged) = judged(&history);
        history.standings.iter_mut().for_each(|told| told.committed += 10_000);
        let told = check(&history).iter().any(|found| found.what.contains("raft index"));
        assert!(told || judged == 0, "seed {seed}");
        caught += usize::from(told);
    }
    assert!(caught > 100, "{caught}");
}
