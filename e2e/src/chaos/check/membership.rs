//! Whether the operator's calls keep the invariants of membership: judged by its log, by etcd's own member list, and by
//! which processes ran, never by what it believed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::chaos::clock::Moment;
use crate::chaos::history::{Deed, History, Listed, MemberId, Sample, Step};

/// How long something has to have been so for the operator to have to know it: many of its looks, and longer than any
/// of its calls takes.
const KNOWN: Duration = Duration::from_secs(10);
/// The least number of looks that tell how something was over that time.
const LOOKS: usize = 5;

/// What is wrong.
pub fn check(history: &History) -> Vec<String> {
    let mut deeds = history.deeds.clone();
    deeds.sort_by_key(|deed| deed.at);
    let judge = Judge { cluster: &history.cluster, samples: &history.samples, deeds: &deeds };
    let mut wrong = once_only(&deeds);
    let mut before: Option<After> = None;
    for deed in &deeds {
        judge.list(deed, before.as_ref(), &mut wrong);
        judge.deed(deed, &mut wrong);
        // A call without an answer may have changed the list, or may do so any time now.
        let lost = matches!(deed.step, Step::LostAnswer { .. });
        before = if lost { None } else { After::of(deed).or(before) };
    }
    wrong.extend(one_way(&history.samples));
    wrong
}

/// No serial is added twice, no member promoted or removed twice, none acted on after its removal; every line is read.
fn once_only(deeds: &[Deed]) -> Vec<String> {
    let (mut added, mut promoted, mut removed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut wrong = Vec::new();
    for Deed { at, step } in deeds {
        match step {
            Step::AddLearner { serial, .. } if !added.insert(*serial) => {
                wrong.push(format!("at {at} serial {serial} was added a second time"));
            }
            Step::Promote { id, .. } if removed.contains(id) || !promoted.insert(*id) => {
                wrong.push(format!("at {at} member {id} was promoted, though it was promoted or removed before"));
            }
            Step::Remove { id, .. } if !removed.insert(*id) => {
                wrong.push(format!("at {at} member {id} was removed a second time"));
            }
            Step::Unreadable { line } => wrong.push(format!("at {at} the operator said what can't be read: {line}")),
            Step::AddLearner { .. }
            | Step::Promote { .. }
            | Step::Remove { .. }
            | Step::MoveLeader
            | Step::DeletePod { .. }
            | Step::SwitchRelease { .. }
            | Step::DeleteClaim { .. }
            | Step::LostAnswer { .. }
            | Step::Harmless { .. } => (),
        }
    }
    wrong
}

/// A member that has gone never comes back, and a voter never becomes a learner.
fn one_way(samples: &[Sample]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut gone: BTreeSet<MemberId> = BTreeSet::new();
    let mut last: Option<&BTreeMap<MemberId, Listed>> = None;
    for sample in samples {
        let Some(now) = &sample.members else { continue };
        for (id, listed) in now {
            if gone.contains(id) {
                wrong.push(format!("member {id} is back at {} after it was removed", sample.ended));
            }
            let voted = last.and_then(|last| last.get(id)).is_some_and(|before| !before.learner);
            if voted && listed.learner {
                wrong.push(format!("the voter {} is a learner at {}", listed.name, sample.ended));
            }
        }
        gone.extend(last.into_iter().flat_map(BTreeMap::keys).filter(|id| !now.contains_key(id)));
        last = Some(now);
    }
    wrong
}

/// The member list after a call: these, and perhaps a new one whose id is not known yet.
struct After {
    members: BTreeSet<MemberId>,
    and_one: bool,
}

impl After {
    fn of(deed: &Deed) -> Option<Self> {
        match &deed.step {
            Step::AddLearner { expect, .. } => Some(Self { members: expect.clone(), and_one: true }),
            Step::Promote { expect, .. } => Some(Self { members: expect.clone(), and_one: false }),
            Step::Remove { id, expect } => {
                let members = expect.iter().filter(|member| *member != id).copied().collect();
                Some(Self { members, and_one: false })
            }
            Step::MoveLeader
            | Step::DeletePod { .. }
            | Step::SwitchRelease { .. }
            | Step::DeleteClaim { .. }
            | Step::LostAnswer { .. }
            | Step::Harmless { .. }
            | Step::Unreadable { .. } => None,
        }
    }

    fn is(&self, list: &BTreeSet<MemberId>) -> bool {
        self.members.is_subset(list) && list.len() == self.members.len() + usize::from(self.and_one)
    }
}

struct Judge<'a> {
    cluster: &'a str,
    samples: &'a [Sample],
    deeds: &'a [Deed],
}

impl Judge<'_> {
    fn name(&self, serial: u32) -> String {
        format!("{}-{serial}", self.cluster)
    }

    /// The looks that lie within the time before a moment in which the operator has to have known.
    fn before(&self, at: Moment) -> impl Iterator<Item = &Sample> {
        let from = at.earlier_by(KNOWN);
        self.samples.iter().filter(move |sample| sample.begun >= from && sample.ended <= at)
    }

    /// The list planned from is what the call before left, or what etcd listed shortly before. Where nobody could list
    /// the members meanwhile, a call whose answer was lost may have changed them: then nothing can be told.
    fn list(&self, deed: &Deed, before: Option<&After>, wrong: &mut Vec<String>) {
        let (Step::AddLearner { expect, .. } | Step::Promote { expect, .. } | Step::Remove { expect, .. }) = &deed.step
        else {
            return;
        };
        if before.is_some_and(|before| before.is(expect)) {
            return;
        }
        let mut listed = self.before(deed.at).filter_map(|sample| sample.members.as_ref()).peekable();
        if listed.peek().is_some() && !listed.any(|members| members.keys().copied().eq(expect.iter().copied())) {
            wrong.push(format!("at {} {:?} was planned from a member list that there was not", deed.at, deed.step));
        }
    }

    fn deed(&self, deed: &Deed, wrong: &mut Vec<String>) {
        let at = deed.at;
        match &deed.step {
            Step::Promote { serial, .. } => {
                let name = self.name(*serial);
                if self.was_down(&name, at) {
                    wrong.push(format!("at {at} the learner {name} was promoted, which had not run for {KNOWN:?}"));
                }
            }
            Step::Remove { id, .. } => {
                let name = self.voters(at).into_iter().find_map(|(voter, name)| (voter == *id).then_some(name));
                if let Some(name) = name {
                    self.taken_away("removed", &name, at, wrong);
                }
            }
            // A cluster that is put to sleep loses all its pods.
            Step::DeletePod { serial } if !self.is_put_to_sleep(at) => {
                self.taken_away("stopped", &self.name(*serial), at, wrong);
            }
            // Its container is started anew, in which it is away for some seconds.
            Step::SwitchRelease { serial } => self.taken_away("switched", &self.name(*serial), at, wrong),
            Step::DeleteClaim { serial } => {
                let name = self.name(*serial);
                // A spare that was dismissed has never been a member: its serial may be added later, on another volume.
                let added = |deed: &Deed| matches!(deed.step, Step::AddLearner { serial: it, .. } if it == *serial);
                let since = self.deeds.iter().find(|deed| deed.at > at && added(deed)).map(|deed| deed.at);
                let until = |sample: &&Sample| since.is_none_or(|since| sample.ended < since.earlier_by(KNOWN));
                let mut after = self.samples.iter().filter(|sample| sample.begun >= at).filter(until);
                let listed = |sample: &&Sample| {
                    sample.members.as_ref().is_some_and(|list| list.values().any(|member| member.name == name))
                };
                if let Some(sample) = after.find(listed) {
                    wrong.push(format!("at {at} the volume of {name} was deleted, a member still at {}", sample.ended));
                }
            }
            Step::AddLearner { .. }
            | Step::MoveLeader
            | Step::DeletePod { .. }
            | Step::LostAnswer { .. }
            | Step::Harmless { .. }
            | Step::Unreadable { .. } => (),
        }
    }

    /// A live voter is not taken away while so many others are down that the rest has no quorum, nor removed while any
    /// other voter is down.
    fn taken_away(&self, how: &str, name: &str, at: Moment, wrong: &mut Vec<String>) {
        let voters = self.voters(at);
        if !voters.values().any(|voter| voter == name) || !self.was_up(name, at) {
            return;
        }
        let others: Vec<&String> = voters.values().filter(|voter| *voter != name).collect();
        let down: Vec<&String> = others.iter().copied().filter(|other| self.was_down(other, at)).collect();
        let voting = if how == "removed" { others.len() } else { voters.len() };
        let no_quorum = others.len() - down.len() <= voting / 2 && voters.len() > 1;
        if !down.is_empty() && (how == "removed" || no_quorum) {
            wrong.push(format!("at {at} the live voter {name} was {how} while {down:?} were down"));
        }
    }

    /// The voters by the last list before that moment.
    fn voters(&self, at: Moment) -> BTreeMap<MemberId, String> {
        let last = self.before(at).filter_map(|sample| sample.members.as_ref()).last();
        let voters = last.into_iter().flatten().filter(|(_, listed)| !listed.learner);
        voters.map(|(id, listed)| (*id, listed.name.clone())).collect()
    }

    /// Whether its process surely did not run for so long that the operator has to have known; nor right after, since it
    /// may have been started after the last look.
    fn was_down(&self, name: &str, at: Moment) -> bool {
        let after = self.samples.iter().find(|sample| sample.begun >= at);
        let is_down = |sample: &Sample| !sample.running.contains(name);
        after.is_some_and(is_down) && self.always(at, is_down)
    }

    /// Whether nobody was wanted around that moment. A look lasts as long as its slowest answer, and the wish may have
    /// come after it began: so those that span the moment count too, and the next one.
    fn is_put_to_sleep(&self, at: Moment) -> bool {
        let from = at.earlier_by(KNOWN);
        let next = self.samples.iter().find(|sample| sample.begun >= at);
        let around = self.samples.iter().filter(|sample| sample.ended >= from && sample.begun <= at);
        around.chain(next).any(|sample| sample.wished == 0)
    }

    fn was_up(&self, name: &str, at: Moment) -> bool {
        self.always(at, |sample| sample.running.contains(name))
    }

    fn always(&self, at: Moment, holds: impl Fn(&Sample) -> bool) -> bool {
        let (mut looks, mut held) = (0, 0);
        for sample in self.before(at) {
            looks += 1;
            held += usize::from(holds(sample));
        }
        looks >= LOOKS && held == looks
    }
}
