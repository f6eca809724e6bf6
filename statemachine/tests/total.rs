//! `plan` is total, and its rules hold in every world; and each rule catches a plan that breaks it.

mod any;
mod scene;

use any::{any_world, plausible_world, rules};
use proptest::prelude::*;
use quorate_statemachine::{
    Bind, Birth, ClusterId, Ledger, Life, LookAgain, Membership, Minor, Phase, Plan, Readiness, Restore, Role,
    RoleLabel, Seeding, Serial, Sight, Start, Step, Ticket, Version, World, plan,
};
use scene::{Scene, USUAL, claim_uid, cluster, founding, id, ids, pod_uid, release, seeding, voting};

/// Worlds of each kind; half a minute on one core.
const CASES: u32 = 20_000;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn holds_in_any_world(world in any_world()) {
        let plan = plan(&world);
        prop_assert_eq!(rules::broken(&world, &plan), Vec::<String>::new(), "{:?}", plan.steps);
    }

    #[test]
    fn holds_in_plausible_worlds(world in plausible_world()) {
        let plan = plan(&world);
        prop_assert_eq!(rules::broken(&world, &plan), Vec::<String>::new(), "{:?}", plan.steps);
    }

    /// What a plan writes down is what the next one would write down: the ledger comes to rest.
    #[test]
    fn a_ledger_once_written_stays(mut world in plausible_world()) {
        if let Some(ledger) = plan(&world).ledger {
            world.memory = quorate_statemachine::Memory::Ledger(ledger);
            let again = plan(&world).ledger;
            let seeded = again.as_ref().map(|ledger| ledger.seeding);
            prop_assert!(again.is_none() || seeded != Some(Seeding::NotBegun), "{:#?}", again);
        }
    }
}

fn wrong(world: &World, steps: Vec<Step>) -> Plan {
    let plan = plan(world);
    Plan { phase: Phase::Running, steps, look_again: LookAgain::AtRest, ..plan }
}

/// The rule of this name, and no plan but the wrong one, complains.
#[track_caller]
fn caught(rule: &str, scene: &Scene, steps: Vec<Step>) {
    caught_in(rule, &scene.world, &wrong(&scene.world, steps));
}

#[track_caller]
fn caught_in(rule: &str, world: &World, wrong: &Plan) {
    assert_eq!(rules::broken(world, &plan(world)), Vec::<String>::new(), "the right plan is fine");
    let broken = rules::broken(world, wrong);
    assert!(broken.iter().any(|broken| broken.starts_with(rule)), "{rule:?} is not in {broken:?}");
}

fn remove(serial: u32, voters_there: u32) -> Step {
    Step::Remove { serial: Some(Serial(serial)), id: id(serial), expect: voting(0..voters_there) }
}

fn promote(serial: u32) -> Step {
    promote_among(serial, serial + 1)
}

fn promote_among(serial: u32, members: u32) -> Step {
    let mut expect = voting(0..members);
    expect.insert(id(serial), Role::Learner);
    Step::Promote { serial: Serial(serial), id: id(serial), expect }
}

fn delete_pod(serial: u32) -> Step {
    Step::DeletePod { serial: Serial(serial), pod: pod_uid(serial) }
}

fn delete_claim(serial: u32) -> Step {
    Step::DeleteClaim { serial: Serial(serial), claim: claim_uid(serial) }
}

fn issue(serial: u32, start: Start, volume: u32) -> Step {
    let ticket = Ticket { start, volume: claim_uid(volume), mark: None, version: Some(USUAL) };
    Step::IssueTicket { serial: Serial(serial), pod: pod_uid(serial), ticket }
}

fn create_pod(serial: u32, volume: u32) -> Step {
    Step::CreatePod {
        serial: Serial(serial),
        bind: Bind::Claim(claim_uid(volume)),
        birth: Birth::Resuming(Role::Voter),
        release: release(USUAL),
    }
}

#[test]
fn two_changes_of_members_are_caught() {
    let rule = "one change of members, two additions, or two promotions";
    caught(rule, &cluster(5).wish(1), vec![remove(4, 5), remove(3, 5)]);
    caught(rule, &cluster(5).wish(3), vec![remove(4, 4)]);
    caught(rule, &cluster(3), vec![Step::AddLearner { serial: Serial(1), expect: voting(0..3), after: None }]);
    caught(rule, &cluster(3), vec![remove(4, 3)]);
    let add = |serial, after: Option<u32>| {
        let (serial, after) = (Serial(serial), after.map(Serial));
        Step::AddLearner { serial, expect: voting(0..3), after }
    };
    let room = cluster(3).wish(5).spare(3).spare(4);
    caught(rule, &room, vec![add(3, None), add(4, None)]);
    caught(rule, &room, vec![add(3, None), add(3, Some(3))]);
    caught(rule, &room, vec![add(3, None), add(4, Some(5))]);
    caught(rule, &room, vec![add(4, Some(3))]);
    caught(rule, &room, vec![add(3, None), remove(2, 3)]);
    caught(rule, &cluster(3).wish(6).spare(3).spare(4).spare(5), vec![add(3, None), add(4, Some(3)), add(5, Some(4))]);
    let two_learners = |voters: u8| cluster(voters).wish(5).learner(voters.into()).learner(u32::from(voters) + 1);
    caught(rule, &two_learners(3), vec![promote_among(3, 5), promote_among(3, 5)]);
    caught(rule, &two_learners(3), vec![promote_among(3, 5), remove(4, 5)]);
    caught(rule, &two_learners(2), vec![promote_among(2, 4), promote_among(3, 4)]);
}

#[test]
fn a_change_without_a_list_is_caught() {
    let rule = "no change of members without a list";
    caught(rule, &cluster(5).wish(3).unknown(), vec![remove(4, 0)]);
    let another = cluster(3).list(|list| list.cluster = ClusterId(8));
    caught(rule, &another, vec![remove(2, 3)]);
    let foreign = cluster(3).line(1, |line| line.serial = None);
    caught(rule, &foreign, vec![remove(1, 3)]);
}

#[test]
fn a_removal_before_quorum_is_sure_is_caught() {
    let rule = "a removal leaves a quorum";
    caught(rule, &cluster(3).unheard(1), vec![remove(2, 3)]);
    caught(rule, &cluster(5).wish(3).unheard(1), vec![remove(4, 5)]);
    caught(rule, &cluster(3).pod_gone(1).pod_gone(2), vec![remove(1, 3)]);
    caught(rule, &cluster(1), vec![remove(0, 1)]);
    caught(rule, &cluster(3).wish(1).led_by(2), vec![remove(2, 3)]);
}

#[test]
fn a_promotion_of_the_dead_or_lagging_is_caught() {
    let rule = "only a live learner";
    caught(rule, &cluster(2).wish(3).learner(2).etcd(2, |alive| alive.applied = 0), vec![promote(2)]);
    caught(rule, &cluster(2).wish(3).learner(2).unheard(2), vec![promote(2)]);
    caught(rule, &cluster(2).wish(3).learner(2).etcd(2, |alive| alive.live = false), vec![promote(2)]);
    caught(rule, &cluster(2).wish(3).learner(2).etcd(2, |alive| alive.seen.0 -= 10_001), vec![promote(2)]);
    caught(rule, &cluster(3), vec![promote(2)]);
}

#[test]
fn a_voter_that_can_still_be_created_is_caught() {
    let rule = "who votes can only be resumed";
    let learner = || cluster(2).wish(3).learner(2);
    caught(rule, &learner(), vec![promote(2)]);
    caught(rule, &learner(), vec![promote(2), issue(2, Start::Resume, 2)]);
    caught(rule, &learner(), vec![issue(2, Start::Resume, 3), promote(2)]);
    caught(rule, &learner().pod(2, |pod| pod.ticket = None), vec![promote(2)]);
}

#[test]
fn acting_while_paused_is_caught() {
    let rule = "paused is paused";
    let paused = cluster(3).pod_gone(1).life(Life::Paused);
    caught(rule, &paused.clone(), vec![create_pod(1, 1)]);
    let writes = Plan { ledger: Some(Ledger::default()), ..plan(&paused.world) };
    caught_in(rule, &paused.world, &writes);
}

#[test]
fn deleting_the_claim_of_a_member_is_caught() {
    let rule = "no claim of a member is deleted";
    caught(rule, &cluster(3).pod_gone(1), vec![delete_claim(1)]);
    caught(rule, &cluster(3).pod_gone(1).unknown(), vec![delete_claim(1)]);
    caught(rule, &cluster(3).voter(3).not_listed(3), vec![delete_claim(3)]);
    caught(rule, &cluster(3).claim_of_another(5), vec![delete_claim(5)]);
}

#[test]
fn a_second_create_on_another_volume_is_caught() {
    let rule = "a create goes to one volume";
    let fresh_pod = || cluster(1).wish(3).joining(1).waiting(1).pod(1, |pod| pod.ticket = None);
    caught(rule, &fresh_pod(), vec![issue(1, Start::Join(ids(0..2)), 9)]);
    caught(rule, &fresh_pod().claim_swapped(1), vec![issue(1, Start::Join(ids(0..2)), 8)]);
    let scene = fresh_pod();
    let mut forgetful = wrong(&scene.world, vec![issue(1, Start::Join(ids(0..2)), 9)]);
    let mut ledger = match &scene.world.memory {
        quorate_statemachine::Memory::Ledger(ledger) => ledger.clone(),
        other => panic!("{other:?} is no ledger"),
    };
    ledger.members.entry(Serial(1)).or_default().create = Some(claim_uid(9));
    forgetful.ledger = Some(ledger);
    caught_in(rule, &scene.world, &forgetful);
}

#[test]
fn resuming_on_another_volume_is_caught() {
    let rule = "a member is resumed on its own volume";
    caught(rule, &cluster(3).pod_gone(1), vec![create_pod(1, 2)]);
    let swapped = cluster(3).pod_gone(1).claim(1, |claim| claim.uid = claim_uid(9));
    caught(rule, &swapped, vec![create_pod(1, 9)]);
    let anew =
        Step::CreatePod { serial: Serial(1), bind: Bind::NewClaim, birth: Birth::Waiting, release: release(USUAL) };
    caught(rule, &cluster(3).seat_gone(1), vec![Step::CreateClaim(Serial(1)), anew]);
}

#[test]
fn deleting_a_pod_on_an_absent_node_is_caught() {
    let rule = "no pod is deleted on a node that is away";
    caught(rule, &cluster(3).unheard(1).node_not_ready(1), vec![delete_pod(1)]);
}

#[test]
fn seeding_twice_is_caught() {
    let rule = "seeded at most once";
    caught(rule, &seeding(3), vec![issue(1, Start::Seed, 1)]);
    caught(rule, &cluster(3).waiting(1), vec![issue(1, Start::Seed, 1)]);
    let lost = seeding(3).seat_gone(0).world;
    let ledger = Ledger { seeding: Seeding::Begun(Serial(1)), next_serial: Serial(3), ..Ledger::default() };
    caught_in(rule, &lost, &Plan { ledger: Some(ledger), ..wrong(&lost, vec![]) });
    let again = Ledger { next_serial: Serial(3), ..Ledger::default() };
    caught_in(rule, &lost, &Plan { ledger: Some(again), ..wrong(&lost, vec![]) });
}

#[test]
fn seeding_without_the_backup_and_restoring_twice_are_caught() {
    let rule = "a backup is restored before the seed";
    let begun = |scene: &Scene, steps| {
        let ledger = Ledger { seeding: Seeding::Begun(Serial(1)), next_serial: Serial(3), ..Ledger::default() };
        Plan { ledger: Some(ledger), ..wrong(&scene.world, steps) }
    };
    let founded = founding(3).begins_with_backup(Readiness::Ready);
    caught_in(rule, &founded.world, &begun(&founded, vec![issue(1, Start::Seed, 1)]));
    let at_work = founded.clone().restoring(1, Restore::UnderWay);
    caught_in(rule, &at_work.world, &begun(&at_work, vec![issue(1, Start::Seed, 1)]));
    let restore = |serial| Step::CreatePod {
        serial: Serial(serial),
        bind: Bind::Claim(claim_uid(serial)),
        birth: Birth::Restoring,
        release: release(USUAL),
    };
    caught(rule, &founded.clone().pod_gone(0).pod_gone(1), vec![restore(0), restore(1)]);
    caught(rule, &founding(3).pod_gone(0), vec![restore(0)]);
    caught(rule, &founding(3).begins_with_backup(Readiness::Awaited).pod_gone(0), vec![restore(0)]);
    caught(rule, &seeding(3).begins_with_backup(Readiness::Ready).pod_gone(0), vec![restore(0)]);
    caught(rule, &cluster(3).begins_with_backup(Readiness::Ready).pod_gone(0), vec![restore(0)]);
    let joins = cluster(2).wish(3).spare(2).restored(2);
    caught(rule, &joins, vec![Step::AddLearner { serial: Serial(2), expect: voting(0..2), after: None }]);
}

#[test]
fn a_serial_handed_out_again_is_caught() {
    let rule = "serials only go up";
    let world = cluster(3).seat_gone(1).world;
    let right = plan(&world).ledger.expect("a successor is written down");
    let fallen = Ledger { next_serial: Serial(0), ..right.clone() };
    caught_in(rule, &world, &Plan { ledger: Some(fallen), ..plan(&world) });
    let mut reused = right;
    reused.members.insert(Serial(1), quorate_statemachine::Entry::default());
    let removed = cluster(3).voter(3).not_listed(1).not_in_ledger(1).world;
    caught_in(rule, &removed, &Plan { ledger: Some(reused), ..plan(&removed) });
}

#[test]
fn contradictions_are_caught() {
    let rule = "no step contradicts another";
    caught(rule, &cluster(3).waiting(1), vec![issue(1, Start::Resume, 1), delete_pod(1)]);
    let label = Step::LabelPod { serial: Serial(1), pod: pod_uid(1), label: RoleLabel::Voter };
    caught(rule, &cluster(3), vec![delete_pod(1), label]);
    let add = Step::AddLearner { serial: Serial(2), expect: voting(0..2), after: None };
    caught(rule, &cluster(1).wish(3).added(1).spare(2), vec![add, issue(1, Start::Join(ids(0..2)), 1)]);
    let both = vec![issue(1, Start::Join(ids(0..2)), 1), issue(2, Start::Join(ids(0..3)), 2)];
    caught(rule, &cluster(1).wish(3).added(1).added(2), both);
}

#[test]
fn stopping_a_well_voter_beside_an_ill_one_is_caught() {
    let rule = "no well voter is stopped while another is down";
    caught(rule, &cluster(3).outdated(2).unheard(1), vec![delete_pod(2)]);
    caught(rule, &cluster(5), vec![delete_pod(3), delete_pod(4)]);
}

#[test]
fn a_drain_beside_a_voter_that_is_stopped_is_caught() {
    let rule = "no drain takes a voter while another is stopped";
    caught(rule, &cluster(3), vec![delete_pod(2)]);
    let upgrade = cluster(3).wish_version(V7).asked().all_tried(V7);
    let mut lets_one_go = switching(&upgrade, &[(2, V7)]);
    lets_one_go.budget = Some(2);
    caught_in(rule, &upgrade.world, &lets_one_go);
}

#[test]
fn deleting_a_pod_with_its_volume_is_caught() {
    let rule = "no volume goes with a pod";
    caught(rule, &cluster(3).claim_terminating(1), vec![delete_pod(1)]);
    caught(rule, &cluster(3).on_empty_dirs().outdated(1), vec![delete_pod(1)]);
    caught(rule, &cluster(3).claim_terminating(1).wish(0), vec![delete_pod(1)]);
}

#[test]
fn creating_what_is_there_is_caught() {
    let rule = "objects are created where there are none";
    caught(rule, &cluster(3), vec![create_pod(1, 1)]);
    caught(rule, &founding(1).pod_gone(0), vec![Step::CreateClaim(Serial(0))]);
}

fn switch(serial: u32, to: Version) -> Step {
    Step::SwitchRelease { serial: Serial(serial), pod: pod_uid(serial), release: release(to), ticket: None }
}

/// A plan with a switch in it that is written down as it should be.
fn switching(scene: &Scene, switched: &[(u32, Version)]) -> Plan {
    let steps = switched.iter().map(|(serial, to)| switch(*serial, *to)).collect();
    let mut plan = wrong(&scene.world, steps);
    let remembered = match &scene.world.memory {
        quorate_statemachine::Memory::Ledger(ledger) => ledger.clone(),
        quorate_statemachine::Memory::Blank | quorate_statemachine::Memory::Unreadable => Ledger::default(),
    };
    let mut ledger = plan.ledger.take().unwrap_or(remembered);
    for (serial, to) in switched {
        ledger.members.entry(Serial(*serial)).or_default().release = Some(release(*to));
    }
    plan.ledger = Some(ledger);
    plan
}

const V5: Version = Version::new(5, 35);
const V7: Version = Version::new(7, 3);

#[test]
fn wrong_switches_are_caught() {
    let upgrade = || cluster(3).wish_version(V7).asked().all_tried(V7);
    let caught = |rule: &str, scene: Scene, switched: &[(u32, Version)]| {
        caught_in(rule, &scene.world, &switching(&scene, switched));
    };
    caught("a leader hands over", upgrade(), &[(0, V7)]);
    let next = "the next only when the last is back";
    caught(next, upgrade(), &[(1, V7), (2, V7)]);
    caught(next, upgrade().told(2, V7), &[(1, V7)]);
    caught(next, upgrade().runs(2, V7).switching(2), &[(1, V7)]);
    caught(next, upgrade().runs(2, V7).etcd(2, |alive| alive.applied = 0), &[(1, V7)]);
    caught(next, upgrade().runs(2, V7).disconnected(2, 1), &[(1, V7)]);
    caught("versions go one minor a step", cluster(3).all_run(V5).wish_version(V7).asked(), &[(2, V7)]);
    caught("versions go one minor a step", upgrade().downgrade_to(Minor(5)), &[(2, V7)]);
    let all_on_7 = (0..3).fold(cluster(3), |scene, serial| scene.runs(serial, V7)).asked().all_tried(USUAL);
    caught("going down is left to etcd", all_on_7.clone(), &[(2, USUAL)]);
    caught("going down is left to etcd", all_on_7.runs_at(Minor(7)), &[(2, USUAL)]);
    let moved = upgrade().runs(0, V7).runs(1, V7).runs_at(Minor(7)).told(2, V7).crashing(2);
    caught("nobody is taken back below", moved, &[(2, USUAL)]);
    let cut_off = cluster(3).wish_version(V7).asked();
    caught("a release is tried first", cut_off, &[(2, V7)]);
    caught("a snapshot is taken before another minor", upgrade().snapshot_first(), &[(2, V7)]);
    caught("logs are cut", upgrade().ledger(|ledger| ledger.oldest_log = Some(Minor(5))), &[(2, V7)]);
    let scene = upgrade();
    caught_in("what a member runs is written down", &scene.world, &wrong(&scene.world, vec![switch(1, V7)]));
}

#[test]
fn newcomers_at_the_wrong_time_are_caught() {
    let lost = |scene: Scene| scene.seat_gone(2).not_listed(2).not_in_ledger(2).spare(3);
    let going_down = cluster(3).all_run(V7).wish_version(USUAL).asked().downgrade_to(Minor(6));
    let add = Step::AddLearner { serial: Serial(3), expect: voting(0..2), after: None };
    caught("no newcomer while a downgrade", &lost(going_down).told(3, V7), vec![add]);
    let join = issue(3, Start::Join(ids([0, 1, 3])), 3);
    let at_7 = cluster(2).wish(3).all_run(V7).added(3);
    caught("a newcomer runs the leader's minor", &at_7, vec![join]);
}

/// The generator makes what the rules speak of: else they would hold for want of cases.
#[test]
fn plausible_worlds_lead_to_every_kind_of_step() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..4_000 {
        let world = plausible_world().new_tree(&mut runner).expect("a world").current();
        if let Membership::Known(list) = &world.membership {
            seen.insert(format!("{} members", list.members.len()));
        }
        seen.extend(world.seats.values().filter_map(|seat| seat.pod.as_ref()).map(|pod| match pod.sight {
            Sight::Unknown => "unheard".to_owned(),
            Sight::Waiting(_) => "waiting".to_owned(),
            Sight::Restoring(restore) => format!("{restore:?}"),
            Sight::Refused(refusal) => format!("{refusal:?}"),
            Sight::Etcd(_) => "etcd".to_owned(),
        }));
        let plan = plan(&world);
        seen.insert(format!("{:?}", plan.phase));
        seen.extend(
            plan.steps.iter().map(|step| format!("{step:?}").split([' ', '(']).next().unwrap_or("").to_owned()),
        );
    }
    for kind in [
        "CreateClaim",
        "CreatePod",
        "IssueTicket",
        "DeletePod",
        "DeleteClaim",
        "LabelPod",
        "AddLearner",
        "Promote",
        "Remove",
        "MoveLeader",
        "SwitchRelease",
        "ResizePod",
        "TryRelease",
        "EndTrial",
        "TakeSnapshot",
        "EnableDowngrade",
        "CancelDowngrade",
        "Upgrading",
        "ReleaseFinalizer",
        "Pending",
        "Restoring",
        "Fails",
        "Seeding",
        "Growing",
        "Running",
        "Scaling",
        "Healing",
        "Restarting",
        "Hibernated",
        "QuorumLost",
        "Paused",
        "Deleting",
        "Failed",
        "VolumeLost",
        "7 members",
    ] {
        assert!(seen.contains(kind), "no {kind} in {seen:?}");
    }
}
