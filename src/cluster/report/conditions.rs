//! The conditions, kstatus-clean: always there, with the generation they speak of, and with a transition time that
//! moves only when the status does. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use quorate_crds::{ConditionType, Reason};
use quorate_statemachine::{Finding, LookAgain, Membership, Overall, Phase, Plan, Seeding, Serial, Sight, Standing};

use super::sentences::{self, Told, Weight};
use crate::cluster::observe::Observed;
use crate::cluster::pki::Certificates;

/// True, False or Unknown, as conditions write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// It can't be told now.
    Unknown,
}

impl Truth {
    /// The word that Kubernetes knows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One condition before it is dated.
struct Verdict {
    kind: ConditionType,
    truth: Truth,
    told: Told,
}

/// The conditions of what was observed and planned, dated by the old ones where they have not turned.
pub fn of(observed: &Observed, plan: &Plan, old: &[Condition], now: Timestamp) -> Vec<Condition> {
    let worst = worst(observed, plan);
    let stalled = stalled(plan, worst.as_ref());
    let verdicts = [
        ready(observed, plan, worst.as_ref()),
        available(observed, plan),
        reconciling(plan, stalled.truth, worst.as_ref()),
        stalled,
        certificates(&observed.tls.certificates),
        backup(observed, now),
    ];
    let generation = observed.cluster.metadata.generation;
    verdicts.into_iter().map(|verdict| dated(verdict, generation, old, now)).collect()
}

fn dated(verdict: Verdict, generation: Option<i64>, old: &[Condition], now: Timestamp) -> Condition {
    let Verdict { kind, truth, told } = verdict;
    let before = kind.among(old);
    let unturned = before.filter(|before| before.status == truth.as_str());
    Condition {
        type_: kind.as_str().into(),
        status: truth.as_str().into(),
        reason: told.reason.as_str().into(),
        message: told.sentence,
        observed_generation: generation,
        last_transition_time: unturned.map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}

/// The finding that weighs most, as it is told: of two alike, the cluster's before a member's, the lower serial's first.
fn worst(observed: &Observed, plan: &Plan) -> Option<(Weight, Told)> {
    let mut worst: Option<(Weight, Option<Serial>, Finding)> = None;
    for (about, findings) in &plan.findings {
        for finding in findings {
            let weight = sentences::weight(*finding);
            if worst.is_none_or(|(heaviest, ..)| weight > heaviest) {
                worst = Some((weight, *about, *finding));
            }
        }
    }
    worst.map(|(weight, about, finding)| (weight, sentences::tell(observed, plan, about, finding)))
}

fn ready(observed: &Observed, plan: &Plan, worst: Option<&(Weight, Told)>) -> Verdict {
    let of_phase = sentences::of_phase(plan.phase);
    let (truth, told) = match plan.phase {
        Phase::Running if healthy_voters(observed) >= wished(observed) => (Truth::True, of_phase),
        Phase::Running => (
            Truth::False,
            Told { reason: Reason::MemberUnhealthy, sentence: "Not all members are healthy voters.".into() },
        ),
        Phase::Hibernated => (Truth::True, of_phase),
        Phase::Paused => {
            let asked_for = healthy_voters(observed) == wished(observed);
            (if asked_for { Truth::True } else { Truth::False }, of_phase)
        }
        Phase::Pending
        | Phase::Restoring
        | Phase::Seeding
        | Phase::Growing
        | Phase::Scaling
        | Phase::Healing
        | Phase::Restarting
        | Phase::Upgrading
        | Phase::QuorumLost
        | Phase::Deleting
        | Phase::Failed => (Truth::False, worst.map_or(of_phase, |(_, told)| told.clone())),
    };
    match alarm(observed, plan).filter(|_| truth == Truth::True) {
        Some(alarm) => Verdict { kind: ConditionType::Ready, truth: Truth::False, told: alarm },
        None => Verdict { kind: ConditionType::Ready, truth, told },
    }
}

fn available(observed: &Observed, plan: &Plan) -> Verdict {
    let told = |truth, reason, sentence: &str| Verdict {
        kind: ConditionType::Available,
        truth,
        told: Told { reason, sentence: sentence.into() },
    };
    let asleep = observed.world.wish.replicas == 0 && matches!(observed.world.membership, Membership::Unknown);
    if asleep || matches!(plan.phase, Phase::Hibernated) {
        return told(Truth::False, Reason::Hibernated, "spec.replicas is 0: the cluster does not serve, as asked for.");
    }
    let seeded = super::ledger_of(observed, plan).is_some_and(|ledger| matches!(ledger.seeding, Seeding::Done(_)));
    if let (Membership::Known(_), Some(alarm)) = (&observed.world.membership, alarm(observed, plan)) {
        return Verdict { kind: ConditionType::Available, truth: Truth::False, told: alarm };
    }
    match observed.world.membership {
        Membership::Known(_) => told(Truth::True, Reason::ClusterReady, "A majority of the members serves."),
        Membership::Unknown if !seeded => told(Truth::False, Reason::Progressing, "The cluster does not serve yet."),
        Membership::Unknown if nobody_is_silent(observed) && !a_majority_runs(observed, plan) => {
            told(Truth::False, Reason::QuorumLost, "A majority of the members is down.")
        }
        Membership::Unknown => {
            told(Truth::Unknown, Reason::EtcdUnknown, "No member gave an answer that speaks for the cluster.")
        }
    }
}

/// The alarm that is raised, as it is told: where etcd does not speak of alarms now, the one that is remembered.
fn alarm(observed: &Observed, plan: &Plan) -> Option<Told> {
    let remembered = plan.findings.get(&None).into_iter().flatten().find_map(|finding| {
        let Finding::Alarm(alarm) = finding else { return None };
        Some(*alarm)
    });
    let raised = match observed.world.overall {
        Overall::Known { alarm, downgrade: _ } | Overall::OfAlarms(alarm) => alarm,
        Overall::Unknown => remembered,
    };
    raised.map(sentences::of_alarm)
}

fn certificates(certificates: &Certificates) -> Verdict {
    let truth = match certificates {
        Certificates::Off | Certificates::Valid { .. } => Truth::True,
        Certificates::Pending | Certificates::Lost { .. } | Certificates::Faulty(_) => Truth::False,
    };
    Verdict { kind: ConditionType::CertificatesValid, truth, told: sentences::of_certificates(certificates) }
}

fn backup(observed: &Observed, now: Timestamp) -> Verdict {
    let (truth, told) = super::archive::verdict(observed, now);
    Verdict { kind: ConditionType::BackupHealthy, truth, told }
}

/// Whether whatever keeps the quorum away was seen, rather than only nothing heard: every pod answered, or is not there.
fn nobody_is_silent(observed: &Observed) -> bool {
    observed.world.seats.values().filter_map(|seat| seat.pod.as_ref()).all(|pod| match pod.sight {
        Sight::Unknown => pod.terminating || !pod.ready,
        Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) | Sight::Etcd(_) => true,
    })
}

/// Whether as many voters run as it takes for a majority: what keeps them from an answer is not that they are down. They may
/// be electing a leader, or slow, or not believe the operator.
fn a_majority_runs(observed: &Observed, plan: &Plan) -> bool {
    let entries = super::ledger_of(observed, plan).into_iter().flat_map(|ledger| &ledger.members);
    let voters: Vec<_> = entries.filter(|(_, entry)| matches!(entry.standing, Standing::Voter(_))).collect();
    let runs = |serial: &Serial| {
        let pod = observed.world.seats.get(serial).and_then(|seat| seat.pod.as_ref());
        pod.is_some_and(|pod| matches!(pod.sight, Sight::Etcd(_)))
    };
    voters.iter().filter(|(serial, _)| runs(serial)).count() > voters.len() / 2
}

fn stalled(plan: &Plan, worst: Option<&(Weight, Told)>) -> Verdict {
    let stuck = match (plan.phase, worst) {
        (Phase::Paused | Phase::Deleting | Phase::Hibernated, _) => None,
        (Phase::Failed | Phase::QuorumLost, worst) => {
            Some(worst.map_or_else(|| sentences::of_phase(plan.phase), |(_, told)| told.clone()))
        }
        (
            Phase::Pending
            | Phase::Restoring
            | Phase::Seeding
            | Phase::Growing
            | Phase::Running
            | Phase::Scaling
            | Phase::Healing
            | Phase::Restarting
            | Phase::Upgrading,
            worst,
        ) => worst.filter(|(weight, _)| *weight == Weight::Stuck).map(|(_, told)| told.clone()),
    };
    let (truth, told) = stuck.map_or_else(|| (Truth::False, not_stalled()), |told| (Truth::True, told));
    Verdict { kind: ConditionType::Stalled, truth, told }
}

fn not_stalled() -> Told {
    Told { reason: Reason::Progressing, sentence: "Nothing keeps Quorate from going on.".into() }
}

fn reconciling(plan: &Plan, stalled: Truth, worst: Option<&(Weight, Told)>) -> Verdict {
    let of_phase = sentences::of_phase(plan.phase);
    let in_transition = match plan.phase {
        Phase::Pending
        | Phase::Restoring
        | Phase::Seeding
        | Phase::Growing
        | Phase::Scaling
        | Phase::Healing
        | Phase::Restarting
        | Phase::Upgrading
        | Phase::Deleting => true,
        Phase::Running => matches!(plan.look_again, LookAgain::AtOnce | LookAgain::Soon) && !plan.steps.is_empty(),
        Phase::Hibernated | Phase::QuorumLost | Phase::Paused | Phase::Failed => false,
    };
    let truth = if in_transition && stalled != Truth::True { Truth::True } else { Truth::False };
    let told = match (truth, worst) {
        (Truth::True, Some((_, told))) => Told { reason: of_phase.reason, sentence: told.sentence.clone() },
        (Truth::True | Truth::False | Truth::Unknown, _) => of_phase,
    };
    Verdict { kind: ConditionType::Reconciling, truth, told }
}

/// Says in conditions that are made already that Kubernetes or the spec keeps Quorate from going on. What the `old` ones
/// said so since is kept: the same refusal in every round is one turn.
pub fn stall(conditions: &mut [Condition], old: &[Condition], reason: Reason, words: &str, now: Timestamp) {
    for condition in conditions {
        let Some(kind) = ConditionType::ALL.iter().find(|kind| kind.as_str() == condition.type_) else { continue };
        let truth = match kind {
            ConditionType::Stalled => Truth::True,
            ConditionType::Ready | ConditionType::Reconciling => Truth::False,
            ConditionType::Available | ConditionType::CertificatesValid | ConditionType::BackupHealthy => continue,
        };
        if condition.status != truth.as_str() {
            let unturned = kind.among(old).filter(|old| old.status == truth.as_str());
            condition.status = truth.as_str().into();
            condition.last_transition_time = unturned.map_or(Time(now), |old| old.last_transition_time.clone());
        }
        condition.reason = reason.as_str().into();
        words.clone_into(&mut condition.message);
    }
}

/// Whether only the user can help.
pub fn waits_for_user(conditions: &[Condition]) -> bool {
    is(conditions, ConditionType::Stalled, Truth::True)
}

/// Whether certificates can't be used, or not be renewed.
pub fn certificates_invalid(conditions: &[Condition]) -> bool {
    is(conditions, ConditionType::CertificatesValid, Truth::False)
}

fn is(conditions: &[Condition], kind: ConditionType, truth: Truth) -> bool {
    kind.among(conditions).is_some_and(|own| own.status == truth.as_str())
}

/// How many voters are well, as far as was seen.
fn healthy_voters(observed: &Observed) -> usize {
    super::members::healthy_voters(observed)
}

fn wished(observed: &Observed) -> usize {
    usize::from(observed.world.wish.replicas)
}
