//! Removes older generations beside the recording, as `quorate-agent prune` does. Never the one that is recorded into, and
//! nothing that a rule keeps.

use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::care::{Keep, Plan, Pruned, Removal, plan, prune};
use crate::format::{GenerationKey, Lineage};
use crate::store::{Store, StoreError};

/// How often it looks, besides after each full snapshot and what is recorded first after that. It reads every manifest.
const EVERY: Duration = Duration::from_hours(12);
/// How soon it looks again if it could not look through what there is.
const AGAIN_AFTER: Duration = Duration::from_mins(10);

/// When it was last done, and what is under way.
#[derive(Debug)]
pub(super) struct Retention {
    keep: Option<Keep>,
    due: Instant,
    /// Nothing is known to be recorded after the last full snapshot. Until something is, the generation before it may be
    /// the one that reaches furthest, and stays.
    only_full: bool,
    /// It says whether it could look through what there is.
    working: Option<JoinHandle<bool>>,
}

impl Retention {
    /// The first look comes with the first full snapshot, or after half a day.
    pub fn new(keep: Option<Keep>) -> Self {
        Self { keep, due: Instant::now() + EVERY, only_full: false, working: None }
    }

    /// A full snapshot has been taken: something else may be old now.
    pub fn full_taken(&mut self) {
        (self.due, self.only_full) = (Instant::now(), true);
    }

    /// Something has been recorded after the last full snapshot.
    pub fn goes_on(&mut self) {
        if self.only_full {
            (self.due, self.only_full) = (Instant::now(), false);
        }
    }

    /// Begins if it is time. It works beside the recording.
    pub async fn look(&mut self, store: &Store, lineage: &Lineage, current: &GenerationKey) {
        // One that has panicked has found nothing out either.
        if let Some(ended) = self.working.take_if(|working| working.is_finished())
            && !ended.await.unwrap_or(false)
        {
            self.due = self.due.min(Instant::now() + AGAIN_AFTER);
        }
        let is_due = self.working.is_none() && self.due <= Instant::now();
        let Some(keep) = self.keep.filter(|_| is_due) else { return };
        self.due = Instant::now() + EVERY;
        let (store, lineage, current) = (store.clone(), lineage.clone(), current.clone());
        self.working = Some(tokio::spawn(async move {
            match clear(&store, &lineage, keep, &current).await {
                Ok(Pruned { objects, bytes, anew: _, failed }) => {
                    if objects > 0 {
                        tracing::info!("{objects} objects that no rule keeps are gone, {bytes} bytes");
                    }
                    for error in failed {
                        tracing::warn!("an object that no rule keeps is still there: {error}");
                    }
                    true
                }
                Err(error) => {
                    tracing::warn!("older generations could not be looked through: {error}");
                    false
                }
            }
        }));
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        if let Some(working) = &self.working {
            working.abort();
        }
    }
}

async fn clear(store: &Store, lineage: &Lineage, keep: Keep, current: &GenerationKey) -> Result<Pruned, StoreError> {
    let plan = spare(plan(store, lineage, keep, Timestamp::now(), &|_, _| {}).await?, current);
    prune(store, &plan).await
}

/// Takes the generation that is recorded into off the list. Another one may have begun after it, as by an EtcdBackup.
fn spare(mut plan: Plan, current: &GenerationKey) -> Plan {
    let data = format!("{}/", current.folder());
    let before = plan.removals.len();
    plan.removals.retain(|removal| match removal {
        Removal::Generation(key) => key != current,
        Removal::Garbage(listed) | Removal::Staged(listed) => !listed.key.as_str().starts_with(&data),
    });
    plan.kept += usize::from(plan.removals.len() < before);
    plan
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;
    use crate::archive::flush::tests::refusing;
    use crate::format::{Cluster, GenerationName};
    use crate::store::tests::faulty::sound;
    use crate::store::{Key, Listed};

    fn key(lineage: &str) -> GenerationKey {
        let name = GenerationName::new(Timestamp::UNIX_EPOCH);
        GenerationKey { lineage: lineage.parse().unwrap(), cluster: Cluster::of(1), name }
    }

    #[tokio::test]
    async fn what_could_not_be_looked_through_is_looked_through_soon() {
        let current = key("blue");
        for (store, in_vain) in [(refusing().await, true), (sound(), false)] {
            let mut retention = Retention::new(Some(Keep { newest: 1, last: Duration::ZERO }));
            let day_half = retention.due;
            retention.full_taken();
            retention.look(&store, &current.lineage, &current).await;
            while !retention.working.as_ref().unwrap().is_finished() {
                yield_now().await;
            }
            assert!(retention.due >= day_half);
            retention.look(&store, &current.lineage, &current).await;
            assert!(retention.working.is_none());
            assert_eq!(retention.due <= Instant::now() + AGAIN_AFTER, in_vain);
        }
    }

    #[tokio::test]
    async fn what_is_recorded_first_after_a_full_snapshot_is_followed_by_another_look() {
        let (current, store) = (key("blue"), sound());
        let mut retention = Retention::new(Some(Keep { newest: 1, last: Duration::ZERO }));
        let looks = async |retention: &mut Retention| {
            retention.look(&store, &current.lineage, &current).await;
            let working = retention.working.take();
            let looks = working.is_some();
            if let Some(working) = working {
                assert!(working.await.unwrap());
            }
            looks
        };
        retention.goes_on();
        assert!(!looks(&mut retention).await);
        retention.full_taken();
        assert!(looks(&mut retention).await && !looks(&mut retention).await);
        retention.goes_on();
        assert!(looks(&mut retention).await);
        retention.goes_on();
        assert!(!looks(&mut retention).await);
    }

    #[test]
    fn what_is_recorded_into_stays_whatever_the_rules_say() {
        let (current, old) = (key("blue"), key("green"));
        let listed = |key| Listed { key, bytes: 1, modified: Timestamp::UNIX_EPOCH };
        let (garbage, staged) = (current.data_folder().join("x"), current.data_folder().join("x#1"));
        let elsewhere = Removal::Garbage(listed(Key::new("elsewhere")));
        let removals = vec![
            Removal::Generation(current.clone()),
            Removal::Generation(old.clone()),
            Removal::Garbage(listed(garbage)),
            Removal::Staged(listed(staged)),
            elsewhere.clone(),
        ];
        let spared = spare(Plan { removals, kept: 1 }, &current).removals;
        assert_eq!(spared, [Removal::Generation(old), elsewhere]);
    }
}
