//! Plans in words, and what can be asserted of them.

use std::collections::BTreeSet;

use quorate_statemachine::{
    Bind, Birth, Entry, Finding, Ledger, LookAgain, MemberId, Memory, Phase, Plan, RoleLabel, Roster, Serial, Start,
    Step, Version, plan,
};

use super::{Scene, USUAL};

/// A scene with the plan for it.
pub struct Told {
    scene: Scene,
    pub plan: Plan,
}

impl Scene {
    pub fn plan(&self) -> Told {
        Told { scene: self.clone(), plan: plan(&self.world) }
    }
}

impl Told {
    /// These are the steps, in this order.
    #[track_caller]
    pub fn does<const N: usize>(self, steps: [&str; N]) -> Self {
        let planned: Vec<_> = self.plan.steps.iter().map(|step| self.in_words(step)).collect();
        assert_eq!(planned, steps.to_vec(), "{:#?}", self.plan);
        self
    }

    /// This is one of the steps.
    #[track_caller]
    pub fn also_does(self, step: &str) -> Self {
        let planned: Vec<_> = self.plan.steps.iter().map(|step| self.in_words(step)).collect();
        assert!(planned.iter().any(|planned| planned == step), "not {step:?} in {planned:?}");
        self
    }

    /// No step begins like this.
    #[track_caller]
    pub fn never(self, beginning: &str) -> Self {
        let planned: Vec<_> = self.plan.steps.iter().map(|step| self.in_words(step)).collect();
        assert!(!planned.iter().any(|planned| planned.starts_with(beginning)), "{beginning:?} in {planned:?}");
        self
    }

    #[track_caller]
    pub fn phase(self, phase: Phase) -> Self {
        assert_eq!(self.plan.phase, phase, "{:#?}", self.plan);
        self
    }

    /// This is told of a serial.
    #[track_caller]
    pub fn tells(self, serial: u32, finding: Finding) -> Self {
        let told = self.plan.findings.get(&Some(Serial(serial)));
        assert!(told.is_some_and(|told| told.contains(&finding)), "{:#?}", self.plan.findings);
        self
    }

    /// This is told of the cluster.
    #[track_caller]
    pub fn tells_all(self, finding: Finding) -> Self {
        let told = self.plan.findings.get(&None);
        assert!(told.is_some_and(|told| told.contains(&finding)), "{:#?}", self.plan.findings);
        self
    }

    #[track_caller]
    pub fn tells_nothing(self) -> Self {
        assert!(self.plan.findings.is_empty(), "{:#?}", self.plan.findings);
        self
    }

    #[track_caller]
    pub fn looks(self, look_again: LookAgain) -> Self {
        assert_eq!(self.plan.look_again, look_again, "{:#?}", self.plan);
        self
    }

    #[track_caller]
    pub fn budget(self, min_available: u8) -> Self {
        assert_eq!(self.plan.budget, Some(min_available));
        self
    }

    /// The budget stays as it is.
    #[track_caller]
    pub fn keeps_budget(self) -> Self {
        assert_eq!(self.plan.budget, None, "{:#?}", self.plan);
        self
    }

    /// What the members are being brought to.
    #[track_caller]
    pub fn heads_for(self, version: Option<Version>) -> Self {
        assert_eq!(self.plan.heading.as_ref().map(|release| release.version), version);
        self
    }

    #[track_caller]
    pub fn keeps_ledger(self) -> Self {
        assert_eq!(self.plan.ledger, None);
        self
    }

    /// The ledger that is written first.
    #[track_caller]
    pub fn ledger(&self) -> &Ledger {
        self.plan.ledger.as_ref().expect("the plan writes a ledger")
    }

    /// What the ledger says of a serial once the plan is carried out.
    pub fn entry(&self, serial: u32) -> Option<&Entry> {
        let ledger = self.plan.ledger.as_ref().or(match &self.scene.world.memory {
            Memory::Blank | Memory::Unreadable => None,
            Memory::Ledger(ledger) => Some(ledger),
        })?;
        ledger.members.get(&Serial(serial))
    }

    fn in_words(&self, step: &Step) -> String {
        let expect = |expect: &Roster| {
            let ids: BTreeSet<MemberId> = expect.keys().copied().collect();
            assert_eq!(ids, self.scene.listed_ids(), "a change of members is bound to the list it was planned from");
        };
        match step {
            Step::CreateClaim(serial) => format!("claim {serial}"),
            Step::CreatePod { serial, bind, birth, release } => {
                let verb = match birth {
                    Birth::Waiting => "pod",
                    Birth::Restoring => "restore",
                    Birth::Resuming(_) => "resume",
                };
                let what = if release.version == USUAL { String::new() } else { format!(" as {}", release.version) };
                match bind {
                    Bind::Claim(uid) => format!("{verb} {serial} on {}{what}", uid.as_str()),
                    Bind::NewClaim => format!("{verb} {serial} on new claim{what}"),
                    Bind::Ephemeral => format!("{verb} {serial} on emptyDir{what}"),
                }
            }
            Step::IssueTicket { serial, pod, ticket } => {
                assert_eq!(pod.as_str(), format!("pod-{serial}"));
                let start = match &ticket.start {
                    Start::Seed => "seed".to_owned(),
                    Start::Join(ids) => format!("join {:?}", ids.iter().map(|id| id.0 - 100).collect::<Vec<_>>()),
                    Start::Resume => "resume".to_owned(),
                };
                format!("ticket {serial}: {start} on {}", ticket.volume.as_str())
            }
            Step::SwitchRelease { serial, pod, release, ticket } => {
                assert_eq!(pod.as_str(), format!("pod-{serial}"));
                assert!(ticket.as_ref().is_none_or(|ticket| ticket.version == Some(release.version)));
                let verb = if ticket.is_some() { "switch" } else { "prepare" };
                format!("{verb} {serial} to {}", release.image.as_str().trim_start_matches("etcd:v"))
            }
            Step::ResizePod { serial, .. } => format!("resize {serial}"),
            Step::TryRelease { serial, release, .. } => format!("try {} for {serial}", release.version),
            Step::EndTrial { trial, .. } => format!("end {}", trial.as_str()),
            Step::TakeSnapshot(to) => format!("snapshot before {to}"),
            Step::EnableDowngrade(to) => format!("downgrade to {to}"),
            Step::CancelDowngrade => "cancel downgrade".to_owned(),
            Step::DeletePod { serial, .. } => format!("delete pod {serial}"),
            Step::DeleteClaim { serial, .. } => format!("delete claim {serial}"),
            Step::LabelPod { serial, label: RoleLabel::Voter, .. } => format!("label {serial}"),
            Step::LabelPod { serial, label: RoleLabel::Returning, .. } => format!("count {serial}"),
            Step::LabelPod { serial, label: RoleLabel::Absent, .. } => format!("unlabel {serial}"),
            Step::AddLearner { serial, expect: list, after } => {
                expect(list);
                after.map_or_else(|| format!("add {serial}"), |after| format!("add {serial} after {after}"))
            }
            Step::Promote { serial, expect: list, .. } => {
                expect(list);
                format!("promote {serial}")
            }
            Step::Remove { serial: _, id, expect: list } => {
                expect(list);
                format!("remove {}", id.0 - 100)
            }
            Step::MoveLeader { from, to } => format!("move leader {} to {}", from.0 - 100, to.0 - 100),
            Step::ReleaseFinalizer => "release".to_owned(),
        }
    }
}
