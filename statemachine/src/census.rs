//! The member list joined with what is observed of each member: who is well, who is to leave. Decides no step.

use std::{cmp::Ordering, collections::BTreeSet};

use crate::{
    Home, Link, MemberId, MemberList, Membership, Minor, Release, Role, Roster, Seeding, Serial, Sight, Standing, Step,
    Storage, World,
    member::{Ground, Member, Volume},
    version,
};

/// How far a learner may lag behind the leader to be promoted, in raft entries. etcd itself asks for 90% of the
/// leader's index, which at index 10,000,000 lets a learner pass that is a million entries behind; a hundred are
/// replicated in some milliseconds (etcd server/etcdserver/server.go, isLearnerReady).
pub const PROMOTION_LAG: u64 = 100;

/// How old a sight may be to plan a promotion by: two looks at pods that don't answer, and four calls in a row to an API server
/// that takes two seconds for each. Who acts looks anew right before it.
const SIGHT_MS: u64 = 10_000;

/// How long a learner may take from its ticket until it has joined. A start takes 0.3 s; an image may have to be pulled
/// again, a name to become known to the peers (etcd itself retries that for 30 s). A launcher that can't start it has to be
/// able to say so before (`VERSION_DEADLINE` in `backup/src/launch/binary.rs`).
pub const START_PATIENCE_MS: u64 = 60_000;

/// How long a learner that has joined and answers may come no further: an etcd that was sent 8 GiB, the largest database it
/// recommends, reads them all before it applies more. One that is silent (a process that was stopped) gets only
/// [`START_PATIENCE_MS`].
const CATCH_UP_PATIENCE_MS: u64 = 600_000;

/// How long it may take altogether, at least: 8 GiB at 5 MB/s. As long as it isn't there, others that are may not vote.
const CATCH_UP_LIMIT_MS: u64 = 1_800_000;

/// How fast it has to be where the database may become larger than that, in bytes a millisecond: 100 GiB take six hours.
/// Were it given up sooner, the next one would be, too, for ever.
const CATCH_UP_PACE: u64 = 5_000;

/// What was heard from etcd.
pub enum Heard<'w> {
    /// No linearizable answer.
    Nothing,
    /// This very cluster, with no members but its own.
    Ours(Census<'w>),
    /// This very cluster, but some members are not its own.
    Mixed,
    /// A cluster that is not this one.
    Another,
}

/// The members of this cluster.
pub struct Census<'w> {
    world: &'w World,
    pub list: &'w MemberList,
    /// By serial.
    pub voters: Vec<Peer<'w>>,
    /// By serial.
    pub learners: Vec<Peer<'w>>,
    /// How many voters are wished for.
    pub wished: usize,
}

/// One member of this cluster.
pub struct Peer<'w> {
    pub id: MemberId,
    pub member: Member<'w>,
    /// A voter whose volume is lost or going, a learner that is given up: another has to take its place.
    pub leaving: bool,
}

/// How long a learner may take to catch up, where a database may become so large.
fn catch_up_limit(quota: u64) -> u64 {
    CATCH_UP_LIMIT_MS.max(quota / CATCH_UP_PACE)
}

/// How many of so many voters must agree.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

impl<'w> Heard<'w> {
    /// Joins the answer, if there was one, with the rest of the world.
    pub fn of(world: &'w World, seeding: Seeding) -> Self {
        let Membership::Known(list) = &world.membership else { return Self::Nothing };
        // A cluster without voters can't have answered.
        if !list.members.values().any(|line| line.role == Role::Voter) {
            return Self::Nothing;
        }
        let serials: BTreeSet<Serial> = list.members.values().filter_map(|line| line.serial).collect();
        let all_ours = serials.len() == list.members.len();
        match seeding {
            Seeding::NotBegun => Self::Another,
            Seeding::Begun(seed) if serials != BTreeSet::from([seed]) || !all_ours => Self::Another,
            Seeding::Done(cluster) if cluster != list.cluster => Self::Another,
            Seeding::Done(_) if !all_ours => Self::Mixed,
            Seeding::Begun(_) | Seeding::Done(_) => Self::Ours(Census::take(world, list)),
        }
    }
}

impl<'w> Census<'w> {
    fn take(world: &'w World, list: &'w MemberList) -> Self {
        let peers = |role: Role| {
            let mut peers: Vec<_> = list
                .members
                .iter()
                .filter(|(_, line)| line.role == role)
                .filter_map(|(id, line)| {
                    let member = Member::of(world, line.serial?);
                    let has_run = line.started || role == Role::Voter;
                    Some(Peer { id: *id, member: if has_run { member.having_run() } else { member }, leaving: false })
                })
                .collect();
            peers.sort_by_key(|peer| peer.member.serial);
            peers
        };
        let mut census = Self {
            world,
            list,
            voters: peers(Role::Voter),
            learners: peers(Role::Learner),
            wished: usize::from(world.wish.replicas),
        };
        let given_up: Vec<bool> = census.learners.iter().map(|peer| census.gives_up(world, peer)).collect();
        for (learner, given_up) in census.learners.iter_mut().zip(given_up) {
            learner.leaving = given_up;
        }
        for voter in &mut census.voters {
            voter.leaving = voter.has_no_future();
        }
        census.let_one_outdated_leave(world);
        census
    }

    /// An emptyDir can't be carried over to another pod: where all members are on one, an outdated member is replaced.
    fn let_one_outdated_leave(&mut self, world: &World) {
        let leader = self.list.leader;
        let outdated = |peer: &&mut Peer<'_>| peer.member.outdated();
        match world.wish.storage {
            Storage::Ephemeral if !self.voters.iter().any(|voter| voter.leaving) => {
                let last = self
                    .voters
                    .iter_mut()
                    .filter(outdated)
                    .max_by_key(|voter| (Some(voter.id) != leader, voter.member.serial));
                if let Some(last) = last {
                    last.leaving = true;
                }
            }
            Storage::Ephemeral | Storage::Claims { .. } => {}
        }
    }

    /// Whether a learner will not make it: removing one costs nothing, and another takes its place.
    fn gives_up(&self, world: &World, learner: &Peer<'_>) -> bool {
        let member = &learner.member;
        if learner.is_stranger() || learner.has_no_future() {
            return true;
        }
        let Some(pod) = member.pod else { return member.ground_for_new_pod() != Ground::Sound };
        let told = pod.created.max(pod.ticket_since);
        let overdue = match &pod.sight {
            Sight::Etcd(alive) if member.started => {
                world.now.since(told.max(alive.progressed)) > CATCH_UP_PATIENCE_MS
                    || world.now.since(told) > catch_up_limit(world.wish.quota)
            }
            Sight::Waiting(_) if pod.ticket.is_none() => false,
            Sight::Etcd(_) | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => {
                world.now.since(told) > START_PATIENCE_MS
            }
            Sight::Unknown => world.now.since(told.max(pod.heard)) > START_PATIENCE_MS,
        };
        member.ground() != Ground::Sound || (overdue && !self.has_caught_up(learner))
    }

    /// Who leads.
    pub fn leader(&self) -> Option<&Peer<'w>> {
        self.voters.iter().find(|voter| Some(voter.id) == self.list.leader)
    }

    pub fn leads(&self, peer: &Peer<'_>) -> bool {
        self.list.leader == Some(peer.id)
    }

    /// The ids of all members: what a ticket to join is bound to.
    pub fn ids(&self) -> BTreeSet<MemberId> {
        self.list.members.keys().copied().collect()
    }

    /// All members with their roles: what a change of the list is bound to.
    pub fn roster(&self) -> Roster {
        self.list.members.iter().map(|(id, line)| (*id, line.role)).collect()
    }

    pub fn removal_of(&self, peer: &Peer<'_>) -> Step {
        Step::Remove { serial: Some(peer.member.serial), id: peer.id, expect: self.roster() }
    }

    pub fn peers(&self) -> impl Iterator<Item = &Peer<'w>> {
        self.voters.iter().chain(&self.learners)
    }

    pub fn lists(&self, serial: Serial) -> bool {
        self.peers().any(|peer| peer.member.serial == serial)
    }

    /// The voters that are to stay.
    pub fn staying_voters(&self) -> impl Iterator<Item = &Peer<'w>> {
        self.voters.iter().filter(|voter| !voter.leaving)
    }

    /// The learners that may make it.
    pub fn hopeful_learners(&self) -> impl Iterator<Item = &Peer<'w>> {
        self.learners.iter().filter(|learner| !learner.leaving)
    }

    pub fn well_voters(&self) -> usize {
        self.voters.iter().filter(|voter| voter.member.well()).count()
    }

    pub fn all_voters_well(&self) -> bool {
        self.well_voters() == self.voters.len()
    }

    /// How many learners it takes to have as many voters as wished.
    pub fn wanted_learners(&self) -> usize {
        self.wished.saturating_sub(self.staying_voters().count())
    }

    /// How many of them are still to be added.
    pub fn missing_learners(&self) -> usize {
        self.wanted_learners().saturating_sub(self.hopeful_learners().count())
    }

    /// Whether somebody is still to be added, or was added and has not been started.
    pub fn expects_newcomers(&self) -> bool {
        self.missing_learners() > 0 || self.hopeful_learners().any(|learner| !learner.member.started)
    }

    /// The minor that the cluster runs at, as the leader knows it.
    pub fn cluster_version(&self) -> Option<Minor> {
        self.leader()?.member.alive()?.cluster_version
    }

    /// What newcomers run: what the leader is known to run. It is never below what the cluster runs at, as etcd demands of
    /// a newcomer, and it can read the log that the leader sends.
    pub fn release_for_newcomers(&self) -> Option<&'w Release> {
        self.leader().filter(|leader| leader.member.runs_as_told())?.member.told()
    }

    /// How many learners there may be at a time: as many as the member with the lowest minor admits.
    pub fn max_learners(&self) -> usize {
        self.peers().map(|peer| version::max_learners(peer.member.lowest_minor())).min().unwrap_or(1)
    }

    /// Whether nobody that can come up has been told to run a lower minor and has never come up on it: it could not, once
    /// the cluster's version has moved. It does not move while one that has is away: the leader asks each listed member for its
    /// version (etcd server/etcdserver/version/monitor.go, membersMinimalServerVersion).
    pub fn nobody_is_between_minors(&self) -> bool {
        let told = |voter: &Peer<'_>| voter.member.assigned().map(|release| release.version.minor);
        let highest = self.voters.iter().filter_map(told).max();
        let there = |voter: &Peer<'_>| {
            told(voter) == highest
                || voter.member.runs_as_told()
                || voter.member.stays_down()
                || voter.member.was_well_as_told()
        };
        self.voters.iter().all(there)
    }

    /// Whether its pod is on a node that takes no new pods.
    pub fn is_cordoned(&self, peer: &Peer<'_>) -> bool {
        peer.member.pod.and_then(|pod| pod.node.as_ref()).is_some_and(|node| self.world.cordoned.contains(node))
    }

    /// Whether its next pod can't be started: its volume is of its node, and that takes no new pods.
    pub fn is_held_by_its_node(&self, peer: &Peer<'_>) -> bool {
        match peer.member.claim.map(|claim| &claim.home) {
            Some(Home::Node(node)) => self.world.cordoned.contains(node),
            Some(Home::Anywhere) | None => false,
        }
    }

    /// Who can take the leadership over from another: the well voters that stay, those on nodes that stay first, then the
    /// lowest serial, which is the last one ever to be removed.
    pub fn heirs(&self, from: &Peer<'_>) -> impl Iterator<Item = &Peer<'w>> {
        let from = from.id;
        let fit = move |cordoned: bool| {
            self.staying_voters()
                .filter(move |voter| voter.id != from && voter.member.well() && self.is_cordoned(voter) == cordoned)
        };
        fit(false).chain(fit(true))
    }

    /// Whether a member can be spared for the moment: all voters are there, ready, caught up, connected to each other, and
    /// run what they are told to; and nobody comes or goes. None of it is a matter of time. Right before one is stopped, who
    /// acts looks anew whether the others live and have a leader.
    pub fn is_calm(&self) -> bool {
        self.is_calm_but_for(None)
    }

    /// The same where this one is to be stopped: whether its own pod is ready, which a new one may well mend, is not asked.
    pub fn is_calm_but_for(&self, next: Option<Serial>) -> bool {
        let all_there = self.voters.iter().all(|voter| {
            let spared = next == Some(voter.member.serial);
            let ready = voter.member.pod.is_some_and(|pod| (pod.ready || spared) && !pod.terminating);
            let connected = self.voters.iter().all(|other| other.id == voter.id || are_connected(voter, other));
            ready && connected && !voter.leaving && voter.member.runs_as_told() && self.has_caught_up(voter)
        });
        all_there && self.learners.is_empty() && self.voters.len() == self.wished
    }

    /// Whether a member was seen alive a moment ago.
    pub fn was_just_seen(&self, peer: &Peer<'_>) -> bool {
        peer.member.alive().is_some_and(|alive| self.world.now.since(alive.seen) <= SIGHT_MS)
    }

    /// Whether it runs though it has no pod, as another one that is well is connected to it. A pod that was deleted by force is
    /// gone before its process is, by seconds where its kubelet has not heard of that.
    pub fn runs_without_pod(&self, peer: &Peer<'_>) -> bool {
        let says = |other: &Peer<'_>| other.member.well() && is_linked_to(other, peer);
        peer.member.pod.is_none() && self.peers().any(|other| other.id != peer.id && says(other))
    }

    /// Whether a member has applied nearly all that the leader has committed. Never, if either doesn't answer.
    pub fn has_caught_up(&self, peer: &Peer<'_>) -> bool {
        let leader = self.leader().filter(|leader| leader.member.well()).and_then(|leader| leader.member.alive());
        match (leader, peer.member.alive()) {
            (Some(leader), Some(alive)) => alive.live && alive.has_leader && is_near(alive.applied, leader.committed),
            (None, _) | (_, None) => false,
        }
    }
}

/// Whether who has applied so many entries has nearly all that are committed.
pub fn is_near(applied: u64, committed: u64) -> bool {
    committed.saturating_sub(applied) <= PROMOTION_LAG
}

/// Whether two members are connected, by the word of the one that was started later: the other one may still count what it
/// had to the process before, for the 5 s after which etcd gives up a connection that is silent (`ConnReadTimeout` in
/// server/etcdserver/api/rafthttp/peer.go), or count nothing for good. Each start is told by the clock of its own node; where
/// those differ by more than the starts do, the other one's word counts. Of two that were started at once either's does.
fn are_connected(one: &Peer<'_>, other: &Peer<'_>) -> bool {
    let started = |peer: &Peer<'_>| peer.member.alive().map(|alive| alive.process);
    match started(one).cmp(&started(other)) {
        Ordering::Greater => is_linked_to(one, other),
        Ordering::Less => is_linked_to(other, one),
        Ordering::Equal => is_linked_to(one, other) || is_linked_to(other, one),
    }
}

/// Whether a member says that it is connected to another.
fn is_linked_to(one: &Peer<'_>, other: &Peer<'_>) -> bool {
    one.member.alive().is_some_and(|alive| alive.links.contains_key(&other.id))
}

impl Peer<'_> {
    /// Whether it counts another member as not connected that is: as a leader it would refuse changes of the list.
    pub fn overlooks_somebody(&self) -> bool {
        self.member.alive().is_some_and(|alive| {
            alive.links.values().any(|link| match link {
                Link::Overlooked => true,
                Link::Counted => false,
            })
        })
    }

    /// It has not run, and the ledger doesn't know it, or knows its serial by another id: somebody added a serial that
    /// was removed before. It could have been created on any volume, so it is never started.
    pub fn is_stranger(&self) -> bool {
        let known = self.member.entry.is_some_and(|entry| match entry.standing {
            Standing::Spare => true,
            Standing::Learner(id) | Standing::Voter(id) => id == self.id,
        });
        !known && !self.member.started
    }

    /// Its volume is lost, or will be when its pod goes.
    pub fn has_no_future(&self) -> bool {
        match self.member.volume() {
            Volume::Absent | Volume::Blank(_) | Volume::Intact(_) => false,
            Volume::Unfit | Volume::Going(_) | Volume::Lost(_) => true,
        }
    }
}
