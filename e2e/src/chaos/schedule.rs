//! The schedule of a chaos run: a pure function of its seed. It keeps what a cluster can't be asked to take out of the
//! schedule; whether a moment is right for a fault is judged again when it is done.

use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::fault::{Change, Fault, Loss, Millis, Scope, Victims, Way, minor};
use crate::tools::Etcd;

/// The shortest and longest time between the beginnings of two faults: often enough that they overlap, seldom enough
/// that the cluster gets somewhere in between.
const GAP: (Millis, Millis) = (1500, 6000);
/// How long processes and networks are away: up to some election timeouts (1 s), and beyond the operator's patience.
const SHORT: (Millis, Millis) = (500, 9000);
/// How long a node is away: its grace is 10 s here, so that both sides of it are met.
const NODE_AWAY: (Millis, Millis) = (4000, 18_000);
/// How long the API server is away.
const API_AWAY: (Millis, Millis) = (500, 7000);
/// How long a cluster sleeps once it is told to: long enough that most are asleep, some on their way.
const ASLEEP: (Millis, Millis) = (2000, 12_000);
/// How long another version is wanted before the one before is wanted again: from the first trial of an image to the end
/// of a roll that nothing disturbs.
const TURNS_BACK: (Millis, Millis) = (2000, 20_000);
/// The sizes that users ask for; one more would not fit two processors.
const SIZES: [u8; 3] = [1, 3, 5];
/// The raft snapshot interval, in entries: from "each learner joins by snapshot" to the default.
const SNAPSHOT_COUNTS: [u32; 3] = [300, 2000, 10_000];
/// How many nodes the local cluster has.
const NODES: u8 = 3;
/// How many members a run begins with: scaling goes on from there.
pub const FIRST_SIZE: u8 = 3;
/// The time after a change of volumes or of the size within which the other may not change: a member lost in the very
/// moment in which another is removed is more than three can take, whoever operates them.
const VOLUMES_FROM_SPEC: Duration = Duration::from_secs(20);
/// The time after a loss of volumes in which the operator sees it: until then neither may the spec change, nor more be
/// lost.
pub const LOSS_SEEN_WITHIN: Duration = Duration::from_secs(14);

/// What is to be done, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schedule {
    /// The seed it was made from; also that of the clients.
    pub seed: u64,
    /// For how long faults are made, in milliseconds.
    pub length: Millis,
    /// The version of etcd.
    pub version: String,
    /// Whether etcd stays at its minor version: no fault that changes it is dealt.
    #[serde(default)]
    pub stays: bool,
    /// `spec.etcd.snapshotCount` at the start.
    pub snapshot_count: u32,
    /// The faults, in their order.
    pub events: Vec<Event>,
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since the faults began.
    pub at: Millis,
    /// What is done.
    #[serde(flatten)]
    pub fault: Fault,
}

impl Event {
    fn begins(&self) -> Duration {
        Duration::from_millis(self.at.into())
    }

    /// When it is over.
    pub fn ends(&self) -> Duration {
        self.begins() + self.fault.lasts()
    }
}

/// A kind of fault, to be drawn. Every kind is dealt before any comes again, so that a short run has most of them.
#[derive(Clone, Copy, Debug)]
enum Card {
    KillOne,
    KillMany,
    DeleteOne,
    DeleteMany,
    LoseVolumes,
    Pause,
    CutMember,
    CutNode,
    CutNodeFromApi,
    StopNode,
    KillOperator,
    KillOperators,
    PauseOperator,
    CutOperator,
    StopApi,
    PauseApi,
    Scale,
    Roll,
    Hibernate,
    Upgrade,
    TurnBack,
}

impl Card {
    fn changes_version(self) -> bool {
        matches!(self, Self::Upgrade | Self::TurnBack)
    }
}

/// The deck. Kinds that come in many forms are in it more than once.
const DECK: [Card; 26] = [
    Card::KillOne,
    Card::KillMany,
    Card::DeleteOne,
    Card::DeleteMany,
    Card::LoseVolumes,
    Card::LoseVolumes,
    Card::Pause,
    Card::Pause,
    Card::CutMember,
    Card::CutMember,
    Card::CutMember,
    Card::CutNode,
    Card::CutNodeFromApi,
    Card::StopNode,
    Card::KillOperator,
    Card::KillOperators,
    Card::PauseOperator,
    Card::CutOperator,
    Card::StopApi,
    Card::PauseApi,
    Card::Scale,
    Card::Scale,
    Card::Roll,
    Card::Hibernate,
    Card::Upgrade,
    Card::TurnBack,
];

/// Where etcd's minor version goes meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Up, as its upgrades are dealt.
    Up,
    /// Nowhere.
    Stay,
    /// From the last minor down to the first.
    Down,
}

/// What the generator remembers.
struct Dealer {
    rng: Rng,
    deck: Vec<Card>,
    size: u8,
    version: String,
    stays: bool,
    /// It begins with the last minor, so that its turns back go down first. A run that gets there later has none there:
    /// its seed keeps the schedule that it always had.
    begins_last: bool,
    events: Vec<Event>,
}

impl Schedule {
    /// The schedule of this seed: faults over this time, on this version of etcd.
    pub fn generate(seed: u64, length: Duration, version: &str) -> Self {
        Self::dealt(seed, length, version, false)
    }

    /// One in which etcd stays at its minor version.
    pub fn staying(seed: u64, length: Duration, version: &str) -> Self {
        Self::dealt(seed, length, version, true)
    }

    /// One that begins with the last minor version and goes down to the first, minor by minor, early enough that the faults after
    /// each wish meet all of the way. What a change of the version leaves no room for is left out.
    pub fn going_down(seed: u64, length: Duration) -> Self {
        let [first, between, last] = Etcd::SUPPORTED.map(Etcd::version);
        let mut schedule = Self { stays: false, ..Self::staying(seed, length, last) };
        for (part, to) in [(6, between), (2, first)] {
            let step = Event { at: schedule.length / part, fault: Fault::Upgrade { to: to.to_owned() } };
            schedule.events.retain(|event| apart(event, &step));
            let place = schedule.events.partition_point(|event| event.at <= step.at);
            schedule.events.insert(place, step);
        }
        schedule
    }

    fn dealt(seed: u64, length: Duration, version: &str, stays: bool) -> Self {
        let mut dealer = Dealer {
            rng: Rng::with_seed(seed),
            deck: Vec::new(),
            size: FIRST_SIZE,
            version: version.to_owned(),
            stays,
            begins_last: next(version).is_none(),
            events: Vec::new(),
        };
        let snapshot_count = dealer.choose(&SNAPSHOT_COUNTS);
        let length = Millis::try_from(length.as_millis()).unwrap_or(Millis::MAX);
        let mut at = dealer.between(GAP);
        while at < length {
            dealer.deal(at, length);
            at = at.saturating_add(dealer.between(GAP));
        }
        Self { seed, length, version: version.to_owned(), stays, snapshot_count, events: dealer.events }
    }

    /// How long its faults go on.
    pub fn lasts(&self) -> Duration {
        Duration::from_millis(self.length.into())
    }

    /// Whether volumes may be lost at this time, as far as the spec goes: its last change had time to settle, and the
    /// operator sees the loss before the next.
    pub fn has_room_for_a_loss(&self, at: Duration) -> bool {
        let mut changes = self.events.iter().filter(|event| event.fault.scope() == Scope::Spec);
        changes.all(|change| change.begins() >= at + LOSS_SEEN_WITHIN || at >= change.ends() + VOLUMES_FROM_SPEC)
    }

    /// The same with these events only, over as soon as the last of them is.
    pub fn with_only(&self, events: Vec<Event>) -> Self {
        let end = events.iter().map(Event::ends).max().unwrap_or_default();
        let length = Millis::try_from(end.as_millis()).unwrap_or(Millis::MAX).min(self.length);
        Self { length, events, ..self.clone() }
    }
}

impl Dealer {
    fn between(&mut self, (least, most): (Millis, Millis)) -> Millis {
        self.rng.u32(least..=most)
    }

    fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())]
    }

    /// Deals the next card that fits this moment. If none of the deck does, the next deck is begun, and what is left of
    /// this one waits; none, if nothing fits at all.
    fn deal(&mut self, at: Millis, length: Millis) {
        if self.deal_from_deck(at, length) {
            return;
        }
        // Those that can't be dealt any more would pile up until no other deck is begun.
        let goes_up = !self.stays && next(&self.version).is_some();
        let turns_back = !self.stays && self.detour().is_some();
        self.deck.retain(|card| match card {
            Card::Upgrade => goes_up,
            Card::TurnBack => turns_back,
            Card::KillOne
            | Card::KillMany
            | Card::DeleteOne
            | Card::DeleteMany
            | Card::LoseVolumes
            | Card::Pause
            | Card::CutMember
            | Card::CutNode
            | Card::CutNodeFromApi
            | Card::StopNode
            | Card::KillOperator
            | Card::KillOperators
            | Card::PauseOperator
            | Card::CutOperator
            | Card::StopApi
            | Card::PauseApi
            | Card::Scale
            | Card::Roll
            | Card::Hibernate => true,
        });
        if self.deck.len() < DECK.len() {
            let mut next = DECK.to_vec();
            self.rng.shuffle(&mut next);
            next.retain(|card| !(self.stays && card.changes_version()));
            // Cards are dealt from the end: what is left comes first when its time has come.
            next.append(&mut self.deck);
            self.deck = next;
            self.deal_from_deck(at, length);
        }
    }

    fn deal_from_deck(&mut self, at: Millis, length: Millis) -> bool {
        for index in (0..self.deck.len()).rev() {
            let Some(fault) = self.fault(self.deck[index]) else { continue };
            let event = Event { at, fault };
            if event.ends() <= Duration::from_millis(length.into()) && self.fits(&event) {
                self.deck.remove(index);
                if let Fault::Scale { replicas } = event.fault {
                    self.size = replicas;
                }
                if let Fault::Upgrade { to } = &event.fault {
                    self.version.clone_from(to);
                }
                self.events.push(event);
                return true;
            }
        }
        false
    }

    fn fits(&self, event: &Event) -> bool {
        self.events.iter().all(|earlier| apart(earlier, event))
    }

    fn fault(&mut self, card: Card) -> Option<Fault> {
        Some(match card {
            Card::KillOne => Fault::KillProcesses { victims: self.one() },
            Card::KillMany => Fault::KillProcesses { victims: self.many() },
            Card::DeleteOne => Fault::DeletePods { victims: self.one(), grace: self.rng.bool() },
            Card::DeleteMany => Fault::DeletePods { victims: self.many(), grace: self.rng.bool() },
            Card::LoseVolumes => self.loss()?,
            Card::Pause => {
                let victims = if self.rng.u8(..4) == 0 { self.many() } else { self.one() };
                Fault::PauseMembers { victims, millis: self.between(SHORT) }
            }
            Card::CutMember => {
                let (victims, way) = (self.one(), self.choose(&[Way::Both, Way::In, Way::Out]));
                Fault::CutMember { victims, way, millis: self.between(SHORT) }
            }
            Card::CutNode => Fault::CutNode { node: self.node(), millis: self.between(NODE_AWAY) },
            Card::CutNodeFromApi => Fault::CutNodeFromApi { node: self.node(), millis: self.between(NODE_AWAY) },
            Card::StopNode => Fault::StopNode { node: self.node(), millis: self.between(NODE_AWAY) },
            Card::KillOperator => Fault::KillOperators { all: false },
            Card::KillOperators => Fault::KillOperators { all: true },
            Card::PauseOperator => Fault::PauseOperator { millis: self.between(NODE_AWAY) },
            Card::CutOperator => Fault::CutOperator { millis: self.between(SHORT) },
            Card::StopApi => Fault::StopApi { millis: self.between(API_AWAY) },
            Card::PauseApi => Fault::PauseApi { millis: self.between(API_AWAY) },
            Card::Scale => {
                let others: Vec<u8> = SIZES.into_iter().filter(|size| *size != self.size).collect();
                Fault::Scale { replicas: self.choose(&others) }
            }
            Card::Roll => Fault::Roll { change: self.change() },
            Card::Hibernate => Fault::Hibernate { millis: self.between(ASLEEP) },
            Card::Upgrade => Fault::Upgrade { to: next(&self.version)?.to_owned() },
            Card::TurnBack => {
                let to = self.detour()?.to_owned();
                Fault::TurnBack { to, back: self.version.clone(), millis: self.between(TURNS_BACK) }
            }
        })
    }

    /// The version that is wished for a while before a turn back.
    fn detour(&self) -> Option<&'static str> {
        if self.begins_last { previous(&self.version) } else { next(&self.version) }
    }

    fn one(&mut self) -> Victims {
        if self.rng.bool() { Victims::Leader } else { Victims::Follower(self.rng.u8(..8)) }
    }

    fn many(&mut self) -> Victims {
        if self.rng.bool() { Victims::Two(self.rng.u8(..8)) } else { Victims::All }
    }

    /// A minority of the volumes; none of one.
    fn loss(&mut self) -> Option<Fault> {
        let victims = match self.size {
            0..3 => return None,
            3..5 => self.one(),
            5.. => {
                if self.rng.bool() {
                    Victims::Two(self.rng.u8(..8))
                } else {
                    self.one()
                }
            }
        };
        Some(Fault::LoseVolumes { victims, how: self.choose(&[Loss::Deleted, Loss::Deleted, Loss::Emptied]) })
    }

    fn node(&mut self) -> u8 {
        self.rng.u8(1..=NODES)
    }

    fn change(&mut self) -> Change {
        if self.rng.bool() {
            Change::SnapshotCount(self.rng.u32(200..=10_000))
        } else {
            Change::CpuMillis(self.rng.u32(5..=50))
        }
    }
}

/// The version of the next minor, if there is one.
fn next(version: &str) -> Option<&'static str> {
    after(version, Etcd::SUPPORTED.into_iter())
}

/// The version of the minor before, if there is one.
fn previous(version: &str) -> Option<&'static str> {
    after(version, Etcd::SUPPORTED.into_iter().rev())
}

/// The version that comes after this minor in such an order.
fn after(version: &str, order: impl Iterator<Item = Etcd>) -> Option<&'static str> {
    let mut versions = order.map(Etcd::version);
    versions.by_ref().find(|known| minor(known) == minor(version))?;
    versions.next()
}

/// How long after the end of a fault of one scope one of the other may begin. None: they may last at the same time.
fn rest(one: Scope, other: Scope) -> Option<Duration> {
    match one {
        Scope::Members => None,
        Scope::Operator | Scope::Api => (other == one).then_some(Duration::from_secs(2)),
        Scope::Nodes => (other == one).then_some(Duration::from_secs(5)),
        Scope::Spec if other == Scope::Volumes => Some(VOLUMES_FROM_SPEC),
        Scope::Spec => (other == one).then_some(Duration::from_secs(8)),
        Scope::Volumes => [Scope::Volumes, Scope::Spec].contains(&other).then_some(VOLUMES_FROM_SPEC),
    }
}

/// Whether two events leave each other the room that they need.
fn apart(one: &Event, other: &Event) -> bool {
    let Some(needed) = rest(one.fault.scope(), other.fault.scope()) else { return true };
    other.begins() >= one.ends() + needed || one.begins() >= other.ends() + needed
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
