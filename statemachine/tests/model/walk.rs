//! Walks at random through worlds too large to exhaust: from the beginning, by what may happen next, with every
//! property checked in each state on the way. Choices are proptest's, so that a walk that fails shrinks, and is the
//! same one again in the next run; `PROPTEST_RNG_SEED` takes others, `QUORATE_MODEL=thorough` takes more.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Instant,
};

use proptest::{
    prelude::*,
    test_runner::{RngSeed, TestError, TestRunner},
};
use stateright::{Model, Path, Property};

use crate::{
    check::{Action, Quorate, name},
    config::Config,
    faults::Kind,
    planted::Mistake,
    rest::{Rest, mark, rests_well},
    state::{Broken, Operator, State},
    story, thorough,
};

/// How often more is walked where there is time.
const THOROUGH: u32 = 20;
/// How many shorter walks are tried once one has failed. The story leaves out what is left of its detours.
const SHRINKS: u32 = 500;

/// How many choices a walk has at most that is to stumble.
const STUMBLING: usize = 1_000;

/// Who does something next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// Kubernetes, a launcher or etcd.
    World,
    /// An operator, which observes or acts.
    Operator,
    /// Somebody who does what is no fault, but does not come by itself either: wishes for something else, mends a node
    /// or gives it up, restarts an operator.
    Other,
    Fault,
}

impl Who {
    const ALL: [Self; 4] = [Self::World, Self::Operator, Self::Other, Self::Fault];

    fn does(config: &Config, action: Action) -> Self {
        match action {
            Action::Progress(_) | Action::CatchUp(_) | Action::Monitor => Self::World,
            Action::Observe(_) | Action::Act(_) | Action::ActUnshown(_) => Self::Operator,
            Action::Crash(_) if action.is_fault(config) => Self::Fault,
            Action::Crash(_) | Action::Heal(_) | Action::NeverHeals(_) | Action::NextWish => Self::Other,
            Action::ObserveBlind(_)
            | Action::ActOnDying(_)
            | Action::ActRefused(_)
            | Action::Strike(..)
            | Action::DeleteAllPods
            | Action::LoseStatus => Self::Fault,
        }
    }
}

/// Who does something next, and where among what he could do the search for something that is possible begins.
#[derive(Clone, Copy, Debug)]
struct Choice(Who, u16);

impl Choice {
    /// What comes of it. If he can do nothing, others do: at the latest when all is at rest, the next wish comes, or a
    /// fault. Nothing once there is none left.
    fn leads(self, model: &Quorate, state: &State) -> Option<(Action, State)> {
        let mut actions = Vec::new();
        model.actions(state, &mut actions);
        let Self(who, which) = self;
        [who].into_iter().chain(Who::ALL).find_map(|who| {
            let of_his = actions.iter().copied().filter(|action| Who::does(&model.config, *action) == who);
            let mut his: Vec<_> = of_his.collect();
            let kinds = model.config.kinds.len().max(1);
            let (seat, kind) = (usize::from(which) / kinds, usize::from(which) % kinds);
            let first = if who == Who::Fault { seat } else { usize::from(which) };
            let count = his.len().max(1);
            his.rotate_left(first % count);
            // A kind that has many places where it could strike is not to strike more often.
            his.sort_by_key(|action| {
                let of = action.kind().and_then(|of| model.config.kinds.iter().position(|kind| *kind == of));
                (of.unwrap_or(kind) + kinds - kind) % kinds
            });
            his.into_iter().find_map(|action| Some((action, model.next_state(state, action)?)))
        })
    }
}

/// Up to so many choices. In some walks faults come one upon the other, in some the world is slow, in some the
/// operator.
fn choices(most: usize) -> impl Strategy<Value = Vec<Choice>> {
    let paced = move |world: u32, operator: u32, other: u32, fault: u32| {
        let who = prop_oneof![
            world => Just(Who::World),
            operator => Just(Who::Operator),
            other => Just(Who::Other),
            fault => Just(Who::Fault),
        ];
        prop::collection::vec((who, any::<u16>()).prop_map(|(who, which)| Choice(who, which)), 0..=most)
    };
    prop_oneof![paced(40, 40, 1, 1), paced(40, 40, 2, 4), paced(60, 20, 1, 2), paced(20, 60, 1, 2)]
}

/// How a walk went.
struct Walk {
    path: Vec<Action>,
    /// The states on the way, by hash.
    marks: Vec<u64>,
    /// Where it ended.
    state: State,
    /// What does not hold there.
    broken: Option<&'static str>,
    /// The wishes that were fulfilled before the next one came.
    fulfilled: BTreeSet<u8>,
    /// It came by itself to what was wished last, and no fault was left to come.
    arrived: bool,
}

/// A world to walk through.
struct Country {
    model: Quorate,
    properties: Vec<Property<Quorate>>,
}

impl Country {
    fn new(config: Config) -> Self {
        let model = Quorate::new(config);
        let properties = model.properties();
        Self { model, properties }
    }

    /// Goes by these choices until they end, or nothing more can happen, or all has come that was to come. Then comes
    /// what was not wished yet, so that the last state has to come to rest as wished last.
    fn walk(&self, choices: &[Choice]) -> Walk {
        let state = self.model.config.origin();
        let mut walk =
            Walk { path: vec![], marks: vec![], state, broken: None, fulfilled: BTreeSet::new(), arrived: false };
        for choice in choices {
            let Some((action, state)) = choice.leads(&self.model, &walk.state) else { break };
            self.go(&mut walk, action, state);
            if walk.broken.is_some() || walk.arrived {
                return walk;
            }
        }
        while walk.broken.is_none() && !walk.state.over && !self.was_wished_last(&walk.state) {
            let Some(state) = self.model.next_state(&walk.state, Action::NextWish) else { break };
            self.go(&mut walk, Action::NextWish, state);
        }
        walk
    }

    fn go(&self, walk: &mut Walk, action: Action, state: State) {
        walk.path.push(action);
        walk.marks.push(mark(&state));
        walk.state = state;
        walk.broken = self.broken(&walk.state);
        if walk.broken.is_none() && self.rests_as_wished(&walk.state) {
            walk.fulfilled.insert(walk.state.wish);
            // An operator that still means to do something may yet spoil it.
            let idle = walk.state.operators.iter().all(|operator| !matches!(operator, Operator::Acting(_)));
            let over = walk.state.over || (walk.state.faults == 0 && idle);
            walk.arrived = self.was_wished_last(&walk.state) && over;
        }
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let broken = self.properties.iter().find(|property| !(property.condition)(&self.model, state));
        broken.map(|property| property.name)
    }

    fn was_wished_last(&self, state: &State) -> bool {
        usize::from(state.wish) + 1 == self.model.config.wishes.len()
    }

    fn rests_as_wished(&self, state: &State) -> bool {
        // Asked first, because it costs no plan.
        let wished = usize::from(self.model.config.wish(state).replicas);
        let may_be = state.over || wished == 0 || state.steady_voters() == wished;
        may_be && rests_well(&self.model.config, state) == Ok(Rest::AsWished)
    }

    /// Tells what came of these choices, without what it would have come to as well.
    fn tell(&self, choices: &[Choice]) -> String {
        let walk = self.walk(choices);
        let Some(broken) = walk.broken else { return "the walk ends well when it is gone again".to_owned() };
        let path = self.shorten(walk.path, broken);
        let path = Path::from_actions(&self.model, self.model.config.origin(), &path);
        path.map(|path| story::tell(&self.model, broken, path)).unwrap_or_default()
    }

    /// Leaves out, one at a time, what this is broken without.
    fn shorten(&self, mut path: Vec<Action>, broken: &str) -> Vec<Action> {
        let mut index = path.len();
        while index > 0 {
            index = (index - 1).min(path.len() - 1);
            let mut fewer = path.clone();
            fewer.remove(index);
            path = self.takes(&fewer, broken).unwrap_or(path);
        }
        path
    }

    /// Those of these actions that are possible one after the other, if this is broken by them.
    fn takes(&self, actions: &[Action], broken: &str) -> Option<Vec<Action>> {
        let mut state = self.model.config.origin();
        let mut taken = Vec::new();
        for action in actions {
            let mut possible = Vec::new();
            self.model.actions(&state, &mut possible);
            let Some(next) = possible.contains(action).then(|| self.model.next_state(&state, *action)).flatten() else {
                continue;
            };
            state = next;
            taken.push(*action);
        }
        (self.broken(&state) == Some(broken)).then_some(taken)
    }
}

/// What walks through a world came to, together.
#[derive(Default)]
struct Tally {
    walks: usize,
    steps: usize,
    seen: HashSet<u64>,
    faults: BTreeMap<Kind, usize>,
    fulfilled: usize,
    /// After all faults, without help.
    arrived: usize,
    /// In the run without further faults from their last state, those that arrived among them.
    as_wished: usize,
    waits: usize,
}

impl Tally {
    fn add(&mut self, walk: &Walk, end: Option<Rest>) {
        self.walks += 1;
        self.steps += walk.path.len();
        self.seen.extend(&walk.marks);
        for kind in walk.path.iter().filter_map(|action| action.kind()) {
            *self.faults.entry(kind).or_default() += 1;
        }
        self.fulfilled += walk.fulfilled.len();
        self.arrived += usize::from(walk.arrived);
        match end {
            Some(Rest::AsWished) => self.as_wished += 1,
            Some(Rest::Waits) => self.waits += 1,
            // Where it matters, that is broken.
            None => {}
        }
    }
}

fn runner(walks: u32, shrinks: u32) -> TestRunner {
    let default = ProptestConfig::default();
    let rng_seed = match default.rng_seed {
        RngSeed::Random => RngSeed::Fixed(0),
        RngSeed::Fixed(seed) => RngSeed::Fixed(seed),
    };
    let (cases, max_shrink_iters) = (walks, shrinks);
    TestRunner::new(ProptestConfig { failure_persistence: None, cases, max_shrink_iters, rng_seed, ..default })
}

/// Walks so often, up to so many choices each, until something is broken: then these are the choices.
fn wander(country: &Country, walks: u32, most: usize, shrinks: u32) -> (Tally, Option<Vec<Choice>>) {
    let (tally, failed) = (RefCell::new(Tally::default()), Cell::new(false));
    let result = runner(walks, shrinks).run(&choices(most), |choices| {
        let walk = country.walk(&choices);
        if let Some(broken) = walk.broken {
            failed.set(true);
            return Err(TestCaseError::fail(broken));
        }
        // Shorter ones of a walk that failed do not count.
        if failed.get() {
            return Ok(());
        }
        let end = country.model.calm.comes(&country.model.config, &walk.state, None).ok();
        tally.borrow_mut().add(&walk, end);
        Ok(())
    });
    let failed = match result {
        Ok(()) => None,
        Err(TestError::Fail(_, choices)) => Some(choices),
        // Nothing is ever rejected.
        Err(TestError::Abort(why)) => unreachable!("{why}"),
    };
    (tally.into_inner(), failed)
}

/// Walks through a world, says how far that went, and checks that it went far.
#[track_caller]
pub fn roam(config: Config, walks: u32, most: usize) {
    let begun = Instant::now();
    let country = Country::new(config);
    let Config { name, kinds, .. } = country.model.config;
    let walks = if thorough() { walks * THOROUGH } else { walks };
    let (tally, failed) = wander(&country, walks, most, SHRINKS);
    let Tally { walks, steps, fulfilled, arrived, as_wished, waits, .. } = tally;
    println!(
        "{name:<44} {walks:>6} walks, {steps:>8} steps, {:>8} states, {} kinds of {} faults; {fulfilled} wishes \
         fulfilled in time, {arrived} walks arrived, {as_wished} end as wished, {waits} wait for a human; {:.1} s",
        tally.seen.len(),
        tally.faults.len(),
        tally.faults.values().sum::<usize>(),
        begun.elapsed().as_secs_f64()
    );
    assert!(failed.is_none(), "{}", country.tell(&failed.unwrap_or_default()));
    assert!(arrived * 4 >= walks, "{name}: few walks come to what was wished last: {arrived} of {walks}");
    assert!(as_wished * 2 >= walks, "{name}: few walks end as wished: {as_wished} of {walks}");
    assert!(tally.faults.len() * 4 >= kinds.len() * 3, "{name}: only these faults: {:?}", tally.faults);
}

/// Walks through a world with a mistake in it until one of so many walks breaks this property, which alone is asked
/// for: that the way to rest is spoilt too says less.
#[track_caller]
pub fn stumble(config: Config, mistake: Mistake, broken: Broken, walks: u32) {
    let mut country = Country::new(config.with(mistake));
    country.properties.retain(|property| property.name == name(broken));
    let (tally, failed) = wander(&country, walks, STUMBLING, 0);
    let choices = failed.unwrap_or_default();
    let path = country.walk(&choices).path;
    println!(
        "{mistake:?} is caught by walk {}, after {} steps; it has {}, of which the story needs {}",
        tally.walks + 1,
        tally.steps + path.len(),
        path.len(),
        country.shorten(path.clone(), name(broken)).len()
    );
    let story = country.tell(&choices);
    assert!(story.contains(name(broken)), "{mistake:?} has to be caught by \"{}\": {story}", name(broken));
}
