//! How a call to a member can fail: refused for certain, or with an outcome that nobody knows. It only sorts.

use std::{fmt, time::Duration};

use tonic::Code;

/// Which call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Read the member list, linearizably.
    MemberList,
    /// Add a learner.
    AddLearner,
    /// Make a learner a voter.
    Promote,
    /// Remove a member.
    Remove,
    /// Have a quorum write down how far the log is committed.
    PersistCommit,
    /// Move the leadership.
    MoveLeader,
    /// Ask a member for its status.
    Status,
    /// Ask whether its version is being lowered.
    AskForDowngrade,
    /// Let the cluster's version be lowered.
    EnableDowngrade,
    /// Take that back.
    CancelDowngrade,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MemberList => "read the member list",
            Self::AddLearner => "add a learner",
            Self::Promote => "promote a learner",
            Self::Remove => "remove a member",
            Self::PersistCommit => "have the commit written down",
            Self::MoveLeader => "move the leadership",
            Self::Status => "read a member's status",
            Self::AskForDowngrade => "ask whether a downgrade is enabled",
            Self::EnableDowngrade => "enable a downgrade",
            Self::CancelDowngrade => "cancel the downgrade",
        })
    }
}

/// Why etcd refused a call: a closed set. Whatever it is, nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Too few members have been connected for five seconds: ask again.
    UnhealthyCluster,
    /// As many learners as `--max-learners` admits are there already.
    TooManyLearners,
    /// A member with this peer URL is there already: the answer to an earlier call was lost.
    PeerUrlExists,
    /// A member with this id is there already: the same peer URL was added twice within a second.
    MemberExists,
    /// The learner's log is not yet near the leader's.
    LearnerNotReady,
    /// No such member, or it was removed.
    NotFound,
    /// It is a voter already.
    NotALearner,
    /// After the change, too few members would have been started once.
    NotEnoughStarted,
    /// Only the leader does this, and it is not the leader.
    NotLeader,
    /// The leadership can't go there: no such member, or a learner.
    BadTransferee,
    /// A learner does not answer this call.
    NotForLearners,
    /// The user or password is wrong, or may not do this.
    Forbidden,
    /// A corruption alarm is raised.
    Corrupt,
    /// The cluster can't be taken down to that version: only to the minor below the one it runs at.
    BadDowngradeTarget,
    /// A downgrade is enabled already.
    DowngradeInProgress,
    /// No downgrade is enabled.
    NoDowngrade,
    /// Anything else that etcd answers where it has changed nothing.
    Other,
}

/// How a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The host name is none. Nothing was sent.
    #[error("failed to take {host:?} for a member's host name")]
    Host {
        /// The host name.
        host: String,
    },
    /// etcd said no. Nothing was changed.
    #[error("failed to {call}: etcd refused: {message}")]
    Refused {
        /// Which call.
        call: Call,
        /// Why, for decisions.
        refusal: Refusal,
        /// Why, in etcd's words.
        message: String,
    },
    /// No answer in time. It may have been done, or may yet be.
    #[error("failed to {call}: no answer within {deadline:?}")]
    TimedOut {
        /// Which call.
        call: Call,
        /// How long was waited.
        deadline: Duration,
    },
    /// The connection could not be made or broke, or etcd itself does not know. It may have been done, or may yet be.
    #[error("failed to {call}: no certain answer")]
    Unanswered {
        /// Which call.
        call: Call,
        /// What the transport or etcd said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An answer that can't be understood. It may have been done.
    #[error("failed to {call}: the answer lacks its {missing}")]
    Answer {
        /// Which call.
        call: Call,
        /// What is missing from the answer.
        missing: &'static str,
    },
}

impl CallError {
    /// Why etcd refused, if it did.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(*refusal),
            Self::Host { .. } | Self::TimedOut { .. } | Self::Unanswered { .. } | Self::Answer { .. } => None,
        }
    }

    /// Whether the call may have had its effect all the same: read the member list before anything else.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Host { .. } | Self::Refused { .. } => false,
            Self::TimedOut { .. } | Self::Unanswered { .. } | Self::Answer { .. } => true,
        }
    }

    /// Sorts what etcd-client gives back.
    pub(crate) fn from_client(call: Call, error: etcd_client::Error) -> Self {
        match error {
            etcd_client::Error::GRpcStatus(status) => Self::from_status(call, status),
            other => Self::Unanswered { call, source: Box::new(other) },
        }
    }

    /// Sorts a gRPC status.
    pub(crate) fn from_status(call: Call, status: tonic::Status) -> Self {
        match Refusal::of(status.code(), status.message()) {
            Some(refusal) => Self::Refused { call, refusal, message: status.message().to_owned() },
            None => Self::Unanswered { call, source: Box::new(status) },
        }
    }
}

/// etcd's refusals by their text (`api/v3rpc/rpctypes/error.go`, the same in 3.5, 3.6 and 3.7). The text and not the
/// code decides: "unhealthy cluster" has the code of a lost connection, and "not enough started members" leaves the
/// server as `Unknown` (`etcdserver/api/v3rpc/util.go` maps it to the client's error instead of the server's).
const BY_TEXT: [(&str, Refusal); 18] = [
    ("etcdserver: unhealthy cluster", Refusal::UnhealthyCluster),
    ("etcdserver: too many learner members in cluster", Refusal::TooManyLearners),
    ("etcdserver: Peer URLs already exists", Refusal::PeerUrlExists),
    ("etcdserver: member ID already exist", Refusal::MemberExists),
    ("etcdserver: can only promote a learner member which is in sync with leader", Refusal::LearnerNotReady),
    ("etcdserver: can only promote a learner member", Refusal::NotALearner),
    ("etcdserver: member not found", Refusal::NotFound),
    ("etcdserver: re-configuration failed due to not enough started members", Refusal::NotEnoughStarted),
    ("etcdserver: not leader", Refusal::NotLeader),
    ("etcdserver: bad leader transferee", Refusal::BadTransferee),
    ("etcdserver: rpc not supported for learner", Refusal::NotForLearners),
    ("etcdserver: permission denied", Refusal::Forbidden),
    ("etcdserver: invalid auth token", Refusal::Forbidden),
    // Users are turned on, and the caller has shown none.
    ("etcdserver: user name is empty", Refusal::Forbidden),
    ("etcdserver: corrupt cluster", Refusal::Corrupt),
    ("etcdserver: invalid downgrade target version", Refusal::BadDowngradeTarget),
    ("etcdserver: cluster has a downgrade job in progress", Refusal::DowngradeInProgress),
    ("etcdserver: no inflight downgrade job", Refusal::NoDowngrade),
];

impl Refusal {
    /// What a status refuses; `None` if it leaves open whether the call had its effect: a lost connection, a timeout, a
    /// stopping server, a changed or missing leader (a promotion may have been forwarded to the old one by then).
    fn of(code: Code, message: &str) -> Option<Self> {
        if let Some((_, refusal)) = BY_TEXT.iter().find(|(text, _)| *text == message) {
            return Some(*refusal);
        }
        match code {
            Code::Unauthenticated | Code::PermissionDenied => Some(Self::Forbidden),
            Code::DataLoss => Some(Self::Corrupt),
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::OutOfRange
            | Code::Unimplemented => Some(Self::Other),
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(code: Code, message: &str) -> CallError {
        CallError::from_status(Call::AddLearner, tonic::Status::new(code, message))
    }

    #[test]
    fn a_refusal_is_told_by_its_text_whatever_its_code() {
        for (text, refusal) in BY_TEXT {
            for code in [Code::Unavailable, Code::FailedPrecondition, Code::Unknown] {
                let error = sorted(code, text);
                assert_eq!(error.refusal(), Some(refusal), "{text}");
                assert!(!error.outcome_unknown());
            }
        }
        let text = sorted(Code::Unavailable, "etcdserver: unhealthy cluster").to_string();
        assert_eq!(text, "failed to add a learner: etcd refused: etcdserver: unhealthy cluster");
    }

    #[test]
    fn an_outcome_that_nobody_knows_is_not_called_a_refusal() {
        for (code, text) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unavailable, "error trying to connect: tcp connect error"),
            (Code::Unknown, "etcdserver: request cancelled"),
            (Code::Cancelled, "Timeout expired"),
            (Code::DeadlineExceeded, "etcdserver: context deadline exceeded"),
            (Code::Internal, "h2 protocol error"),
        ] {
            let error = sorted(code, text);
            assert_eq!(error.refusal(), None, "{text}");
            assert!(error.outcome_unknown(), "{text}");
        }
    }

    #[test]
    fn a_refusal_in_words_not_known_yet_is_still_one() {
        assert_eq!(sorted(Code::FailedPrecondition, "etcdserver: something new").refusal(), Some(Refusal::Other));
        assert_eq!(sorted(Code::PermissionDenied, "no").refusal(), Some(Refusal::Forbidden));
        assert_eq!(sorted(Code::ResourceExhausted, "etcdserver: too many requests").refusal(), Some(Refusal::Other));
    }
}
