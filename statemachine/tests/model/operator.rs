//! An operator acts: step by step, each with its guard as the step's documentation says. Between any two transitions it may
//! crash, or be outrun by the world or by another operator.

use std::sync::Arc;

use quorate_statemachine::{Bind, Birth, Life, Memory, Release, Retention, Role, RoleLabel, Roster, Step, Storage};

use crate::{
    blame::{blame, blame_stop_late},
    config::Config,
    etcd::Denied,
    observe::{claim_uid, ids, made_as, made_of, small},
    planted::Mistake,
    state::{
        Age, Broken, Claim, Data, Glimpse, Held, Intent, NO_VOLUME, Node, Operator, Pod, Process, SERIALS, Serials,
        Stage, Start, State, Ticket, id_of, serial_of,
    },
    versions::minor_of,
};

impl Intent {
    /// Whether anything that is still to be done asks for the object to be as it was observed.
    pub fn is_bound_to_the_object(&self) -> bool {
        self.ledger.is_some() || self.steps.iter().any(|held| asks_for_the_object(&held.step))
    }
}

/// Whether the step's guard asks for the object to be as it was observed.
fn asks_for_the_object(step: &Step) -> bool {
    matches!(step, Step::AddLearner { .. } | Step::DeletePod { .. } | Step::SwitchRelease { .. })
}

/// What goes wrong at the very moment of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    None,
    /// The learner dies after the guard has looked at it and before etcd promotes it.
    Dies,
    /// Kubernetes refuses to make the claim or the pod, as a quota or a policy does.
    Refused,
}

/// Does the next thing of the plan: first ledger and budget, then one step at a time. At the first surprise the rest is
/// dropped, save what is under way for other members; what is refused holds up nobody else.
pub fn act(config: &Config, state: &mut State, operator: usize, mishap: Mishap) {
    let Operator::Acting(intent) = std::mem::replace(&mut state.operators[operator], Operator::Idle) else { return };
    let mut intent = Arc::unwrap_or_clone(intent);
    if intent.ledger.is_some() || intent.budget.is_some() {
        if intent.outrun && intent.ledger.is_some() {
            return;
        }
        if let Some(ledger) = intent.ledger.take() {
            state.memory = Arc::new(Memory::Ledger(Arc::unwrap_or_clone(ledger)));
        }
        state.budget = intent.budget.take().unwrap_or(state.budget);
    } else if !intent.steps.is_empty() {
        let held = intent.steps.remove(0);
        // Of two operators one may move the leadership to a member that the other is about to stop. It then hands over by
        // itself, as etcd does when it is told to end.
        let is_ours = |broken: &Broken| config.operators == 1 || *broken != Broken::LeaderStopped;
        // What came in between is not our doing; but who stops a voter that serves looks at the others right before.
        let judge = if intent.excused { blame_stop_late } else { blame };
        let culprit = judge(config, state, intent.wish, &held.step);
        let culprit = culprit.filter(is_ours);
        let whose = held.step.of_one_member();
        let refused = mishap == Mishap::Refused;
        let performed = if refused { Err(Denied) } else { perform(config, state, &mut intent, held, mishap) };
        match (performed, whose) {
            // A voter's pod is not deleted then: its next one might be refused as well.
            (Err(Denied), Some(whose)) if refused => intent.steps.retain(|held| {
                let votes = |serial| state.seat(small(serial)).is(Role::Voter);
                let goes = matches!(held.step, Step::DeletePod { serial, .. } if votes(serial));
                held.step.of_one_member() != Some(whose) && !goes
            }),
            (Ok(()), _) => culprit.into_iter().for_each(|broken| state.break_with(broken)),
            // What is done at once with it for other members is done all the same.
            (Err(Denied), Some(whose)) => {
                let row = intent.steps.iter().take_while(|held| held.step.of_one_member().is_some()).count();
                intent.steps.truncate(row);
                intent.steps.retain(|held| held.step.of_one_member() != Some(whose));
            }
            (Err(Denied), None) => return,
        }
    }
    if !intent.steps.is_empty() {
        intent.outrun &= intent.is_bound_to_the_object();
        state.operators[operator] = Operator::Acting(Arc::new(intent));
    }
}

/// Does the last thing of its plan, and the watches have not shown anything since the plan was made; false if there is more.
pub fn act_unshown(config: &Config, state: &mut State, operator: usize) -> bool {
    let Operator::Acting(intent) = state.operators[operator].clone() else { return false };
    let (Some(objects), true) = (intent.objects.clone(), intent.steps.len() <= 1) else { return false };
    act(config, state, operator, Mishap::None);
    if state.operators[operator] != Operator::Idle || objects == state.seats {
        return false;
    }
    let glimpse = Glimpse::unshown(objects, intent.excused, state);
    state.operators[operator] = Operator::Looking(Arc::new(glimpse));
    true
}

/// The step that this operator takes next, if that is the next thing it does.
fn next_step(state: &State, operator: usize) -> Option<&Step> {
    let Operator::Acting(intent) = &state.operators[operator] else { return None };
    let first = intent.steps.first().filter(|_| intent.ledger.is_none() && intent.budget.is_none())?;
    Some(&first.step)
}

/// Whether the next thing this operator does is to promote a learner that is fit for it.
pub fn is_about_to_promote(state: &State, operator: usize) -> Option<u8> {
    match next_step(state, operator)? {
        Step::Promote { id, .. } => serial_of(*id).filter(|serial| state.seat(*serial).answers()),
        _ => None,
    }
}

/// Whether the next thing this operator does is to make a claim or a pod.
pub fn is_about_to_make(state: &State, operator: usize) -> bool {
    matches!(next_step(state, operator), Some(Step::CreateClaim(_) | Step::CreatePod { .. }))
}

fn perform(config: &Config, state: &mut State, intent: &mut Intent, held: Held, mishap: Mishap) -> Result<(), Denied> {
    let Held { step, stale, others } = held;
    if intent.outrun && asks_for_the_object(&step) && config.mistake != Some(Mistake::LedgerUnread) {
        return Err(Denied);
    }
    if !others.is_none_or(|others| state.all_serve(others)) && config.mistake != Some(Mistake::OthersUnseen) {
        return Err(Denied);
    }
    match step {
        Step::CreateClaim(serial) => create_claim(state, intent, small(serial)),
        Step::CreatePod { serial, bind, birth, release } => {
            create_pod(config, state, intent, small(serial), &bind, birth, &release)
        }
        Step::IssueTicket { serial, ticket, .. } if !stale => issue(config, state, small(serial), &ticket),
        Step::DeletePod { serial, .. } if !stale => delete_pod(config, state, intent.wish, small(serial)),
        Step::DeleteClaim { serial, claim } => {
            let serial = small(serial);
            if state.seat(serial).claim.is_none_or(|there| claim_uid(serial, there.made) != claim) {
                return Err(Denied);
            }
            delete_claim(config, state, intent.wish, serial)
        }
        Step::LabelPod { serial, label, .. } if !stale => {
            let pod = state.seat_mut(small(serial)).pod.as_mut().ok_or(Denied)?;
            pod.label = label;
            Ok(())
        }
        Step::SwitchRelease { serial, release, .. } if !stale => state.switch(small(serial), &release),
        Step::IssueTicket { .. } | Step::DeletePod { .. } | Step::SwitchRelease { .. } | Step::LabelPod { .. } => {
            Err(Denied)
        }
        // Neither resources nor snapshots are wished for here.
        Step::ResizePod { .. } | Step::TakeSnapshot(_) => Err(Denied),
        step @ (Step::TryRelease { .. } | Step::EndTrial { .. } | Step::EnableDowngrade(_) | Step::CancelDowngrade) => {
            state.version_step(&step)
        }
        Step::AddLearner { serial, expect, after } => {
            // It was not added by a step before.
            if after.is_some() {
                return Err(Denied);
            }
            expected(config, state, &expect)?;
            state.add_learner(small(serial))?;
            // From here on the id is known.
            for held in &mut intent.steps {
                if let Step::AddLearner { expect, after: after @ Some(_), .. } = &mut held.step
                    && *after == Some(serial)
                {
                    expect.insert(id_of(small(serial)), Role::Learner);
                    *after = None;
                }
            }
            Ok(())
        }
        Step::Promote { id, expect, .. } => {
            expected(config, state, &expect)?;
            promote(config, state, serial_of(id).ok_or(Denied)?, !stale, mishap)
        }
        Step::Remove { id, expect, .. } => {
            expected(config, state, &expect)?;
            state.remove(serial_of(id).ok_or(Denied)?)?;
            // It asks for an entry that changes nothing.
            if config.mistake != Some(Mistake::RemovalUnwritten) {
                state.write_down();
            }
            Ok(())
        }
        Step::MoveLeader { from, to } => {
            state.move_leader(serial_of(from).ok_or(Denied)?, serial_of(to).ok_or(Denied)?)
        }
        Step::ReleaseFinalizer => {
            state.over = true;
            state.seats.iter_mut().filter_map(|seat| seat.pod.as_mut()).for_each(|pod| pod.terminating = true);
            Ok(())
        }
    }
}

fn create_claim(state: &mut State, intent: &mut Intent, serial: u8) -> Result<(), Denied> {
    if serial >= SERIALS {
        state.break_with(Broken::RunAway);
        return Err(Denied);
    }
    let seat = state.seat_mut(serial);
    if seat.claim.is_some() {
        return Err(Denied);
    }
    let made = seat.claims_made;
    seat.marks = 0;
    seat.claim = Some(Claim { made, ours: true, terminating: false, bound: false, data: Data::Empty });
    seat.claims_made += 1;
    // From here on "the claim created by a step before" is this very one.
    for held in &mut intent.steps {
        if let Step::CreatePod { serial: of, bind: bind @ Bind::NewClaim, .. } = &mut held.step
            && small(*of) == serial
        {
            *bind = Bind::Claim(claim_uid(serial, made));
        }
    }
    Ok(())
}

fn create_pod(
    config: &Config,
    state: &mut State,
    intent: &Intent,
    serial: u8,
    bind: &Bind,
    birth: Birth,
    release: &Release,
) -> Result<(), Denied> {
    if serial >= SERIALS {
        state.break_with(Broken::RunAway);
        return Err(Denied);
    }
    let template = config.wishes[usize::from(intent.wish)].template;
    let seat = state.seat_mut(serial);
    let made = match bind {
        Bind::Claim(uid) => {
            let claim = seat.claim.filter(|claim| claim_uid(serial, claim.made) == *uid).ok_or(Denied)?;
            (0, claim.made)
        }
        Bind::NewClaim => return Err(Denied),
        Bind::Ephemeral => (seat.pods_made, seat.pods_made),
    };
    if seat.pod.is_some() {
        return Err(Denied);
    }
    if *bind == Bind::Ephemeral {
        seat.pods_made += 1;
        seat.marks = 0;
    }
    let resume = Ticket { start: Start::Resume, volume: made.1, mark: None, age: Age::New };
    let ticket = matches!(birth, Birth::Resuming(_)).then_some(resume);
    let returning = birth == Birth::Resuming(Role::Voter);
    let release = minor_of(release);
    seat.pod = Some(Pod {
        made: made.0,
        volume: made.1,
        restores: birth == Birth::Restoring,
        stage: Stage::Unplaced,
        terminating: false,
        counted_on: false,
        age: Age::New,
        ticket,
        template: u8::try_from(template.0).unwrap_or(u8::MAX),
        release,
        runs: release,
        label: if returning { RoleLabel::Returning } else { RoleLabel::Absent },
        process: Process::Off,
        scratch: Data::Empty,
    });
    Ok(())
}

fn issue(config: &Config, state: &mut State, serial: u8, ticket: &quorate_statemachine::Ticket) -> Result<(), Denied> {
    use quorate_statemachine::Start as Wanted;
    let volume = made_of(&ticket.volume, serial).unwrap_or(NO_VOLUME);
    let start = match &ticket.start {
        Wanted::Seed if config.restores() => Start::Restored,
        Wanted::Seed => Start::Seed,
        Wanted::Join(set) => Start::Join(set.iter().filter_map(|id| serial_of(*id)).collect()),
        Wanted::Resume => Start::Resume,
    };
    let seeded_before = state.serials().any(|other| other != serial && state.seat(other).create.is_some());
    if matches!(start, Start::Seed | Start::Restored) && seeded_before {
        state.break_with(Broken::SeededTwice);
    }
    let restored = matches!(state.seat(serial).data(), Some(Data::Restored { .. } | Data::Entries { .. }));
    // What was emptied since it was told so for the first time, its launcher refuses.
    if start == Start::Restored && !restored && state.seat(serial).create.is_none() {
        state.break_with(Broken::Unrestored);
    }
    let seat = state.seat_mut(serial);
    let pod = seat.pod.as_mut().ok_or(Denied)?;
    let mark = ticket.mark.as_ref().and_then(made_as);
    pod.ticket = Some(Ticket { start, volume, mark, age: Age::New });
    if start != Start::Resume && *seat.create.get_or_insert(volume) != volume {
        state.break_with(Broken::OtherVolume);
    }
    Ok(())
}

fn delete_pod(config: &Config, state: &mut State, wish: u8, serial: u8) -> Result<(), Denied> {
    let by_force = config.mistake == Some(Mistake::ForceDeletedUnreachable);
    let wish = &config.wishes[usize::from(wish)];
    let comes_back = wish.life == Life::Wanted && wish.replicas > 0;
    let seat = state.seat_mut(serial);
    let is_spared = config.evicts() && comes_back && seat.is(Role::Voter) && seat.steady();
    let pod = seat.pod.as_mut().ok_or(Denied)?;
    pod.counted_on = is_spared;
    pod.terminating = true;
    if by_force && seat.node == Node::Cut {
        seat.ghost |= pod.process == Process::Etcd;
        seat.pod = None;
    } else if pod.stage == Stage::Unplaced {
        seat.pod = None;
    }
    Ok(())
}

fn delete_claim(config: &Config, state: &mut State, wish: u8, serial: u8) -> Result<(), Denied> {
    let wish = &config.wishes[usize::from(wish)];
    let whole = wish.life == Life::Deleting;
    let seat = state.seat(serial);
    let listed = !state.has_quorum() || seat.member.is_some();
    if listed && !whole && config.mistake != Some(Mistake::VolumeDeletedBeforeRemoval) {
        return Err(Denied);
    }
    let holds_data = matches!(seat.data(), Some(Data::Entries { .. }));
    let allowed = match wish.storage {
        Storage::Claims { on_delete, .. } if whole => on_delete == Retention::Delete,
        Storage::Claims { on_scale_down, .. } => on_scale_down == Retention::Delete && seat.member.is_none(),
        Storage::Ephemeral => false,
    };
    if seat.claim.is_some_and(|claim| !claim.ours) || (holds_data && !allowed) {
        state.break_with(Broken::VolumeDeleted);
    }
    if let Some(claim) = &mut state.seat_mut(serial).claim {
        claim.terminating = true;
    }
    Ok(())
}

fn promote(config: &Config, state: &mut State, serial: u8, same_life: bool, mishap: Mishap) -> Result<(), Denied> {
    let seat = state.seat(serial);
    let fit = seat.answers() && seat.acked();
    let unguarded = match config.mistake {
        Some(Mistake::PromotedDead) => !seat.answers(),
        Some(Mistake::PromotedLagging) => !seat.acked(),
        Some(_) | None => false,
    };
    if !(same_life && fit || unguarded) {
        return Err(Denied);
    }
    if unguarded && let Some(member) = &mut state.seat_mut(serial).member {
        // Near enough for etcd, which counts in percent.
        member.matched = true;
    }
    if mishap == Mishap::Dies
        && let Some(pod) = &mut state.seat_mut(serial).pod
    {
        pod.process = Process::Dead;
    }
    state.promote(serial)?;
    if !fit {
        state.break_with(Broken::Promotion);
    }
    Ok(())
}

/// The guard of every membership call.
fn expected(config: &Config, state: &mut State, expect: &Roster) -> Result<(), Denied> {
    let role = |serial: u8| state.seat(serial).member.map(|member| member.role);
    let same = state.has_quorum()
        && ids(state.members()).eq(expect.keys().copied())
        && expect.iter().all(|(id, expected)| serial_of(*id).and_then(role) == Some(*expected));
    if same {
        return Ok(());
    }
    if config.mistake != Some(Mistake::ExpectedSetUnchecked) || !state.has_quorum() {
        return Err(Denied);
    }
    state.break_with(Broken::ExpectedSet);
    Ok(())
}

/// Marks in the plans under way what the last transition has overtaken.
pub fn overtake(before: &State, state: &mut State, by: Option<usize>, fault: bool) {
    let wished = before.wish != state.wish;
    let rewritten = wished || before.memory != state.memory;
    for index in 0..state.operators.len() {
        let intent = match &state.operators[index] {
            Operator::Idle => continue,
            Operator::Looking(glimpse) => {
                let face = |state: &State, serial| state.seat(serial).pod.map(|pod| pod.face());
                let changed = |serial: &u8| face(before, *serial) != face(state, *serial);
                let touched = state.serials().filter(changed).filter(|_| glimpse.objects.is_some());
                let gone = state.serials().filter(|serial| state.seat(*serial).pod.is_none());
                let now = Glimpse {
                    touched: touched.fold(glimpse.touched, Serials::with),
                    still: gone.fold(glimpse.still, Serials::without),
                    outrun: glimpse.outrun || (rewritten && glimpse.object.is_some()),
                    excused: glimpse.excused || fault || wished,
                    ..Glimpse::clone(glimpse)
                };
                state.operators[index] = Operator::Looking(Arc::new(now));
                continue;
            }
            Operator::Acting(intent) => intent,
        };
        let mut now = Intent::clone(intent);
        // What it wrote itself, it knows.
        let by_another = wished || (rewritten && by != Some(index));
        now.outrun |= by_another && now.is_bound_to_the_object();
        now.excused |= fault || wished;
        for held in &mut now.steps {
            held.stale |= overtaken(before, state, &held.step);
        }
        if now != **intent {
            state.operators[index] = Operator::Acting(Arc::new(now));
        }
    }
}

fn overtaken(before: &State, after: &State, step: &Step) -> bool {
    let pods = |serial| (before.seat(serial).pod, after.seat(serial).pod);
    match step {
        Step::IssueTicket { serial, .. } | Step::DeletePod { serial, .. } | Step::SwitchRelease { serial, .. } => {
            let (then, now) = pods(small(*serial));
            then.map(|pod| pod.face()) != now.map(|pod| pod.face())
        }
        Step::LabelPod { serial, .. } => {
            let (then, now) = pods(small(*serial));
            then.is_some() && now.is_none()
        }
        Step::Promote { serial, .. } => {
            let (then, now) = pods(small(*serial));
            let runs = |pod: Option<Pod>| pod.is_some_and(|pod| pod.process == Process::Etcd);
            runs(then) && !runs(now)
        }
        Step::CreateClaim(_)
        | Step::CreatePod { .. }
        | Step::DeleteClaim { .. }
        | Step::AddLearner { .. }
        | Step::Remove { .. }
        | Step::ResizePod { .. }
        | Step::TryRelease { .. }
        | Step::EndTrial { .. }
        | Step::TakeSnapshot(_)
        | Step::EnableDowngrade(_)
        | Step::CancelDowngrade
        | Step::MoveLeader { .. }
        | Step::ReleaseFinalizer => false,
    }
}

/// The serials of the voters, for those who tell.
pub fn voters(state: &State) -> Serials {
    state.serials().filter(|serial| state.seat(*serial).is(Role::Voter)).collect()
}
