//! The driver: which job is due, in which order. Each job is told in a file of its own.

use crate::{
    Finding, Ledger, Leg, Life, LookAgain, Memory, Overall, Phase, Plan, Seat, Seeding, Serial, Step, World, budget,
    census::{Census, Heard},
    course, cure, delete,
    draft::Draft,
    endure, evade, found, grow, keep, leave, mirror, report, resize, roll, settle, shrink, sleep, snapshot, spares,
};

/// Decides what to do now. Total: whatever was observed, there is a plan, if only to say what is wrong.
pub fn plan(world: &World) -> Plan {
    match (world.wish.life, &world.memory) {
        (Life::Paused, _) => Draft::new(world).finish(Phase::Paused),
        (Life::Deleting, _) => delete::tear_down(world),
        (Life::Wanted, Memory::Unreadable) => fail(Draft::new(world), Finding::LedgerUnreadable),
        (Life::Wanted, Memory::Blank) => match traces_of_an_earlier_life(world) {
            Some(trace) => fail(Draft::new(world), trace),
            None => lead(Draft::new(world)),
        },
        (Life::Wanted, Memory::Ledger(ledger)) if was_set_back(world, ledger) => {
            fail(Draft::new(world), Finding::LedgerMissing)
        }
        (Life::Wanted, Memory::Ledger(_)) => lead(Draft::new(world)),
    }
}

/// Whether the ledger says that nothing has begun, and there are volumes of this very object that it doesn't know of: each
/// is written down before it is made. Somebody wrote an older status, and a second seed would make strays of them.
fn was_set_back(world: &World, ledger: &Ledger) -> bool {
    let unknown = |(serial, seat): (&Serial, &Seat)| {
        !ledger.members.contains_key(serial)
            && seat.claim.as_ref().is_some_and(|claim| claim.ours && !claim.terminating)
    };
    ledger.seeding == Seeding::NotBegun && world.seats.iter().any(unknown)
}

/// Without a ledger nothing is seeded next to what may be a cluster's only data.
fn traces_of_an_earlier_life(world: &World) -> Option<Finding> {
    let seats = || world.seats.values();
    if seats().any(|seat| seat.pod.is_some() || seat.claim.as_ref().is_some_and(|claim| claim.ours)) {
        return Some(Finding::LedgerMissing);
    }
    seats().any(|seat| seat.claim.is_some()).then_some(Finding::VolumesOfAnother)
}

/// It can't go on without the user.
fn fail(mut draft: Draft<'_>, finding: Finding) -> Plan {
    draft.tell(finding);
    draft.finish(Phase::Failed)
}

/// Leads the cluster on from where it is.
fn lead(mut draft: Draft<'_>) -> Plan {
    let world = draft.world;
    let heard = Heard::of(world, draft.ledger.seeding);
    if let Heard::Ours(census) = &heard {
        mirror::record(&mut draft, census);
    }
    cure::recall(&mut draft);
    let phase = match (heard, draft.ledger.seeding) {
        (Heard::Another, _) => return fail(draft, Finding::MembersOfAnother),
        _ if world.wish.replicas == 0 => sleep::hibernate(&mut draft),
        (Heard::Ours(census), _) => tend(&mut draft, &census),
        (Heard::Mixed, _) => {
            endure::endure(&mut draft, Finding::MembersOfAnother);
            Phase::Failed
        }
        (Heard::Nothing, Seeding::NotBegun) => found::choose_seed(&mut draft),
        (Heard::Nothing, Seeding::Begun(seed)) => found::await_seed(&mut draft, seed),
        (Heard::Nothing, Seeding::Done(_)) => endure::endure(&mut draft, Finding::EtcdUnknown),
    };
    cure::tell(&mut draft);
    draft.finish(phase)
}

/// Tends a cluster that serves: keeps its pods, removes at most one member, adds or promotes two, starts its learners,
/// clears away what left, makes spares for what is to come; and only when nothing of that is due, restarts.
fn tend<'w>(draft: &mut Draft<'w>, census: &Census<'w>) -> Phase {
    let leg = set_course(draft, census);
    let barred = bars_newcomers(draft, census);
    let before_newcomers = match barred {
        true if census.nobody_is_between_minors() => Some(Step::CancelDowngrade),
        true => None,
        false => grow::lead_from_clean_log(draft, census),
    };
    let may_join = !barred && before_newcomers.is_none();
    let change = grow::give_up(draft, census)
        .or_else(|| shrink::bury(draft, census))
        .or_else(|| grow::promote(draft, census))
        .or_else(|| if may_join { grow::add(draft, census) } else { None })
        .or_else(|| shrink::shed(draft, census))
        .map(|change| evade::with_a_leader_who_counts_all(census, change));
    for peer in census.peers() {
        if peer.leaving || change == Some(census.removal_of(peer)) {
            report::troubles(draft, &peer.member);
        } else {
            keep::keep(draft, &peer.member);
        }
    }
    match change {
        Some(Step::Promote { .. }) => grow::let_vote(draft, census),
        Some(Step::AddLearner { serial, expect, after }) => {
            draft.step(Step::AddLearner { serial, expect, after });
            grow::add_another(draft, census, serial);
        }
        Some(change) => draft.step(change),
        None if may_join => grow::start(draft, census),
        None => {
            draft.look(LookAgain::Soon);
            if let Some(step) = before_newcomers {
                draft.step(step);
            }
        }
    }
    leave::clear_away(draft, census);
    spares::dismiss(draft, census.missing_learners());
    spares::furnish(draft, census.missing_learners());
    settle::settle(draft, census);
    report::alarm(draft);
    let phase = report::phase(draft, census, &leg);
    evade::evade(draft, census);
    let rolls = roll::roll(draft, census, leg);
    resize::resize(draft, census);
    budget::leave_a_quorum(draft, census, rolls);
    if phase != Phase::Running {
        draft.look(LookAgain::Later);
    }
    phase
}

/// Finds out where the members' versions go next, and what that means for members that are down or new.
fn set_course<'w>(draft: &mut Draft<'w>, census: &Census<'w>) -> Leg<'w> {
    let leg = course::next(draft.world, &draft.ledger, census);
    if leg == Leg::Arrived {
        // Nobody goes where it failed any more.
        draft.ledger.failed = None;
    }
    let goal = &draft.world.wish.release;
    draft.heading = match leg {
        Leg::Arrived => None,
        Leg::Switch(release) | Leg::Lower(_, release) | Leg::CutLogs(_, release) => Some(release.clone()),
        Leg::LogsCut | Leg::TakeBack | Leg::Waits(_) | Leg::Stuck(_) => Some(goal.clone()),
    };
    draft.newcomers = census.release_for_newcomers().cloned();
    draft.cluster_version = census.cluster_version();
    let may_follow = course::all_others_are_there(draft.world, &draft.ledger, census)
        && !snapshot::is_due(draft.world, census, goal);
    draft.only_patches = matches!(leg, Leg::Waits(_)) && !may_follow;
    draft.cure = match leg {
        // What is waited for may be the very member that is down.
        Leg::Arrived | Leg::Waits(_) => Some(goal),
        Leg::Switch(release) => Some(release).filter(|release| !snapshot::is_due(draft.world, census, release)),
        Leg::Lower(..) | Leg::CutLogs(..) | Leg::LogsCut | Leg::TakeBack | Leg::Stuck(_) => None,
    }
    .filter(|release| !cure::has_failed(draft, release))
    .cloned();
    leg
}

/// While a downgrade is enabled, etcd refuses a newcomer, whatever it runs (`allowedVersionRange` in
/// `server/etcdserver/cluster_util.go`): it is taken back first, and enabled again when all are there.
fn bars_newcomers(draft: &Draft<'_>, census: &Census<'_>) -> bool {
    let enabled = match draft.world.overall {
        Overall::Known { downgrade, alarm: _ } => downgrade.is_some(),
        Overall::Unknown | Overall::OfAlarms(_) => false,
    };
    enabled && census.expects_newcomers()
}
