//! When a learner becomes a voter: etcd itself checks nothing but 90% of the leader's index.

use quorate_statemachine::{Finding, LookAgain, Millis, NodeSight, PodStage, RoleLabel, Sight, Start};

use crate::scene::{COMMITTED, NOW, Scene, cluster, node};

fn two_learners() -> Scene {
    cluster(1).wish(3).learner(1).learner(2)
}

fn one_learner() -> Scene {
    cluster(2).wish(3).learner(2)
}

#[test]
fn learners_that_have_caught_up_are_promoted_back_to_back() {
    let two = two_learners().ticket(1, Start::Resume).ticket(2, Start::Resume);
    two.plan().does(["count 1", "count 2", "promote 1", "promote 2"]).looks(LookAgain::AtOnce);
    one_learner().ticket(2, Start::Resume).plan().does(["count 2", "promote 2"]);
    // From an even number the first ends it, and the second would need one more to be well.
    let second = cluster(2).wish(4).learner(2).learner(3).ticket(2, Start::Resume);
    second.plan().does(["count 2", "promote 2"]);
}

#[test]
fn before_it_votes_a_learner_can_only_be_resumed() {
    one_learner().plan().does(["ticket 2: resume on claim-2", "count 2", "promote 2"]);
    let [first, second] = ["ticket 1: resume on claim-1", "ticket 2: resume on claim-2"];
    two_learners().plan().does([first, second, "count 1", "count 2", "promote 1", "promote 2"]);
    // Also where its start is not in the member list yet: it answers, and has applied what the leader has.
    one_learner().line(2, |line| line.started = false).plan().does([
        "ticket 2: resume on claim-2",
        "count 2",
        "promote 2",
    ]);
    // So can those that vote already: here the seed.
    let seed = two_learners().ticket(0, Start::Seed);
    seed.plan().also_does("ticket 0: resume on claim-0").also_does("promote 1");
    // And without a volume to resume on, it never votes.
    one_learner().claim_terminating(2).plan().never("promote").also_does("remove 2");
    one_learner().not_in_ledger(2).line(2, |line| line.started = false).plan().never("promote");
}

#[test]
fn the_budget_lets_none_go_while_one_is_promoted() {
    one_learner().plan().budget(3);
    two_learners().plan().budget(3);
    cluster(3).wish(5).learner(3).learner(4).plan().budget(5);
    cluster(5).plan().budget(4);
    // Of two voters none can be spared: one of them is no quorum.
    cluster(1).wish(2).learner(1).plan().budget(2);
    cluster(2).wish(2).plan().budget(2);
}

#[test]
fn one_that_is_counted_already_and_not_promoted_after_all_is_counted_no_more() {
    let counted = || one_learner().pod(2, |pod| pod.label = RoleLabel::Returning).ticket(2, Start::Resume);
    counted().plan().does(["promote 2"]).budget(3);
    // Until it isn't, none is let go: it would be counted in the place of a voter.
    counted().unheard(2).plan().does(["unlabel 2"]).budget(3);
}

#[test]
fn none_is_promoted_before_all_have_caught_up() {
    two_learners().etcd(2, |alive| alive.applied = 0).plan().never("promote").looks(LookAgain::Soon);
    cluster(1).wish(3).learner(1).joining(2).plan().never("promote");
}

#[test]
fn a_learner_that_is_given_up_is_not_waited_for() {
    let told = two_learners().node_not_ready(2).plan();
    told.also_does("remove 2").never("promote").tells(2, Finding::LearnerGivenUp);
    cluster(1).wish(3).learner(1).spare(3).unschedulable(3).plan().also_does("promote 1");
}

#[test]
fn only_one_within_a_hundred_entries() {
    one_learner().etcd(2, |alive| alive.applied = COMMITTED - 100).plan().also_does("promote 2");
    one_learner().etcd(2, |alive| alive.applied = COMMITTED - 101).plan().never("promote");
}

#[test]
fn also_one_that_does_not_know_that_it_is_a_learner() {
    one_learner().etcd(2, |alive| alive.learner = false).plan().also_does("promote 2");
}

#[test]
fn only_one_that_was_just_seen_alive() {
    one_learner().etcd(2, |alive| alive.seen = Millis(NOW.0 - 10_000)).plan().also_does("promote 2");
    one_learner().etcd(2, |alive| alive.seen = Millis(NOW.0 - 10_001)).plan().never("promote");
    one_learner().etcd(2, |alive| alive.live = false).plan().never("promote");
    one_learner().etcd(2, |alive| alive.has_leader = false).plan().never("promote");
    one_learner().unheard(2).plan().never("promote");
    one_learner().pod_terminating(2).plan().never("promote");
    one_learner().pod_gone(2).plan().never("promote");
    one_learner().pod_finished(2).plan().never("promote");
}

#[test]
fn a_restarted_learner_is_measured_anew() {
    let restarted = one_learner().etcd(2, |alive| {
        alive.process = NOW;
        alive.applied = 12;
    });
    restarted.plan().never("promote").looks(LookAgain::Soon);
    one_learner().sees(2, Sight::Waiting(None)).pod(2, |pod| pod.stage = PodStage::Running).plan().never("promote");
}

#[test]
fn none_without_a_leader_to_measure_by() {
    one_learner().unheard(0).plan().never("promote");
    one_learner().list(|list| list.leader = None).plan().never("promote");
}

#[test]
fn none_that_would_cost_the_quorum() {
    // Two of four voters are well. With the learner there would be three of five: enough, but it takes three of four
    // to agree on that now.
    let thin = cluster(4).wish(5).unheard(2).unheard(3).learner(4);
    thin.plan().also_does("promote 4");
    let thinner = cluster(3).wish(5).unheard(1).unheard(2).learner(3);
    thinner.plan().never("promote").tells_all(Finding::QuorumTooThin);
}

#[test]
fn none_on_a_node_that_is_away() {
    let mut scene = one_learner();
    scene.world.nodes.insert(node(2), NodeSight::NotReady(NOW));
    scene.plan().never("promote").also_does("remove 2");
}
