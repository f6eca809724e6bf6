//! What may go wrong: each kind of fault, where it can happen and what it does.

use std::sync::Arc;

use quorate_statemachine::{Memory, Role, RoleLabel};

use crate::{
    config::{Config, Volumes},
    state::{Broken, Data, Node, Pod, Process, Stage, State, quorum},
};

/// A kind of fault. The first ones happen to a seat, the last ones to everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// etcd's process is killed.
    Kill,
    /// etcd is killed in its first moment: its WAL has no entry.
    Birth,
    /// Somebody deletes the pod.
    DeletePod,
    /// Somebody deletes the pod by force: its object is gone at once, its process when the kubelet has heard of that.
    ForceDelete,
    /// A drain evicts the pod, if the disruption budget lets it.
    Evict,
    /// Somebody cordons the node. That may be taken back at any time.
    Cordon,
    /// The pod's containers end for good.
    Finish,
    /// Somebody deletes the claim; it goes when its pod goes.
    DeleteClaim,
    /// The volume is swapped for an empty one under the same claim, while no etcd uses it.
    Swap,
    /// A fresh volume carries something of somebody else.
    Foreign,
    /// The node is cut off with its processes running. It may heal at any time.
    Cut,
    /// The node is gone for good. One that is cut off may go at any time.
    Gone,
    /// Time goes by at this seat, more than any patience.
    Late,
    /// Somebody deletes all pods.
    AllPods,
    /// The status is lost.
    StatusLost,
    /// The operator sees Kubernetes, but no etcd and no launcher answers in time.
    Blind,
    /// A learner dies between the last check and its promotion.
    Dying,
    /// A claim or a pod is refused by a quota or a policy.
    Refused,
    /// The operator crashes. Where this is no kind of fault it may happen at any time, as often as it likes.
    Crash,
}

impl Kind {
    /// Everything but what needs another beginning (`Foreign`, `Birth`), in a cluster that stands.
    pub const STANDING: &[Self] = &[
        Self::Kill,
        Self::DeletePod,
        Self::Finish,
        Self::DeleteClaim,
        Self::Swap,
        Self::Cut,
        Self::Gone,
        Self::AllPods,
        Self::StatusLost,
        Self::Blind,
    ];
    /// What may come in between while members are restarted one by one.
    pub const ROLLING: &[Self] =
        &[Self::Kill, Self::DeletePod, Self::Evict, Self::DeleteClaim, Self::Cut, Self::Gone, Self::Blind, Self::Crash];
    /// What may come beside a pod that is deleted by force.
    pub const FORCED: &[Self] =
        &[Self::ForceDelete, Self::Kill, Self::DeletePod, Self::DeleteClaim, Self::Cut, Self::Gone, Self::Crash];
    /// What may come in between while a backup is restored. (What `Birth` leaves, a restored log never has.)
    pub const RESTORING: &[Self] = &[
        Self::Kill,
        Self::DeletePod,
        Self::Finish,
        Self::DeleteClaim,
        Self::Swap,
        Self::Cut,
        Self::Gone,
        Self::Late,
        Self::AllPods,
        Self::StatusLost,
        Self::Blind,
    ];
    /// Everything, and the operator crashes at any time.
    pub const ALL: &[Self] = &[
        Self::Kill,
        Self::Birth,
        Self::DeletePod,
        Self::Finish,
        Self::DeleteClaim,
        Self::Swap,
        Self::Foreign,
        Self::Cut,
        Self::Gone,
        Self::Late,
        Self::AllPods,
        Self::StatusLost,
        Self::Blind,
        Self::Dying,
        Self::Refused,
    ];
    /// The ways in which a newcomer fails, for pairs of them where pairs of all kinds take too long for every day.
    pub const GROWING: &[Self] =
        &[Self::Kill, Self::Birth, Self::DeleteClaim, Self::Gone, Self::AllPods, Self::Dying, Self::Crash];
    /// Of these what strikes one that joins, for pairs of them in the largest clusters.
    pub const JOINING: &[Self] = &[Self::Kill, Self::Birth, Self::DeleteClaim, Self::Dying];
    /// Everything, a crash of the operator among it.
    pub const ALL_AND_CRASH: &[Self] = &[
        Self::Kill,
        Self::Birth,
        Self::DeletePod,
        Self::Finish,
        Self::DeleteClaim,
        Self::Swap,
        Self::Foreign,
        Self::Cut,
        Self::Gone,
        Self::Late,
        Self::AllPods,
        Self::StatusLost,
        Self::Blind,
        Self::Dying,
        Self::Refused,
        Self::Crash,
    ];

    /// Whether it happens to one seat; the others happen to everything, or are choices of the operator's moment.
    pub fn strikes_a_seat(self) -> bool {
        match self {
            Self::Kill
            | Self::Birth
            | Self::DeletePod
            | Self::ForceDelete
            | Self::Evict
            | Self::Cordon
            | Self::Finish
            | Self::DeleteClaim
            | Self::Swap
            | Self::Foreign
            | Self::Cut
            | Self::Gone
            | Self::Late => true,
            Self::AllPods | Self::StatusLost | Self::Blind | Self::Dying | Self::Refused | Self::Crash => false,
        }
    }
}

impl Config {
    pub fn evicts(&self) -> bool {
        self.kinds.contains(&Kind::Evict)
    }

    pub fn cordons(&self) -> bool {
        self.kinds.contains(&Kind::Cordon)
    }
}

/// Lets this happen to a seat; false if it can't.
pub fn strike(config: &Config, state: &mut State, kind: Kind, serial: u8) -> bool {
    let (before, slow) = (state.seat(serial), state.slow);
    if config.prompt {
        state.slow = slow.with(serial);
    }
    match kind {
        Kind::Kill => dies(state, serial),
        Kind::Birth => return dies_at_birth(config, state, serial),
        Kind::DeletePod => ask_to_go(state, serial),
        Kind::ForceDelete => force_away(state, serial),
        Kind::Evict => return evict(state, serial),
        Kind::Cordon => {
            if before.node == Node::Ready && uses_a_node(config, state, serial) {
                state.seat_mut(serial).cordoned = true;
            }
        }
        Kind::Finish => finish(state, serial),
        Kind::DeleteClaim => {
            if let Some(claim) = &mut state.seat_mut(serial).claim {
                claim.terminating = true;
            }
        }
        Kind::Swap => {
            let idle = before.pod.is_none_or(|pod| pod.process != Process::Etcd);
            let holds =
                matches!(before.data(), Some(Data::Entries { .. } | Data::NoEntry { .. } | Data::Marked { .. }));
            if idle && holds && before.node == Node::Ready {
                state.seat_mut(serial).put(Data::Empty);
            }
        }
        Kind::Foreign => {
            if before.data() == Some(Data::Empty) {
                state.seat_mut(serial).put(Data::Foreign);
            }
        }
        Kind::Cut => {
            if before.node == Node::Ready && uses_a_node(config, state, serial) {
                let seat = state.seat_mut(serial);
                seat.node = Node::Cut;
                // Until a node counts as away, all have heard of what was deleted before.
                seat.pod.iter_mut().for_each(|pod| pod.counted_on = false);
            }
        }
        Kind::Gone => {
            if before.node == Node::Ready && uses_a_node(config, state, serial) {
                lose_node(state, serial);
            }
        }
        Kind::Late => {
            state.wait_long(serial);
        }
        Kind::AllPods | Kind::StatusLost | Kind::Blind | Kind::Dying | Kind::Refused | Kind::Crash => {}
    }
    // To be slow is a fault in itself where everybody else is prompt.
    state.seat(serial) != before || (kind == Kind::Late && before.data().is_some() && state.slow != slow)
}

/// All pods are deleted; false if there are none.
pub fn delete_all_pods(state: &mut State) -> bool {
    let before = state.seats.clone();
    for serial in state.serials() {
        ask_to_go(state, serial);
    }
    state.seats != before
}

pub fn lose_status(state: &mut State) -> bool {
    let held = *state.memory != Memory::Blank;
    state.memory = Arc::new(Memory::Blank);
    held
}

/// A node that was cut off is heard of again, and its kubelet does what it missed; one that was cordoned takes pods again.
pub fn heal(state: &mut State, serial: u8) -> bool {
    let seat = state.seat_mut(serial);
    let away = seat.ghost || seat.node == Node::Cut || seat.cordoned;
    seat.ghost = false;
    seat.cordoned = false;
    if seat.node == Node::Cut {
        seat.node = Node::Ready;
    }
    away
}

/// A node goes for good, with all that runs on it.
pub fn lose_node(state: &mut State, serial: u8) {
    let seat = state.seat_mut(serial);
    seat.node = Node::Gone;
    seat.ghost = false;
    seat.leftover = false;
    seat.cordoned = false;
    if let Some(pod) = &mut seat.pod
        && pod.stage != Stage::Unplaced
    {
        pod.process = Process::Off;
    }
}

fn uses_a_node(config: &Config, state: &State, serial: u8) -> bool {
    let seat = state.seat(serial);
    let disk = config.volumes == Volumes::Local && seat.claim.is_some_and(|claim| claim.bound);
    disk || seat.pod.is_some_and(|pod| pod.stage != Stage::Unplaced)
}

fn dies(state: &mut State, serial: u8) {
    let seat = state.seat_mut(serial);
    if let Some(pod) = &mut seat.pod
        && pod.process == Process::Etcd
        && seat.node == Node::Ready
    {
        pod.process = Process::Dead;
    }
}

fn ask_to_go(state: &mut State, serial: u8) {
    let seat = state.seat_mut(serial);
    if let Some(pod) = &mut seat.pod {
        pod.terminating = true;
        if pod.stage == Stage::Unplaced {
            seat.pod = None;
        }
    }
}

/// Where the node is heard of; and with a claim, as an emptyDir goes with the pod.
fn force_away(state: &mut State, serial: u8) {
    let seat = state.seat_mut(serial);
    if seat.node == Node::Ready && seat.claim.is_some() && !seat.leftover {
        seat.leftover = seat.answers();
        seat.pod = None;
    }
}

fn finish(state: &mut State, serial: u8) {
    let seat = state.seat_mut(serial);
    if let Some(pod) = &mut seat.pod
        && pod.stage == Stage::Placed
        && seat.node == Node::Ready
    {
        pod.stage = Stage::Finished;
        pod.process = Process::Off;
    }
}

/// etcd would have been started with a new log; it ends before its first entry, so nobody ever heard of it.
fn dies_at_birth(config: &Config, state: &mut State, serial: u8) -> bool {
    let before = state.seat(serial);
    let was = state.broken;
    if before.born.is_some() || !state.progress(config, serial) || state.broken != was {
        return false;
    }
    let seat = state.seat_mut(serial);
    let Some(marker) = seat.pod.map(|pod| pod.volume).filter(|_| seat.born.is_some()) else { return false };
    seat.born = None;
    seat.member = before.member;
    let mark = seat.pod.and_then(|pod| pod.ticket).and_then(|ticket| ticket.mark).unwrap_or_default();
    seat.put(Data::NoEntry { marker, mark });
    if let Some(pod) = &mut seat.pod {
        pod.process = Process::Dead;
    }
    true
}

/// A drain asks by the eviction API, which counts the ready pods with the voter's label: also one that is told to run another
/// image, for as long as the container of the old one has not ended, and one that we have just deleted, as the disruption
/// controller hears of that later. That it has evicted one it knows.
fn evict(state: &mut State, serial: u8) -> bool {
    let Some(pod) = state.seat(serial).pod.filter(|pod| !pod.terminating) else { return false };
    let quorate = state.has_quorum();
    let counted = |serial: &u8| {
        let seat = state.seat(*serial);
        let shown = |pod: Pod| pod.label != RoleLabel::Absent && (!pod.terminating || pod.counted_on);
        quorate && seat.answers() && seat.pod.is_some_and(shown)
    };
    let ready = state.serials().filter(counted).count();
    if pod.label != RoleLabel::Absent && (!counted(&serial) || ready <= usize::from(state.budget)) {
        return false;
    }
    let (staying, voter) = (state.staying_voters(), state.seat(serial).is(Role::Voter));
    ask_to_go(state, serial);
    let least = quorum(state.voters());
    if voter && state.voters() > 1 && staying >= least && state.staying_voters() < least {
        state.break_with(Broken::Evicted);
    }
    true
}
