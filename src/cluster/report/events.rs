//! Events: what was done, and what has turned between two statuses. Derived, so that nothing is told twice at rest, and
//! nothing is remembered. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use quorate_crds::{ConditionType, EtcdCluster, EtcdClusterStatus, HexId, Reason};
use quorate_statemachine::{Birth, Finding, Life, MemberId, Plan, Release, Serial, Start, Step};

use super::sentences::{self, Weight};
use crate::cluster::act::Renewed;
use crate::cluster::observe::Observed;
use crate::cluster::render;
use crate::events::News;

/// What was done by the steps that succeeded.
pub fn of_steps(cluster: &EtcdCluster, done: &[Step]) -> Vec<News> {
    done.iter().filter_map(|step| of_step(cluster, step)).collect()
}

fn of_step(cluster: &EtcdCluster, step: &Step) -> Option<News> {
    let name = |serial: Serial| quorate_crds::names::member(&cluster.name_any(), serial.0);
    let news = |reason, serial: Option<Serial>, note: String| {
        Some(News { warning: false, reason, note, member: serial.map(name) })
    };
    match step {
        Step::IssueTicket { serial, ticket, .. } => match ticket.start {
            Start::Seed if cluster.spec.bootstrap.is_some() => news(
                Reason::Restored,
                Some(*serial),
                format!("The backup was restored for {}, which was told to create the cluster from it.", name(*serial)),
            ),
            Start::Seed => {
                news(Reason::Seeded, Some(*serial), format!("{} was told to create the cluster.", name(*serial)))
            }
            Start::Join(_) | Start::Resume => None,
        },
        Step::CreatePod { serial, birth: Birth::Resuming(_), .. } => news(
            Reason::PodCreated,
            Some(*serial),
            format!("The pod of {} was created again on its volume.", name(*serial)),
        ),
        Step::AddLearner { serial, .. } => {
            news(Reason::MemberAdded, Some(*serial), format!("{} was added as a learner.", name(*serial)))
        }
        Step::Promote { serial, .. } => {
            news(Reason::MemberPromoted, Some(*serial), format!("{} became a voter.", name(*serial)))
        }
        Step::Remove { serial, id, .. } => {
            let who = serial.map_or_else(|| id.to_string(), name);
            news(Reason::MemberRemoved, *serial, format!("{who} was removed from the cluster."))
        }
        Step::MoveLeader { from, to } => {
            let (from, to) = (member(cluster, *from), member(cluster, *to));
            news(Reason::LeaderMoved, None, format!("The leadership was moved from {from} to {to}."))
        }
        Step::SwitchRelease { serial, release, .. } => news(
            Reason::MemberSwitched,
            Some(*serial),
            format!("{} was told to run etcd {} ({}).", name(*serial), release.version, release.image.as_str()),
        ),
        Step::ResizePod { serial, .. } => news(
            Reason::Resizing,
            Some(*serial),
            format!("The resources of spec.resources were asked for {} while it runs.", name(*serial)),
        ),
        Step::TakeSnapshot(to) => news(
            Reason::SnapshotOrdered,
            None,
            format!(
                "A snapshot was ordered before the members go to {to}; the version is changed when it is in the store."
            ),
        ),
        Step::EnableDowngrade(to) => {
            news(Reason::DowngradeEnabled, None, format!("etcd was allowed to lower the cluster's version to {to}."))
        }
        Step::CancelDowngrade => {
            news(Reason::DowngradeCancelled, None, "etcd is not to lower the cluster's version any more.".into())
        }
        Step::DeleteClaim { serial, .. } => {
            news(Reason::VolumeDeleted, Some(*serial), format!("The volume claim of {} was deleted.", name(*serial)))
        }
        Step::DeletePod { serial, .. } => {
            news(Reason::PodDeleted, Some(*serial), format!("The pod of {} was deleted.", name(*serial)))
        }
        Step::CreateClaim(_)
        | Step::CreatePod { birth: Birth::Waiting | Birth::Restoring, .. }
        | Step::LabelPod { .. }
        | Step::TryRelease { .. }
        | Step::EndTrial { .. }
        | Step::ReleaseFinalizer => None,
    }
}

/// A member by its name, or by its id if the status shows none of it.
fn member(cluster: &EtcdCluster, id: MemberId) -> String {
    let shown = cluster.status.iter().flat_map(|status| &status.members);
    let named = shown.filter(|member| member.id == Some(HexId::new(id.0))).map(|member| member.name.clone()).next();
    named.unwrap_or_else(|| id.to_string())
}

/// What was renewed, in one sentence.
pub fn of_renewals(renewed: &[Renewed], now: Timestamp) -> Option<News> {
    let first = renewed.iter().map(|renewed| renewed.until).min()?;
    let secrets: Vec<_> = renewed.iter().map(|renewed| renewed.secret.as_str()).collect();
    let secrets = secrets.join(", ");
    let note = match first.duration_since(now).as_hours() / 24 {
        ..2 => format!("The certificates in {secrets} were renewed. They are valid until {first}."),
        days => format!("The certificates in {secrets} were renewed. They are valid for {days} days, until {first}."),
    };
    Some(News { warning: false, reason: Reason::CertificatesRenewed, note, member: None })
}

/// What has turned between the old status and the new one.
pub fn of_turns(observed: &Observed, plan: &Plan, new: &EtcdClusterStatus) -> Vec<News> {
    let old = observed.cluster.status.clone().unwrap_or_default();
    // What is taken away by wish is no loss, and what was away by wish is not missed while it comes back.
    let wanted_away = observed.world.wish.replicas == 0 || observed.world.wish.life == Life::Deleting;
    let waking = old.phase == Some(quorate_crds::Phase::Hibernated);
    let mut news = of_conditions(&old.conditions, &new.conditions, wanted_away);
    if old.observed_generation.is_some() && old.observed_generation != new.observed_generation {
        news.extend(of_change(observed));
    }
    if !wanted_away && !waking {
        news.extend(of_findings(observed, plan, &old));
    }
    news
}

/// What of the spec is not as the members' pods were made: what a roll is for. Told once for each change of the spec.
fn of_change(observed: &Observed) -> Option<News> {
    let spec = &observed.cluster.spec;
    let wish = &observed.world.wish;
    let mut changed = BTreeSet::new();
    for pod in observed.pods.values().filter(|pod| pod.ticket.is_some()) {
        let settings = pod.settings.as_deref().map(|before| render::changed_settings(spec, before));
        changed.extend(settings.unwrap_or_default());
        changed.extend((pod.resources != wish.resources).then(|| "spec.resources".to_owned()));
        let told = pod.release.as_ref();
        changed
            .extend(told.is_some_and(|told| told.version != wish.release.version).then(|| "spec.version".to_owned()));
        let other_image = |told: &Release| told.version == wish.release.version && told.image != wish.release.image;
        changed.extend(told.is_some_and(other_image).then(|| "spec.image".to_owned()));
    }
    let fields = changed.into_iter().collect::<Vec<_>>().join(", ");
    let note = format!("The members are brought up to date one by one, because of: {fields}.");
    (!fields.is_empty()).then_some(News { warning: false, reason: Reason::SpecChanged, note, member: None })
}

/// Why certificates that can't be used are told of: not while they are merely being issued.
const PRESSING: [&str; 2] = [Reason::CertificatesFaulty.as_str(), Reason::AuthorityLost.as_str()];
/// Why a continuous backup does not begin, or can't be proved.
const FAULTS: [&str; 6] = [
    Reason::NameTaken.as_str(),
    Reason::StoreInvalid.as_str(),
    Reason::BucketMissing.as_str(),
    Reason::StoreRefused.as_str(),
    Reason::KeysUnfit.as_str(),
    Reason::StoreUnfit.as_str(),
];
const BACKUP_OFF: &str = Reason::BackupOff.as_str();
const ARCHIVE_BEGINS: &str = Reason::ArchiveBegins.as_str();
const QUORUM_LOST: &str = Reason::QuorumLost.as_str();
const EXPIRING: &str = Reason::CertificatesExpiring.as_str();

fn of_conditions(old: &[Condition], new: &[Condition], wanted_away: bool) -> Vec<News> {
    let told = ConditionType::ALL.iter().filter_map(|kind| {
        let (before, now) = (kind.among(old), kind.among(new)?);
        let warning = is_warning(*kind, before, now, wanted_away)?;
        let reason = Reason::ALL.iter().find(|reason| reason.as_str() == now.reason)?;
        Some(News { warning, reason: *reason, note: now.message.clone(), member: None })
    });
    told.collect()
}

/// Whether what a condition says now is a warning; `None` if it is nothing to tell of.
fn is_warning(kind: ConditionType, before: Option<&Condition>, now: &Condition, wanted_away: bool) -> Option<bool> {
    let (is_true, is_false) = (now.status == "True", now.status == "False");
    let was = |status: &str| before.is_some_and(|before| before.status == status);
    // What was true is often not known for a while before it is known to be false.
    let (was_true, was_unknown) = (was("True"), was("Unknown"));
    let turned = before.is_none_or(|before| before.status != now.status);
    let other_reason = before.is_some_and(|before| before.reason != now.reason);
    let reason = now.reason.as_str();
    match kind {
        ConditionType::Ready => (is_true && turned).then_some(false),
        ConditionType::Available => {
            let lost = was_true || (was_unknown && reason == QUORUM_LOST);
            (is_false && lost && !wanted_away).then_some(true)
        }
        ConditionType::Stalled => (is_true && (turned || other_reason)).then_some(true),
        ConditionType::CertificatesValid => {
            let faulty = is_false && PRESSING.contains(&reason) && other_reason;
            let expiring = is_true && reason == EXPIRING && (turned || other_reason);
            (faulty || expiring).then_some(true)
        }
        ConditionType::BackupHealthy if is_true => turned.then_some(false),
        ConditionType::BackupHealthy => {
            // Not while it merely begins, or is given up by wish.
            let lost = (was_true || (was_unknown && reason != ARCHIVE_BEGINS)) && reason != BACKUP_OFF;
            let faulty = FAULTS.contains(&reason) && other_reason;
            (is_false && (lost || faulty)).then_some(true)
        }
        // What it is about is told step by step.
        ConditionType::Reconciling => None,
    }
}

/// Findings about members that their old status did not show.
fn of_findings(observed: &Observed, plan: &Plan, old: &EtcdClusterStatus) -> Vec<News> {
    let cluster = observed.cluster.metadata.name.as_deref().unwrap_or_default();
    let of_members = plan.findings.iter().filter_map(|(about, findings)| about.map(|serial| (serial, findings)));
    let mut news = Vec::new();
    for (serial, findings) in of_members {
        let name = quorate_crds::names::member(cluster, serial.0);
        let before = old.members.iter().find(|member| member.name == name).and_then(|member| member.reason.as_deref());
        let worst = findings.iter().copied().max_by_key(|finding: &Finding| sentences::weight(*finding));
        let Some(worst) = worst.filter(|finding| is_warned_of(sentences::weight(*finding))) else { continue };
        let told = sentences::tell(observed, plan, Some(serial), worst);
        if before != Some(told.reason.as_str()) {
            news.push(News { warning: true, reason: told.reason, note: told.sentence, member: Some(name) });
        }
    }
    news
}

/// Whether a finding about a member that weighs so much is told by itself. What only the user can mend is told as Stalled.
fn is_warned_of(weight: Weight) -> bool {
    match weight {
        Weight::Hindering | Weight::Mending => true,
        Weight::Waiting | Weight::Passing | Weight::Stuck => false,
    }
}
