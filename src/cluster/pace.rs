//! When to look again: soon in a transition, seldom at rest, ever more seldom after failures. Always with some jitter, so
//! that ten thousand clusters do not look at once.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use quorate_statemachine::{LookAgain, Plan};
use tokio::time::Instant;

/// After something that has its effect right away.
const AT_ONCE: Duration = Duration::from_millis(5);
/// In a transition: a process takes some 100 ms until it answers, and on the way to a voter one look waits for another half
/// a dozen times.
const SOON: Duration = Duration::from_millis(50);
/// While only the outside can mend it: most of that wakes us by a watch.
const LATER: Duration = Duration::from_secs(3);
/// At rest: for what no watch tells, such as members changed by hand.
const AT_REST: Duration = Duration::from_secs(30);
/// The first pause after a failure, and the longest: for so long an API server that is back goes unnoticed where no watch
/// brings anything. How many clusters try at once is bounded anyway, so that a longer one would spare it nothing.
const FAILED_FIRST: Duration = Duration::from_millis(200);
const FAILED_LONGEST: Duration = Duration::from_secs(10);
/// After this many failures the pause does not grow any more: 200 ms doubled six times is beyond the longest.
const FAILURES_THAT_COUNT: u32 = 7;
/// By how much pauses differ, as a share of each.
const JITTER_SHARE: f64 = 0.2;

/// The plan by which only somebody else can help, and since when it has been the same.
#[derive(Debug, Default)]
pub struct Helpless(Option<(Box<Plan>, Instant)>);

impl Helpless {
    /// Takes what was planned.
    pub fn take(&mut self, plan: &Plan) {
        match &self.0 {
            _ if !waits_for_help(plan) => self.0 = None,
            Some((before, _)) if **before == *plan => {}
            Some(_) | None => self.0 = Some((Box::new(plan.clone()), Instant::now())),
        }
    }

    /// For how long the same has been planned.
    pub fn lasts(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }
}

/// Whether nothing is to be done until somebody else has helped.
fn waits_for_help(plan: &Plan) -> bool {
    plan.phase.is_alarming() && plan.steps.is_empty() && plan.ledger.is_none()
}

/// When to look again after a round that succeeded, where nobody but somebody else could have helped for so long: as long
/// again, but no longer than at rest. Each such look reads all anew, and a thousand clusters that wait for ever would starve
/// the others.
pub fn pause(look_again: LookAgain, helpless: Duration) -> Duration {
    match look_again {
        LookAgain::AtOnce => AT_ONCE,
        LookAgain::Soon => SOON,
        LookAgain::Later => jittered(helpless.clamp(LATER, AT_REST)),
        LookAgain::AtRest => jittered(AT_REST),
    }
}

/// When to try again after this many failures in a row.
pub fn pause_after_failures(failures: u32) -> Duration {
    let growing = ExponentialBuilder::default()
        .with_min_delay(FAILED_FIRST)
        .with_max_delay(FAILED_LONGEST)
        .with_factor(2.0)
        .without_max_times()
        .build();
    let nth = failures.clamp(1, FAILURES_THAT_COUNT) - 1;
    jittered(growing.take(nth as usize + 1).last().unwrap_or(FAILED_LONGEST))
}

/// Up to a share longer.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + fastrand::f64() * JITTER_SHARE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quorate_statemachine::{Finding, Phase};

    use super::*;
    use crate::cluster::report::fixture;

    proptest! {
        #[test]
        fn pauses_after_failures_grow_within_bounds(failures in any::<u32>()) {
            let pause = pause_after_failures(failures);
            prop_assert!(pause >= FAILED_FIRST);
            prop_assert!(pause <= FAILED_LONGEST.mul_f64(1.0 + JITTER_SHARE));
        }

        #[test]
        fn each_failure_waits_longer_than_the_one_before(failures in 1..7_u32) {
            prop_assert!(pause_after_failures(failures + 1) > pause_after_failures(failures));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn help_is_waited_for_as_long_as_nothing_else_is_found() {
        let mut waits = quorate_statemachine::plan(&fixture::healthy().world);
        waits.phase = Phase::Failed;
        let mut helpless = Helpless::default();
        let mut after = async |passed: u64, plan: &Plan| {
            tokio::time::advance(Duration::from_secs(passed)).await;
            helpless.take(plan);
            helpless.lasts().as_secs()
        };
        assert_eq!((after(0, &waits).await, after(3, &waits).await, after(60, &waits).await), (0, 3, 63));
        let mut others = waits.clone();
        others.findings.entry(None).or_default().insert(Finding::VolumesOfAnother);
        assert_eq!((after(3, &others).await, after(5, &others).await), (0, 5), "something has changed");
        let heals = Plan { phase: Phase::Healing, ..others.clone() };
        assert_eq!((after(9, &heals).await, after(9, &others).await), (0, 0));
    }

    #[test]
    fn however_long_an_outage_was_its_end_is_noticed_within_twelve_seconds() {
        for failures in [1, FAILURES_THAT_COUNT, u32::MAX] {
            assert!(pause_after_failures(failures) <= Duration::from_secs(12), "{failures}");
        }
        assert!(pause_after_failures(FAILURES_THAT_COUNT) >= FAILED_LONGEST, "it is spared the rest");
    }

    #[test]
    fn the_more_there_is_to_do_the_sooner() {
        let order = [LookAgain::AtOnce, LookAgain::Soon, LookAgain::Later, LookAgain::AtRest];
        let order = order.map(|look_again| pause(look_again, Duration::ZERO));
        assert!(order.is_sorted() && order[0] < order[3]);
    }

    #[test]
    fn the_longer_nobody_helps_the_more_seldom() {
        let later = |helpless| pause(LookAgain::Later, Duration::from_secs(helpless));
        let pauses = [later(0), later(3), later(12), later(3_600)];
        for (pause, least) in pauses.into_iter().zip([3, 3, 12, 30]) {
            let least = Duration::from_secs(least);
            assert!(pause >= least && pause <= least.mul_f64(1.0 + JITTER_SHARE), "{pause:?}");
        }
        // What may move by itself is looked at as often as ever.
        assert_eq!(pause(LookAgain::Soon, AT_REST), SOON);
    }
}
