//! Members that are down, with their volume and without.

use quorate_statemachine::{Finding, LookAgain, Phase, Refusal, Serial, Start, Trouble};

use crate::scene::{Scene, cluster};

#[test]
fn a_lost_pod_comes_back_on_its_volume() {
    let told = cluster(3).pod_gone(1).plan().does(["resume 1 on claim-1"]).phase(Phase::Healing);
    told.tells(1, Finding::PodMissing).keeps_ledger().looks(LookAgain::Soon).keeps_budget();
}

#[test]
fn a_killed_process_is_the_kubelets_work() {
    cluster(3).unheard(1).plan().does([]).phase(Phase::Healing).looks(LookAgain::Later);
    cluster(1).unheard(0).plan().does([]).phase(Phase::Healing);
    cluster(3).etcd(1, |alive| alive.has_leader = false).plan().does([]).phase(Phase::Healing).looks(LookAgain::Later);
}

#[test]
fn a_waiting_member_is_told_to_resume() {
    let told = cluster(3).waiting(1).pod(1, |pod| pod.ticket = None).plan();
    told.does(["ticket 1: resume on claim-1"]).keeps_ledger();
    cluster(3).waiting(1).plan().does([]);
}

#[test]
fn a_finished_pod_is_cleared_away_and_made_again() {
    cluster(3).pod_finished(1).plan().does(["delete pod 1"]);
    cluster(3).pod_finished(1).pod_terminating(1).plan().does([]).looks(LookAgain::Soon);
}

#[test]
fn a_pod_made_for_another_volume_is_replaced() {
    let told = cluster(3).unheard(1).pod(1, |pod| pod.volume = quorate_statemachine::Uid::new("older")).plan();
    told.does(["delete pod 1"]);
}

#[test]
fn one_look_that_found_nothing_does_not_end_an_etcd_beside_which_something_fails() {
    let unheard = |trouble| cluster(3).unheard(1).outdated(1).trouble(1, trouble).plan();
    unheard(Trouble::BesideFailing).does([]).tells(1, Finding::ContainerFailing);
    unheard(Trouble::ContainerFailing).does(["delete pod 1"]);
    let refused = cluster(3).refused(1, Refusal::Other).trouble(1, Trouble::BesideFailing).plan();
    refused.tells(1, Finding::LauncherRefuses);
}

#[test]
fn a_member_on_a_node_that_is_away_is_left_alone() {
    let told = cluster(3).unheard(1).node_not_ready(1).plan();
    told.does([]).phase(Phase::Healing).tells(1, Finding::NodeUnreachable).looks(LookAgain::Later);
    cluster(3).pod_finished(1).node_not_ready(1).plan().does([]);
    cluster(3).unheard(1).outdated(1).trouble(1, Trouble::ContainerFailing).node_not_ready(1).plan().does([]);
    // Its pod object is gone, its process may not be.
    cluster(3).pod_gone(1).node_not_ready(1).plan().does([]).tells(1, Finding::NodeUnreachable);
    // Nothing is known of the node.
    let mut unknown = cluster(3).pod_gone(1);
    unknown.world.nodes.clear();
    unknown.plan().does([]);
}

#[test]
fn a_member_whose_node_is_gone_moves_with_its_volume() {
    cluster(3).unheard(1).node_gone(1).plan().does(["delete pod 1"]).tells(1, Finding::NodeGone);
    cluster(3).pod_gone(1).node_gone(1).plan().does(["resume 1 on claim-1"]);
}

#[test]
fn a_volume_that_died_with_its_node_is_replaced() {
    let told = cluster(3).unheard(1).at_home(1).node_gone(1).plan();
    told.does(["remove 1", "claim 3", "pod 3 on new claim"]).phase(Phase::Healing).tells(1, Finding::NodeGone);
    // A node that is only away may come back with it.
    cluster(3).pod_gone(1).at_home(1).node_not_ready(1).plan().does([]);
}

#[test]
fn a_lost_volume_is_replaced_under_a_new_name() {
    let told = cluster(3).seat_gone(1).plan().does(["remove 1", "claim 3", "pod 3 on new claim"]);
    let told = told.phase(Phase::Healing).tells(1, Finding::VolumeLost).looks(LookAgain::AtOnce);
    assert_eq!(told.ledger().next_serial, Serial(4));
    for lost in [
        cluster(3).pod_gone(1).claim_swapped(1),
        cluster(3).unheard(1).claim_gone(1),
        cluster(3).pod_gone(1).claim_terminating(1),
        cluster(3).refused(1, Refusal::VolumeLost),
        cluster(3).on_empty_dirs().pod_gone(1),
        cluster(3).on_empty_dirs().pod_finished(1),
    ] {
        lost.plan().also_does("remove 1").never("resume 1").tells(1, Finding::VolumeLost).phase(Phase::Healing);
    }
    let foreign = cluster(3).refused(1, Refusal::VolumeForeign).plan();
    foreign.also_does("remove 1").tells(1, Finding::VolumeForeign);
}

#[test]
fn a_refusal_that_says_nothing_of_the_data_costs_nothing() {
    cluster(3).refused(1, Refusal::Other).plan().does([]).tells(1, Finding::LauncherRefuses);
}

#[test]
fn after_the_removal_the_pod_goes_then_the_claim_then_the_successor_joins() {
    let removed = || cluster(3).not_listed(1).unheard(1).spare(3);
    let told = removed().plan().does(["add 3", "delete pod 1"]).phase(Phase::Healing);
    assert_eq!(told.entry(1), None);
    let next = removed().not_in_ledger(1);
    next.clone().pod_terminating(1).plan().does(["add 3"]);
    next.clone().pod_gone(1).plan().does(["add 3", "delete claim 1"]);
    next.clone().pod_gone(1).retaining().plan().does(["add 3"]);
    next.pod_gone(1).claim_terminating(1).plan().does(["add 3"]);
}

#[test]
fn a_dead_voter_goes_only_if_the_rest_is_a_quorum() {
    // Three voters, one lost, another ill: of the two that remain, both are needed.
    let thin = cluster(3).seat_gone(1).unheard(2).plan();
    thin.never("remove").tells(1, Finding::QuorumTooThin);
    // Five voters, two lost: one after the other.
    let two_lost = cluster(5).seat_gone(1).seat_gone(2).plan().also_does("remove 1").never("remove 2");
    two_lost.also_does("pod 5 on new claim").also_does("pod 6 on new claim");
    // One that may still be alive, unseen, goes only if all others are well.
    cluster(5).claim_gone(1).unheard(1).unheard(2).plan().never("remove").tells(1, Finding::QuorumTooThin);
    // And never the one that leads.
    cluster(3).led_by(1).seat_gone(1).unheard(2).plan().never("remove");
}

#[test]
fn a_claim_being_deleted_under_a_member_brings_a_successor_first() {
    let going = || cluster(3).claim_terminating(1);
    let told = going().plan().does(["claim 3", "pod 3 on new claim"]).phase(Phase::Healing);
    told.tells(1, Finding::VolumeGoing);
    going().spare(3).plan().does(["add 3"]);
    going().learner(3).plan().does(["ticket 3: resume on claim-3", "count 3", "promote 3"]);
    going().voter(3).plan().does(["remove 1"]);
    going().voter(3).led_by(1).plan().does(["move leader 1 to 0"]);
    // Forced away under a running etcd, it is just as much on its way.
    cluster(3).claim_gone(1).plan().does(["claim 3", "pod 3 on new claim"]);
    // Nobody restarts it, or clears its pod away.
    going().outdated(1).plan().never("delete");
    // On a single member the same.
    cluster(1).claim_terminating(0).plan().does(["claim 1", "pod 1 on new claim"]);
}

#[test]
fn a_going_member_that_is_down_is_lost() {
    cluster(3).claim_terminating(1).pod_finished(1).plan().also_does("remove 1").never("delete");
    cluster(3).claim_terminating(1).unheard_for(1, 5_001).plan().also_does("remove 1");
    cluster(3).claim_terminating(1).etcd(1, |alive| alive.has_leader = false).plan().also_does("remove 1");
}

#[test]
fn a_going_member_that_was_silent_once_still_counts() {
    let silent = cluster(3).claim_terminating(1).unheard_for(1, 5_000).plan();
    silent.does(["claim 3", "pod 3 on new claim"]);
}

#[test]
fn troubles_of_pods_are_told() {
    let stuck = |trouble| cluster(3).pod_pending(1, 1_000).trouble(1, trouble);
    stuck(Trouble::ImageMissing).plan().does([]).tells(1, Finding::ImageMissing).looks(LookAgain::Soon);
    stuck(Trouble::Unschedulable).plan().does([]).tells(1, Finding::Unschedulable);
    stuck(Trouble::ContainerFailing).plan().does([]).tells(1, Finding::ContainerFailing);
    let long = cluster(3).pod_pending(1, 60_000).trouble(1, Trouble::ImageMissing);
    long.plan().looks(LookAgain::Later);
}

#[test]
fn an_outdated_pod_that_runs_no_etcd_is_replaced_at_once() {
    cluster(3).pod_pending(1, 0).outdated(1).plan().also_does("delete pod 1");
    cluster(3).unheard(1).trouble(1, Trouble::ContainerFailing).outdated(1).plan().also_does("delete pod 1");
    cluster(3).waiting(1).outdated(1).plan().also_does("delete pod 1");
    // One of which nothing is heard may be running.
    cluster(3).unheard(1).outdated(1).plan().never("delete");
    // And one that was killed from outside comes back at any moment.
    cluster(3).killed(1).outdated(1).plan().never("delete");
    // On an emptyDir a new pod would be an empty member.
    cluster(3).on_empty_dirs().waiting(1).outdated(1).plan().never("delete");
}

#[test]
fn a_member_that_moved_is_remembered_where_it_is() {
    let moved: Scene = cluster(3).entry(1, |entry| entry.node = None);
    let told = moved.plan().does([]);
    assert_eq!(told.entry(1).and_then(|entry| entry.node.clone()), Some(crate::scene::node(1)));
}

#[test]
fn a_member_the_ledger_forgot_is_taken_up_again() {
    let told = cluster(3).not_in_ledger(1).plan().does([]);
    let entry = told.entry(1).expect("the member is in the ledger again");
    assert_eq!(entry.create, Some(crate::scene::claim_uid(1)));
    cluster(3).not_in_ledger(1).waiting(1).ticket(1, Start::Seed).plan().does(["ticket 1: resume on claim-1"]);
}

#[test]
fn all_is_well() {
    for size in [1, 3, 5, 7] {
        let told = cluster(size).plan().does([]).phase(Phase::Running).keeps_ledger();
        assert!(!told.plan.needs_fresh_look());
        told.tells_nothing().looks(LookAgain::AtRest).budget(size - 1);
    }
}
