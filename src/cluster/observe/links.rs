//! Finds the connections of a member that are there although etcd counts them as broken: it goes on sending over them. Two
//! looks at one process are compared; nothing is decided.

use std::collections::BTreeMap;

use quorate_statemachine::{Alive, Link, MemberId, Millis};

/// How long a connection may carry nothing and count as there: etcd sends something every 1.7 s, and looks are up to half a
/// second apart while something goes on.
const PATIENCE_MS: u64 = 4_000;

/// What a member has sent to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// So many bytes.
    bytes: u64,
    /// It counts the other as connected.
    counted: bool,
    /// When the bytes were last seen to have become more while it did not. `None`: not yet.
    grew: Option<Millis>,
}

impl Sent {
    /// What one look shows.
    pub fn of(link: &quorate_etcd::Link) -> Self {
        Self { bytes: link.sent_bytes, counted: link.active, grew: None }
    }
}

/// What was sent to each of the others.
type All = BTreeMap<MemberId, Sent>;

/// Adds to what a member counts what it overlooks, by comparison with an earlier look.
pub fn compare((now, sent): (&mut Alive, &mut All), (then, before): (&Alive, &All)) {
    if now.process != then.process {
        return;
    }
    for (peer, sent) in sent.iter_mut().filter(|(_, sent)| !sent.counted) {
        // What was sent since it was counted may have been sent before the connection broke.
        let Some(before) = before.get(peer).filter(|before| !before.counted) else { continue };
        sent.grew = if sent.bytes > before.bytes { Some(now.seen) } else { before.grew };
        if sent.grew.is_some_and(|grew| now.seen.since(grew) < PATIENCE_MS) {
            now.links.insert(*peer, Link::Overlooked);
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_statemachine::{Serial, Sight};

    use super::*;
    use crate::cluster::report::fixture;

    const OTHER: MemberId = MemberId(7);

    fn look(time: u64, bytes: u64, process: u64) -> (Alive, All) {
        let Sight::Etcd(mut alive) = fixture::healthy().said.seen[&Serial(0)].sight.clone() else { panic!("no etcd") };
        (alive.seen, alive.process, alive.links) = (Millis(time), Millis(process), BTreeMap::new());
        (alive, BTreeMap::from([(OTHER, Sent { bytes, counted: time < 100, grew: None })]))
    }

    /// What is known of a connection after looks in turn: each with its time, the bytes sent, and the life of the process.
    /// Up to the time of 100 it is counted.
    fn after<const N: usize>(looks: [(u64, u64, u64); N]) -> Option<Link> {
        let looks = looks.into_iter().map(|(time, bytes, process)| look(time, bytes, process));
        let last = looks.reduce(|(then, before), (mut now, mut sent)| {
            compare((&mut now, &mut sent), (&then, &before));
            (now, sent)
        });
        last.and_then(|(alive, _)| alive.links.get(&OTHER).copied())
    }

    #[test]
    fn a_connection_that_carries_something_is_there_whatever_etcd_counts() {
        assert_eq!(after([(100, 10, 1)]), None);
        assert_eq!(after([(100, 10, 1), (200, 10, 1)]), None);
        assert_eq!(after([(100, 10, 1), (200, 11, 1)]), Some(Link::Overlooked));
        assert_eq!(after([(100, 10, 1), (200, 11, 1), (2_000, 11, 1)]), Some(Link::Overlooked), "a heartbeat is due");
        assert_eq!(after([(100, 10, 1), (200, 11, 1), (200 + PATIENCE_MS, 11, 1)]), None, "nothing came");
    }

    #[test]
    fn what_was_sent_before_it_broke_or_in_another_life_shows_nothing() {
        assert_eq!(after([(50, 10, 1), (100, 11, 1)]), None);
        assert_eq!(after([(50, 10, 1), (100, 11, 1), (200, 12, 1)]), Some(Link::Overlooked));
        assert_eq!(after([(100, 10, 1), (200, 11, 1), (300, 12, 2)]), None);
    }
}
