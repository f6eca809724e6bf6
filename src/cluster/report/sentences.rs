//! What is told of each finding: a reason from the closed set, and a short sentence that names the member and the
//! remedy. Only words; when they are told is decided elsewhere.

use quorate_crds::{Reason, names};
use quorate_statemachine::{Alarm, Finding, Memory, Phase, Plan, Refusal, Serial, Sight, Trouble};

use super::{changes, restores};
use crate::cluster::observe::Observed;
use crate::cluster::observe::said::Complaint;
use crate::cluster::pki::Certificates;

/// A reason and its sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The reason.
    pub reason: Reason,
    /// The sentence.
    pub sentence: String,
}

/// How much a finding weighs: what is told first, and whether the user has to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Waits for its turn, while something else goes on.
    Waiting,
    /// Goes on, and passes by itself.
    Passing,
    /// Nothing is broken, but a change can't go on. That may pass, or need the user.
    Hindering,
    /// Something is broken that Quorate mends.
    Mending,
    /// Only the user can mend it.
    Stuck,
}

/// How much a finding weighs.
pub fn weight(finding: Finding) -> Weight {
    match finding {
        Finding::PodOutdated | Finding::ResourcesOutdated | Finding::ReleaseOutdated => Weight::Waiting,
        Finding::QuorumTooThin
        | Finding::RollWaits
        | Finding::VersionsUnknown
        | Finding::ClusterVersionLags
        | Finding::DowngradeUnderWay
        | Finding::LogsAreCut
        | Finding::TrialOpen
        | Finding::SnapshotOpen
        | Finding::BackupAwaited => Weight::Passing,
        Finding::TrialUndecided | Finding::NodeCordoned => Weight::Hindering,
        Finding::EtcdUnknown
        | Finding::VolumeLost
        | Finding::VolumeForeign
        | Finding::VolumeGoing
        | Finding::PodMissing
        | Finding::NodeUnreachable
        | Finding::NodeGone
        | Finding::LearnerGivenUp => Weight::Mending,
        Finding::LedgerMissing
        | Finding::LedgerUnreadable
        | Finding::VolumesOfAnother
        | Finding::MembersOfAnother
        | Finding::QuorumLost
        | Finding::SeedRefused
        | Finding::LauncherRefuses
        | Finding::ImageMissing
        | Finding::Unschedulable
        | Finding::ContainerFailing
        | Finding::NoRoomToResize
        | Finding::AlarmRaised
        | Finding::Alarm(_)
        | Finding::NoWayThrough
        | Finding::BelowFloor
        | Finding::TrialImageMissing
        | Finding::TrialFailed
        | Finding::SnapshotFailed
        | Finding::ReleaseFailed
        | Finding::BackupUnfit
        | Finding::RestoreFails => Weight::Stuck,
    }
}

/// What is told of a finding about the cluster or one of its members.
#[expect(clippy::too_many_lines, reason = "one arm for each finding")]
pub fn tell(observed: &Observed, plan: &Plan, about: Option<Serial>, finding: Finding) -> Told {
    let cluster = observed.cluster.metadata.name.as_deref().unwrap_or_default();
    let member = about.map_or_else(|| cluster.to_owned(), |serial| format!("{cluster}-{serial}"));
    let told = |reason, sentence: String| Told { reason, sentence };
    match finding {
        Finding::LedgerMissing => told(
            Reason::LedgerMissing,
            format!(
                "There are volumes or pods of {cluster} that the ledger in its status does not know of. Nothing is seeded, \
                 and members that run go on serving. Delete no claim. Restore the status: write status.ledger back \
                 (docs/failure-modes.md). Without a copy of it, begin a cluster of another name with a backup."
            ),
        ),
        Finding::LedgerUnreadable => told(
            Reason::LedgerUnreadable,
            "The ledger in the status can't be read. Restore status.ledger from before it was edited.".into(),
        ),
        Finding::VolumesOfAnother => told(
            Reason::ForeignVolumes,
            format!(
                "There are volume claims of an earlier object {cluster}, perhaps of this one before it was deleted and \
                 created again. They are not used. If their data is needed, write that object's status.ledger back; if \
                 not, delete them, or use another name."
            ),
        ),
        Finding::EtcdUnknown => told(
            Reason::EtcdUnknown,
            "No member gave a linearizable answer: membership is not changed until one does.".into(),
        ),
        Finding::MembersOfAnother => told(
            Reason::MembershipForeign,
            "etcd lists members that Quorate did not add: remove them with `etcdctl member remove`. Or it is another cluster \
             than status.ledger.clusterId names: then the ledger is wrong, and nobody is to be removed."
                .into(),
        ),
        Finding::QuorumLost => told(Reason::QuorumLost, quorum_lost(observed, cluster)),
        Finding::QuorumTooThin => told(
            Reason::ScalingHeld,
            format!("{member}: the change waits, because too few healthy voters would be left without it."),
        ),
        Finding::SeedRefused => told(
            Reason::VolumeRefused,
            format!(
                "{member}: its volume carries data of somebody else, so no cluster is started on it. Empty the volume."
            ),
        ),
        Finding::VolumeLost => {
            told(Reason::VolumeLost, format!("{member}: its volume is lost. It is replaced while a majority is up."))
        }
        Finding::VolumeForeign => told(
            Reason::VolumeRefused,
            format!("{member}: its volume carries other data than its own. If it was exchanged by hand, put it back."),
        ),
        Finding::VolumeGoing => {
            told(Reason::VolumeGoing, format!("{member}: its volume claim is being deleted. A successor comes first."))
        }
        Finding::LauncherRefuses => {
            told(Reason::LauncherRefuses, format!("{member}: etcd is not started: {}", refusal(observed, about)))
        }
        Finding::PodMissing => told(Reason::PodMissing, format!("{member}: its pod is gone. It is created again.")),
        Finding::NodeUnreachable => told(
            Reason::NodeUnreachable,
            format!(
                "{member}: its node {} is not Ready. Bring it back; or delete it, or taint it \
                 node.kubernetes.io/out-of-service, when it is off for good.",
                node(observed, about)
            ),
        ),
        Finding::NodeGone => told(
            Reason::NodeGone,
            format!(
                "{member}: its node {} is gone. Where its volume went with it, it is replaced.",
                node(observed, about)
            ),
        ),
        Finding::ImageMissing => told(
            Reason::ImageMissing,
            format!("{member}: {}: {}", remedy_for_image(observed, about), words(observed, about)),
        ),
        Finding::Unschedulable => unschedulable(observed, about, &member),
        Finding::ContainerFailing => {
            told(Reason::ContainerFailing, format!("{member}: read the container's log: {}", words(observed, about)))
        }
        Finding::LearnerGivenUp => told(
            Reason::LearnerBehind,
            format!("{member}: it did not come up or did not catch up in time. Another takes its place."),
        ),
        Finding::PodOutdated => {
            told(Reason::Rolling, format!("{member}: its pod is out of date and is replaced when its turn comes."))
        }
        Finding::ResourcesOutdated => told(Reason::Resizing, changes::resources_outdated(&member)),
        Finding::NoRoomToResize => told(Reason::NoRoomToResize, changes::no_room(observed, about, &member)),
        Finding::ReleaseOutdated => told(Reason::Upgrading, changes::release_outdated(&member)),
        Finding::RollWaits => told(Reason::Rolling, changes::ROLL_WAITS.into()),
        Finding::NodeCordoned => told(Reason::Rolling, changes::node_cordoned(node(observed, about), &member)),
        Finding::VersionsUnknown => told(Reason::Upgrading, changes::VERSIONS_UNKNOWN.into()),
        Finding::ClusterVersionLags => told(Reason::Upgrading, changes::CLUSTER_VERSION_LAGS.into()),
        Finding::DowngradeUnderWay => told(Reason::Upgrading, changes::DOWNGRADE_UNDER_WAY.into()),
        Finding::LogsAreCut => told(Reason::Upgrading, changes::LOGS_ARE_CUT.into()),
        Finding::AlarmRaised => told(Reason::AlarmRaised, changes::ALARM_RAISED.into()),
        Finding::Alarm(alarm) => of_alarm(alarm),
        Finding::NoWayThrough => told(Reason::NoWayThrough, changes::NO_WAY_THROUGH.into()),
        Finding::BelowFloor => told(Reason::NoWayThrough, changes::below_floor(observed)),
        Finding::TrialOpen => told(Reason::Upgrading, changes::trial_open(observed, about, &member)),
        Finding::TrialUndecided => told(Reason::TrialUndecided, changes::trial_undecided(observed, about, &member)),
        Finding::TrialImageMissing => told(Reason::TrialImageMissing, changes::trial_missing(observed, about, &member)),
        Finding::TrialFailed => told(Reason::TrialFailed, changes::trial_failed(observed, about, &member)),
        Finding::SnapshotOpen => told(Reason::Upgrading, changes::snapshot_open(observed)),
        Finding::SnapshotFailed => told(Reason::SnapshotFailed, changes::snapshot_failed(observed)),
        Finding::ReleaseFailed => told(Reason::ReleaseFailed, changes::release_failed(observed, plan)),
        Finding::BackupAwaited | Finding::BackupUnfit => restores::of_backup(observed),
        Finding::RestoreFails => restores::failing(complaint(observed, about), &member),
    }
}

/// What is told of an alarm, while which etcd refuses writes.
pub fn of_alarm(alarm: Alarm) -> Told {
    let (reason, sentence) = match alarm {
        Alarm::NoSpace => (Reason::NoSpace, changes::NO_SPACE),
        Alarm::Corrupt => (Reason::Corrupt, changes::CORRUPT),
    };
    Told { reason, sentence: sentence.into() }
}

/// Which claims hold what is left of the members' data, and what can be done.
fn quorum_lost(observed: &Observed, cluster: &str) -> String {
    let (mut left, mut empty) = (Vec::new(), Vec::new());
    if let Memory::Ledger(ledger) = &observed.world.memory {
        for (serial, entry) in &ledger.members {
            let claim = observed.claims.get(serial).filter(|claim| !claim.terminating);
            if entry.create.is_some() && claim.map(|claim| &claim.uid) == entry.create.as_ref() {
                let found = if found_nothing(observed, *serial) { &mut empty } else { &mut left };
                found.push(names::member(cluster, serial.0));
            }
        }
    }
    let left = if left.is_empty() { "no volume".into() } else { left.join(", ") };
    let late = match empty.as_slice() {
        [] => String::new(),
        empty => format!(
            "{} found nothing on theirs, which is also what a disk that is mounted late looks like: if those may be whole, delete \
             these pods once, and they look again. ",
            empty.join(", ")
        ),
    };
    format!(
        "The volumes of a majority are lost. Nothing is started in their place and what is left is kept: {left}. {late}Restore a \
         backup into a new EtcdCluster, or recover the data from the volumes that are left."
    )
}

/// Whether its launcher found nothing of the member on the volume that its pod was given.
fn found_nothing(observed: &Observed, serial: Serial) -> bool {
    let pod = observed.world.seats.get(&serial).and_then(|seat| seat.pod.as_ref());
    pod.is_some_and(|pod| matches!(pod.sight, Sight::Refused(Refusal::VolumeLost | Refusal::NoEntry)))
}

/// A pod that no node takes: because of its claim, or of anything else.
fn unschedulable(observed: &Observed, about: Option<Serial>, member: &str) -> Told {
    let words = words(observed, about);
    let claim = about.and_then(|serial| observed.claims.get(&serial));
    let unbound = claim.filter(|claim| claim.volume_name.is_none());
    let missing = |class: &String| observed.missing_classes.contains(class);
    let (reason, remedy) = match unbound {
        None if claim.is_some_and(|claim| claim.volume_gone) => (
            Reason::VolumePending,
            "the PersistentVolume of its claim is gone: bring it back; or delete the claim, and the member is replaced",
        ),
        Some(claim) if claim.class.as_ref().is_some_and(missing) => (
            Reason::StorageClassMissing,
            "create the StorageClass that its claim names, or name one that exists in \
             spec.storage.storageClassName of a new cluster",
        ),
        Some(claim) if claim.class.is_none() => (
            Reason::StorageClassMissing,
            "there is no default StorageClass: make \
            one the default, or name one in spec.storage.storageClassName of a new cluster",
        ),
        Some(_) if words.contains("unbound immediate PersistentVolumeClaims") => {
            (Reason::VolumePending, "the claim waits for its volume: look at the claim's events")
        }
        Some(_) | None => (Reason::Unschedulable, "add a node, or loosen spec.scheduling or spec.resources"),
    };
    Told { reason, sentence: format!("{member}: {remedy}: {words}") }
}

/// What the kubelet or the scheduler says of a member's pod.
fn words(observed: &Observed, about: Option<Serial>) -> &str {
    let pod = about.and_then(|serial| observed.pods.get(&serial));
    pod.and_then(|pod| pod.trouble.as_ref()).map_or("see the pod's events", |told| told.words.as_str())
}

/// What can be done for want of an image: the agent's is not of the spec.
fn remedy_for_image(observed: &Observed, about: Option<Serial>) -> &'static str {
    let pod = about.and_then(|serial| observed.pods.get(&serial));
    match pod.and_then(|pod| pod.trouble.as_ref()).map(|told| told.trouble) {
        Some(Trouble::AgentImageMissing) => {
            "provide the image, which is not etcd's; that of the agent is set in the operator's QUORATE_AGENT_IMAGE"
        }
        Some(Trouble::ImageUnreachable) => {
            "its image's registry does not answer: it is asked again. If this lasts, mend the registry or the way there, or \
             correct spec.image"
        }
        Some(
            Trouble::ImageMissing
            | Trouble::Unschedulable
            | Trouble::ContainerFailing
            | Trouble::ContainerKilled
            | Trouble::BesideFailing,
        )
        | None => "correct spec.version or spec.image, or provide the image",
    }
}

/// What a member's launcher says.
fn refusal(observed: &Observed, about: Option<Serial>) -> String {
    complaint(observed, about).map_or_else(|| "see the pod's log.".into(), ToString::to_string)
}

fn complaint(observed: &Observed, about: Option<Serial>) -> Option<&Complaint> {
    observed.said.seen.get(&about?)?.refusal.as_ref()
}

fn node(observed: &Observed, about: Option<Serial>) -> &str {
    let pod = about.and_then(|serial| observed.pods.get(&serial));
    let of_pod = pod.and_then(|pod| pod.node.as_ref());
    let of_ledger = match &observed.world.memory {
        Memory::Ledger(ledger) => {
            about.and_then(|serial| ledger.members.get(&serial)).and_then(|entry| entry.node.as_ref())
        }
        Memory::Blank | Memory::Unreadable => None,
    };
    of_pod.or(of_ledger).map_or("(unknown)", |node| node.as_str())
}

/// What is told of certificates.
pub fn of_certificates(certificates: &Certificates) -> Told {
    let told = |reason, sentence: String| Told { reason, sentence };
    match certificates {
        Certificates::Off => told(Reason::TlsDisabled, "spec.tls.mode is Disabled: there are no certificates.".into()),
        Certificates::Pending => told(Reason::CertificatesPending, "Certificates are being issued.".into()),
        Certificates::Lost { secret, fault } => told(
            Reason::AuthorityLost,
            format!(
                "Secret {secret}, which holds an authority, can't be used: {fault}. Nothing can be renewed. Restore it, or \
                 see the section on lost authorities in docs/tls.md."
            ),
        ),
        Certificates::Faulty(faults) => {
            let all: Vec<_> = faults.iter().map(|(secret, fault)| format!("Secret {secret}: {fault}")).collect();
            told(Reason::CertificatesFaulty, format!("{}. Correct what the Secret holds.", all.join("; ")))
        }
        Certificates::Valid { secret, until, expiring: true } => told(
            Reason::CertificatesExpiring,
            format!("The certificate in Secret {secret} runs out on {until} and should have been renewed by now."),
        ),
        Certificates::Valid { secret, until, expiring: false } => told(
            Reason::CertificatesValid,
            format!("All certificates are valid; the first to run out is in Secret {secret}, on {until}."),
        ),
    }
}

/// What is told of a phase when no finding says more.
pub fn of_phase(phase: Phase) -> Told {
    let (reason, sentence) = match phase {
        Phase::Pending => (Reason::Progressing, "The cluster has not begun."),
        Phase::Restoring => (Reason::Restoring, "The backup is being restored into the first member."),
        Phase::Seeding => (Reason::Seeding, "The first member is being started."),
        Phase::Growing => (Reason::Growing, "The members are joining."),
        Phase::Running => (Reason::ClusterReady, "The cluster is as asked for."),
        Phase::Scaling => (Reason::Scaling, "Members are being added or removed."),
        Phase::Healing => (Reason::Healing, "A member is being brought back or replaced."),
        Phase::Restarting => (Reason::Rolling, "Members are being restarted one by one with changed settings."),
        Phase::Upgrading => (Reason::Upgrading, "Members are being brought to another version of etcd, one by one."),
        Phase::Hibernated => {
            (Reason::Hibernated, "spec.replicas is 0: no pods, every volume kept. Raise it to wake the cluster.")
        }
        Phase::QuorumLost => (Reason::QuorumLost, "The cluster has lost its quorum."),
        Phase::Paused => {
            (Reason::Paused, "spec.paused is set: nothing is changed or healed. Set it to false to go on.")
        }
        Phase::Deleting => (Reason::ClusterDeleting, "The cluster is being deleted."),
        Phase::Failed => (Reason::ReconcileFailed, "The cluster can't begin or go on without help."),
    };
    Told { reason, sentence: sentence.into() }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::json;

    use super::*;
    use crate::cluster::observe::facts::ClaimFacts;
    use crate::cluster::report::fixture::sighted;

    #[test]
    fn where_launchers_found_nothing_it_is_told_how_they_look_again() {
        let refused = |refusal| Sight::Refused(refusal);
        let sights = [(Serial(1), refused(Refusal::VolumeLost)), (Serial(2), refused(Refusal::NoEntry))];
        let mut observed = sighted(&sights, false);
        for serial in [0, 1, 2] {
            let claim = json!({ "metadata": { "uid": format!("claim-{serial}") } });
            let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
            observed.claims.insert(Serial(serial), ClaimFacts::of(&claim).unwrap());
        }
        let told = quorum_lost(&observed, "db");
        assert!(told.contains("is kept: db-0. db-1, db-2 found nothing on theirs"), "{told}");
        assert!(told.contains("delete these pods once"), "{told}");
        // Its claim is no more.
        observed.claims.remove(&Serial(1));
        let told = quorum_lost(&observed, "db");
        assert!(told.contains("is kept: db-0. db-2 found nothing"), "{told}");
        // Other data is not nothing.
        let observed = sighted(&[(Serial(1), refused(Refusal::VolumeForeign))], false);
        let told = quorum_lost(&observed, "db");
        assert!(!told.contains("delete these pods") && told.contains("is kept: no volume. Restore"), "{told}");
    }
}
