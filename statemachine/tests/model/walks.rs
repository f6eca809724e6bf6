//! The worlds to walk through at random: larger than those that are exhausted, with more faults, more wishes in a row
//! and more operators at once.

use quorate_statemachine::{Life, Retention, Storage, TemplateHash, Wish};

use crate::{
    config::{Config, Origin, Volumes, voters},
    faults::Kind,
    planted::Mistake,
    state::Broken,
    versions::wishing,
    walk::{roam, stumble},
    wish,
};

/// So many voters in turn, of whom the first stand.
fn sizes<const N: usize>(name: &'static str, sizes: [u8; N]) -> Config {
    Config::new(name, Origin::Standing(sizes[0]), sizes.map(voters))
}

fn founded(name: &'static str) -> Config {
    Config::new(name, Origin::Nothing, [voters(5)])
}

/// So many voters of a minor in turn, of whom the first stand.
fn versions<const N: usize>(name: &'static str, script: [(u8, u8); N]) -> Config {
    let wishes = script.map(|(size, minor)| wishing(voters(size), minor));
    Config::new(name, Origin::Standing(script[0].0), wishes).running(script[0].1)
}

fn up_and_down(name: &'static str) -> Config {
    sizes(name, [1, 3, 5, 3, 1])
}

/// So often each: together some fifteen seconds on two cores.
const WALKS: u32 = 250;

#[test]
fn many_stand_through_four_faults() {
    roam(sizes("walk: 5 stand", [5]).faults(4, Kind::ALL), WALKS, 600);
    roam(sizes("walk: 7 stand", [7]).faults(4, Kind::ALL), WALKS, 600);
}

#[test]
fn five_are_founded_through_four_faults() {
    roam(founded("walk: 0 -> 5").faults(4, Kind::ALL), WALKS, 800);
    roam(founded("walk: a backup -> 5").restored().faults(4, Kind::RESTORING), WALKS, 800);
}

#[test]
fn one_becomes_five_and_one_again() {
    roam(up_and_down("walk: 1 -> 3 -> 5 -> 3 -> 1").faults(3, Kind::ALL), WALKS, 1200);
    roam(up_and_down("walk: the same, by two operators").operators(2).faults(3, Kind::ALL), WALKS, 1200);
}

#[test]
fn two_operators_see_piece_by_piece() {
    roam(
        sizes("walk: 3 -> 5 -> 3, piece by piece", [3, 5, 3]).operators(2).piecemeal().faults(3, Kind::ALL),
        WALKS,
        1600,
    );
}

#[test]
fn two_operators_see_what_their_watches_bring_late() {
    let late = sizes("walk: 3 -> 5 -> 3, seen late", [3, 5, 3]).operators(2).lagging();
    roam(late.faults(3, Kind::ALL), WALKS, 1600);
}

#[test]
fn versions_go_up_and_are_turned_back() {
    let five = versions("walk: 5 go 3.5 -> 3.7 -> 3.6 -> 3.7", [(5, 5), (5, 7), (5, 6), (5, 7)]);
    roam(five.faults(3, Kind::ALL), WALKS, 1600);
    let sized = versions("walk: 3 to 5 and 3.5 to 3.7, and back", [(3, 5), (5, 5), (5, 7), (3, 6)]);
    roam(sized.faults(3, Kind::ALL), WALKS, 1600);
    let down = versions("walk: 5 go 3.7 -> 3.5 -> 3.6 -> 3.5", [(5, 7), (5, 5), (5, 6), (5, 5)]);
    roam(down.faults(3, Kind::ALL), WALKS, 1600);
}

#[test]
fn versions_go_up_by_two_operators() {
    let three = versions("walk: 3.6 -> 3.7 -> 3.6 by two operators", [(3, 6), (3, 7), (3, 6)]);
    roam(three.operators(2).faults(3, Kind::ALL), WALKS, 1600);
}

#[test]
fn sleeps_and_pauses_and_goes() {
    let new_pods = |wish: Wish| Wish { template: TemplateHash(1), ..wish };
    let paused = wish(3, |wish| wish.life = Life::Paused);
    let script = [voters(3), voters(0), voters(5), paused, new_pods(voters(3))];
    let config = Config::new("walk: 3, 0, 5, paused, 3 with new pods", Origin::Standing(3), script);
    roam(config.faults(3, Kind::ALL), WALKS, 1600);
    let storage = Storage::Claims { on_delete: Retention::Delete, on_scale_down: Retention::Retain };
    let kept = |replicas| wish(replicas, |wish| wish.storage = storage);
    let script = [kept(3), kept(5), kept(3), Wish { life: Life::Deleting, ..kept(3) }];
    let config = Config::new("walk: 3, 5, 3, volumes kept, deleted", Origin::Standing(3), script).operators(2);
    roam(config.faults(3, Kind::ALL), WALKS, 1200);
}

#[test]
fn other_volumes() {
    roam(sizes("walk: 5 -> 3 -> 5 on emptyDirs", [5, 3, 5]).on(Volumes::Ephemeral).faults(2, Kind::ALL), WALKS, 1200);
    roam(
        sizes("walk: 5 -> 3 -> 5 on network disks", [5, 3, 5]).on(Volumes::Network).operators(2).faults(3, Kind::ALL),
        WALKS,
        1200,
    );
}

/// Those that take more luck are left to the exhaustive checks: `LedgerUnread`, `CreatedTwice`, `PromotedDead` and
/// `PromotedCreatable` were seen by fewer than one of some hundred walks.
#[test]
fn walks_stumble_over_planted_mistakes() {
    let large = || up_and_down("planted").faults(3, Kind::ALL);
    let five = || founded("planted").faults(3, Kind::RESTORING);
    let up = || versions("planted", [(5, 6), (5, 7)]).faults(3, Kind::ALL);
    let network = sizes("planted", [5]).on(Volumes::Network).faults(3, Kind::ALL);
    for (config, mistake, broken) in [
        (large().operators(2), Mistake::ExpectedSetUnchecked, Broken::ExpectedSet),
        (large(), Mistake::RemovedInHaste, Broken::LiveVoter),
        (large(), Mistake::PromotedLagging, Broken::Promotion),
        (large(), Mistake::VolumeDeletedBeforeRemoval, Broken::VolumeDeleted),
        (five(), Mistake::SeededTwice, Broken::SeededTwice),
        (five().restored(), Mistake::SeededUnrestored, Broken::Unrestored),
        (five().restored(), Mistake::RestoredAgain, Broken::RestoredAgain),
        (up(), Mistake::SwitchedTwo, Broken::StoppedBesideDown),
        (up(), Mistake::SwitchedBeforeBack, Broken::StoppedBesideDown),
        (up(), Mistake::LeaderSwitched, Broken::LeaderStopped),
        (up(), Mistake::Untried, Broken::Untried),
        (network, Mistake::ForceDeletedUnreachable, Broken::TwoPlaces),
    ] {
        stumble(config, mistake, broken, 500);
    }
}
