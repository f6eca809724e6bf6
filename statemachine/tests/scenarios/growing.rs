//! Learners: added, started in turn, given up.

use quorate_statemachine::{
    Finding, LookAgain, MemberId, Millis, Phase, Refusal, Role, RoleLabel, STOPS, Serial, Standing, Start, Step,
    Version,
};

use crate::scene::{NOW, Scene, USUAL, claim_uid, cluster, founding, id, ids, release};

const MINUTE: u64 = 60_000;

fn seed_with_two_spares() -> Scene {
    cluster(1).wish(3).spare(1).spare(2)
}

#[test]
fn both_learners_are_added_before_the_first_is_started() {
    let both = seed_with_two_spares().plan().does(["add 1", "add 2 after 1"]);
    both.phase(Phase::Growing).looks(LookAgain::AtOnce).keeps_ledger();
    // The second comes later, or could not be added along with the first.
    let second = cluster(1).wish(3).added(1).entry(1, |entry| entry.standing = Standing::Spare).spare(2).plan();
    let second = second.does(["add 2"]);
    assert_eq!(second.entry(1).map(|entry| entry.standing), Some(Standing::Learner(id(1))));
    let third = cluster(1).wish(3).added(1).added(2).plan();
    let third = third.does(["ticket 1: join [0, 1, 2] on claim-1", "ticket 2: join [0, 1, 2] on claim-2"]);
    assert_eq!(third.entry(1).and_then(|entry| entry.create.clone()), Some(claim_uid(1)));
    assert_eq!(third.entry(2).and_then(|entry| entry.create.clone()), Some(claim_uid(2)));
}

#[test]
fn the_next_is_started_when_the_last_is_alive() {
    let waiting = || cluster(1).wish(3).added(1).added(2).joining(1);
    waiting().plan().does([]).looks(LookAgain::Soon);
    // It was to be told right after the first, which did not come up in time.
    let both = || waiting().entry(2, |entry| entry.create = Some(claim_uid(2)));
    both().plan().does([]).looks(LookAgain::Soon);
    let up = both().learner(1).ticket(1, Start::Resume);
    up.plan().does(["ticket 2: join [0, 1, 2] on claim-2"]);
    // Both were told, and the list has changed since.
    let told = || both().ticket(1, Start::Join(ids([0, 1]))).ticket(2, Start::Join(ids([0, 1]))).ticket_age(2, 0);
    told().plan().does(["ticket 1: join [0, 1, 2] on claim-1", "ticket 2: join [0, 1, 2] on claim-2"]);
    let up = cluster(1).wish(3).added(1).added(2).learner(1).ticket(1, Start::Resume);
    up.plan().does(["ticket 2: join [0, 1, 2] on claim-2"]);
}

#[test]
fn until_they_are_promoted_no_voter_is_touched() {
    let leaves_voters_alone = |scene: Scene| scene.plan().plan.steps.iter().all(Step::leaves_voters_alone);
    assert!(leaves_voters_alone(cluster(3).wish(5)), "claims and pods are made");
    assert!(leaves_voters_alone(cluster(3).wish(5).spare(3).spare(4)), "one is added");
    assert!(leaves_voters_alone(cluster(3).wish(5).added(3).added(4)), "one is told to join");
    assert!(!leaves_voters_alone(cluster(3).wish(5).learner(3).learner(4)), "both are promoted");
    assert!(!leaves_voters_alone(cluster(3).waiting(1).ticket(1, Start::Seed)), "a voter is told to resume");
    assert!(!leaves_voters_alone(cluster(3).outdated(0).led_by(1)), "a voter is stopped");
}

#[test]
fn a_learner_whose_pod_waits_is_started_before_one_whose_pod_does_not() {
    cluster(1).wish(3).added(1).added(2).pod_pending(1, 1_000).plan().does(["ticket 2: join [0, 1, 2] on claim-2"]);
}

#[test]
fn etcd_3_5_takes_one_learner_at_a_time() {
    seed_with_two_spares().one_learner_at_a_time().plan().does(["add 1"]);
    let added = cluster(1).wish(3).added(1).spare(2).one_learner_at_a_time();
    added.plan().does(["ticket 1: join [0, 1] on claim-1"]);
    let second = cluster(2).wish(3).spare(2).one_learner_at_a_time();
    second.plan().does(["add 2"]);
}

#[test]
fn a_learner_is_started_before_a_spare_that_is_on_its_way_is_added() {
    let told = cluster(1).wish(3).added(1).spare(2).pod_pending(2, 1_000).plan();
    told.does(["ticket 1: join [0, 1] on claim-1"]);
}

#[test]
fn an_addition_waits_for_another_new_spare_but_not_for_long() {
    let another_comes = |age| cluster(3).wish(5).spare(3).spare(4).pod_pending(4, age);
    another_comes(1_000).plan().does([]).looks(LookAgain::Soon);
    another_comes(3_500).plan().does(["add 3"]);
    another_comes(1_000).one_learner_at_a_time().plan().does(["add 3"]);
    let last = cluster(3).wish(5).added(3).spare(4).spare(5).pod_pending(5, 1_000);
    last.plan().also_does("add 4");
}

#[test]
fn one_that_has_no_address_yet_is_not_looked_at_in_haste() {
    let without_address =
        |scene: Scene, serial| scene.pod_pending(serial, 100).pod(serial, |pod| pod.heard = Millis(0));
    let growing = || without_address(without_address(cluster(3).wish(5).spare(3).spare(4), 3), 4);
    let with_address = |serial| growing().pod(serial, |pod| pod.heard = NOW);
    growing().plan().does([]).looks(LookAgain::Later);
    with_address(4).plan().does([]).looks(LookAgain::Soon);
    without_address(cluster(3), 1).plan().does([]).looks(LookAgain::Later);
    [0, 1, 2].into_iter().fold(founding(3), without_address).plan().does([]).looks(LookAgain::Later);
}

#[test]
fn a_promotion_waits_for_a_new_spare_but_not_for_long() {
    let one_comes = |age| cluster(1).wish(3).learner(1).spare(2).pod_pending(2, age);
    one_comes(1_000).plan().never("promote").never("add").looks(LookAgain::Soon);
    one_comes(5_000).plan().also_does("promote 1");
    let one_waits = |age| cluster(1).wish(3).learner(1).spare(2).pod(2, |pod| pod.created = Millis(NOW.0 - age));
    one_waits(1_000).plan().also_does("add 2").never("promote");
    // Whatever etcd has against it, the others do not wait for ever.
    one_waits(5_000).plan().also_does("promote 1").never("add");
    let one_may_not_be_added = one_comes(1_000).one_learner_at_a_time();
    one_may_not_be_added.plan().also_does("promote 1");
}

#[test]
fn a_spare_that_no_node_takes_holds_up_nobody() {
    let told = cluster(1).wish(3).added(1).spare(2).unschedulable(2).plan();
    told.does(["ticket 1: join [0, 1] on claim-1"]).tells(2, Finding::Unschedulable);
    cluster(1).wish(3).spare(1).unschedulable(1).spare(2).plan().does(["add 2"]);
}

#[test]
fn nobody_is_added_while_one_told_to_join_has_not_come_up() {
    cluster(1).wish(3).joining(1).spare(2).plan().never("add");
    cluster(1).wish(3).learner(1).etcd(1, |alive| alive.applied = 0).spare(2).plan().also_does("add 2");
}

#[test]
fn a_ticket_to_join_follows_the_list() {
    // Learner 2 was removed since.
    let told = cluster(1).wish(3).joining(1).ticket(1, Start::Join(ids([0, 1, 2]))).plan();
    told.also_does("ticket 1: join [0, 1] on claim-1").never("add");
    // It is up already: the ticket was used.
    let up = cluster(1).wish(3).learner(1).line(1, |line| line.started = false).ticket(1, Start::Join(ids([0, 1, 2])));
    up.plan().never("ticket 1: join");
}

#[test]
fn a_learner_is_created_again_only_on_its_own_volume() {
    let fresh_pod = |scene: Scene| scene.waiting(1).pod(1, |pod| pod.ticket = None);
    fresh_pod(cluster(1).wish(3).joining(1)).plan().also_does("ticket 1: join [0, 1] on claim-1");
    cluster(1).wish(3).joining(1).pod_gone(1).plan().also_does("pod 1 on claim-1");
    let swapped = fresh_pod(cluster(1).wish(3).joining(1)).claim_swapped(1).plan();
    swapped.never("ticket").also_does("remove 1").tells(1, Finding::LearnerGivenUp);
}

#[test]
fn an_unstarted_learner_that_was_told_to_resume_is_told_to_join_again() {
    // Quorum was lost for a moment, and nobody could know whether it had run.
    let resumed = || cluster(1).wish(3).joining(1).ticket(1, Start::Resume).refused(1, Refusal::NoEntry);
    resumed().plan().also_does("ticket 1: join [0, 1] on claim-1").never("remove");
    // What its launcher said of the ticket before does not count against the new one.
    resumed().ticket(1, Start::Join(ids([0, 1]))).plan().never("remove");
}

#[test]
fn a_started_learner_is_resumed() {
    cluster(1).wish(3).learner(1).pod_gone(1).plan().also_does("resume 1 on claim-1");
}

#[test]
fn an_unstarted_learner_gets_a_pod_to_wait_in() {
    cluster(1).wish(3).added(1).pod_gone(1).plan().also_does("pod 1 on claim-1");
    cluster(1).wish(3).added(1).seat_gone(1).plan().also_does("claim 1").also_does("pod 1 on new claim");
    cluster(1).wish(3).added(1).claim_gone(1).plan().also_does("delete pod 1");
}

#[test]
fn a_learner_is_given_up_in_time() {
    let late = |age| cluster(1).wish(3).joining(1).ticket_age(1, age);
    late(MINUTE).plan().never("remove");
    let told = late(MINUTE + 1).plan().also_does("remove 1").tells(1, Finding::LearnerGivenUp);
    // Its place is taken by other serials at once.
    told.also_does("pod 2 on new claim").also_does("pod 3 on new claim").looks(LookAgain::AtOnce);
}

#[test]
fn a_learner_that_waits_for_its_turn_is_not_late() {
    cluster(1).wish(3).added(1).added(2).joining(1).plan().never("remove");
}

#[test]
fn a_learner_that_does_not_catch_up_is_given_up() {
    let behind = |age| cluster(1).wish(3).learner(1).etcd(1, |alive| alive.applied = 1).ticket_age(1, age);
    behind(10 * MINUTE).plan().never("remove");
    behind(10 * MINUTE + 1).plan().also_does("remove 1").tells(1, Finding::LearnerGivenUp);
    // One that has caught up only waits for the others.
    cluster(1).wish(3).learner(1).added(2).ticket_age(1, 11 * MINUTE).plan().never("remove");
}

#[test]
fn a_learner_that_joined_and_fell_silent_is_given_up_in_time() {
    let silent = |since: u64| cluster(1).wish(3).learner(1).ticket_age(1, 5 * MINUTE).unheard_for(1, since);
    silent(MINUTE).plan().never("remove");
    silent(MINUTE + 1).plan().also_does("remove 1").tells(1, Finding::LearnerGivenUp);
    // Long silence before a new ticket says nothing of what the ticket will do.
    let just_told = cluster(1).wish(3).learner(1).ticket_age(1, 1).unheard_for(1, 5 * MINUTE);
    just_told.plan().never("remove");
}

#[test]
fn a_learner_that_comes_further_has_time() {
    let behind = |still: u64| {
        cluster(1).wish(3).learner(1).ticket_age(1, 30 * MINUTE).etcd(1, |alive| {
            alive.applied = 12;
            alive.progressed.0 = NOW.0 - still;
        })
    };
    behind(10 * MINUTE).plan().never("remove");
    behind(10 * MINUTE + 1).plan().also_does("remove 1").tells(1, Finding::LearnerGivenUp);
    // But not for ever: nobody else is promoted meanwhile.
    behind(0).ticket_age(1, 30 * MINUTE + 1).plan().also_does("remove 1");
    // The larger the database may be, the longer that takes.
    let large = |gib: u64, age| {
        let mut scene = behind(0).ticket_age(1, age);
        scene.world.wish.quota = gib << 30;
        scene
    };
    large(8, 30 * MINUTE + 1).plan().also_does("remove 1");
    large(40, 34 * MINUTE).plan().never("remove");
    large(40, 143 * MINUTE).plan().never("remove");
    large(40, 144 * MINUTE).plan().also_does("remove 1");
    large(100, 350 * MINUTE).plan().never("remove");
    large(100, 360 * MINUTE).plan().also_does("remove 1");
    // Only one that comes further.
    let still = large(40, 30 * MINUTE).etcd(1, |alive| alive.progressed.0 = NOW.0 - 10 * MINUTE - 1);
    still.plan().also_does("remove 1");
    // One that has caught up has nowhere further to come.
    cluster(1).wish(3).learner(1).ticket_age(1, 60 * MINUTE).plan().never("remove");
}

#[test]
fn a_learner_without_a_future_is_given_up() {
    for hopeless in [
        cluster(1).wish(3).added(1).node_not_ready(1),
        cluster(1).wish(3).added(1).node_gone(1),
        cluster(1).wish(3).joining(1).claim_gone(1),
        cluster(1).wish(3).joining(1).claim_terminating(1),
        cluster(1).wish(3).joining(1).refused(1, Refusal::VolumeForeign),
        cluster(1).wish(3).learner(1).pod_gone(1).node_not_ready(1),
        cluster(1).wish(3).learner(1).ticket(1, Start::Resume).refused(1, Refusal::VolumeLost),
        cluster(1).wish(3).added(1).not_in_ledger(1),
        // Removed, and added a second time by an operator that slept over it.
        cluster(1).wish(3).added(1).entry(1, |entry| entry.standing = Standing::Learner(MemberId(77))),
    ] {
        hopeless.plan().also_does("remove 1").tells(1, Finding::LearnerGivenUp);
    }
}

#[test]
fn a_given_up_learner_is_never_tried_again() {
    let told = cluster(1).wish(3).added(1).not_listed(1).plan().also_does("delete pod 1").never("add");
    assert_eq!(told.entry(1), None);
    assert_eq!(told.ledger().next_serial, Serial(4));
}

#[test]
fn nobody_is_added_to_a_cluster_that_could_not_take_it() {
    // Three voters with one down: etcd refuses even a learner.
    let told = cluster(3).wish(5).unheard(1).spare(3).spare(4).plan();
    told.never("add").tells_all(Finding::QuorumTooThin).looks(LookAgain::Later);
    // Five with one down may take one.
    cluster(5).wish(7).unheard(1).spare(5).spare(6).plan().also_does("add 5");
}

#[test]
fn a_smaller_wish_lets_learners_go_first() {
    let told = cluster(3).learner(3).added(4).plan();
    told.also_does("remove 4").phase(Phase::Scaling).never("promote").never("ticket 4");
    cluster(3).learner(3).plan().also_does("remove 3");
}

#[test]
fn serials_are_above_every_trace() {
    let told = cluster(3).wish(5).claim_of_another(8).plan();
    told.does(["claim 9", "pod 9 on new claim", "claim 10", "pod 10 on new claim"]).phase(Phase::Growing);
    let listed_only = cluster(1).wish(3).learner(6).seat_gone(6).plan().also_does("claim 7");
    assert_eq!(listed_only.also_does("claim 8").ledger().next_serial, Serial(9));
    // There is no serial after the last one.
    cluster(1).wish(3).ledger(|ledger| ledger.next_serial = Serial(u32::MAX)).plan().does([]).keeps_ledger();
}

#[test]
fn a_used_ticket_to_create_is_taken_back() {
    let joined = cluster(3).ticket(1, Start::Join(ids([0, 1]))).plan();
    joined.does(["ticket 1: resume on claim-1"]).keeps_ledger();
}

#[test]
fn a_voter_is_labelled_only_once_it_serves() {
    cluster(3).unheard(2).pod(2, |pod| pod.label = RoleLabel::Absent).plan().never("label 2");
    cluster(3).unheard(2).plan().never("unlabel 2");
}

#[test]
fn a_promoted_member_is_labelled() {
    cluster(3).pod(2, |pod| pod.label = RoleLabel::Absent).plan().does(["label 2"]).budget(2);
    let learner = cluster(3).line(2, |line| line.role = Role::Learner).ticket_age(2, 0);
    let demoted = learner.etcd(2, |alive| alive.applied = 0);
    demoted.pod(2, |pod| pod.created = Millis(NOW.0)).plan().also_does("unlabel 2");
}

/// It would be for the release that it was told to run till now. Found among the worlds made up at random.
#[test]
fn one_that_is_told_to_run_something_else_gets_no_other_ticket_with_it() {
    let joins = cluster(3).wish(5).joining(3).entry(3, |entry| entry.release = Some(release(USUAL)));
    let fails = joins.told(3, STOPS[2]).crashing(3).added(4);
    fails.plan().also_does("switch 3 to 3.6.16").never("ticket 3");
}

/// One that is told 3.6 and still runs 3.5 would not take a second learner into its list when it applies that, though the leader
/// admits it.
#[test]
fn who_still_runs_the_old_minor_limits_the_learners() {
    let v5 = Version::new(5, 35);
    let grows = || cluster(3).all_run(v5).wish_version(USUAL).runs(0, USUAL).runs(1, USUAL).wish(5).spare(3).spare(4);
    let told = || grows().told(2, USUAL).etcd(2, |alive| alive.version = Some(v5));
    told().plan().also_does("add 3").never("add 4");
    told().switching(2).plan().also_does("add 3").never("add 4");
    told().etcd(2, |alive| alive.version = None).plan().also_does("add 3").never("add 4");
    told().learner(3).plan().never("add 4");
    grows().runs(2, USUAL).plan().also_does("add 3").also_does("add 4 after 3");
}

/// etcd refuses to add a member while its leader counts too few others as connected, and that count may be wrong for as
/// long as it runs.
#[test]
fn a_leader_that_overlooks_somebody_hands_over_before_the_list_changes() {
    let grows = || cluster(3).wish(5).spare(3).spare(4).overlooked(0, 2);
    grows().plan().does(["move leader 0 to 1"]);
    grows().led_by(1).plan().does(["add 3", "add 4 after 3"]);
    grows().overlooked(1, 0).plan().does(["move leader 0 to 2"]);
    grows().overlooked(1, 0).overlooked(2, 0).plan().does(["add 3", "add 4 after 3"]);
    let shrinks = || cluster(5).wish(3).overlooked(0, 2);
    shrinks().plan().also_does("move leader 0 to 1").never("remove");
    shrinks().led_by(1).plan().also_does("remove 4");
}
