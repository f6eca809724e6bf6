//! Liveness in plain code: from a state, once faults stop, run the world and a fresh operator until nothing moves, and
//! see whether what is left is the wish, or something that rightly waits for a human. The checker's own `eventually`
//! ignores cycles, so it can't be used for this.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
};

use quorate_statemachine::{
    Finding, Ledger, Life, Memory, Phase, Plan, Retention, Role, RoleLabel, Seeding, Storage, TemplateHash,
};

use crate::{
    config::{Config, Volumes},
    faults::heal,
    glimpse::{consider, observe},
    observe::{Eyes, made_as, made_of, small},
    operator::{Mishap, act, overtake},
    state::{Data, Node, Operator, Pod, Process, Seat, Serials, Stage, State, quorum},
    versions::minor_of,
};

/// More rounds than any way to rest takes; one that takes more goes in circles.
const ROUNDS: usize = 200;

/// What a run that came to rest has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    AsWished,
    /// Only a human can help, and the plan knows it.
    Waits,
}

/// States from which rest was reached, by hash, and which.
#[derive(Debug, Default)]
pub struct Calm(Mutex<HashMap<u64, Rest>>);

impl Calm {
    /// Which rest the cluster comes to from here. On failure says why, and how it went if there is an ear for it.
    pub fn comes(&self, config: &Config, state: &State, told: Option<&mut Vec<String>>) -> Result<Rest, String> {
        let mut state = quiet(state);
        let mut trail = Vec::new();
        let known = told.is_none();
        let mut sink = Vec::new();
        let told = told.unwrap_or(&mut sink);
        for _ in 0..ROUNDS {
            let mark = mark(&state);
            if known && let Some(rest) = self.known(mark) {
                return Ok(self.keep(trail, rest));
            }
            trail.push(mark);
            if round(config, &mut state, told)? {
                continue;
            }
            if (0..).take(state.seats.len()).fold(false, |waited, serial| state.wait_long(serial) | waited) {
                told.push("time goes by".to_owned());
                continue;
            }
            return Ok(self.keep(trail, rests_well(config, &state)?));
        }
        Err("it never comes to rest".to_owned())
    }

    fn known(&self, mark: u64) -> Option<Rest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&mark).copied()
    }

    fn keep(&self, trail: Vec<u64>, rest: Rest) -> Rest {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(trail.into_iter().map(|mark| (mark, rest)));
        rest
    }
}

/// This state without what faults and operators were about to do.
fn quiet(state: &State) -> State {
    let mut state = state.clone();
    state.faults = 0;
    state.slow = Serials::default();
    state.operators = vec![Operator::Idle];
    for serial in state.serials() {
        heal(&mut state, serial);
    }
    state.settle();
    state.tidy();
    state
}

/// Tells states apart, in little room.
pub fn mark(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Kubernetes and etcd do all they can, then the operator does one whole plan. False if nothing moved.
fn round(config: &Config, state: &mut State, told: &mut Vec<String>) -> Result<bool, String> {
    let before = state.clone();
    for serial in state.serials() {
        while state.progress(config, serial) {
            state.settle();
            state.tidy();
        }
        state.catch_up(serial);
    }
    state.monitor();
    state.settle();
    if observe(config, state, 0, Eyes::Open) {
        while let Operator::Acting(intent) = state.operators[0].clone() {
            told.push(match (&intent.ledger, intent.steps.first()) {
                (Some(_), _) => "the ledger is written".to_owned(),
                (None, step) => format!("{:?}", step.map(|held| &held.step)),
            });
            let now = state.clone();
            act(config, state, 0, Mishap::None);
            state.settle();
            state.tidy();
            overtake(&now, state, Some(0), false);
        }
    }
    if let Some(broken) = state.broken {
        return Err(format!("on the way to rest: {broken:?}"));
    }
    Ok(*state != before)
}

/// Nothing moves any more: is this what was wished?
pub fn rests_well(config: &Config, state: &State) -> Result<Rest, String> {
    let as_wished = |()| Rest::AsWished;
    if state.over {
        return over_well(config, state).map(as_wished);
    }
    let plan = consider(config, state, state, Eyes::Open);
    let wish = config.wish(state);
    if wish.life != Life::Paused && (plan.ledger.is_some() || !plan.steps.is_empty()) {
        return Err(format!("it keeps trying in vain: {:?}", plan.steps));
    }
    match wish.life {
        Life::Paused => Ok(Rest::AsWished),
        Life::Deleting => Err(format!("the deletion does not complete: {:?}", plan.findings)),
        Life::Wanted if waits_rightly(config, state, &plan) => Ok(Rest::Waits),
        Life::Wanted if wish.replicas == 0 => sleeps_well(state, &plan).map(as_wished),
        Life::Wanted => serves_well(config, state, &plan).map(as_wished),
    }
}

fn over_well(config: &Config, state: &State) -> Result<(), String> {
    let left = state.seats.iter().filter(|seat| seat.claim.is_some_and(|claim| claim.ours)).count();
    match config.wish(state).storage {
        Storage::Claims { on_delete: Retention::Delete, .. } if left > 0 => Err(format!("{left} claims are left")),
        Storage::Claims { .. } | Storage::Ephemeral => Ok(()),
    }
}

/// Only a human can help, and the plan knows it.
fn waits_rightly(config: &Config, state: &State, plan: &Plan) -> bool {
    let says = |finding| plan.findings.values().any(|findings| findings.contains(&finding));
    let taken = state.seats.iter().any(|seat| seat.claim.is_some() || seat.pod.is_some());
    // The last promotion may not have been heard of when quorum went: then nobody can know that it is for good. Nor can
    // anybody know what is on a volume that is being deleted, and that no pod can use any more.
    let lost = !state.has_quorum() && is_lost(config, state);
    if lost && (says(Finding::EtcdUnknown) || says(Finding::VolumeGoing)) {
        return true;
    }
    match plan.phase {
        Phase::QuorumLost => lost,
        Phase::Failed => *state.memory == Memory::Blank && taken,
        Phase::Seeding => says(Finding::SeedRefused) && state.seats.iter().any(|s| s.data() == Some(Data::Foreign)),
        Phase::Pending
        | Phase::Restoring
        | Phase::Growing
        | Phase::Running
        | Phase::Scaling
        | Phase::Healing
        | Phase::Restarting
        | Phase::Hibernated
        | Phase::Paused
        | Phase::Deleting => false,
        // A release that does not run is held off, and all go on with the one before.
        Phase::Upgrading => {
            let bad = minor_of(&config.wish(state).release);
            let crashes = config.crashes.contains(&bad);
            let held = (crashes && says(Finding::ReleaseFailed))
                || (config.fails_trial == Some(bad) && says(Finding::TrialFailed));
            // The last member is left on it until another one is wished for, and on nothing else.
            let struck = config.crashes_only_at.and_then(|serial| state.seat(serial).pod);
            let left = crashes && struck.is_some_and(|pod| pod.release == bad) && says(Finding::ContainerFailing);
            let (steady, wanted) = (state.steady_voters(), usize::from(config.wish(state).replicas));
            (held && steady == wanted) || (left && steady + 1 == wanted)
        }
    }
}

/// A majority of the voters' volumes is lost, or the seed's, before anybody heard of it.
fn is_lost(config: &Config, state: &State) -> bool {
    let stays = |seat: &Seat| match config.volumes {
        Volumes::Local => seat.node != Node::Gone && seat.claim.is_some_and(|claim| !claim.terminating),
        Volumes::Network => seat.claim.is_some_and(|claim| !claim.terminating),
        Volumes::Ephemeral => seat.pod.is_some_and(|pod| !pod.terminating && pod.stage != Stage::Finished),
    };
    let carries =
        |seat: &Seat| stays(seat) && seat.born == seat.volume() && matches!(seat.data(), Some(Data::Entries { .. }));
    let voters = state.voters();
    if voters > 0 {
        let left = state.seats.iter().filter(|seat| seat.is(Role::Voter) && carries(seat)).count();
        return left < quorum(voters);
    }
    // It may have been told to start, and have served unseen: nobody can know better than the ledger.
    let Memory::Ledger(Ledger { seeding: Seeding::Begun(seed), members, .. }) = &*state.memory else { return false };
    let (serial, seat) = (small(*seed), state.seat(small(*seed)));
    let given = members.get(seed).and_then(|entry| made_of(entry.create.as_ref()?, serial));
    let marked = members.get(seed).and_then(|entry| made_as(entry.mark.as_ref()?));
    given != seat.volume() || !stays(&seat) || is_emptied(config, seat.data(), marked)
}

/// Whether a seed's volume is not as it was when it was told to start, and holds nothing that came since.
fn is_emptied(config: &Config, data: Option<Data>, marked: Option<u8>) -> bool {
    match data {
        Some(Data::Marked { mark, .. } | Data::NoEntry { mark, .. }) => config.restores() || marked != Some(mark),
        Some(Data::Empty) => true,
        Some(Data::Entries { .. } | Data::Half { .. } | Data::Restored { .. } | Data::Foreign) | None => false,
    }
}

fn sleeps_well(state: &State, plan: &Plan) -> Result<(), String> {
    // A pod whose claim is being deleted keeps its volume alive, until a human says what is to become of it.
    let holds = |seat: &&Seat| seat.claim.is_some_and(|claim| claim.terminating);
    let (held, pods): (Vec<&Seat>, Vec<&Seat>) = state.seats.iter().filter(|seat| seat.pod.is_some()).partition(holds);
    let pods = pods.len();
    if pods > 0 || (plan.phase != Phase::Hibernated && held.is_empty()) {
        return Err(format!("{pods} pods while it should sleep, phase {:?}, {:?}", plan.phase, plan.findings));
    }
    Ok(())
}

fn serves_well(config: &Config, state: &State, plan: &Plan) -> Result<(), String> {
    let wish = config.wish(state);
    let voters = state.voters();
    let current = |pod: Pod| TemplateHash(u64::from(pod.template)) == wish.template && pod.label == RoleLabel::Voter;
    let minor = minor_of(&wish.release);
    if !state.has_arrived(minor) {
        return Err(format!("3.{minor} is wished, and there is {:?}", state.versions));
    }
    let well = |seat: &&Seat| {
        let pod = seat.pod.is_some_and(|pod| pod.process == Process::Etcd && !pod.terminating && current(pod));
        seat.is(Role::Voter) && seat.acked() && pod
    };
    let served = state.seats.iter().filter(well).count();
    let pods = state.seats.iter().filter(|seat| seat.pod.is_some()).count();
    let wanted = usize::from(wish.replicas);
    let entries = match Arc::as_ref(&state.memory) {
        Memory::Blank | Memory::Unreadable => 0,
        Memory::Ledger(ledger) => ledger.members.len(),
    };
    let counts = [voters, served, pods, entries, state.members().0.count_ones() as usize];
    if counts != [wanted; 5] || plan.phase != Phase::Running {
        return Err(format!(
            "it stands still, but not as wished: {wanted} wanted, {voters} voters, {served} of them well and up to \
             date, {pods} pods, {entries} entries in the ledger, phase {:?}, {:?}",
            plan.phase, plan.findings
        ));
    }
    if plan.findings.values().flatten().any(|finding| *finding == Finding::ReleaseFailed) {
        return Err(format!("all run what is wished, and it is told that this failed: {:?}", plan.findings));
    }
    let spared = if voters == 2 { 2 } else { voters - 1 };
    if config.evicts() && usize::from(state.budget) != spared {
        return Err(format!("the budget of {voters} voters is left at {}", state.budget));
    }
    let kept = state.seats.iter().filter(|seat| seat.member.is_none() && seat.claim.is_some()).count();
    let by_policy = matches!(wish.storage, Storage::Claims { on_scale_down: Retention::Delete, .. });
    if by_policy && kept > 0 {
        return Err(format!("{kept} claims are left of members that were removed"));
    }
    Ok(())
}
