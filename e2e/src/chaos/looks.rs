//! Looks at the members again and again: who is one, by etcd's own list, and whose process runs, by the machine's. The
//! judge of membership calls; it shares nothing with the operator.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::future::select_ok;

use super::book::Book;
use super::clock::Clock;
use super::cuts::Cuts;
use super::history::{Listed, MemberId, Sample};
use crate::scene::{Cluster, Membership, etcd_processes};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// How long a member may take to list the members.
const LIST_DEADLINE: Duration = Duration::from_secs(2);

/// Who votes and who leads, as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latest {
    /// The names of the voters, in order.
    pub voters: Vec<String>,
    /// The leader's.
    pub leader: Option<String>,
}

/// The eyes of a run.
#[derive(Clone, Debug)]
pub struct Looks {
    cluster: Cluster,
    book: Book,
    clock: Clock,
    wished: Arc<AtomicU8>,
    cuts: Cuts,
    latest: Arc<Mutex<Latest>>,
}

impl Looks {
    /// Eyes for this cluster, whose user wants so many members now; who changes that says so in `wished`.
    pub fn new(cluster: &Cluster, book: &Book, clock: Clock, wished: Arc<AtomicU8>) -> Self {
        Self {
            cluster: cluster.clone(),
            book: book.clone(),
            clock,
            wished,
            cuts: Cuts::default(),
            latest: Arc::default(),
        }
    }

    /// Where it is said what has no network: a process table does not tell.
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// What was last seen.
    pub fn latest(&self) -> Latest {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks until it is told to stop.
    pub async fn look_until(self, stop: Arc<AtomicBool>) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            samples.push(self.look().await?);
            tokio::time::sleep(PAUSE).await;
        }
        Ok(samples)
    }

    async fn look(&self) -> Result<Sample> {
        let begun = self.clock.now();
        let wished = self.wished.load(Ordering::Relaxed);
        let cut = self.cuts.hit(&self.book.places());
        let namespace = self.cluster.scene().namespace().to_owned();
        let running = tokio::task::spawn_blocking(move || running(&namespace)).await?;
        let members = self.list().await.ok();
        if let Some(list) = &members {
            let voters = list.voters().into_iter().map(str::to_owned).collect();
            let latest = Latest { voters, leader: list.leader().ok().map(str::to_owned) };
            *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = latest;
        }
        let members = members.map(|list| {
            let members = list.members.into_values();
            let listed =
                members.map(|member| (MemberId(member.id), Listed { name: member.name, learner: member.learner }));
            listed.collect()
        });
        Ok(Sample { begun, ended: self.clock.now(), wished, members, running, cut })
    }

    /// The member list, by whoever answers first.
    async fn list(&self) -> Result<Membership> {
        let places = self.book.places();
        let asked = places.values().map(|place| Box::pin(self.cluster.membership_at(&place.door)));
        let asked: Vec<_> = asked.collect();
        if asked.is_empty() {
            return Err(anyhow!("no member has an address"));
        }
        Ok(tokio::time::timeout(LIST_DEADLINE, select_ok(asked)).await??.0)
    }
}

/// The members whose process runs and is not stopped.
pub fn running(namespace: &str) -> BTreeSet<String> {
    let running = etcd_processes(namespace).into_iter().filter(|process| !is_stopped(process.pid));
    running.map(|process| process.member().to_owned()).collect()
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state(&stat) == Some('T')
}

/// The state in a process' stat file: what follows its name, which may hold anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_follows_the_name_whatever_that_is() {
        assert_eq!(state("17 (etcd) T 1 17"), Some('T'));
        assert_eq!(state("17 (a) S (b)) R 1"), Some('R'));
        assert_eq!(state(""), None);
        assert!(!is_stopped(i32::try_from(std::process::id()).unwrap()));
    }
}
