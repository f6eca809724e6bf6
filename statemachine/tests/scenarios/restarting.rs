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
