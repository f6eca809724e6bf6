//! Nobody answers: all pods gone, a majority of volumes lost, members that are not ours.

use quorate_statemachine::{
    Birth, ClusterId, Finding, Listed, LookAgain, MemberId, Phase, Refusal, Role, Serial, Step, Version,
};

use crate::scene::{Scene, USUAL, cluster, release};

fn all_pods_gone() -> Scene {
    (0..3).fold(cluster(3), Scene::pod_gone).unknown()
}

#[test]
fn all_pods_come_back_at_once() {
    let told = all_pods_gone().plan();
    let told = told.does(["resume 0 on claim-0", "resume 1 on claim-1", "resume 2 on claim-2"]);
    told.phase(Phase::Healing).tells_all(Finding::EtcdUnknown).keeps_ledger();
}

#[test]
fn a_minority_without_volumes_waits_for_the_list() {
    let told = all_pods_gone().claim_gone(1).plan().does(["resume 0 on claim-0", "resume 2 on claim-2"]);
    told.phase(Phase::Healing).tells(1, Finding::VolumeLost);
}

/// All end on the same entry of their logs, again at each start: only another patch brings them back.
#[test]
fn a_majority_that_crashes_on_what_it_ran_well_on_gets_the_patch_that_is_wished() {
    let next = Version::new(6, 17);
    let all_crash = || (0..3).fold(cluster(3).unknown(), Scene::crashing);
    all_crash().plan().never("switch");
    let told = all_crash().wish_version(next).plan();
    let told = (0..3).fold(told, |told, serial| told.also_does(&format!("switch {serial} to 3.6.17")));
    assert_eq!(told.entry(0).and_then(|entry| entry.former.clone()), Some(release(USUAL)));
    // Of another minor nobody can know whether it would be one too many, and one that has failed is not tried again.
    all_crash().wish_version(Version::new(7, 3)).plan().never("switch");
    all_crash().wish_version(next).has_failed(next, 0).plan().never("switch");
    // While a majority is well, or may be for all that is known, it fails for other reasons.
    let one_crashes = || cluster(3).unknown().crashing(2).wish_version(next);
    one_crashes().plan().never("switch");
    one_crashes().unheard(0).unheard(1).plan().never("switch");
    one_crashes().crashing(1).plan().also_does("switch 2 to 3.6.17");
    one_crashes().pod_gone(1).plan().also_does("switch 2 to 3.6.17");
}

#[test]
fn a_silent_list_alone_changes_nothing() {
    cluster(3).unknown().plan().does([]).phase(Phase::Running).tells_all(Finding::EtcdUnknown).looks(LookAgain::Later);
    let leaderless = cluster(3).unknown().etcd(1, |alive| {
        alive.has_leader = false;
        alive.process = crate::scene::NOW;
    });
    leaderless.plan().does([]).phase(Phase::Healing).looks(LookAgain::Soon);
}

#[test]
fn without_a_list_nothing_is_added_removed_or_forgotten() {
    let told = cluster(3).wish(5).spare(3).claim_gone(1).pod_gone(1).unknown().plan();
    told.does([]).keeps_ledger();
    // Strays stay too: who can say that they are.
    cluster(3).voter(4).not_in_ledger(4).unknown().plan().never("delete");
    cluster(3).wish(1).unknown().plan().does([]);
}

#[test]
fn a_learner_may_have_been_promoted_and_is_resumed_too() {
    let told = cluster(1).wish(3).joining(1).pod_gone(1).added(2).pod_gone(2).unknown().plan();
    let told = told.does(["resume 1 on claim-1"]).budget(2);
    let births = told.plan.steps.iter().filter_map(|step| match step {
        Step::CreatePod { birth, .. } => Some(*birth),
        _ => None,
    });
    assert_eq!(births.collect::<Vec<_>>(), [Birth::Resuming(Role::Voter)], "the budget counts it");
}

#[test]
fn a_majority_of_lost_volumes_is_the_end() {
    for lost in [
        all_pods_gone().claim_gone(1).claim_gone(2),
        all_pods_gone().claim_swapped(1).claim_swapped(2),
        all_pods_gone().at_home(1).node_gone(1).claim_gone(2),
    ] {
        let told = lost.plan().does(["resume 0 on claim-0"]).phase(Phase::QuorumLost);
        let told = told.tells_all(Finding::QuorumLost).tells(2, Finding::VolumeLost).keeps_ledger();
        assert!(told.plan.needs_fresh_look());
    }
    let refused = cluster(3).refused(1, Refusal::VolumeLost).refused(2, Refusal::VolumeLost).unknown();
    refused.plan().does([]).phase(Phase::QuorumLost).looks(LookAgain::Later);
    let ephemeral = (0..3).fold(cluster(3).on_empty_dirs(), Scene::pod_gone).unknown();
    ephemeral.plan().does([]).phase(Phase::QuorumLost);
}

#[test]
fn members_on_nodes_that_are_away_are_not_lost() {
    let told = all_pods_gone().at_home(1).node_not_ready(1).at_home(2).node_not_ready(2).plan();
    told.does(["resume 0 on claim-0"]).phase(Phase::Healing).tells(1, Finding::NodeUnreachable);
}

#[test]
fn another_cluster_is_left_alone() {
    let other = cluster(3).pod_gone(1).list(|list| list.cluster = ClusterId(8));
    other.plan().does([]).phase(Phase::Failed).tells_all(Finding::MembersOfAnother).looks(LookAgain::Later);
}

#[test]
fn members_of_another_stop_every_change_of_members() {
    let foreign = Listed { serial: None, role: Role::Learner, started: true };
    let mixed = |scene: Scene| {
        scene.list(|list| {
            list.members.insert(MemberId(1), foreign);
        })
    };
    mixed(cluster(3).wish(5).spare(3)).plan().does([]).phase(Phase::Failed).tells_all(Finding::MembersOfAnother);
    mixed(cluster(3).seat_gone(2)).plan().does([]);
    // Pods are kept all the same.
    mixed(cluster(3).pod_gone(1)).plan().does(["resume 1 on claim-1"]);
    // Two lines for one serial: one of them can't be ours.
    let twice = Listed { serial: Some(Serial(1)), ..foreign };
    let twins = cluster(3).list(|list| {
        list.members.insert(MemberId(1), twice);
    });
    twins.plan().does([]).tells_all(Finding::MembersOfAnother);
}

#[test]
fn a_list_without_voters_is_no_answer() {
    let none = cluster(1).line(0, |line| line.role = Role::Learner).plan();
    none.does([]).tells_all(Finding::EtcdUnknown);
}
