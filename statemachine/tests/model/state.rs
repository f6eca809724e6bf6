//! What is really there, as small as it can be told: seats with their claims, pods and processes, etcd's members, the
//! ledger and the operators. Only data and simple questions to it; nothing here acts or decides.

use std::{collections::BTreeMap, sync::Arc};

use quorate_statemachine::{ClusterId, Ledger, MemberId, Memory, Overall, Refusal, Role, Serial, Sight, Step};

/// The one cluster.
pub const CLUSTER: ClusterId = ClusterId(7);
/// No run needs more serials than this: a plan that hands out more runs away.
pub const SERIALS: u8 = 14;
/// The volume of a ticket that names none of this seat's.
pub const NO_VOLUME: u8 = u8::MAX;

const FIRST_ID: u64 = 100;

/// The id etcd gives the member of a serial. A serial is added once in its life, so one id is enough.
pub fn id_of(serial: u8) -> MemberId {
    MemberId(FIRST_ID + u64::from(serial))
}

/// The serial that an id belongs to.
pub fn serial_of(id: MemberId) -> Option<u8> {
    id.0.checked_sub(FIRST_ID).and_then(|serial| u8::try_from(serial).ok()).filter(|serial| *serial < SERIALS)
}

/// A set of serials, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Serials(pub u16);

impl Serials {
    pub fn with(self, serial: u8) -> Self {
        Self(self.0 | 1 << serial)
    }

    pub fn without(self, serial: u8) -> Self {
        Self(self.0 & !(1 << serial))
    }

    pub fn contains(self, serial: u8) -> bool {
        self.0 & (1 << serial) != 0
    }
}

impl FromIterator<u8> for Serials {
    fn from_iter<I: IntoIterator<Item = u8>>(serials: I) -> Self {
        serials.into_iter().fold(Self::default(), Self::with)
    }
}

/// What a volume holds. The marker names the volume it was written for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Data {
    #[default]
    Empty,
    /// A marker with the how-manieth mark that was made for this volume, by a launcher that waits.
    Marked { marker: u8, mark: u8 },
    /// The same, and a WAL without an entry.
    NoEntry { marker: u8, mark: u8 },
    /// A marker and a WAL with entries; `acked`: among them every write that was ever acknowledged.
    Entries { marker: u8, acked: bool },
    /// A marker, and half a backup.
    Half { marker: u8 },
    /// A marker and a whole backup, on which etcd was not started yet.
    Restored { marker: u8 },
    /// Something of somebody else.
    Foreign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The how-manieth claim of this name: its UID.
    pub made: u8,
    /// Made for this very object.
    pub ours: bool,
    pub terminating: bool,
    /// Bound to a node's disk, or to a disk that was attached once.
    pub bound: bool,
    pub data: Data,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    Unplaced,
    Placed,
    Finished,
}

/// Whether the patience that a plan may have is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Age {
    New,
    Old,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Process {
    /// No container was started yet, or none will be again.
    Off,
    /// A backup is being restored, before the launcher.
    Restoring,
    /// The launcher waits for a ticket.
    Waiting,
    Refused(Refusal),
    Etcd,
    /// The container ended; the kubelet will start it again.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    Seed,
    /// A seed, on what was restored.
    Restored,
    Join(Serials),
    Resume,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub start: Start,
    /// The volume it is for.
    pub volume: u8,
    /// What that has to be marked with.
    pub mark: Option<u8>,
    pub age: Age,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// The how-manieth pod of this name; always zero where volumes are claims, for there nothing asks for it.
    pub made: u8,
    /// The volume it was made for.
    pub volume: u8,
    /// Before its launcher it restores a backup.
    pub restores: bool,
    pub stage: Stage,
    pub terminating: bool,
    /// We stop a voter so that it comes back, and the disruption budget still counts its pod.
    pub counted_on: bool,
    pub age: Age,
    pub ticket: Option<Ticket>,
    pub template: u8,
    /// The minor that it is told to run.
    pub release: u8,
    /// The minor that its container was made of.
    pub runs: u8,
    pub label: quorate_statemachine::RoleLabel,
    pub process: Process,
    /// Its emptyDir, with ephemeral storage.
    pub scratch: Data,
}

impl Pod {
    /// What the API server shows of it: what "unchanged since it was observed" speaks of. Readiness is left out, so
    /// that the guard refuses less here than in truth.
    pub fn face(&self) -> Self {
        let ticket = self.ticket.map(|ticket| Ticket { age: Age::New, ..ticket });
        // That the first container runs is written to the pod; what runs in it is not.
        let process = if self.process == Process::Off { Process::Off } else { Process::Waiting };
        let (age, runs, scratch) = (Age::New, 0, Data::Empty);
        Self { made: 0, counted_on: false, age, process, runs, scratch, ticket, ..*self }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Node {
    #[default]
    Ready,
    /// The control plane does not hear of it; its processes go on.
    Cut,
    Gone,
}

/// A line of etcd's member list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub role: Role,
    pub started: bool,
    /// Its match index came near the leader's once; etcd promotes by nothing else.
    pub matched: bool,
}

/// All that belongs to one serial.
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was or was not")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seat {
    pub claim: Option<Claim>,
    pub claims_made: u8,
    pub pod: Option<Pod>,
    pub pods_made: u8,
    /// The node of its pod, or of its volume where disks are local.
    pub node: Node,
    pub node_made: u8,
    pub member: Option<Member>,
    /// It was removed after its log had begun: that log carries an id that is banned, this identity is spent. (One that
    /// was never started has left no trace anywhere, and may as well be added again.)
    pub banned: bool,
    /// It was removed as a voter, which those who stay hold in memory only: etcd writes down what it committed last with the next
    /// entry of its log (etcd-io/etcd#10563).
    pub unwritten: bool,
    /// How many marks were made for its volume.
    pub marks: u8,
    /// The volume that the first `create` was issued for.
    pub create: Option<u8>,
    /// The volume on which etcd was first started under this identity.
    pub born: Option<u8>,
    /// Its pod was deleted by force while its process goes on behind a cut link.
    pub ghost: bool,
    /// Its pod was deleted by force, and its process goes on until the kubelet has heard of that.
    pub leftover: bool,
    /// Its log has entries in the form of 3.5, behind which no raft snapshot was taken.
    pub old_log: bool,
    /// The same of the log that its process holds in memory, and sends to a newcomer.
    pub old_memory: bool,
    /// No pod is placed on its node any more, until somebody takes that back.
    pub cordoned: bool,
}

impl Seat {
    /// What is on its volume, if it has one.
    pub fn data(&self) -> Option<Data> {
        self.claim.map(|claim| claim.data).or_else(|| self.pod.map(|pod| pod.scratch))
    }

    /// etcd runs here and can be reached, if only by its peers.
    pub fn alive(&self) -> bool {
        self.answers() || (self.node == Node::Ready && self.leftover)
    }

    /// etcd runs in its pod and can be reached.
    pub fn answers(&self) -> bool {
        self.node == Node::Ready && self.pod.is_some_and(|pod| pod.process == Process::Etcd)
    }

    /// It answers, and nobody has asked it to go.
    pub fn steady(&self) -> bool {
        self.answers() && self.pod.is_some_and(|pod| !pod.terminating)
    }

    /// Nobody has asked it to go, nor told it to run something else: it is not about to end.
    pub fn stays(&self) -> bool {
        self.steady() && self.pod.is_some_and(|pod| pod.runs == pod.release)
    }

    pub fn is(&self, role: Role) -> bool {
        self.member.is_some_and(|member| member.role == role)
    }

    pub fn acked(&self) -> bool {
        matches!(self.data(), Some(Data::Entries { acked: true, .. }))
    }
}

/// A step that an operator still means to take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub step: Step,
    /// What its guard speaks of has changed since the observation.
    pub stale: bool,
    /// The other voters, where it stops a voter that served: all of them have to serve when it is done.
    pub others: Option<Serials>,
}

/// A plan being acted on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intent {
    /// To be written first.
    pub ledger: Option<Arc<Ledger>>,
    /// The object was written since the observation: the compare-and-swap will fail.
    pub outrun: bool,
    /// A fault or a new wish came since the observation: it can't be blamed on us that the world is another.
    pub excused: bool,
    /// The wish it was made for.
    pub wish: u8,
    pub budget: Option<u8>,
    pub steps: Vec<Held>,
    /// Pods, claims and nodes as they were when it was made, where watches lag.
    pub objects: Option<Vec<Seat>>,
}

/// What an operator has read so far that does not observe all at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Glimpse {
    /// The ledger and which wish it is, once the object was read.
    pub object: Option<(Arc<Memory>, u8)>,
    /// Pods, claims and nodes, once they were read.
    pub objects: Option<Vec<Seat>>,
    /// What was said before it began to look again by quorum reads.
    pub said: Option<Said>,
    /// Whose pods are those that could be asked when they were first read.
    pub still: Serials,
    /// Whose pods have changed since they were read.
    pub touched: Serials,
    /// The object was written since it was read.
    pub outrun: bool,
    /// A fault or a new wish came since.
    pub excused: bool,
}

/// What etcd and the launchers said at a first look, which a second one goes by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Said {
    pub sights: BTreeMap<Serial, Sight>,
    /// Somebody gave a member list.
    pub listed: bool,
    pub leader: Option<MemberId>,
    pub overall: Overall,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    Idle,
    Looking(Arc<Glimpse>),
    Acting(Arc<Intent>),
}

/// What etcd as a whole holds of versions, and what was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Versions {
    /// The minor that the cluster runs at; zero before there is one.
    pub cluster: u8,
    /// The minor that it may be taken down to.
    pub downgrade: Option<u8>,
    /// For whom a trial of a minor is there, which has ended: for 3.5, 3.6 and 3.7.
    pub tried: [Serials; 3],
    /// The same with those whose trial is gone, for as long as an operator may mean to switch by it: one that looked while the
    /// member was away ends it meanwhile.
    pub proved: [Serials; 3],
}

/// Which property was broken by the last transition. A state in which one is broken has no successors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Broken {
    ExpectedSet,
    Quorum,
    LiveVoter,
    TwoPlaces,
    OtherVolume,
    IdentityReused,
    SeededTwice,
    WriteLost,
    VolumeDeleted,
    Promotion,
    PausedWrite,
    Evicted,
    RunAway,
    StoppedBesideDown,
    LeaderStopped,
    StoppedForGood,
    TwoMinors,
    TooLow,
    OldLog,
    Untried,
    Unrestored,
    RestoredAgain,
    KnownToSome,
    Unwritten,
}

/// Everything that is really there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Which of the configuration's wishes is in force.
    pub wish: u8,
    pub seats: Vec<Seat>,
    pub leader: Option<u8>,
    pub versions: Versions,
    pub memory: Arc<Memory>,
    pub operators: Vec<Operator>,
    /// The disruption budget's `minAvailable`.
    pub budget: u8,
    /// How many faults may still happen.
    pub faults: u8,
    /// With a prompt world: the seats that a fault has struck, which go at their own pace from then on.
    pub slow: Serials,
    /// The finalizer was released: the object is no more.
    pub over: bool,
    pub broken: Option<Broken>,
}

impl State {
    pub fn seat(&self, serial: u8) -> Seat {
        self.seats.get(usize::from(serial)).copied().unwrap_or_default()
    }

    /// The seat of a serial, made if there was none.
    pub fn seat_mut(&mut self, serial: u8) -> &mut Seat {
        let index = usize::from(serial);
        if self.seats.len() <= index {
            self.seats.resize(index + 1, Seat::default());
        }
        &mut self.seats[index]
    }

    pub fn serials(&self) -> std::ops::Range<u8> {
        0..u8::try_from(self.seats.len()).unwrap_or(SERIALS)
    }

    pub fn members(&self) -> Serials {
        self.serials().filter(|serial| self.seat(*serial).member.is_some()).collect()
    }

    pub fn voters(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is(Role::Voter)).count()
    }

    pub fn learners(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is(Role::Learner)).count()
    }

    pub fn alive_voters(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is(Role::Voter) && seat.alive()).count()
    }

    pub fn steady_voters(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is(Role::Voter) && seat.steady()).count()
    }

    pub fn staying_voters(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is(Role::Voter) && seat.stays()).count()
    }

    /// Enough voters run and reach each other.
    pub fn has_quorum(&self) -> bool {
        self.voters() > 0 && self.alive_voters() >= quorum(self.voters())
    }

    /// All of these run, know a leader and are not asked to go.
    pub fn all_serve(&self, voters: Serials) -> bool {
        let serves = |serial: u8| !voters.contains(serial) || self.seat(serial).steady();
        self.has_quorum() && (0..SERIALS).all(serves)
    }

    pub fn break_with(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }
}

pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}
