//! Versions going down, by etcd's own downgrade.

use quorate_statemachine::{Alarm, Entry, Finding, Minor, Phase, Trouble, Version};

use crate::scene::{Scene, USUAL, cluster, release};

const V5: Version = Version::new(5, 35);
const V7: Version = Version::new(7, 3);

/// Three that run 3.7, and 3.6 wished for.
fn wished() -> Scene {
    cluster(3).all_run(V7).wish_version(USUAL).asked()
}

/// It is enabled, and etcd has lowered all it has to.
fn enabled() -> Scene {
    wished().all_tried(USUAL).downgrade_to(Minor(6)).runs_at(Minor(6)).stored_as(Minor(6))
}

#[test]
fn first_it_is_tried_then_enabled() {
    wished().plan().also_does("try 3.6.16 for 0").never("downgrade").heads_for(Some(USUAL)).phase(Phase::Upgrading);
    wished().all_tried(USUAL).plan().does(["downgrade to 3.6"]);
    wished().all_tried(USUAL).unheard(1).plan().never("downgrade");
    wished().all_tried(USUAL).alarmed(Alarm::Corrupt).plan().does([]).tells_all(Finding::AlarmRaised);
}

#[test]
fn members_are_switched_when_etcd_has_lowered_its_versions() {
    let early = wished().all_tried(USUAL).downgrade_to(Minor(6));
    early.clone().plan().does([]).tells_all(Finding::DowngradeUnderWay);
    early.runs_at(Minor(6)).plan().does([]);
    let one_lags = enabled().etcd(0, |alive| alive.storage = Some(Minor(7)));
    one_lags.plan().does([]).tells_all(Finding::DowngradeUnderWay);
    enabled().plan().does(["switch 2 to 3.6.16"]);
    enabled().runs(2, USUAL).etcd(2, |alive| alive.storage = None).plan().does(["switch 1 to 3.6.16"]);
    enabled().runs(2, USUAL).runs(1, USUAL).plan().does(["move leader 0 to 1"]);
    let all = (0..3).fold(enabled(), |scene, serial| scene.runs(serial, USUAL));
    all.clone().plan().tells_all(Finding::DowngradeUnderWay);
    all.asked().plan().phase(Phase::Running);
}

#[test]
fn a_minor_is_left_from_its_floor_only() {
    let low = || cluster(3).all_run(Version::new(7, 1)).wish_version(USUAL).asked();
    low().plan().also_does("try 3.7.3 for 2").heads_for(Some(V7));
    low().all_tried(V7).plan().does(["switch 2 to 3.7.3"]);
}

#[test]
fn two_minors_are_walked_one_by_one() {
    let two = || cluster(3).all_run(V7).wish_version(V5).asked();
    two().plan().also_does("try 3.6.16 for 0").heads_for(Some(USUAL));
    two().all_tried(USUAL).plan().does(["downgrade to 3.6"]);
    let enabled = two().all_tried(USUAL).downgrade_to(Minor(6)).runs_at(Minor(6)).stored_as(Minor(6));
    enabled.plan().does(["switch 2 to 3.6.16"]);
    cluster(3).wish_version(V5).asked().all_tried(V5).plan().does(["downgrade to 3.5"]);
    // In the middle of the way up, first back to where all are of one minor.
    let mixed = cluster(3).runs(2, V7).wish_version(V5).asked();
    mixed.all_tried(USUAL).plan().does(["switch 2 to 3.6.16"]);
    // 3.5 has no way down.
    cluster(3).all_run(V5).wish_version(Version::new(4, 45)).asked().plan().tells_all(Finding::NoWayThrough);
}

#[test]
fn another_wish_takes_it_back() {
    enabled().wish_version(V7).plan().does(["cancel downgrade"]);
    enabled().runs(2, USUAL).wish_version(V7).plan().does(["cancel downgrade"]);
    cluster(3).downgrade_to(Minor(5)).plan().does(["cancel downgrade"]);
    enabled().told(2, USUAL).wish_version(V7).plan().does([]);
    let mixed = cluster(3).runs(1, V7).runs(0, V7).wish_version(V7).asked().all_tried(V7);
    mixed.plan().does(["switch 2 to 3.7.3"]);
}

#[test]
fn a_newcomer_waits_until_it_is_taken_back() {
    let lost = |scene: Scene| scene.seat_gone(2).not_listed(2).not_in_ledger(2);
    lost(enabled()).plan().also_does("cancel downgrade").also_does("claim 3");
    lost(enabled().told(1, USUAL)).plan().never("cancel");
    // One that was well on the lower minor before it went away comes back there, whenever that is.
    let was_down = |former: Option<Version>| {
        let down = |entry: &mut Entry| (entry.release, entry.former) = (Some(release(USUAL)), former.map(release));
        lost(enabled().told(1, USUAL).entry(1, down).node_not_ready(1).unheard(1))
    };
    was_down(None).plan().also_does("cancel downgrade").never("add");
    was_down(Some(V7)).plan().never("cancel");
    lost(enabled()).spare(3).told(3, V7).plan().also_does("cancel downgrade").never("add");
    let after = lost(wished()).spare(3).told(3, V7);
    after.plan().also_does("add 3");
    let started = lost(enabled()).learner(3).runs(3, V7).runs_at(Minor(6));
    started.plan().also_does("promote 3");
    enabled().pod_gone(1).plan().also_does("resume 1 on claim-1 as 3.7.3");
}

/// etcd takes it back by itself when all tell their version. One that was lost before that tells none, and its successor is not
/// let in.
#[test]
fn a_newcomer_at_the_end_of_a_downgrade_waits_until_it_is_taken_back() {
    let down = || cluster(3).all_run(V5).runs_at(Minor(5)).wish_version(V5).downgrade_to(Minor(5));
    down().plan().does([]).tells_all(Finding::DowngradeUnderWay);
    down().seat_gone(2).not_listed(2).not_in_ledger(2).plan().also_does("cancel downgrade").never("add");
    down()
        .seat_gone(2)
        .not_listed(2)
        .not_in_ledger(2)
        .spare(3)
        .told(3, V5)
        .plan()
        .also_does("cancel downgrade")
        .never("add");
}

#[test]
fn one_that_was_switched_down_comes_back_there() {
    let down = enabled().told(2, USUAL).pod_gone(2).entry(2, |entry| entry.release = Some(release(USUAL)));
    down.plan().also_does("resume 2 on claim-2");
    let failing = enabled().told(2, USUAL).crashing(2);
    failing.plan().also_does("switch 2 to 3.7.3").tells_all(Finding::ReleaseFailed);
}

/// The downgrade waits for the last one, and that for another patch, or for the release that it came from.
#[test]
fn the_last_one_that_fails_below_gets_what_is_wished_while_it_is_enabled() {
    let last =
        || [0, 1].into_iter().fold(enabled(), |scene, serial| scene.runs(serial, USUAL)).told(2, USUAL).crashing(2);
    last().plan().never("switch").tells_all(Finding::DowngradeUnderWay);
    last().wish_version(Version::new(6, 17)).plan().also_does("switch 2 to 3.6.17");
    last().wish_version(V7).plan().also_does("switch 2 to 3.7.3");
    last().wish_version(Version::new(7, 4)).plan().never("switch");
    last().wish_version(V5).plan().never("switch");
}

/// The cluster's version is lowered first, then each database by its own member.
#[test]
fn one_that_is_down_with_the_database_of_the_higher_minor_stays_there() {
    let down = || enabled().runs(2, V7).unheard(2).trouble(2, Trouble::ImageMissing);
    down().plan().never("switch").tells_all(Finding::DowngradeUnderWay);
    down().wish_version(Version::new(7, 4)).plan().never("switch");
}
