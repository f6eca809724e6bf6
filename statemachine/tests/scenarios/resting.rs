//! Paused, hibernated, woken, deleted.

use quorate_statemachine::{Finding, Life, LookAgain, Memory, Phase, Trouble};

use crate::scene::{Scene, cluster, founding, seeding, wished};

#[test]
fn a_paused_cluster_is_left_as_it_is() {
    for scene in [wished(3), seeding(3), cluster(3).pod_gone(1), cluster(5).wish(0), cluster(3).seat_gone(1)] {
        let told = scene.life(Life::Paused).plan().does([]).keeps_ledger().phase(Phase::Paused).tells_nothing();
        told.looks(LookAgain::AtRest);
    }
}

#[test]
fn hibernation_takes_the_pods_and_keeps_the_rest() {
    let told = cluster(3).wish(0).plan().does(["delete pod 0", "delete pod 1", "delete pod 2"]);
    told.phase(Phase::Scaling).keeps_ledger();
    let asleep = (0..3).fold(cluster(3), Scene::pod_gone).unknown().wish(0);
    asleep.plan().does([]).phase(Phase::Hibernated).looks(LookAgain::AtRest).keeps_ledger();
    cluster(3).wish(0).spare(3).plan().also_does("delete pod 3");
}

#[test]
fn hibernation_writes_the_last_list_down_first() {
    let told = cluster(3).entry(2, |entry| entry.standing = quorate_statemachine::Standing::Spare).wish(0).plan();
    let voter = quorate_statemachine::Standing::Voter(crate::scene::id(2));
    assert_eq!(told.entry(2).map(|entry| entry.standing), Some(voter));
}

#[test]
fn hibernation_spares_what_would_be_lost_with_its_pod() {
    let going = cluster(3).claim_terminating(1).wish(0).plan();
    going.does(["delete pod 0", "delete pod 2"]).tells(1, Finding::VolumeGoing).phase(Phase::Scaling);
    let away = cluster(3).node_not_ready(1).wish(0).plan();
    away.does(["delete pod 0", "delete pod 2"]).tells(1, Finding::NodeUnreachable);
    cluster(3).on_empty_dirs().wish(0).plan().does([]).phase(Phase::Failed).looks(LookAgain::Later);
}

#[test]
fn what_was_never_founded_sleeps_at_once() {
    wished(0).plan().does([]).phase(Phase::Hibernated).keeps_ledger();
    founding(3).wish(0).plan().does(["delete pod 0", "delete pod 1", "delete pod 2"]);
    seeding(3).wish(0).plan().also_does("delete pod 0").never("delete claim");
}

#[test]
fn waking_up_brings_all_back_and_then_takes_the_new_size() {
    let asleep = |wish| (0..3).fold(cluster(3), Scene::pod_gone).unknown().wish(wish);
    for wish in [1, 3, 5] {
        let told = asleep(wish).plan();
        let told = told.does(["resume 0 on claim-0", "resume 1 on claim-1", "resume 2 on claim-2"]);
        told.phase(Phase::Healing);
    }
    cluster(3).wish(5).plan().also_does("claim 3").also_does("claim 4");
    cluster(3).wish(1).plan().does(["remove 2"]);
}

#[test]
fn a_seed_that_slept_goes_on_as_the_seed() {
    seeding(3).pod_gone(0).pod_gone(1).pod_gone(2).plan().also_does("pod 0 on claim-0").phase(Phase::Seeding);
}

#[test]
fn deletion_takes_pods_then_claims_then_the_finalizer() {
    let deleting = || cluster(2).life(Life::Deleting);
    deleting().plan().does(["delete pod 0", "delete pod 1"]).phase(Phase::Deleting);
    deleting().pod_terminating(0).pod_gone(1).plan().does([]).looks(LookAgain::Soon);
    let no_pods = || deleting().pod_gone(0).pod_gone(1);
    no_pods().plan().does(["delete claim 0", "delete claim 1"]);
    no_pods().claim_terminating(0).claim_gone(1).plan().does(["release"]);
    no_pods().claim_of_another(0).claim_gone(1).plan().does(["release"]);
}

#[test]
fn deletion_that_retains_lets_go_at_once() {
    let told = cluster(2).retaining().life(Life::Deleting).plan();
    told.does(["delete pod 0", "delete pod 1", "release"]);
    cluster(1).on_empty_dirs().life(Life::Deleting).plan().does(["delete pod 0", "release"]);
}

#[test]
fn deletion_always_comes_to_its_end() {
    // A pod on a node that is away is asked to go, and not waited for.
    cluster(1).node_not_ready(0).life(Life::Deleting).plan().does(["delete pod 0"]);
    let stuck = || cluster(1).node_not_ready(0).pod_terminating(0).life(Life::Deleting);
    stuck().plan().does(["delete claim 0"]);
    stuck().claim_terminating(0).plan().does(["release"]);
    for memory in [Memory::Blank, Memory::Unreadable] {
        wished(3).memory(memory).life(Life::Deleting).plan().does(["release"]);
    }
    let troubled = cluster(1).unheard(0).trouble(0, Trouble::ImageMissing).unknown().life(Life::Deleting);
    troubled.plan().does(["delete pod 0"]);
}
