//! The recorder against events that are made up: what is closed, when, and what is refused.

use etcd_client::proto::PbKeyValue;
use proptest::prelude::*;

use super::*;

fn at(millisecond: i64) -> Timestamp {
    Timestamp::from_millisecond(millisecond).unwrap()
}

fn event(revision: i64, key: &str, kind: i32) -> PbEvent {
    let kv = PbKeyValue { key: key.into(), mod_revision: revision, lease: 7, ..PbKeyValue::default() };
    PbEvent { r#type: kind, kv: Some(kv), prev_kv: None }
}

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn new(head: u64) -> Recorder {
    Recorder::new(revision(head), Hash::of(&[]), EventHash::Plain)
}

#[test]
fn a_revision_too_large_to_be_held_is_told_in_bounded_memory() {
    let mut recorder = new(10);
    let key = "k".repeat(1 << 20);
    let fault = (0..).find_map(|_| recorder.event(event(11, &key, DELETE), at(0)).err());
    assert!(matches!(fault, Some(Fault::Large(11))), "{fault:?}");
    assert!((MOST_OPEN..MOST_OPEN + (2 << 20)).contains(&recorder.bytes()));
}

#[test]
fn a_head_is_proved_and_not_held_however_large_it_is() {
    let key = "k".repeat(1 << 20);
    let events: Vec<_> = (0..).take((MOST_OPEN >> 20) + 1).map(|_| event(11, &key, 0)).collect();
    let hash = {
        let mut records = Vec::new();
        for (sub, event) in (0..).zip(&events) {
            let key = BucketKey { main: 11, sub, tombstone: false };
            let value = event.kv.as_ref().unwrap().encode_to_vec();
            write_record(&mut records, Record { key, value: &value }).unwrap();
        }
        Hash::of(&records)
    };
    let mut recorder = Recorder::new(revision(11), hash, EventHash::Plain);
    for event in events {
        recorder.event(event, at(0)).unwrap();
        assert_eq!(recorder.bytes(), 0);
    }
    recorder.progress(11).unwrap();
    assert!(recorder.proved());
}

#[test]
fn what_is_held_is_not_told_to_have_come_before_what_another_has_recorded() {
    let mut recorder = new(10);
    for (revision, now) in [(11, 1_000), (12, 2_000), (13, 9_000)] {
        recorder.event(event(revision, "a", 0), at(now)).unwrap();
        recorder.progress(revision.unsigned_abs()).unwrap();
    }
    let other = hash_of(&[event(11, "a", 0)], 11);
    recorder.forget(revision(11), other).unwrap();
    recorder.not_before(at(5_000));
    let samples = recorder.take().unwrap().samples;
    let told: Vec<_> = samples.iter().map(|sample| (sample.at.as_millisecond(), sample.revision.get())).collect();
    assert_eq!(told, [(5_000, 12), (9_000, 13)]);
}

#[test]
fn a_clock_that_is_set_back_puts_no_moment_out_of_order() {
    for (clock, moments) in [
        ([5_000, 5_400, 3_900], vec![5_000, 5_400]),
        ([5_000, 3_900, 7_000], vec![5_000, 7_000]),
        ([500, 1_000, 6_000], vec![4_000, 6_000]),
    ] {
        let mut recorder = new(10);
        recorder.not_before(at(4_000));
        for (revision, now) in (11..).zip(clock) {
            recorder.event(event(revision, "a", 0), at(now)).unwrap();
            recorder.progress(revision.unsigned_abs()).unwrap();
        }
        let samples = recorder.take().unwrap().samples;
        assert!(samples.is_sorted_by_key(|sample| sample.at), "{samples:?}");
        let mut told: Vec<_> = samples.iter().map(|sample| sample.at.as_millisecond()).collect();
        told.dedup();
        assert_eq!(told, moments, "{clock:?}");
        assert_eq!(samples.last().map(|sample| sample.revision), Some(revision(13)));
    }
}

#[test]
fn what_came_while_another_generation_was_recorded_into_keeps_its_moments_and_goes_beyond_that() {
    let mut recorder = new(10);
    recorder.not_before(at(1_000));
    recorder.goes_beyond(Some(Sample { at: at(60_000), revision: revision(14) }));
    let mut taken = |events: &[(i64, i64)]| {
        for (revision, now) in events {
            recorder.event(event(*revision, "a", 0), at(*now)).unwrap();
            recorder.progress(revision.unsigned_abs()).unwrap();
        }
        let samples = recorder.take().unwrap().samples;
        samples.iter().map(|sample| (sample.at.as_millisecond(), sample.revision.get())).collect::<Vec<_>>()
    };
    assert_eq!(taken(&[(11, 500), (12, 3_000)]), [(1_000, 11), (3_000, 12)]);
    assert_eq!(taken(&[(13, 20_000), (14, 40_000)]), [(20_000, 13), (60_000, 14)]);
    assert_eq!(taken(&[(15, 50_000)]), [(60_000, 15)], "moments don't go back");
    assert_eq!(taken(&[(16, 70_000), (17, 80_000)]), [(70_000, 16), (80_000, 17)]);
}

#[test]
fn a_revision_is_of_the_moment_at_which_it_came_however_late_it_is_closed() {
    let mut recorder = new(10);
    recorder.event(event(11, "a", 0), at(1_000)).unwrap();
    recorder.event(event(11, "b", 0), at(1_500)).unwrap();
    recorder.event(event(12, "a", 0), at(60_000)).unwrap();
    recorder.progress(12).unwrap();
    let samples = recorder.take().unwrap().samples;
    let told: Vec<_> = samples.iter().map(|sample| (sample.at.as_millisecond(), sample.revision.get())).collect();
    assert_eq!(told, [(1_500, 11), (60_000, 12)]);
}

#[test]
fn only_what_is_closed_is_taken() {
    let mut recorder = new(10);
    assert_eq!(recorder.watch_from(), revision(11));
    assert_eq!(recorder.event(event(11, "a", 0), at(0)).unwrap(), Some(7));
    assert_eq!(recorder.event(event(11, "b", DELETE), at(0)).unwrap(), None);
    assert_eq!(recorder.take(), None);
    recorder.progress(10).unwrap();
    assert_eq!(recorder.take(), None);
    recorder.event(event(12, "a", 0), at(1)).unwrap();
    let batch = recorder.take().unwrap();
    assert_eq!((batch.from, batch.to, batch.events), (revision(11), revision(11), 2));
    assert_eq!(batch.last_events, Hash::of(&batch.records));
    recorder.progress(12).unwrap();
    let batch = recorder.take().unwrap();
    assert_eq!((batch.from, batch.to, batch.events), (revision(12), revision(12), 1));
    assert_eq!((recorder.take(), recorder.bytes()), (None, 0));
}

#[test]
fn the_head_is_proved_and_not_recorded_again() {
    let mut first = new(10);
    first.event(event(11, "a", 0), at(0)).unwrap();
    first.progress(11).unwrap();
    let batch = first.take().unwrap();

    let mut same = Recorder::new(revision(11), batch.last_events, EventHash::Plain);
    assert_eq!((same.watch_from(), same.proved()), (revision(11), false));
    same.event(event(11, "a", 0), at(0)).unwrap();
    same.event(event(12, "a", 0), at(0)).unwrap();
    assert!(same.proved());
    same.progress(12).unwrap();
    assert_eq!(same.take().unwrap().from, revision(12));

    let mut other = Recorder::new(revision(11), batch.last_events, EventHash::Plain);
    other.event(event(11, "b", 0), at(0)).unwrap();
    assert!(matches!(other.progress(11), Err(Fault::Forked(_))));
    let mut gone = Recorder::new(revision(11), batch.last_events, EventHash::Plain);
    assert!(matches!(gone.event(event(12, "a", 0), at(0)), Err(Fault::Forked(_))));
}

#[test]
fn what_a_full_snapshot_holds_is_not_recorded_again() {
    let mut first = new(10);
    first.event(event(11, "a", 0), at(0)).unwrap();
    first.progress(11).unwrap();
    let hash = first.take().unwrap().last_events;
    // Events before the snapshot's last, that one, and then others.
    let mut recorder = Recorder::after_full(revision(11), (hash, EventHash::Plain), revision(9));
    for number in 9..14 {
        recorder.event(event(number, "a", 0), at(0)).unwrap();
    }
    let batch = recorder.take().unwrap();
    assert_eq!((batch.from, batch.to), (revision(12), revision(12)));
    // Nothing came between: the watch begins behind it.
    let mut recorder = Recorder::after_full(revision(11), (hash, EventHash::Plain), revision(12));
    recorder.event(event(12, "a", 0), at(0)).unwrap();
    // Something came, and the snapshot's last is not as the watch shows it.
    let mut recorder = Recorder::after_full(revision(11), (hash, EventHash::Plain), revision(10));
    recorder.event(event(10, "a", 0), at(0)).unwrap();
    recorder.event(event(11, "b", 0), at(0)).unwrap();
    assert!(matches!(recorder.progress(11), Err(Fault::Forked(_))));
}

#[test]
fn a_gap_and_a_step_back_are_faults() {
    for wrong in [10, 11, 13] {
        let mut recorder = new(10);
        recorder.event(event(11, "a", 0), at(0)).unwrap();
        recorder.progress(11).unwrap();
        assert!(matches!(recorder.event(event(wrong, "a", 0), at(0)), Err(Fault::Order { .. })), "{wrong}");
    }
    assert!(matches!(new(10).event(event(12, "a", 0), at(0)), Err(Fault::Order { expected: 11, found: 12 })));
    assert!(matches!(new(1).event(PbEvent::default(), at(0)), Err(Fault::Empty)));
}

/// Events of revisions 11 to 30, some of which have several.
fn history() -> Vec<PbEvent> {
    let events = |number: i64| (0..=number % 3).map(move |at| event(number, &format!("{number}/{at}"), 0));
    (11..=30).flat_map(events).collect()
}

fn hash_of(events: &[PbEvent], revision: u64) -> Hash {
    let mut recorder = new(revision - 1);
    for event in events.iter().filter(|event| event.kv.as_ref().unwrap().mod_revision.cast_unsigned() == revision) {
        recorder.event(event.clone(), at(0)).unwrap();
    }
    recorder.progress(revision).unwrap();
    recorder.take().unwrap().last_events
}

proptest! {
    /// Whoever forgets what another has recorded ends with the same as whoever begins after it, whenever that is.
    #[test]
    fn what_another_recorded_goes_and_the_rest_stays(came in 0_usize..40, to in 11_u64..30, closes: bool) {
        let events = history();
        let mut recorder = new(10);
        let (before, after) = events.split_at(came.min(events.len()));
        for event in before {
            recorder.event(event.clone(), at(0)).unwrap();
        }
        if closes && let Some(last) = before.last() && after.first().is_none_or(|next| {
            next.kv.as_ref().unwrap().mod_revision != last.kv.as_ref().unwrap().mod_revision
        }) {
            recorder.progress(last.kv.as_ref().unwrap().mod_revision.cast_unsigned()).unwrap();
        }
        recorder.forget(revision(to), hash_of(&events, to)).unwrap();
        for event in after {
            recorder.event(event.clone(), at(0)).unwrap();
        }
        recorder.progress(30).unwrap();
        let kept = recorder.take().unwrap();
        let mut late = new(to);
        for event in events.iter().filter(|one| one.kv.as_ref().unwrap().mod_revision.cast_unsigned() > to) {
            late.event(event.clone(), at(0)).unwrap();
        }
        late.progress(30).unwrap();
        let samples = kept.samples.clone();
        prop_assert!(samples.iter().all(|sample| sample.revision > revision(to)));
        prop_assert_eq!(samples.last().map(|sample| sample.revision), Some(revision(30)));
        prop_assert_eq!(kept, Batch { samples, ..late.take().unwrap() });
        prop_assert_eq!(recorder.bytes(), 0);
    }

    /// Also if it comes to light only later.
    #[test]
    fn what_another_recorded_otherwise_is_another_history(came in 0_usize..40, to in 11_u64..30) {
        let events = history();
        let mut recorder = new(10);
        let mut other = events.clone();
        for event in &mut other {
            event.kv.as_mut().unwrap().key.push(b'x');
        }
        let mut faults = 0;
        for (number, event) in events.iter().enumerate() {
            if number == came {
                faults += u32::from(recorder.forget(revision(to), hash_of(&other, to)).is_err());
            }
            faults += u32::from(matches!(recorder.event(event.clone(), at(0)), Err(Fault::Forked(_))));
        }
        if came < events.len() {
            prop_assert!(faults > 0);
        }
    }
}

#[test]
fn samples_are_thinned_to_seconds_and_end_with_the_last_revision() {
    let mut recorder = new(0);
    for number in 1..=5000 {
        recorder.event(event(number, "a", 0), at(number)).unwrap();
    }
    recorder.progress(5000).unwrap();
    let samples = recorder.take().unwrap().samples;
    assert!((5..=8).contains(&samples.len()), "{samples:?}");
    assert_eq!(samples.last().map(|sample| sample.revision), Some(revision(5000)));
    assert!(samples.is_sorted_by(|one, next| one.at <= next.at && one.revision < next.revision));
}
