//! What was recorded of a run: calls with their intervals, what watches saw, who was a member when, and what the operator
//! did. Plain data; the checks next door judge it.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::clock::Moment;

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(pub String);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value. No two writes of a run write the same one, so it also names the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Value(pub u64);

impl Value {
    /// What no client wrote.
    pub const FOREIGN: Self = Self(u64::MAX);
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A revision of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub i64);

impl Revision {
    /// The next.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who made a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClientId(pub u32);

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Op {
    /// Write this value.
    Put(Value),
    /// Read, linearizably.
    Get,
    /// Delete the key.
    Delete,
    /// Write `to` if the key holds `from` (nothing: if it is absent), in one transaction.
    Swap {
        /// What it has to hold.
        from: Option<Value>,
        /// What it holds then.
        to: Value,
    },
}

impl Op {
    /// Whether it can change anything.
    pub fn writes(&self) -> bool {
        match self {
            Self::Put(_) | Self::Delete | Self::Swap { .. } => true,
            Self::Get => false,
        }
    }

    /// The value that is there once it has written.
    pub fn leaves(&self) -> Option<Value> {
        match *self {
            Self::Put(value) | Self::Swap { from: _, to: value } => Some(value),
            Self::Delete | Self::Get => None,
        }
    }
}

/// What a read finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Found {
    /// The value.
    pub value: Value,
    /// The revision that wrote it.
    pub modified: Revision,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Written.
    Put,
    /// Read: what was there.
    Get(Option<Found>),
    /// Deleted: whether it was there.
    Delete(bool),
    /// Whether it was written.
    Swap(bool),
}

impl Answer {
    /// Whether it made a revision.
    pub fn wrote(&self) -> bool {
        match self {
            Self::Put | Self::Delete(true) | Self::Swap(true) => true,
            Self::Get(_) | Self::Delete(false) | Self::Swap(false) => false,
        }
    }
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It was answered.
    Done {
        /// The revision in the answer's header.
        revision: Revision,
        /// The answer.
        answer: Answer,
    },
    /// It surely had no effect.
    Failed(String),
    /// It may have had its effect, or have it later.
    Unknown(String),
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Who made it.
    pub client: ClientId,
    /// Which member it was made to.
    pub member: String,
    /// On this key.
    pub key: Key,
    /// What it asked for.
    pub op: Op,
    /// When it was made.
    pub invoked: Moment,
    /// When its answer came, or the client gave up.
    pub returned: Moment,
    /// What came of it.
    pub outcome: Outcome,
}

impl Call {
    /// The revision and answer, if it was answered.
    pub fn done(&self) -> Option<(Revision, Answer)> {
        match self.outcome {
            Outcome::Done { revision, answer } => Some((revision, answer)),
            Outcome::Failed(_) | Outcome::Unknown(_) => None,
        }
    }

    /// What it left in the key at which revision, if it was acknowledged and changed anything.
    pub fn acknowledged(&self) -> Option<(Revision, Change)> {
        let (revision, answer) = self.done().filter(|(_, answer)| answer.wrote())?;
        let change = match (self.op, answer) {
            (Op::Put(value) | Op::Swap { to: value, .. }, _) => Change::Put(value),
            (Op::Delete, _) => Change::Deleted,
            (Op::Get, _) => return None,
        };
        Some((revision, change))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, member, key, op, invoked, returned, outcome } = self;
        write!(f, "client {} at {invoked} to {returned} on {member}: {op:?} {key} -> ", client.0)?;
        match outcome {
            Outcome::Done { revision, answer } => write!(f, "{answer:?} at revision {revision}"),
            Outcome::Failed(why) => write!(f, "failed: {why}"),
            Outcome::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// What a revision did to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// It holds this value since.
    Put(Value),
    /// It is gone since.
    Deleted,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The revision.
    pub revision: Revision,
    /// The key.
    pub key: Key,
    /// What happened to it.
    pub change: Change,
}

/// What one watch over all keys of the run saw, in the order in which it came, over all its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watched {
    /// What it is called.
    pub name: String,
    /// It asked for all revisions after this one.
    pub after: Revision,
    /// The events.
    pub events: Vec<Event>,
    /// Why the server would not go on, if it would not.
    pub refused: Option<String>,
}

impl Watched {
    /// The last revision it saw.
    pub fn reached(&self) -> Revision {
        self.events.iter().map(|event| event.revision).max().unwrap_or(self.after)
    }
}

/// etcd's id of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// What a member is in the member list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// It votes.
    Voter,
    /// It does not.
    Learner,
}

/// The members that a change is planned from.
pub type Roster = BTreeMap<MemberId, Role>;

/// A [`Roster`] as a list: in an enum with a tag serde does not read the keys of a map back as numbers.
mod pairs {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::{MemberId, Role, Roster};

    pub fn serialize<S: Serializer>(roster: &Roster, serializer: S) -> Result<S::Ok, S::Error> {
        roster.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Roster, D::Error> {
        Vec::<(MemberId, Role)>::deserialize(deserializer).map(Roster::from_iter)
    }
}

/// A member in the member list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its name; empty until it has started.
    pub name: String,
    /// It does not vote.
    pub learner: bool,
}

impl Listed {
    /// What it is.
    pub fn role(&self) -> Role {
        if self.learner { Role::Learner } else { Role::Voter }
    }
}

/// One look at the members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// When the look began.
    pub begun: Moment,
    /// When it ended.
    pub ended: Moment,
    /// How many members the user wanted then.
    pub wished: u8,
    /// The linearizable member list, if any member gave it.
    pub members: Option<BTreeMap<MemberId, Listed>>,
    /// The members whose process runs and is not stopped, wherever it is.
    pub running: BTreeSet<String>,
    /// The members that had no network, by who took it; nobody in histories from before the twelfth judge.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cut: BTreeSet<String>,
}

impl Sample {
    /// Whether a member's process ran, and could be reached.
    pub fn is_up(&self, member: &str) -> bool {
        self.running.contains(member) && !self.cut.contains(member)
    }
}

/// How far a member had come in the raft log, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// When it was asked.
    pub asked: Moment,
    /// When it had answered.
    pub answered: Moment,
    /// Who it says it is: its address may be another's by now.
    pub member: MemberId,
    /// When its process was started; the beginning of the run if that was before.
    pub started: Moment,
    /// The raft index that it knew as committed.
    pub committed: u64,
    /// The raft index that it had applied.
    pub applied: u64,
}

/// Something the operator did, or began to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deed {
    /// When the operator said so: after it was done, or before a call to etcd is made.
    pub at: Moment,
    /// The pod that said so; not told in histories from before the tenth judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What.
    pub step: Step,
}

/// A step of the operator, as far as it is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "camelCase")]
pub enum Step {
    /// A learner was added.
    AddLearner {
        /// Its serial.
        serial: u32,
        /// The members planned from.
        #[serde(with = "pairs")]
        expect: Roster,
    },
    /// A learner became a voter.
    Promote {
        /// Its serial.
        serial: u32,
        /// Its id.
        id: MemberId,
        /// The members planned from.
        #[serde(with = "pairs")]
        expect: Roster,
    },
    /// A member was removed.
    Remove {
        /// Its id.
        id: MemberId,
        /// The members planned from.
        #[serde(with = "pairs")]
        expect: Roster,
    },
    /// The leader was moved.
    MoveLeader,
    /// A pod was deleted.
    DeletePod {
        /// Of this serial.
        serial: u32,
    },
    /// A member's container was started anew with another release.
    SwitchRelease {
        /// Of this serial.
        serial: u32,
    },
    /// A claim was deleted.
    DeleteClaim {
        /// Of this serial.
        serial: u32,
    },
    /// A change of the member list was about to be asked of etcd, or of Kubernetes what takes a member or its volume away: it
    /// says no more than that.
    Calls {
        /// Which: a learner added, promoted or a member removed; a pod or a claim deleted, a release switched.
        call: Box<Self>,
    },
    /// A change was asked of etcd, and its answer did not come: it may have had its effect.
    LostAnswer {
        /// Which change.
        verb: String,
    },
    /// A change was not made: etcd refused it, or was not asked after all.
    Refused {
        /// Which change.
        verb: String,
    },
    /// What changes neither membership nor takes anything away.
    Harmless {
        /// Its name.
        name: String,
    },
    /// A line that says that something was done, in words that can't be read.
    Unreadable {
        /// The line.
        line: String,
    },
}

/// Everything that was recorded of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The cluster's name, of which its members' names are made.
    pub cluster: String,
    /// The revision before the first call.
    pub base: Revision,
    /// The revision of the last write, which every watch has to reach; none if it could not be written.
    pub last: Option<Revision>,
    /// All calls, in the order in which they ended.
    pub calls: Vec<Call>,
    /// What was watched while the run went on.
    pub watches: Vec<Watched>,
    /// The same from the start to the end, asked from each member after all was over, by member.
    pub replays: BTreeMap<String, Watched>,
    /// The hash of each member's keys at the last revision, after all was over.
    pub hashes: BTreeMap<String, u32>,
    /// All looks at the members.
    pub samples: Vec<Sample>,
    /// How far members had come, in the order in which they answered.
    pub standings: Vec<Standing>,
    /// All that the operator did.
    pub deeds: Vec<Deed>,
    /// What was seen wrong on the way, in words.
    pub troubles: Vec<Trouble>,
}

/// Something that went wrong in plain sight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "trouble", content = "what", rename_all = "camelCase")]
pub enum Trouble {
    /// One identity ran in two processes.
    RanTwice(String),
    /// The cluster did not become what was asked for in time.
    NotConverged(String),
    /// Something that the checks need could not be had.
    Unfinished(String),
}
