//! Versions in the model: how etcd moves the cluster's version, what a member makes of the minor it is started with, and what
//! an operator sees and does of it.

use quorate_statemachine::{
    Image, Minor, Outcome, Overall, Release, Serial, Step, TemplateHash, Trial, Uid, Version, Wish,
};

use crate::{
    config::Config,
    etcd::Denied,
    observe::{node_name, small},
    state::{Broken, Process, Seat, Serials, Stage, State, Versions},
};

/// The oldest minor there is here.
const OLDEST: u8 = 5;

/// The release by which a minor goes here.
pub fn release(minor: u8) -> Release {
    let version = Version::new(u16::from(minor), 32);
    Release { version, image: Image::new(&format!("etcd:{version}")) }
}

/// The minor of a release.
pub fn minor_of(release: &Release) -> u8 {
    small_minor(release.version.minor)
}

fn small_minor(minor: Minor) -> u8 {
    u8::try_from(minor.0).unwrap_or(u8::MAX)
}

/// The same wish, for this minor.
pub fn wishing(wish: Wish, minor: u8) -> Wish {
    Wish { release: release(minor), ..wish }
}

/// How many learners a member of this minor admits.
fn admits(minor: u8) -> usize {
    if minor <= OLDEST { 1 } else { 2 }
}

impl State {
    /// The leader looks at the members' versions, which it does every few seconds; false if that changes nothing.
    pub fn monitor(&mut self) -> bool {
        let before = self.clone();
        let all_answer = self.has_quorum() && self.seats.iter().all(|seat| seat.member.is_none() || seat.alive());
        let runs: Vec<u8> = self.members_run();
        let (Some(lowest), true) = (runs.iter().min().copied(), all_answer) else { return false };
        match self.versions.downgrade {
            None if lowest > self.versions.cluster => self.versions.cluster = lowest,
            Some(target) if self.versions.cluster == target + 1 && lowest == target + 1 => {
                self.versions.cluster = target;
                // Every member takes a snapshot when it hears of that; what it holds in memory stays.
                self.seats.iter_mut().filter(|seat| seat.member.is_some()).for_each(|seat| seat.old_log = false);
            }
            Some(target) if runs.iter().all(|minor| *minor == target) => self.versions.downgrade = None,
            None | Some(_) => {}
        }
        *self != before
    }

    fn members_run(&self) -> Vec<u8> {
        let members = self.seats.iter().filter(|seat| seat.member.is_some());
        members.filter_map(|seat| seat.pod.map(|pod| pod.runs)).collect()
    }

    /// How many learners the leader admits.
    pub fn max_learners(&self) -> usize {
        let leader = self.leader.and_then(|leader| self.seat(leader).pod);
        leader.map_or(0, |leader| admits(leader.runs))
    }

    /// How many learners every member admits when it applies their addition. Of one beyond that some would know, and others not.
    /// One that was not started yet will be on what its ticket says, whatever image its launcher waits in.
    pub fn learners_for_all(&self) -> usize {
        let started = self.seats.iter().filter(|seat| seat.member.is_some_and(|member| member.started));
        started.filter_map(|seat| seat.pod.map(|pod| admits(pod.runs))).min().unwrap_or(1)
    }

    /// What a leader of 3.5 writes, all have in their logs.
    pub fn write_log(&mut self) {
        let old = self.leader.and_then(|leader| self.seat(leader).pod).is_some_and(|pod| pod.runs <= OLDEST);
        for seat in self.seats.iter_mut().filter(|seat| old && seat.alive() && seat.member.is_some()) {
            seat.old_log = true;
            seat.old_memory = true;
        }
    }

    /// Whether etcd of the minor of this seat's container runs on its log. A minor that it must never have been told breaks a
    /// property.
    pub fn starts(&mut self, config: &Config, serial: u8) -> bool {
        let seat = self.seat(serial);
        let Some(runs) = seat.pod.map(|pod| pod.runs) else { return false };
        if config.fails_to_run(serial, runs) {
            return false;
        }
        let cluster = self.versions.cluster;
        if cluster > 0 && runs < cluster {
            self.break_with(Broken::TooLow);
        } else if cluster > 0 && runs > cluster + 1 {
            self.break_with(Broken::TwoMinors);
        } else if runs >= 7 && seat.old_log {
            self.break_with(Broken::OldLog);
        }
        self.seat_mut(serial).old_memory = seat.old_log;
        self.broken.is_none()
    }

    /// Whether the cluster takes a newcomer of the minor of this seat's container.
    pub fn admits_newcomer(&mut self, serial: u8) -> bool {
        let Some(runs) = self.seat(serial).pod.map(|pod| pod.runs) else { return false };
        let leader = self.leader.map(|leader| self.seat(leader)).unwrap_or_default();
        if self.versions.downgrade.is_some() || runs < self.versions.cluster {
            return false;
        }
        if runs >= 7 && leader.old_memory {
            self.break_with(Broken::OldLog);
        }
        let seat = self.seat_mut(serial);
        seat.old_log = leader.old_memory;
        seat.old_memory = leader.old_memory;
        true
    }

    /// The container of another image than the pod is told to run is replaced; false if there is none.
    pub fn replace_container(&mut self, serial: u8) -> bool {
        match &mut self.seat_mut(serial).pod {
            Some(pod) if pod.stage == Stage::Placed && pod.runs != pod.release => {
                pod.runs = pod.release;
                pod.process = Process::Waiting;
                true
            }
            Some(pod) if pod.stage == Stage::Unplaced => {
                pod.runs = pod.release;
                false
            }
            Some(_) | None => false,
        }
    }

    /// The founding of the cluster decides what it runs at.
    pub fn found(&mut self, serial: u8) {
        let runs = self.seat(serial).pod.map_or(0, |pod| pod.runs);
        self.versions.cluster = runs;
    }

    pub fn overall(&self) -> Overall {
        if !self.has_quorum() {
            return Overall::Unknown;
        }
        Overall::Known { downgrade: self.versions.downgrade.map(|minor| Minor(u16::from(minor))), alarm: None }
    }

    /// The trials that are there. They end at once, and well, if the image is not one that even a trial sees to be bad.
    pub fn trials(&self, config: &Config, template: TemplateHash) -> Vec<Trial> {
        let mut trials = Vec::new();
        for (minor, tried) in (OLDEST..).zip(self.versions.tried) {
            for serial in (0..).take(self.seats.len()).filter(|serial| tried.contains(*serial)) {
                trials.push(Trial {
                    serial: Serial(u32::from(serial)),
                    uid: trial_uid(serial, minor),
                    release: release(minor),
                    template,
                    node: node_name(serial, self.seat(serial).node_made),
                    created: crate::observe::NOW,
                    terminating: false,
                    outcome: if config.fails_trial == Some(minor) { Outcome::Failed } else { Outcome::Passed },
                });
            }
        }
        trials
    }

    /// Does what a step says of versions.
    pub fn version_step(&mut self, step: &Step) -> Result<(), Denied> {
        match step {
            Step::TryRelease { serial, release, .. } => {
                let Versions { tried, proved, cluster: _, downgrade: _ } = &mut self.versions;
                for of in [tried, proved] {
                    let of = &mut of[usize::from(minor_of(release) - OLDEST)];
                    *of = of.with(small(*serial));
                }
                Ok(())
            }
            Step::EndTrial { serial, trial } => {
                for (minor, tried) in (OLDEST..).zip(&mut self.versions.tried) {
                    if trial_uid(small(*serial), minor) == *trial {
                        *tried = tried.without(small(*serial));
                    }
                }
                Ok(())
            }
            Step::EnableDowngrade(to) => {
                let to = small_minor(*to);
                if !self.has_quorum() || self.versions.downgrade.is_some() || self.versions.cluster != to + 1 {
                    return Err(Denied);
                }
                self.versions.downgrade = Some(to);
                Ok(())
            }
            Step::CancelDowngrade => {
                if !self.has_quorum() {
                    return Err(Denied);
                }
                self.versions.downgrade = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Tells a pod to run another release.
    pub fn switch(&mut self, serial: u8, to: &Release) -> Result<(), Denied> {
        let pod = self.seat_mut(serial).pod.as_mut().ok_or(Denied)?;
        pod.release = minor_of(to);
        Ok(())
    }

    /// Whether this voter may be stopped to be brought up to date: which property that breaks.
    pub fn blame_stop(&self, serial: u8) -> Option<Broken> {
        let seat = self.seat(serial);
        let live = seat.is(quorate_statemachine::Role::Voter) && seat.steady();
        if !live || self.voters() < 2 {
            None
        } else if self.steady_voters() < self.voters() || !self.all_replaced() {
            Some(Broken::StoppedBesideDown)
        } else if self.leader == Some(serial) {
            Some(Broken::LeaderStopped)
        } else {
            None
        }
    }

    /// No member's container is still to be replaced.
    fn all_replaced(&self) -> bool {
        self.seats
            .iter()
            .filter(|seat| seat.member.is_some())
            .all(|seat| seat.pod.is_none_or(|pod| pod.runs == pod.release))
    }

    /// Whether the release was tried for this voter.
    pub fn was_tried(&self, serial: u8, of: &Release) -> bool {
        self.versions.proved[usize::from(minor_of(of) - OLDEST)].contains(serial)
    }

    /// Nobody runs or is told anything but this minor, and nothing of the way there is left.
    pub fn has_arrived(&self, minor: u8) -> bool {
        let there = |seat: &Seat| seat.pod.is_none_or(|pod| pod.runs == minor && pod.release == minor);
        self.versions.cluster == minor
            && self.versions.downgrade.is_none()
            && self.versions.tried == [Serials::default(); 3]
            && self.seats.iter().filter(|seat| seat.member.is_some()).all(there)
    }
}

fn trial_uid(serial: u8, minor: u8) -> Uid {
    Uid::new(&format!("trial-{serial}.{minor}"))
}
