//! What a decision says: the steps, the ledger they need first, and what to tell. Only data.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Alarm, Ledger, MemberId, Minor, NodeName, Release, Role, RoleLabel, Roster, Serial, Start, Ticket, Uid};

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Derived and shown, never stored as truth.
    pub phase: Phase,
    /// The ledger as it has to stand in status before the first step. `None`: as it is.
    pub ledger: Option<Ledger>,
    /// In this order, but those in a row at once that concern one member each ([`Step::of_one_member`]), for each member in
    /// order. At the first surprise the rest is dropped, save what is under way for others, and the world is observed
    /// again; a claim or pod that Kubernetes refuses to make holds up its own member only, but for voters' pods that were to be
    /// deleted. One of them changes the member list, or two add learners, or two promote.
    pub steps: Vec<Step>,
    /// The `minAvailable` of the disruption budget, to be in force before the steps. `None`: as it is.
    pub budget: Option<u8>,
    /// What the members are being brought to run now: what is wished, or a release on the way there. `None` where all run
    /// what is wished, or nothing is known of it.
    pub heading: Option<Release>,
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
    /// A backup is being restored onto the volume of who is to be the seed.
    Restoring,
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
    /// The members are being brought to another version, one at a time.
    Upgrading,
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
        /// To begin like this.
        birth: Birth,
        /// Told to run this.
        release: Release,
    },
    /// Put a ticket on a pod. Guard: the pod's UID, and that nothing of it was changed since it was observed that a plan goes by,
    /// but for what is reported of its containers. An etcd that begins is awaited for a moment; if it does not answer by then, or
    /// somebody wrote the object meanwhile, the steps after it are left to a later plan, save those right after it that concern
    /// one member each.
    IssueTicket {
        /// To this serial's pod.
        serial: Serial,
        /// With this UID.
        pod: Uid,
        /// The ticket.
        ticket: Ticket,
    },
    /// Tell a pod to run another release: its image, and its ticket if it has one, in one write. The pod and its volumes
    /// stay. Guard: the pod's UID, and that neither the pod nor the object was changed since they were observed.
    SwitchRelease {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        pod: Uid,
        /// From now on this.
        release: Release,
        /// The ticket that it carries from now on, if it carries one.
        ticket: Option<Ticket>,
    },
    /// Give a pod the wished compute resources while it runs. If Kubernetes does not do that, the pod is marked, so that
    /// the next plan knows. Guard: the pod's UID.
    ResizePod {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        pod: Uid,
    },
    /// Make a short-lived pod in which a release says its version and takes its flags. It stops nothing. Guard: the name
    /// is free.
    TryRelease {
        /// For this serial.
        serial: Serial,
        /// On its node.
        node: NodeName,
        /// This release.
        release: Release,
    },
    /// Delete the pod of a trial. Guard: its UID.
    EndTrial {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        trial: Uid,
    },
    /// Order a snapshot before the members go to this minor. Guard: the name is free.
    TakeSnapshot(Minor),
    /// Let etcd lower the version that the cluster runs at. Guard: etcd's own, which refuses all but the minor below.
    EnableDowngrade(Minor),
    /// Take that back. Guard: etcd's own.
    CancelDowngrade,
    /// Delete a pod, with grace. Guard: its UID, and that neither it nor the object was changed since they were observed; and if the
    /// serial is no member, that those who are have it on their disks that it is none.
    DeletePod {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        pod: Uid,
    },
    /// Delete a claim. Guard: its UID; and the member list, read again, does not hold the serial, and those who are members have that
    /// on their disks (a list that can't be read forbids it, unless the whole cluster is being deleted).
    DeleteClaim {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        claim: Uid,
    },
    /// Let a pod's label say this of its member's role. Guard: the pod's UID.
    LabelPod {
        /// Of this serial.
        serial: Serial,
        /// With this UID.
        pod: Uid,
        /// This is what it says from then on.
        label: RoleLabel,
    },
    /// Add a learner. Guard: the linearizable member list equals `expect`, with the learner that was added before, and the
    /// object was written by nobody else since it was observed: two operators can add a learner and remove it again, which
    /// brings the list back to `expect`.
    AddLearner {
        /// For this serial.
        serial: Serial,
        /// The members planned from.
        expect: Roster,
        /// The serial for which a step before it in the same plan adds a learner, whose id is known only then.
        after: Option<Serial>,
    },
    /// Make a learner a voter. Guard: the linearizable member list equals `expect`, and the learner, asked again, is
    /// alive in the process that was observed and caught up.
    Promote {
        /// Of this serial.
        serial: Serial,
        /// With this id.
        id: MemberId,
        /// The members planned from.
        expect: Roster,
    },
    /// Remove a member. Guard: the linearizable member list equals `expect`; if it was seen to serve and votes, all other voters
    /// serve now, and if not, it does not answer now either. Those who stay have it on their disks when it is done.
    Remove {
        /// Of this serial.
        serial: Option<Serial>,
        /// With this id.
        id: MemberId,
        /// The members planned from.
        expect: Roster,
    },
    /// Move the leadership. Guard: `from` still leads, and `to` serves.
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

/// How a new pod begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Birth {
    /// Its launcher waits for a ticket.
    Waiting,
    /// It restores a backup onto its volume; then its launcher waits for a ticket. Never after a seed was chosen.
    Restoring,
    /// It has a ticket to resume from the start, and that of a voter a label by which the budget counts it.
    Resuming(Role),
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
    /// The member's node is gone; its volume too, if that was of the node.
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
    /// A pod has other compute resources than wished and will be resized when its turn comes.
    ResourcesOutdated,
    /// A pod's node has no room for the wished compute resources.
    NoRoomToResize,
    /// A member is told to run something else than wished, or runs something else than told: its turn comes.
    ReleaseOutdated,
    /// The next member has to wait until all are ready, caught up and connected to each other.
    RollWaits,
    /// The member's pod is out of date and not replaced: its volume is of its node, and that takes no new pods.
    NodeCordoned,
    /// What the members run, or the cluster runs at, could not be learned: the next step waits.
    VersionsUnknown,
    /// All members run the new minor. etcd is about to move the version of the cluster, which takes it some seconds.
    ClusterVersionLags,
    /// A downgrade is enabled. etcd is about to lower the version of the cluster, and of each database.
    DowngradeUnderWay,
    /// The members take raft snapshots, so that no log entry is left that the next minor can't read.
    LogsAreCut,
    /// An alarm is raised: versions are not changed before it is mended.
    AlarmRaised,
    /// This alarm is raised: etcd refuses writes.
    Alarm(Alarm),
    /// The way leads through a minor for which the spec names no image.
    NoWayThrough,
    /// A member runs a patch from which the next minor must not be gone to, and no later patch is known.
    BelowFloor,
    /// The new image is being tried on the member's node.
    TrialOpen,
    /// The member's node could not try it: it turned the pod away, or stopped it. It is asked again.
    TrialUndecided,
    /// The new image, or that of what comes along with it, can't be pulled on the member's node. Nothing was stopped.
    TrialImageMissing,
    /// The new image has another version, does not take the flags, or does not run. Nothing was stopped.
    TrialFailed,
    /// A snapshot is being taken before the members go to another minor.
    SnapshotOpen,
    /// That snapshot could not be taken. Nothing was stopped.
    SnapshotFailed,
    /// A member failed on the new release and was taken back to the old one. The others stay as they are.
    ReleaseFailed,
    /// The backup that the cluster is to begin with is still being taken.
    BackupAwaited,
    /// The backup that the cluster is to begin with can't be restored: there is none, it has failed, or what it takes to
    /// reach it is missing.
    BackupUnfit,
    /// The restore fails, and is tried again.
    RestoreFails,
}

/// When to observe again if nothing happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LookAgain {
    /// At once: something was done that has an effect right away.
    AtOnce,
    /// In a transition: after some 50 ms, unless nothing moves for long.
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
        self.phase.is_alarming() || self.ledger.is_some() || self.steps.iter().any(Step::is_weighty)
    }
}

impl Phase {
    /// Whether only somebody else can help.
    pub fn is_alarming(self) -> bool {
        match self {
            Self::QuorumLost | Self::Failed => true,
            Self::Pending
            | Self::Restoring
            | Self::Seeding
            | Self::Growing
            | Self::Running
            | Self::Scaling
            | Self::Healing
            | Self::Restarting
            | Self::Upgrading
            | Self::Hibernated
            | Self::Paused
            | Self::Deleting => false,
        }
    }
}

impl Step {
    /// Whose claim or pod alone it concerns, if nothing else waits for what comes of it: such steps in a row are taken at once for
    /// all these members.
    pub fn of_one_member(&self) -> Option<Serial> {
        match self {
            Self::IssueTicket { serial, pod: _, ticket } => match ticket.start {
                Start::Resume => Some(*serial),
                Start::Seed | Start::Join(_) => None,
            },
            Self::CreateClaim(serial) | Self::CreatePod { serial, .. } | Self::LabelPod { serial, .. } => Some(*serial),
            Self::DeletePod { .. }
            | Self::DeleteClaim { .. }
            | Self::AddLearner { .. }
            | Self::Promote { .. }
            | Self::Remove { .. }
            | Self::MoveLeader { .. }
            | Self::SwitchRelease { .. }
            | Self::ResizePod { .. }
            | Self::TryRelease { .. }
            | Self::EndTrial { .. }
            | Self::TakeSnapshot(_)
            | Self::EnableDowngrade(_)
            | Self::CancelDowngrade
            | Self::ReleaseFinalizer => None,
        }
    }

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
            | Self::SwitchRelease { .. }
            | Self::ResizePod { .. }
            | Self::TryRelease { .. }
            | Self::EndTrial { .. }
            | Self::TakeSnapshot(_)
            | Self::EnableDowngrade(_)
            | Self::CancelDowngrade
            | Self::MoveLeader { .. }
            | Self::ReleaseFinalizer => false,
        }
    }

    /// Whether it belongs to a growth up to its promotions, which changes neither who votes nor what runs in a voter's pod that is
    /// there: what the voters said right before is as good after it. Of other steps this is not counted on; they are rare.
    pub fn leaves_voters_alone(&self) -> bool {
        match self {
            Self::CreateClaim(_) | Self::CreatePod { .. } | Self::LabelPod { .. } | Self::AddLearner { .. } => true,
            Self::IssueTicket { serial: _, pod: _, ticket } => match ticket.start {
                Start::Join(_) => true,
                // A voter may have waited for it.
                Start::Seed | Start::Resume => false,
            },
            Self::DeletePod { .. }
            | Self::DeleteClaim { .. }
            | Self::SwitchRelease { .. }
            | Self::ResizePod { .. }
            | Self::TryRelease { .. }
            | Self::EndTrial { .. }
            | Self::TakeSnapshot(_)
            | Self::Promote { .. }
            | Self::Remove { .. }
            | Self::MoveLeader { .. }
            | Self::EnableDowngrade(_)
            | Self::CancelDowngrade
            | Self::ReleaseFinalizer => false,
        }
    }

    /// Whether doing it from an old picture could do harm. A label is put right by the next round, and a pod that
    /// exists already can't be created again.
    fn is_weighty(&self) -> bool {
        match self {
            Self::LabelPod { .. }
            | Self::MoveLeader { .. }
            | Self::ResizePod { .. }
            | Self::TryRelease { .. }
            | Self::EndTrial { .. }
            | Self::TakeSnapshot(_) => false,
            Self::SwitchRelease { .. }
            | Self::EnableDowngrade(_)
            | Self::CancelDowngrade
            | Self::CreateClaim(_)
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
