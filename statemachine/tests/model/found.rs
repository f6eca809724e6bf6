//! What random walks and thorough checks have found, each in the smallest world that shows it.

use quorate_statemachine::TemplateHash;

use crate::{
    config::{Config, Origin, voters},
    exhaust,
    faults::Kind,
    versions, wish,
};

/// The logs are cut, the first member is told to run 3.7 and is on its way there; a volume is lost, and the newcomer
/// joins under a leader that still holds the old entries in memory.
#[test]
fn a_newcomer_gets_no_old_log_while_the_first_member_goes_to_3_7() {
    exhaust(versions("3 go 3.5 -> 3.7, a volume is lost", 3, &[5, 7]).faults(1, &[Kind::DeleteClaim]));
}

/// One operator means to stop a member. Before it does, the leadership goes elsewhere and back, so that it is another
/// member's turn for the other operator. Each looks only at whether the pod that it stops is unchanged.
#[test]
fn two_operators_do_not_stop_two_members_though_the_leader_changes() {
    let script = [voters(3), wish(3, |wish| wish.template = TemplateHash(1))];
    let restart = Config::new("3 restart, by two operators", Origin::Standing(3), script).operators(2).prompt();
    exhaust(restart.faults(1, &[Kind::Kill]));
}

/// The same, where the ledger says which member was to be told.
#[test]
fn two_operators_do_not_switch_two_members_though_the_leader_changes() {
    let switch = versions("3 go 3.6 -> 3.7, by two operators", 3, &[6, 7]).operators(2).prompt();
    exhaust(switch.faults(2, &[Kind::Kill]));
}

/// A pod that was made anew serves as a voter before it has a voter's label: until then no budget speaks of it.
#[test]
fn a_drain_spares_voters_that_have_just_come_back() {
    let wakes = [voters(3), voters(0), voters(3)];
    exhaust(Config::new("3 -> 0 -> 3, drained", Origin::Standing(3), wakes).faults(1, &[Kind::Evict]));
    let back = Config::new("3 come back, drained", Origin::Standing(3), [voters(3)]);
    exhaust(back.prompt().faults(2, &[Kind::AllPods, Kind::Evict]));
}

/// A learner becomes a voter before its pod has a voter's label, and the only other voter is no quorum of the two.
#[test]
fn a_drain_spares_one_that_has_just_been_promoted() {
    let grow = |name| Config::new(name, Origin::Standing(1), [voters(3)]).prompt();
    exhaust(grow("1 -> 3, drained").faults(2, &[Kind::Evict]));
    exhaust(grow("1 -> 3, drained, and operators end").faults(2, &[Kind::Evict, Kind::Crash]));
}

/// One operator means to remove a learner that is not wished for any more. Before it does, the other makes it a voter,
/// which the guard does not see: the members are the same.
#[test]
fn two_operators_do_not_remove_a_learner_that_has_become_a_voter() {
    let grow = Config::new("3 -> 5 -> 3, by two operators", Origin::Standing(3), [voters(5), voters(3)]);
    exhaust(grow.operators(2).prompt().faults(1, &[Kind::Kill, Kind::Crash]));
}

/// A seed's claim is deleted before its ticket to create is taken back, and goes with its pod only. Emptied meanwhile, it is
/// no volume to create on.
#[test]
fn a_seed_whose_claim_goes_is_not_created_again() {
    let one = Config::new("0 -> 1, its claim goes and is emptied", Origin::Nothing, [voters(1)]);
    exhaust(one.faults(3, &[Kind::DeleteClaim, Kind::Kill, Kind::Swap]));
}

/// A member is told to run another image while its node is cut off, so that its pod counts as down. When the node is back it
/// counts again, until the kubelet has heard of the image.
#[test]
fn a_drain_spares_the_others_of_one_that_is_switched_when_its_node_is_back() {
    let drained = versions("3 go 3.6 -> 3.7, drained, a node is away", 3, &[6, 7]);
    exhaust(drained.faults(2, &[Kind::Evict, Kind::Cut, Kind::Crash]));
    let script = [voters(3), wish(3, |wish| wish.template = TemplateHash(1))];
    let restart = Config::new("3 restart, drained, a node is away", Origin::Standing(3), script);
    exhaust(restart.faults(2, &[Kind::Evict, Kind::Cut, Kind::Crash]));
}
