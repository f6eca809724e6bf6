//! A cluster that begins with a backup: one pod restores, and becomes the seed when that is done.

use quorate_statemachine::{Finding, Phase, Readiness, Restore, Seeding, Serial, Start, Storage, Trouble, Version};

use crate::scene::{Scene, cluster, founding, release, seeding, wished};

fn from_backup(scene: Scene) -> Scene {
    scene.begins_with_backup(Readiness::Ready)
}

#[test]
fn the_first_pod_restores_and_has_the_first_choice_of_a_node() {
    let told = from_backup(wished(3)).plan().does(["claim 0", "restore 0 on new claim"]).phase(Phase::Restoring);
    assert_eq!(told.ledger().seeding, Seeding::NotBegun);
    let unplaced = from_backup(founding(1)).wish(3).restoring(0, Restore::UnderWay).unheard(0);
    unplaced.pod(0, |pod| pod.node = None).plan().does([]).phase(Phase::Restoring);
    let placed = from_backup(founding(1)).wish(3).restoring(0, Restore::UnderWay);
    let others = ["claim 1", "pod 1 on new claim", "claim 2", "pod 2 on new claim"];
    placed.plan().does(others).phase(Phase::Restoring).tells_nothing();
    from_backup(wished(1)).on_empty_dirs().plan().does(["restore 0 on emptyDir"]);
}

#[test]
fn without_a_backup_nothing_is_made() {
    let awaited = wished(3).begins_with_backup(Readiness::Awaited).plan();
    awaited.does([]).phase(Phase::Restoring).tells_all(Finding::BackupAwaited);
    let unfit = wished(3).begins_with_backup(Readiness::Unfit).plan();
    unfit.does([]).phase(Phase::Restoring).tells_all(Finding::BackupUnfit);
    // A restore that is under way goes on: it knows all that it needs.
    let at_work = founding(1).begins_with_backup(Readiness::Unfit).restoring(0, Restore::UnderWay);
    at_work.plan().does([]).tells_nothing();
}

#[test]
fn who_has_restored_becomes_the_seed_and_nobody_else() {
    let others_wait = from_backup(founding(3)).restoring(2, Restore::UnderWay);
    others_wait.plan().does([]).phase(Phase::Restoring);
    let told = from_backup(founding(3)).restored(2).plan().does(["ticket 2: seed on claim-2"]).phase(Phase::Seeding);
    assert_eq!(told.ledger().seeding, Seeding::Begun(Serial(2)));
}

#[test]
fn a_restore_that_fails_is_told_and_goes_on() {
    let told = from_backup(founding(1)).restoring(0, Restore::Fails).plan();
    told.does([]).phase(Phase::Restoring).tells(0, Finding::RestoreFails);
}

#[test]
fn a_restore_that_was_killed_is_repeated_on_its_volume() {
    from_backup(founding(3)).pod_gone(0).plan().does(["restore 0 on claim-0"]);
    from_backup(founding(1)).restored(0).pod_finished(0).plan().does(["delete pod 0"]);
    from_backup(founding(1)).restoring(0, Restore::Fails).outdated(0).plan().does(["delete pod 0"]);
    let elsewhere = from_backup(founding(1)).restoring(0, Restore::UnderWay).node_not_ready(0).plan();
    elsewhere.does(["claim 1", "restore 1 on new claim"]);
}

#[test]
fn what_was_restored_for_another_version_is_restored_anew() {
    let other = Version::new(7, 3);
    let told = from_backup(founding(1)).restored(0).pod(0, |pod| pod.release = Some(release(other)));
    told.clone().plan().does(["delete pod 0"]);
    // Its image can't be had: not exchanged in place either.
    let missing = told.restoring(0, Restore::UnderWay).unheard(0).trouble(0, Trouble::ImageMissing);
    missing.plan().does(["delete pod 0"]);
}

#[test]
fn one_in_which_an_etcd_answers_was_told_to_start_whatever_became_of_its_ticket() {
    let ticketless =
        cluster(1).wish(3).learner(1).entry(1, |entry| entry.create = None).line(1, |line| line.started = false);
    let other = ticketless.pod(1, |pod| (pod.ticket, pod.release) = (None, Some(release(Version::new(6, 17)))));
    other.clone().plan().never("delete pod").never("prepare");
    other.pod(1, |pod| pod.restores = true).plan().never("delete pod").never("prepare");
}

#[test]
fn once_a_seed_is_chosen_nothing_is_restored() {
    from_backup(seeding(3)).pod_gone(0).plan().does(["pod 0 on claim-0"]).phase(Phase::Seeding);
    for lost in [seeding(3).seat_gone(0), seeding(3).claim_swapped(0)] {
        from_backup(lost).plan().never("restore").phase(Phase::QuorumLost);
    }
    from_backup(cluster(3)).pod_gone(0).plan().does(["resume 0 on claim-0"]);
    from_backup(cluster(3)).pod_gone(0).pod_gone(1).pod_gone(2).unknown().plan().never("restore");
    let healing = from_backup(cluster(3)).seat_gone(2).plan().never("restore").also_does("remove 2");
    healing.phase(Phase::Healing);
}

#[test]
fn a_second_pod_that_restored_never_joins() {
    let both = from_backup(cluster(1)).wish(3).spare(1).restored(1).spare(2);
    let told = both.plan().never("add 1").also_does("add 2").also_does("delete pod 1");
    told.also_does("claim 3");
    let late = from_backup(cluster(3)).spare(3).restored(3).pod_gone(3).plan();
    late.does(["delete claim 3"]);
}

#[test]
fn it_sleeps_and_goes_as_any_other() {
    from_backup(founding(3)).wish(0).restoring(0, Restore::UnderWay).plan().also_does("delete pod 0");
    let seed = from_backup(seeding(1)).restored(0).waiting(0).pod(0, |pod| pod.ticket = None);
    assert!(matches!(seed.world.wish.storage, Storage::Claims { .. }));
    seed.plan().does(["ticket 0: seed on claim-0"]);
    from_backup(seeding(1)).restored(0).ticket(0, Start::Seed).plan().does([]);
}
