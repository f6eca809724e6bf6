//! From nothing to a seed that serves.

use quorate_statemachine::{
    Finding, LookAgain, Millis, Minor, Phase, PodStage, Refusal, RoleLabel, Seeding, Serial, Sight, Standing, Start,
    Ticket, Trouble, Version,
};

use crate::scene::{CLUSTER, USUAL, claim_uid, cluster, founding, id, node, release, seeding, wished};

#[test]
fn all_pods_are_made_at_once() {
    let told = wished(3).plan().phase(Phase::Pending).looks(LookAgain::Soon).does([
        "claim 0",
        "pod 0 on new claim",
        "claim 1",
        "pod 1 on new claim",
        "claim 2",
        "pod 2 on new claim",
    ]);
    assert_eq!(told.ledger().next_serial, Serial(3));
    assert_eq!(told.ledger().seeding, Seeding::NotBegun);
}

#[test]
fn on_empty_dirs_there_are_no_claims() {
    wished(1).on_empty_dirs().plan().does(["pod 0 on emptyDir"]);
}

#[test]
fn a_crash_between_ledger_and_objects_is_made_up_for() {
    founding(1).seat_gone(0).plan().does(["claim 0", "pod 0 on new claim"]).keeps_ledger();
    founding(1).pod_gone(0).plan().does(["pod 0 on claim-0"]).keeps_ledger();
}

#[test]
fn the_lowest_waiting_spare_becomes_the_seed() {
    let told = founding(3).plan().phase(Phase::Seeding).does(["ticket 0: seed on claim-0"]);
    assert_eq!(told.ledger().seeding, Seeding::Begun(Serial(0)));
    let seed = told.entry(0).expect("the seed is in the ledger");
    assert_eq!((&seed.create, &seed.node), (&Some(claim_uid(0)), &Some(node(0))));
}

#[test]
fn an_unschedulable_pod_is_skipped() {
    let told = founding(3).unschedulable(0).plan().does(["ticket 1: seed on claim-1"]);
    assert_eq!(told.ledger().seeding, Seeding::Begun(Serial(1)));
    told.tells(0, Finding::Unschedulable);
}

#[test]
fn a_spare_with_a_doubtful_volume_is_not_the_seed() {
    founding(1).claim_terminating(0).plan().does(["delete pod 0"]).phase(Phase::Pending);
    founding(1).claim_terminating(0).pod_gone(0).plan().does([]).looks(LookAgain::Soon);
    founding(1).claim_swapped(0).plan().does(["delete pod 0"]);
    founding(1).claim_gone(0).plan().does(["delete pod 0"]);
    founding(1).pod_terminating(0).plan().does([]);
    founding(1).node_not_ready(0).plan().never("ticket");
}

#[test]
fn a_claim_made_for_another_object_costs_its_serial() {
    let told = founding(1).claim_of_another(0).plan().does(["claim 1", "pod 1 on new claim"]);
    assert_eq!(told.entry(0), None);
}

#[test]
fn the_seed_gets_its_ticket_again_on_the_same_volume() {
    seeding(3).plan().does([]).phase(Phase::Seeding);
    seeding(3).pod_gone(0).plan().does(["pod 0 on claim-0"]).keeps_ledger();
    let anew = seeding(3).waiting(0).pod(0, |pod| pod.ticket = None);
    anew.plan().does(["ticket 0: seed on claim-0"]).keeps_ledger();
    seeding(3).pod_finished(0).plan().does(["delete pod 0"]);
    seeding(3).outdated(0).waiting(0).plan().does(["delete pod 0"]);
}

#[test]
fn nobody_else_is_ever_the_seed() {
    seeding(3).unheard(0).plan().never("ticket");
    seeding(3).node_not_ready(0).plan().does([]).tells(0, Finding::NodeUnreachable);
    seeding(3).pod_gone(0).node_not_ready(0).plan().does([]).tells(0, Finding::NodeUnreachable);
}

#[test]
fn a_lost_seed_is_the_end() {
    for lost in [
        seeding(3).seat_gone(0),
        seeding(3).claim_gone(0).pod_gone(0),
        seeding(3).claim_swapped(0),
        seeding(3).at_home(0).node_gone(0),
        seeding(3).on_empty_dirs().pod_gone(0),
        seeding(3).entry(0, |entry| entry.create = None),
    ] {
        lost.plan().does([]).phase(Phase::QuorumLost).tells_all(Finding::QuorumLost).looks(LookAgain::Later);
    }
}

#[test]
fn a_seed_on_a_volume_with_foreign_data_waits() {
    let told = seeding(1).refused(0, Refusal::VolumeForeign).plan();
    told.does([]).phase(Phase::Seeding).tells(0, Finding::SeedRefused).looks(LookAgain::Later);
    seeding(1).refused(0, Refusal::Other).plan().does([]).tells(0, Finding::LauncherRefuses);
}

#[test]
fn a_seed_whose_claim_is_going_is_brought_to_serve_all_the_same() {
    let told = seeding(1).claim_terminating(0).waiting(0).pod(0, |pod| pod.ticket = None).plan();
    told.does(["ticket 0: seed on claim-0"]).tells(0, Finding::VolumeGoing);
}

#[test]
fn the_seed_that_serves_is_the_cluster() {
    let served = cluster(1).ledger(|ledger| ledger.seeding = Seeding::Begun(Serial(0)));
    let served = served.entry(0, |entry| entry.standing = Standing::Spare).ticket(0, Start::Seed);
    let served = served.pod(0, |pod| pod.label = RoleLabel::Absent);
    // Its ticket to create was used: a container that restarts on an emptied volume must not start with nothing.
    let told = served.plan().does(["ticket 0: resume on claim-0", "label 0"]).phase(Phase::Running).budget(0);
    assert_eq!(told.ledger().seeding, Seeding::Done(CLUSTER));
    assert_eq!(told.entry(0).map(|entry| entry.standing), Some(Standing::Voter(id(0))));
}

#[test]
fn a_list_with_others_than_the_seed_is_not_ours() {
    let not_alone = cluster(2).ledger(|ledger| ledger.seeding = Seeding::Begun(Serial(0)));
    not_alone.plan().does([]).phase(Phase::Failed).tells_all(Finding::MembersOfAnother);
    let not_it = cluster(1).ledger(|ledger| ledger.seeding = Seeding::Begun(Serial(1)));
    not_it.plan().does([]).phase(Phase::Failed).tells_all(Finding::MembersOfAnother);
}

#[test]
fn an_outdated_spare_is_made_anew() {
    founding(1).outdated(0).plan().does(["delete pod 0"]);
    founding(1).outdated(0).pod_pending(0, 0).plan().does(["delete pod 0"]);
}

/// Found among the worlds made up at random.
#[test]
fn a_seed_that_is_told_another_release_has_its_ticket_with_that() {
    let older = release(Version::new(5, 35));
    let refused = seeding(1).entry(0, |entry| entry.release = Some(older.clone())).pod(0, |pod| {
        pod.release = Some(older.clone());
        pod.ticket =
            Some(Ticket { start: Start::Resume, volume: claim_uid(0), mark: None, version: Some(older.version) });
        pod.ticket_since = Millis(0);
        pod.sight = Sight::Refused(Refusal::Binary);
    });
    refused.plan().does(["switch 0 to 3.6.16"]);
}

/// A seed of which nobody knows whether it has run.
#[test]
fn a_seed_that_crashes_gets_the_patch_that_is_wished_unless_that_has_failed() {
    let next = Version::new(6, 17);
    let crashes = || seeding(1).told(0, USUAL).crashing(0);
    crashes().plan().never("switch");
    crashes().wish_version(next).plan().also_does("switch 0 to 3.6.17");
    crashes().wish_version(next).has_failed(next, 0).plan().never("switch");
}

/// Found among the worlds made up at random.
#[test]
fn a_seed_is_not_taken_back_below_what_somebody_says_that_the_cluster_runs_at() {
    let unheard = |others: Minor| {
        let older = release(Version::new(5, 35));
        let two = cluster(2).wish(1).unknown().ledger(|ledger| ledger.seeding = Seeding::Begun(Serial(0)));
        let seed_is_down = two.wish_release(older).pod(0, |pod| {
            pod.sight = Sight::Unknown;
            pod.stage = PodStage::Pending;
            pod.trouble = Some(Trouble::ImageMissing);
        });
        seed_is_down.etcd(1, |alive| alive.cluster_version = Some(others)).plan()
    };
    unheard(Minor(5)).also_does("switch 0 to 3.5.35");
    unheard(Minor(6)).never("switch 0");
}
