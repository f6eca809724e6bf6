//! Learns for how long leases were granted: a watch shows no more than their ids, and a lease that has run out can't be asked
//! any more. So each is asked for at its first sight.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use etcd_client::LeaseClient;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::format::LeaseGrant;

/// Questions on their way at once.
const AT_ONCE: usize = 16;
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(3);
/// How long a flush waits for answers. What comes later is in the next one.
pub(super) const WAIT: Duration = Duration::from_secs(5);
/// Answers take milliseconds where etcd is well.
const SLOW: Duration = Duration::from_secs(2);

/// Grants that go into one manifest: far below what may be in one. What is more waits for the next.
const GRANTS: usize = 100_000;

/// What is known of leases.
pub(super) struct Leases {
    client: LeaseClient,
    /// Those that were asked for, or need not be.
    seen: BTreeSet<i64>,
    waiting: Vec<i64>,
    asked: JoinSet<(i64, Option<i64>)>,
    /// Learned since the last flush.
    learned: BTreeMap<i64, i64>,
}

impl Leases {
    pub fn new(client: LeaseClient) -> Self {
        Self { client, seen: BTreeSet::new(), waiting: Vec::new(), asked: JoinSet::new(), learned: BTreeMap::new() }
    }

    /// A put names this one.
    pub fn see(&mut self, id: i64) {
        if self.seen.insert(id) {
            self.waiting.push(id);
        }
        self.ask();
    }

    /// All that there are, also without keys, and what was learned since the last call, as far as etcd tells it within `wait`.
    /// A failure costs no more than the TTL of leases that die meanwhile.
    pub async fn flush(&mut self, wait: Duration) -> Vec<LeaseGrant> {
        let begun = Instant::now();
        let deadline = begun + wait;
        match timeout_at(deadline, Box::pin(self.client.leases())).await {
            Ok(Ok(all)) => {
                let now: BTreeSet<i64> = all.leases().iter().map(etcd_client::LeaseStatus::id).collect();
                // One that has ended may be granted anew, for another time.
                self.seen.retain(|id| now.contains(id));
                for id in now {
                    self.see(id);
                }
            }
            Ok(Err(error)) => tracing::warn!("leases can't be listed: {error}"),
            Err(_) => tracing::warn!("leases can't be listed: etcd does not answer"),
        }
        while let Ok(Some(answer)) = timeout_at(deadline, self.asked.join_next()).await {
            self.take(answer.ok());
            self.ask();
        }
        let took = begun.elapsed();
        if took > SLOW {
            tracing::warn!("etcd took {took:.1?} to tell of its leases: what is to be stored waited for that");
        }
        some_of(&mut self.learned)
    }

    /// What was learned and is not recorded.
    pub fn unrecorded(&mut self) -> Vec<LeaseGrant> {
        self.hear();
        grants(std::mem::take(&mut self.learned))
    }

    /// These were learned for the generation before, and are not recorded in this one. Of those that have ended since nobody
    /// could learn any more.
    pub fn learn(&mut self, grants: Vec<LeaseGrant>) {
        self.learned.extend(grants.into_iter().map(|LeaseGrant { id, ttl }| (id, ttl)));
    }

    /// Another archive has recorded these.
    pub fn know<'a>(&mut self, grants: impl IntoIterator<Item = &'a LeaseGrant>) {
        for LeaseGrant { id, ttl: _ } in grants {
            self.seen.insert(*id);
            self.learned.remove(id);
        }
    }

    fn ask(&mut self) {
        self.hear();
        while self.asked.len() < AT_ONCE
            && let Some(id) = self.waiting.pop()
        {
            let mut client = self.client.clone();
            self.asked.spawn(async move {
                let answer = tokio::time::timeout(ANSWER, Box::pin(client.time_to_live(id, None))).await;
                (id, answer.ok().and_then(Result::ok).map(|lease| lease.granted_ttl()))
            });
        }
    }

    fn hear(&mut self) {
        while let Some(answer) = self.asked.try_join_next() {
            self.take(answer.ok());
        }
    }

    fn take(&mut self, answer: Option<(i64, Option<i64>)>) {
        match answer {
            Some((id, Some(ttl))) if id != 0 && ttl > 0 => {
                self.learned.insert(id, ttl);
            }
            // It has run out already, or etcd did not answer: then it is asked again at its next sight.
            Some((id, _)) => {
                self.seen.remove(&id);
            }
            None => {}
        }
    }
}

/// Takes as many as go into one manifest.
fn some_of(learned: &mut BTreeMap<i64, i64>) -> Vec<LeaseGrant> {
    let rest = learned.keys().nth(GRANTS).copied().map(|first| learned.split_off(&first)).unwrap_or_default();
    grants(std::mem::replace(learned, rest))
}

fn grants(learned: BTreeMap<i64, i64>) -> Vec<LeaseGrant> {
    learned.into_iter().map(|(id, ttl)| LeaseGrant { id, ttl }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::MANIFEST_LIMIT;

    #[test]
    fn more_leases_than_a_manifest_holds_come_with_the_next() {
        let largest = |nth: usize| i64::MAX - i64::try_from(nth).unwrap();
        let mut learned: BTreeMap<_, _> = (0..=GRANTS).map(|nth| (largest(nth), i64::MAX)).collect();
        let first = some_of(&mut learned);
        let bytes = serde_json::to_vec(&first).unwrap().len() as u64;
        assert!(bytes < MANIFEST_LIMIT / 2, "{bytes}");
        assert_eq!(first.len(), GRANTS);
        assert_eq!(some_of(&mut learned), [LeaseGrant { id: largest(0), ttl: i64::MAX }]);
        assert_eq!(some_of(&mut learned), []);
    }
}
