//! What is to be checked: where a run starts, what is wished in turn, what may go wrong and how often.

use std::sync::Arc;

use quorate_statemachine::{
    Entry, Ledger, Life, Memory, Minor, Readiness, Retention, Role, Seeding, Serial, Standing, Storage, TemplateHash,
    Wish,
};

use crate::{
    faults::Kind,
    observe::{claim_uid, node_name},
    planted::Mistake,
    state::{
        Age, CLUSTER, Claim, Data, Member, Node, Operator, Pod, Process, Seat, Serials, Stage, Start, State, Ticket,
        Versions, id_of,
    },
    versions::release,
};

/// What volumes are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volumes {
    /// Disks of a node.
    Local,
    /// Disks that can be attached to any node.
    Network,
    /// emptyDirs.
    Ephemeral,
}

/// How an operator observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    AtOnce,
    /// Piece by piece, and the world moves on meanwhile: the object, then what belongs to it, then etcd.
    Piecemeal,
    /// As from watches: what belongs to the object first, then the object, and etcd with it. From that it does what carries
    /// no weight; for the rest it reads all anew, later, but for what was said at each pod.
    Lagging,
}

/// What is there when a run starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Only the object.
    Nothing,
    /// A cluster of so many voters, all well; the leader is the highest serial.
    Standing(u8),
    /// Claims of an earlier object of that name.
    OldClaims(u8),
}

/// One thing to check exhaustively.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    pub origin: Origin,
    /// In this order; the next one may come at any time.
    pub wishes: Vec<Wish>,
    pub volumes: Volumes,
    pub operators: usize,
    /// How many faults may happen in one run.
    pub faults: u8,
    /// Of these kinds.
    pub kinds: &'static [Kind],
    /// What Kubernetes and etcd do by themselves they do at once, except at seats that a fault has struck.
    pub prompt: bool,
    pub looks: Looks,
    /// The minor that the members of a standing cluster run.
    pub runs: u8,
    /// The minors whose etcd ends as soon as it is started, though its image passes its trial.
    pub crashes: &'static [u8],
    /// They do so only as this member.
    pub crashes_only_at: Option<u8>,
    /// The minor whose image fails its trial.
    pub fails_trial: Option<u8>,
    pub mistake: Option<Mistake>,
}

/// The minor that is run where nothing else is said.
pub const USUAL: u8 = 6;

/// A wish for so many voters.
pub fn voters(replicas: u8) -> Wish {
    Wish {
        life: Life::Wanted,
        replicas,
        template: TemplateHash(0),
        resources: TemplateHash(0),
        release: release(USUAL),
        stops: [5, 6, 7].into_iter().map(|minor| (Minor(u16::from(minor)), release(minor))).collect(),
        storage: Storage::Claims { on_delete: Retention::Delete, on_scale_down: Retention::Delete },
        quota: 2 << 30,
        origin: quorate_statemachine::Origin::Nothing,
        snapshot_first: false,
    }
}

impl Config {
    pub fn new(name: &'static str, origin: Origin, wishes: impl Into<Vec<Wish>>) -> Self {
        let wishes = wishes.into();
        Self {
            name,
            origin,
            wishes,
            volumes: Volumes::Local,
            operators: 1,
            faults: 0,
            kinds: &[],
            prompt: false,
            looks: Looks::AtOnce,
            runs: USUAL,
            crashes: &[],
            crashes_only_at: None,
            fails_trial: None,
            mistake: None,
        }
    }

    pub fn faults(self, faults: u8, kinds: &'static [Kind]) -> Self {
        Self { faults, kinds, ..self }
    }

    pub fn operators(self, operators: usize) -> Self {
        Self { operators, ..self }
    }

    pub fn on(self, volumes: Volumes) -> Self {
        let wishes = match volumes {
            Volumes::Local | Volumes::Network => self.wishes,
            Volumes::Ephemeral => {
                self.wishes.into_iter().map(|wish| Wish { storage: Storage::Ephemeral, ..wish }).collect()
            }
        };
        Self { wishes, volumes, ..self }
    }

    /// The cluster begins with a backup.
    pub fn restored(self) -> Self {
        let origin = quorate_statemachine::Origin::Backup(Readiness::Ready);
        Self { wishes: self.wishes.into_iter().map(|wish| Wish { origin, ..wish }).collect(), ..self }
    }

    pub fn restores(&self) -> bool {
        self.wishes.iter().any(|wish| wish.origin != quorate_statemachine::Origin::Nothing)
    }

    pub fn prompt(self) -> Self {
        Self { prompt: true, ..self }
    }

    pub fn piecemeal(self) -> Self {
        Self { looks: Looks::Piecemeal, ..self }
    }

    pub fn lagging(self) -> Self {
        Self { looks: Looks::Lagging, ..self }
    }

    /// A standing cluster runs this minor.
    pub fn running(self, runs: u8) -> Self {
        Self { runs, ..self }
    }

    pub fn crashing_on(self, minors: &'static [u8]) -> Self {
        Self { crashes: minors, ..self }
    }

    pub fn only_at(self, serial: u8) -> Self {
        Self { crashes_only_at: Some(serial), ..self }
    }

    /// Whether etcd of this minor ends as soon as it is started as this member.
    pub fn fails_to_run(&self, serial: u8, minor: u8) -> bool {
        self.crashes.contains(&minor) && self.crashes_only_at.is_none_or(|only| only == serial)
    }

    pub fn failing_trial_of(self, minor: u8) -> Self {
        Self { fails_trial: Some(minor), ..self }
    }

    pub fn with(self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self }
    }

    pub fn wish(&self, state: &State) -> &Wish {
        &self.wishes[usize::from(state.wish)]
    }

    /// The state that a run starts in.
    pub fn origin(&self) -> State {
        let (seats, memory) = match self.origin {
            Origin::Nothing => (Vec::new(), Memory::Blank),
            Origin::Standing(size) => (vec![self.standing_seat(); usize::from(size)], standing_memory(self, size)),
            Origin::OldClaims(count) => (vec![old_claim(); usize::from(count)], Memory::Blank),
        };
        let mut state = State {
            wish: 0,
            seats,
            leader: None,
            versions: Versions {
                cluster: if self.voters_at_first() > 0 { self.runs } else { 0 },
                ..Versions::default()
            },
            memory: Arc::new(memory),
            operators: vec![Operator::Idle; self.operators],
            budget: u8::try_from(self.voters_at_first()).unwrap_or(0).saturating_sub(1),
            faults: self.faults,
            slow: Serials::default(),
            over: false,
            broken: None,
        };
        state.settle();
        state.tidy();
        state
    }

    fn voters_at_first(&self) -> usize {
        match self.origin {
            Origin::Nothing | Origin::OldClaims(_) => 0,
            Origin::Standing(size) => usize::from(size),
        }
    }

    fn standing_seat(&self) -> Seat {
        let data = Data::Entries { marker: 0, acked: true };
        let claim = Claim { made: 0, ours: true, terminating: false, bound: true, data };
        let (claim, claims_made, scratch) = match self.volumes {
            Volumes::Local | Volumes::Network => (Some(claim), 1, Data::Empty),
            Volumes::Ephemeral => (None, 0, data),
        };
        let pod = Pod {
            made: 0,
            volume: 0,
            restores: false,
            stage: Stage::Placed,
            terminating: false,
            counted_on: false,
            age: Age::Old,
            ticket: Some(Ticket { start: Start::Resume, volume: 0, mark: None, age: Age::Old }),
            template: 0,
            release: self.runs,
            runs: self.runs,
            label: quorate_statemachine::RoleLabel::Voter,
            process: Process::Etcd,
            scratch,
        };
        Seat {
            claim,
            claims_made,
            pod: Some(pod),
            pods_made: u8::from(claim.is_none()),
            node: Node::Ready,
            node_made: 0,
            member: Some(Member { role: Role::Voter, started: true, matched: true }),
            banned: false,
            unwritten: false,
            marks: 0,
            create: Some(0),
            born: Some(0),
            ghost: false,
            leftover: false,
            old_log: self.runs == 5,
            old_memory: self.runs == 5,
            cordoned: false,
        }
    }
}

fn old_claim() -> Seat {
    let data = Data::Entries { marker: 0, acked: true };
    let claim = Claim { made: 0, ours: false, terminating: false, bound: true, data };
    Seat { claim: Some(claim), claims_made: 1, ..Seat::default() }
}

fn standing_memory(config: &Config, size: u8) -> Memory {
    let entry = |serial: u8| Entry {
        create: Some(match config.volumes {
            Volumes::Local | Volumes::Network => claim_uid(serial, 0),
            Volumes::Ephemeral => crate::observe::pod_uid(serial, 0),
        }),
        mark: None,
        node: Some(node_name(serial, 0)),
        standing: Standing::Voter(id_of(serial)),
        release: Some(release(config.runs)),
        former: None,
    };
    Memory::Ledger(Ledger {
        seeding: Seeding::Done(CLUSTER),
        next_serial: Serial(u32::from(size)),
        members: (0..size).map(|serial| (Serial(u32::from(serial)), entry(serial))).collect(),
        oldest_log: Some(Minor(u16::from(config.runs))),
        logs_cut: false,
        failed: None,
    })
}
