//! Other compute resources, given to pods while they run.

use quorate_statemachine::{Finding, Phase, Resize};

use crate::scene::{Scene, cluster};

fn of_other_size() -> Scene {
    (0..3).fold(cluster(3), Scene::of_other_size)
}

#[test]
fn one_pod_after_the_other_the_leaders_last() {
    of_other_size().plan().does(["resize 2"]).phase(Phase::Restarting).tells(0, Finding::ResourcesOutdated);
    cluster(3).of_other_size(0).of_other_size(1).plan().does(["resize 1"]);
    cluster(3).of_other_size(0).plan().does(["resize 0"]);
    of_other_size().unheard(1).plan().does([]);
    of_other_size().pod(1, |pod| pod.ready = false).plan().does([]);
}

#[test]
fn a_node_without_room_holds_up_the_rest() {
    let told = cluster(3).of_other_size(0).resize(2, Resize::NoRoom).plan().does([]);
    told.tells(2, Finding::NoRoomToResize);
}

#[test]
fn what_waits_for_room_is_given_what_is_wished_by_then() {
    cluster(3).of_other_size(2).resize(2, Resize::NoRoom).plan().does(["resize 2"]);
}

#[test]
fn a_pod_that_is_not_resized_is_replaced() {
    of_other_size().resize(2, Resize::Refused).plan().does(["delete pod 2"]).tells(2, Finding::PodOutdated);
    cluster(3).resize(2, Resize::Refused).plan().does([]);
}

#[test]
fn with_other_changes_it_is_one_roll() {
    of_other_size().outdated(0).outdated(1).outdated(2).plan().does(["delete pod 2"]);
    cluster(3).wish(5).spare(3).of_other_size(3).plan().also_does("delete pod 3");
}
