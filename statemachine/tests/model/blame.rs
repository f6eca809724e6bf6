//! Judges what an operator means to do, and does, by what is really there: invariants that a look at a state alone can't
//! tell, because it matters who brought it about.

use quorate_statemachine::{Birth, Ledger, Life, Memory, Plan, Role, Seeding, Step, TemplateHash};

use crate::{
    config::{Config, Volumes},
    observe::small,
    state::{Broken, Data, State, quorum, serial_of},
};

/// What a plan would break if nothing else happened while it is acted on.
pub fn blame_plan(config: &Config, state: &State, plan: &Plan, wish: u8) -> Option<Broken> {
    let life = config.wishes[usize::from(wish)].life;
    if life == Life::Paused && (plan.ledger.is_some() || !plan.steps.is_empty()) {
        return Some(Broken::PausedWrite);
    }
    let changes: Vec<_> = plan.steps.iter().filter(|step| step.changes_members()).collect();
    let in_order = match changes[..] {
        [] | [_] | [Step::Promote { .. }, Step::Promote { .. }] => true,
        [Step::AddLearner { serial: first, after: None, .. }, Step::AddLearner { after, .. }] => *after == Some(*first),
        _ => false,
    };
    if !in_order {
        return Some(Broken::ExpectedSet);
    }
    let whole = life == Life::Deleting;
    let too_early = |step: &Step| match step {
        Step::DeleteClaim { serial, .. } => {
            let seat = state.seat(small(*serial));
            matches!(seat.data(), Some(Data::Entries { .. })) && (seat.member.is_some() || !state.has_quorum())
        }
        _ => false,
    };
    let reuses = |step: &Step| match step {
        Step::AddLearner { serial, .. } => state.seat(small(*serial)).banned,
        _ => false,
    };
    if plan.steps.iter().any(reuses) {
        return Some(Broken::IdentityReused);
    }
    // Judged when it is meant, not when it is done: another operator may choose the seed in between, and then the agent
    // finds the restore done, or etcd started, and touches nothing.
    let restores = |step: &Step| matches!(step, Step::CreatePod { birth: Birth::Restoring, .. });
    let chosen = matches!(&*state.memory, Memory::Ledger(Ledger { seeding, .. }) if *seeding != Seeding::NotBegun);
    if chosen && plan.steps.iter().any(restores) {
        return Some(Broken::RestoredAgain);
    }
    if !whole && plan.steps.iter().any(too_early) {
        return Some(Broken::VolumeDeleted);
    }
    let mut ahead = state.clone();
    plan.steps.iter().find_map(|step| {
        let broken = blame(config, &ahead, wish, step);
        imagine(&mut ahead, step);
        broken
    })
}

/// What this step breaks, taken now.
pub fn blame(config: &Config, state: &State, wish: u8, step: &Step) -> Option<Broken> {
    let wish = &config.wishes[usize::from(wish)];
    let (voters, steady) = (state.voters(), state.steady_voters());
    match step {
        Step::DeletePod { serial, .. } => {
            let seat = state.seat(small(*serial));
            let meant_to_stop = wish.life == Life::Deleting || wish.replicas == 0;
            let outdated = seat.pod.is_some_and(|pod| TemplateHash(u64::from(pod.template)) != wish.template);
            let alone = voters == 1 && outdated;
            if outdated
                && !meant_to_stop
                && let Some(broken) = state.blame_stop(small(*serial))
            {
                return Some(broken);
            }
            let live = seat.is(Role::Voter) && seat.steady();
            if live && outdated && !meant_to_stop && seat.cordoned && config.volumes == Volumes::Local {
                return Some(Broken::StoppedForGood);
            }
            (live && steady - 1 < quorum(voters) && !meant_to_stop && !alone).then_some(Broken::Quorum)
        }
        Step::SwitchRelease { serial, release, .. } => {
            let seat = state.seat(small(*serial));
            let untried = seat.steady() && seat.is(Role::Voter) && !state.was_tried(small(*serial), release);
            let few = seat.is(Role::Voter) && seat.steady() && voters > 1 && steady - 1 < quorum(voters);
            let blamed = state.blame_stop(small(*serial)).or_else(|| few.then_some(Broken::Quorum));
            blamed.or_else(|| untried.then_some(Broken::Untried))
        }
        Step::Remove { id, .. } => {
            let seat = state.seat(serial_of(*id)?);
            if !seat.is(Role::Voter) {
                return None;
            }
            let left = steady - usize::from(seat.steady());
            let another_is_down = (seat.steady() || seat.leftover) && left + 1 < voters;
            let too_few = left < quorum(voters - 1);
            if another_is_down { Some(Broken::LiveVoter) } else { too_few.then_some(Broken::Quorum) }
        }
        Step::Promote { id, .. } => {
            let seat = state.seat(serial_of(*id)?);
            let too_few = steady + usize::from(seat.steady()) < quorum(voters + 1);
            (seat.is(Role::Learner) && too_few).then_some(Broken::Quorum)
        }
        Step::CreateClaim(_)
        | Step::CreatePod { .. }
        | Step::IssueTicket { .. }
        | Step::DeleteClaim { .. }
        | Step::LabelPod { .. }
        | Step::AddLearner { .. }
        | Step::ResizePod { .. }
        | Step::TryRelease { .. }
        | Step::EndTrial { .. }
        | Step::TakeSnapshot(_)
        | Step::EnableDowngrade(_)
        | Step::CancelDowngrade
        | Step::MoveLeader { .. }
        | Step::ReleaseFinalizer => None,
    }
}

/// What it breaks to stop a voter now, whatever has come since that was planned. That it leads by now is no harm: told to end,
/// etcd hands over.
pub fn blame_stop_late(config: &Config, state: &State, wish: u8, step: &Step) -> Option<Broken> {
    let (Step::DeletePod { serial, .. } | Step::SwitchRelease { serial, .. }) = step else { return None };
    let wish = &config.wishes[usize::from(wish)];
    let seat = state.seat(small(*serial));
    let outdated = seat.pod.is_some_and(|pod| TemplateHash(u64::from(pod.template)) != wish.template);
    let to_go_on = wish.life != Life::Deleting && wish.replicas > 0;
    let (voters, steady) = (state.voters(), state.steady_voters());
    if voters < 2 || !to_go_on || !seat.is(Role::Voter) || !seat.steady() {
        None
    } else if steady - 1 < quorum(voters) {
        Some(Broken::Quorum)
    } else {
        let to_update = outdated || matches!(step, Step::SwitchRelease { .. });
        (to_update && steady < voters).then_some(Broken::StoppedBesideDown)
    }
}

/// The effect that a step has on who is alive and who votes.
fn imagine(state: &mut State, step: &Step) {
    match step {
        Step::DeletePod { serial, .. } => {
            if let Some(pod) = &mut state.seat_mut(small(*serial)).pod {
                pod.terminating = true;
            }
        }
        Step::SwitchRelease { serial, release, .. } => {
            let _ = state.switch(small(*serial), release);
        }
        Step::Remove { id, .. } => {
            if let Some(serial) = serial_of(*id) {
                state.seat_mut(serial).member = None;
            }
        }
        Step::Promote { id, .. } => {
            if let Some(member) = serial_of(*id).and_then(|serial| state.seat_mut(serial).member.as_mut()) {
                member.role = Role::Voter;
            }
        }
        Step::CreateClaim(_)
        | Step::CreatePod { .. }
        | Step::IssueTicket { .. }
        | Step::DeleteClaim { .. }
        | Step::LabelPod { .. }
        | Step::AddLearner { .. }
        | Step::ResizePod { .. }
        | Step::TryRelease { .. }
        | Step::EndTrial { .. }
        | Step::TakeSnapshot(_)
        | Step::EnableDowngrade(_)
        | Step::CancelDowngrade
        | Step::MoveLeader { .. }
        | Step::ReleaseFinalizer => {}
    }
}
