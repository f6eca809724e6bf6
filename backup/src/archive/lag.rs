//! How far the store is behind the member: by revisions, and by the time for which the member has had something that the
//! store has not. Pure: the clock is the caller's.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::status::Lag;

/// The shortest time between two sightings that are kept.
const KEPT_EVERY: Duration = Duration::from_secs(1);
/// How many are kept: an hour's. Of a longer outage the begin is still known.
const MOST_KEPT: usize = 3600;

/// At which moments the member was seen to have reached which revisions, of those that are not in the store.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    head: Option<u64>,
    newest: Option<u64>,
    ahead: VecDeque<(Instant, u64)>,
}

impl Sightings {
    /// The member has this revision.
    pub fn seen(&mut self, revision: u64, now: Instant) {
        self.newest = Some(revision);
        let is_ahead = self.head.is_none_or(|head| revision > head);
        let last = self.ahead.back();
        let is_news = last.is_none_or(|(at, seen)| *seen < revision && now.duration_since(*at) >= KEPT_EVERY);
        if is_ahead && is_news && self.ahead.len() < MOST_KEPT {
            self.ahead.push_back((now, revision));
        }
    }

    /// The member does not answer.
    pub fn lost(&mut self) {
        self.newest = None;
    }

    /// All up to this revision is in the store.
    pub fn stored(&mut self, head: u64) {
        self.head = Some(head);
        while self.ahead.front().is_some_and(|(_, revision)| *revision <= head) {
            self.ahead.pop_front();
        }
    }

    /// How far it is behind, if that is known.
    pub fn lag(&self, now: Instant) -> Option<Lag> {
        let revisions = self.newest?.saturating_sub(self.head?);
        let since = self.ahead.front().filter(|_| revisions > 0).map(|(at, _)| now.duration_since(*at));
        Some(Lag { revisions, seconds: since.unwrap_or_default().as_secs() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_is_counted_from_the_oldest_revision_that_is_missing() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut sightings = Sightings::default();
        assert_eq!(sightings.lag(at(0)), None);
        sightings.seen(5, at(0));
        assert_eq!(sightings.lag(at(0)), None, "there is no head");
        sightings.stored(5);
        assert_eq!(sightings.lag(at(9)), Some(Lag::default()), "nothing is missing");
        sightings.seen(5, at(10));
        sightings.seen(8, at(11));
        sightings.seen(9, at(13));
        assert_eq!(sightings.lag(at(15)), Some(Lag { revisions: 4, seconds: 4 }));
        sightings.stored(8);
        assert_eq!(sightings.lag(at(15)), Some(Lag { revisions: 1, seconds: 2 }));
        sightings.stored(9);
        assert_eq!(sightings.lag(at(15)), Some(Lag::default()));
        sightings.lost();
        assert_eq!(sightings.lag(at(15)), None, "a member that is silent may have written anything");
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_begin_of_an_outage_stays() {
        let begin = Instant::now();
        let mut sightings = Sightings::default();
        sightings.stored(0);
        for second in 1..10_000 {
            sightings.seen(second, begin + Duration::from_secs(second));
        }
        assert_eq!(sightings.ahead.len(), MOST_KEPT);
        let lag = sightings.lag(begin + Duration::from_secs(10_000)).unwrap();
        assert_eq!(lag, Lag { revisions: 9_999, seconds: 9_999 });
    }
}
