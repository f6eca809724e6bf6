//! Time within a run: microseconds since it began, by one monotonic clock for all who record. Measures nothing else.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

/// Within this time two clocks are read at one moment.
const AT_ONCE: Duration = Duration::from_micros(200);
/// How often that is tried: the best try counts.
const LOOKS: usize = 10;

/// A moment of a run, in microseconds since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// How long after `earlier` this is; nothing if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// This much later.
    #[must_use]
    pub fn later_by(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }

    /// The moment this much earlier; the beginning of the run if that is later.
    pub fn earlier_by(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", Duration::from_micros(self.0).as_secs_f64())
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The clock of a run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    wall: SystemTime,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        let (started, wall) = both();
        Self { started, wall }
    }

    /// The same clock, which takes the time on the wall for what it is now: a machine sets that while a run goes on, and who
    /// reads a log as it is written goes by this one.
    #[must_use]
    pub fn set_by_the_wall(&self) -> Self {
        let (now, wall) = both();
        Self { started: self.started, wall: wall.checked_sub(now - self.started).unwrap_or(self.wall) }
    }

    /// Now.
    pub fn now(&self) -> Moment {
        Moment(micros(self.started.elapsed()))
    }

    /// The moment of a time on the wall, as logs have it; none if the run had not begun.
    pub fn at(&self, wall: SystemTime) -> Option<Moment> {
        wall.duration_since(self.wall).ok().map(|since| Moment(micros(since)))
    }
}

/// What both clocks say at one moment. A thread that was put aside between the two looks again.
fn both() -> (Instant, SystemTime) {
    let mut best: Option<(Duration, (Instant, SystemTime))> = None;
    for _ in 0..LOOKS {
        let (before, wall) = (Instant::now(), SystemTime::now());
        let took = before.elapsed();
        if best.is_none_or(|(least, _)| took < least) {
            best = Some((took, (before, wall)));
        }
        if took < AT_ONCE {
            break;
        }
    }
    best.map_or_else(|| (Instant::now(), SystemTime::now()), |(_, both)| both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_never_wrap() {
        assert_eq!(Moment(1).since(Moment(2)), Duration::ZERO);
        assert_eq!(Moment(1).earlier_by(Duration::MAX), Moment(0));
        assert_eq!(Moment(2_500_000).to_string(), "2.500 s");
    }

    #[test]
    fn what_was_logged_before_the_run_has_no_moment() {
        let clock = Clock::start();
        assert_eq!(clock.at(clock.wall + Duration::from_millis(3)), Some(Moment(3000)));
        assert_eq!(clock.at(clock.wall - Duration::from_millis(3)), None);
    }

    #[test]
    fn a_wall_that_was_set_meanwhile_changes_no_moment() {
        // The wall was an hour behind when the run began.
        let clock = Clock { wall: SystemTime::now() - Duration::from_hours(1), ..Clock::start() };
        let said = clock.set_by_the_wall().at(SystemTime::now() + Duration::from_mins(1)).unwrap();
        assert!(said.since(clock.now()) <= Duration::from_mins(1), "{said}");
        assert!(clock.now().since(said) == Duration::ZERO, "{said}");
    }
}
