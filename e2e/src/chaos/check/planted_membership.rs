//! The check of membership against looks at three members and deeds of an operator: what may be done passes, and each deed
//! that may not is caught.

use super::{Check, check};
use crate::chaos::clock::Moment;
use crate::chaos::history::{Deed, History, Listed, MemberId, Role, Roster, Sample, Step};

/// Three members that are looked at four times a second for a minute, with what each look sees left to the test.
fn looks(see: impl Fn(u64, &mut Sample)) -> Vec<Sample> {
    let listed = |number: u64| (MemberId(number), Listed { name: format!("db-{number}"), learner: false });
    let look = |number: u64| {
        let begun = number * 250_000;
        let mut sample = Sample {
            begun: Moment(begun),
            ended: Moment(begun + 50_000),
            wished: 3,
            members: Some((0..3).map(listed).collect()),
            running: (0..3).map(|number| format!("db-{number}")).collect(),
            cut: [].into(),
        };
        see(begun / 1_000_000, &mut sample);
        sample
    };
    (0..240).map(look).collect()
}

fn with_deeds(samples: Vec<Sample>, deeds: Vec<(u64, Step)>) -> History {
    let deeds = deeds.into_iter().flat_map(|(second, step)| {
        let at = Moment(second * 1_000_000);
        let changes = matches!(step, Step::AddLearner { .. } | Step::Promote { .. } | Step::Remove { .. });
        let call = changes.then(|| Step::Calls { call: Box::new(step.clone()) });
        call.into_iter().chain([step]).map(move |step| Deed { at, by: None, step })
    });
    let deeds = deeds.collect();
    History { cluster: "db".into(), samples, deeds, ..History::default() }
}

fn voters(numbers: impl IntoIterator<Item = u64>) -> Roster {
    numbers.into_iter().map(|number| (MemberId(number), Role::Voter)).collect()
}

fn and_learner(number: u64, mut roster: Roster) -> Roster {
    roster.insert(MemberId(number), Role::Learner);
    roster
}

fn learner(sample: &mut Sample, number: u64) {
    let listed = Listed { name: format!("db-{number}"), learner: true };
    sample.members.as_mut().unwrap().insert(MemberId(number), listed);
}

/// What a replacement of the dead db-2 looks like: from the 30th second it does not run, in the 45th db-3 comes.
fn replacement(second: u64, sample: &mut Sample) {
    if second >= 30 {
        sample.running.remove("db-2");
    }
    if second >= 45 {
        learner(sample, 3);
        sample.running.insert("db-3".into());
    }
    if second >= 46 {
        sample.members.as_mut().unwrap().remove(&MemberId(2));
    }
    if second >= 47 {
        sample.members.as_mut().unwrap().get_mut(&MemberId(3)).unwrap().learner = false;
    }
}

fn replacing() -> Vec<(u64, Step)> {
    vec![
        (45, Step::AddLearner { serial: 3, expect: voters(0..3) }),
        (46, Step::Remove { id: MemberId(2), expect: and_learner(3, voters(0..3)) }),
        (47, Step::Promote { serial: 3, id: MemberId(3), expect: and_learner(3, voters([0, 1])) }),
        (48, Step::DeletePod { serial: 2 }),
        (49, Step::DeleteClaim { serial: 2 }),
    ]
}

#[test]
fn a_dead_member_may_be_replaced() {
    let history = with_deeds(looks(replacement), replacing());
    assert_eq!(check(&history), []);
}

/// As soon as the dead one is removed the others may be, before any look has seen that it is gone.
#[test]
fn a_live_voter_may_go_at_once_after_the_dead_one() {
    let shrinking = |second: u64, sample: &mut Sample| {
        if second >= 20 {
            sample.running.remove("db-2");
        }
        if second >= 41 {
            sample.members.as_mut().unwrap().retain(|id, _| *id == MemberId(0));
        }
        if (39..41).contains(&second) {
            sample.members = None;
        }
    };
    let dead_first = vec![
        (39, Step::Remove { id: MemberId(2), expect: voters(0..3) }),
        (40, Step::Remove { id: MemberId(1), expect: voters(0..2) }),
    ];
    assert_eq!(check(&with_deeds(looks(shrinking), dead_first)), []);
    let live_first = vec![
        (39, Step::Remove { id: MemberId(1), expect: voters(0..3) }),
        (40, Step::Remove { id: MemberId(2), expect: voters([0, 2]) }),
    ];
    assert_membership(&with_deeds(looks(shrinking), live_first), "the live voter db-1 was removed");
}

fn assert_membership(history: &History, says: &str) {
    let violations = check(history);
    let caught = violations.iter().any(|found| found.check == Check::Membership && found.what.contains(says));
    assert!(caught, "nothing says {says:?}: {violations:?}");
}

#[test]
fn a_call_planned_from_another_list_is_caught() {
    let deeds = vec![(30, Step::AddLearner { serial: 3, expect: voters(0..2) })];
    assert_membership(&with_deeds(looks(|_, _| ()), deeds), "a member list that there was not");
    // Two operators plan from one list, one of them two seconds late.
    let add = |serial| Step::AddLearner { serial, expect: voters(0..3) };
    let late = |second, sample: &mut Sample| {
        if second >= 28 {
            learner(sample, 3);
        }
    };
    assert_membership(&with_deeds(looks(late), vec![(28, add(3)), (30, add(4))]), "a member list that there was not");
}

/// It was to be removed as a learner, and votes by then.
#[test]
fn a_call_planned_from_other_roles_is_caught() {
    for (expect, says) in
        [(voters([0, 1, 3]), None), (and_learner(3, voters([0, 1])), Some("a member list that there was not"))]
    {
        let mut deeds = replacing();
        deeds.push((55, Step::Remove { id: MemberId(3), expect }));
        let history = with_deeds(looks(replacement), deeds);
        match says {
            Some(says) => assert_membership(&history, says),
            None => assert!(!check(&history).iter().any(|found| found.what.contains("planned from"))),
        }
    }
}

#[test]
fn a_call_is_judged_whatever_came_of_it() {
    // The operator was killed before it could say that it was done.
    let mut deeds = replacing();
    let call = Box::new(Step::Remove { id: MemberId(1), expect: and_learner(3, voters(0..3)) });
    deeds[1].1 = Step::Calls { call };
    assert_membership(&with_deeds(looks(replacement), deeds), "the live voter db-1 was removed");
}

#[test]
fn a_member_that_comes_goes_or_votes_without_a_call_is_caught() {
    for (left_out, says) in [(0, "1 members are new"), (1, "db-2 (2) is not listed"), (2, "db-3 (3) votes")] {
        let mut deeds = replacing();
        deeds.remove(left_out);
        assert_membership(&with_deeds(looks(replacement), deeds), says);
    }
}

#[test]
fn a_live_voter_removed_while_another_is_down_is_caught() {
    let mut deeds = replacing();
    deeds[1].1 = Step::Remove { id: MemberId(1), expect: and_learner(3, voters(0..3)) };
    assert_membership(&with_deeds(looks(replacement), deeds), "the live voter db-1 was removed");
}

#[test]
fn a_member_without_network_is_down_though_its_process_runs() {
    let is_cut = |who: &'static str| {
        move |second: u64, sample: &mut Sample| {
            if second >= 20 {
                sample.cut.insert(who.into());
            }
        }
    };
    let deeds = vec![(44, Step::DeletePod { serial: 1 })];
    assert_membership(&with_deeds(looks(is_cut("db-2")), deeds.clone()), "the live voter db-1 was stopped");
    // Who has no network itself is no live voter.
    assert_eq!(check(&with_deeds(looks(is_cut("db-1")), deeds)), []);
}

#[test]
fn what_an_operator_asked_for_is_judged_though_it_was_killed_before_it_could_say_more() {
    let replacement = |second: u64, sample: &mut Sample| replacement(second.min(44), sample);
    for (taken, says) in [
        (Step::DeletePod { serial: 1 }, "the live voter db-1 was stopped"),
        (Step::SwitchRelease { serial: 1 }, "the live voter db-1 was switched"),
        (Step::DeleteClaim { serial: 1 }, "the volume of db-1 was deleted"),
    ] {
        let asked = vec![(44, Step::Calls { call: Box::new(taken) })];
        assert_membership(&with_deeds(looks(replacement), asked), says);
    }
}

#[test]
fn a_live_voter_stopped_at_the_cost_of_quorum_is_caught() {
    let replacement = |second: u64, sample: &mut Sample| replacement(second.min(44), sample);
    let deeds = vec![(44, Step::DeletePod { serial: 1 })];
    assert_membership(&with_deeds(looks(replacement), deeds.clone()), "the live voter db-1 was stopped");
    let switch = vec![(44, Step::SwitchRelease { serial: 1 })];
    assert_membership(&with_deeds(looks(replacement), switch.clone()), "the live voter db-1 was switched");
    assert_eq!(check(&with_deeds(looks(|_, _| ()), switch)), []);
    // Where all are to sleep, that is what is asked for.
    let asleep = |second: u64, sample: &mut Sample| {
        replacement(second.min(43), sample);
        sample.wished = 0;
    };
    assert_eq!(check(&with_deeds(looks(asleep), deeds.clone())), []);
    // The look in which they were put to sleep may end after the deed.
    let falls_asleep = |second: u64, sample: &mut Sample| {
        replacement(second.min(43), sample);
        if second == 43 {
            sample.wished = 0;
            sample.ended = Moment(45_000_000);
        }
    };
    assert_eq!(check(&with_deeds(looks(falls_asleep), deeds)), []);
}

#[test]
fn a_dead_learner_promoted_is_caught() {
    let dead = |second, sample: &mut Sample| {
        if second >= 20 {
            learner(sample, 3);
        }
    };
    let deeds = vec![(40, Step::Promote { serial: 3, id: MemberId(3), expect: and_learner(3, voters(0..3)) })];
    assert_membership(&with_deeds(looks(dead), deeds), "the learner db-3 was promoted");
}

#[test]
fn a_learner_that_has_just_started_may_be_promoted() {
    let young = |second, sample: &mut Sample| {
        if second >= 39 {
            learner(sample, 3);
        }
        if second >= 40 {
            sample.running.insert("db-3".into());
        }
    };
    let add = (39, Step::AddLearner { serial: 3, expect: voters(0..3) });
    let promote = (40, Step::Promote { serial: 3, id: MemberId(3), expect: and_learner(3, voters(0..3)) });
    let history = with_deeds(looks(young), vec![add, promote]);
    assert_eq!(check(&history), []);
}

#[test]
fn a_call_whose_answer_was_lost_may_have_changed_the_list() {
    // Nobody could list the members while it was made.
    let blind = |_, sample: &mut Sample| sample.members = None;
    let deeds = |lost: bool| {
        let mut deeds = vec![(30, Step::AddLearner { serial: 3, expect: voters(0..3) })];
        deeds.extend(lost.then(|| (31, Step::LostAnswer { verb: "add-learner".into() })));
        deeds.push((32, Step::AddLearner { serial: 5, expect: and_learner(9, and_learner(3, voters(0..3))) }));
        deeds
    };
    assert_eq!(check(&with_deeds(looks(blind), deeds(true))), []);
    let seeing = with_deeds(looks(|_, _| ()), deeds(false));
    assert_membership(&seeing, "a member list that there was not");
}

/// The cluster stood still while a member was added: the call's answer was lost, and the operator sees the new member before
/// the next look does, which waits for its own answer.
#[test]
fn a_call_planned_from_what_a_lost_call_left_is_sound_and_from_what_a_refused_one_would_have_left_is_caught() {
    let slow = |second: u64, sample: &mut Sample| {
        if (31..36).contains(&second) {
            sample.members = None;
        }
        if second >= 36 {
            learner(sample, 3);
        }
    };
    let after = |came_of_it: Option<Step>| {
        let mut deeds =
            vec![(31, Step::Calls { call: Box::new(Step::AddLearner { serial: 3, expect: voters(0..3) }) })];
        deeds.extend(came_of_it.map(|step| (33, step)));
        deeds.push((35, Step::Remove { id: MemberId(2), expect: and_learner(3, voters(0..3)) }));
        let violations = check(&with_deeds(looks(slow), deeds));
        violations.iter().any(|violation| violation.what.contains("was planned from"))
    };
    let verb = || "add-learner".to_owned();
    assert!(!after(Some(Step::LostAnswer { verb: verb() })));
    assert!(!after(None), "the operator was killed before it could say what came of it");
    assert!(after(Some(Step::Refused { verb: verb() })));
    // What was open too long ago explains nothing.
    let never = |second: u64, sample: &mut Sample| slow(second.min(30), sample);
    let long_ago = vec![
        (2, Step::Calls { call: Box::new(Step::AddLearner { serial: 3, expect: voters(0..3) }) }),
        (3, Step::LostAnswer { verb: verb() }),
        (40, Step::Remove { id: MemberId(2), expect: and_learner(3, voters(0..3)) }),
    ];
    assert_membership(&with_deeds(looks(never), long_ago), "a member list that there was not");
}

/// A promotion leaves the members that there were: that its answer was lost excuses no list that has gone by since.
#[test]
fn a_call_planned_from_what_a_lost_call_left_before_another_one_changed_it_is_caught() {
    let see = |second: u64, sample: &mut Sample| {
        if second >= 20 {
            learner(sample, 3);
            sample.running.insert("db-3".into());
        }
        let Some(members) = sample.members.as_mut() else { return };
        if second >= 32 {
            members.get_mut(&MemberId(3)).unwrap().learner = false;
        }
        if second >= 34 {
            members.remove(&MemberId(2));
        }
    };
    let calls = |call: Step| Step::Calls { call: Box::new(call) };
    let lost = |verb: &str| Step::LostAnswer { verb: verb.to_owned() };
    let deeds = |expect: Roster| {
        vec![
            (20, Step::AddLearner { serial: 3, expect: voters(0..3) }),
            (31, calls(Step::Promote { serial: 3, id: MemberId(3), expect: and_learner(3, voters(0..3)) })),
            (32, lost("promote")),
            (33, calls(Step::Remove { id: MemberId(2), expect: voters(0..4) })),
            (34, lost("remove")),
            (50, calls(Step::AddLearner { serial: 4, expect })),
        ]
    };
    assert_eq!(check(&with_deeds(looks(see), deeds(voters([0, 1, 3])))), []);
    assert_membership(&with_deeds(looks(see), deeds(voters(0..4))), "a member list that there was not");
}

#[test]
fn a_change_after_a_call_that_was_refused_is_caught_and_after_one_whose_answer_was_lost_is_sound() {
    let goes = |second: u64, sample: &mut Sample| {
        if second >= 20 {
            sample.running.remove("db-2");
        }
        if second >= 40 {
            sample.members.as_mut().unwrap().remove(&MemberId(2));
        }
    };
    let call =
        |second| (second, Step::Calls { call: Box::new(Step::Remove { id: MemberId(2), expect: voters(0..3) }) });
    let refused = |verb: &str| (36, Step::Refused { verb: verb.to_owned() });
    let is_caught = |deeds: Vec<(u64, Step)>| {
        let violations = check(&with_deeds(looks(goes), deeds));
        violations.iter().any(|found| found.what.contains("nobody removed it"))
    };
    assert!(is_caught(vec![call(35), refused("remove")]));
    assert!(!is_caught(vec![call(35), refused("promote")]));
    assert!(!is_caught(vec![call(35), (36, Step::LostAnswer { verb: "remove".into() })]));
    // Which of the two was refused nobody can tell.
    assert!(!is_caught(vec![call(34), call(35), refused("remove")]));
}

#[test]
fn a_second_member_by_one_call_is_caught() {
    let two = |second: u64, sample: &mut Sample| {
        for (comes, number) in [(45, 3), (50, 9)] {
            if second >= comes {
                learner(sample, number);
                sample.running.insert(format!("db-{number}"));
            }
        }
    };
    let add = Step::AddLearner { serial: 3, expect: voters(0..3) };
    assert_membership(&with_deeds(looks(two), vec![(45, add.clone())]), "1 members are new at 50");
    // Also where nobody knows what came of the call: it was for another one.
    let call = Step::Calls { call: Box::new(add) };
    assert_membership(&with_deeds(looks(two), vec![(45, call)]), "db-9 (9) is new at 50");
}

/// A line that is read a moment after what it announces was seen is late by the clocks only; later than that, nobody asked.
#[test]
fn a_change_that_is_seen_before_its_call_is_caught_unless_the_clocks_explain_it() {
    let seen = |late: u64| {
        let come = |second, sample: &mut Sample| {
            if second >= 20 {
                learner(sample, 3);
                sample.running.insert("db-3".into());
            }
        };
        let mut history = with_deeds(looks(come), vec![]);
        // The first look that sees it ends 50 ms after the second.
        let at = Moment(20_050_000 + late);
        let call = Step::AddLearner { serial: 3, expect: voters(0..3) };
        history.deeds = vec![Deed { at, by: None, step: Step::Calls { call: Box::new(call) } }];
        check(&history).iter().any(|violation| violation.what.contains("1 members are new"))
    };
    assert!(!seen(20_000));
    assert!(seen(500_000));
}

#[test]
fn a_volume_deleted_under_a_member_is_caught() {
    let deeds = vec![(40, Step::DeleteClaim { serial: 1 })];
    assert_membership(&with_deeds(looks(|_, _| ()), deeds), "the volume of db-1 was deleted");
    // A spare that was dismissed, and added on another volume later.
    let deeds = [vec![(30, Step::DeleteClaim { serial: 3 })], replacing()].concat();
    assert_eq!(check(&with_deeds(looks(replacement), deeds)), []);
}

#[test]
fn an_identity_used_twice_is_caught() {
    let mut deeds = replacing();
    deeds.push((55, Step::AddLearner { serial: 3, expect: voters([0, 1, 3]) }));
    assert_membership(&with_deeds(looks(replacement), deeds), "serial 3 was added a second time");
    let back = |second, sample: &mut Sample| {
        if (20..30).contains(&second) {
            sample.members.as_mut().unwrap().remove(&MemberId(2));
        }
    };
    assert_membership(&with_deeds(looks(back), vec![]), "is back");
    // Its answer was lost, so that no line tells of the addition; nor does any of the seed's.
    let another = |second, sample: &mut Sample| {
        let members = sample.members.as_mut().unwrap();
        if second >= 20 {
            members.remove(&MemberId(0));
        }
        if second >= 30 {
            members.insert(MemberId(9), Listed { name: "db-0".into(), learner: true });
        }
    };
    assert_membership(&with_deeds(looks(another), vec![]), "db-0 is member 9 at");
    let demoted = |second, sample: &mut Sample| {
        if second >= 20 {
            learner(sample, 2);
        }
    };
    assert_membership(&with_deeds(looks(demoted), vec![]), "the voter db-2 is a learner");
}

#[test]
fn a_step_in_unknown_words_is_caught() {
    let deeds = vec![(1, Step::Unreadable { line: "did something".into() })];
    assert_membership(&with_deeds(looks(|_, _| ()), deeds), "can't be read");
}
