//! What there is to tell: the troubles of a serial, and the phase, both derived from what is there. Plans no step.

use crate::{
    Finding, Leg, Overall, Phase, PodStage, Refusal, Release, Trouble,
    census::{Census, Peer},
    draft::Draft,
    member::{Ground, Member, Volume},
};

/// Tells of an alarm, which only the user can mend.
pub fn alarm(draft: &mut Draft<'_>) {
    match draft.world.overall {
        Overall::Known { alarm: Some(alarm), .. } | Overall::OfAlarms(Some(alarm)) => draft.tell(Finding::Alarm(alarm)),
        Overall::Known { alarm: None, .. } | Overall::OfAlarms(None) | Overall::Unknown => {}
    }
}

/// Tells what ails a serial's pod and volume.
pub fn troubles(draft: &mut Draft<'_>, member: &Member<'_>) {
    for trouble in [trouble_of_volume(member), trouble_of_node(member), trouble_of_pod(member)].into_iter().flatten() {
        draft.tell_of(member.serial, trouble);
    }
}

fn trouble_of_volume(member: &Member<'_>) -> Option<Finding> {
    match member.volume() {
        Volume::Absent | Volume::Blank(_) | Volume::Unfit | Volume::Intact(_) => None,
        Volume::Going(_) => Some(Finding::VolumeGoing),
        Volume::Lost(loss) => Some(loss),
    }
}

fn trouble_of_node(member: &Member<'_>) -> Option<Finding> {
    let ground = if member.pod.is_some() { member.ground() } else { member.ground_for_new_pod() };
    match ground {
        Ground::Sound => None,
        Ground::Unreachable => Some(Finding::NodeUnreachable),
        Ground::Gone => Some(Finding::NodeGone),
    }
}

fn trouble_of_pod(member: &Member<'_>) -> Option<Finding> {
    let Some(pod) = member.pod else { return member.create.is_some().then_some(Finding::PodMissing) };
    match pod.trouble {
        _ if pod.stage == PodStage::Finished || pod.terminating => None,
        Some(Trouble::ImageMissing | Trouble::ImageUnreachable | Trouble::AgentImageMissing) => {
            Some(Finding::ImageMissing)
        }
        Some(Trouble::Unschedulable) => Some(Finding::Unschedulable),
        Some(Trouble::ContainerFailing | Trouble::ContainerKilled) => Some(Finding::ContainerFailing),
        Some(Trouble::BesideFailing) => trouble_of_launcher(member).or(Some(Finding::ContainerFailing)),
        None => trouble_of_launcher(member),
    }
}

fn trouble_of_launcher(member: &Member<'_>) -> Option<Finding> {
    let refusal = member.refusal().filter(|_| trouble_of_volume(member).is_none())?;
    Some(match refusal {
        // Only on the ticket of a seed: on any other it was told as a trouble of the volume.
        Refusal::VolumeForeign => Finding::SeedRefused,
        Refusal::VolumeLost | Refusal::NoEntry | Refusal::Binary | Refusal::Other => Finding::LauncherRefuses,
    })
}

/// Whether the members are on their way to another version: one is told to run another or does so, or has not been seen
/// well yet on the wished one; or the cluster's version lags.
fn upgrades(draft: &Draft<'_>, census: &Census<'_>) -> bool {
    let wished = draft.world.wish.release.version;
    let elsewhere = |voter: &Peer<'_>| {
        let told = voter.member.assigned().map(|told| told.version);
        let runs = voter.member.alive().and_then(|alive| alive.version);
        let ran = former(draft, voter).map(|former| former.version);
        [told, runs, ran].into_iter().flatten().any(|version| version != wished)
    };
    let of_cluster = census.cluster_version().is_some_and(|cluster| cluster != wished.minor);
    of_cluster || census.voters.iter().any(elsewhere)
}

/// What a member ran before, until it is seen well on what it was last told to run.
fn former<'d>(draft: &'d Draft<'_>, voter: &Peer<'_>) -> Option<&'d Release> {
    draft.ledger.members.get(&voter.member.serial)?.former.as_ref()
}

/// What a cluster that serves is going through.
pub fn phase(draft: &Draft<'_>, census: &Census<'_>, leg: &Leg<'_>) -> Phase {
    let voters = census.voters.len();
    let losing = census.voters.iter().any(Peer::has_no_future);
    let upgrading = upgrades(draft, census);
    let behind =
        |voter: &Peer<'_>| voter.member.outdated() || voter.member.wants_resources() || former(draft, voter).is_some();
    let outdated = *leg != Leg::Arrived || census.voters.iter().any(behind);
    // Only odd sizes are ever wished for. An even one below the wish, with more serials handed out than the first
    // growth takes, was left behind by the removal of a lost member.
    let handed_out = usize::try_from(draft.ledger.next_serial.0).unwrap_or(usize::MAX);
    let replacing = voters.is_multiple_of(2) && handed_out > census.wished;
    if losing || (!census.all_voters_well() && !outdated && !upgrading) || (voters < census.wished && replacing) {
        Phase::Healing
    } else if voters < census.wished {
        Phase::Growing
    } else if upgrading {
        Phase::Upgrading
    } else if outdated {
        Phase::Restarting
    } else if voters > census.wished || !census.learners.is_empty() {
        Phase::Scaling
    } else {
        Phase::Running
    }
}
