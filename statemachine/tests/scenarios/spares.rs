//! Spares: made, kept, dismissed.

use quorate_statemachine::{Finding, LookAgain, Phase, Refusal, START_PATIENCE_MS, Start};

use crate::scene::{cluster, seeding};

#[test]
fn a_spare_gets_what_it_lacks() {
    cluster(1).wish(3).spare(1).pod_gone(1).spare(2).pod_gone(2).plan().does(["pod 1 on claim-1", "pod 2 on claim-2"]);
    cluster(3).wish(5).spare(3).seat_gone(3).spare(4).seat_gone(4).plan().also_does("claim 3").also_does("claim 4");
    cluster(3).wish(5).spare(3).claim_swapped(3).spare(4).plan().also_does("delete pod 3").also_does("add 4");
    cluster(3).wish(5).spare(3).claim_terminating(3).spare(4).plan().also_does("delete pod 3").also_does("add 4");
}

#[test]
fn a_spare_that_is_wanted_no_more_goes_with_its_claim() {
    cluster(3).spare(3).plan().does(["delete pod 3"]).phase(Phase::Running);
    // Retention speaks of data, and there is none.
    cluster(3).spare(3).retaining().pod_gone(3).plan().does(["delete claim 3"]);
    let told = cluster(3).spare(3).seat_gone(3).plan().does([]);
    assert_eq!(told.entry(3), None);
    cluster(3).spare(3).pod_terminating(3).plan().does([]).looks(LookAgain::Soon);
    cluster(3).spare(3).pod_gone(3).claim_terminating(3).plan().does([]).looks(LookAgain::Soon);
}

#[test]
fn the_readiest_spares_are_kept() {
    cluster(3).wish(5).spare(3).unschedulable(3).spare(4).spare(5).plan().does([
        "add 4",
        "add 5 after 4",
        "delete pod 3",
    ]);
}

#[test]
fn a_spare_where_nothing_can_be_started_is_made_up_for() {
    let told = cluster(2).wish(3).spare(2).node_not_ready(2).plan();
    told.does(["claim 3", "pod 3 on new claim"]).tells(2, Finding::NodeUnreachable);
    let gone = cluster(2).wish(3).spare(2).node_gone(2).plan();
    gone.does(["delete pod 2", "claim 3", "pod 3 on new claim"]);
    let home_gone = cluster(2).wish(3).spare(2).at_home(2).pod_gone(2).node_gone(2).plan();
    home_gone.does(["delete claim 2", "claim 3", "pod 3 on new claim"]);
}

#[test]
fn a_spare_that_can_not_use_its_volume_is_made_up_for() {
    let refusing = |age| cluster(2).wish(3).spare(2).pod_pending(2, age).refused(2, Refusal::Other);
    refusing(START_PATIENCE_MS).plan().does([]);
    refusing(START_PATIENCE_MS + 1).plan().does(["delete pod 2", "claim 3", "pod 3 on new claim"]);
    // Nothing is let go before the cluster is seeded: another would follow every minute.
    let age = START_PATIENCE_MS + 1;
    seeding(3).pod_pending(2, age).refused(2, Refusal::Other).plan().never("claim 3").never("delete pod 2");
}

#[test]
fn a_spare_with_a_ticket_is_no_spare() {
    let told = cluster(2).wish(3).spare(2).ticket(2, Start::Resume).plan().also_does("delete pod 2").never("add 2");
    assert_eq!(told.entry(2), None);
}
