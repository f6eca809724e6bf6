//! Worlds that may take minutes each, left out unless ignored tests are asked for, as in `make e2e`: two operators at once
//! through two faults, and others through more faults than are checked every day. What would not end in five minutes is not
//! among them.

use quorate_statemachine::Life;

use crate::{
    config::{Config, Origin, voters},
    exhaust,
    faults::Kind,
    versions, wish,
};

fn two_operators(name: &'static str, origin: Origin, size: u8) -> Config {
    Config::new(name, origin, [voters(size)]).operators(2)
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn two_operators_found_one_in_a_prompt_world_through_two_faults() {
    let one = two_operators("0 -> 1, two operators, two faults, prompt", Origin::Nothing, 1).prompt();
    exhaust(one.faults(2, Kind::ALL_AND_CRASH));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn two_operators_shrink_three_to_one_in_a_prompt_world_through_two_faults() {
    let three = two_operators("3 -> 1, two operators, two faults, prompt", Origin::Standing(3), 1).prompt();
    exhaust(three.faults(2, Kind::ALL_AND_CRASH));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn three_sleep_and_wake_in_a_prompt_world_through_two_faults() {
    let script = [voters(3), voters(0), voters(3)];
    let three = Config::new("3 -> 0 -> 3, two faults, prompt", Origin::Standing(3), script).prompt();
    exhaust(three.faults(2, Kind::ALL_AND_CRASH));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn three_are_paused_on_the_way_to_one_through_two_faults() {
    let script = [voters(3), wish(1, |wish| wish.life = Life::Paused), voters(1)];
    let three = Config::new("3 -> 1, paused on the way, two faults", Origin::Standing(3), script);
    exhaust(three.faults(2, Kind::STANDING));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn keeps_off_volumes_of_an_earlier_object_through_two_faults() {
    let three = Config::new("volumes of an earlier object, two faults", Origin::OldClaims(3), [voters(3)]);
    exhaust(three.faults(2, Kind::ALL));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn keeps_off_volumes_of_an_earlier_object_in_a_prompt_world_through_two_faults() {
    let three = Config::new("volumes of an earlier object, prompt", Origin::OldClaims(3), [voters(3)]).prompt();
    exhaust(three.faults(2, Kind::ALL_AND_CRASH));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn five_are_founded_in_a_prompt_world_through_two_faults_of_growing() {
    let five = Config::new("0 -> 5, two faults of growing, prompt", Origin::Nothing, [voters(5)]).prompt();
    exhaust(five.faults(2, Kind::GROWING));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn five_are_founded_in_a_prompt_world_through_two_faults_of_all_kinds() {
    let five = Config::new("0 -> 5, two faults of all kinds, prompt", Origin::Nothing, [voters(5)]).prompt();
    exhaust(five.faults(2, Kind::ALL_AND_CRASH));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn five_lose_a_majority_of_their_volumes() {
    let five = Config::new("5 stand, three claims are deleted", Origin::Standing(5), [voters(5)]);
    exhaust(five.faults(3, &[Kind::DeleteClaim]));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn five_lose_a_majority_of_their_volumes_in_a_prompt_world() {
    let five = Config::new("5 stand, three claims are deleted, prompt", Origin::Standing(5), [voters(5)]).prompt();
    exhaust(five.faults(3, &[Kind::DeleteClaim]));
}

#[test]
#[ignore = "takes minutes: `--include-ignored`"]
fn three_go_to_3_7_through_two_faults() {
    exhaust(versions("3 go 3.6 -> 3.7, two faults", 3, &[6, 7]).faults(2, Kind::ROLLING));
}
