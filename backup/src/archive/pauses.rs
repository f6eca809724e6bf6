//! How long it is waited after each failure until the next session. Pure: it waits for nothing, and knows no clock.

use std::time::Duration;

use super::status::Reason;

/// The pause after a first failure; each next one of the same kind is twice as long, up to the longest.
const FIRST: Duration = Duration::from_secs(1);
/// The longest one. What has gone well for longer begins anew.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// The pause while the member can't be read: it may only be starting, and asking it costs nothing.
const MEMBER: Duration = Duration::from_secs(1);

/// The pauses that come next. Each kind has its own, so that none makes that of another longer.
#[derive(Debug)]
pub(super) struct Pauses {
    /// After a failure of the store.
    store: Duration,
    /// After one that is neither the store's nor the member's: the next try reads the whole record anew, or takes a full
    /// snapshot, and so costs both of them much.
    rest: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { store: FIRST, rest: FIRST }
    }
}

impl Pauses {
    /// The pause after a failure.
    pub fn after(&mut self, reason: Reason) -> Duration {
        let next = match reason {
            Reason::MemberUnreadable => return MEMBER,
            Reason::StoreInvalid
            | Reason::BucketMissing
            | Reason::StoreRefused
            | Reason::StoreUnfit
            | Reason::StoreFailed => &mut self.store,
            Reason::KeysUnfit | Reason::SnapshotBroken | Reason::HistoryBroken | Reason::Other => &mut self.rest,
        };
        let pause = *next;
        *next = (pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_can_not_be_read_makes_no_other_pause_longer() {
        let mut pauses = Pauses::default();
        let mut seconds = |reason| pauses.after(reason).as_secs();
        for expected in [1, 2, 4, 8, 16, 30, 30] {
            for _ in 0..10 {
                assert_eq!(seconds(Reason::MemberUnreadable), 1);
            }
            assert_eq!(seconds(Reason::StoreFailed), expected);
        }
        assert_eq!(seconds(Reason::StoreRefused), 30, "it is the store all the same");
    }

    #[test]
    fn what_costs_a_full_snapshot_is_tried_ever_less_often_whatever_the_store_has_done() {
        let mut pauses = Pauses::default();
        let mut seconds = |reason| pauses.after(reason).as_secs();
        for expected in [1, 2, 4] {
            assert_eq!(seconds(Reason::StoreFailed), expected);
        }
        for expected in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(seconds(Reason::SnapshotBroken), expected);
        }
        assert_eq!(seconds(Reason::StoreFailed), 8);
    }
}
