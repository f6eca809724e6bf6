//! What Kubernetes and the launcher do by themselves, one seat at a time: place and start a pod, start its container
//! again, look at the ticket and the volume, take a pod or a claim away. The launcher's rules are those of its design.

use quorate_statemachine::{Home, Memory, Refusal, Role};

use crate::{
    config::{Config, Volumes},
    planted::Mistake,
    state::{
        Age, Broken, Claim, Data, Member, Node, Operator, Pod, Process, Seat, Serials, Stage, Start, State, Ticket,
        Versions,
    },
};

/// What the launcher makes of its ticket and its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Wait,
    Refuse(Refusal),
    /// etcd starts a log of its own here, on a volume wiped before.
    Create,
    /// etcd goes on with the log that is here.
    Resume,
}

impl Seat {
    pub fn put(&mut self, data: Data) {
        if let Some(claim) = &mut self.claim {
            claim.data = data;
        } else if let Some(pod) = &mut self.pod {
            pod.scratch = data;
        }
    }

    /// The UID that the volume under the pod really has.
    pub fn volume(&self) -> Option<u8> {
        self.claim.map(|claim| claim.made).or_else(|| self.pod.map(|pod| pod.made))
    }

    pub fn verdict(&self) -> Verdict {
        let (Some(pod), Some(data)) = (self.pod, self.data()) else { return Verdict::Wait };
        let Some(Ticket { start, volume, mark: wanted, age: _ }) = pod.ticket else { return Verdict::Wait };
        if volume != pod.volume {
            return Verdict::Refuse(Refusal::Other);
        }
        match (start, data) {
            (_, Data::Foreign)
            | (Start::Seed | Start::Join(_) | Start::Resume, Data::Half { .. } | Data::Restored { .. }) => {
                Verdict::Refuse(Refusal::VolumeForeign)
            }
            (
                _,
                Data::NoEntry { marker, .. }
                | Data::Entries { marker, .. }
                | Data::Half { marker }
                | Data::Restored { marker },
            ) if marker != pod.volume => Verdict::Refuse(Refusal::VolumeForeign),
            (Start::Restored, Data::Restored { .. }) => Verdict::Create,
            (Start::Seed | Start::Join(_), Data::Empty) if wanted.is_none() => Verdict::Create,
            // What a launcher has marked for another claim of this name is as good as empty.
            (Start::Seed | Start::Join(_), Data::Marked { marker, .. }) if wanted.is_none() && marker != pod.volume => {
                Verdict::Create
            }
            (Start::Seed | Start::Join(_), Data::Marked { marker, mark } | Data::NoEntry { marker, mark })
                if marker == pod.volume && wanted.is_none_or(|wanted| wanted == mark) =>
            {
                Verdict::Create
            }
            (_, Data::Entries { .. }) => Verdict::Resume,
            (Start::Resume, Data::NoEntry { .. }) => Verdict::Refuse(Refusal::NoEntry),
            (Start::Resume, Data::Marked { marker, .. }) if marker == pod.volume => Verdict::Refuse(Refusal::NoEntry),
            (Start::Seed | Start::Join(_) | Start::Resume, Data::Empty | Data::Marked { .. })
            | (Start::Seed | Start::Join(_), Data::NoEntry { .. })
            | (Start::Restored, Data::Empty | Data::Marked { .. } | Data::NoEntry { .. } | Data::Half { .. }) => {
                Verdict::Refuse(Refusal::VolumeLost)
            }
        }
    }

    /// The same with a ticket that names no mark.
    fn with_any_mark(mut self) -> Self {
        if let Some(ticket) = self.pod.as_mut().and_then(|pod| pod.ticket.as_mut()) {
            ticket.mark = None;
        }
        self
    }

    fn can_be_placed(&self, volumes: Volumes) -> bool {
        match volumes {
            Volumes::Ephemeral => true,
            Volumes::Local => {
                let there = self.node == Node::Ready && !self.cordoned;
                self.claim.is_some_and(|claim| !claim.terminating && (!claim.bound || there))
            }
            Volumes::Network => self.claim.is_some_and(|claim| !claim.terminating),
        }
    }
}

/// Where the volumes of this kind can be used, as the claim tells it.
pub fn home(volumes: Volumes, claim: Claim, node: impl FnOnce() -> Home) -> Home {
    match volumes {
        Volumes::Local if claim.bound => node(),
        Volumes::Local | Volumes::Network | Volumes::Ephemeral => Home::Anywhere,
    }
}

impl State {
    /// The next thing that happens by itself at this seat; false if there is none.
    pub fn progress(&mut self, config: &Config, serial: u8) -> bool {
        let seat = self.seat(serial);
        // The kubelet ends what has no pod any more. Until then nothing else starts on that volume: its lock is held, and no
        // other node gets it.
        if seat.leftover {
            self.seat_mut(serial).leftover = seat.node != Node::Ready;
            return seat.node == Node::Ready;
        }
        // A pod that no node has taken keeps no claim (pvc_protection_controller.go, podUsesPVCForDeletion). Here one that is
        // to restore does: if the claim that a user deletes under it is made anew by a second operator, whose plan is older,
        // it restores onto that one under the first one's name, and a human has to empty it.
        let keeps_claim = seat.pod.is_some_and(|pod| pod.stage != Stage::Unplaced || pod.restores);
        if seat.claim.is_some_and(|claim| claim.terminating) && !keeps_claim {
            self.seat_mut(serial).claim = None;
            return true;
        }
        let Some(pod) = seat.pod else { return false };
        let leaves = pod.terminating && (seat.node == Node::Ready || pod.stage == Stage::Unplaced);
        if leaves || (seat.node == Node::Gone && pod.stage != Stage::Unplaced) {
            self.seat_mut(serial).pod = None;
            return true;
        }
        match (pod.stage, pod.process) {
            (Stage::Unplaced, _) => seat.can_be_placed(config.volumes) && self.place(serial),
            (Stage::Placed, _) if seat.node != Node::Ready || pod.terminating => false,
            (Stage::Placed, _) if self.replace_container(serial) => {
                self.launch(config, serial);
                true
            }
            (Stage::Placed, Process::Off) => self.begin(config, serial),
            (Stage::Placed, Process::Restoring) => self.restore(config, serial),
            (Stage::Placed, Process::Waiting | Process::Dead | Process::Refused(_)) => self.launch(config, serial),
            (Stage::Placed, Process::Etcd) | (Stage::Finished, _) => false,
        }
    }

    fn place(&mut self, serial: u8) -> bool {
        self.replace_container(serial);
        let seat = self.seat_mut(serial);
        if seat.node != Node::Ready || seat.cordoned {
            seat.node = Node::Ready;
            seat.cordoned = false;
            seat.node_made += 1;
        }
        if let Some(claim) = &mut seat.claim {
            claim.bound = true;
        }
        if let Some(pod) = &mut seat.pod {
            pod.stage = Stage::Placed;
        }
        true
    }

    /// The first container of a pod that is on its node starts.
    fn begin(&mut self, config: &Config, serial: u8) -> bool {
        if let Some(pod) = &mut self.seat_mut(serial).pod {
            pod.process = if pod.restores && pod.ticket.is_none() { Process::Restoring } else { Process::Waiting };
        }
        self.begin_restore(serial);
        self.mark(serial);
        self.launch(config, serial);
        true
    }

    /// What is on the volume is half of it from here on, unless etcd was started there or all of it is there.
    fn begin_restore(&mut self, serial: u8) {
        let Some(pod) = self.seat(serial).pod.filter(|pod| pod.process == Process::Restoring) else { return };
        match self.seat(serial).data() {
            // Or a launcher has marked it while it waited.
            Some(Data::Empty | Data::Marked { .. }) => self.seat_mut(serial).put(Data::Half { marker: pod.volume }),
            Some(
                Data::NoEntry { .. } | Data::Entries { .. } | Data::Half { .. } | Data::Restored { .. } | Data::Foreign,
            )
            | None => {}
        }
    }

    /// The restore comes to its end; the launcher follows.
    fn restore(&mut self, config: &Config, serial: u8) -> bool {
        let seat = self.seat_mut(serial);
        match seat.data() {
            Some(Data::Half { marker }) => seat.put(Data::Restored { marker }),
            // It says so, and tries again.
            Some(Data::Foreign) => return false,
            Some(
                Data::Empty | Data::Marked { .. } | Data::NoEntry { .. } | Data::Entries { .. } | Data::Restored { .. },
            )
            | None => {}
        }
        if let Some(pod) = &mut seat.pod {
            pod.process = Process::Waiting;
        }
        self.mark(serial);
        self.launch(config, serial);
        true
    }

    /// The launcher looks at its ticket, and starts etcd or says why not.
    fn launch(&mut self, config: &Config, serial: u8) -> bool {
        let (before, was) = (self.seat(serial), self.broken);
        if before.pod.is_some_and(|pod| pod.process == Process::Restoring) {
            return false;
        }
        let trusted = match config.mistake {
            Some(Mistake::MarkUnchecked | Mistake::PromotedCreatable) => before.with_any_mark(),
            Some(_) | None => before,
        };
        let process = match trusted.verdict() {
            Verdict::Wait => {
                if before.pod.is_some_and(|pod| pod.process == Process::Dead) {
                    self.mark(serial);
                }
                Process::Waiting
            }
            Verdict::Refuse(refusal) => Process::Refused(refusal),
            Verdict::Create => self.create(config, serial),
            Verdict::Resume => self.resume(config, serial),
        };
        if let Some(pod) = &mut self.seat_mut(serial).pod {
            pod.process = process;
        }
        // What is broken by it need not show at the seat.
        self.seat(serial) != before || self.broken != was
    }

    /// A launcher that begins to wait without a ticket marks an empty volume.
    fn mark(&mut self, serial: u8) {
        let seat = self.seat_mut(serial);
        let Some(pod) = seat.pod.filter(|pod| pod.ticket.is_none()) else { return };
        let is_free = match seat.data() {
            Some(Data::Empty) => true,
            // By a pod that was made for another claim of this name.
            Some(Data::Marked { marker, .. }) => marker != pod.volume,
            Some(
                Data::NoEntry { .. } | Data::Entries { .. } | Data::Half { .. } | Data::Restored { .. } | Data::Foreign,
            )
            | None => false,
        };
        if is_free {
            let mark = seat.marks;
            seat.marks += 1;
            seat.put(Data::Marked { marker: pod.volume, mark });
        }
    }

    fn create(&mut self, config: &Config, serial: u8) -> Process {
        let Some(Pod { ticket: Some(ticket), volume: marker, .. }) = self.seat(serial).pod else { return Process::Off };
        // A start that comes to nothing leaves the mark that it found.
        let mark = ticket.mark.unwrap_or_default();
        let known = self.members();
        match ticket.start {
            Start::Seed | Start::Restored if known != Serials::default() => {
                self.break_with(Broken::SeededTwice);
                Process::Dead
            }
            Start::Seed | Start::Join(_)
                if self.seat(serial).pod.is_some_and(|pod| config.fails_to_run(serial, pod.runs)) =>
            {
                self.seat_mut(serial).put(Data::NoEntry { marker, mark });
                Process::Dead
            }
            Start::Seed | Start::Restored => {
                self.found(serial);
                let seat = self.seat_mut(serial);
                seat.member = Some(Member { role: Role::Voter, started: true, matched: true });
                self.bear(config, serial);
                self.seat_mut(serial).put(Data::Entries { marker, acked: true });
                Process::Etcd
            }
            Start::Join(set)
                if set == known
                    && self.seat(serial).member.is_some()
                    && self.alive_voters() > 0
                    && self.admits_newcomer(serial) =>
            {
                self.bear(config, serial);
                self.seat_mut(serial).put(Data::Entries { marker, acked: false });
                Process::Etcd
            }
            // etcd exits before it writes a log: the member list is another, or no peer tells it.
            Start::Join(_) | Start::Resume => {
                self.seat_mut(serial).put(Data::NoEntry { marker, mark });
                Process::Dead
            }
        }
    }

    fn resume(&mut self, config: &Config, serial: u8) -> Process {
        let seat = self.seat(serial);
        if seat.born != seat.volume() {
            self.break_with(Broken::OtherVolume);
        }
        // Its log carries the id that was removed, whatever id its address may have been given since.
        let is_member = seat.member.is_some() && !seat.banned;
        if is_member && self.starts(config, serial) { Process::Etcd } else { Process::Dead }
    }

    /// An identity gets its first log, which may be on one volume only, once.
    fn bear(&mut self, config: &Config, serial: u8) {
        let seat = self.seat(serial);
        if seat.born.is_some() && config.mistake != Some(Mistake::RejoinedEmpty) {
            self.break_with(Broken::OtherVolume);
        }
        self.seat_mut(serial).born = seat.volume();
    }

    /// Time goes by without anything else happening at this seat.
    pub fn wait_long(&mut self, serial: u8) -> bool {
        let before = self.seat(serial);
        if let Some(pod) = &mut self.seat_mut(serial).pod {
            pod.age = Age::Old;
            if let Some(ticket) = &mut pod.ticket {
                ticket.age = Age::Old;
            }
        }
        self.seat(serial) != before
    }

    /// Forgets what can't matter any more, so that states which behave alike are one.
    pub fn tidy(&mut self) {
        let traces =
            self.seats.iter().any(|seat| seat.pod.is_some() || seat.claim.is_some() || seat.ghost || seat.leftover);
        let idle = self.operators.iter().all(|operator| *operator == Operator::Idle);
        if *self.memory == Memory::Blank && !traces && idle {
            // Nothing is left of an earlier life, not even the memory of it: what begins now is another one.
            self.seats.clear();
            self.leader = None;
            self.versions = Versions::default();
        }
        if idle {
            // Nobody can mean to switch by a trial that is gone.
            self.versions.proved = self.versions.tried;
        }
        for seat in &mut self.seats {
            let voter = seat.is(Role::Voter);
            if let Some(pod) = &mut seat.pod
                && pod.process == Process::Etcd
                && voter
            {
                pod.age = Age::Old;
                if let Some(ticket) = &mut pod.ticket {
                    ticket.age = Age::Old;
                }
            }
            if seat.pod.is_none() && seat.claim.is_none() && seat.member.is_none() && !seat.ghost && !seat.leftover {
                let Seat { claims_made, pods_made, node, node_made, banned, unwritten, marks, create, .. } = *seat;
                let none = Seat::default();
                *seat = Seat { claims_made, pods_made, node, node_made, banned, unwritten, marks, create, ..none };
            }
        }
    }
}
