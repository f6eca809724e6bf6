//! A plan while it is being made. The jobs add to it; it decides nothing but what no job may do.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Bind, Finding, Ledger, LookAgain, Memory, Phase, Plan, Serial, Start, Step, Storage, Ticket, Uid, World,
    member::{Ground, Member},
};

/// A plan while it is being made.
pub struct Draft<'w> {
    pub world: &'w World,
    /// The ledger as it will stand before the first step.
    pub ledger: Ledger,
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
            findings: self.findings,
            look_again: self.look_again,
        }
    }

    /// Adds a step, and looks again as soon as it can have had an effect.
    pub fn step(&mut self, step: Step) {
        let at_once = step.changes_members() || matches!(step, Step::MoveLeader { .. });
        self.look(if at_once { LookAgain::AtOnce } else { LookAgain::Soon });
        self.steps.push(step);
    }

    /// Whether nothing is to be done so far.
    pub fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the member list is to be changed: one change a plan, and no ticket that names the list beside it.
    pub fn changes_members(&self) -> bool {
        self.steps.iter().any(Step::changes_members)
    }

    /// Whether the pod of a serial is to be deleted.
    pub fn deletes_pod(&self, of: Serial) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::DeletePod { serial, .. } if *serial == of))
    }

    /// Whether a learner is to become a voter.
    pub fn promotes(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Promote { .. }))
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
    pub fn create_seat(&mut self, serial: Serial) {
        let bind = match self.world.wish.storage {
            Storage::Claims { .. } => {
                self.step(Step::CreateClaim(serial));
                Bind::NewClaim
            }
            Storage::Ephemeral => Bind::Ephemeral,
        };
        self.step(Step::CreatePod { serial, bind, resume: false });
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

    /// Puts a ticket on a pod. A `create` is written to the ledger with it, and goes to no other volume ever after.
    pub fn issue_ticket(&mut self, member: &Member<'_>, start: Start, volume: &Uid) {
        let Some(pod) = member.pod else { return };
        match &start {
            Start::Seed | Start::Join(_) => {
                let entry = self.ledger.members.entry(member.serial).or_default();
                entry.create = Some(volume.clone());
                entry.node.clone_from(&pod.node);
            }
            Start::Resume => {}
        }
        let ticket = Ticket { start, volume: volume.clone() };
        self.step(Step::IssueTicket { serial: member.serial, pod: pod.uid.clone(), ticket });
    }

    /// Remembers the node a member's pod is on, and its volume, should the ledger have lost it. Spares are nobody yet:
    /// where they are is not worth a write.
    pub fn remember(&mut self, member: &Member<'_>) {
        let Some(entry) = self.ledger.members.get_mut(&member.serial) else { return };
        if entry.create.is_none() && member.started {
            entry.create = member.create.cloned();
        }
        if let (true, Some(node)) = (entry.create.is_some(), member.pod.and_then(|pod| pod.node.as_ref())) {
            entry.node = Some(node.clone());
        }
    }
}
