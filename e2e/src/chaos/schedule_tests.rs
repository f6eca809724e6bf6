//! Schedules of many seeds: what they have, what a cluster is never asked for, and that a seed is one schedule.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const VERSION: &str = "3.6.16";

#[test]
fn three_minutes_have_most_kinds_of_faults() {
    for seed in 0..20 {
        let schedule = Schedule::generate(seed, Duration::from_mins(3), VERSION);
        let kinds: BTreeSet<_> = schedule.events.iter().map(|event| event.fault.name()).collect();
        assert!(kinds.len() >= 12, "seed {seed} has only {kinds:?}");
        assert!(schedule.events.len() >= 30, "seed {seed} has only {} faults", schedule.events.len());
    }
}

#[test]
fn versions_go_up_by_one_minor() {
    let versions = ["3.5.20", "3.6.16", "3.7.3", "x"];
    assert_eq!(versions.map(next), [Some("3.6.16"), Some("3.7.3"), None, None]);
    assert_eq!(versions.map(previous), [None, Some("3.5.35"), Some("3.6.16"), None]);
}

#[test]
fn a_seed_has_the_schedule_that_it_always_had() {
    let schedule = Schedule::generate(1, Duration::from_mins(3), VERSION);
    let told: Vec<String> = schedule.events.iter().map(|event| format!("{} {}", event.at, event.fault)).collect();
    assert_eq!((schedule.snapshot_count, told.len()), (2000, 53));
    assert_eq!(told[..2], ["4501 delete pods Follower(1) by force", "9270 cut operator for 2.1 s"]);
    assert_eq!(told[51..], ["175680 roll CpuMillis(14)", "179248 kill operators all"]);
}

#[test]
fn a_run_that_stays_has_faults_of_all_other_kinds() {
    for version in Etcd::SUPPORTED.map(Etcd::version) {
        for seed in 0..20 {
            let schedule = Schedule::staying(seed, Duration::from_mins(3), version);
            let kinds: BTreeSet<_> = schedule.events.iter().map(|event| event.fault.name()).collect();
            assert!(schedule.stays && !schedule.events.iter().any(|event| event.fault.changes_version()));
            assert!(kinds.len() >= 12, "seed {seed} has only {kinds:?}");
        }
    }
}

#[test]
fn most_runs_that_begin_with_the_last_minor_turn_back_from_the_one_below() {
    let turns = |seed| {
        let events = Schedule::generate(seed, Duration::from_mins(3), "3.7.3").events.into_iter();
        events.map(|event| event.fault).filter(Fault::changes_version).collect::<Vec<_>>()
    };
    let all: Vec<_> = (0..20).map(turns).collect();
    let down = |fault: &Fault| matches!(fault, Fault::TurnBack { to, back, .. } if to == "3.6.16" && back == "3.7.3");
    assert!(all.iter().flatten().all(down), "{all:?}");
    assert!(all.iter().filter(|turns| !turns.is_empty()).count() >= 15, "{all:?}");
}

#[test]
fn a_run_that_goes_down_does_so_minor_by_minor_among_other_faults() {
    for seed in 0..20 {
        let schedule = Schedule::going_down(seed, Duration::from_mins(3));
        let changes = || schedule.events.iter().filter(|event| event.fault.changes_version());
        let told: Vec<_> = changes().map(|event| format!("{} {}", event.at, event.fault)).collect();
        assert_eq!((schedule.version.as_str(), schedule.stays), ("3.7.3", false));
        assert_eq!(told, ["30000 upgrade to 3.6.16", "90000 upgrade to 3.5.35"]);
        for change in changes() {
            let others = schedule.events.iter().filter(|other| *other != change);
            assert!(others.clone().all(|other| apart(change, other)), "seed {seed}");
            assert!(others.filter(|other| other.at > change.at).count() >= 10, "seed {seed} has no faults on its way");
        }
        assert!(schedule.events.is_sorted_by_key(|event| event.at), "seed {seed}");
    }
}

#[test]
fn an_hour_of_staying_has_faults_to_its_end() {
    for seed in 0..5 {
        let schedule = Schedule::staying(seed, Duration::from_hours(1), "3.5.35");
        let last_minutes = schedule.events.iter().filter(|event| event.begins() >= Duration::from_mins(55));
        assert!(last_minutes.count() >= 40, "seed {seed} runs out of faults");
    }
}

#[test]
fn a_schedule_that_does_not_say_whether_it_stays_does_not() {
    let text = r#"{"seed":1,"length":2,"version":"3.6.16","snapshotCount":300,"events":[]}"#;
    assert!(!serde_json::from_str::<Schedule>(text).unwrap().stays);
}

#[test]
fn volumes_are_lost_far_from_changes_of_the_spec() {
    let events = vec![
        Event { at: 60_000, fault: Fault::Scale { replicas: 5 } },
        Event { at: 70_000, fault: Fault::KillOperators { all: true } },
        Event { at: 100_000, fault: Fault::Hibernate { millis: 10_000 } },
    ];
    let schedule = Schedule { events, ..Schedule::generate(1, Duration::from_mins(3), VERSION) };
    let room = |millis| schedule.has_room_for_a_loss(Duration::from_millis(millis));
    assert!([0, 46_000, 80_000, 86_000, 130_000].into_iter().all(room));
    assert!(![46_001, 60_000, 79_999, 86_001, 105_000, 129_999].into_iter().any(room));
}

#[test]
fn most_runs_that_can_go_up_do() {
    let upgrades = |version: &str| {
        let schedules = (0..20).map(|seed| Schedule::generate(seed, Duration::from_mins(3), version));
        let changed = |schedule: &Schedule| schedule.events.iter().any(|event| event.fault.changes_version());
        schedules.filter(changed).count()
    };
    assert!(upgrades("3.5.35") >= 15 && upgrades("3.6.16") >= 15);
}

#[test]
fn another_seed_is_another_schedule() {
    let all: BTreeSet<String> =
        (0..50).map(|seed| format!("{:?}", Schedule::generate(seed, Duration::from_mins(1), VERSION).events)).collect();
    assert_eq!(all.len(), 50);
}

#[test]
fn a_schedule_of_some_events_ends_with_them() {
    let whole = Schedule::generate(7, Duration::from_mins(3), VERSION);
    let some = whole.with_only(whole.events[..2].to_vec());
    assert_eq!(some.lasts(), whole.events[..2].iter().map(Event::ends).max().unwrap());
    assert_eq!(whole.with_only(vec![]).lasts(), Duration::ZERO);
}

proptest! {
    #[test]
    fn a_schedule_is_a_function_of_its_seed_and_survives_its_file(seed: u64, secs in 0_u64..600) {
        let schedule = Schedule::generate(seed, Duration::from_secs(secs), VERSION);
        prop_assert_eq!(&schedule, &Schedule::generate(seed, Duration::from_secs(secs), VERSION));
        let text = serde_json::to_string(&schedule).unwrap();
        prop_assert_eq!(serde_json::from_str::<Schedule>(&text).unwrap(), schedule);
    }

    #[test]
    fn a_schedule_asks_for_nothing_that_a_cluster_can_not_take(seed: u64) {
        let schedule = Schedule::generate(seed, Duration::from_mins(10), "3.5.35");
        let (mut size, mut version) = (FIRST_SIZE, schedule.version.clone());
        for (index, event) in schedule.events.iter().enumerate() {
            prop_assert!(event.ends() <= schedule.lasts());
            prop_assert!(index == 0 || schedule.events[index - 1].at <= event.at);
            prop_assert!(schedule.events[..index].iter().all(|earlier| apart(earlier, event)));
            match &event.fault {
                Fault::Scale { replicas } => {
                    prop_assert!(SIZES.contains(replicas) && *replicas != size);
                    size = *replicas;
                }
                Fault::Upgrade { to } => {
                    prop_assert_eq!(next(&version), Some(to.as_str()));
                    version.clone_from(to);
                }
                Fault::TurnBack { to, back, .. } => {
                    prop_assert_eq!((next(&version), &version), (Some(to.as_str()), back));
                }
                Fault::LoseVolumes { victims, .. } => {
                    let members: Vec<String> = (0..size).map(|number| format!("db-{number}")).collect();
                    let lost = victims.of(&members, None).len();
                    prop_assert!(lost <= (members.len() - 1) / 2, "{} of {} volumes", lost, size);
                    let room = |secs| schedule.has_room_for_a_loss(event.begins() + Duration::from_secs(secs));
                    prop_assert!((0..=6).all(room), "no room for a loss at {} ms", event.at);
                }
                Fault::KillProcesses { .. }
                | Fault::DeletePods { .. }
                | Fault::PauseMembers { .. }
                | Fault::CutMember { .. }
                | Fault::CutNode { .. }
                | Fault::CutNodeFromApi { .. }
                | Fault::StopNode { .. }
                | Fault::KillOperators { .. }
                | Fault::PauseOperator { .. }
                | Fault::CutOperator { .. }
                | Fault::StopApi { .. }
                | Fault::PauseApi { .. }
                | Fault::Roll { .. }
                | Fault::Hibernate { .. } => (),
                Fault::Pretend => panic!("what is planted by hand was dealt"),
            }
        }
    }

    #[test]
    fn any_text_is_read_as_a_schedule_or_refused(text in ".{0,200}") {
        let _ = serde_json::from_str::<Schedule>(&text);
    }
}
