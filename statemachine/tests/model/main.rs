//! Model checking of the state machine: the production `plan` drives a model of etcd, Kubernetes and the launcher through
//! everything that can happen, faults and crashes at every point included. `QUORATE_MODEL=thorough` checks what takes
//! longer too; `QUORATE_MODEL=words` tells how each planted mistake is caught. Any failure is told as a story.

mod blame;
mod check;
mod config;
mod etcd;
mod faults;
mod found;
mod glimpse;
mod kubelet;
mod large;
mod observe;
mod operator;
mod planted;
mod rest;
mod state;
mod story;
mod thrift;
mod versions;
mod walk;
mod walks;

use std::time::Instant;

use quorate_statemachine::{Life, Retention, Storage, TemplateHash, Wish};
use stateright::{Checker, HasDiscoveries, Model};

use crate::{
    check::{COMES_TO_REST, Quorate, name},
    config::{Config, Origin, Volumes, voters},
    faults::Kind,
    planted::Mistake,
    state::Broken,
    versions::wishing,
};

/// Checks all that can be reached, and says how much that was.
fn exhaust(config: Config) {
    let begun = Instant::now();
    let name = config.name;
    let checker = Quorate::new(config).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name:<44} {states:>8} states, depth {depth:>3}, {:>6.1} s", begun.elapsed().as_secs_f64());
    let broken = checker.discoveries().into_iter().next();
    let story = broken.map(|(property, path)| story::tell(checker.model(), property, path));
    assert!(story.is_none(), "{}", story.unwrap_or_default());
    assert!(checker.is_done(), "{name}: not all states were seen");
}

fn thorough() -> bool {
    std::env::var("QUORATE_MODEL").is_ok_and(|value| value == "thorough")
}

/// So many faults, and one more where there is time.
fn at_least(faults: u8) -> u8 {
    if thorough() { faults + 1 } else { faults }
}

/// Pairs of all kinds where there is time, else of those that matter most to newcomers.
fn of_growing() -> &'static [Kind] {
    if thorough() { Kind::ALL_AND_CRASH } else { Kind::GROWING }
}

fn wish(replicas: u8, change: impl FnOnce(&mut Wish)) -> Wish {
    let mut wish = voters(replicas);
    change(&mut wish);
    wish
}

#[test]
fn one_stands() {
    exhaust(Config::new("1 stands", Origin::Standing(1), [voters(1)]).faults(at_least(2), Kind::STANDING));
}

#[test]
fn three_stand() {
    exhaust(Config::new("3 stand", Origin::Standing(3), [voters(3)]).faults(2, Kind::STANDING));
}

#[test]
fn five_stand() {
    let five = |name| Config::new(name, Origin::Standing(5), [voters(5)]);
    exhaust(five("5 stand").faults(1, Kind::STANDING));
    exhaust(five("5 stand in a prompt world").prompt().faults(2, Kind::ALL_AND_CRASH));
}

#[test]
fn one_is_founded() {
    exhaust(Config::new("0 -> 1", Origin::Nothing, [voters(1)]).faults(at_least(2), Kind::ALL));
}

#[test]
fn three_are_founded() {
    let three = |name| Config::new(name, Origin::Nothing, [voters(3)]);
    exhaust(three("0 -> 3").faults(at_least(0), Kind::ALL));
    exhaust(three("0 -> 3 in a prompt world").prompt().faults(2, of_growing()));
}

#[test]
fn five_are_founded() {
    let five = |name| Config::new(name, Origin::Nothing, [voters(5)]);
    exhaust(five("0 -> 5 in a prompt world").prompt().faults(1, Kind::ALL_AND_CRASH));
    if thorough() {
        exhaust(five("0 -> 5 in a prompt world, two faults").prompt().faults(2, Kind::JOINING));
    }
}

#[test]
fn begins_with_a_backup() {
    let from = |name, size| Config::new(name, Origin::Nothing, [voters(size)]).restored();
    exhaust(from("a backup -> 1", 1).faults(at_least(2), Kind::RESTORING));
    exhaust(from("a backup -> 3", 3).faults(0, Kind::RESTORING));
    exhaust(from("a backup -> 3 in a prompt world", 3).prompt().faults(at_least(1), Kind::RESTORING));
    exhaust(from("a backup -> 1 by two operators", 1).operators(2).faults(1, Kind::RESTORING));
    exhaust(from("a backup -> 1, seen piece by piece", 1).piecemeal().faults(1, Kind::RESTORING));
    exhaust(from("a backup -> 3 on emptyDirs", 3).on(Volumes::Ephemeral).prompt().faults(1, Kind::RESTORING));
}

#[test]
fn one_grows_to_three() {
    let grows = |name| Config::new(name, Origin::Standing(1), [voters(3)]);
    exhaust(grows("1 -> 3").faults(1, Kind::ALL));
    exhaust(grows("1 -> 3 in a prompt world").prompt().faults(2, of_growing()));
}

#[test]
fn three_grow_to_five() {
    let grow = |name| Config::new(name, Origin::Standing(3), [voters(5)]);
    exhaust(grow("3 -> 5").faults(0, Kind::ALL));
    exhaust(grow("3 -> 5 in a prompt world").prompt().faults(at_least(1), Kind::ALL_AND_CRASH));
}

#[test]
fn five_shrink_to_three() {
    let shrink = |name| Config::new(name, Origin::Standing(5), [voters(3)]);
    exhaust(shrink("5 -> 3").faults(1, Kind::STANDING));
    exhaust(shrink("5 -> 3 in a prompt world").prompt().faults(2, Kind::ALL_AND_CRASH));
}

#[test]
fn shrink_while_pods_are_deleted_by_force() {
    let forced = |name, from, to| Config::new(name, Origin::Standing(from), [voters(to)]);
    exhaust(forced("3 -> 1, by force", 3, 1).faults(2, Kind::FORCED));
    exhaust(forced("5 -> 3 in a prompt world, by force", 5, 3).prompt().faults(2, Kind::FORCED));
    exhaust(forced("3 stand, by force", 3, 3).faults(2, Kind::FORCED));
    exhaust(forced("5 -> 3, by force, seen late, prompt", 5, 3).lagging().prompt().faults(at_least(1), Kind::FORCED));
}

#[test]
fn three_shrink_to_one() {
    exhaust(Config::new("3 -> 1", Origin::Standing(3), [voters(1)]).faults(2, Kind::STANDING));
}

#[test]
fn two_operators() {
    let two = |name, origin, size| Config::new(name, origin, [voters(size)]).operators(2);
    exhaust(two("0 -> 1 by two operators", Origin::Nothing, 1).faults(1, Kind::ALL));
    exhaust(two("1 -> 3 by two operators", Origin::Standing(1), 3));
    exhaust(two("3 -> 1 by two operators", Origin::Standing(3), 1).faults(1, Kind::STANDING));
    if thorough() {
        let prompt = two("1 -> 3 by two operators, prompt world", Origin::Standing(1), 3).prompt();
        exhaust(prompt.faults(1, Kind::ALL_AND_CRASH));
    }
}

#[test]
fn hibernates_and_wakes() {
    let script = [voters(3), voters(0), voters(3)];
    exhaust(Config::new("3 -> 0 -> 3", Origin::Standing(3), script).faults(1, Kind::STANDING));
    let script = [voters(1), voters(0), voters(3)];
    exhaust(Config::new("1 -> 0 -> 3", Origin::Standing(1), script).prompt().faults(at_least(1), Kind::ALL_AND_CRASH));
}

#[test]
fn takes_on_a_new_template() {
    let script = [voters(3), wish(3, |wish| wish.template = TemplateHash(1))];
    exhaust(Config::new("3 restart", Origin::Standing(3), script).faults(at_least(1), Kind::STANDING));
    let script = [voters(1), wish(1, |wish| wish.template = TemplateHash(1))];
    exhaust(Config::new("1 restarts", Origin::Standing(1), script).faults(2, Kind::STANDING));
}

/// So many voters of one minor, then of others in turn.
fn versions(name: &'static str, size: u8, minors: &[u8]) -> Config {
    let script: Vec<Wish> = minors.iter().map(|minor| wishing(voters(size), *minor)).collect();
    Config::new(name, Origin::Standing(size), script).running(minors[0])
}

/// Two more are wished for on the way from the minor that admits one learner to the one that admits two.
fn grows_on_the_way() -> Config {
    let script = [wishing(voters(3), 5), wishing(voters(3), 6), wishing(voters(5), 6)];
    Config::new("3 -> 5 on the way from 3.5 to 3.6", Origin::Standing(3), script).running(5)
}

#[test]
fn changes_its_version() {
    exhaust(grows_on_the_way().faults(at_least(0), Kind::ROLLING));
    exhaust(versions("1 goes 3.6 -> 3.7", 1, &[6, 7]).faults(1, Kind::STANDING));
    exhaust(versions("1 goes 3.5 -> 3.7", 1, &[5, 7]).faults(1, Kind::STANDING));
    exhaust(versions("3 go 3.6 -> 3.7", 3, &[6, 7]).faults(1, Kind::ROLLING));
    exhaust(versions("3 go 3.5 -> 3.7 in a prompt world", 3, &[5, 7]).prompt().faults(1, Kind::ALL_AND_CRASH));
    exhaust(versions("3 go 3.7 -> 3.6", 3, &[7, 6]).faults(1, Kind::ROLLING));
    exhaust(
        versions("3 go 3.7 -> 3.6 in a prompt world", 3, &[7, 6]).prompt().faults(at_least(1), Kind::ALL_AND_CRASH),
    );
    exhaust(versions("3 go 3.6 -> 3.7 -> 3.6, half-way", 3, &[6, 7, 6]).prompt().faults(1, Kind::ROLLING));
    exhaust(versions("3 go 3.7 -> 3.6 -> 3.7, half-way", 3, &[7, 6, 7]).prompt().faults(1, Kind::ROLLING));
    exhaust(versions("5 go 3.6 -> 3.7 in a prompt world", 5, &[6, 7]).prompt().faults(1, Kind::ROLLING));
    exhaust(versions("3 go 3.6 -> 3.7 by two operators", 3, &[6, 7]).operators(2).prompt());
    exhaust(versions("3 go 3.7 -> 3.6 by two operators", 3, &[7, 6]).operators(2).prompt());
    exhaust(versions("3 go 3.6 -> 3.7 on emptyDirs", 3, &[6, 7]).on(Volumes::Ephemeral).faults(1, Kind::ROLLING));
    let script = [wishing(voters(1), 5), wishing(voters(3), 5), wishing(voters(3), 7)];
    let grows = Config::new("1 -> 3 and 3.5 -> 3.7", Origin::Standing(1), script).running(5).prompt();
    exhaust(grows.faults(1, Kind::ROLLING));
    let new_pods = |wish: Wish| Wish { template: TemplateHash(1), ..wish };
    let script = [voters(3), new_pods(wishing(voters(3), 7))];
    exhaust(Config::new("3.6 -> 3.7 with new pods", Origin::Standing(3), script).prompt().faults(1, Kind::ROLLING));
}

#[test]
fn goes_down_two_minors_or_over_the_old_log_in_one_wish() {
    exhaust(versions("3 go 3.7 -> 3.5", 3, &[7, 5]).faults(1, Kind::ROLLING));
    exhaust(versions("3 go 3.7 -> 3.5 in a prompt world", 3, &[7, 5]).prompt().faults(at_least(1), Kind::ROLLING));
    exhaust(versions("3 go 3.6 -> 3.5", 3, &[6, 5]).faults(1, Kind::ROLLING));
    exhaust(versions("3 go 3.6 -> 3.5 in a prompt world", 3, &[6, 5]).prompt().faults(at_least(1), Kind::ROLLING));
    exhaust(versions("3 go 3.7 -> 3.5 by two operators", 3, &[7, 5]).operators(2).prompt());
    exhaust(versions("3 go 3.7 -> 3.5 -> 3.7, half-way", 3, &[7, 5, 7]).prompt().faults(1, Kind::ROLLING));
}

#[test]
fn keeps_off_releases_that_fail() {
    let crashes = versions("3.7 crashes on 3", 3, &[6, 7]).crashing_on(&[7]);
    exhaust(crashes.prompt().faults(1, Kind::ROLLING));
    exhaust(versions("3.7 crashes on 3, and 3.6 again", 3, &[6, 7, 6]).crashing_on(&[7]).prompt());
    exhaust(versions("3.7 crashes on 1", 1, &[6, 7]).crashing_on(&[7]));
    exhaust(versions("3.7 fails its trial", 3, &[6, 7]).failing_trial_of(7).prompt().faults(1, Kind::ROLLING));
    exhaust(versions("3.6 crashes on the way down", 3, &[7, 6]).crashing_on(&[6]).prompt());
    // The last to be switched has the lowest serial.
    let last = |name, minors: &[u8], crashes: &'static [u8]| {
        versions(name, 3, minors).crashing_on(crashes).only_at(0).prompt()
    };
    exhaust(last("3.7 crashes on the last of 3, and 3.6 again", &[6, 7, 6], &[7]));
    exhaust(last("3.6 crashes on the last of 3, and 3.7 again", &[7, 6, 7], &[6]));
    exhaust(last("3.7 crashes on the last of 3, and so does 3.6", &[6, 7, 6], &[6, 7]));
}

#[test]
fn sleeps_between_versions() {
    let script = [voters(3), voters(0), wishing(voters(0), 7), wishing(voters(3), 7)];
    exhaust(Config::new("3 sleep, and wake for 3.7", Origin::Standing(3), script).prompt().faults(1, Kind::ROLLING));
}

#[test]
fn pauses() {
    let script = [voters(3), wish(1, |wish| wish.life = Life::Paused), voters(1)];
    let paused = |name| Config::new(name, Origin::Standing(3), script.clone());
    exhaust(paused("3 -> 1, paused on the way").faults(1, Kind::STANDING));
    exhaust(paused("3 -> 1, paused, in a prompt world").prompt().faults(at_least(1), Kind::ALL_AND_CRASH));
}

#[test]
fn goes() {
    for (name, on_delete) in [("deleted", Retention::Delete), ("deleted, volumes kept", Retention::Retain)] {
        let storage = Storage::Claims { on_delete, on_scale_down: Retention::Retain };
        let script = [
            wish(3, |wish| wish.storage = storage),
            wish(3, |wish| {
                wish.storage = storage;
                wish.life = Life::Deleting;
            }),
        ];
        let goes = |name| Config::new(name, Origin::Standing(3), script.clone());
        exhaust(goes(name).faults(1, Kind::STANDING));
        exhaust(goes(name).prompt().faults(2, Kind::ALL_AND_CRASH));
    }
}

#[test]
fn the_world_moves_while_it_is_observed() {
    let piecemeal =
        |name, from, to, faults| Config::new(name, from, [voters(to)]).piecemeal().faults(faults, Kind::ALL);
    exhaust(piecemeal("0 -> 1, seen piece by piece", Origin::Nothing, 1, 2));
    exhaust(piecemeal("1 -> 3, seen piece by piece", Origin::Standing(1), 3, 1).prompt());
    exhaust(piecemeal("3 -> 1, seen piece by piece", Origin::Standing(3), 1, at_least(1)));
    exhaust(piecemeal("1 -> 3, by two, piece by piece", Origin::Standing(1), 3, 0).operators(2).prompt());
    exhaust(piecemeal("3 -> 1, by two, piece by piece", Origin::Standing(3), 1, 0).operators(2));
}

#[test]
fn watches_lag() {
    let late = |name, from, to| Config::new(name, from, [voters(to)]).lagging();
    exhaust(late("0 -> 1, seen late", Origin::Nothing, 1).faults(at_least(1), Kind::ALL));
    exhaust(late("3 -> 1, seen late", Origin::Standing(3), 1).faults(1, Kind::ALL));
    let prompt = |name, from, to, faults| late(name, from, to).prompt().faults(faults, Kind::ALL_AND_CRASH);
    exhaust(prompt("0 -> 3, seen late, prompt world", Origin::Nothing, 3, at_least(1)));
    exhaust(prompt("1 -> 3, seen late, prompt world", Origin::Standing(1), 3, 1));
    exhaust(prompt("3 -> 1, seen late, prompt world", Origin::Standing(3), 1, 2));
    exhaust(prompt("3 -> 5, seen late, prompt world", Origin::Standing(3), 5, 1));
    exhaust(prompt("5 -> 3, seen late, prompt world", Origin::Standing(5), 3, at_least(1)));
    exhaust(prompt("0 -> 1, by two, seen late, prompt", Origin::Nothing, 1, 1).operators(2));
    exhaust(late("1 -> 3, by two, seen late, prompt", Origin::Standing(1), 3).prompt().operators(2));
    exhaust(prompt("3 -> 1, by two, seen late, prompt", Origin::Standing(3), 1, 1).operators(2));
}

#[test]
fn watches_lag_while_more_than_the_size_changes() {
    let late = |name, script: &[Wish]| Config::new(name, Origin::Standing(3), script).lagging().prompt();
    let sleeps = late("3 -> 0 -> 3, seen late", &[voters(3), voters(0), voters(3)]);
    exhaust(sleeps.faults(1, Kind::ALL_AND_CRASH));
    let restart = late("3 restart, seen late", &[voters(3), wish(3, |wish| wish.template = TemplateHash(1))]);
    exhaust(restart.faults(at_least(1), Kind::ROLLING));
    exhaust(versions("3 go 3.6 -> 3.7, seen late", 3, &[6, 7]).lagging().prompt().faults(1, Kind::ROLLING));
    exhaust(versions("3 go 3.5 -> 3.7, seen late", 3, &[5, 7]).lagging().prompt().faults(1, Kind::ROLLING));
    let drained = Config::new("1 -> 3, drained, seen late", Origin::Standing(1), [voters(3)]).lagging().prompt();
    exhaust(drained.faults(2, &[Kind::Evict, Kind::Crash]));
    let script = [voters(1), wish(1, |wish| wish.life = Life::Deleting)];
    exhaust(Config::new("0 -> 1, deleted, seen late", Origin::Nothing, script).lagging().faults(1, Kind::ALL));
}

#[test]
fn is_drained() {
    let drained = |name, from, to| Config::new(name, Origin::Standing(from), [voters(to)]).faults(2, &[Kind::Evict]);
    exhaust(drained("3 stand, drained", 3, 3));
    exhaust(drained("5 -> 3, drained", 5, 3).prompt());
    exhaust(drained("3 -> 1, drained", 3, 1).prompt());
    let network = |name| Config::new(name, Origin::Standing(3), [voters(3)]).on(Volumes::Network);
    let drain = &[Kind::Evict, Kind::Cordon];
    exhaust(network("3 on network disks, drained").faults(at_least(3), drain));
    exhaust(
        network("3 on network disks, drained, a kill").prompt().faults(3, &[Kind::Evict, Kind::Cordon, Kind::Kill]),
    );
    exhaust(Config::new("3 stand, cordoned and drained", Origin::Standing(3), [voters(3)]).faults(at_least(3), drain));
}

/// While the operator itself takes a voter down, the kubelet still reports its pod as ready.
#[test]
fn is_drained_while_it_rolls() {
    let restart = |name, size| {
        Config::new(name, Origin::Standing(size), [voters(size), wish(size, |wish| wish.template = TemplateHash(1))])
    };
    let (drain, and_kill) = (&[Kind::Evict, Kind::Crash], &[Kind::Evict, Kind::Kill, Kind::Crash]);
    exhaust(restart("3 restart, drained, a kill", 3).faults(2, and_kill));
    exhaust(restart("5 restart, drained", 5).faults(1, drain));
    // Of two that are cordoned the leader may be the third, which then hands over only when it is told to end.
    exhaust(restart("3 restart, one cordoned", 3).faults(1, &[Kind::Cordon]));
    exhaust(restart("1 restarts, drained", 1).faults(1, drain));
    exhaust(restart("3 restart, drained, seen late", 3).lagging().faults(1, drain));
    exhaust(restart("3 restart, drained, by two operators", 3).operators(2).faults(1, drain));
    exhaust(versions("3 go 3.5 -> 3.7, drained, a kill", 3, &[5, 7]).faults(2, and_kill));
    exhaust(versions("3 go 3.6 -> 3.7, drained", 3, &[6, 7]).faults(2, drain));
    exhaust(versions("3 go 3.7 -> 3.6, drained", 3, &[7, 6]).faults(2, drain));
    exhaust(versions("5 go 3.6 -> 3.7, drained", 5, &[6, 7]).faults(1, drain));
    exhaust(versions("1 goes 3.6 -> 3.7, drained", 1, &[6, 7]).faults(1, drain));
}

#[test]
fn one_learner_at_a_time() {
    // etcd 3.5.
    let slowly = [wishing(voters(3), 5)];
    exhaust(Config::new("0 -> 3, one learner", Origin::Nothing, slowly.clone()).faults(at_least(0), Kind::ALL));
    let grows = Config::new("1 -> 3, one learner, prompt world", Origin::Standing(1), slowly).running(5).prompt();
    exhaust(grows.faults(at_least(1), Kind::ALL_AND_CRASH));
}

#[test]
fn keeps_off_what_is_not_its_own() {
    exhaust(Config::new("volumes of an earlier object", Origin::OldClaims(3), [voters(3)]).faults(1, Kind::ALL));
}

#[test]
fn lives_on_other_volumes() {
    let three = |name, volumes| Config::new(name, Origin::Standing(3), [voters(3)]).on(volumes);
    exhaust(three("3 stand on network disks", Volumes::Network).faults(2, Kind::STANDING));
    exhaust(three("3 stand on emptyDirs", Volumes::Ephemeral).faults(2, Kind::STANDING));
    let founded = Config::new("0 -> 3 on emptyDirs, prompt world", Origin::Nothing, [voters(3)]).prompt();
    exhaust(founded.on(Volumes::Ephemeral).faults(1, Kind::ALL_AND_CRASH));
    let keep = Storage::Claims { on_delete: Retention::Retain, on_scale_down: Retention::Retain };
    let shrink = Config::new("3 -> 1, volumes kept", Origin::Standing(3), [wish(1, |wish| wish.storage = keep)]);
    exhaust(shrink.faults(1, Kind::STANDING));
}

/// Checks a configuration with a mistake in it, and that it is caught by the property that this breaks.
fn catch(config: Config, mistake: Mistake, broken: Broken) {
    catch_by(config, mistake, name(broken));
}

/// The same for any property, that it comes to rest among them.
fn catch_by(config: Config, mistake: Mistake, property: &'static str) {
    let model = Quorate::new(config.with(mistake));
    let by = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(by).spawn_bfs().join();
    let caught = checker.discoveries();
    println!("{mistake:?} is caught after {} states: {:?}", checker.unique_state_count(), caught.keys());
    if std::env::var("QUORATE_MODEL").is_ok_and(|value| value == "words") {
        for (broken, path) in caught.clone() {
            println!("{}", story::tell(checker.model(), broken, path));
        }
    }
    assert!(caught.contains_key(property), "{mistake:?} has to be caught by \"{property}\"");
}

#[test]
fn planted_mistakes_are_caught() {
    let from = |size, to: u8| Config::new("planted", Origin::Standing(size), [voters(to)]);
    catch(from(3, 1).operators(2), Mistake::ExpectedSetUnchecked, Broken::ExpectedSet);
    let two = from(1, 3).operators(2).prompt().faults(1, &[Kind::DeleteClaim, Kind::Crash]);
    catch(two, Mistake::LedgerUnread, Broken::IdentityReused);
    catch(from(1, 3).faults(2, &[Kind::DeleteClaim, Kind::DeletePod]), Mistake::CreatedTwice, Broken::OtherVolume);
    catch(from(3, 1).faults(1, &[Kind::Kill]), Mistake::RemovedInHaste, Broken::LiveVoter);
    // Found by a chaos run: the last of three, killed right after the others were removed, waits for the vote of one that is gone.
    catch(from(3, 1).faults(1, &[Kind::Kill]), Mistake::RemovalUnwritten, Broken::Unwritten);
    let forced = from(5, 3).prompt().faults(2, &[Kind::ForceDelete, Kind::Kill]);
    catch(forced, Mistake::ConnectionsUnread, Broken::LiveVoter);
    catch(from(1, 3), Mistake::PromotedLagging, Broken::Promotion);
    catch(from(3, 5).faults(1, &[Kind::Kill]), Mistake::PromotedDead, Broken::Promotion);
    catch(from(1, 3).faults(2, &[Kind::Kill, Kind::Swap]), Mistake::PromotedCreatable, Broken::OtherVolume);
    let founding = Config::new("planted", Origin::Nothing, [voters(3)]);
    catch(founding, Mistake::SeededTwice, Broken::SeededTwice);
    let one = || Config::new("planted", Origin::Nothing, [voters(1)]);
    catch(one().faults(2, &[Kind::Kill, Kind::Swap]), Mistake::MarkUnchecked, Broken::SeededTwice);
    catch(one().faults(2, &[Kind::DeletePod, Kind::Swap]), Mistake::MarkUnchecked, Broken::SeededTwice);
    catch(from(3, 1), Mistake::VolumeDeletedBeforeRemoval, Broken::VolumeDeleted);
    let restored = || Config::new("planted", Origin::Nothing, [voters(3)]).restored();
    catch(restored(), Mistake::SeededUnrestored, Broken::Unrestored);
    catch(restored().faults(1, &[Kind::DeletePod]), Mistake::RestoredAgain, Broken::RestoredAgain);
    let up = || versions("planted", 3, &[6, 7]).prompt();
    catch(up(), Mistake::SwitchedTwo, Broken::StoppedBesideDown);
    catch(versions("planted", 3, &[6, 7]), Mistake::SwitchedBeforeBack, Broken::StoppedBesideDown);
    catch(up(), Mistake::LeaderSwitched, Broken::LeaderStopped);
    catch(up(), Mistake::Untried, Broken::Untried);
    catch(versions("planted", 3, &[5, 7]).prompt(), Mistake::JumpedTwoMinors, Broken::TwoMinors);
    catch(versions("planted", 3, &[7, 6]).prompt(), Mistake::TakenDownByImage, Broken::TooLow);
    catch(versions("planted", 3, &[5, 7]).prompt(), Mistake::LogsLeft, Broken::OldLog);
    catch(grows_on_the_way(), Mistake::LearnersForWhatIsTold, Broken::KnownToSome);
    let killed = || versions("planted", 3, &[6, 7]).prompt().faults(1, &[Kind::Kill]);
    catch(killed(), Mistake::OthersUnseen, Broken::Quorum);
    let script = [voters(3), wish(3, |wish| wish.template = TemplateHash(1))];
    let restart = Config::new("planted", Origin::Standing(3), script).prompt().faults(1, &[Kind::Kill]);
    catch(restart, Mistake::OthersUnseen, Broken::Quorum);
    let script = [voters(3), wish(3, |wish| wish.template = TemplateHash(1))];
    let cordoned = Config::new("planted", Origin::Standing(3), script).prompt().faults(1, &[Kind::Cordon]);
    catch(cordoned, Mistake::CordonOverlooked, Broken::StoppedForGood);
    catch(killed().lagging(), Mistake::GlanceTrusted, Broken::StoppedBesideDown);
    let network = from(3, 3).on(Volumes::Network).faults(1, &[Kind::Cut]);
    catch(network, Mistake::ForceDeletedUnreachable, Broken::TwoPlaces);
}

/// Those that do too little, too much or in the wrong moment, though each call for itself is fine.
#[test]
fn planted_mistakes_of_judgement_are_caught() {
    let from = |size, to: u8| Config::new("planted", Origin::Standing(size), [voters(to)]);
    // One is gone, and another is on its way out but still serves: etcd itself has nothing against the removal.
    let thinned = from(3, 3).faults(2, &[Kind::Gone, Kind::DeletePod]);
    catch(thinned, Mistake::BuriedInHaste, Broken::Quorum);
    // One missed the last writes, the next one's volume is emptied, and these two come back first.
    let emptied = from(3, 3).faults(2, &[Kind::AllPods, Kind::Swap, Kind::Crash]);
    catch(emptied, Mistake::RejoinedEmpty, Broken::WriteLost);
    let script = [voters(3), wish(1, |wish| wish.life = Life::Paused)];
    let paused = Config::new("planted", Origin::Standing(3), script);
    catch(paused, Mistake::PauseOverlooked, Broken::PausedWrite);
    catch(from(3, 3).faults(2, &[Kind::Evict]), Mistake::BudgetTooLow, Broken::Evicted);
    let script = [voters(3), wish(3, |wish| wish.template = TemplateHash(1))];
    let restart = || Config::new("planted", Origin::Standing(3), script.clone()).faults(1, &[Kind::Evict]);
    catch(restart(), Mistake::BudgetKept, Broken::Evicted);
    catch(restart(), Mistake::BudgetHurried, Broken::Evicted);
    let switch = || versions("planted", 3, &[6, 7]).faults(1, &[Kind::Evict]);
    catch(switch(), Mistake::BudgetKept, Broken::Evicted);
    catch(switch(), Mistake::BudgetHurried, Broken::Evicted);
    let grown = from(1, 3).prompt().faults(1, &[Kind::Evict]);
    catch(grown, Mistake::PromotedUncounted, Broken::Evicted);
    // Without crashes there is only one way to go.
    let founding = Config::new("planted", Origin::Nothing, [voters(1)]).prompt().faults(0, &[Kind::Crash]);
    catch(founding, Mistake::SerialsWasted, Broken::RunAway);
    catch_by(from(1, 1).faults(1, &[Kind::DeletePod]), Mistake::NeverHealed, COMES_TO_REST);
    // Its watches show nothing yet of a claim that it has made itself.
    let script = [voters(1), wish(1, |wish| wish.life = Life::Deleting)];
    let deleted = Config::new("planted", Origin::Nothing, script).lagging();
    catch_by(deleted, Mistake::GlanceTrusted, COMES_TO_REST);
}
