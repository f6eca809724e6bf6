//! What came of each call for a change of the member list, by what the operator told after it; and which change it may
//! explain. Where one that was told may belong to several calls, nobody knows it of any.

use std::time::Duration;

use crate::chaos::clock::Moment;
use crate::chaos::history::{Deed, Step};

/// How long after a call the member list may change by it: a proposal that was taken and whose leader went is committed by
/// the next one, or never.
pub const LATE: Duration = Duration::from_secs(30);

/// A call.
#[derive(Debug)]
pub struct Asked<'a> {
    at: Moment,
    /// What it asked for.
    pub call: &'a Step,
    fate: Fate,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing was told: it is under way, or its operator ended before.
    Untold,
    /// Its answer was lost.
    Lost,
    /// It had its effect, by this moment.
    Done(Moment),
    /// It was refused, and had none.
    Refused,
}

impl Asked<'_> {
    /// Whether the list may have changed by it between these moments. What was done is in every list of later.
    pub fn explains(&self, from: Moment, to: Moment) -> bool {
        let until = match self.fate {
            Fate::Untold | Fate::Lost => self.at.later_by(LATE),
            Fate::Done(by) => by,
            Fate::Refused => return false,
        };
        self.at <= to && until >= from
    }

    /// Whether what came of it may be told at this moment.
    fn is_open(&self, at: Moment) -> bool {
        self.fate == Fate::Untold && at.since(self.at) < LATE
    }
}

/// All calls of these deeds, which are in the order of time.
pub fn asked(deeds: &[Deed]) -> Vec<Asked<'_>> {
    let mut asked: Vec<Asked<'_>> = Vec::new();
    for Deed { at, by: _, step } in deeds {
        match step {
            Step::Calls { call } => asked.push(Asked { at: *at, call: call.as_ref(), fate: Fate::Untold }),
            Step::AddLearner { .. } | Step::Promote { .. } | Step::Remove { .. } => {
                if let Some(done) = asked.iter_mut().rfind(|asked| asked.is_open(*at) && asked.call == step) {
                    done.fate = Fate::Done(*at);
                }
            }
            Step::LostAnswer { verb } => told(&mut asked, verb, *at, Fate::Lost),
            Step::Refused { verb } => told(&mut asked, verb, *at, Fate::Refused),
            Step::MoveLeader
            | Step::DeletePod { .. }
            | Step::SwitchRelease { .. }
            | Step::DeleteClaim { .. }
            | Step::Harmless { .. }
            | Step::Unreadable { .. } => (),
        }
    }
    asked
}

/// Two operators may have made such a call, and only one of them was told what came of it.
fn told(asked: &mut [Asked<'_>], told_verb: &str, at: Moment, fate: Fate) {
    let mut open = asked.iter_mut().filter(|asked| asked.is_open(at) && verb(asked.call) == Some(told_verb));
    if let (Some(only), None) = (open.next(), open.next()) {
        only.fate = fate;
    }
}

/// What the operator calls such a change when it tells what came of it.
pub fn verb(call: &Step) -> Option<&'static str> {
    match call {
        Step::AddLearner { .. } => Some("add-learner"),
        Step::Promote { .. } => Some("promote"),
        Step::Remove { .. } => Some("remove"),
        Step::MoveLeader
        | Step::DeletePod { .. }
        | Step::SwitchRelease { .. }
        | Step::DeleteClaim { .. }
        | Step::Calls { .. }
        | Step::LostAnswer { .. }
        | Step::Refused { .. }
        | Step::Harmless { .. }
        | Step::Unreadable { .. } => None,
    }
}
