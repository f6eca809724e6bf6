//! Versions going up, one minor a step; and back, while the old one still runs somewhere.

use quorate_statemachine::{
    Alarm, Bind, Birth, Failed, Finding, Image, LookAgain, Millis, Minor, Outcome, Phase, Refusal, Release, Role,
    Saved, Serial, Step, Trouble, Version,
};

use crate::scene::{NOW, Scene, USUAL, cluster, founding, id, release, seeding};

const V5: Version = Version::new(5, 35);
const V7: Version = Version::new(7, 3);

/// Three that run 3.6, and 3.7 wished for.
fn wished() -> Scene {
    cluster(3).wish_version(V7).asked()
}

/// The same, tried everywhere.
fn begun() -> Scene {
    wished().all_tried(V7)
}

#[test]
fn each_node_tries_the_release_before_anything_is_stopped() {
    let told = wished().plan().does(["try 3.7.3 for 0", "try 3.7.3 for 1", "try 3.7.3 for 2"]);
    told.phase(Phase::Upgrading).tells(1, Finding::ReleaseOutdated).heads_for(Some(V7)).looks(LookAgain::Soon);
    let open = |scene: Scene| scene.tried(0, &release(V7), Outcome::Open).tried(1, &release(V7), Outcome::Passed);
    let some = open(wished()).tried(2, &release(V7), Outcome::Passed);
    some.plan().does([]).tells(0, Finding::TrialOpen).looks(LookAgain::Soon);
}

/// As by a node that is full: it turns the next one away as fast.
#[test]
fn a_node_that_could_not_try_a_release_is_not_asked_again_at_once() {
    let turned_away = |age: u64| {
        let some = wished().tried(0, &release(V7), Outcome::Passed).tried(1, &release(V7), Outcome::Passed);
        let mut scene = some.tried(2, &release(V7), Outcome::Undecided);
        scene.world.trials[2].created = Millis(NOW.0 - age);
        scene.plan()
    };
    turned_away(14_999).does([]).tells(2, Finding::TrialUndecided);
    turned_away(15_000).does(["end trial-2-3.7.3"]).tells(2, Finding::TrialUndecided);
}

#[test]
fn a_release_that_fails_its_trial_stops_nothing() {
    let scene_of = |outcome: Outcome| {
        let passed =
            [0, 1].into_iter().fold(wished(), |scene, serial| scene.tried(serial, &release(V7), Outcome::Passed));
        passed.tried(2, &release(V7), outcome)
    };
    for (outcome, finding) in
        [(Outcome::ImageMissing, Finding::TrialImageMissing), (Outcome::Failed, Finding::TrialFailed)]
    {
        let told = scene_of(outcome).plan().does([]).phase(Phase::Upgrading);
        told.tells(2, finding).keeps_ledger();
        // Nor a pod that is out of date: it would be started with the flags that were just refused.
        let outdated = (0..3).fold(scene_of(outcome), Scene::outdated);
        outdated.plan().does([]).tells(2, finding).tells(2, Finding::PodOutdated);
    }
}

#[test]
fn a_release_is_not_given_up_for_want_of_the_agents_image_or_of_an_answer_by_the_registry() {
    let trying = |outcome: Outcome| {
        let some = wished().tried(0, &release(V7), Outcome::Passed).tried(1, &release(V7), Outcome::Passed);
        some.tried(2, &release(V7), outcome).plan()
    };
    for outcome in [Outcome::AgentImageMissing, Outcome::ImageUnreachable] {
        let told = trying(outcome).does([]).phase(Phase::Upgrading);
        told.tells(2, Finding::TrialImageMissing).looks(LookAgain::Soon).keeps_ledger();
    }
    trying(Outcome::Passed).does(["switch 2 to 3.7.3"]);
}

#[test]
fn a_snapshot_comes_after_the_trials_and_before_anything_is_stopped() {
    let wanted = || begun().snapshot_first();
    wished().snapshot_first().plan().never("snapshot");
    let told = wanted().plan().does(["snapshot before 3.7"]).phase(Phase::Upgrading);
    told.tells_all(Finding::SnapshotOpen).keeps_ledger();
    // Its end wakes the cluster: until then there is no hurry.
    let open = wanted().saved(Minor(7), Saved::UnderWay).plan().does([]).tells_all(Finding::SnapshotOpen);
    open.phase(Phase::Upgrading).looks(LookAgain::Later);
    let failed = wanted().saved(Minor(7), Saved::Failed).plan().does([]).tells_all(Finding::SnapshotFailed);
    failed.phase(Phase::Upgrading).keeps_ledger();
    wanted().saved(Minor(7), Saved::Taken).plan().does(["switch 2 to 3.7.3"]);
    wanted().saved(Minor(6), Saved::Taken).plan().does(["snapshot before 3.7"]);
}

#[test]
fn a_snapshot_is_taken_for_another_minor_only_and_not_half_way() {
    begun().snapshot_first().runs(2, V7).plan().does(["switch 1 to 3.7.3"]);
    let patch = Version::new(6, 17);
    cluster(3).wish_version(patch).asked().snapshot_first().all_tried(patch).plan().does(["switch 2 to 3.6.17"]);
}

#[test]
fn a_snapshot_comes_before_etcd_may_lower_the_version() {
    let down = || cluster(3).wish_version(V5).asked().snapshot_first().all_tried(V5);
    down().plan().does(["snapshot before 3.5"]);
    down().saved(Minor(5), Saved::Taken).plan().does(["downgrade to 3.5"]);
}

#[test]
fn one_whose_image_is_gone_waits_for_the_snapshot_too() {
    let gone = || begun().snapshot_first().unheard(2).trouble(2, Trouble::ImageMissing);
    gone().plan().also_does("snapshot before 3.7").never("switch");
    gone().saved(Minor(7), Saved::UnderWay).plan().never("switch").tells_all(Finding::SnapshotOpen);
    gone().saved(Minor(7), Saved::Taken).plan().also_does("switch 2 to 3.7.3");
}

/// Found among the worlds made up at random.
#[test]
fn one_that_is_told_less_than_the_cluster_runs_at_is_brought_there_first() {
    let behind = || wished().told(2, V5).unheard(2).runs_at(Minor(6));
    behind().all_tried(V7).all_tried(USUAL).plan().never("switch 1").never("switch 0");
    behind().runs(2, V5).etcd(2, |alive| alive.version = Some(V5)).all_tried(V7).plan().never("switch");
    behind().crashing(2).all_tried(USUAL).plan().also_does("switch 2 to 3.6.16");
}

#[test]
fn a_trial_of_something_else_counts_for_nothing() {
    let old = Release { version: V7, image: Image::new("other:v3.7.3") };
    let scene = wished().tried(0, &old, Outcome::Passed);
    scene.plan().also_does("end trial-0-3.7.3").also_does("try 3.7.3 for 0").never("switch");
    let elsewhere = begun().pod(1, |pod| pod.node = Some(crate::scene::node(0)));
    elsewhere.plan().also_does("try 3.7.3 for 1").never("switch");
    let mut scene = begun();
    scene.world.wish.template = quorate_statemachine::TemplateHash(7);
    scene.plan().never("switch").never("delete");
}

#[test]
fn followers_from_the_highest_down_then_the_leader() {
    let told = begun().plan().does(["switch 2 to 3.7.3"]).phase(Phase::Upgrading);
    let entry = told.entry(2).expect("an entry").clone();
    assert_eq!((entry.release, entry.former), (Some(release(V7)), Some(release(USUAL))));
    begun().runs(2, V7).plan().does(["switch 1 to 3.7.3"]);
    begun().runs(2, V7).runs(1, V7).plan().does(["move leader 0 to 1"]);
    begun().runs(2, V7).runs(1, V7).led_by(1).plan().does(["switch 0 to 3.7.3"]);
    cluster(1).wish_version(V7).asked().all_tried(V7).plan().does(["switch 0 to 3.7.3"]);
}

#[test]
fn the_next_only_when_the_last_is_back() {
    let one = || begun().told(2, V7);
    one().switching(2).plan().does([]).phase(Phase::Upgrading).looks(LookAgain::Soon);
    one().plan().does([]).tells_all(Finding::RollWaits);
    one().unheard(2).plan().does([]).phase(Phase::Upgrading);
    let back = || begun().runs(2, V7);
    back().switching(2).plan().does([]);
    back().disconnected(2, 1).plan().does([]).tells_all(Finding::RollWaits);
    back().disconnected(0, 1).plan().does([]);
    // Started later, it knows: the others' counts may be wrong for as long as they run, or of the process before it.
    let started = || back().etcd(2, |alive| alive.process = alive.seen);
    started().uncounted(0, 2).uncounted(1, 2).plan().does(["switch 1 to 3.7.3"]);
    started().uncounted(2, 1).plan().does([]).tells_all(Finding::RollWaits);
    started().uncounted(2, 0).plan().does([]).tells_all(Finding::RollWaits);
    started().uncounted(2, 0).overlooked(2, 0).plan().does(["switch 1 to 3.7.3"]);
    // Of two that were started at once, what one side says is enough.
    back().uncounted(0, 2).uncounted(1, 2).plan().does(["switch 1 to 3.7.3"]);
    back().disconnected(0, 2).overlooked(0, 2).plan().does(["switch 1 to 3.7.3"]);
    back().etcd(2, |alive| alive.applied = 0).plan().does([]);
    back().pod(2, |pod| pod.ready = false).plan().does([]);
    back().unheard(1).plan().does([]);
    back().pod_gone(1).plan().also_does("resume 1 on claim-1").never("switch");
    back().plan().does(["switch 1 to 3.7.3"]);
}

#[test]
fn what_was_written_down_and_not_done_is_as_if_it_had_never_been() {
    let written = begun().entry(2, |entry| {
        entry.release = Some(release(V7));
        entry.former = Some(release(USUAL));
    });
    written.clone().plan().does(["switch 2 to 3.7.3"]).keeps_ledger();
    let told = written.wish_version(USUAL).plan();
    let entry = told.entry(2).expect("an entry").clone();
    assert_eq!((entry.release, entry.former), (Some(release(USUAL)), None));
}

#[test]
fn the_end_is_when_the_cluster_says_so() {
    let all = || (0..3).fold(begun(), |scene, serial| scene.runs(serial, V7));
    let told = all().plan().phase(Phase::Upgrading).tells_all(Finding::ClusterVersionLags).heads_for(Some(V7));
    told.does([]).looks(LookAgain::Soon);
    all().runs_at(Minor(7)).plan().phase(Phase::Running).heads_for(None).tells_nothing();
    let left = cluster(3).tried(1, &release(USUAL), Outcome::Passed);
    left.plan().does(["end trial-1-3.6.16"]).phase(Phase::Running);
}

#[test]
fn nothing_before_etcd_was_asked() {
    let mut scene = begun();
    scene.world.overall = quorate_statemachine::Overall::Unknown;
    scene.plan().does([]).tells_all(Finding::VersionsUnknown);
    scene.world.overall = quorate_statemachine::Overall::OfAlarms(Some(Alarm::NoSpace));
    scene.plan().does([]).tells_all(Finding::VersionsUnknown).tells_all(Finding::Alarm(Alarm::NoSpace));
    begun().list(|list| list.leader = None).plan().does([]);
    begun().etcd(0, |alive| alive.cluster_version = None).plan().does([]);
    begun().alarmed(Alarm::NoSpace).plan().does([]).tells_all(Finding::AlarmRaised).phase(Phase::Upgrading);
}

#[test]
fn an_alarm_does_not_hold_up_the_setting_that_mends_it() {
    begun().alarmed(Alarm::NoSpace).outdated(2).plan().does(["delete pod 2"]);
}

#[test]
fn two_minors_are_walked_one_by_one() {
    let three = || cluster(3).all_run(V5).wish_version(V7).asked();
    three().plan().also_does("try 3.6.16 for 2").heads_for(Some(USUAL));
    three().all_tried(USUAL).plan().does(["switch 2 to 3.6.16"]);
    let all_at_6 = || (0..3).fold(three(), |scene, serial| scene.runs(serial, USUAL));
    all_at_6().plan().does([]).tells_all(Finding::ClusterVersionLags);
    all_at_6()
        .runs_at(Minor(6))
        .ledger(|ledger| ledger.oldest_log = Some(Minor(6)))
        .plan()
        .also_does("try 3.7.3 for 1");
}

#[test]
fn a_minor_without_an_image_is_not_passed() {
    let mut scene = cluster(3).all_run(V5).wish_version(V7).asked();
    scene.world.wish.stops.clear();
    scene.plan().does([]).tells_all(Finding::NoWayThrough).phase(Phase::Upgrading);
}

#[test]
fn below_the_floor_a_later_patch_comes_first() {
    let low = || cluster(3).all_run(Version::new(5, 20)).wish_version(USUAL).asked();
    low().plan().also_does("try 3.5.35 for 2").heads_for(Some(V5));
    low().all_tried(V5).plan().does(["switch 2 to 3.5.35"]);
    let mut stuck = low();
    stuck.world.wish.stops.clear();
    stuck.plan().does([]).tells_all(Finding::BelowFloor);
}

#[test]
fn patches_and_images_of_one_minor_are_only_switched() {
    let patch = Version::new(6, 17);
    let told = cluster(3).wish_version(patch).asked().all_tried(patch).plan().does(["switch 2 to 3.6.17"]);
    told.phase(Phase::Upgrading);
    let mirror = Release { version: USUAL, image: Image::new("mirror/etcd") };
    let scene = cluster(3).wish_release(mirror.clone()).asked();
    let scene = (0..3).fold(scene, |scene, serial| scene.tried(serial, &mirror, Outcome::Passed));
    scene.clone().plan().does(["switch 2 to mirror/etcd"]).phase(Phase::Restarting);
    scene.clone().told_release(2, mirror.clone()).switching(2).plan().does([]);
    scene.told_release(2, mirror).plan().does(["switch 1 to mirror/etcd"]);
}

#[test]
fn several_changes_are_one_roll() {
    let scene = || (0..3).fold(begun(), Scene::outdated);
    let told = scene().plan().does(["delete pod 2"]).phase(Phase::Upgrading);
    assert_eq!(told.entry(2).and_then(|entry| entry.release.clone()), Some(release(V7)));
    let gone = scene().pod_gone(2).entry(2, |entry| entry.release = Some(release(V7)));
    gone.plan().also_does("resume 2 on claim-2 as 3.7.3").never("delete");
    let on_empty_dirs = cluster(3).on_empty_dirs().wish_version(V7).asked().all_tried(V7);
    on_empty_dirs.plan().does(["switch 2 to 3.7.3"]);
}

#[test]
fn the_first_failure_takes_the_member_back_and_ends_the_roll() {
    let failed = begun().told(2, V7).crashing(2);
    let told =
        failed.plan().also_does("switch 2 to 3.6.16").also_does("end trial-1-3.7.3").tells_all(Finding::ReleaseFailed);
    let entry = told.entry(2).expect("an entry").clone();
    assert_eq!((entry.release, entry.former), (Some(release(USUAL)), None));
    assert_eq!(told.ledger().failed.as_ref().map(|failed| failed.serial), Some(Serial(2)));
    let after = || begun().has_failed(V7, 2);
    after().plan().never("switch").tells_all(Finding::ReleaseFailed).phase(Phase::Upgrading);
    after().crashing(2).plan().never("switch");
    // A patch beyond it is another try.
    let next = Version::new(7, 4);
    let told = after().wish_version(next).plan().also_does("try 3.7.4 for 2");
    assert_eq!(told.ledger().failed, None);
    let told = after().wish_version(USUAL).plan().phase(Phase::Running);
    assert_eq!(told.ledger().failed, None);
    // Nor is it told of once nobody goes there any more: it failed after something else was wished.
    let left = cluster(3).asked().ledger(|ledger| {
        ledger.failed = Some(Failed { release: release(V7), wished: release(USUAL), serial: Serial(2) });
    });
    assert_eq!(left.plan().phase(Phase::Running).tells_nothing().ledger().failed, None);
}

#[test]
fn a_launcher_that_has_not_got_its_new_ticket_yet_is_no_failure() {
    let refused = || begun().told(2, V7).refused(2, Refusal::Binary);
    refused().ticket_age(2, 2_000).plan().never("switch");
    refused().ticket_age(2, 20_000).plan().also_does("switch 2 to 3.6.16");
    // That its volume can't be read now is nothing against its release.
    let unreadable = begun().told(2, V7).refused(2, Refusal::Other).ticket_age(2, 20_000);
    unreadable.plan().does([]).tells(2, Finding::LauncherRefuses);
}

#[test]
fn a_member_that_crashes_for_other_reasons_keeps_its_release() {
    begun().crashing(2).plan().does([]).tells(2, Finding::ContainerFailing);
    begun().runs(2, V7).crashing(2).plan().does([]);
}

/// Found by a chaos run: killed in the moment in which it was started on 3.7, it was taken back to 3.6, which could not
/// read its database any more.
#[test]
fn the_last_member_is_not_taken_back_once_it_may_have_started() {
    let last = || begun().runs(0, V7).runs(1, V7).told(2, V7);
    last().crashing(2).plan().never("switch").tells(2, Finding::ContainerFailing);
    last().refused(2, Refusal::Binary).ticket_age(2, 20_000).plan().also_does("switch 2 to 3.6.16");
    begun().runs(0, V7).told(2, V7).crashing(2).plan().also_does("switch 2 to 3.6.16");
    // Once the cluster runs at the new one it was up, whatever its launcher says now, and whoever says so.
    let refused = || last().refused(2, Refusal::Binary).ticket_age(2, 20_000).runs_at(Minor(7));
    refused().plan().never("switch");
    refused().list(|list| list.leader = None).plan().never("switch");
    refused().unheard(0).unknown().plan().never("switch");
    // A later patch of it may be what helps.
    let patch = Version::new(7, 4);
    last().crashing(2).runs_at(Minor(7)).wish_version(patch).all_tried(patch).plan().also_does("switch 2 to 3.7.4");
}

/// It was up on the new version for a moment that nobody saw, and was taken back.
#[test]
fn a_member_below_what_the_cluster_runs_at_can_only_go_up() {
    let below = || begun().runs(0, V7).runs(1, V7).runs_at(Minor(7)).told(2, USUAL);
    below().crashing(2).plan().also_does("switch 2 to 3.7.3");
    let failed = Failed { release: release(V7), wished: release(V7), serial: Serial(2) };
    let told = below().crashing(2).ledger(|ledger| ledger.failed = Some(failed)).plan();
    let told = told.also_does("switch 2 to 3.7.3");
    assert_eq!(told.ledger().failed, None);
    assert_eq!(told.entry(2).and_then(|entry| entry.former.clone()), None);
    below().unheard(2).plan().never("switch");
    // Who leads says what that is.
    below().crashing(2).list(|list| list.leader = None).plan().never("switch");
}

/// Found by the same run: a kill says nothing against the version that was killed.
#[test]
fn a_member_that_was_killed_on_its_new_version_is_waited_for() {
    begun().runs(0, V7).told(2, V7).killed(2).plan().does([]).tells(2, Finding::ContainerFailing);
    begun().told(2, V7).killed(2).plan().does([]);
}

#[test]
fn a_member_alone_is_taken_back_too() {
    let alone = cluster(1).wish_version(V7).told(0, V7).crashing(0).unknown();
    alone.plan().does(["switch 0 to 3.6.16"]).tells_all(Finding::ReleaseFailed);
}

#[test]
fn the_old_version_takes_all_back_while_it_still_runs_somewhere() {
    let mixed = || cluster(3).runs(2, V7).runs(1, V7).asked();
    mixed().plan().also_does("try 3.6.16 for 1").also_does("try 3.6.16 for 2").heads_for(Some(USUAL));
    mixed().all_tried(USUAL).plan().does(["switch 2 to 3.6.16"]);
    mixed().all_tried(USUAL).led_by(2).plan().does(["move leader 2 to 0"]);
    let down = cluster(3).told(2, V7).crashing(2).asked();
    down.plan().does(["switch 2 to 3.6.16"]);
    // All were started on the new one: the cluster's version is about to move, and only a downgrade leads back.
    let all = (0..3).fold(cluster(3), |scene, serial| scene.runs(serial, V7)).asked().all_tried(USUAL);
    all.plan().does([]).tells_all(Finding::ClusterVersionLags);
}

#[test]
fn a_newcomer_runs_what_the_leader_runs() {
    let lost = |scene: Scene| scene.seat_gone(2).not_listed(2).not_in_ledger(2).ledger(|l| l.next_serial = Serial(3));
    let led_by_new = || wished().runs(1, V7).led_by(1);
    lost(wished()).plan().also_does("pod 3 on new claim");
    lost(led_by_new()).plan().also_does("pod 3 on new claim as 3.7.3");
    lost(led_by_new()).spare(3).plan().also_does("prepare 3 to 3.7.3").never("add");
    lost(wished()).spare(3).plan().also_does("add 3");
    lost(wished()).added(3).plan().also_does("ticket 3: join [0, 1, 3] on claim-3");
    lost(led_by_new()).added(3).plan().also_does("prepare 3 to 3.7.3").never("ticket");
    // While the leader is not seen to run what it was told, nobody knows.
    let unclear = |scene: Scene| scene.led_by(1).etcd(1, |alive| alive.version = None);
    lost(unclear(wished().runs(1, V7))).plan().never("pod");
    lost(unclear(cluster(3))).plan().also_does("pod 3 on new claim");
}

#[test]
fn a_newcomer_whose_image_is_gone_gets_the_wished_one_of_that_minor() {
    let patch = Version::new(6, 17);
    let missing = cluster(2).wish(3).spare(2).pod_pending(2, 1_000).trouble(2, Trouble::ImageMissing);
    missing.clone().wish_version(patch).asked().plan().also_does("prepare 2 to 3.6.17");
    missing.clone().wish_version(V7).asked().plan().never("prepare");
    missing.plan().never("prepare");
    let patched = cluster(2).wish(3).wish_version(patch).asked().spare(2).told(2, patch);
    patched.plan().also_does("add 2").never("prepare");
}

#[test]
fn in_a_mixed_cluster_learners_come_one_at_a_time() {
    let grows = |scene: Scene| scene.wish(3).spare(1).spare(2);
    grows(cluster(1)).added(1).plan().does(["add 2"]);
    let mixed = grows(cluster(1).all_run(V5)).told(1, V5).told(2, V5).added(1).told(1, V5);
    mixed.plan().does(["ticket 1: join [0, 1] on claim-1"]);
}

#[test]
fn before_3_7_the_logs_of_3_5_are_cut() {
    let from_3_5 = |scene: Scene| scene.ledger(|ledger| ledger.oldest_log = Some(Minor(5)));
    let told = from_3_5(begun()).plan().does(["downgrade to 3.5"]).phase(Phase::Upgrading);
    told.heads_for(Some(V7));
    from_3_5(wished()).plan().also_does("try 3.7.3 for 0").never("downgrade");
    begun().ledger(|ledger| ledger.oldest_log = None).plan().does(["downgrade to 3.5"]);
    let cutting = || from_3_5(begun()).downgrade_to(Minor(5));
    cutting().plan().does([]).tells_all(Finding::LogsAreCut);
    cutting().runs_at(Minor(5)).etcd(1, |alive| alive.cluster_version = Some(Minor(6))).plan().does([]);
    let told = cutting().runs_at(Minor(5)).plan().does(["cancel downgrade"]);
    assert!(told.ledger().logs_cut);
    from_3_5(begun()).ledger(|ledger| ledger.logs_cut = true).plan().does(["switch 2 to 3.7.3"]);
    begun().runs_at(Minor(5)).plan().does([]).tells_all(Finding::ClusterVersionLags);
    cutting().unheard(1).plan().does(["cancel downgrade"]);
    from_3_5(begun()).unheard(1).plan().never("downgrade");
    cutting().wish_version(USUAL).plan().does(["cancel downgrade"]);
    // What runs 3.5 writes its log so.
    let told = cluster(3).wish_version(V5).runs_at(Minor(5)).downgrade_to(Minor(5)).stored_as(Minor(5)).all_tried(V5);
    assert_eq!(told.plan().does(["switch 2 to 3.5.35"]).ledger().oldest_log, Some(Minor(5)));
}

#[test]
fn a_newcomer_gets_its_log_from_a_leader_that_was_started_on_a_cut_one() {
    let cut = |scene: Scene| {
        scene.ledger(|ledger| {
            ledger.oldest_log = Some(Minor(5));
            ledger.logs_cut = true;
        })
    };
    let lost = |scene: Scene| cut(scene).seat_gone(2).not_listed(2).not_in_ledger(2);
    lost(wished().runs(1, V7)).spare(3).plan().also_does("move leader 0 to 1").never("add");
    lost(wished().runs(1, V7)).added(3).plan().also_does("move leader 0 to 1").never("ticket");
    lost(wished().runs(1, V7).led_by(1)).spare(3).told(3, V7).plan().also_does("add 3").never("move");
    // One that overlooks somebody would hand over again for the addition, and so on for ever.
    let overlooks = || lost(wished().runs(1, V7)).overlooked(1, 0).spare(3);
    overlooks().plan().also_does("add 3").never("move");
    overlooks().led_by(1).told(3, V7).plan().also_does("move leader 1 to 0").never("add");
    let told = lost(wished()).added(3).plan().also_does("ticket 3: join [0, 1, 3] on claim-3");
    assert!(!told.ledger().logs_cut);
}

#[test]
fn a_seed_that_was_refused_may_run_what_is_wished_now() {
    let told = founding(1).wish_version(V5).plan().does(["prepare 0 to 3.5.35"]);
    told.phase(Phase::Pending);
    let told = founding(1).plan().does(["ticket 0: seed on claim-0"]);
    assert_eq!(told.ledger().oldest_log, Some(Minor(6)));
    assert_eq!(told.entry(0).and_then(|entry| entry.release.clone()), Some(release(USUAL)));
    let refused = seeding(1).wish_version(V7).refused(0, Refusal::Binary);
    refused.plan().does(["switch 0 to 3.7.3"]);
    seeding(1).wish_version(V7).plan().does([]);
}

#[test]
fn who_sleeps_wakes_as_what_it_was() {
    let woken = (0..3).fold(cluster(3), Scene::pod_gone).unknown().wish_version(V7);
    woken.plan().does(["resume 0 on claim-0", "resume 1 on claim-1", "resume 2 on claim-2"]);
    let told = woken.wish(0).plan();
    assert!(told.plan.steps.is_empty());
    let gone = |version| cluster(1).wish_version(version).pending_without_image();
    gone(Version::new(6, 17)).plan().does(["switch 0 to 3.6.17"]);
    gone(V7).plan().does([]);
}

#[test]
fn the_version_of_a_new_pod_is_what_its_member_ran() {
    let step = begun().pod_gone(2).plan().plan.steps;
    let expected = Step::CreatePod {
        serial: Serial(2),
        bind: Bind::Claim(crate::scene::claim_uid(2)),
        birth: Birth::Resuming(Role::Voter),
        release: release(USUAL),
    };
    assert_eq!(step.first(), Some(&expected));
    let leader = begun().runs(2, V7).runs(1, V7).pod_gone(0).list(|list| list.leader = Some(id(1)));
    leader.plan().does(["resume 0 on claim-0"]);
}

impl Scene {
    /// The only member, whose new pod's image can't be had, and no etcd.
    fn pending_without_image(self) -> Self {
        self.pod_pending(0, 1_000).trouble(0, Trouble::ImageMissing).unknown()
    }
}
