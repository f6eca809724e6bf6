//! Finds what there is to choose from, and decides what becomes of what is damaged. It restores nothing.

use futures::TryStreamExt;

use super::{RestoreError, Wanted};
use crate::format::{Chain, ChainError, Choice, GenerationKey, choose, generations};
use crate::store::{Store, StoreError};

/// What becomes of a generation whose manifests are damaged and that was not asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damaged {
    /// It is left out, with a warning: the others can still be restored, and somebody reads that.
    LeftOut,
    /// It is left out if a sound one has begun after it, and else an error: the present can't be restored.
    NewestFails,
    /// It is an error: what was asked for may be in it, and nobody sees that something else comes instead. Only one without
    /// its full snapshot is left out if a sound one has begun after it: it may be half deleted.
    Fails,
}

/// All complete generations of a lineage.
pub async fn survey(store: &Store, wanted: &Wanted, damaged: Damaged) -> Result<Vec<Chain>, RestoreError> {
    store.check().await?;
    let (mut chains, mut newest_fault) = (Vec::new(), None);
    for key in generations(store, &wanted.lineage).await? {
        let other_cluster = wanted.cluster.as_ref().is_some_and(|cluster| *cluster != key.cluster);
        let other_generation = wanted.generation.as_ref().is_some_and(|name| *name != key.name);
        if other_cluster || other_generation {
            continue;
        }
        match Chain::read(store, &key).await {
            Ok(chain) => {
                chains.push(chain);
                newest_fault = None;
            }
            Err(error) if wanted.generation.is_some() => return Err(error.into()),
            Err(error) => match (fault(store, &key, error).await?, damaged) {
                (None, _) => {}
                (Some(fault @ RestoreError::Chain(_)), Damaged::Fails) => return Err(fault),
                (Some(fault), _) => {
                    tracing::warn!("left out: {fault}");
                    newest_fault = Some(fault);
                }
            },
        }
    }
    match (newest_fault, damaged) {
        (Some(fault), Damaged::NewestFails | Damaged::Fails) => Err(fault),
        (Some(_), Damaged::LeftOut) | (None, _) => Ok(chains),
    }
}

/// What is wrong with a generation that can't be read; nothing, if it has just begun or is being deleted: it is no backup
/// then. One that has deltas was a backup.
async fn fault(store: &Store, key: &GenerationKey, error: ChainError) -> Result<Option<RestoreError>, StoreError> {
    match error {
        ChainError::Store(error) => Err(error),
        ChainError::NoFull(_) => {
            let delta = store.list(Some(&key.deltas())).try_next().await?;
            Ok(delta.map(|_| RestoreError::Headless(key.full())))
        }
        damage @ (ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. }) => {
            Ok(Some(damage.into()))
        }
    }
}

/// Chooses what is wanted, and says which other histories it could have been.
pub fn pick<'a>(chains: &'a [Chain], wanted: &Wanted) -> Result<Choice<'a>, RestoreError> {
    let choice = choose(chains, wanted.target)?;
    if !choice.others.is_empty() {
        let others: Vec<_> = choice.others.iter().map(ToString::to_string).collect();
        tracing::warn!("revision {} is also in {}; {} is newer", choice.revision, others.join(", "), choice.chain.key);
    }
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::{generation, stored};
    use crate::format::{Revision, Target};
    use crate::store::tests::faulty::sound;

    const MODES: [Damaged; 3] = [Damaged::LeftOut, Damaged::NewestFails, Damaged::Fails];

    /// The generations that are found.
    async fn found(store: &Store, target: Target, damaged: Damaged) -> Result<Vec<GenerationKey>, RestoreError> {
        let wanted = Wanted { lineage: generation(1).lineage, cluster: None, generation: None, target };
        let chains = survey(store, &wanted, damaged).await?;
        Ok(chains.into_iter().map(|chain| chain.key).collect())
    }

    #[tokio::test]
    async fn a_newest_generation_that_has_lost_its_full_snapshot_is_damaged_and_one_that_begins_is_not() {
        for target in [Target::Latest, Target::Revision(Revision::new(10).unwrap())] {
            let store = sound();
            store.prepare().await.unwrap();
            let older = stored(&store, 100, &[(20, 110)]).await.key;
            let begins = stored(&store, 200, &[]).await.key;
            store.delete(&begins.full()).await.unwrap();
            for damaged in MODES {
                assert_eq!(found(&store, target, damaged).await.unwrap(), std::slice::from_ref(&older));
            }
            let headless = stored(&store, 300, &[(30, 310)]).await.key;
            store.delete(&headless.full()).await.unwrap();
            for damaged in [Damaged::NewestFails, Damaged::Fails] {
                let error = found(&store, target, damaged).await.unwrap_err();
                assert!(matches!(&error, RestoreError::Headless(key) if *key == headless.full()), "{error}");
            }
            assert_eq!(found(&store, target, Damaged::LeftOut).await.unwrap(), std::slice::from_ref(&older));
            // Another has begun since.
            let next = stored(&store, 400, &[]).await.key;
            for damaged in MODES {
                assert!(found(&store, target, damaged).await.unwrap().ends_with(std::slice::from_ref(&next)));
            }
        }
    }
}
