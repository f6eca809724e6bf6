//! Generations that break off: what comes before the damage is restored, and nothing older in the stead of what was lost.

use std::sync::Arc;

use jiff::Timestamp;

use super::tests::{MODES, damage};
use super::*;
use crate::format::tests::{at, generation, stored};
use crate::format::{Full, Nonce, Revision, commit};
use crate::store::tests::faulty::{Faulty, sound};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn to(number: u64) -> Target {
    Target::Revision(revision(number))
}

fn time(second: i64) -> Target {
    Target::Time(at(second))
}

/// The generation that is restored, by when it began, and up to where; or what is said.
async fn restored(
    store: &Store,
    generation_: Option<&GenerationKey>,
    target: Target,
    damaged: Damaged,
) -> Result<(i64, u64), RestoreError> {
    let generation_ = generation_.map(|key| key.name.clone());
    let wanted =
        Wanted { lineage: generation(1).lineage, cluster: None, generation: generation_, target, manifest: None };
    let choice = find(store, &wanted, damaged).await?;
    Ok((choice.chain.key.name.moment().as_second(), choice.revision.get()))
}

/// What is said of a damaged delta that begins with this revision, and of what comes before it.
fn is_told(told: Result<(i64, u64), RestoreError>, from: u64, head: u64, until: Option<i64>) {
    let error = told.unwrap_err();
    assert!(matches!(error, RestoreError::BrokenOff(_)), "{error}");
    let said = error.to_string();
    let times = until.map(|second| format!(", and times up to {}", at(second)));
    assert!(said.contains(&format!("m/{from:020}")), "{said}");
    assert!(said.contains(&format!("revisions 1 to {head} of")), "{said}");
    assert!(said.ends_with(&format!("can be restored{}", times.unwrap_or_default())), "{said}");
}

#[tokio::test]
async fn what_comes_before_the_damage_is_restored_and_what_comes_after_is_an_error_that_says_how_far() {
    for missing in [false, true] {
        let store = sound();
        store.prepare().await.unwrap();
        let key = stored(&store, 100, &[(20, 110), (30, 120), (40, 130), (50, 140)]).await.key;
        if missing {
            store.delete(&key.delta(revision(31))).await.unwrap();
        } else {
            damage(&store, &key, Some(31)).await;
        }
        for (mode, named) in MODES.into_iter().flat_map(|mode| [(mode, None), (mode, Some(&key))]) {
            for wanted in [5, 10, 15, 20, 30] {
                assert_eq!(restored(&store, named, to(wanted), mode).await.unwrap(), (100, wanted), "{mode:?}");
            }
            for (second, wanted) in [(100, 10), (105, 10), (110, 20)] {
                assert_eq!(restored(&store, named, time(second), mode).await.unwrap(), (100, wanted), "{mode:?}");
            }
            for beyond in [to(31), to(45), to(999), time(111), time(120), time(135), time(999)] {
                is_told(restored(&store, named, beyond, mode).await, 31, 30, Some(110));
            }
            let early = restored(&store, named, time(99), mode).await.unwrap_err();
            assert!(matches!(early, RestoreError::Choice(ChoiceError::TooEarly { .. })), "{early}");
        }
        for mode in MODES {
            is_told(restored(&store, Some(&key), Target::Latest, mode).await, 31, 30, Some(110));
        }
        for mode in [Damaged::NewestFails, Damaged::Fails] {
            is_told(restored(&store, None, Target::Latest, mode).await, 31, 30, Some(110));
        }
        let nothing = restored(&store, None, Target::Latest, Damaged::LeftOut).await.unwrap_err();
        assert!(matches!(nothing, RestoreError::Choice(ChoiceError::Nothing)), "{nothing}");
    }
}

#[tokio::test]
async fn a_snapshot_is_restored_whatever_has_become_of_what_went_on_from_it() {
    let store = sound();
    store.prepare().await.unwrap();
    let chain = stored(&store, 100, &[(20, 110), (30, 120)]).await;
    damage(&store, &chain.key, Some(11)).await;
    let manifest = Some(chain.full_hash);
    let wanted = |target, manifest| Wanted {
        lineage: chain.key.lineage.clone(),
        cluster: Some(chain.key.cluster.clone()),
        generation: Some(chain.key.name.clone()),
        target,
        manifest,
    };
    for mode in MODES {
        let choice = find(&store, &wanted(to(10), manifest), mode).await.unwrap();
        assert_eq!((choice.revision, choice.chain.links.len()), (revision(10), 0));
        is_told(find(&store, &wanted(to(11), manifest), mode).await.map(|_| (0, 0)), 11, 10, None);
        let early = find(&store, &wanted(time(99), manifest), mode).await.unwrap_err();
        assert!(matches!(early, RestoreError::Choice(ChoiceError::TooEarly { .. })), "{early}");
        // More may be told to have been there by then.
        is_told(find(&store, &wanted(time(100), manifest), mode).await.map(|_| (0, 0)), 11, 10, None);
    }
}

#[tokio::test]
async fn of_two_manifests_that_do_not_fit_neither_is_restored() {
    let store = sound();
    store.prepare().await.unwrap();
    let chain = stored(&store, 100, &[(20, 110), (30, 120), (40, 130)]).await;
    let mut other = chain.links[1].delta.clone();
    other.header.writer = Nonce::random();
    store.delete(&chain.key.delta(revision(21))).await.unwrap();
    commit(&store, &chain.key.delta(revision(21)), other.write()).await.unwrap();
    for mode in MODES {
        assert_eq!(restored(&store, None, to(20), mode).await.unwrap(), (100, 20));
        is_told(restored(&store, None, to(21), mode).await, 31, 20, Some(100));
    }
}

#[tokio::test]
async fn what_the_store_refuses_to_show_keeps_what_comes_before_it_from_nobody() {
    let objects = Faulty::puts(&[]);
    let refused = Arc::clone(&objects.refused);
    let store = objects.store();
    store.prepare().await.unwrap();
    let key = stored(&store, 100, &[(20, 110), (30, 120)]).await.key;
    let older = stored(&store, 50, &[(60, 60)]).await.key;
    *refused.lock().unwrap() = Some(key.delta(revision(21)).to_string());
    for mode in MODES {
        assert_eq!(restored(&store, None, to(20), mode).await.unwrap(), (100, 20));
        assert_eq!(restored(&store, Some(&older), to(30), mode).await.unwrap(), (50, 30));
        // It may be sound, so nothing else is restored in its stead.
        for target in [to(30), Target::Latest] {
            let error = restored(&store, None, target, mode).await.unwrap_err().to_string();
            assert!(error.contains("refuses the credentials"), "{error}");
        }
    }
}

#[tokio::test]
async fn what_a_listing_leaves_out_before_what_is_refused_is_restored_as_well() {
    let objects = Faulty::puts(&[]);
    let (refused, unlisted) = (Arc::clone(&objects.refused), Arc::clone(&objects.unlisted));
    let store = objects.store();
    store.prepare().await.unwrap();
    let key = stored(&store, 100, &[(20, 110), (40, 120), (60, 130)]).await.key;
    unlisted.lock().unwrap().push(key.delta(revision(21)).to_string());
    *refused.lock().unwrap() = Some(key.delta(revision(41)).to_string());
    for mode in MODES {
        assert_eq!(restored(&store, None, to(40), mode).await.unwrap(), (100, 40));
    }
}

#[tokio::test]
async fn an_older_state_is_no_stand_in_for_what_may_be_in_what_is_lost() {
    let store = sound();
    store.prepare().await.unwrap();
    stored(&store, 100, &[(20, 110), (50, 120)]).await;
    let broken = stored(&store, 200, &[(20, 210), (30, 220), (40, 230)]).await.key;
    damage(&store, &broken, Some(31)).await;
    // It is sure to be in the sound one, or in what is sound of the other.
    for mode in MODES {
        assert_eq!(restored(&store, None, to(5), mode).await.unwrap(), (200, 5));
        assert_eq!(restored(&store, None, to(25), mode).await.unwrap(), (200, 25));
        assert_eq!(restored(&store, None, time(115), mode).await.unwrap(), (100, 20));
        assert_eq!(restored(&store, None, time(205), mode).await.unwrap(), (200, 10));
        // What is between the two was not recorded, and that the older one ends before it does not tell what is in this one.
        is_told(restored(&store, None, time(215), mode).await, 31, 30, Some(210));
        is_told(restored(&store, None, to(51), mode).await, 31, 30, Some(210));
        let between = restored(&store, None, time(150), mode).await.unwrap_err();
        assert!(matches!(between, RestoreError::Choice(ChoiceError::NotRecorded { .. })), "{between}");
    }
    // Both may have it, and the newer one comes first.
    for mode in [Damaged::NewestFails, Damaged::Fails] {
        is_told(restored(&store, None, to(35), mode).await, 31, 30, Some(210));
    }
    assert_eq!(restored(&store, None, to(35), Damaged::LeftOut).await.unwrap(), (100, 35));
    // Another one has begun since; that it is the newest is no more the matter.
    stored(&store, 300, &[(20, 310)]).await;
    for mode in [Damaged::LeftOut, Damaged::NewestFails] {
        assert_eq!(restored(&store, None, to(35), mode).await.unwrap(), (100, 35));
    }
    is_told(restored(&store, None, to(35), Damaged::Fails).await, 31, 30, Some(210));
    for mode in MODES {
        assert_eq!(restored(&store, None, to(15), mode).await.unwrap(), (300, 15));
    }
}

#[tokio::test]
async fn a_snapshot_that_was_taken_beside_the_record_tells_nothing_of_what_the_record_has_lost() {
    let store = sound();
    store.prepare().await.unwrap();
    let record = stored(&store, 200, &[(20, 210), (30, 220), (40, 230)]).await.key;
    damage(&store, &record, Some(31)).await;
    stored(&store, 205, &[]).await;
    for mode in MODES {
        assert_eq!(restored(&store, None, time(205), mode).await.unwrap(), (205, 10));
        assert_eq!(restored(&store, None, time(210), mode).await.unwrap(), (200, 20));
        is_told(restored(&store, None, time(215), mode).await, 31, 30, Some(210));
    }
    // Another one that began later and goes as far is as good for what came then, whatever this one has lost.
    stored(&store, 240, &[(60, 250), (70, 260)]).await;
    for mode in MODES {
        assert_eq!(restored(&store, None, time(255), mode).await.unwrap(), (240, 60));
        assert_eq!(restored(&store, None, to(65), mode).await.unwrap(), (240, 65));
    }
}

/// Begins a generation with this full snapshot, whose last revision has these events.
async fn begun(store: &Store, second: i64, first: u64, of: Option<&Chain>) {
    let chain = stored(store, second, &[]).await;
    let last_events = of.map_or(chain.full.last_events, Chain::last_events);
    let full = Full { revision: revision(first), last_events, ..chain.full };
    store.delete(&chain.key.full()).await.unwrap();
    commit(store, &chain.key.full(), full.write()).await.unwrap();
}

#[tokio::test]
async fn that_the_next_one_begins_where_the_sound_part_ends_tells_nothing_of_what_was_between() {
    let store = sound();
    store.prepare().await.unwrap();
    let mut chain = stored(&store, 100, &[(20, 110), (30, 120), (40, 150)]).await;
    damage(&store, &chain.key, Some(31)).await;
    chain.links.pop();
    // By the sound part alone nothing was written from 120 on.
    begun(&store, 200, 30, Some(&chain)).await;
    // Of this one as well, by when it was taken.
    let late = Timestamp::from_millisecond(120_500).unwrap();
    for mode in MODES {
        for beyond in [time(120), Target::Time(late), time(160)] {
            is_told(restored(&store, None, beyond, mode).await, 31, 30, Some(110));
        }
        assert_eq!(restored(&store, None, time(200), mode).await.unwrap(), (200, 30));
    }
}

#[tokio::test]
async fn what_is_lost_of_the_record_comes_out_of_a_later_snapshot_only_for_who_is_there_to_read_the_warning() {
    let store = sound();
    store.prepare().await.unwrap();
    let chain = stored(&store, 100, &[(20, 110), (30, 120), (40, 130)]).await;
    damage(&store, &chain.key, Some(31)).await;
    begun(&store, 200, 80, None).await;
    let wanted =
        Wanted { lineage: generation(1).lineage, cluster: None, generation: None, target: to(35), manifest: None };
    for mode in [Damaged::LeftOut, Damaged::NewestFails] {
        let choice = find(&store, &wanted, mode).await.unwrap();
        let seam = choice.seam.unwrap();
        assert_eq!(
            (seam.recorded, seam.revision, seam.events),
            (chain.key.clone(), revision(30), chain.links[1].delta.last_events)
        );
        assert_eq!((choice.chain.key.name.moment(), choice.revision), (at(200), revision(35)));
    }
    is_told(restored(&store, None, to(35), Damaged::Fails).await, 31, 30, Some(110));
    assert_eq!(restored(&store, None, to(25), Damaged::Fails).await.unwrap(), (100, 25));
}

#[tokio::test]
async fn a_moment_that_a_clock_may_have_held_up_beyond_the_damage_is_not_known() {
    let store = sound();
    store.prepare().await.unwrap();
    // All that came from 110 on is told to be of 500.
    let ends = [(20, 110), (30, 500), (35, 500), (40, 500), (50, 510)];
    let key = stored(&store, 100, &ends).await.key;
    damage(&store, &key, Some(36)).await;
    for mode in MODES {
        assert_eq!(restored(&store, None, time(110), mode).await.unwrap(), (100, 20));
        for unknown in [time(111), time(499), time(500)] {
            is_told(restored(&store, None, unknown, mode).await, 36, 35, Some(110));
        }
    }
}

#[tokio::test]
async fn the_newest_state_is_never_what_is_left_of_a_generation() {
    let store = sound();
    store.prepare().await.unwrap();
    let older = stored(&store, 100, &[(20, 110)]).await.key;
    let broken = stored(&store, 200, &[(20, 210), (30, 220), (40, 230)]).await.key;
    for delta in [21, 31] {
        damage(&store, &broken, Some(delta)).await;
        for mode in [Damaged::NewestFails, Damaged::Fails] {
            let error = restored(&store, None, Target::Latest, mode).await.unwrap_err();
            assert!(matches!(error, RestoreError::BrokenOff(_)), "{error}");
        }
        let left = restored(&store, None, Target::Latest, Damaged::LeftOut).await.unwrap();
        assert_eq!(left, (older.name.moment().as_second(), 20));
    }
}
