//! From what is really there to what an operator sees of it: a `World`. It may see less than there is, never more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use quorate_statemachine::{
    Alive, Claim, Freshness, Home, Link, Listed, Mark, MemberId, MemberList, Membership, Memory, Millis, Minor,
    NodeName, NodeSight, Overall, Pod, PodStage, Resize, Restore, Seat, Serial, Sight, Start, TemplateHash, Ticket,
    Trouble, Uid, World,
};

use crate::state;
use crate::{
    config::{Config, Volumes},
    kubelet,
    state::{Age, CLUSTER, Data, Node, Process, Serials, Stage, State, id_of},
    versions::release,
};

/// Far from zero, so that "long ago" fits.
pub const NOW: Millis = Millis(1_000_000_000);
/// Longer than any patience a plan has.
const LONG: u64 = 3_600_000;
/// The raft index of the last write; what is behind is a thousand entries behind.
const COMMITTED: u64 = 5_000;
const BEHIND: u64 = 4_000;

/// How much an operator gets to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Eyes {
    Open,
    /// No etcd and no launcher answers in time.
    Blind,
}

pub fn claim_uid(serial: u8, made: u8) -> Uid {
    Uid::new(&format!("claim-{serial}.{made}"))
}

pub fn pod_uid(serial: u8, made: u8) -> Uid {
    Uid::new(&format!("pod-{serial}.{made}"))
}

pub fn node_name(serial: u8, made: u8) -> NodeName {
    NodeName::new(&format!("node-{serial}.{made}"))
}

/// The how-manieth object of its name a UID speaks of, if it is this serial's.
pub fn made_of(uid: &Uid, serial: u8) -> Option<u8> {
    let (name, made) = uid.as_str().split_once('.')?;
    let (_, of) = name.split_once('-')?;
    (of.parse() == Ok(serial)).then(|| made.parse().ok())?
}

/// How the how-manieth mark of a volume reads.
fn mark(number: u8) -> Mark {
    Mark::new(&number.to_string())
}

/// The how-manieth mark this is.
pub fn made_as(mark: &Mark) -> Option<u8> {
    mark.as_str().parse().ok()
}

pub fn small(serial: Serial) -> u8 {
    u8::try_from(serial.0).unwrap_or(u8::MAX)
}

pub fn ids(serials: Serials) -> impl Iterator<Item = MemberId> {
    (0..state::SERIALS).filter(move |serial| serials.contains(*serial)).map(id_of)
}

/// The world as an operator sees it that has read the object and what belongs to it when things were as in `state`, and
/// asks etcd and the launchers now.
pub fn look(config: &Config, state: &State, truth: &State, eyes: Eyes, freshness: Freshness) -> World {
    let seen = |serial: u8| {
        let seat = state.seat(serial);
        (seat.pod.is_some() || seat.claim.is_some())
            .then(|| (Serial(u32::from(serial)), see(config, state, truth, serial, eyes)))
    };
    World {
        now: NOW,
        freshness,
        wish: config.wish(state).clone(),
        memory: Memory::clone(&state.memory),
        seats: state.serials().filter_map(seen).collect(),
        nodes: nodes(config, state),
        cordoned: cordoned(state),
        overall: match eyes {
            Eyes::Open => truth.overall(),
            Eyes::Blind => Overall::Unknown,
        },
        trials: truth.trials(config, config.wish(state).template),
        snapshots: BTreeMap::new(),
        membership: match eyes {
            Eyes::Open if truth.has_quorum() => Membership::Known(list(truth)),
            Eyes::Open | Eyes::Blind => Membership::Unknown,
        },
    }
}

fn see(config: &Config, state: &State, truth: &State, serial: u8, eyes: Eyes) -> Seat {
    let seat = state.seat(serial);
    let node = || Home::Node(node_name(serial, seat.node_made));
    let claim = seat.claim.map(|claim| Claim {
        uid: claim_uid(serial, claim.made),
        ours: claim.ours,
        terminating: claim.terminating,
        home: kubelet::home(config.volumes, claim, node),
    });
    let pod = seat.pod.map(|pod| {
        let sight = match (eyes, truth.seat(serial)) {
            (Eyes::Open, state::Seat { node: Node::Ready, pod: Some(now), .. }) => sight(truth, serial, now.process),
            (Eyes::Open | Eyes::Blind, _) => Sight::Unknown,
        };
        see_pod(config, state, serial, pod, sight)
    });
    Seat { pod, claim }
}

fn see_pod(config: &Config, state: &State, serial: u8, pod: state::Pod, sight: Sight) -> Pod {
    let seat = state.seat(serial);
    let volume = |made| match config.volumes {
        Volumes::Local | Volumes::Network => claim_uid(serial, made),
        Volumes::Ephemeral => pod_uid(serial, made),
    };
    let ticket = pod.ticket.map(|ticket| Ticket {
        start: match ticket.start {
            state::Start::Seed | state::Start::Restored => Start::Seed,
            state::Start::Join(known) => Start::Join(ids(known).collect()),
            state::Start::Resume => Start::Resume,
        },
        volume: volume(ticket.volume),
        mark: ticket.mark.map(mark),
        version: Some(release(pod.release).version),
    });
    Pod {
        uid: pod_uid(serial, pod.made),
        created: since(pod.age),
        node: (pod.stage != Stage::Unplaced).then(|| node_name(serial, seat.node_made)),
        stage: match pod.stage {
            Stage::Unplaced => PodStage::Pending,
            Stage::Placed if matches!(pod.process, Process::Off | Process::Restoring) => PodStage::Pending,
            Stage::Placed => PodStage::Running,
            Stage::Finished => PodStage::Finished,
        },
        terminating: pod.terminating,
        trouble: match (pod.stage, pod.process) {
            (Stage::Unplaced, _) if pod.age == Age::Old => Some(Trouble::Unschedulable),
            (Stage::Placed, Process::Dead) if config.fails_to_run(serial, pod.runs) => Some(Trouble::ContainerFailing),
            (Stage::Placed, Process::Dead) => Some(Trouble::ContainerKilled),
            (Stage::Unplaced | Stage::Placed | Stage::Finished, _) => None,
        },
        volume: volume(pod.volume),
        restores: pod.restores,
        ticket,
        ticket_since: pod.ticket.map_or(Millis(0), |ticket| since(ticket.age)),
        template: TemplateHash(u64::from(pod.template)),
        resources: TemplateHash(0),
        resize: Resize::Settled,
        release: Some(release(pod.release)),
        switching: pod.runs != pod.release,
        label: pod.label,
        ready: seat.answers() && state.has_quorum() && seat.member.is_some(),
        sight,
        heard: since(pod.age),
    }
}

fn since(age: Age) -> Millis {
    match age {
        Age::New => NOW,
        Age::Old => Millis(NOW.0 - LONG),
    }
}

fn sight(state: &State, serial: u8, process: Process) -> Sight {
    let seat = state.seat(serial);
    match process {
        Process::Off | Process::Dead => Sight::Unknown,
        Process::Restoring => Sight::Restoring(Restore::UnderWay),
        Process::Waiting => Sight::Waiting(marked(seat).map(mark)),
        Process::Refused(refusal) => Sight::Refused(refusal),
        Process::Etcd => Sight::Etcd(Alive {
            seen: NOW,
            process: Millis(NOW.0 - LONG),
            has_leader: state.has_quorum() && seat.member.is_some(),
            leads: state.leader == Some(serial),
            // What one of 3.5 says that joined by a snapshot, whatever it is: found by a chaos run.
            learner: false,
            committed: COMMITTED,
            applied: if seat.acked() { COMMITTED } else { BEHIND },
            progressed: Millis(0),
            live: true,
            version: seat.pod.map(|pod| release(pod.runs).version),
            cluster_version: Some(Minor(u16::from(state.versions.cluster))),
            storage: Some(Minor(u16::from(state.versions.cluster))),
            links: state
                .serials()
                .filter(|other| *other != serial && state.seat(*other).member.is_some() && state.seat(*other).alive())
                .map(|other| (id_of(other), Link::Counted))
                .collect(),
        }),
    }
}

/// What the launcher that waits has found on its volume, or written there; also if that is not there any more.
fn marked(seat: state::Seat) -> Option<u8> {
    match seat.data()? {
        Data::Marked { mark, .. } | Data::NoEntry { mark, .. } => Some(mark),
        Data::Empty => seat.marks.checked_sub(1),
        Data::Entries { .. } | Data::Half { .. } | Data::Restored { .. } | Data::Foreign => None,
    }
}

fn list(state: &State) -> MemberList {
    let line = |serial: u8| {
        let member = state.seat(serial).member?;
        let listed = Listed { serial: Some(Serial(u32::from(serial))), role: member.role, started: member.started };
        Some((id_of(serial), listed))
    };
    MemberList {
        cluster: CLUSTER,
        leader: state.leader.map(id_of),
        members: state.serials().filter_map(line).collect(),
    }
}

fn nodes(config: &Config, state: &State) -> BTreeMap<NodeName, NodeSight> {
    let mut nodes = BTreeMap::new();
    for serial in state.serials() {
        let seat = state.seat(serial);
        let here = seat.pod.is_some_and(|pod| pod.stage != Stage::Unplaced)
            || (config.volumes == Volumes::Local && seat.claim.is_some_and(|claim| claim.bound))
            || remembered(state, serial);
        if !here {
            continue;
        }
        let sight = match seat.node {
            Node::Ready => NodeSight::Ready,
            Node::Cut => NodeSight::NotReady(Millis(NOW.0 - LONG)),
            Node::Gone => NodeSight::Gone,
        };
        nodes.insert(node_name(serial, seat.node_made), sight);
        // A pod is only ever placed on another node where the last one is gone or cordoned, or was left with a ghost on it.
        let before = match seat.ghost {
            true => NodeSight::NotReady(Millis(NOW.0 - LONG)),
            false if config.cordons() => NodeSight::Ready,
            false => NodeSight::Gone,
        };
        nodes.extend((0..seat.node_made).map(|made| (node_name(serial, made), before)));
    }
    nodes
}

fn cordoned(state: &State) -> BTreeSet<NodeName> {
    let named = |serial: u8| node_name(serial, state.seat(serial).node_made);
    state.serials().filter(|serial| state.seat(*serial).cordoned).map(named).collect()
}

fn remembered(state: &State, serial: u8) -> bool {
    match Arc::as_ref(&state.memory) {
        Memory::Blank | Memory::Unreadable => false,
        Memory::Ledger(ledger) => ledger.members.contains_key(&Serial(u32::from(serial))),
    }
}
