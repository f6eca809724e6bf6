//! Nodes that are about to be drained.

use quorate_statemachine::Phase;

use crate::scene::cluster;

#[test]
fn the_leadership_goes_to_a_node_that_stays() {
    cluster(3).cordoned(0).plan().does(["move leader 0 to 1"]).phase(Phase::Running);
    cluster(3).cordoned(0).cordoned(1).plan().does(["move leader 0 to 2"]);
    cluster(3).cordoned(1).plan().does([]);
    cluster(3).cordoned(0).led_by(1).plan().does([]);
}

#[test]
fn it_stays_where_nobody_can_take_it() {
    cluster(3).cordoned(0).cordoned(1).cordoned(2).plan().does([]);
    cluster(1).cordoned(0).plan().does([]);
    cluster(3).cordoned(0).unheard(1).etcd(2, |alive| alive.applied = 0).plan().does([]);
}

#[test]
fn in_a_roll_it_goes_there_too() {
    cluster(3).outdated(0).cordoned(1).plan().does(["move leader 0 to 2"]);
}

/// It would be moved back at once, for ever.
#[test]
fn a_roll_moves_it_to_no_node_that_is_about_to_be_drained() {
    let all_but_two = || cluster(3).cordoned(0).cordoned(1).outdated(2);
    all_but_two().led_by(2).plan().does(["delete pod 2"]);
    all_but_two().led_by(0).plan().does(["move leader 0 to 2"]);
    cluster(3).cordoned(0).cordoned(1).cordoned(2).outdated(2).led_by(2).plan().does(["move leader 2 to 0"]);
}
