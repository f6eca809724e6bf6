//! The memos of all clusters between their rounds. It knows what went while its round was under way; what a memo holds is not
//! its matter.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_crds::EtcdCluster;

use super::memo::Memo;
use super::observe::cache::Key;

/// What is remembered of each cluster.
#[derive(Debug, Default)]
pub struct Memos(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    memos: HashMap<Key, Memo>,
    under_way: HashMap<Key, Round>,
}

/// A round that is under way, or panicked: then nobody puts its memo back.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// The cluster went meanwhile.
    went: bool,
    /// How many rounds in a row had failed before it.
    failures: u32,
}

impl Memos {
    /// Takes out what is remembered of a cluster, for a round.
    pub fn begin(&self, key: &Key, cluster: &EtcdCluster) -> Memo {
        let mut kept = self.lock();
        let panicked = kept.under_way.remove(key).map(|round| round.failures.saturating_add(1));
        let memo = kept.memos.remove(key).filter(|memo| memo.is_of(cluster));
        let mut memo = memo.unwrap_or_else(|| Memo::new(cluster));
        memo.failures = panicked.unwrap_or(memo.failures);
        kept.under_way.insert(key.clone(), Round { went: false, failures: memo.failures });
        memo
    }

    /// Puts it back after the round, and tells whether it was kept: not what is over, nor what went meanwhile.
    pub fn end(&self, key: &Key, memo: Memo) -> bool {
        let mut kept = self.lock();
        let round = kept.under_way.remove(key).unwrap_or_default();
        let stays = !round.went && !memo.is_over;
        if stays {
            kept.memos.insert(key.clone(), memo);
        }
        stays
    }

    /// A cluster is no more.
    pub fn forget(&self, key: &Key) {
        let mut kept = self.lock();
        kept.memos.remove(key);
        if let Some(round) = kept.under_way.get_mut(key) {
            round.went = true;
        }
    }

    /// The clusters of which something is remembered, or is about to be, and that are not listed.
    pub fn others(&self, listed: &HashSet<Key>) -> Vec<Key> {
        let kept = self.lock();
        let known: HashSet<&Key> = kept.memos.keys().chain(kept.under_way.keys()).collect();
        known.into_iter().filter(|key| !listed.contains(key)).cloned().collect()
    }

    /// How many rounds of a cluster in a row have failed.
    pub fn failures(&self, key: &Key) -> u32 {
        let kept = self.lock();
        let panicked = kept.under_way.get(key).map(|round| round.failures.saturating_add(1));
        panicked.or_else(|| Some(kept.memos.get(key)?.failures)).unwrap_or(1)
    }

    /// Whether something is remembered of a cluster.
    #[cfg(test)]
    pub fn has(&self, key: &Key) -> bool {
        self.lock().memos.contains_key(key)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use quorate_crds::EtcdClusterSpec;

    use super::*;

    #[test]
    fn rounds_that_panic_count_as_failed_until_one_ends_well() {
        let (memos, cluster) = (Memos::default(), EtcdCluster::new("db", EtcdClusterSpec::default()));
        let key = Key { namespace: "ns".into(), name: "db".into() };
        for failed in 1..=3 {
            memos.begin(&key, &cluster);
            assert_eq!(memos.failures(&key), failed, "its memo never came back");
        }
        let mut memo = memos.begin(&key, &cluster);
        assert_eq!(memo.failures, 3);
        memo.failures = 0;
        assert!(memos.end(&key, memo));
        assert_eq!(memos.failures(&key), 0);
        memos.begin(&key, &cluster);
        memos.forget(&key);
        assert_eq!(memos.others(&HashSet::new()), [key]);
    }
}
