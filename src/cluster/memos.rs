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
    /// Clusters whose round is under way, and whether they went meanwhile.
    under_way: HashMap<Key, bool>,
}

impl Memos {
    /// Takes out what is remembered of a cluster, for a round.
    pub fn begin(&self, key: &Key, cluster: &EtcdCluster) -> Memo {
        let mut kept = self.lock();
        kept.under_way.insert(key.clone(), false);
        kept.memos.remove(key).filter(|memo| memo.is_of(cluster)).unwrap_or_else(|| Memo::new(cluster))
    }

    /// Puts it back after the round, and tells whether it was kept: not what is over, nor what went meanwhile.
    pub fn end(&self, key: &Key, memo: Memo) -> bool {
        let mut kept = self.lock();
        let went = kept.under_way.remove(key).unwrap_or_default();
        let stays = !went && !memo.is_over;
        if stays {
            kept.memos.insert(key.clone(), memo);
        }
        stays
    }

    /// A cluster is no more.
    pub fn forget(&self, key: &Key) {
        let mut kept = self.lock();
        kept.memos.remove(key);
        if let Some(went) = kept.under_way.get_mut(key) {
            *went = true;
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
        self.lock().memos.get(key).map_or(1, |memo| memo.failures)
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
