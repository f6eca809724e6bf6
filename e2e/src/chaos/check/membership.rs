//! Whether the operator's calls keep the invariants of membership: judged by its log, by etcd's own member list, and by
//! which processes ran, never by what it believed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::calls::{LATE, asked, verb};
use crate::chaos::clock::Moment;
use crate::chaos::history::{Deed, History, Listed, MemberId, Role, Roster, Sample, Step};

/// How long something has to have been so for the operator to have to know it: many of its looks, and longer than any
/// of its calls takes.
const KNOWN: Duration = Duration::from_secs(10);
/// The least number of looks that tell how something was over that time.
const LOOKS: usize = 5;
/// The same for a learner that is promoted, at which the operator looks anew right before.
const JUST_SEEN: Duration = Duration::from_secs(3);
const JUST_LOOKS: usize = 3;

/// How far the operator's clock and ours may be apart: it is one machine's, read in two ways.
pub(super) const CLOCKS: Duration = Duration::from_millis(50);

/// A member list.
type List = BTreeMap<MemberId, Listed>;

/// Who is in it, as what.
fn roster(list: &List) -> Roster {
    list.iter().map(|(id, listed)| (*id, listed.role())).collect()
}

/// What is wrong.
pub fn check(history: &History) -> Vec<String> {
    let mut deeds = history.deeds.clone();
    deeds.sort_by_key(|deed| deed.at);
    let judge = Judge { cluster: &history.cluster, samples: &history.samples, deeds: &deeds };
    let mut wrong = once_only(&deeds);
    let mut done = Done::default();
    for Deed { at, by: _, step } in &deeds {
        match step {
            // Judged by what was so before it, whatever came of it.
            Step::Calls { call } => {
                judge.list(*at, call, &done, &mut wrong);
                judge.step(*at, call, &mut wrong);
                done.open.extend(verb(call).zip(After::of(call)).map(|(verb, list)| Open { at: *at, verb, list }));
            }
            Step::AddLearner { .. } | Step::Promote { .. } | Step::Remove { .. } => {
                // What had been open before it is in its list, or out of it.
                done = Done { last: *at, list: After::of(step), open: Vec::new() };
            }
            Step::Refused { verb } => done.refused(verb),
            // It may have changed the list, or may do so any time now: it stays open.
            Step::LostAnswer { .. } => done.list = None,
            Step::MoveLeader
            | Step::DeletePod { .. }
            | Step::SwitchRelease { .. }
            | Step::DeleteClaim { .. }
            | Step::Harmless { .. }
            | Step::Unreadable { .. } => judge.step(*at, step, &mut wrong),
        }
    }
    wrong.extend(judge.unexplained());
    wrong.extend(one_way(&history.samples));
    wrong
}

/// What the calls that were answered have made of the member list.
#[derive(Default)]
struct Done {
    /// When the last of them was.
    last: Moment,
    /// The list after it, if it is known.
    list: Option<After>,
    /// Calls whose answer was lost, or whose operator ended before it told what came of them.
    open: Vec<Open>,
}

impl Done {
    /// The last call with this verb had no effect.
    fn refused(&mut self, verb: &str) {
        if let Some(index) = self.open.iter().rposition(|open| open.verb == verb) {
            self.open.remove(index);
        }
    }
}

/// A call of which nobody knows whether it had its effect.
struct Open {
    at: Moment,
    verb: &'static str,
    /// The list after it, if it had.
    list: After,
}

/// No serial is added twice, no member promoted or removed twice, none acted on after its removal; every line is read.
fn once_only(deeds: &[Deed]) -> Vec<String> {
    let (mut added, mut promoted, mut removed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut wrong = Vec::new();
    for Deed { at, by: _, step } in deeds {
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
            | Step::Calls { .. }
            | Step::LostAnswer { .. }
            | Step::Refused { .. }
            | Step::Harmless { .. } => (),
        }
    }
    wrong
}

/// A member that has gone never comes back, also not as another of its name, and a voter never becomes a learner.
fn one_way(samples: &[Sample]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut gone: BTreeSet<MemberId> = BTreeSet::new();
    let mut named: BTreeMap<&str, MemberId> = BTreeMap::new();
    let mut last: Option<&List> = None;
    for sample in samples {
        let Some(now) = &sample.members else { continue };
        for (id, listed) in now {
            if gone.contains(id) {
                wrong.push(format!("member {id} is back at {} after it was removed", sample.ended));
            }
            let started = !listed.name.is_empty();
            if let Some(first) = started.then(|| *named.entry(&listed.name).or_insert(*id)).filter(|first| first != id)
            {
                wrong.push(format!("{} is member {id} at {}, and was {first}", listed.name, sample.ended));
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
    members: Roster,
    and_one: bool,
}

impl After {
    fn of(step: &Step) -> Option<Self> {
        match step {
            Step::AddLearner { expect, .. } => Some(Self { members: expect.clone(), and_one: true }),
            Step::Promote { id, expect, .. } => {
                let mut members = expect.clone();
                members.insert(*id, Role::Voter);
                Some(Self { members, and_one: false })
            }
            Step::Remove { id, expect } => {
                let mut members = expect.clone();
                members.remove(id);
                Some(Self { members, and_one: false })
            }
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

    fn is(&self, list: &Roster) -> bool {
        let new: Vec<&Role> =
            list.iter().filter(|(id, _)| !self.members.contains_key(id)).map(|(_, role)| role).collect();
        self.members.iter().all(|(id, role)| list.get(id) == Some(role))
            && if self.and_one { new == [&Role::Learner] } else { new.is_empty() }
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
        self.within(at, KNOWN)
    }

    fn within(&self, at: Moment, span: Duration) -> impl Iterator<Item = &Sample> {
        let from = at.earlier_by(span);
        self.samples.iter().filter(move |sample| sample.begun >= from && sample.ended <= at)
    }

    /// The list planned from, each member in its role, is what the call before left, or what etcd has listed since, or what a
    /// call has left whose answer was lost: the operator may have seen that before any look did. Where nobody could list the
    /// members meanwhile, nothing can be told.
    fn list(&self, at: Moment, call: &Step, done: &Done, wrong: &mut Vec<String>) {
        let (Step::AddLearner { expect, .. } | Step::Promote { expect, .. } | Step::Remove { expect, .. }) = call
        else {
            return;
        };
        if done.list.as_ref().is_some_and(|list| list.is(expect)) || self.may_be_left(done, expect, at) {
            return;
        }
        let since = self.before(at).filter(|sample| sample.begun >= done.last);
        let mut listed = since.filter_map(|sample| sample.members.as_ref()).peekable();
        if listed.peek().is_some() && !listed.any(|members| roster(members) == *expect) {
            wrong.push(format!("at {at} {call:?} was planned from a member list that there was not"));
        }
    }

    /// Whether it is the list that a call left which may have had its effect without any look having shown it. Once one has,
    /// the looks tell how long there was that list.
    fn may_be_left(&self, done: &Done, list: &Roster, at: Moment) -> bool {
        let since = at.earlier_by(LATE);
        let mut open = done.open.iter().filter(|open| open.at >= since && open.list.is(list));
        open.any(|open| !self.has_shown(&open.list, open.at, at))
    }

    /// Whether a look within this time saw it.
    fn has_shown(&self, list: &After, from: Moment, to: Moment) -> bool {
        let mut looks = self.samples.iter().filter(|sample| sample.begun >= from && sample.ended <= to);
        looks.any(|sample| sample.members.as_ref().is_some_and(|seen| list.is(&roster(seen))))
    }

    /// Members that came, went or began to vote between two lists without a call that could have done it.
    fn unexplained(&self) -> Vec<String> {
        let (mut wrong, asked) = (Vec::new(), asked(self.deeds));
        let mut listed = self.samples.iter().filter_map(|sample| Some((sample, sample.members.as_ref()?)));
        let Some(mut last) = listed.next() else { return wrong };
        for next in listed {
            if next.1 != last.1 {
                let (from, to) = (last.0.begun.earlier_by(CLOCKS), next.0.ended.later_by(CLOCKS));
                let calls: Vec<&Step> =
                    asked.iter().filter(|asked| asked.explains(from, to)).map(|asked| asked.call).collect();
                self.change(&calls, last.1, next.1, next.0.ended, &mut wrong);
            }
            last = next;
        }
        wrong
    }

    /// What is different in the second of two lists has to have been asked for by one of these calls.
    fn change(&self, calls: &[&Step], then: &List, now: &List, at: Moment, wrong: &mut Vec<String>) {
        for (id, listed) in then.iter().filter(|(id, _)| !now.contains_key(id)) {
            if !calls.iter().any(|call| matches!(call, Step::Remove { id: it, .. } if it == id)) {
                wrong.push(format!("{} ({id}) is not listed at {at}, and nobody removed it", listed.name));
            }
        }
        let new: Vec<MemberId> = now.keys().filter(|id| !then.contains_key(id)).copied().collect();
        self.added(calls, &new, at, wrong);
        for (id, listed) in now.iter().filter(|(_, listed)| !listed.learner) {
            let learned = then.get(id).is_none_or(|before| before.learner);
            if learned && !calls.iter().any(|call| matches!(call, Step::Promote { id: it, .. } if it == id)) {
                wrong.push(format!("{} ({id}) votes at {at}, and nobody promoted it", listed.name));
            }
        }
    }

    /// New members are as many as were added at most, and those that ever told their names are those.
    fn added(&self, calls: &[&Step], new: &[MemberId], at: Moment, wrong: &mut Vec<String>) {
        let serial = |call: &&Step| if let Step::AddLearner { serial, .. } = call { Some(*serial) } else { None };
        let added: BTreeSet<String> = calls.iter().filter_map(serial).map(|serial| self.name(serial)).collect();
        if new.len() > added.len() {
            wrong.push(format!("{} members are new at {at}, and {} were added", new.len(), added.len()));
            return;
        }
        for id in new {
            if let Some(name) = self.told_name(*id).filter(|name| !added.contains(*name)) {
                wrong.push(format!("{name} ({id}) is new at {at}, and only {added:?} were added"));
            }
        }
    }

    /// The name of a member, which it tells when it has started.
    fn told_name(&self, id: MemberId) -> Option<&str> {
        let listed = self.samples.iter().filter_map(|sample| sample.members.as_ref()?.get(&id));
        listed.map(|listed| listed.name.as_str()).find(|name| !name.is_empty())
    }

    fn step(&self, at: Moment, step: &Step, wrong: &mut Vec<String>) {
        match step {
            Step::Promote { serial, .. } => {
                let name = self.name(*serial);
                if self.was_down(&name, at, (JUST_SEEN, JUST_LOOKS)) {
                    wrong.push(format!("at {at} the learner {name} was promoted, which had not run for {JUST_SEEN:?}"));
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
            Step::DeleteClaim { serial } => self.volume_deleted(*serial, at, wrong),
            Step::AddLearner { .. }
            | Step::MoveLeader
            | Step::DeletePod { .. }
            | Step::Calls { .. }
            | Step::LostAnswer { .. }
            | Step::Refused { .. }
            | Step::Harmless { .. }
            | Step::Unreadable { .. } => (),
        }
    }

    fn volume_deleted(&self, serial: u32, at: Moment, wrong: &mut Vec<String>) {
        let name = self.name(serial);
        // A spare that was dismissed has never been a member: its serial may be added later, on another volume.
        let added = |deed: &Deed| matches!(deed.step, Step::AddLearner { serial: it, .. } if it == serial);
        let since = self.deeds.iter().find(|deed| deed.at > at && added(deed)).map(|deed| deed.at);
        let until = |sample: &&Sample| since.is_none_or(|since| sample.ended < since.earlier_by(KNOWN));
        let mut after = self.samples.iter().filter(|sample| sample.begun >= at).filter(until);
        let listed =
            |sample: &&Sample| sample.members.as_ref().is_some_and(|list| list.values().any(|one| one.name == name));
        if let Some(sample) = after.find(listed) {
            wrong.push(format!("at {at} the volume of {name} was deleted, a member still at {}", sample.ended));
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
        let down: Vec<&String> =
            others.iter().copied().filter(|other| self.was_down(other, at, (KNOWN, LOOKS))).collect();
        let voting = if how == "removed" { others.len() } else { voters.len() };
        let no_quorum = others.len() - down.len() <= voting / 2 && voters.len() > 1;
        if !down.is_empty() && (how == "removed" || no_quorum) {
            wrong.push(format!("at {at} the live voter {name} was {how} while {down:?} were down"));
        }
    }

    /// The voters by the last list before that moment, but for those that were removed since.
    fn voters(&self, at: Moment) -> BTreeMap<MemberId, String> {
        let last = self.before(at).filter_map(|sample| Some((sample.begun, sample.members.as_ref()?))).last();
        let Some((listed, members)) = last else { return BTreeMap::new() };
        let since = self.deeds.iter().filter(|deed| deed.at >= listed && deed.at < at);
        let removed: BTreeSet<MemberId> =
            since.filter_map(|deed| if let Step::Remove { id, .. } = &deed.step { Some(*id) } else { None }).collect();
        let voters = members.iter().filter(|(id, listed)| !listed.learner && !removed.contains(id));
        voters.map(|(id, listed)| (*id, listed.name.clone())).collect()
    }

    /// Whether its process surely did not run, or could not be reached, for so long that the operator has to have known; nor
    /// right after, since it may have been started after the last look.
    fn was_down(&self, name: &str, at: Moment, known: (Duration, usize)) -> bool {
        let after = self.samples.iter().find(|sample| sample.begun >= at);
        let is_down = |sample: &Sample| !sample.is_up(name);
        after.is_some_and(is_down) && self.always(at, known, is_down)
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
        self.always(at, (KNOWN, LOOKS), |sample| sample.is_up(name))
    }

    fn always(&self, at: Moment, (span, least): (Duration, usize), holds: impl Fn(&Sample) -> bool) -> bool {
        let (mut looks, mut held) = (0, 0);
        for sample in self.within(at, span) {
            looks += 1;
            held += usize::from(holds(sample));
        }
        looks >= least && held == looks
    }
}
