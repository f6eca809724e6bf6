//! Whether another archive records at the same time. Both can't commit the same revisions, so no harm is done; but the
//! loser of each race reads again what was stored without it. Who loses twice within a short time stands by.

use std::time::{Duration, Instant};

/// Within this time two lost commits are no coincidence, as one at a hand-over is.
const TOGETHER: Duration = Duration::from_mins(2);
/// For how many flushes whoever stands by waits for the other to commit what it holds itself.
const PATIENCE_IN_FLUSHES: u32 = 3;
/// The least of that, for flushes in quick succession.
const LEAST_PATIENCE: Duration = Duration::from_secs(5);

/// What is known of others.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    lost: Option<Instant>,
    yields: bool,
}

impl Rivals {
    /// Another one was first.
    pub fn lost(&mut self, now: Instant) {
        self.yields = self.lost.is_some_and(|before| now.duration_since(before) < TOGETHER);
        self.lost = Some(now);
    }

    /// Whether to stand by although the member leads.
    pub fn yields(&self) -> bool {
        self.yields
    }

    /// For one that can't see what the other one commits: it stood by for long enough.
    pub fn expire(&mut self, now: Instant, flush_every: Duration) {
        let last = self.lost.map_or(Duration::MAX, |lost| now.duration_since(lost));
        self.has_gone(last.saturating_sub(TOGETHER), flush_every);
    }

    /// Whether the other one has gone: it has left for so long what it should have committed. Who stood by goes on then.
    /// Two that stood by for each other do not go on at the same time.
    pub fn has_gone(&mut self, silent_for: Duration, flush_every: Duration) -> bool {
        let gone = is_silent(silent_for, flush_every);
        if gone {
            *self = Self::default();
        }
        gone
    }
}

/// Whether whoever should have stored something for so long is taken to be away. Two that ask do not both find so at the
/// same time.
pub(super) fn is_silent(silent_for: Duration, flush_every: Duration) -> bool {
    let patience = (flush_every * PATIENCE_IN_FLUSHES).max(LEAST_PATIENCE);
    silent_for > patience.mul_f64(1.0 + fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_loses_twice_in_a_short_time_stands_by_until_the_other_is_silent() {
        let begin = Instant::now();
        let mut rivals = Rivals::default();
        rivals.lost(begin);
        assert!(!rivals.yields(), "once is a hand-over");
        rivals.lost(begin + TOGETHER);
        assert!(!rivals.yields(), "long ago");
        rivals.lost(begin + TOGETHER + Duration::from_secs(5));
        assert!(rivals.yields());
        assert!(!rivals.has_gone(Duration::from_secs(29), Duration::from_secs(10)) && rivals.yields());
        assert!(rivals.has_gone(Duration::from_secs(61), Duration::from_secs(10)) && !rivals.yields());
    }

    #[test]
    fn who_stands_by_and_can_not_follow_does_not_stand_by_for_ever() {
        let (begin, flush) = (Instant::now(), Duration::from_secs(10));
        let mut rivals = Rivals::default();
        rivals.lost(begin);
        rivals.lost(begin + Duration::from_secs(5));
        rivals.expire(begin + TOGETHER, flush);
        assert!(rivals.yields(), "the other one may be at work");
        rivals.expire(begin + TOGETHER + Duration::from_secs(66), flush);
        assert!(!rivals.yields());
    }
}
