//! Outdated pods, brought up to date one at a time.

use quorate_statemachine::{Finding, LookAgain, NodeSight, Phase, RoleLabel};

use crate::scene::{NOW, Scene, cluster, node};

fn outdated(voters: u8) -> Scene {
    (0..u32::from(voters)).fold(cluster(voters), Scene::outdated)
}

#[test]
fn from_the_highest_down_whoever_leads() {
    let told = outdated(3).plan().does(["delete pod 2"]).phase(Phase::Restarting).tells(2, Finding::PodOutdated);
    told.looks(LookAgain::Soon);
    outdated(3).led_by(2).plan().does(["move leader 2 to 0"]);
    outdated(3).led_by(1).plan().does(["delete pod 2"]);
    cluster(3).outdated(0).outdated(1).plan().does(["delete pod 1"]);
    cluster(3).outdated(0).plan().does(["move leader 0 to 1"]);
    cluster(3).outdated(0).led_by(1).plan().does(["delete pod 0"]);
    cluster(1).outdated(0).plan().does(["delete pod 0"]);
}

#[test]
fn the_next_only_when_all_are_there_again() {
    let first_gone = || cluster(3).outdated(0).outdated(1);
    first_gone().pod_gone(2).plan().does(["resume 2 on claim-2"]).phase(Phase::Restarting);
    first_gone().pod_terminating(2).plan().does([]).looks(LookAgain::Soon);
    first_gone().unheard(2).plan().does([]);
    first_gone().pod(2, |pod| pod.ready = false).plan().does([]);
    first_gone().etcd(2, |alive| alive.applied = 0).plan().does([]);
    first_gone().list(|list| list.leader = None).plan().does([]);
}

#[test]
fn not_while_anything_else_goes_on() {
    outdated(3).wish(5).plan().never("delete");
    outdated(3).wish(1).plan().does(["remove 2"]);
    outdated(2).wish(3).learner(2).plan().never("delete");
    outdated(3).pod(2, |pod| pod.label = RoleLabel::Absent).plan().does(["label 2"]);
    outdated(3).unheard(1).plan().never("delete").tells(1, Finding::PodOutdated);
}

/// A pod that is not ready may be so for what is to be changed, as a sidecar that fails.
#[test]
fn whoever_is_not_ready_comes_first_and_nobody_else_goes_meanwhile() {
    outdated(3).pod(1, |pod| pod.ready = false).plan().does(["delete pod 1"]);
    outdated(3).pod(0, |pod| pod.ready = false).plan().does(["move leader 0 to 1"]);
    outdated(3).pod(0, |pod| pod.ready = false).pod(1, |pod| pod.ready = false).plan().does([]);
    outdated(3).pod(1, |pod| pod.ready = false).etcd(1, |alive| alive.applied = 0).plan().does([]);
    cluster(3).outdated(2).pod(1, |pod| pod.ready = false).plan().does([]).tells_all(Finding::RollWaits);
}

#[test]
fn not_one_whose_node_takes_no_new_pod_while_its_volume_is_of_that_node() {
    outdated(3).at_home(2).cordoned(2).plan().does(["delete pod 1"]).tells(2, Finding::NodeCordoned);
    let last = || cluster(3).outdated(2).cordoned(2);
    last().at_home(2).plan().does([]).phase(Phase::Restarting).tells(2, Finding::NodeCordoned);
    // A volume that can be used elsewhere goes with it.
    last().plan().does(["delete pod 2"]);
}

#[test]
fn not_on_a_node_that_is_away() {
    let mut scene = outdated(3);
    scene.world.nodes.insert(node(2), NodeSight::NotReady(NOW));
    scene.plan().does([]).tells(2, Finding::NodeUnreachable);
}

#[test]
fn on_empty_dirs_a_member_is_replaced_instead() {
    let all = || outdated(3).on_empty_dirs();
    all().plan().does(["pod 3 on emptyDir"]).phase(Phase::Restarting);
    all().spare(3).plan().does(["add 3"]);
    all().voter(3).plan().does(["remove 2"]);
    all().voter(3).led_by(2).plan().does(["remove 1"]);
    cluster(3).on_empty_dirs().outdated(0).voter(3).plan().does(["move leader 0 to 1"]);
}

/// The kubelet reports one that is told to end as ready until its container has ended.
#[test]
fn the_budget_lets_none_go_while_one_is_stopped() {
    cluster(3).plan().does([]).budget(2);
    outdated(3).led_by(1).plan().does(["delete pod 2"]).budget(3);
    cluster(5).outdated(4).plan().does(["delete pod 4"]).budget(5);
    cluster(3)
        .outdated(1)
        .unheard(1)
        .pod_finished(1)
        .pod(1, |pod| pod.ready = false)
        .plan()
        .does(["delete pod 1"])
        .budget(2);
}

#[test]
fn the_budget_stays_as_it_is_until_all_are_back() {
    let last_gone = || cluster(3);
    last_gone().pod_terminating(0).plan().keeps_budget();
    last_gone().pod_gone(0).plan().does(["resume 0 on claim-0"]).keeps_budget();
    let comes = |age| last_gone().pod_pending(0, age).pod(0, |pod| pod.ready = false);
    comes(1_000).plan().does([]).keeps_budget();
    comes(61_000).plan().does([]).budget(2);
    let switching = || last_gone().pod(0, |pod| pod.switching = true);
    switching().plan().keeps_budget();
    switching().node_not_ready(0).unheard(0).pod(0, |pod| pod.ready = false).plan().keeps_budget();
    last_gone().list(|list| list.leader = None).plan().keeps_budget();
    last_gone().plan().does([]).budget(2);
}

/// Else it would be written twice for each member.
#[test]
fn the_budget_stays_as_it_is_from_one_to_the_next() {
    let two_left = || cluster(3).outdated(0).outdated(1);
    two_left().etcd(2, |alive| alive.applied = 0).plan().does([]).keeps_budget();
    two_left().led_by(1).plan().does(["move leader 1 to 0"]).keeps_budget();
    two_left().pod(2, |pod| pod.label = RoleLabel::Returning).plan().does(["label 2"]).keeps_budget();
    let stuck = || two_left().unheard(2).pod(2, |pod| pod.ready = false);
    stuck().plan().does([]).budget(2);
    two_left().node_not_ready(2).pod_terminating(2).unheard(2).plan().does([]).keeps_budget();
}

/// It has nothing to leave, and a pod that does not come up again can be drained.
#[test]
fn the_budget_of_one_voter_asks_for_none() {
    cluster(1).outdated(0).plan().does(["delete pod 0"]).budget(0);
    cluster(1).pod_terminating(0).plan().budget(0);
}
