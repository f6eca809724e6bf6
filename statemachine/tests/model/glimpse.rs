//! How an operator looks before it decides, and what it then means to do. All at once; or piece by piece; or as the watches
//! have it: Kubernetes' objects from before the ledger was last written, and whatever carries weight by quorum reads after
//! that, but for what each pod's process had said by then.

use std::sync::Arc;

use quorate_statemachine::{Freshness, Life, Membership, Plan, Role, Seat, Serial, Sight, Step, Uid, World};

use crate::{
    blame::blame_plan,
    config::{Config, Looks},
    observe::{Eyes, look, small},
    planted::{Mistake, decide},
    state::{self, Glimpse, Held, Intent, Operator, Said, Serials, Stage, State},
};

/// What comes of looking on.
pub enum Next {
    /// More is to be looked at.
    Look(Glimpse),
    /// It was enough to act on: the plan, and what it was made from.
    Act(Glimpse, Plan, Box<World>),
}

/// What the operator would do now, having looked again by quorum reads if the plan says so.
pub fn consider(config: &Config, state: &State, truth: &State, eyes: Eyes) -> Plan {
    think(config, look(config, state, truth, eyes, Freshness::Cached)).0
}

fn think(config: &Config, mut world: World) -> (Plan, Box<World>) {
    let plan = decide(config.mistake, &world);
    if !plan.needs_fresh_look() {
        return (plan, Box::new(world));
    }
    world.freshness = Freshness::Quorum;
    (decide(config.mistake, &world), Box::new(world))
}

/// Observes all at once and plans; false if there is nothing to do.
pub fn observe(config: &Config, state: &mut State, operator: usize, eyes: Eyes) -> bool {
    if state.over {
        return false;
    }
    let (plan, world) = think(config, look(config, state, state, eyes, Freshness::Cached));
    let now = Glimpse { object: Some((Arc::clone(&state.memory), state.wish)), ..Glimpse::default() };
    conclude(config, state, operator, &now, plan, &world)
}

/// Observes the next thing, and plans when that was the last; false if there is nothing to observe.
pub fn observe_on(config: &Config, state: &mut State, operator: usize, eyes: Eyes) -> bool {
    let Some(next) = look_on(config, state, operator, eyes) else { return false };
    match next {
        Next::Look(glimpse) => {
            state.operators[operator] = Operator::Looking(Arc::new(glimpse));
            !state.over
        }
        Next::Act(glimpse, plan, world) => {
            state.operators[operator] = Operator::Idle;
            conclude(config, state, operator, &glimpse, plan, &world);
            true
        }
    }
}

/// What an operator comes to by looking at the next thing; nothing if it is about to act.
pub fn look_on(config: &Config, state: &State, operator: usize, eyes: Eyes) -> Option<Next> {
    let glimpse = match &state.operators[operator] {
        Operator::Idle => Glimpse::default(),
        Operator::Looking(glimpse) => Glimpse::clone(glimpse),
        Operator::Acting(_) => return None,
    };
    Some(match (config.looks, &glimpse) {
        (Looks::Lagging, Glimpse { objects: None, said: None, .. }) => Next::Look(glimpse.with_objects(state)),
        (Looks::Lagging, Glimpse { said: None, .. }) => glance(config, state, glimpse.with_object(state), eyes),
        (Looks::Lagging, Glimpse { said: Some(_), .. }) => stare(config, state, glimpse.with_object(state), eyes),
        (Looks::Piecemeal, Glimpse { object: None, .. }) => Next::Look(glimpse.with_object(state)),
        (Looks::Piecemeal, Glimpse { objects: None, .. }) => Next::Look(glimpse.with_objects(state)),
        (Looks::AtOnce | Looks::Piecemeal, _) => {
            let (plan, world) = think(config, look(config, &glimpse.shown(state), state, eyes, Freshness::Cached));
            Next::Act(glimpse, plan, world)
        }
    })
}

/// By what the watches show, and what answers now.
fn glance(config: &Config, state: &State, glimpse: Glimpse, eyes: Eyes) -> Next {
    let mut world = look(config, &glimpse.shown(state), state, eyes, Freshness::Cached);
    silence(&mut world, glimpse.still);
    let weighty = decide(config.mistake, &world).needs_fresh_look();
    if weighty && config.mistake != Some(Mistake::GlanceTrusted) {
        let said = Some(Said::of(&world));
        return Next::Look(Glimpse { still: glimpse.still, said, ..Glimpse::default() });
    }
    let (plan, world) = think(config, world);
    Next::Act(glimpse, plan, world)
}

/// By quorum reads, and what was said before.
fn stare(config: &Config, state: &State, glimpse: Glimpse, eyes: Eyes) -> Next {
    let mut world = look(config, state, state, eyes, Freshness::Quorum);
    if let Some(said) = &glimpse.said {
        said.recall(&mut world, glimpse.still);
    }
    Next::Act(glimpse, decide(config.mistake, &world), Box::new(world))
}

impl Glimpse {
    fn with_object(self, state: &State) -> Self {
        Self { object: Some((Arc::clone(&state.memory), state.wish)), ..self }
    }

    fn with_objects(self, state: &State) -> Self {
        let has_address = |serial: &u8| state.seat(*serial).pod.is_some_and(|pod| pod.stage != Stage::Unplaced);
        let still = state.serials().filter(has_address).collect();
        Self { objects: Some(state.seats.clone()), still, ..self }
    }

    /// What the watches show to one that has just acted, if they have not shown anything since it last looked.
    pub fn unshown(objects: Vec<state::Seat>, excused: bool, state: &State) -> Self {
        let then = |serial: u8| objects.get(usize::from(serial)).and_then(|seat| seat.pod);
        let still = |serial: &u8| {
            then(*serial).is_some_and(|pod| pod.stage != Stage::Unplaced) && state.seat(*serial).pod.is_some()
        };
        let changed =
            |serial: &u8| then(*serial).map(|pod| pod.face()) != state.seat(*serial).pod.map(|pod| pod.face());
        let (still, touched) = (state.serials().filter(still).collect(), state.serials().filter(changed).collect());
        Self { objects: Some(objects), still, touched, excused, ..Self::default() }
    }

    /// The state with what was read before as it was then.
    fn shown(&self, state: &State) -> State {
        let (memory, wish) = self.object.clone().unwrap_or_else(|| (Arc::clone(&state.memory), state.wish));
        let seats = self.objects.clone().unwrap_or_else(|| state.seats.clone());
        State { wish, seats, memory, ..state.clone() }
    }
}

/// Nobody answers where a pod was that is not there any more.
fn silence(world: &mut World, still: Serials) {
    for (serial, seat) in &mut world.seats {
        if let Some(pod) = seat.pod.as_mut().filter(|_| !still.contains(small(*serial))) {
            pod.sight = Sight::Unknown;
        }
    }
}

impl Said {
    fn of(world: &World) -> Self {
        let sight = |(serial, seat): (&Serial, &Seat)| Some((*serial, seat.pod.as_ref()?.sight.clone()));
        let (listed, leader) = match &world.membership {
            Membership::Known(list) => (true, list.leader),
            Membership::Unknown => (false, None),
        };
        Self { sights: world.seats.iter().filter_map(sight).collect(), listed, leader, overall: world.overall }
    }

    /// What was said at pods that are still there is not asked for again; nor is the list, if nobody gave one.
    fn recall(&self, world: &mut World, still: Serials) {
        for (serial, seat) in &mut world.seats {
            if let (Some(pod), Some(sight)) = (&mut seat.pod, self.sights.get(serial))
                && still.contains(small(*serial))
            {
                pod.sight = sight.clone();
            }
        }
        world.overall = self.overall;
        match &mut world.membership {
            Membership::Known(list) if self.listed => list.leader = self.leader,
            unheard => *unheard = Membership::Unknown,
        }
    }
}

/// Means to do what the plan says; false if that is nothing.
fn conclude(config: &Config, state: &mut State, operator: usize, glimpse: &Glimpse, plan: Plan, world: &World) -> bool {
    let Glimpse { object, objects, said: _, still, touched, outrun, excused } = glimpse.clone();
    let lags = config.looks == Looks::Lagging && objects.is_some();
    let wish = object.map_or(state.wish, |(_, wish)| wish);
    if let Some(broken) = blame_plan(config, state, &plan, wish).filter(|_| !excused) {
        state.break_with(broken);
    }
    let budget = plan.budget.filter(|budget| config.evicts() && *budget != state.budget);
    if plan.ledger.is_none() && plan.steps.is_empty() && budget.is_none() {
        return state.broken.is_some();
    }
    let is_stale = |step: &Step| match step {
        // Its guard speaks of no more than which pod it is.
        Step::LabelPod { serial, .. } if lags => !still.contains(small(*serial)),
        step => pod_of(step).is_some_and(|serial| touched.contains(serial)),
    };
    let held = |step| Held {
        stale: is_stale(&step) || !names_what_is_there(world, &step),
        others: others_of(world, &step),
        step,
    };
    let steps = plan.steps.into_iter().map(held).collect();
    let ledger = plan.ledger.map(Arc::new);
    let objects = (config.looks == Looks::Lagging).then(|| state.seats.clone());
    let mut intent = Intent { ledger, outrun, excused, wish, budget, steps, objects };
    intent.outrun &= intent.is_bound_to_the_object();
    state.operators[operator] = Operator::Acting(Arc::new(intent));
    true
}

/// The other voters, if a voter that serves is to be stopped, and the cluster is to go on.
fn others_of(world: &World, step: &Step) -> Option<Serials> {
    let (Step::DeletePod { serial, .. } | Step::SwitchRelease { serial, .. }) = step else { return None };
    let goes_on = world.wish.life == Life::Wanted && world.wish.replicas > 0;
    let Membership::Known(list) = &world.membership else { return None };
    let voters = list.members.values().filter(|listed| listed.role == Role::Voter);
    let voters: Vec<_> = voters.filter_map(|listed| listed.serial).collect();
    let pod = world.seats.get(serial).and_then(|seat| seat.pod.as_ref());
    let serves = pod.is_some_and(|pod| matches!(pod.sight, Sight::Etcd(_)));
    let others = voters.iter().filter(|other| *other != serial).map(|other| small(*other)).collect();
    (goes_on && serves && voters.contains(serial)).then_some(others)
}

/// The serial whose pod the step's guard speaks of.
fn pod_of(step: &Step) -> Option<u8> {
    named_pod(step).map(|(serial, _)| small(serial))
}

/// Whether the pod that the step names is the one that was seen.
fn names_what_is_there(world: &World, step: &Step) -> bool {
    let seen = |serial| world.seats.get(&serial).and_then(|seat| seat.pod.as_ref());
    named_pod(step).is_none_or(|(serial, uid)| seen(serial).is_some_and(|pod| pod.uid == *uid))
}

fn named_pod(step: &Step) -> Option<(Serial, &Uid)> {
    match step {
        Step::IssueTicket { serial, pod, .. }
        | Step::DeletePod { serial, pod }
        | Step::SwitchRelease { serial, pod, .. }
        | Step::LabelPod { serial, pod, .. } => Some((*serial, pod)),
        Step::CreateClaim(_)
        | Step::CreatePod { .. }
        | Step::DeleteClaim { .. }
        | Step::AddLearner { .. }
        | Step::Promote { .. }
        | Step::Remove { .. }
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
