//! Finds what there is to choose from, and decides what becomes of what is damaged. It restores nothing.

#[cfg(test)]
mod broken_off_tests;

use futures::stream::{self, StreamExt};

use super::{RestoreError, Wanted};
use crate::format::{
    Chain, ChainError, Choice, ChoiceError, Chosen, Damage, DataObject, Extent, GenerationKey, Reading, Seam, Span,
    Target, choose, generations, has_deltas, in_doubt, last_delta, recorded_before,
};
use crate::store::{Store, StoreError};

/// Generations whose extent is asked for at once.
const AT_ONCE: usize = 8;

/// What becomes of a generation whose manifests are damaged and that was not asked for by name. Where the newest state is
/// wanted, it matters only if it goes further than what is restored, or has begun later and its end can't be told; then it is
/// left out or an error, whatever else has begun. Where a revision or a time is wanted, one that breaks off is as good as any
/// for what comes before that, and matters only if what is wanted may be in what it has lost, rather than in what is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damaged {
    /// It is left out, with a warning: the others can still be restored, and somebody reads that.
    LeftOut,
    /// It is left out if another one has begun after it, and else an error: the present can't be restored.
    NewestFails,
    /// It is an error: what was asked for may be in it, and nobody sees that something else comes instead. Only one without
    /// its full snapshot is left out if another one has begun after it: it may be half deleted.
    Fails,
}

/// Finds what is wanted. Of all that has to be looked at for it one generation is held at a time: what says where the events
/// of a year are takes gigabytes.
pub async fn find(store: &Store, wanted: &Wanted, damaged: Damaged) -> Result<Choice, RestoreError> {
    store.check().await?;
    let choice = fitting(store, wanted, damaged).await?;
    let Chain { key, full_hash: found, .. } = &choice.chain;
    match wanted.manifest {
        Some(said) if said != *found => Err(RestoreError::OtherManifest { key: key.full(), said, found: *found }),
        Some(_) | None => Ok(choice),
    }
}

async fn fitting(store: &Store, wanted: &Wanted, damaged: Damaged) -> Result<Choice, RestoreError> {
    let mut keys = generations(store, &wanted.lineage).await?;
    keys.retain(|key| {
        wanted.cluster.as_ref().is_none_or(|cluster| *cluster == key.cluster)
            && wanted.generation.as_ref().is_none_or(|name| *name == key.name)
    });
    match (wanted.target, &wanted.generation) {
        (Target::Latest, None) => {
            let chain = latest(store, keys, damaged).await?.ok_or(ChoiceError::Nothing)?;
            Ok(Choice::of(chain, wanted.target, None)?)
        }
        (Target::Latest | Target::Revision(_) | Target::Time(_), _) => {
            let surveyed = survey(store, keys, wanted, damaged).await?;
            among(store, surveyed, wanted.target, damaged).await
        }
    }
}

/// Chooses, and looks at what may be in what is lost.
async fn among(
    store: &Store,
    Surveyed { spans, last, faults }: Surveyed,
    target: Target,
    damaged: Damaged,
) -> Result<Choice, RestoreError> {
    let chosen = choose(&spans, target);
    let doubts = in_doubt(&spans, target, chosen.as_ref().ok().map(|chosen| chosen.key));
    let mut doubted = faults_of(&doubts, faults);
    // One that can't be read at all and began later has been dealt with.
    let is_newest = |damage: &Damage| spans.last().is_some_and(|newest| newest.key == damage.span.key);
    if let Some(at) = doubted.iter().rposition(|damage| fails(damage, is_newest(damage), damaged)) {
        return Err(Box::new(doubted.swap_remove(at)).into());
    }
    let choice = match chosen {
        Ok(chosen) => take(store, &spans, chosen, last, target).await,
        Err(error) => Err(error.into()),
    };
    // That nothing has it can't be said where something is lost that may have had it.
    match (choice, doubted.pop()) {
        (Err(RestoreError::Choice(_)), Some(damage)) => Err(Box::new(damage).into()),
        (choice, _) => choice,
    }
}

/// What is wrong with those in which it may be what is wanted, in their order.
fn faults_of(doubts: &[&Span], mut faults: Vec<(GenerationKey, ChainError)>) -> Vec<Damage> {
    let mut fault_of = |span: &Span| {
        let at = faults.iter().position(|(key, _)| *key == span.key)?;
        Some(Damage { span: span.clone(), fault: faults.swap_remove(at).1 })
    };
    doubts.iter().filter_map(|span| fault_of(span)).collect()
}

/// Whether nothing is restored where it may be in this one what is wanted.
fn fails(Damage { span: _, fault }: &Damage, is_newest: bool, damaged: Damaged) -> bool {
    let fails = match damaged {
        Damaged::LeftOut => false,
        Damaged::NewestFails => is_newest,
        Damaged::Fails => true,
    };
    // What the store refuses may be sound.
    fails || matches!(fault, ChainError::Store(_))
}

/// Takes what is wanted out of the generation that was chosen for it.
async fn take(
    store: &Store,
    spans: &[Span],
    Chosen { key, others, still_until }: Chosen<'_>,
    last: Option<Chain>,
    target: Target,
) -> Result<Choice, RestoreError> {
    let others: Vec<_> = others.into_iter().map(ToString::to_string).collect();
    let chain = match last.filter(|last| last.key == *key) {
        Some(last) => last,
        None => Reading::of(store, key).await?.showing(target)?,
    };
    let choice = Choice::of(chain, target, still_until)?;
    if choice.rewinds() {
        return Ok(Choice { seam: before_it(store, spans, &choice, &others).await?, ..choice });
    }
    if !others.is_empty() {
        tracing::warn!("what is wanted is also in {}; {key} is newer", others.join(", "));
    }
    Ok(choice)
}

/// Says that it comes out of a later snapshot, and finds what that has to show.
async fn before_it(
    store: &Store,
    spans: &[Span],
    Choice { chain, revision, seam: _ }: &Choice,
    others: &[String],
) -> Result<Option<Seam>, RestoreError> {
    let key = &chain.key;
    tracing::info!("revision {revision} lies before the full snapshot of {key}, and is taken out of its history");
    if !others.is_empty() {
        tracing::warn!("it may also be had from {}, by --generation", others.join(", "));
    }
    let Some(Span { key, head, last_events, .. }) = recorded_before(spans, &Span::from(chain), *revision) else {
        return Ok(None);
    };
    let recorded = Reading::of(store, key).await?;
    let hash = DataObject::new(store, key, recorded.sound().last_data())?.event_hash();
    Ok(hash.map(|hash| Seam { recorded: key.clone(), revision: *head, events: *last_events, hash }))
}

/// The generation that goes furthest, and that alone, so that the others take neither memory nor time. The one that began
/// last need not be it: an archive may go on in one beside which somebody has taken a snapshot.
async fn latest(store: &Store, keys: Vec<GenerationKey>, damaged: Damaged) -> Result<Option<Chain>, RestoreError> {
    let mut extents =
        stream::iter(keys).map(|key| async move { (Extent::read(store, &key).await, key) }).buffered(AT_ONCE);
    let (mut sound, mut unknown) = (Vec::new(), Vec::new());
    while let Some((extent, key)) = extents.next().await {
        match extent {
            Ok(extent) => sound.push((extent, key)),
            // Of one object: what can't be used at all is refused to who looks for what there is.
            Err(ChainError::Store(error @ StoreError::Refused { .. })) => unknown.push((key, error.into())),
            Err(error) => unknown.extend(fault(store, &key, error).await?.map(|fault| (key, fault))),
        }
    }
    sound.sort();
    let mut found: Option<Chain> = None;
    while found.is_none()
        && let Some((_, key)) = sound.pop()
    {
        match Reading::of(store, &key).await.map(|reading| reading.showing(Target::Latest)) {
            Ok(Ok(chain)) => found = Some(chain),
            Ok(Err(damage)) => pass_over(damage.into(), damaged)?,
            Err(error) => {
                if let Some(fault) = fault(store, &key, error).await? {
                    pass_over(fault, damaged)?;
                }
            }
        }
    }
    for (key, fault) in unknown {
        if may_go_further(store, &key, found.as_ref()).await?
            && let Err(fault) = pass_over(fault, damaged)
        {
            return Err(with_what_is_left(store, &key, fault).await);
        }
    }
    Ok(found)
}

/// The same of a generation that is damaged, with what can be restored of it, if anything can.
async fn with_what_is_left(store: &Store, key: &GenerationKey, fault: RestoreError) -> RestoreError {
    match (&fault, Reading::of(store, key).await.map(|reading| reading.showing(Target::Latest))) {
        (RestoreError::Chain(_), Ok(Err(damage))) => damage.into(),
        (_, Ok(_) | Err(_)) => fault,
    }
}

/// Whether a generation whose end can't be told may go further than the one that was found: it began later, or the names of
/// its deltas say so. Revisions of another cluster say nothing.
async fn may_go_further(store: &Store, key: &GenerationKey, found: Option<&Chain>) -> Result<bool, StoreError> {
    let Some(found) = found else { return Ok(true) };
    if key.name > found.key.name || key.cluster != found.key.cluster {
        return Ok(key.name > found.key.name);
    }
    Ok(last_delta(store, key).await? > Some(found.head()))
}

/// Of what is later than what is restored. What the store refuses may be sound.
fn pass_over(fault: RestoreError, damaged: Damaged) -> Result<(), RestoreError> {
    let is_refused = |fault: &ChainError| matches!(fault, ChainError::Store(_));
    let may_be_sound = matches!(&fault, RestoreError::Store(_))
        || matches!(&fault, RestoreError::BrokenOff(damage) if is_refused(&damage.fault));
    match damaged {
        Damaged::LeftOut if !may_be_sound => {
            tracing::warn!("left out: {fault}");
            Ok(())
        }
        Damaged::LeftOut | Damaged::NewestFails | Damaged::Fails => Err(fault),
    }
}

/// What there is to choose from.
#[derive(Default)]
struct Surveyed {
    /// How far each generation goes that has a sound full snapshot, as far as it is sound.
    spans: Vec<Span>,
    /// What is sound of the last of them, which is often the one.
    last: Option<Chain>,
    /// What is wrong with those that break off.
    faults: Vec<(GenerationKey, ChainError)>,
}

impl Surveyed {
    fn add(&mut self, reading: Reading) {
        let span = Span::from(&reading);
        let sound = match reading {
            Reading::Whole(chain) => chain,
            Reading::BrokenOff { sound, fault } => {
                tracing::warn!("not all of {} can be restored: {fault}", span.key);
                self.faults.push((span.key.clone(), fault));
                sound
            }
        };
        self.spans.push(span);
        self.last = Some(sound);
    }
}

/// Finds out how far each generation goes.
async fn survey(
    store: &Store,
    keys: Vec<GenerationKey>,
    wanted: &Wanted,
    damaged: Damaged,
) -> Result<Surveyed, RestoreError> {
    let (mut surveyed, mut newest_fault) = (Surveyed::default(), None);
    for key in keys {
        // Not held while the next one is read.
        drop(surveyed.last.take());
        match Reading::of(store, &key).await {
            Ok(reading) => {
                surveyed.add(reading);
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
        (Some(_), Damaged::LeftOut) | (None, _) => Ok(surveyed),
    }
}

/// What is wrong with a generation that can't be read; nothing, if it has just begun or is being deleted: it is no backup
/// then. One that has deltas was a backup.
async fn fault(store: &Store, key: &GenerationKey, error: ChainError) -> Result<Option<RestoreError>, StoreError> {
    match error {
        ChainError::Store(error) => Err(error),
        ChainError::NoFull(_) => Ok(has_deltas(store, key).await?.then(|| RestoreError::Headless(key.full()))),
        damage @ (ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. }) => {
            Ok(Some(damage.into()))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::format::Revision;
    use crate::format::tests::{generation, stored};
    use crate::store::tests::faulty::{Faulty, sound};

    pub const MODES: [Damaged; 3] = [Damaged::LeftOut, Damaged::NewestFails, Damaged::Fails];

    /// The generation that is found; where there is more than one to choose from, all of them.
    async fn found(store: &Store, target: Target, damaged: Damaged) -> Result<Vec<GenerationKey>, RestoreError> {
        let wanted = Wanted { lineage: generation(1).lineage, cluster: None, generation: None, target, manifest: None };
        let choice = find(store, &wanted, damaged).await?;
        if target == Target::Latest {
            return Ok(vec![choice.chain.key]);
        }
        let keys = generations(store, &wanted.lineage).await?;
        Ok(survey(store, keys, &wanted, damaged).await?.spans.into_iter().map(|span| span.key).collect())
    }

    pub async fn damage(store: &Store, key: &GenerationKey, delta: Option<u64>) {
        let manifest = delta.map_or_else(|| key.full(), |from| key.delta(Revision::new(from).unwrap()));
        store.delete(&manifest).await.unwrap();
        store.create(&manifest, "{".into()).await.unwrap();
    }

    #[tokio::test]
    async fn the_newest_state_takes_the_reads_of_one_generation_however_many_there_are() {
        let objects = Faulty::puts(&[]);
        let reads = Arc::clone(&objects.reads);
        let store = objects.store();
        store.prepare().await.unwrap();
        for day in 1..=9 {
            let ends: Vec<_> = (11..=60).map(|revision: u64| (revision, day * 1000 + revision.cast_signed())).collect();
            stored(&store, day * 1000, &ends).await;
        }
        let last = stored(&store, 10_000, &[(20, 10_010), (30, 10_020)]).await.key;
        for damaged in MODES {
            let before = reads.load(Ordering::SeqCst);
            assert_eq!(found(&store, Target::Latest, damaged).await.unwrap(), std::slice::from_ref(&last));
            // The format's, two of each generation, and of the last one all three and that which may follow.
            assert_eq!(reads.load(Ordering::SeqCst) - before, 1 + 2 * 10 + 4, "{damaged:?}");
        }
        let target = Target::Revision(Revision::new(60).unwrap());
        assert_eq!(found(&store, target, Damaged::LeftOut).await.unwrap().len(), 10);
    }

    #[tokio::test]
    async fn the_newest_state_is_where_the_record_went_on_and_not_where_the_last_snapshot_was_taken() {
        let store = sound();
        store.prepare().await.unwrap();
        let record = stored(&store, 100, &[(20, 110), (90, 500), (95, 510)]).await.key;
        stored(&store, 300, &[]).await;
        for damaged in MODES {
            assert_eq!(found(&store, Target::Latest, damaged).await.unwrap(), std::slice::from_ref(&record));
        }
    }

    #[tokio::test]
    async fn a_record_that_went_on_beside_a_later_snapshot_is_missed_also_if_its_end_can_not_be_told() {
        // The damaged delta is in its middle, and its last.
        for ends in [&[(20, 110), (90, 500), (95, 510)][..], &[(20, 110), (90, 500)]] {
            let store = sound();
            store.prepare().await.unwrap();
            let record = stored(&store, 100, ends).await.key;
            let snapshot = stored(&store, 300, &[]).await.key;
            damage(&store, &record, Some(21)).await;
            // The snapshot is not what it held.
            for damaged in [Damaged::NewestFails, Damaged::Fails] {
                let error = found(&store, Target::Latest, damaged).await.unwrap_err();
                assert!(error.to_string().contains("00000000000000000021 is damaged"), "{error}");
            }
            assert_eq!(found(&store, Target::Latest, Damaged::LeftOut).await.unwrap(), [snapshot]);
        }
    }

    #[tokio::test]
    async fn damage_to_what_is_older_than_the_newest_state_is_in_nobodys_way() {
        let store = sound();
        store.prepare().await.unwrap();
        for (second, delta) in [(100, None), (200, Some(11)), (300, Some(21))] {
            let key = stored(&store, second, &[(20, second + 10), (30, second + 20)]).await.key;
            damage(&store, &key, delta).await;
        }
        let last = stored(&store, 400, &[(20, 410), (40, 420)]).await.key;
        for damaged in MODES {
            assert_eq!(found(&store, Target::Latest, damaged).await.unwrap(), std::slice::from_ref(&last));
        }
        // One of which not even the end is known, and that has begun later.
        let unknown = stored(&store, 500, &[(20, 510)]).await.key;
        damage(&store, &unknown, Some(11)).await;
        for damaged in [Damaged::NewestFails, Damaged::Fails] {
            let error = found(&store, Target::Latest, damaged).await.unwrap_err();
            assert!(error.to_string().contains(unknown.name.as_str()), "{error}");
        }
        assert_eq!(found(&store, Target::Latest, Damaged::LeftOut).await.unwrap(), [last]);
    }

    #[tokio::test]
    async fn an_older_object_that_the_store_refuses_is_in_nobodys_way() {
        let objects = Faulty::puts(&[]);
        let refused = Arc::clone(&objects.refused);
        let store = objects.store();
        store.prepare().await.unwrap();
        let older = stored(&store, 100, &[(20, 110)]).await.key;
        let last = stored(&store, 200, &[(30, 210)]).await.key;
        *refused.lock().unwrap() = Some(older.full().to_string());
        for damaged in MODES {
            assert_eq!(found(&store, Target::Latest, damaged).await.unwrap(), std::slice::from_ref(&last));
        }
        *refused.lock().unwrap() = Some(last.full().to_string());
        for damaged in MODES {
            let error = found(&store, Target::Latest, damaged).await.unwrap_err();
            assert!(matches!(error, RestoreError::Store(StoreError::Refused { .. })), "{error}");
        }
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
            let next = stored(&store, 400, &[(40, 410)]).await.key;
            for damaged in MODES {
                assert!(found(&store, target, damaged).await.unwrap().ends_with(std::slice::from_ref(&next)));
            }
        }
    }
}
