//! The times in which no write was acknowledged, with the faults that held then and whether an operator led: a time that
//! they don't explain is one to look into. Only arithmetic; it judges nothing.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock::Moment;
use super::history::Call;
use super::inject::{Carried, Deed};
use super::leadership::leaderless;
use super::report::rounded;

/// How many are told: the longest.
const TOLD: usize = 3;
/// How long before a gap a fault may have ended, and still have brought it about: an election of etcd, and the client's
/// deadline.
const AFTERMATH: Duration = Duration::from_secs(3);

/// A time without an acknowledged write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// When the last write before it was acknowledged, in seconds since the run began.
    from: f64,
    /// How long it was, in seconds.
    pub(super) seconds: f64,
    /// The longest part of it in which no fault held, in seconds.
    pub(super) quiet_seconds: f64,
    /// The longest part of it in which no operator led, in seconds.
    leaderless_seconds: f64,
    /// The faults that held meanwhile or shortly before, each with its time.
    faults: Vec<String>,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, seconds, quiet_seconds, leaderless_seconds, faults } = self;
        write!(f, "{seconds:.1} s from {from:.1} s on, at most {quiet_seconds:.1} s of it without a fault and ")?;
        write!(f, "{leaderless_seconds:.1} s without a leading operator: ")?;
        f.write_str(&if faults.is_empty() { "nothing held then".to_owned() } else { faults.join("; ") })
    }
}

/// The longest gaps, the longest first. One that had no end is as long as writes were tried in it.
pub fn gaps(calls: &[Call], deeds: &[Deed], renewals: &[Moment]) -> Vec<Gap> {
    let mut ends: Vec<Moment> =
        calls.iter().filter(|call| call.acknowledged().is_some()).map(|call| call.returned).collect();
    ends.sort_unstable();
    let tried_last = calls.iter().filter(|call| call.op.writes()).map(|call| call.returned).max();
    ends.extend(tried_last.filter(|tried| ends.last().is_some_and(|end| end < tried)));
    let mut pairs: Vec<(Moment, Moment)> = ends.windows(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.sort_by_key(|(from, to)| std::cmp::Reverse(to.since(*from)));
    pairs.into_iter().take(TOLD).map(|(from, to)| gap(from, to, deeds, renewals)).collect()
}

fn gap(from: Moment, to: Moment, deeds: &[Deed], renewals: &[Moment]) -> Gap {
    let since = from.earlier_by(AFTERMATH);
    let mut held: Vec<&Deed> = deeds
        .iter()
        .filter(|deed| matches!(deed.carried, Carried::Done(_)) && deed.begun <= to && deed.ended >= since)
        .collect();
    held.sort_by_key(|deed| deed.begun);
    Gap {
        from: rounded(from.since(Moment::default())),
        seconds: rounded(to.since(from)),
        quiet_seconds: rounded(quiet(from, to, &held)),
        leaderless_seconds: rounded(leaderless(from, to, renewals)),
        faults: held.into_iter().map(|deed| format!("{} at {}", deed.event.fault, deed.begun)).collect(),
    }
}

/// The longest part of this time in which none of these, in the order in which they began, held.
fn quiet(from: Moment, to: Moment, held: &[&Deed]) -> Duration {
    let (mut longest, mut free) = (Duration::ZERO, from);
    for deed in held {
        longest = longest.max(deed.begun.since(free));
        free = free.max(deed.ended);
    }
    longest.max(to.since(free))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::fault::{Fault, Victims};
    use crate::chaos::history::{Answer, ClientId, Key, Op, Outcome, Revision, Value};
    use crate::chaos::schedule::Event;

    const SECOND: u64 = 1_000_000;

    fn write(second: u64) -> Call {
        Call {
            client: ClientId(0),
            member: "db-0".into(),
            key: Key("k".into()),
            op: Op::Put(Value(second)),
            invoked: Moment(second * SECOND - 1),
            returned: Moment(second * SECOND),
            outcome: Outcome::Done { revision: Revision(2), answer: Answer::Put },
        }
    }

    fn deed(fault: Fault, from: u64, to: u64, carried: Carried) -> Deed {
        Deed { event: Event { at: 0, fault }, begun: Moment(from * SECOND), ended: Moment(to * SECOND), carried }
    }

    #[test]
    fn the_longest_come_first_with_what_held_then() {
        let calls: Vec<Call> = [1, 2, 22, 23, 30, 60].map(write).into();
        let failed = Call { outcome: Outcome::Unknown("no answer".into()), ..write(40) };
        let calls = [calls, vec![failed]].concat();
        let done = || Carried::Done("db-0".into());
        let deeds = [
            deed(Fault::PauseMembers { victims: Victims::All, millis: 5000 }, 3, 8, done()),
            deed(Fault::KillProcesses { victims: Victims::All }, 12, 12, done()),
            deed(Fault::KillOperators { all: true }, 14, 14, Carried::Skipped("nobody".into())),
            deed(Fault::Hibernate { millis: 4000 }, 7, 10, done()),
        ];
        let renewals: Vec<Moment> = [3, 8, 13, 30, 40, 50].map(|second| Moment(second * SECOND)).into();
        let found = gaps(&calls, &deeds, &renewals);
        assert!(found[0].leaderless_seconds.abs() < 1e-9);
        assert_eq!(found.iter().map(|gap| gap.seconds).collect::<Vec<_>>(), [30.0, 20.0, 7.0]);
        assert!((found[0].quiet_seconds - 30.0).abs() < 1e-9 && found[0].faults.is_empty());
        // Nothing held from 12 to 22, besides what was left out.
        assert!((found[1].quiet_seconds - 10.0).abs() < 1e-9);
        let says = "20.0 s from 2.0 s on, at most 10.0 s of it without a fault and 1.0 s without \
                    a leading operator: pause members All for 5.0 s at 3.000 s; \
                    hibernate for 4.0 s at 7.000 s; kill processes All at 12.000 s";
        assert_eq!(found[1].to_string(), says);
    }

    #[test]
    fn without_writes_there_is_no_gap() {
        assert!(gaps(&[], &[], &[]).is_empty() && gaps(&[write(1)], &[], &[]).is_empty());
    }

    #[test]
    fn a_gap_without_an_end_is_as_long_as_writes_were_tried() {
        let failed = |second| Call { outcome: Outcome::Unknown("no answer".into()), ..write(second) };
        let read = Call { op: Op::Get, ..failed(90) };
        let found = gaps(&[write(1), write(3), failed(40), failed(20), read], &[], &[]);
        assert_eq!(found.iter().map(|gap| gap.seconds).collect::<Vec<_>>(), [37.0, 2.0]);
    }

    #[test]
    fn a_fault_that_ended_shortly_before_is_told_and_covers_nothing() {
        let cut = Fault::CutOperator { millis: 1000 };
        let found = gaps(&[write(10), write(20)], &[deed(cut, 7, 8, Carried::Done("quorate".into()))], &[]);
        assert_eq!(found[0].faults, ["cut operator for 1.0 s at 7.000 s"]);
        assert!((found[0].quiet_seconds - 10.0).abs() < 1e-9);
    }
}
