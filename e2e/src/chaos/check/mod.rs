//! The checks of a history: each judges one promise and says what broke it. Pure; a check that finds nothing has looked
//! at everything it was given.

mod calls;
mod kept;
mod linear;
mod log;
mod membership;
mod order;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod planted_membership;
#[cfg(test)]
mod planted_promotion;
mod promotion;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fault::Scope;
use super::history::{Call, History, Trouble};
use super::inject::{Carried, Deed};
use super::schedule::Schedule;

pub use calls::verb;
pub use promotion::{Promotions, promotions};

/// Which judge this is: counted up whenever it becomes stricter. What each judged more is told in `docs/chaos.md`.
pub const JUDGE: u32 = 12;

/// How many violations of one check are told in full; the first ones say what happened, the rest follows from them.
const TOLD: usize = 20;

/// Which promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Every key behaves as if each call had happened at one moment between its begin and its end.
    Linearizable,
    /// Revisions never go back, and each is one write of somebody's, which no other is.
    Order,
    /// Watches see every revision once and in order.
    Watches,
    /// No acknowledged write is lost, on any member.
    Kept,
    /// Membership changes one at a time, and never at the cost of quorum or data.
    Membership,
    /// No identity runs twice.
    Identity,
    /// Once faults stop, the cluster becomes what was asked for.
    Converged,
    /// What the other checks need was there.
    Complete,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linearizable => "linearizable",
            Self::Order => "order",
            Self::Watches => "watches",
            Self::Kept => "kept",
            Self::Membership => "membership",
            Self::Identity => "identity",
            Self::Converged => "converged",
            Self::Complete => "complete",
        })
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Which.
    pub check: Check,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}

/// Of how many faults that were dealt one has to be done, or else the run says little.
const ONE_DONE_OF: usize = 2;
/// Of how many faults that were dealt one may be impossible.
const ONE_FAILS_OF: usize = 10;

/// Of how many of one kind that were dealt one has to land.
const ONE_LANDS_OF: usize = 3;
/// The same of what hits members: a third is left out, since nobody is there to hit while the cluster sleeps or is down, and
/// such times follow each other (six in a row were seen in a run that landed seven).
const ONE_LANDS_OF_MEMBERS: usize = 10;
/// The same of losses of volumes. They wait for a calm moment, which is rare: on a busy machine one of eleven landed, and in
/// three minutes often none does. A longer wait would not bring one: the spec changes soon again. So it is asked only of
/// runs of some 35 minutes and more: at that rate none of so many lands by chance in one run of some fifty.
const ONE_LANDS_OF_LOSSES: usize = 40;

/// Of how many promotions one has to be judged by how far the learner had come: the looks at that miss some, and never all
/// while they work. The two that make the cluster are over before anybody looks.
const ONE_JUDGED_OF: usize = 10;

/// Everything that is wrong with a history; nothing if it is sound.
pub fn check(history: &History) -> Vec<Violation> {
    let checks: [(Check, Vec<String>); 5] = [
        (Check::Linearizable, linear::check(&history.calls)),
        (Check::Order, [order::check(&history.calls), log::check(history)].concat()),
        (Check::Watches, watches::check(history)),
        (Check::Kept, kept::check(history)),
        (Check::Membership, [membership::check(history), promotion::check(history)].concat()),
    ];
    let mut violations = Vec::new();
    for (check, found) in checks {
        let more = found.len().saturating_sub(TOLD);
        violations.extend(found.into_iter().take(TOLD).map(|what| Violation { check, what }));
        if more > 0 {
            violations.push(Violation { check, what: format!("and {more} more") });
        }
    }
    violations.extend(history.troubles.iter().map(of_trouble));
    violations
}

/// Says so if a run can't tell anything, whatever the checks of its history say.
pub fn of_little_worth(history: &History, schedule: &Schedule, deeds: &[Deed]) -> Vec<Violation> {
    let found = [idle(history, deeds, schedule.lasts()), undisturbed(schedule, deeds), unjudged(promotions(history))];
    found.into_iter().flatten().chain(never_landed(schedule, deeds)).collect()
}

/// Says so if hardly anything was written while faults were made, on which nothing can be judged: a cluster that serves
/// nothing loses nothing either.
fn idle(history: &History, deeds: &[Deed], faults: Duration) -> Option<Violation> {
    // A fault begins at its time or later: by the one that was late by least it is known when the first was due.
    let due = deeds.iter().map(|deed| deed.begun.earlier_by(Duration::from_millis(deed.event.at.into()))).min();
    let meanwhile = |call: &Call| due.is_none_or(|due| (due..=due.later_by(faults)).contains(&call.returned));
    let written = history.calls.iter().filter(|call| call.acknowledged().is_some() && meanwhile(call)).count();
    let seconds = faults.as_secs();
    let what = || format!("only {written} writes were acknowledged in {seconds} s of faults, less than one a second");
    (u64::try_from(written).unwrap_or(u64::MAX) < seconds).then(|| Violation { check: Check::Complete, what: what() })
}

/// Says so if too little of a schedule was done, or too much of it could not be: what was not disturbed breaks nothing.
fn undisturbed(schedule: &Schedule, deeds: &[Deed]) -> Option<Violation> {
    let dealt = schedule.events.len();
    let done = deeds.iter().filter(|deed| deed.is_done()).count();
    let failed = deeds.iter().filter(|deed| matches!(deed.carried, Carried::Failed(_))).count();
    let what = || format!("of {dealt} faults {done} were done, and {failed} could not be");
    (done * ONE_DONE_OF < dealt || failed * ONE_FAILS_OF > dealt)
        .then(|| Violation { check: Check::Complete, what: what() })
}

/// Says so if many learners were promoted and of none it is known how far it had come.
fn unjudged(Promotions { asked, judged }: Promotions) -> Option<Violation> {
    let what = || format!("of {asked} promotions not one could be judged by how far the learner had come");
    (asked >= ONE_JUDGED_OF && judged == 0).then(|| Violation { check: Check::Complete, what: what() })
}

/// Says so of each kind of fault that was dealt often and never landed: the others hide it from [`undisturbed`].
fn never_landed(schedule: &Schedule, deeds: &[Deed]) -> Vec<Violation> {
    let landed: BTreeSet<&str> =
        deeds.iter().filter(|deed| deed.is_done()).map(|deed| deed.event.fault.name()).collect();
    let mut missed: BTreeMap<&str, (usize, Scope)> = BTreeMap::new();
    for fault in schedule.events.iter().map(|event| &event.fault).filter(|fault| !landed.contains(fault.name())) {
        missed.entry(fault.name()).or_insert_with(|| (0, fault.scope())).0 += 1;
    }
    let often = missed.into_iter().filter(|(_, (dealt, scope))| *dealt >= one_lands_of(*scope));
    let what = often.map(|(kind, (dealt, _))| format!("of {dealt} faults of the kind \"{kind}\" none was done"));
    what.map(|what| Violation { check: Check::Complete, what }).collect()
}

const fn one_lands_of(scope: Scope) -> usize {
    match scope {
        Scope::Volumes => ONE_LANDS_OF_LOSSES,
        Scope::Members => ONE_LANDS_OF_MEMBERS,
        Scope::Nodes | Scope::Operator | Scope::Api | Scope::Spec => ONE_LANDS_OF,
    }
}

fn of_trouble(trouble: &Trouble) -> Violation {
    let (check, what) = match trouble {
        Trouble::RanTwice(what) => (Check::Identity, what),
        Trouble::NotConverged(what) => (Check::Converged, what),
        Trouble::Unfinished(what) => (Check::Complete, what),
    };
    Violation { check, what: what.clone() }
}
