//! Where the members' versions go next, on the way from what runs to what is wished: one minor a step, and every step from
//! what etcd itself says of its versions. Answers the question, plans no step.

use crate::{
    FIRST_WITH_NEW_LOG, FIRST_WITHOUT_OLD_LOG, Finding, Ledger, Minor, Overall, Release, World,
    census::{Census, Peer},
    version::{self, FIRST_WITH_DOWNGRADE},
};

/// The next thing on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg<'w> {
    /// All run what is wished, and so says the cluster's version.
    Arrived,
    /// The members may be switched to this release.
    Switch(&'w Release),
    /// The cluster's version is to be lowered to this minor, for the members to be switched to this release then.
    Lower(Minor, &'w Release),
    /// The cluster's version is to be lowered to this minor for a moment: at that every member takes a raft snapshot,
    /// without which it could not be switched to this release (`ForceSnapshot` in etcd's `server/etcdserver/apply`).
    CutLogs(Minor, &'w Release),
    /// They have taken them.
    LogsCut,
    /// A downgrade is enabled that is not wanted, or not wanted any more.
    TakeBack,
    /// etcd is about to do something by itself, or something is not known.
    Waits(Finding),
    /// Only the user can help.
    Stuck(Finding),
}

/// What the next leg is. `ledger` as it is going to be written.
pub fn next<'w>(world: &'w World, ledger: &Ledger, census: &Census<'w>) -> Leg<'w> {
    let goal = &world.wish.release;
    let cluster = census.cluster_version();
    let downgrade = match world.overall {
        Overall::Unknown | Overall::OfAlarms(_) => None,
        Overall::Known { downgrade, alarm: _ } => Some(downgrade),
    };
    // One that is down has been told so before, and one whose leader is down has got there before.
    let as_wished = census.voters.iter().all(|voter| voter.member.assigned().is_none_or(|told| told == goal));
    if as_wished && cluster.is_none_or(|cluster| cluster == goal.version.minor) && downgrade.flatten().is_none() {
        return Leg::Arrived;
    }
    let Some(cluster) = cluster else { return Leg::Waits(Finding::VersionsUnknown) };
    let way = Way { world, ledger, census, goal, cluster };
    match downgrade {
        None => Leg::Waits(Finding::VersionsUnknown),
        Some(Some(target)) => way.with_downgrade(target),
        Some(None) => way.without_downgrade(),
    }
}

/// Whether all are told to run the minor that is wished, the one above the cluster's, but for some that are down: these may
/// follow them, as etcd lets a member run that minor and nothing is left to be done on the way there.
pub fn all_others_are_there(world: &World, ledger: &Ledger, census: &Census<'_>) -> bool {
    let (to, Some(cluster)) = (world.wish.release.version.minor, census.cluster_version()) else { return false };
    let Overall::Known { downgrade: None, alarm: _ } = world.overall else { return false };
    let above_floor = |told: &Release| version::floor(cluster, to).is_none_or(|floor| told.version >= floor.from);
    let there = |peer: &Peer<'_>| minor_of(peer) == Some(to);
    let may_follow = |peer: &Peer<'_>| {
        minor_of(peer) == Some(cluster) && !peer.member.well() && peer.member.assigned().is_some_and(above_floor)
    };
    to == cluster.next()
        && (to < FIRST_WITHOUT_OLD_LOG || !has_old_log(ledger))
        && census.voters.iter().any(|voter| there(voter) && voter.member.well())
        && census.peers().all(|peer| there(peer) || may_follow(peer))
}

struct Way<'a, 'w> {
    world: &'w World,
    ledger: &'a Ledger,
    census: &'a Census<'w>,
    goal: &'w Release,
    /// The minor that the cluster runs at.
    cluster: Minor,
}

impl<'w> Way<'_, 'w> {
    fn with_downgrade(&self, target: Minor) -> Leg<'w> {
        if self.told(|minor| minor == target) {
            // The leader finds out within four seconds, and disables it.
            return Leg::Waits(Finding::DowngradeUnderWay);
        }
        if target < self.goal.version.minor {
            return self.while_logs_are_cut(target);
        }
        let Some(release) = self.release_of(target) else { return Leg::Stuck(Finding::NoWayThrough) };
        let ready = |voter: &Peer<'_>| {
            let stored = voter.member.alive().and_then(|alive| alive.storage);
            minor_of(voter) == Some(target) || stored == Some(target)
        };
        if self.cluster == target && self.census.voters.iter().all(ready) {
            Leg::Switch(release)
        } else {
            Leg::Waits(Finding::DowngradeUnderWay)
        }
    }

    /// A downgrade below what is wished is enabled only to cut the logs; any other is taken back. So is this one while
    /// anybody is down: nobody can be replaced meanwhile.
    fn while_logs_are_cut(&self, target: Minor) -> Leg<'w> {
        let wanted = target.next() == FIRST_WITH_NEW_LOG
            && self.told(|minor| minor == FIRST_WITH_NEW_LOG)
            && self.goal.version.minor >= FIRST_WITHOUT_OLD_LOG
            && has_old_log(self.ledger);
        let heard = |voter: &Peer<'_>| voter.member.alive().is_some_and(|alive| alive.cluster_version == Some(target));
        if !wanted || !self.census.all_voters_well() {
            Leg::TakeBack
        } else if self.census.voters.iter().all(heard) {
            Leg::LogsCut
        } else {
            Leg::Waits(Finding::LogsAreCut)
        }
    }

    fn without_downgrade(&self) -> Leg<'w> {
        let cluster = self.cluster;
        if self.told(|minor| minor > cluster) {
            return Leg::Waits(Finding::ClusterVersionLags);
        }
        // One that runs the cluster's minor, and is not about to leave it, keeps the cluster's version where it is.
        let held =
            self.census.voters.iter().any(|voter| minor_of(voter) == Some(cluster) && voter.member.runs_as_told());
        if !held {
            return Leg::Waits(Finding::VersionsUnknown);
        }
        let wished = self.goal.version.minor;
        if wished > cluster {
            self.up()
        } else if wished == cluster {
            Leg::Switch(self.goal)
        } else if self.told(|minor| minor == cluster) {
            self.down()
        } else {
            // First back to where all are of one minor.
            self.release_of(cluster).map_or(Leg::Stuck(Finding::NoWayThrough), Leg::Switch)
        }
    }

    fn up(&self) -> Leg<'w> {
        let next = self.cluster.next();
        let behind = |voter: &Peer<'_>| minor_of(voter).is_some_and(|minor| minor < self.cluster);
        if self.census.voters.iter().any(behind) {
            // What it is told to run could not join the cluster as it runs now.
            return self.release_of(self.cluster).map_or(Leg::Stuck(Finding::NoWayThrough), Leg::Switch);
        }
        if let Some(leg) = self.lift_to_floor(next) {
            return leg;
        }
        let Some(release) = self.release_of(next) else { return Leg::Stuck(Finding::NoWayThrough) };
        if next != FIRST_WITHOUT_OLD_LOG || !has_old_log(self.ledger) {
            return Leg::Switch(release);
        }
        if self.told(|minor| minor == self.cluster) {
            return Leg::CutLogs(self.cluster.previous(), release);
        }
        // A newcomer that joined on the way was sent old entries. All go back to where the logs can be cut once more.
        self.release_of(self.cluster).map_or(Leg::Stuck(Finding::NoWayThrough), Leg::Switch)
    }

    fn down(&self) -> Leg<'w> {
        let below = self.cluster.previous();
        if self.cluster < FIRST_WITH_DOWNGRADE {
            return Leg::Stuck(Finding::NoWayThrough);
        }
        if let Some(leg) = self.lift_to_floor(below) {
            return leg;
        }
        self.release_of(below).map_or(Leg::Stuck(Finding::NoWayThrough), |release| Leg::Lower(below, release))
    }

    /// The leg to a later patch, if the members' own must not be left for this minor.
    fn lift_to_floor(&self, to: Minor) -> Option<Leg<'w>> {
        let floor = version::floor(self.cluster, to)?.from;
        let below = |voter: &Peer<'_>| {
            voter.member.told().is_some_and(|told| told.version.minor == floor.minor && told.version < floor)
        };
        if !self.census.voters.iter().any(below) {
            return None;
        }
        let stop = self.world.wish.stops.get(&self.cluster).filter(|stop| stop.version >= floor);
        Some(stop.map_or(Leg::Stuck(Finding::BelowFloor), Leg::Switch))
    }

    /// What to run of a minor: what is wished, or else its stop, or what others run of it already if that is later.
    fn release_of(&self, minor: Minor) -> Option<&'w Release> {
        if self.goal.version.minor == minor {
            return Some(self.goal);
        }
        let told = self.census.voters.iter().filter_map(|voter| voter.member.told());
        let run = told.filter(|told| told.version.minor == minor);
        run.chain(self.world.wish.stops.get(&minor)).max_by_key(|release| release.version)
    }

    /// Whether this is so of the minor that each voter is told to run.
    fn told(&self, holds: impl Fn(Minor) -> bool) -> bool {
        self.census.voters.iter().all(|voter| minor_of(voter).is_some_and(&holds))
    }
}

/// Whether somebody may have log entries in the old form that are still read.
fn has_old_log(ledger: &Ledger) -> bool {
    !ledger.logs_cut && wrote_old_log(ledger)
}

/// Whether the cluster has ever written its log in the old form, as far as is known.
pub fn wrote_old_log(ledger: &Ledger) -> bool {
    ledger.oldest_log.is_none_or(|oldest| oldest < FIRST_WITH_NEW_LOG)
}

fn minor_of(voter: &Peer<'_>) -> Option<Minor> {
    voter.member.assigned().map(|release| release.version.minor)
}
