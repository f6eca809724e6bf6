//! What the ledger remembers: written down before the act it records. Only data: nothing here decides.

use std::collections::BTreeMap;

use crate::{
    ClusterId, Mark, MemberId, NodeName, Serial, Uid,
    version::{Minor, Release},
};

/// What is known of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The status holds none: a cluster that has not begun, or one whose status was lost.
    Blank,
    /// The status holds one that cannot be read.
    Unreadable,
    /// The ledger.
    Ledger(Ledger),
}

impl Memory {
    /// Whether a seed was told to create the cluster, as far as is written down. What can't be read may say so.
    pub fn may_have_begun(&self) -> bool {
        match self {
            Self::Blank => false,
            Self::Unreadable => true,
            Self::Ledger(ledger) => ledger.seeding != Seeding::NotBegun,
        }
    }
}

/// What the operator wrote down, by compare-and-swap, before the act it records: nothing else can prove it afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// How far the one seed of this cluster's life has come.
    pub seeding: Seeding,
    /// The lowest serial that was never handed out.
    pub next_serial: Serial,
    /// The members and spares that exist or are about to.
    pub members: BTreeMap<Serial, Entry>,
    /// The oldest minor in whose form members may still have log entries, on disk or in memory. `None` if nobody knows.
    pub oldest_log: Option<Minor>,
    /// On every member's disk the entries in an older form lie behind a raft snapshot, so that nobody reads them again.
    pub logs_cut: bool,
    /// The release that a member failed on and was taken back from: not tried again until another one is wished.
    pub failed: Option<Failed>,
}

/// A release that a member failed on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failed {
    /// The release.
    pub release: Release,
    /// What was wished when it failed: the release itself, or one further on.
    pub wished: Release,
    /// The member.
    pub serial: Serial,
}

/// How far the one seed of a cluster's life has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seeding {
    /// No `create` was issued for a seed.
    #[default]
    NotBegun,
    /// A `create` was issued, or is about to be, for this member; nobody else is ever the seed.
    Begun(Serial),
    /// The seed was seen serving as this cluster.
    Done(ClusterId),
}

/// What the ledger says of one serial.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The volume that a `create` was issued for; it goes to no other. None: no `create` was issued.
    pub create: Option<Uid>,
    /// What that volume was marked with then: whoever creates finds the same, or the volume was emptied since. None: the
    /// launcher told of no mark.
    pub mark: Option<Mark>,
    /// The node on which the member was last seen with a pod.
    pub node: Option<NodeName>,
    /// What it was in etcd's member list when that was last read.
    pub standing: Standing,
    /// What it was last told to run. `None`: no `create` was issued.
    pub release: Option<Release>,
    /// What it ran before that, until it is seen well on what it was last told to run.
    pub former: Option<Release>,
}

/// What a serial was in etcd's member list when that was last read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// Not in the list: a spare, or the seed before it serves.
    #[default]
    Spare,
    /// A learner.
    Learner(MemberId),
    /// A voter.
    Voter(MemberId),
}
