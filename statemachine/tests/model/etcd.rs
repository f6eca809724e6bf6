//! etcd, as far as it matters here: who may change the member list and when, who leads, who has the acknowledged writes.
//! Its rules are those of etcd with strict reconfiguration checks on; it knows nothing of pods or plans.

use quorate_statemachine::Role;

use crate::state::{Broken, Data, Member, Node, Process, State, quorum};

/// etcd said no, or nobody answered.
#[derive(Debug)]
pub struct Denied;

impl State {
    /// What happens by itself and at once: writes go on wherever there is a quorum, so that whoever is down lacks the
    /// last of them; a leader is elected; a removed member's process exits.
    pub fn settle(&mut self) {
        let quorate = self.has_quorum();
        if quorate {
            let nobody_has_it = !self.seats.iter().any(|seat| seat.is(Role::Voter) && seat.alive() && seat.acked());
            if nobody_has_it {
                self.break_with(Broken::WriteLost);
            }
            for seat in &mut self.seats {
                let (alive, voter) = (seat.alive(), seat.is(Role::Voter));
                if alive && let Some(member) = &mut seat.member {
                    member.started = true;
                    member.matched |= voter;
                }
                let has_it = alive && (voter || seat.acked());
                if let Some(Data::Entries { marker, .. }) = seat.data() {
                    seat.put(Data::Entries { marker, acked: has_it });
                }
            }
            let leads = |serial: &u8| self.seat(*serial).is(Role::Voter) && self.seat(*serial).alive();
            if !self.leader.is_some_and(|leader| leads(&leader)) {
                // The highest serial, for that is the one a smaller cluster wants to remove.
                self.leader = self.serials().rev().find(leads);
                // A leader begins with an entry of its own.
                self.write_down();
            }
        } else {
            self.leader = None;
            self.forget();
        }
        self.write_log();
        for seat in &mut self.seats {
            let exits = quorate && seat.member.is_none() && seat.node == Node::Ready;
            seat.leftover &= !exits;
            if exits
                && let Some(pod) = &mut seat.pod
                && pod.process == Process::Etcd
            {
                pod.process = Process::Dead;
            }
            if seat.ghost && seat.pod.is_some_and(|pod| pod.process == Process::Etcd) {
                self.broken.get_or_insert(Broken::TwoPlaces);
            }
        }
    }

    /// Another entry is in the logs of those who stay: that members were removed before is on their disks.
    pub fn write_down(&mut self) {
        self.seats.iter_mut().for_each(|seat| seat.unwritten = false);
    }

    /// With nobody left who holds it in memory, a removal that is on no disk has never been: who is left waits for the votes of
    /// those who are gone.
    fn forget(&mut self) {
        let unwritten = self.seats.iter().filter(|seat| seat.unwritten).count();
        if unwritten > 0 && self.alive_voters() == 0 && self.voters() < quorum(self.voters() + unwritten) {
            self.break_with(Broken::Unwritten);
        }
    }

    /// A learner's log comes up with the leader's.
    pub fn catch_up(&mut self, serial: u8) -> bool {
        let behind = self.has_quorum() && self.seat(serial).is(Role::Learner) && self.seat(serial).alive();
        let seat = self.seat_mut(serial);
        let Some(Data::Entries { marker, acked: false }) = seat.data().filter(|_| behind) else { return false };
        seat.put(Data::Entries { marker, acked: true });
        if let Some(member) = &mut seat.member {
            member.matched = true;
        }
        true
    }

    pub fn add_learner(&mut self, serial: u8) -> Result<(), Denied> {
        let voters = self.voters();
        let connected = voters == 1 || self.alive_voters() >= quorum(voters + 1);
        let room = self.learners() < self.max_learners();
        if !self.has_quorum() || !connected || !room || self.seat(serial).member.is_some() {
            return Err(Denied);
        }
        if self.seat(serial).banned {
            self.break_with(Broken::IdentityReused);
        }
        if self.learners() >= self.learners_for_all() {
            self.break_with(Broken::KnownToSome);
        }
        self.write_down();
        self.seat_mut(serial).member = Some(Member { role: Role::Learner, started: false, matched: false });
        Ok(())
    }

    /// Looks at the match index only: a learner that died after it caught up is promoted all the same.
    pub fn promote(&mut self, serial: u8) -> Result<(), Denied> {
        if !self.has_quorum() {
            return Err(Denied);
        }
        match &mut self.seat_mut(serial).member {
            Some(Member { role: role @ Role::Learner, started: true, matched: true }) => {
                *role = Role::Voter;
                self.write_down();
                Ok(())
            }
            Some(_) | None => Err(Denied),
        }
    }

    pub fn remove(&mut self, serial: u8) -> Result<(), Denied> {
        let seat = self.seat(serial);
        let live_voter_missed = seat.is(Role::Voter)
            && seat.alive()
            && self.alive_voters().saturating_sub(1) < quorum(self.voters().saturating_sub(1));
        if !self.has_quorum() || seat.member.is_none() || live_voter_missed {
            return Err(Denied);
        }
        // What was removed before; not this one itself.
        self.write_down();
        let seat = self.seat_mut(serial);
        seat.unwritten = seat.is(Role::Voter);
        seat.member = None;
        seat.banned |= seat.born.is_some();
        Ok(())
    }

    pub fn move_leader(&mut self, from: u8, to: u8) -> Result<(), Denied> {
        if self.leader != Some(from) || !self.seat(to).is(Role::Voter) || !self.seat(to).alive() {
            return Err(Denied);
        }
        self.leader = Some(to);
        self.write_down();
        Ok(())
    }
}
