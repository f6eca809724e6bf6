//! What a decision says: the steps, the ledger they need first, and what to tell. Only data.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Ledger, MemberId, Serial, Ticket, Uid};

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Derived and shown, never stored as truth.
    pub phase: Phase,
    /// The ledger as it has to stand in status before the first step. `None`: as it is.
    pub ledger: Option<Ledger>,
    /// In this order; at the first surprise the rest is dropped and the world is observed again. At most one of them
    /// changes the member list.
    pub steps: Vec<Step>,
    /// The `minAvailable` of the disruption budget, to be in force before the steps. `None`: as it is.
    pub budget: Option<u8>,
    /// What to tell, by whom it is about (`None`: the cluster).
    pub findings: BTreeMap<Option<Serial>, BTreeSet<Finding>>,
    /// When to observe again if nothing happens.
    pub look_again: LookAgain,
}

/// What the cluster is going through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Not begun.
    Pending,
    /// The seed is being started.
    Seeding,
    /// Becoming larger: from the seed, or because more members are wished for.
    Growing,
    /// As wished.
    Running,
    /// Becoming smaller.
    Scaling,
    /// A member or its pod is being brought back or replaced.
    Healing,
    /// Pods are being brought up to date one at a time.
    Restarting,
    /// No pods, by wish; volumes kept.
    Hibernated,
    /// The volumes of a majority are lost, or the seed's.
    QuorumLost,
    /// Left alone, by wish.
    Paused,
    /// Being deleted.
    Deleting,
    /// It can't begin or go on without the user.
    Failed,
}

/// One act. Each is guarded where it is done, as told here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Create the claim of a serial that has none. Guard: the name is free.
    CreateClaim(Serial),
    /// Create a pod. Guard: the name is free, and the claim has the UID that `bind` says.
    CreatePod {
        /// For this serial.
        serial: Serial,
        /// On this volume.
        bind: Bind,
        /// With a ticket from birth: only ever one to resume.
        resume: bool,
    },
    /// Put a ticket on a pod. Guard: the pod's UID, and that the pod was not changed since it was observed.
    IssueTicket {
        /// To this serial's pod.
        serial: Serial,
        /// With this UID.
        pod: Uid,
        /// The ticket.
        ticket: Ticket,
    },
    /// Delete a pod, with grace. Guard: its UID, and that it was not changed since it was observed.
    DeletePod {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        pod: Uid,
    },
    /// Delete a claim. Guard: its UID; and the member list, read again, does not hold the serial (a list that can't
    /// be read forbids it, unless the whole cluster is being deleted).
    DeleteClaim {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        claim: Uid,
    },
    /// Put the voter's label on a pod, or take it off. Guard: the pod's UID.
    LabelPod {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        pod: Uid,
        /// On or off.
        voter: bool,
    },
    /// Add a learner. Guard: the linearizable member list equals `expect`, and the object was written by nobody else since
    /// it was observed: two operators can add a learner and remove it again, which brings the list back to `expect`.
    AddLearner {
        /// For this serial.
        serial: Serial,
        /// The member list planned from.
        expect: BTreeSet<MemberId>,
    },
    /// Make a learner a voter. Guard: the linearizable member list equals `expect`, and the learner, asked again, is
    /// alive in the process that was observed and caught up.
    Promote {
        /// Of this serial.
        serial: Serial,
        /// With this id.
        id: MemberId,
        /// The member list planned from.
        expect: BTreeSet<MemberId>,
    },
    /// Remove a member. Guard: the linearizable member list equals `expect`.
    Remove {
        /// Of this serial.
        serial: Option<Serial>,
        /// With this id.
        id: MemberId,
        /// The member list planned from.
        expect: BTreeSet<MemberId>,
    },
    /// Move the leadership. Guard: `from` still leads.
    MoveLeader {
        /// From this member.
        from: MemberId,
        /// To this one.
        to: MemberId,
    },
    /// Take our finalizer off the object, which is being deleted.
    ReleaseFinalizer,
}

/// The volume a new pod is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bind {
    /// The claim that was observed with this UID.
    Claim(Uid),
    /// The claim that was created by a step before, in the same plan.
    NewClaim,
    /// An emptyDir.
    Ephemeral,
}

/// What there is to tell. The operator has a reason and a sentence for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    /// The status holds no ledger, but there are claims or pods made for this very object: nothing is seeded.
    LedgerMissing,
    /// The status holds a ledger that can't be read.
    LedgerUnreadable,
    /// Claims with this cluster's labels were made for another object: an earlier cluster of that name.
    VolumesOfAnother,
    /// Nobody gave a linearizable answer: no membership changes until somebody does.
    EtcdUnknown,
    /// The member list holds members that are not ours: no membership changes until they are removed by hand.
    MembersOfAnother,
    /// The volumes of a majority are lost, or the seed's: nothing is started in their place.
    QuorumLost,
    /// Something has to wait because healthy voters are too few to take it.
    QuorumTooThin,
    /// The seed's volume carries data of somebody else: empty it.
    SeedRefused,
    /// The member's volume is lost.
    VolumeLost,
    /// The member's volume carries data of somebody else.
    VolumeForeign,
    /// The member's claim is being deleted under it: a successor comes first.
    VolumeGoing,
    /// The launcher does not accept its ticket, for a reason that is not the volume's data.
    LauncherRefuses,
    /// The member has no pod.
    PodMissing,
    /// The member's pod is on a node that is not ready: it may be running, so nothing is started elsewhere.
    NodeUnreachable,
    /// The member's node is gone, and its volume with it.
    NodeGone,
    /// The pod can't run: an image can't be pulled.
    ImageMissing,
    /// The pod can't run: no node takes it.
    Unschedulable,
    /// The pod can't run: its container fails again and again.
    ContainerFailing,
    /// A learner did not come up or did not catch up in time: it is removed, another takes its place.
    LearnerGivenUp,
    /// A pod is out of date and will be replaced when its turn comes.
    PodOutdated,
}

/// When to observe again if nothing happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LookAgain {
    /// At once: something was done that has an effect right away.
    AtOnce,
    /// In a transition: every 100 to 500 ms.
    Soon,
    /// Something is wrong that only the outside mends: every few seconds.
    Later,
    /// At rest: every 30 s or so.
    AtRest,
}

impl Plan {
    /// Whether this may be done or told only after a look by quorum reads: acting on an old picture could do harm, and
    /// a volume that was not heard of yet is not lost.
    pub fn needs_fresh_look(&self) -> bool {
        let alarming = match self.phase {
            Phase::QuorumLost | Phase::Failed => true,
            Phase::Pending
            | Phase::Seeding
            | Phase::Growing
            | Phase::Running
            | Phase::Scaling
            | Phase::Healing
            | Phase::Restarting
            | Phase::Hibernated
            | Phase::Paused
            | Phase::Deleting => false,
        };
        alarming || self.ledger.is_some() || self.steps.iter().any(Step::is_weighty)
    }
}

impl Step {
    /// Whether it changes the member list.
    pub fn changes_members(&self) -> bool {
        match self {
            Self::AddLearner { .. } | Self::Promote { .. } | Self::Remove { .. } => true,
            Self::CreateClaim(_)
            | Self::CreatePod { .. }
            | Self::IssueTicket { .. }
            | Self::DeletePod { .. }
            | Self::DeleteClaim { .. }
            | Self::LabelPod { .. }
            | Self::MoveLeader { .. }
            | Self::ReleaseFinalizer => false,
        }
    }

    /// Whether doing it from an old picture could do harm. A label is put right by the next round, and a pod that
    /// exists already can't be created again.
    fn is_weighty(&self) -> bool {
        match self {
            Self::LabelPod { .. } | Self::MoveLeader { .. } => false,
            Self::CreateClaim(_)
            | Self::CreatePod { .. }
            | Self::IssueTicket { .. }
            | Self::DeletePod { .. }
            | Self::DeleteClaim { .. }
            | Self::AddLearner { .. }
            | Self::Promote { .. }
            | Self::Remove { .. }
            | Self::ReleaseFinalizer => true,
        }
    }
}
