//! Voters too many.

use quorate_statemachine::{Finding, LookAgain, Phase, Serial};

use crate::scene::{Scene, cluster, id};

#[test]
fn the_highest_serial_goes_first() {
    cluster(5).wish(3).plan().does(["remove 4"]).phase(Phase::Scaling).looks(LookAgain::AtOnce);
    cluster(3).wish(1).plan().does(["remove 2"]);
    cluster(2).wish(1).plan().does(["remove 1"]);
}

#[test]
fn the_budget_lets_none_go_while_one_is_removed() {
    cluster(5).wish(3).plan().budget(5);
    cluster(3).wish(1).plan().does(["remove 2"]).budget(3);
    cluster(5).wish(3).led_by(4).plan().does(["move leader 4 to 0"]).budget(4);
}

#[test]
fn the_leader_hands_over_before_it_goes() {
    let told = cluster(3).wish(1).led_by(2).plan().does(["move leader 2 to 0"]);
    told.phase(Phase::Scaling).looks(LookAgain::AtOnce);
    // raft takes no writes while it waits for one that lags.
    let lags = |scene: Scene, serial: u32| {
        scene.etcd(serial, |alive| alive.applied = 0).etcd(2, |alive| alive.committed = 5_000)
    };
    let behind = || lags(cluster(3).wish(1).led_by(2), 0).etcd(1, |alive| alive.applied = 4_999);
    behind().plan().does(["move leader 2 to 1"]);
    lags(behind(), 1).plan().does([]).looks(LookAgain::Soon).tells_all(Finding::QuorumTooThin);
    cluster(3).wish(1).list(|list| list.leader = None).plan().does([]).looks(LookAgain::Soon);
}

#[test]
fn an_ill_voter_goes_before_a_well_one() {
    cluster(5).wish(3).unheard(1).plan().does(["remove 1"]);
    cluster(5).wish(3).pod_gone(2).plan().does(["remove 2"]);
}

#[test]
fn no_live_voter_goes_while_another_is_down() {
    // Two are ill: neither can go, as either may still be alive, and none of the well ones may.
    let told = cluster(5).wish(3).unheard(1).unheard(2).plan();
    told.does([]).tells(2, Finding::QuorumTooThin).looks(LookAgain::Later);
    // One of them has no pod, and without it three of four are well.
    cluster(5).wish(3).unheard(1).pod_gone(2).plan().does(["remove 2"]);
    // Found by a chaos run: a pod that was deleted by force is gone before its process is, to which the others are connected.
    let forced = || cluster(5).wish(3).unheard(1).force_deleted(2);
    forced().plan().never("remove").tells(2, Finding::QuorumTooThin).looks(LookAgain::Soon);
    forced().uncounted(0, 2).uncounted(3, 2).plan().never("remove");
    let gone = [0, 3, 4].into_iter().fold(forced(), |scene, other| scene.uncounted(other, 2));
    gone.clone().plan().does(["remove 2"]);
    gone.overlooked(0, 2).plan().never("remove");
    // What one says of it that is not well itself may be of before.
    let ill = cluster(5).wish(3).pod_gone(2).etcd(1, |alive| alive.live = false).overlooked(1, 2);
    ill.plan().does(["remove 2"]);
    // One whose pod is on its way back may be alive by the time it is removed.
    cluster(5).wish(3).unheard(1).waiting(2).plan().does([]).tells(2, Finding::QuorumTooThin);
    cluster(5).wish(3).unheard(1).pod_pending(2, 1_000).plan().never("remove").tells(2, Finding::QuorumTooThin);
    // And of three, the one that is well is no quorum of the two that would remain.
    cluster(3).wish(1).unheard(1).pod_gone(2).plan().never("remove").tells(2, Finding::QuorumTooThin);
}

#[test]
fn the_last_voter_stays() {
    cluster(1).plan().does([]);
    cluster(1).claim_terminating(0).spare(1).plan().does(["add 1"]);
}

#[test]
fn what_was_removed_is_cleared_away() {
    let removed = || cluster(3).voter(3).not_listed(3);
    let told = removed().plan().does(["delete pod 3"]);
    assert!(!told.ledger().members.contains_key(&Serial(3)));
    assert_eq!(told.ledger().next_serial, Serial(4));
    // While its pod still has the label of a voter, a drain counts it, maybe in the place of a voter.
    told.budget(4);
    removed().pod_terminating(3).plan().does([]).budget(2).looks(LookAgain::Soon);
    removed().pod_gone(3).plan().does(["delete claim 3"]);
    removed().pod_gone(3).retaining().plan().does([]);
    removed().seat_gone(3).not_in_ledger(3).plan().does([]).phase(Phase::Running).keeps_ledger();
    // Never on a node that is away: it may be running there.
    removed().node_not_ready(3).plan().does([]).tells(3, Finding::NodeUnreachable);
    // Nor a claim that was made for another object.
    removed().pod_gone(3).claim_of_another(3).plan().does([]);
}

#[test]
fn a_removed_id_under_a_listed_serial_is_no_stray() {
    let readded = cluster(3).list(|list| {
        let line = list.members.remove(&id(2)).expect("serial 2 is a member");
        list.members.insert(quorate_statemachine::MemberId(999), line);
    });
    readded.plan().never("delete");
}

#[test]
fn what_this_ledger_never_handed_out_is_none_of_its_business() {
    let newer = cluster(3).voter(7).not_listed(7).not_in_ledger(7);
    newer.ledger(|ledger| ledger.next_serial = Serial(3)).plan().does([]);
}

#[test]
fn drained_while_shrinking_it_waits() {
    cluster(5).wish(3).pod_terminating(1).plan().does(["remove 1"]);
    cluster(4).wish(3).pod_terminating(1).unheard(2).plan().never("remove");
}
