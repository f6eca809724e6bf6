//! What mends a member that is down for what it is told to run, while the versions are on their way.

use quorate_statemachine::{Finding, Minor, Trouble, Version};

use crate::scene::{Scene, USUAL, cluster, release};

const V5: Version = Version::new(5, 35);
const V7: Version = Version::new(7, 3);

/// Three that run 3.6, and 3.7 wished for, tried everywhere.
fn begun() -> Scene {
    cluster(3).wish_version(V7).asked().all_tried(V7)
}

/// Else what a member was just given to mend it would be taken for what it fails on.
#[test]
fn a_status_from_before_the_switch_is_no_failure() {
    let switched = || begun().told(2, V7).crashing(2).switching(2);
    switched().ticket_age(2, 1_000).plan().never("switch").tells(2, Finding::ContainerFailing);
    switched().ticket_age(2, 61_000).plan().also_does("switch 2 to 3.6.16");
    // Of a pod that had no container there is none to tell it by.
    let pending = || begun().told(2, V7).pod_pending(2, 1_000).trouble(2, Trouble::ImageMissing);
    pending().ticket_age(2, 2_000).plan().never("switch");
    pending().ticket_age(2, 20_000).plan().also_does("switch 2 to 3.6.16");
    // That the agent's image is not there says nothing of what it is told to run.
    let beside = begun().told(2, V7).pod_pending(2, 1_000).trouble(2, Trouble::AgentImageMissing);
    beside.ticket_age(2, 20_000).plan().never("switch").tells(2, Finding::ImageMissing);
    // Once its own container is there, what is said is said of that.
    begun().told(2, V7).crashing(2).ticket_age(2, 1_000).plan().also_does("switch 2 to 3.6.16");
}

/// It may have run before it had to be pulled again. What is wished instead is told all the same.
#[test]
fn a_registry_that_does_not_answer_takes_nobody_back() {
    let waits = || begun().told(2, V7).unheard(2).trouble(2, Trouble::ImageUnreachable).ticket_age(2, 600_000);
    let told = waits().plan().never("switch").tells(2, Finding::ImageMissing);
    assert_eq!(told.entry(2).and_then(|entry| entry.former.clone()), Some(release(USUAL)));
    waits().wish_version(USUAL).plan().also_does("switch 2 to 3.6.16");
    waits().wish_version(Version::new(7, 4)).plan().also_does("switch 2 to 3.7.4");
    // Nor does it make one follow the others that may still come up with what it has.
    let last = || begun().runs(0, V7).runs(1, V7).unheard(2).trouble(2, Trouble::ImageUnreachable);
    last().plan().never("switch").tells(2, Finding::ImageMissing);
}

/// The cluster's version waits for it, and it for another patch.
#[test]
fn the_last_member_gets_another_patch_while_the_clusters_version_waits_for_it() {
    let next = Version::new(7, 4);
    let last = || begun().runs(0, V7).runs(1, V7).told(2, V7).crashing(2);
    let told = last().wish_version(next).plan().also_does("switch 2 to 3.7.4").tells_all(Finding::ClusterVersionLags);
    let entry = told.entry(2).expect("an entry").clone();
    assert_eq!((entry.release, entry.former), (Some(release(next)), Some(release(USUAL))));
    // One that was never well there may get yet another one.
    let again = || last().told(2, next).entry(2, |entry| entry.former = Some(release(USUAL)));
    again().wish_version(next).plan().never("switch");
    again().wish_version(Version::new(7, 5)).plan().also_does("switch 2 to 3.7.5");
    // Nor has one been whose operator ended before its pod was told.
    let ended = || last().entry(2, |entry| entry.release = Some(release(next)));
    ended().wish_version(next).plan().also_does("switch 2 to 3.7.4");
    let told = ended().wish_version(USUAL).plan().also_does("switch 2 to 3.6.16");
    assert_eq!(told.entry(2).and_then(|entry| entry.former.clone()), Some(release(V7)));
    // One that was, fails for other reasons.
    let was_well = begun().runs(0, V7).runs(1, V7).runs(2, V7).crashing(2);
    was_well.wish_version(next).plan().never("switch");
}

/// As long as the cluster runs at the old minor, and says so.
#[test]
fn the_last_member_turns_back_when_that_is_wished() {
    let last = || begun().runs(0, V7).runs(1, V7).told(2, V7).crashing(2).wish_version(USUAL);
    let told = last().plan().also_does("switch 2 to 3.6.16").tells_all(Finding::ClusterVersionLags);
    let entry = told.entry(2).expect("an entry").clone();
    assert_eq!((entry.release, entry.former), (Some(release(USUAL)), Some(release(V7))));
    // Then it holds the cluster's version, and the others follow.
    cluster(3).runs(0, V7).runs(1, V7).asked().all_tried(USUAL).plan().does(["switch 1 to 3.6.16"]);
    last().runs_at(Minor(7)).plan().never("switch");
    last().etcd(1, |alive| alive.cluster_version = Some(Minor(7))).plan().never("switch");
    last().list(|list| list.leader = None).plan().never("switch");
    last().downgrade_to(Minor(6)).plan().never("switch");
    last().wish_version(V5).plan().never("switch");
    last().entry(2, |entry| entry.former = None).plan().never("switch");
}

/// As long as nobody knows what etcd is about to do, it stays.
#[test]
fn a_member_that_was_turned_back_goes_up_again_only_in_its_turn() {
    let turned = || cluster(3).all_run(USUAL).wish_version(V7).told(2, V7).told(2, USUAL).crashing(2);
    turned().plan().never("switch").tells_all(Finding::VersionsUnknown);
    turned().asked().plan().also_does("switch 2 to 3.7.3");
    // Its log may have entries that 3.7 can't read.
    turned().asked().ledger(|ledger| ledger.oldest_log = Some(Minor(5))).plan().never("switch");
}

/// What docs/failure-modes.md has done about one that was up on the new minor unseen, and was taken back.
#[test]
fn a_member_alone_that_was_taken_back_in_vain_goes_up_once_its_ledger_says_so() {
    let alone = || cluster(1).wish_version(V7).crashing(0).unknown();
    alone().plan().does([]).tells(0, Finding::ContainerFailing);
    let told = || alone().entry(0, |entry| entry.release = Some(release(V7)));
    told().plan().does(["switch 0 to 3.7.3"]);
    told().has_failed(V7, 0).plan().does(["switch 0 to 3.7.3"]);
    told().wish_version(Version::new(7, 4)).plan().does(["switch 0 to 3.7.4"]);
}

/// It can't be brought back to hold the cluster's version where it is.
#[test]
fn the_last_member_whose_old_image_is_gone_follows_the_others() {
    let last = || begun().runs(0, V7).runs(1, V7).unheard(2).trouble(2, Trouble::ImageMissing);
    last().plan().also_does("switch 2 to 3.7.3").tells_all(Finding::VersionsUnknown);
    last().wish_version(Version::new(6, 17)).plan().also_does("switch 2 to 3.6.17");
    last().wish_version(V5).plan().never("switch");
    // Its log or its version must not be left like this, or nobody knows.
    last().ledger(|ledger| ledger.oldest_log = Some(Minor(5))).plan().never("switch");
    let low = last().told(2, Version::new(6, 10)).entry(2, |entry| entry.former = None);
    low.plan().never("switch");
    last().etcd(0, |alive| alive.cluster_version = None).plan().never("switch");
    let five = (0..3).fold(cluster(5).wish_version(V7).asked(), |scene, serial| scene.runs(serial, V7));
    let two =
        [3, 4].into_iter().fold(five, |scene, serial| scene.unheard(serial).trouble(serial, Trouble::ImageMissing));
    two.plan().also_does("switch 3 to 3.7.3").also_does("switch 4 to 3.7.3");
}

/// As no cluster is: what leads runs less than it says the cluster to run at. Nobody follows it down.
#[test]
fn what_a_leader_runs_below_the_cluster_is_no_way_up() {
    let odd = || cluster(3).all_run(V5).wish_version(V5).told(1, USUAL).crashing(1).asked();
    odd().plan().also_does("switch 1 to 3.5.35");
    odd().runs_at(Minor(7)).plan().never("switch");
}

/// It would go where the wish does not lead any more, with nothing left that could be wished for instead.
#[test]
fn a_member_that_was_turned_back_and_fails_there_too_is_not_sent_where_it_came_from() {
    let turned = || begun().runs(0, V7).runs(1, V7).told(2, V7).told(2, USUAL).crashing(2).wish_version(USUAL);
    turned().plan().never("switch").tells(2, Finding::ContainerFailing).keeps_ledger();
    turned().unknown().plan().never("switch");
    // Another patch of what it was turned back to may help.
    let next = Version::new(6, 17);
    let told = turned().wish_version(next).plan().also_does("switch 2 to 3.6.17");
    assert_eq!(told.entry(2).and_then(|entry| entry.former.clone()), Some(release(V7)));
    // On its way down it goes back up.
    turned().downgrade_to(Minor(6)).plan().also_does("switch 2 to 3.7.3");
}
