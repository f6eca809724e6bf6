//! The schedule of a chaos run: a pure function of its seed. It keeps what a cluster can't be asked to take out of the
//! schedule; whether a moment is right for a fault is judged again when it is done.

use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::fault::{Change, Fault, Loss, Millis, Scope, Victims, Way};
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
            _ => true,
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
    after(version, Etcd::ALL.into_iter())
}

/// The version of the minor before, if there is one.
fn previous(version: &str) -> Option<&'static str> {
    after(version, Etcd::ALL.into_iter().rev())
}

/// The version that comes after this minor in such an order.
fn after(version: &str, order: impl Iterator<Item = Etcd>) -> Option<&'static str> {
    let minor = |version: &str| version.rsplit_once('.').map(|(minor, _)| minor.to_owned());
    let mut versions = order.map(Etcd::version);
    versions.by_ref().find(|known| minor(known) == minor(version))?;
    versions.next()
}

/// How long after the end of a fault the next of its scope may begin.
fn rest(scope: Scope) -> Duration {
    match scope {
        Scope::Members => Duration::ZERO,
        Scope::Operator | Scope::Api => Duration::from_secs(2),
        Scope::Nodes => Duration::from_secs(5),
        Scope::Spec => Duration::from_secs(8),
        Scope::Volumes => VOLUMES_FROM_SPEC,
    }
}

/// Whether two events leave each other the room that they need.
fn apart(one: &Event, other: &Event) -> bool {
    let needed = match (one.fault.scope(), other.fault.scope()) {
        (Scope::Members, Scope::Members) => return true,
        (Scope::Volumes, Scope::Spec) | (Scope::Spec, Scope::Volumes) => VOLUMES_FROM_SPEC,
        (one, other) if one == other => rest(one),
        (_, _) => return true,
    };
    other.begins() >= one.ends() + needed || one.begins() >= other.ends() + needed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const VERSION: &str = "3.6.16";

    #[test]
    fn three_minutes_have_most_kinds_of_faults() {
        for seed in 0..20 {
            let schedule = Schedule::generate(seed, Duration::from_mins(3), VERSION);
            let kinds: BTreeSet<_> = schedule.events.iter().map(|event| event.fault.name()).collect();
            assert!(kinds.len() >= 12, "seed {seed} has only {kinds:?}");
            assert!(schedule.events.len() >= 30, "seed {seed} has only {} faults", schedule.events.len());
        }
    }

    #[test]
    fn versions_go_up_by_one_minor() {
        let versions = ["3.5.20", "3.6.16", "3.7.3", "x"];
        assert_eq!(versions.map(next), [Some("3.6.16"), Some("3.7.3"), None, None]);
        assert_eq!(versions.map(previous), [None, Some("3.5.35"), Some("3.6.16"), None]);
    }

    #[test]
    fn a_seed_has_the_schedule_that_it_always_had() {
        let schedule = Schedule::generate(1, Duration::from_mins(3), VERSION);
        let told: Vec<String> = schedule.events.iter().map(|event| format!("{} {}", event.at, event.fault)).collect();
        assert_eq!((schedule.snapshot_count, told.len()), (2000, 53));
        assert_eq!(told[..2], ["4501 delete pods Follower(1) by force", "9270 cut operator for 2.1 s"]);
        assert_eq!(told[51..], ["175680 roll CpuMillis(14)", "179248 kill operators all"]);
    }

    #[test]
    fn a_run_that_stays_has_faults_of_all_other_kinds() {
        for version in Etcd::ALL.map(Etcd::version) {
            for seed in 0..20 {
                let schedule = Schedule::staying(seed, Duration::from_mins(3), version);
                let kinds: BTreeSet<_> = schedule.events.iter().map(|event| event.fault.name()).collect();
                assert!(schedule.stays && !schedule.events.iter().any(|event| event.fault.changes_version()));
                assert!(kinds.len() >= 12, "seed {seed} has only {kinds:?}");
            }
        }
    }

    #[test]
    fn most_runs_that_begin_with_the_last_minor_turn_back_from_the_one_below() {
        let turns = |seed| {
            let events = Schedule::generate(seed, Duration::from_mins(3), "3.7.3").events.into_iter();
            events.map(|event| event.fault).filter(Fault::changes_version).collect::<Vec<_>>()
        };
        let all: Vec<_> = (0..20).map(turns).collect();
        let down =
            |fault: &Fault| matches!(fault, Fault::TurnBack { to, back, .. } if to == "3.6.16" && back == "3.7.3");
        assert!(all.iter().flatten().all(down), "{all:?}");
        assert!(all.iter().filter(|turns| !turns.is_empty()).count() >= 15, "{all:?}");
    }

    #[test]
    fn an_hour_of_staying_has_faults_to_its_end() {
        for seed in 0..5 {
            let schedule = Schedule::staying(seed, Duration::from_hours(1), "3.5.35");
            let last_minutes = schedule.events.iter().filter(|event| event.begins() >= Duration::from_mins(55));
            assert!(last_minutes.count() >= 40, "seed {seed} runs out of faults");
        }
    }

    #[test]
    fn a_schedule_that_does_not_say_whether_it_stays_does_not() {
        let text = r#"{"seed":1,"length":2,"version":"3.6.16","snapshotCount":300,"events":[]}"#;
        assert!(!serde_json::from_str::<Schedule>(text).unwrap().stays);
    }

    #[test]
    fn volumes_are_lost_far_from_changes_of_the_spec() {
        let events = vec![
            Event { at: 60_000, fault: Fault::Scale { replicas: 5 } },
            Event { at: 70_000, fault: Fault::KillOperators { all: true } },
            Event { at: 100_000, fault: Fault::Hibernate { millis: 10_000 } },
        ];
        let schedule = Schedule { events, ..Schedule::generate(1, Duration::from_mins(3), VERSION) };
        let room = |millis| schedule.has_room_for_a_loss(Duration::from_millis(millis));
        assert!([0, 46_000, 80_000, 86_000, 130_000].into_iter().all(room));
        assert!(![46_001, 60_000, 79_999, 86_001, 105_000, 129_999].into_iter().any(room));
    }

    #[test]
    fn most_runs_that_can_go_up_do() {
        let upgrades = |version: &str| {
            let schedules = (0..20).map(|seed| Schedule::generate(seed, Duration::from_mins(3), version));
            let changed = |schedule: &Schedule| schedule.events.iter().any(|event| event.fault.changes_version());
            schedules.filter(changed).count()
        };
        assert!(upgrades("3.5.35") >= 15 && upgrades("3.6.16") >= 15);
    }

    #[test]
    fn another_seed_is_another_schedule() {
        let all: BTreeSet<String> = (0..50)
            .map(|seed| format!("{:?}", Schedule::generate(seed, Duration::from_mins(1), VERSION).events))
            .collect();
        assert_eq!(all.len(), 50);
    }

    #[test]
    fn a_schedule_of_some_events_ends_with_them() {
        let whole = Schedule::generate(7, Duration::from_mins(3), VERSION);
        let some = whole.with_only(whole.events[..2].to_vec());
        assert_eq!(some.lasts(), whole.events[..2].iter().map(Event::ends).max().unwrap());
        assert_eq!(whole.with_only(vec![]).lasts(), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_schedule_is_a_function_of_its_seed_and_survives_its_file(seed: u64, secs in 0_u64..600) {
            let schedule = Schedule::generate(seed, Duration::from_secs(secs), VERSION);
            prop_assert_eq!(&schedule, &Schedule::generate(seed, Duration::from_secs(secs), VERSION));
            let text = serde_json::to_string(&schedule).unwrap();
            prop_assert_eq!(serde_json::from_str::<Schedule>(&text).unwrap(), schedule);
        }

        #[test]
        fn a_schedule_asks_for_nothing_that_a_cluster_can_not_take(seed: u64) {
            let schedule = Schedule::generate(seed, Duration::from_mins(10), "3.5.35");
            let (mut size, mut version) = (FIRST_SIZE, schedule.version.clone());
            for (index, event) in schedule.events.iter().enumerate() {
                prop_assert!(event.ends() <= schedule.lasts());
                prop_assert!(index == 0 || schedule.events[index - 1].at <= event.at);
                prop_assert!(schedule.events[..index].iter().all(|earlier| apart(earlier, event)));
                match &event.fault {
                    Fault::Scale { replicas } => {
                        prop_assert!(SIZES.contains(replicas) && *replicas != size);
                        size = *replicas;
                    }
                    Fault::Upgrade { to } => {
                        prop_assert_eq!(next(&version), Some(to.as_str()));
                        version.clone_from(to);
                    }
                    Fault::TurnBack { to, back, .. } => {
                        prop_assert_eq!((next(&version), &version), (Some(to.as_str()), back));
                    }
                    Fault::LoseVolumes { victims, .. } => {
                        let members: Vec<String> = (0..size).map(|number| format!("db-{number}")).collect();
                        let lost = victims.of(&members, None).len();
                        prop_assert!(lost <= (members.len() - 1) / 2, "{} of {} volumes", lost, size);
                        let room = |secs| schedule.has_room_for_a_loss(event.begins() + Duration::from_secs(secs));
                        prop_assert!((0..=6).all(room), "no room for a loss at {} ms", event.at);
                    }
                    _ => (),
                }
            }
        }

        #[test]
        fn any_text_is_read_as_a_schedule_or_refused(text in ".{0,200}") {
            let _ = serde_json::from_str::<Schedule>(&text);
        }
    }
}
