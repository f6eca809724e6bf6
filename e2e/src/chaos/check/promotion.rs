//! Whether the learners that the operator promoted had caught up: judged by what members said of themselves, never by what
//! the operator believed, of whose log only the order and the times count. What nobody saw is unknown, and never wrong.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::membership::CLOCKS;
use crate::chaos::clock::Moment;
use crate::chaos::history::{Deed, History, MemberId, Standing, Step};

/// How many raft entries a learner may be behind when it is promoted.
pub(super) const LAG: u64 = 100;
/// How long after the last look at what was committed the first look at the learner may be for it to tell that it had caught
/// up: in a longer time one that had not may have done so. That one is far behind it tells whenever it is.
pub(super) const CLOSE: Duration = Duration::from_secs(2);

/// Of how many promotions it was judged how far the learner had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Promotions {
    /// So many were asked of etcd, whatever came of them.
    pub asked: usize,
    /// Of so many it was.
    pub judged: usize,
}

impl fmt::Display for Promotions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, judged } = self;
        write!(f, "{asked} promotions, of which {judged} were judged by how far the learner had come")
    }
}

/// What can be said of one promotion.
enum Verdict {
    /// Nothing: nobody looked in time, or the process was another one by then.
    Unknown,
    /// Nothing that speaks against it.
    Sound,
    /// The learner was too far behind.
    Behind(String),
}

/// What is wrong.
pub fn check(history: &History) -> Vec<String> {
    let behind = verdicts(history).into_iter().filter_map(|verdict| match verdict {
        Verdict::Behind(what) => Some(what),
        Verdict::Sound | Verdict::Unknown => None,
    });
    behind.collect()
}

/// How many could be judged.
pub fn promotions(history: &History) -> Promotions {
    let verdicts = verdicts(history);
    let judged = verdicts.iter().filter(|verdict| match verdict {
        Verdict::Behind(_) | Verdict::Sound => true,
        Verdict::Unknown => false,
    });
    Promotions { asked: verdicts.len(), judged: judged.count() }
}

fn verdicts(history: &History) -> Vec<Verdict> {
    let mut deeds = history.deeds.clone();
    deeds.sort_by_key(|deed| deed.at);
    let listed = history.samples.iter().filter_map(|sample| sample.members.as_ref());
    let judge = Judge {
        cluster: &history.cluster,
        members: listed.flat_map(|members| members.keys().copied()).collect(),
        standings: &history.standings,
    };
    let calls = deeds.iter().enumerate().filter_map(|(index, deed)| {
        let Step::Calls { call } = &deed.step else { return None };
        let Step::Promote { serial, id, expect: _ } = call.as_ref() else { return None };
        Some(judge.promotion(&deeds[..index], deed, *serial, *id))
    });
    calls.collect()
}

struct Judge<'a> {
    cluster: &'a str,
    /// All that ever were.
    members: BTreeSet<MemberId>,
    standings: &'a [Standing],
}

impl Judge<'_> {
    /// Right before the call the operator makes sure that etcd lists the members linearizably, and then that the learner is
    /// at most so far behind a leader that has told that list, which knows all that was committed before it was asked. Both
    /// come after whatever the same replica said last of this cluster, where one thing is done after the other: so the learner
    /// had applied then, but for the lag, all that anybody had known as committed by that time; and in the same process it
    /// has not applied less later on.
    fn promotion(&self, before: &[Deed], deed: &Deed, serial: u32, id: MemberId) -> Verdict {
        let said = before.iter().rfind(|earlier| earlier.by.is_some() && earlier.by == deed.by);
        let Some(since) = said.map(|earlier| earlier.at.earlier_by(CLOCKS)) else { return Verdict::Unknown };
        let (Some(known), Some(learner)) = (self.known(id, since), self.learner(id, since, deed.at)) else {
            return Verdict::Unknown;
        };
        let behind = known.committed.saturating_sub(learner.applied);
        if behind > LAG {
            let Deed { at, .. } = deed;
            let name = format!("{}-{serial}", self.cluster);
            let (Standing { answered, committed, .. }, Standing { asked, applied, .. }) = (known, learner);
            return Verdict::Behind(format!(
                "at {at} the learner {name} was promoted, which had applied raft index {applied} at {asked}, {behind} behind \
                 the {committed} that was committed at {answered}"
            ));
        }
        if learner.asked.since(known.answered) <= CLOSE { Verdict::Sound } else { Verdict::Unknown }
    }

    /// The most that any other member knew as committed by that moment; of several that tell it the last. By its own word a
    /// learner that hears nothing is never behind.
    fn known(&self, learner: MemberId, by: Moment) -> Option<&Standing> {
        let others = |told: &&Standing| told.member != learner && self.members.contains(&told.member);
        let told = self.standings.iter().filter(|told| told.answered <= by).filter(others);
        told.max_by_key(|told| (told.committed, told.answered))
    }

    /// The first that a member said after it was promoted, of the process that ran since before the operator looked at it.
    fn learner(&self, id: MemberId, since: Moment, promoted: Moment) -> Option<&Standing> {
        let after = promoted.later_by(CLOCKS);
        let told =
            self.standings.iter().filter(|told| told.member == id && told.asked >= after && told.started <= since);
        told.min_by_key(|told| told.asked)
    }
}
