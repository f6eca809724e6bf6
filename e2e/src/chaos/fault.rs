//! What can be done to a cluster in a chaos run, as data: a schedule is made of these, and they are carried out next
//! door. Pure: knows no cluster.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many milliseconds something lasts.
pub type Millis = u32;

/// One disturbance. What it hits is told by role and number, since names are known only when it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// `kill -9` of members' etcd.
    KillProcesses {
        /// Whose.
        victims: Victims,
    },
    /// Members' pods are deleted.
    DeletePods {
        /// Whose.
        victims: Victims,
        /// With the grace of an eviction, or by force.
        grace: bool,
    },
    /// Members lose their volumes: never more than the cluster can take, and only when all is well.
    LoseVolumes {
        /// Whose.
        victims: Victims,
        /// How.
        how: Loss,
    },
    /// SIGSTOP, and SIGCONT later, to members' etcd.
    PauseMembers {
        /// Whose.
        victims: Victims,
        /// For how long.
        millis: Millis,
    },
    /// A member's pod loses its network.
    CutMember {
        /// Whose.
        victims: Victims,
        /// In which direction.
        way: Way,
        /// For how long.
        millis: Millis,
    },
    /// A node loses its network with all that runs on it.
    CutNode {
        /// Which, from 1.
        node: u8,
        /// For how long.
        millis: Millis,
    },
    /// A node and the API server can't reach each other; its members go on talking.
    CutNodeFromApi {
        /// Which, from 1.
        node: u8,
        /// For how long.
        millis: Millis,
    },
    /// A node is switched off, and on later.
    StopNode {
        /// Which, from 1.
        node: u8,
        /// For how long.
        millis: Millis,
    },
    /// `kill -9` of the operator that leads, or the end of all its pods.
    KillOperators {
        /// All, or only the one that leads.
        all: bool,
    },
    /// SIGSTOP, and SIGCONT later, to the operator that leads.
    PauseOperator {
        /// For how long.
        millis: Millis,
    },
    /// The operator that leads loses its network.
    CutOperator {
        /// For how long.
        millis: Millis,
    },
    /// The API server is killed, and started later.
    StopApi {
        /// For how long.
        millis: Millis,
    },
    /// SIGSTOP, and SIGCONT later, to the API server.
    PauseApi {
        /// For how long.
        millis: Millis,
    },
    /// The user wants another size.
    Scale {
        /// This many members.
        replicas: u8,
    },
    /// The user changes what needs a rolling restart, or is given to pods as they run.
    Roll {
        /// What.
        change: Change,
    },
    /// The user hibernates the cluster, and wakes it later.
    Hibernate {
        /// For how long.
        millis: Millis,
    },
    /// The user wants another version of etcd.
    Upgrade {
        /// This one: the next minor.
        to: String,
    },
    /// The user wants another version, and later the one before again: on the way there, or when all run it.
    TurnBack {
        /// This one first: the next minor, or the minor below.
        to: String,
        /// Then this one: the version before.
        back: String,
        /// After how long.
        millis: Millis,
    },
    /// No fault of the cluster's, and never dealt: a client says that it wrote, and sent nothing. Planted by hand, to see a
    /// run that fails.
    Pretend,
}

/// Whom it hits, of the members that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victims {
    /// The leader.
    Leader,
    /// One that does not lead: the n-th of them, counted round.
    Follower(u8),
    /// Two in a row of all: from the n-th, counted round.
    Two(u8),
    /// Every one.
    All,
}

impl Victims {
    /// The names of those that are hit, of these members (in order) with this leader.
    pub fn of<'a>(self, members: &'a [String], leader: Option<&str>) -> Vec<&'a str> {
        let all = || members.iter().map(String::as_str);
        let nth = |names: Vec<&'a str>, number: u8, count: usize| {
            let start = usize::from(number) % names.len().max(1);
            let round = names.iter().cycle().skip(start).take(count.min(names.len()));
            round.copied().collect()
        };
        let leads = all().find(|name| Some(*name) == leader).or_else(|| all().next());
        match self {
            Self::Leader => leads.into_iter().collect(),
            Self::Follower(number) => nth(all().filter(|name| Some(*name) != leads).collect(), number, 1),
            Self::Two(number) => nth(all().collect(), number, 2),
            Self::All => all().collect(),
        }
    }
}

/// How a volume is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Claim and pod are deleted.
    Deleted,
    /// All files are gone, and the process is killed.
    Emptied,
}

/// The direction in which packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Both.
    Both,
    /// What is sent to it: it hears nothing.
    In,
    /// What it sends: nobody hears it.
    Out,
}

/// A change of the spec that reaches every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// `spec.etcd.snapshotCount`: a flag, and so a rolling restart.
    SnapshotCount(u32),
    /// `spec.resources.requests.cpu`, in thousandths: given to pods as they run, where the node has it.
    CpuMillis(u32),
}

/// What two faults of one scope have in common, so that they may not last at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Members' processes, pods and networks: any number at once.
    Members,
    /// Volumes: one loss at a time, and none while the size changes.
    Volumes,
    /// Nodes: one at a time leaves a majority of three a chance.
    Nodes,
    /// The operator.
    Operator,
    /// The API server.
    Api,
    /// The spec.
    Spec,
}

impl Fault {
    /// What it is called in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::KillProcesses { .. } => "kill processes",
            Self::DeletePods { .. } => "delete pods",
            Self::LoseVolumes { .. } => "lose volumes",
            Self::PauseMembers { .. } => "pause members",
            Self::CutMember { .. } => "cut member",
            Self::CutNode { .. } => "cut node",
            Self::CutNodeFromApi { .. } => "cut node from API",
            Self::StopNode { .. } => "stop node",
            Self::KillOperators { .. } => "kill operators",
            Self::PauseOperator { .. } => "pause operator",
            Self::CutOperator { .. } => "cut operator",
            Self::StopApi { .. } => "stop API server",
            Self::PauseApi { .. } => "pause API server",
            Self::Scale { .. } => "scale",
            Self::Roll { .. } => "roll",
            Self::Hibernate { .. } => "hibernate",
            Self::Upgrade { .. } => "upgrade",
            Self::TurnBack { to, back, millis: _ } if minor(to) < minor(back) => "downgrade and back",
            Self::TurnBack { .. } => "upgrade and back",
            Self::Pretend => "pretend a write",
        }
    }

    /// What it belongs to.
    pub fn scope(&self) -> Scope {
        match self {
            Self::KillProcesses { .. }
            | Self::DeletePods { .. }
            | Self::PauseMembers { .. }
            | Self::CutMember { .. }
            | Self::Pretend => Scope::Members,
            Self::LoseVolumes { .. } => Scope::Volumes,
            Self::CutNode { .. } | Self::CutNodeFromApi { .. } | Self::StopNode { .. } => Scope::Nodes,
            Self::KillOperators { .. } | Self::PauseOperator { .. } | Self::CutOperator { .. } => Scope::Operator,
            Self::StopApi { .. } | Self::PauseApi { .. } => Scope::Api,
            Self::Scale { .. }
            | Self::Roll { .. }
            | Self::Hibernate { .. }
            | Self::Upgrade { .. }
            | Self::TurnBack { .. } => Scope::Spec,
        }
    }

    /// Whether it changes the version that is wished.
    pub fn changes_version(&self) -> bool {
        matches!(self, Self::Upgrade { .. } | Self::TurnBack { .. })
    }

    /// How long it lasts; nothing for what is done at once.
    pub fn lasts(&self) -> Duration {
        match self {
            Self::PauseMembers { millis, .. }
            | Self::CutMember { millis, .. }
            | Self::CutNode { millis, .. }
            | Self::CutNodeFromApi { millis, .. }
            | Self::StopNode { millis, .. }
            | Self::PauseOperator { millis }
            | Self::CutOperator { millis }
            | Self::StopApi { millis }
            | Self::PauseApi { millis }
            | Self::Hibernate { millis }
            | Self::TurnBack { millis, .. } => Duration::from_millis((*millis).into()),
            Self::KillProcesses { .. }
            | Self::DeletePods { .. }
            | Self::LoseVolumes { .. }
            | Self::KillOperators { .. }
            | Self::Scale { .. }
            | Self::Roll { .. }
            | Self::Upgrade { .. }
            | Self::Pretend => Duration::ZERO,
        }
    }
}

/// Of a version, if it is one.
pub(super) fn minor(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::KillProcesses { victims } | Self::PauseMembers { victims, millis: _ } => write!(f, " {victims:?}")?,
            Self::DeletePods { victims, grace } => {
                write!(f, " {victims:?} {}", if *grace { "with grace" } else { "by force" })?;
            }
            Self::LoseVolumes { victims, how } => write!(f, " {victims:?} {how:?}")?,
            Self::CutMember { victims, way, millis: _ } => write!(f, " {victims:?} {way:?}")?,
            Self::CutNode { node, millis: _ }
            | Self::CutNodeFromApi { node, millis: _ }
            | Self::StopNode { node, millis: _ } => write!(f, " {node}")?,
            Self::KillOperators { all } => f.write_str(if *all { " all" } else { " leader" })?,
            Self::Scale { replicas } => write!(f, " to {replicas}")?,
            Self::Roll { change } => write!(f, " {change:?}")?,
            Self::Upgrade { to } => write!(f, " to {to}")?,
            Self::TurnBack { to, back, millis: _ } => write!(f, " to {to}, {back}")?,
            Self::PauseOperator { .. }
            | Self::CutOperator { .. }
            | Self::StopApi { .. }
            | Self::PauseApi { .. }
            | Self::Hibernate { .. }
            | Self::Pretend => (),
        }
        match self.lasts() {
            Duration::ZERO => Ok(()),
            span => write!(f, " for {:.1} s", span.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Vec<String> {
        ["db-0", "db-1", "db-3"].map(str::to_owned).to_vec()
    }

    #[test]
    fn victims_are_told_by_role() {
        let members = members();
        let of = |victims: Victims| victims.of(&members, Some("db-1"));
        assert_eq!(of(Victims::Leader), ["db-1"]);
        assert_eq!(of(Victims::Follower(0)), ["db-0"]);
        assert_eq!(of(Victims::Follower(3)), ["db-3"]);
        assert_eq!(of(Victims::Two(2)), ["db-3", "db-0"]);
        assert_eq!(of(Victims::All), ["db-0", "db-1", "db-3"]);
    }

    #[test]
    fn without_a_leader_somebody_is_hit_and_of_nobody_nobody() {
        assert_eq!(Victims::Leader.of(&members(), None), ["db-0"]);
        assert_eq!(Victims::Follower(1).of(&members(), None), ["db-3"]);
        let none: [Vec<&str>; 3] = [Victims::Leader, Victims::Two(7), Victims::Follower(2)].map(|v| v.of(&[], None));
        assert!(none.iter().all(Vec::is_empty));
        let one = ["db-0".to_owned()];
        assert_eq!(Victims::Two(1).of(&one, None), ["db-0"]);
        assert!(Victims::Follower(0).of(&one, None).is_empty());
    }

    #[test]
    fn a_turn_back_tells_which_way_it_went_first() {
        let told = |to: &str, back: &str| {
            Fault::TurnBack { to: to.to_owned(), back: back.to_owned(), millis: 2000 }.to_string()
        };
        assert_eq!(told("3.7.3", "3.6.16"), "upgrade and back to 3.7.3, 3.6.16 for 2.0 s");
        assert_eq!(told("3.6.16", "3.7.3"), "downgrade and back to 3.6.16, 3.7.3 for 2.0 s");
    }

    #[test]
    fn faults_are_read_as_they_are_written() {
        let fault = Fault::CutMember { victims: Victims::Follower(2), way: Way::In, millis: 1500 };
        let text = serde_json::to_string(&fault).unwrap();
        assert_eq!(text, r#"{"fault":"cut-member","victims":{"follower":2},"way":"in","millis":1500}"#);
        assert_eq!(serde_json::from_str::<Fault>(&text).unwrap(), fault);
        assert_eq!(fault.to_string(), "cut member Follower(2) In for 1.5 s");
        assert!(serde_json::from_str::<Fault>(r#"{"fault":"scale","replicas":3,"by":1}"#).is_err());
    }
}
