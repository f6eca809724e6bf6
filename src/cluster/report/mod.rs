//! Reports: the status of what was observed and planned, the events of what has turned, the metrics of how long it took.
//! Nothing that changes at every look is in a status, so that a cluster at rest is never written.

pub mod archive;
mod changes;
pub mod conditions;
pub mod events;
pub mod members;
mod restores;
pub mod sentences;
mod verify;

use jiff::Timestamp;
use quorate_crds::names::{APP_NAME, LABEL_CLUSTER, LABEL_NAME};
use quorate_crds::{EtcdClusterStatus, HexId};
use quorate_statemachine::{Ledger, Membership, Memory, Plan, Seeding, Standing};

use super::ledger;
use super::observe::Observed;

/// The ledger as it stands once this plan's has been written.
pub fn ledger_of<'a>(observed: &'a Observed, plan: &'a Plan) -> Option<&'a Ledger> {
    match (&plan.ledger, &observed.world.memory) {
        (Some(planned), _) => Some(planned),
        (None, Memory::Ledger(remembered)) => Some(remembered),
        (None, Memory::Blank | Memory::Unreadable) => None,
    }
}

/// The status that belongs to what was observed and planned. Equal to the old one when nothing has turned.
pub fn status(observed: &Observed, plan: &Plan, now: Timestamp) -> EtcdClusterStatus {
    let old = observed.cluster.status.clone().unwrap_or_default();
    let name = observed.cluster.metadata.name.as_deref().unwrap_or_default();
    let ledger = ledger_of(observed, plan);
    let members = members::of(observed, plan, ledger, &old);
    let lowest = members.iter().filter_map(|member| member.version.as_deref()).min_by_key(|v| version_key(v));
    let counted = ledger.into_iter().flat_map(|ledger| ledger.members.values());
    let counted = counted.filter(|entry| !matches!(entry.standing, Standing::Spare)).count();
    let conditions = conditions::of(observed, plan, &old.conditions, now);
    EtcdClusterStatus {
        observed_generation: observed.cluster.metadata.generation,
        phase: Some(phase(plan.phase)),
        backup: archive::state(observed, &conditions, now),
        conditions,
        replicas: i32::try_from(counted).unwrap_or(i32::MAX),
        ready_replicas: i32::try_from(members::healthy_voters(observed)).unwrap_or(i32::MAX),
        selector: Some(format!("{LABEL_CLUSTER}={name},{LABEL_NAME}={APP_NAME}")),
        version: lowest.map(str::to_owned),
        target_version: plan.heading.as_ref().map(|release| release.version.to_string()),
        cluster_id: match ledger.map(|ledger| ledger.seeding) {
            Some(Seeding::Done(id)) => Some(HexId::new(id.0)),
            Some(Seeding::NotBegun | Seeding::Begun(_)) | None => None,
        },
        leader: leader(observed, old.leader, name),
        members,
        // One that can't be read is left as it is: the user may mend it.
        ledger: match &plan.ledger {
            Some(planned) => Some(ledger::write(name, planned)),
            None => old.ledger,
        },
    }
}

/// Who leads. While the list is known and nobody says so, it is the one who led: an election takes a moment, and a look
/// may fail.
fn leader(observed: &Observed, old: Option<String>, cluster: &str) -> Option<String> {
    match (observed.said.leader(), &observed.world.membership) {
        (Some((serial, _)), _) => Some(quorate_crds::names::member(cluster, serial.0)),
        (None, Membership::Known(_)) => old,
        (None, Membership::Unknown) => None,
    }
}

/// Versions in their order; what is none comes first.
fn version_key(version: &str) -> Vec<u64> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

/// The phase as the status shows it.
pub fn phase(phase: quorate_statemachine::Phase) -> quorate_crds::Phase {
    use quorate_statemachine::Phase;
    match phase {
        Phase::Pending => quorate_crds::Phase::Pending,
        Phase::Restoring => quorate_crds::Phase::Restoring,
        Phase::Seeding => quorate_crds::Phase::Seeding,
        Phase::Growing => quorate_crds::Phase::Growing,
        Phase::Running => quorate_crds::Phase::Running,
        Phase::Scaling => quorate_crds::Phase::Scaling,
        Phase::Healing => quorate_crds::Phase::Healing,
        Phase::Restarting => quorate_crds::Phase::Restarting,
        Phase::Upgrading => quorate_crds::Phase::Upgrading,
        Phase::Hibernated => quorate_crds::Phase::Hibernated,
        Phase::QuorumLost => quorate_crds::Phase::QuorumLost,
        Phase::Paused => quorate_crds::Phase::Paused,
        Phase::Deleting => quorate_crds::Phase::Deleting,
        Phase::Failed => quorate_crds::Phase::Failed,
    }
}

#[cfg(test)]
pub mod fixture;
#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod tests;
