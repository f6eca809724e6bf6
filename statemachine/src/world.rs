//! What was observed, and what is wished for. Only data: nothing here decides.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ClusterId, Mark, MemberId, Millis, NodeName, Serial, TemplateHash, Uid,
    ledger::Memory,
    version::{Minor, Release, Version},
};

/// Everything a decision is made from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// When the observation was finished.
    pub now: Millis,
    /// How far the observation of Kubernetes objects may lag behind.
    pub freshness: Freshness,
    /// What the user wants.
    pub wish: Wish,
    /// What the operator wrote down before it acted.
    pub memory: Memory,
    /// The pods and claims with this cluster's labels, by serial.
    pub seats: BTreeMap<Serial, Seat>,
    /// The nodes that pods, volumes or the ledger name.
    pub nodes: BTreeMap<NodeName, NodeSight>,
    /// Those of them that take no new pods: they are about to be drained.
    pub cordoned: BTreeSet<NodeName>,
    /// What etcd says of its members.
    pub membership: Membership,
    /// What etcd says of itself as a whole.
    pub overall: Overall,
    /// The trials of releases.
    pub trials: Vec<Trial>,
    /// The snapshots that were ordered before the members go to a minor, as the spec is now.
    pub snapshots: BTreeMap<Minor, Saved>,
}

/// What came of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Saved {
    /// It is being taken, or waits.
    UnderWay,
    /// It is in the store.
    Taken,
    /// It failed for good.
    Failed,
}

/// Whether Kubernetes objects came from watch caches or from the API server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Freshness {
    /// From watch caches: an object that is not there may only not have been heard of yet.
    Cached,
    /// Read from the API server by quorum reads in this round: what is absent, is absent.
    Quorum,
}

/// What the user wants, from the spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wish {
    /// Whether the cluster is wanted, paused, or being deleted.
    pub life: Life,
    /// How many voters: 0 (hibernate), 1, 3, 5 or 7.
    pub replicas: u8,
    /// The hash that an up-to-date pod carries: over all in it that only a new pod can have.
    pub template: TemplateHash,
    /// The hash of the compute resources, which a pod can be given while it runs.
    pub resources: TemplateHash,
    /// What the members are to run in the end.
    pub release: Release,
    /// The release at which each minor is passed through on the way there. A minor that has none can't be passed.
    pub stops: BTreeMap<Minor, Release>,
    /// Where members keep their data.
    pub storage: Storage,
    /// How large a database may become, in bytes.
    pub quota: u64,
    /// What the first member begins with.
    pub origin: Origin,
    /// A snapshot is taken before the members go to another minor.
    pub snapshot_first: bool,
}

/// What the first member of a cluster begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Nothing.
    Nothing,
    /// A backup.
    Backup(Readiness),
}

/// Whether a backup can be restored, as far as that shows before it is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Readiness {
    /// It can be tried.
    Ready,
    /// It is being taken.
    Awaited,
    /// It can't: there is none, it has failed, or what it takes to reach it is missing.
    Unfit,
}

/// Whether the cluster is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Life {
    /// Serve.
    Wanted,
    /// Leave everything as it is.
    Paused,
    /// The object has a deletion timestamp.
    Deleting,
}

/// Where members keep their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Storage {
    /// On a claim each, with what is to become of it.
    Claims {
        /// When the cluster is deleted.
        on_delete: Retention,
        /// When its member was removed, by scaling down or replacement.
        on_scale_down: Retention,
    },
    /// On an emptyDir: the volume lives and dies with its pod and has the pod's UID.
    Ephemeral,
}

/// What becomes of a claim that is not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Retention {
    /// It stays until the user deletes it.
    Retain,
    /// It is deleted.
    Delete,
}

/// The pod and the claim of one serial.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seat {
    /// Its pod.
    pub pod: Option<Pod>,
    /// Its claim; always `None` with ephemeral storage.
    pub claim: Option<Claim>,
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Its UID: the volume's identity.
    pub uid: Uid,
    /// It was made for this very object (its cluster-uid annotation names the CR's UID).
    pub ours: bool,
    /// It has a deletion timestamp; it goes when its pod goes.
    pub terminating: bool,
    /// Where its volume can be used.
    pub home: Home,
}

/// Where a volume can be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// Not bound yet, not read yet, or usable on several nodes.
    Anywhere,
    /// Only on this node.
    Node(NodeName),
}

/// A pod.
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that Kubernetes shows of it")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Its UID.
    pub uid: Uid,
    /// When it was created.
    pub created: Millis,
    /// Where it was scheduled.
    pub node: Option<NodeName>,
    /// How far it has come.
    pub stage: PodStage,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// What keeps it from running, as the kubelet or the scheduler says.
    pub trouble: Option<Trouble>,
    /// The volume it was made for: its claim's UID when it was created, or its own UID with ephemeral storage.
    pub volume: Uid,
    /// Before its launcher it restores a backup onto that volume.
    pub restores: bool,
    /// The ticket it carries.
    pub ticket: Option<Ticket>,
    /// When that ticket was put on it. Zero if unknown.
    pub ticket_since: Millis,
    /// The hash of the template it was made from.
    pub template: TemplateHash,
    /// The hash of the compute resources it was given.
    pub resources: TemplateHash,
    /// What Kubernetes makes of other resources than it was made with.
    pub resize: Resize,
    /// What it is told to run. `None` if that can't be read.
    pub release: Option<Release>,
    /// It was told to run another image, and the container of the old one is not gone yet.
    pub switching: bool,
    /// What its label says of its member.
    pub label: RoleLabel,
    /// The kubelet says it is ready.
    pub ready: bool,
    /// What answers on its metrics port.
    pub sight: Sight,
    /// When something last answered there; where nothing does, when this operator first looked in vain, with no look in
    /// between that was answered. Zero if it has no address.
    pub heard: Millis,
}

/// What Kubernetes makes of a change of a pod's resources while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resize {
    /// Nothing is under way, or the kubelet is at it.
    #[default]
    Settled,
    /// The node has no room for it now, or never will.
    NoRoom,
    /// This cluster does not do it with this pod: it takes a new one.
    Refused,
}

/// How far a pod has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodStage {
    /// Not all of its containers have been started.
    Pending,
    /// It runs.
    Running,
    /// All its containers ended and will not be started again (evicted, node shut down).
    Finished,
}

/// What a pod's label says of its member's role: whether the disruption budget counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoleLabel {
    /// Nothing: a learner, or nobody yet.
    #[default]
    Absent,
    /// It was made for a voter, or its learner is being promoted, and no voter has been seen to serve in it. The budget
    /// counts it all the same, as one may serve before anybody has looked.
    Returning,
    /// A voter.
    Voter,
}

/// What keeps a pod from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// Etcd's image can't be pulled.
    ImageMissing,
    /// The registry of etcd's image does not answer: that says nothing of the release, nor whether it ran before.
    ImageUnreachable,
    /// The image of what comes along with etcd can't be pulled: that says nothing of the release.
    AgentImageMissing,
    /// No node takes it.
    Unschedulable,
    /// A container fails again and again.
    ContainerFailing,
    /// A container was killed again and again, from outside, or its node is too slow to start it: that is not the fault of
    /// what it runs.
    ContainerKilled,
    /// Etcd's own container runs, and another one in the pod does not: that says nothing of etcd.
    BesideFailing,
}

/// The right to start etcd, as carried by a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// How to start.
    pub start: Start,
    /// The volume it is for.
    pub volume: Uid,
    /// To create: what that volume has to be marked with. None: it may be empty as well.
    pub mark: Option<Mark>,
    /// The version that the binary must have. `None` if that can't be read.
    pub version: Option<Version>,
}

/// How a ticket lets etcd start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// A new cluster of one, on a volume that carries nothing.
    Seed,
    /// A new member, on a volume that carries nothing, of a cluster with exactly these members.
    Join(BTreeSet<MemberId>),
    /// A member that is on its volume already.
    Resume,
}

/// What answers on a pod's metrics port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sight {
    /// Nothing that could be understood, in time: neither dead nor alive.
    Unknown,
    /// The launcher, waiting for a ticket, and what it found the volume marked with, or has marked it with if it was empty.
    Waiting(Option<Mark>),
    /// What restores a backup, before the launcher.
    Restoring(Restore),
    /// The launcher, which does not accept its ticket.
    Refused(Refusal),
    /// etcd.
    Etcd(Alive),
}

/// How a restore fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Restore {
    /// It is at work.
    UnderWay,
    /// It has failed, and tries again.
    Fails,
}

/// Why a launcher does not accept its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The volume carries no data of this member, to resume; nor the mark that it was given, to create. It is lost.
    VolumeLost,
    /// To resume: the volume is this member's, and its log has no entry.
    NoEntry,
    /// The volume carries data that is not this member's.
    VolumeForeign,
    /// The binary that it is to start is missing, or has another version than its ticket says.
    Binary,
    /// Anything that says nothing of the volume's data, nor of what is to run on it: it can't be read now, the ticket is
    /// not for this pod.
    Other,
}

/// What etcd says of itself on its metrics port.
#[expect(clippy::struct_excessive_bools, reason = "each mirrors a gauge or an endpoint of etcd")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alive {
    /// When this was asked.
    pub seen: Millis,
    /// When its process was started: two sights with one value are of one life.
    pub process: Millis,
    /// It sees a leader.
    pub has_leader: bool,
    /// It leads.
    pub leads: bool,
    /// It counts itself as a learner. One of 3.5 that joined by a snapshot does not.
    pub learner: bool,
    /// The raft index it knows as committed.
    pub committed: u64,
    /// The raft index it has applied.
    pub applied: u64,
    /// When it last came further: applied more, or was being sent a snapshot. As far as this operator knows, which may have
    /// looked for the first time only now.
    pub progressed: Millis,
    /// `/livez` answers 200.
    pub live: bool,
    /// The version it runs. `None` if that can't be read.
    pub version: Option<Version>,
    /// The version that it knows the cluster to run at. `None` until it is decided.
    pub cluster_version: Option<Minor>,
    /// The version of its database file, where it was asked for.
    pub storage: Option<Minor>,
    /// The other members that it has a connection to.
    pub links: BTreeMap<MemberId, Link>,
}

/// How a member's connection to another one shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// etcd counts it.
    Counted,
    /// etcd counts it as broken and sends over it all the same. A leader that overlooks members so refuses to change the
    /// member list ("unhealthy cluster"), for as long as it leads.
    Overlooked,
}

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeSight {
    /// Ready.
    Ready,
    /// Not ready, or unreachable, since this time: its pods may well be running.
    NotReady(Millis),
    /// Its object is deleted, or tainted out-of-service: nothing runs there, by declaration.
    Gone,
}

/// What etcd says of itself as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Overall {
    /// It was not asked, or nobody answered.
    Unknown,
    /// The gravest alarm that is raised, as the leader said. Of a downgrade it can't tell, and nobody who can has answered; or
    /// it was asked for a word of it where no status tells, in vain.
    OfAlarms(Option<Alarm>),
    /// What the leader said, and of a downgrade perhaps another, who can tell of it.
    Known {
        /// The minor that the cluster may be taken down to, if that was enabled.
        downgrade: Option<Minor>,
        /// The gravest alarm that is raised.
        alarm: Option<Alarm>,
    },
}

/// An alarm of etcd. While one is raised, every member refuses writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Alarm {
    /// A database has reached its quota (`NOSPACE`).
    NoSpace,
    /// A member holds other data than the others (`CORRUPT`).
    Corrupt,
}

/// A short-lived pod on a member's node, in which the image of a release says its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trial {
    /// For this member.
    pub serial: Serial,
    /// Its UID.
    pub uid: Uid,
    /// Of this release.
    pub release: Release,
    /// With the flags of this template.
    pub template: TemplateHash,
    /// On this node.
    pub node: NodeName,
    /// When it was created.
    pub created: Millis,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// What has come of it.
    pub outcome: Outcome,
}

/// What has come of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Nothing yet.
    Open,
    /// The image is there, has the version, and takes the flags.
    Passed,
    /// The image can't be pulled. It may come yet.
    ImageMissing,
    /// The image's registry does not answer: that says nothing of the release. It may come yet.
    ImageUnreachable,
    /// The image of what comes along with etcd can't be pulled: that says nothing of the release. It may come yet.
    AgentImageMissing,
    /// The image has another version, does not take the flags, or does not run.
    Failed,
    /// Nothing was found out: the pod was evicted, or not admitted.
    Undecided,
}

/// What etcd says of its members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    /// Nobody gave a linearizable answer in time.
    Unknown,
    /// A linearizable member list.
    Known(MemberList),
}

/// A linearizable member list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberList {
    /// The cluster's id.
    pub cluster: ClusterId,
    /// Who leads, if the answering member knew.
    pub leader: Option<MemberId>,
    /// The members.
    pub members: BTreeMap<MemberId, Listed>,
}

impl MemberList {
    /// The line of the member of this serial, if there is one.
    pub fn listed(&self, serial: Serial) -> Option<&Listed> {
        self.members.values().find(|listed| listed.serial == Some(serial))
    }
}

/// One line of a member list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listed {
    /// The serial its peer URL belongs to; `None` if that is not one of this cluster's.
    pub serial: Option<Serial>,
    /// Voter or learner.
    pub role: Role,
    /// It has published its name once.
    pub started: bool,
}

/// Who is a member, and as what: what each change of the members is bound to. The ids alone are not enough: a learner that
/// was to be removed at no cost may have become a voter meanwhile.
pub type Roster = BTreeMap<MemberId, Role>;

/// What a member counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It votes.
    Voter,
    /// It listens.
    Learner,
}
