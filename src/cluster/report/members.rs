//! The members as the status shows them. Pure. A value that couldn't be learned now stays what it was.

use std::collections::BTreeSet;

use quorate_crds::{EtcdClusterStatus, HexId, MemberHealth, MemberRole, MemberStatus, Reason};
use quorate_statemachine::{
    Entry, Finding, Ledger, Membership, NodeSight, Plan, Pod, PodStage, Role, Serial, Sight, Standing, Step,
};

use super::sentences::{self, Weight};
use crate::cluster::observe::Observed;

/// One line for each member and each pod that waits to become one.
pub fn of(observed: &Observed, plan: &Plan, ledger: Option<&Ledger>, old: &EtcdClusterStatus) -> Vec<MemberStatus> {
    let of_ledger = ledger.into_iter().flat_map(|ledger| ledger.members.keys());
    let of_pods = observed.pods.keys();
    let serials: BTreeSet<Serial> = of_ledger.chain(of_pods).copied().collect();
    serials.into_iter().map(|serial| member(observed, plan, ledger, old, serial)).collect()
}

fn member(
    observed: &Observed,
    plan: &Plan,
    ledger: Option<&Ledger>,
    old: &EtcdClusterStatus,
    serial: Serial,
) -> MemberStatus {
    let cluster = observed.cluster.metadata.name.as_deref().unwrap_or_default();
    let name = quorate_crds::names::member(cluster, serial.0);
    let before = old.members.iter().find(|member| member.name == name);
    let same_wish = old.observed_generation == observed.cluster.metadata.generation;
    let reason_before = before.filter(|_| same_wish).and_then(|old| old.reason.as_deref());
    let entry = ledger.and_then(|ledger| ledger.members.get(&serial));
    let pod = observed.world.seats.get(&serial).and_then(|seat| seat.pod.as_ref());
    let id = match entry.map(|entry| entry.standing) {
        Some(Standing::Learner(id) | Standing::Voter(id)) => Some(HexId::new(id.0)),
        Some(Standing::Spare) | None => None,
    };
    let seen = observed.said.seen.get(&serial);
    let version = seen.and_then(|seen| seen.version.clone()).or_else(|| before.and_then(|old| old.version.clone()));
    MemberStatus {
        role: Some(role(observed, serial, entry)),
        version: version.filter(|_| id.is_some()),
        health: id.as_ref().map(|_| health(observed, pod)),
        reason: reason(observed, plan, serial, reason_before),
        name,
        id,
    }
}

fn role(observed: &Observed, serial: Serial, entry: Option<&Entry>) -> MemberRole {
    let listed = match &observed.world.membership {
        Membership::Known(list) => list.listed(serial).map(|listed| listed.role),
        Membership::Unknown => match entry.map(|entry| entry.standing) {
            Some(Standing::Voter(_)) => Some(Role::Voter),
            Some(Standing::Learner(_)) => Some(Role::Learner),
            Some(Standing::Spare) | None => None,
        },
    };
    match (listed, entry) {
        (Some(Role::Voter), _) => MemberRole::Voter,
        (Some(Role::Learner), _) => MemberRole::Learner,
        (None, Some(Entry { create: None, standing: Standing::Spare, .. })) => MemberRole::Waiting,
        // The seed before it serves has been told to create, and nobody can list it yet.
        (None, Some(Entry { standing: Standing::Spare, .. })) if observed.said.list.is_none() => MemberRole::Waiting,
        (None, Some(_) | None) => MemberRole::Leaving,
    }
}

/// How one member is, as far as was seen.
fn health(observed: &Observed, pod: Option<&Pod>) -> MemberHealth {
    let Some(pod) = pod else { return MemberHealth::Unhealthy };
    let reachable = pod.node.as_ref().is_none_or(|node| observed.world.nodes.get(node) == Some(&NodeSight::Ready));
    match &pod.sight {
        Sight::Etcd(alive) if alive.live && alive.has_leader && !pod.terminating => MemberHealth::Healthy,
        Sight::Etcd(_) | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => MemberHealth::Unhealthy,
        Sight::Unknown if pod.stage == PodStage::Finished || (reachable && !pod.ready) => MemberHealth::Unhealthy,
        Sight::Unknown => MemberHealth::Unknown,
    }
}

/// Why a member is not a healthy voter: the finding about it that weighs most. That its node could not try an image stands
/// while it tries again, every quarter of a minute: else each try would be news.
fn reason(observed: &Observed, plan: &Plan, serial: Serial, before: Option<&str>) -> Option<String> {
    let findings = plan.findings.get(&Some(serial))?;
    let worst = findings.iter().copied().max_by_key(|finding: &Finding| sentences::weight(*finding))?;
    let undecided = before.filter(|before| *before == Reason::TrialUndecided.as_str());
    let stands = undecided.filter(|_| sentences::weight(worst) <= Weight::Passing && is_tried(plan, serial));
    let told = sentences::tell(observed, plan, Some(serial), worst).reason.as_str();
    Some(stands.unwrap_or(told).into())
}

/// Whether a release is being tried on a member's node, or is about to be.
fn is_tried(plan: &Plan, serial: Serial) -> bool {
    let under_way = plan.findings.get(&Some(serial)).is_some_and(|findings| findings.contains(&Finding::TrialOpen));
    let begins = |step: &Step| matches!(step, Step::TryRelease { serial: of, .. } if *of == serial);
    under_way || plan.steps.iter().any(begins)
}

/// How many voters are well, as far as was seen.
pub fn healthy_voters(observed: &Observed) -> usize {
    let Membership::Known(list) = &observed.world.membership else { return seen_voters(observed) };
    let voters = list.members.values().filter(|listed| listed.role == Role::Voter);
    let well = voters.filter(|listed| {
        let pod = listed.serial.and_then(|serial| observed.world.seats.get(&serial)).and_then(|s| s.pod.as_ref());
        health(observed, pod) == MemberHealth::Healthy
    });
    well.count()
}

/// Without a member list: those that say of themselves that they vote and follow a leader.
fn seen_voters(observed: &Observed) -> usize {
    let pods = observed.world.seats.values().filter_map(|seat| seat.pod.as_ref());
    let votes = |pod: &&Pod| match &pod.sight {
        Sight::Etcd(alive) => !alive.learner,
        Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => false,
    };
    pods.filter(votes).filter(|pod| health(observed, Some(pod)) == MemberHealth::Healthy).count()
}
