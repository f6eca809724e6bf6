//! The model for the checker: which transitions a state has, and what must hold in every state that can be reached.

use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::{Model, Property};

use crate::{
    config::{Config, Looks},
    faults::{Kind, delete_all_pods, heal, lose_node, lose_status, strike},
    glimpse::{observe, observe_on},
    observe::Eyes,
    operator::{Mishap, act, act_unshown, is_about_to_make, is_about_to_promote, overtake},
    rest::Calm,
    state::{Broken, Node, Operator, State},
};

/// One transition. Numbers are serials, or operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Observe(usize),
    Act(usize),
    /// The same, and it looks again before its watches have shown what came of it.
    ActUnshown(usize),
    /// The operator is killed and started again: it knows nothing of what it was about to do.
    Crash(usize),
    /// Kubelet, launcher or garbage collection does the next thing at this seat.
    Progress(u8),
    CatchUp(u8),
    /// etcd's leader looks at the members' versions.
    Monitor,
    Heal(u8),
    /// A node that was cut off is gone for good.
    NeverHeals(u8),
    NextWish,
    ObserveBlind(usize),
    ActOnDying(usize),
    ActRefused(usize),
    Strike(Kind, u8),
    DeleteAllPods,
    LoseStatus,
}

/// A configuration under check.
pub struct Quorate {
    pub config: Config,
    pub calm: Calm,
}

impl Quorate {
    pub fn new(config: Config) -> Self {
        Self { config, calm: Calm::default() }
    }

    fn do_it(&self, state: &mut State, action: Action) -> bool {
        let config = &self.config;
        match action {
            Action::Observe(operator) => self.observe(state, operator, Eyes::Open),
            Action::ObserveBlind(operator) => self.observe(state, operator, Eyes::Blind),
            Action::Act(operator) => {
                act(config, state, operator, Mishap::None);
                true
            }
            Action::ActUnshown(operator) => act_unshown(config, state, operator),
            Action::ActOnDying(operator) => {
                act(config, state, operator, Mishap::Dies);
                true
            }
            Action::ActRefused(operator) => {
                act(config, state, operator, Mishap::Refused);
                true
            }
            Action::Crash(operator) => {
                state.operators[operator] = Operator::Idle;
                true
            }
            Action::Progress(serial) => state.progress(config, serial),
            Action::CatchUp(serial) => state.catch_up(serial),
            Action::Monitor => state.monitor(),
            Action::Heal(serial) => heal(state, serial),
            Action::NeverHeals(serial) => {
                lose_node(state, serial);
                true
            }
            Action::NextWish => {
                state.wish += 1;
                true
            }
            Action::Strike(kind, serial) => strike(config, state, kind, serial),
            Action::DeleteAllPods => delete_all_pods(state),
            Action::LoseStatus => lose_status(state),
        }
    }

    fn observe(&self, state: &mut State, operator: usize, eyes: Eyes) -> bool {
        match self.config.looks {
            Looks::AtOnce => observe(&self.config, state, operator, eyes),
            Looks::Piecemeal | Looks::Lagging => observe_on(&self.config, state, operator, eyes),
        }
    }

    /// One thing that happens by itself at every seat which is not slow; false if there was none.
    fn hurry(&self, state: &mut State) -> bool {
        let prompt = state.serials().filter(|serial| !state.slow.contains(*serial)).collect::<Vec<_>>();
        let moved = prompt
            .into_iter()
            .filter(|serial| state.progress(&self.config, *serial) || state.catch_up(*serial))
            .count()
            + usize::from(state.monitor());
        state.settle();
        state.tidy();
        moved > 0 && state.broken.is_none()
    }

    fn operators_may(&self, state: &State, actions: &mut Vec<Action>) {
        let faults = |kind| state.faults > 0 && self.config.kinds.contains(&kind);
        for (index, operator) in state.operators.iter().enumerate() {
            match operator {
                Operator::Idle | Operator::Looking(_) => {
                    actions.push(Action::Observe(index));
                    let asks_etcd = match operator {
                        Operator::Looking(glimpse) => glimpse.objects.is_some() || glimpse.said.is_some(),
                        Operator::Idle | Operator::Acting(_) => self.config.looks == Looks::AtOnce,
                    };
                    if asks_etcd && faults(Kind::Blind) {
                        actions.push(Action::ObserveBlind(index));
                    }
                }
                Operator::Acting(_) => {
                    actions.push(Action::Act(index));
                    if self.config.looks == Looks::Lagging {
                        actions.push(Action::ActUnshown(index));
                    }
                    if state.faults > 0 || !self.config.kinds.contains(&Kind::Crash) {
                        actions.push(Action::Crash(index));
                    }
                    if faults(Kind::Dying) && is_about_to_promote(state, index).is_some() {
                        actions.push(Action::ActOnDying(index));
                    }
                    if faults(Kind::Refused) && is_about_to_make(state, index) {
                        actions.push(Action::ActRefused(index));
                    }
                }
            }
        }
    }
}

impl Action {
    /// The kind of fault that it is, where it is one.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Self::Strike(kind, _) => Some(kind),
            Self::ObserveBlind(_) => Some(Kind::Blind),
            Self::ActOnDying(_) => Some(Kind::Dying),
            Self::ActRefused(_) => Some(Kind::Refused),
            Self::Crash(_) => Some(Kind::Crash),
            Self::DeleteAllPods => Some(Kind::AllPods),
            Self::LoseStatus => Some(Kind::StatusLost),
            Self::Observe(_)
            | Self::Act(_)
            | Self::ActUnshown(_)
            | Self::Progress(_)
            | Self::CatchUp(_)
            | Self::Monitor
            | Self::Heal(_)
            | Self::NeverHeals(_)
            | Self::NextWish => None,
        }
    }

    /// Whether it uses up one of the faults that may happen: a crash may be free.
    pub fn is_fault(self, config: &Config) -> bool {
        self.kind().is_some_and(|kind| kind != Kind::Crash || config.kinds.contains(&Kind::Crash))
    }

    /// Whose act it is.
    fn operator(self) -> Option<usize> {
        match self {
            Self::Act(operator)
            | Self::ActUnshown(operator)
            | Self::ActOnDying(operator)
            | Self::ActRefused(operator) => Some(operator),
            Self::Observe(_)
            | Self::ObserveBlind(_)
            | Self::Crash(_)
            | Self::Progress(_)
            | Self::CatchUp(_)
            | Self::Monitor
            | Self::Heal(_)
            | Self::NeverHeals(_)
            | Self::NextWish
            | Self::Strike(..)
            | Self::DeleteAllPods
            | Self::LoseStatus => None,
        }
    }

    /// Whether the world is another afterwards, and not by our doing.
    fn excuses(self, config: &Config) -> bool {
        self.is_fault(config) || matches!(self, Self::NeverHeals(_))
    }
}

impl Model for Quorate {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.config.origin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() || state.over {
            return;
        }
        self.operators_may(state, actions);
        actions.push(Action::Monitor);
        for serial in state.serials() {
            actions.extend([Action::Progress(serial), Action::CatchUp(serial), Action::Heal(serial)]);
            if self.config.kinds.contains(&Kind::Gone) && state.seat(serial).node == Node::Cut {
                actions.push(Action::NeverHeals(serial));
            }
        }
        if usize::from(state.wish) + 1 < self.config.wishes.len() {
            actions.push(Action::NextWish);
        }
        if state.faults == 0 {
            return;
        }
        for kind in self.config.kinds.iter().copied().filter(|kind| kind.strikes_a_seat()) {
            actions.extend(state.serials().map(|serial| Action::Strike(kind, serial)));
        }
        if self.config.kinds.contains(&Kind::AllPods) {
            actions.push(Action::DeleteAllPods);
        }
        if self.config.kinds.contains(&Kind::StatusLost) {
            actions.push(Action::LoseStatus);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        if !self.do_it(&mut state, action) {
            return None;
        }
        state.faults -= u8::from(action.is_fault(&self.config));
        state.settle();
        state.tidy();
        while self.config.prompt && self.hurry(&mut state) {}
        overtake(last, &mut state, action.operator(), action.excuses(&self.config));
        // Two operators are alike: which of them holds which plan does not matter.
        state.operators.sort_by_cached_key(|operator| {
            let mut hasher = DefaultHasher::new();
            operator.hash(&mut hasher);
            hasher.finish()
        });
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(name(Broken::ExpectedSet), |_, s: &State| s.broken != Some(Broken::ExpectedSet)),
            Property::always(name(Broken::Quorum), |_, s: &State| s.broken != Some(Broken::Quorum)),
            Property::always(name(Broken::LiveVoter), |_, s: &State| s.broken != Some(Broken::LiveVoter)),
            Property::always(name(Broken::TwoPlaces), |_, s: &State| s.broken != Some(Broken::TwoPlaces)),
            Property::always(name(Broken::OtherVolume), |_, s: &State| s.broken != Some(Broken::OtherVolume)),
            Property::always(name(Broken::IdentityReused), |_, s: &State| s.broken != Some(Broken::IdentityReused)),
            Property::always(name(Broken::SeededTwice), |_, s: &State| s.broken != Some(Broken::SeededTwice)),
            Property::always(name(Broken::WriteLost), |_, s: &State| s.broken != Some(Broken::WriteLost)),
            Property::always(name(Broken::VolumeDeleted), |_, s: &State| s.broken != Some(Broken::VolumeDeleted)),
            Property::always(name(Broken::Promotion), |_, s: &State| s.broken != Some(Broken::Promotion)),
            Property::always(name(Broken::PausedWrite), |_, s: &State| s.broken != Some(Broken::PausedWrite)),
            Property::always(name(Broken::Evicted), |_, s: &State| s.broken != Some(Broken::Evicted)),
            Property::always(name(Broken::RunAway), |_, s: &State| s.broken != Some(Broken::RunAway)),
            Property::always(name(Broken::StoppedBesideDown), |_, s: &State| {
                s.broken != Some(Broken::StoppedBesideDown)
            }),
            Property::always(name(Broken::LeaderStopped), |_, s: &State| s.broken != Some(Broken::LeaderStopped)),
            Property::always(name(Broken::StoppedForGood), |_, s: &State| s.broken != Some(Broken::StoppedForGood)),
            Property::always(name(Broken::TwoMinors), |_, s: &State| s.broken != Some(Broken::TwoMinors)),
            Property::always(name(Broken::TooLow), |_, s: &State| s.broken != Some(Broken::TooLow)),
            Property::always(name(Broken::OldLog), |_, s: &State| s.broken != Some(Broken::OldLog)),
            Property::always(name(Broken::Unrestored), |_, s: &State| s.broken != Some(Broken::Unrestored)),
            Property::always(name(Broken::RestoredAgain), |_, s: &State| s.broken != Some(Broken::RestoredAgain)),
            Property::always(name(Broken::KnownToSome), |_, s: &State| s.broken != Some(Broken::KnownToSome)),
            Property::always(name(Broken::Unwritten), |_, s: &State| s.broken != Some(Broken::Unwritten)),
            Property::always(name(Broken::Untried), |_, s: &State| s.broken != Some(Broken::Untried)),
            Property::always(COMES_TO_REST, |m: &Self, s: &State| {
                s.broken.is_some() || m.calm.comes(&m.config, s, None).is_ok()
            }),
        ]
    }
}

/// Invariant 9.
pub const COMES_TO_REST: &str = "once faults stop, it comes to rest as wished";

/// What must always hold, in words.
pub fn name(broken: Broken) -> &'static str {
    match broken {
        Broken::ExpectedSet => "one membership call at a time, only from the expected set",
        Broken::Quorum => "no act of ours takes healthy voters below quorum",
        Broken::LiveVoter => "no live voter is removed while another is down",
        Broken::TwoPlaces => "no identity runs in two places",
        Broken::OtherVolume => "an identity is created and started on one volume only, and created there once",
        Broken::IdentityReused => "no identity is used again",
        Broken::SeededTwice => "a cluster is seeded at most once",
        Broken::WriteLost => "no acknowledged write is lost",
        Broken::VolumeDeleted => "data is deleted only after the removal and as the policy says",
        Broken::Promotion => "a learner is promoted only alive and caught up",
        Broken::PausedWrite => "nothing is written while paused",
        Broken::Evicted => "no eviction that the budget lets through costs quorum",
        Broken::StoppedBesideDown => "no live voter is stopped to be updated while another is not back",
        Broken::LeaderStopped => "a leader hands over before it is stopped to be updated",
        Broken::StoppedForGood => "no live voter is stopped to be updated whose node takes no new pod",
        Broken::TwoMinors => "no member is told to run what is two minors above the cluster",
        Broken::TooLow => "no member is told to run less than the cluster runs at",
        Broken::OldLog => "no member gets a log that its minor can't read",
        Broken::Untried => "no running member is told to run what was not tried on its node",
        Broken::Unrestored => "a cluster that is to begin with a backup begins with it",
        Broken::RestoredAgain => "nobody means to restore once a seed was chosen",
        Broken::KnownToSome => "no learner is added that a member does not admit when it applies that",
        Broken::Unwritten => "nobody waits for the vote of one that was removed",
        Broken::RunAway => "serials are not handed out without end",
    }
}
