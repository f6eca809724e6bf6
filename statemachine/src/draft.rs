//! A plan while it is being made. The jobs add to it; it decides nothing but what no job may do.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Bind, Birth, Claim, Finding, Ledger, LookAgain, Memory, Minor, Phase, Plan, Release, Serial, Start, Step, Storage,
    Uid, World,
    member::{Ground, Member},
    version::FIRST_WITH_NEW_LOG,
};

/// A plan while it is being made.
pub struct Draft<'w> {
    pub world: &'w World,
    /// The ledger as it will stand before the first step.
    pub ledger: Ledger,
    /// What the members are being brought to run now.
    pub heading: Option<Release>,
    /// What a member that is down because of what it is told to run may be told instead.
    pub cure: Option<Release>,
    /// That is only for one that is told another patch of it.
    pub only_patches: bool,
    /// Nobody can be serving: so many members are known to be down that the others make no quorum, or the seed has yet to.
    pub majority_is_down: bool,
    /// What newcomers run.
    pub newcomers: Option<Release>,
    /// The minor that the cluster runs at, if the leader says it.
    pub cluster_version: Option<Minor>,
    steps: Vec<Step>,
    budget: Option<u8>,
    findings: BTreeMap<Option<Serial>, BTreeSet<Finding>>,
    look_again: LookAgain,
}

impl<'w> Draft<'w> {
    pub fn new(world: &'w World) -> Self {
        let ledger = match &world.memory {
            Memory::Blank | Memory::Unreadable => Ledger::default(),
            Memory::Ledger(ledger) => ledger.clone(),
        };
        Self {
            world,
            ledger,
            heading: None,
            cure: None,
            only_patches: false,
            majority_is_down: false,
            newcomers: None,
            cluster_version: None,
            steps: Vec::new(),
            budget: None,
            findings: BTreeMap::new(),
            look_again: LookAgain::AtRest,
        }
    }

    /// The finished plan. The ledger is in it only if it changed, so that nothing is written at rest.
    pub fn finish(self, phase: Phase) -> Plan {
        let unchanged = match &self.world.memory {
            Memory::Blank => self.ledger == Ledger::default(),
            Memory::Unreadable => true,
            Memory::Ledger(ledger) => *ledger == self.ledger,
        };
        Plan {
            phase,
            ledger: (!unchanged).then_some(self.ledger),
            steps: self.steps,
            budget: self.budget,
            heading: self.heading,
            findings: self.findings,
            look_again: self.look_again,
        }
    }

    /// Adds a step, and looks again as soon as it can have had an effect.
    pub fn step(&mut self, step: Step) {
        let at_once = step.changes_members() || matches!(step, Step::MoveLeader { .. } | Step::CancelDowngrade);
        self.look(if at_once { LookAgain::AtOnce } else { LookAgain::Soon });
        self.steps.push(step);
    }

    /// The highest minor that any member that answers knows the cluster to run at, quorum or not.
    pub fn highest_cluster_version(&self) -> Option<Minor> {
        let members = self.world.seats.keys().map(|serial| Member::of(self.world, *serial));
        members.filter_map(|member| member.alive()?.cluster_version).max()
    }

    /// Whether nothing is to be done so far.
    pub fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the member list is to be changed: one change a plan, or additions, or promotions, and no ticket that names the
    /// list beside it.
    pub fn changes_members(&self) -> bool {
        self.steps.iter().any(Step::changes_members)
    }

    /// Whether the pod of a serial is to be deleted.
    pub fn deletes_pod(&self, of: Serial) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::DeletePod { serial, .. } if *serial == of))
    }

    /// Whether a pod is to be made for a serial.
    pub fn creates_pod(&self, of: Serial) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::CreatePod { serial, .. } if *serial == of))
    }

    /// Whether the pod of a serial is to be told to run another release, and gets a ticket for that.
    pub fn switches_release(&self, of: Serial) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::SwitchRelease { serial, .. } if *serial == of))
    }

    /// Whether a learner is to become a voter.
    pub fn promotes(&self, of: Serial) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Promote { serial, .. } if *serial == of))
    }

    /// Whether a member is to leave the list.
    pub fn removes_a_member(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Remove { .. }))
    }

    /// Looks again no later than this.
    pub fn look(&mut self, when: LookAgain) {
        self.look_again = self.look_again.min(when);
    }

    /// Tells something about the cluster. Troubles are looked at again every few seconds, unless a job asks for more.
    pub fn tell(&mut self, finding: Finding) {
        self.note(None, finding);
    }

    /// Tells something about one serial.
    pub fn tell_of(&mut self, serial: Serial, finding: Finding) {
        self.note(Some(serial), finding);
    }

    fn note(&mut self, about: Option<Serial>, finding: Finding) {
        self.look(LookAgain::Later);
        self.findings.entry(about).or_default().insert(finding);
    }

    pub fn set_budget(&mut self, min_available: usize) {
        self.budget = Some(u8::try_from(min_available).unwrap_or(u8::MAX));
    }

    /// Creates a claim and a pod on it, or a pod with an emptyDir, for a serial that has neither.
    pub fn create_seat(&mut self, serial: Serial, birth: Birth) {
        let bind = match self.world.wish.storage {
            Storage::Claims { .. } => {
                self.step(Step::CreateClaim(serial));
                Bind::NewClaim
            }
            Storage::Ephemeral => Bind::Ephemeral,
        };
        self.create_pod(serial, bind, birth);
    }

    /// Creates a pod, told to run what its member was last told to run, or what newcomers run. While that is not known for now,
    /// it is what is wished, unless somebody was told to run something else: then a pod would be made for the wrong image.
    pub fn create_pod(&mut self, serial: Serial, bind: Bind, birth: Birth) {
        let remembered = self.ledger.members.get(&serial).and_then(|entry| entry.release.clone());
        let wished = &self.world.wish.release;
        let mut told = self.ledger.members.values().filter_map(|entry| entry.release.as_ref());
        let release = match remembered.or_else(|| self.newcomers.clone()) {
            Some(release) => release,
            None if told.any(|told| told != wished) => return,
            None => wished.clone(),
        };
        self.step(Step::CreatePod { serial, bind, birth, release });
    }

    /// Tells a pod to run another release, under the same ticket otherwise. Of a member the ledger knows first.
    pub fn switch_release(&mut self, member: &Member<'_>, release: &Release) {
        let Some(pod) = member.pod else { return };
        self.remember_release(member, release);
        let ticket = pod.ticket.clone().map(|mut ticket| {
            if member.started {
                (ticket.start, ticket.mark) = (Start::Resume, None);
            }
            ticket.version = Some(release.version);
            ticket
        });
        let (serial, pod) = (member.serial, pod.uid.clone());
        self.step(Step::SwitchRelease { serial, pod, release: release.clone(), ticket });
    }

    /// Writes down what a member is told to run from now on, and what it ran till then: of one that was not seen well on what
    /// it was told last, what it ran before that. Of a spare nothing is written: it has no data.
    pub fn remember_release(&mut self, member: &Member<'_>, release: &Release) {
        self.remember_log(release);
        let told = member.told().cloned();
        let Some(entry) = self.ledger.members.get_mut(&member.serial).filter(|entry| entry.create.is_some()) else {
            return;
        };
        if entry.release.as_ref() == Some(release) {
            return;
        }
        let was_never_well = entry.former.is_some() && entry.release == told;
        if !was_never_well || entry.former.as_ref() == Some(release) {
            entry.former = told;
        }
        entry.release = Some(release.clone());
    }

    /// A release that writes its log in the old form leaves entries in it.
    pub fn remember_log(&mut self, release: &Release) {
        if release.version.minor < FIRST_WITH_NEW_LOG {
            self.ledger.oldest_log = Some(release.version.minor);
            self.ledger.logs_cut = false;
        }
    }

    /// Asks a pod to go. Never one on a node that may be running it unseen: the object could be forced away while the
    /// process goes on writing, and the same identity would run twice.
    pub fn delete_pod(&mut self, member: &Member<'_>) {
        let Some(pod) = member.pod else { return };
        match member.ground() {
            Ground::Unreachable => self.tell_of(member.serial, Finding::NodeUnreachable),
            Ground::Sound | Ground::Gone if pod.terminating => self.look(LookAgain::Soon),
            Ground::Sound | Ground::Gone => self.step(Step::DeletePod { serial: member.serial, pod: pod.uid.clone() }),
        }
    }

    /// Deletes a claim, once.
    pub fn delete_claim(&mut self, serial: Serial, claim: &Claim) {
        if claim.terminating {
            self.look(LookAgain::Soon);
        } else {
            self.step(Step::DeleteClaim { serial, claim: claim.uid.clone() });
        }
    }

    /// Puts a ticket on a pod. A `create` is written to the ledger with it, with the volume's mark, and goes to no other volume
    /// ever after, nor to the same with another mark.
    pub fn issue_ticket(&mut self, member: &Member<'_>, start: Start, volume: &Uid) {
        let Some(pod) = member.pod else { return };
        let ticket = member.ticket(start, volume);
        match &ticket.start {
            Start::Seed | Start::Join(_) => {
                let entry = self.ledger.members.entry(member.serial).or_default();
                entry.create = Some(volume.clone());
                entry.mark.clone_from(&ticket.mark);
                entry.node.clone_from(&pod.node);
                entry.release.clone_from(&pod.release);
                if let (Start::Seed, Some(release)) = (&ticket.start, &pod.release) {
                    self.ledger.oldest_log = Some(release.version.minor);
                }
            }
            Start::Resume => {}
        }
        self.step(Step::IssueTicket { serial: member.serial, pod: pod.uid.clone(), ticket });
    }

    /// Remembers the node a member's pod is on, its volume, should the ledger have lost it, and what it runs, once that is seen.
    /// Spares are nobody yet: where they are is not worth a write.
    pub fn remember(&mut self, member: &Member<'_>) {
        let Some(entry) = self.ledger.members.get_mut(&member.serial) else { return };
        if entry.create.is_none() && member.started {
            entry.create = member.create.cloned();
        }
        if let (true, Some(node)) = (entry.create.is_some(), member.pod.and_then(|pod| pod.node.as_ref())) {
            entry.node = Some(node.clone());
        }
        // It runs what its pod says: whatever was written down and not done, is as if it had never been.
        if let (true, true, Some(told)) = (entry.create.is_some(), member.runs_as_told(), member.told()) {
            entry.release = Some(told.clone());
            entry.former = None;
        }
    }
}
