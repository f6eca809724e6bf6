//! Brings what the members run, and their pods, up to date: one member at a time, from the highest serial down. Never while
//! anything else is going on.

use crate::{
    Finding, Leg, LookAgain, Overall, Release, Step, Storage,
    census::{Census, Peer},
    cure,
    draft::Draft,
    shrink, snapshot,
    trial::{self, Verdict},
};

/// What a round may do about what the members run.
enum Turn<'w> {
    /// Switch the next one to this.
    Switch(&'w Release),
    /// Let etcd lower the cluster's version.
    Lower(crate::Minor),
    /// Take that back.
    TakeBack,
    /// Nothing: pods that are out of date may be replaced meanwhile.
    Rest,
    /// Nothing at all: etcd or a trial has to come to an end first, or a trial has failed.
    Wait,
}

/// Takes the next step of a roll, once all is well: from the highest serial down, whoever leads, so that two operators who
/// both think that they may act are at the same member. One that leads hands over first. A pod that is out of date is
/// replaced, and its next one runs the new release at once; any other is only told to run it. Says whether a roll goes on: one
/// that is due now, or as soon as the others are well.
pub fn roll<'w>(draft: &mut Draft<'w>, census: &Census<'w>, leg: Leg<'w>) -> bool {
    for outdated in census.peers().filter(|peer| peer.member.outdated()) {
        draft.tell_of(outdated.member.serial, Finding::PodOutdated);
    }
    let turn = turn(draft, census, leg);
    match turn {
        Turn::TakeBack if draft.is_idle() && census.nobody_is_between_minors() => draft.step(Step::CancelDowngrade),
        Turn::Lower(to) if draft.is_idle() && census.is_calm() => draft.step(Step::EnableDowngrade(to)),
        Turn::TakeBack | Turn::Lower(_) => wait(draft),
        Turn::Wait => {}
        Turn::Switch(release) => return advance(draft, census, Some(release)),
        Turn::Rest => return advance(draft, census, None),
    }
    false
}

/// Leaves all as it is until all are well.
fn wait(draft: &mut Draft<'_>) {
    draft.tell(Finding::RollWaits);
    draft.look(LookAgain::Soon);
}

/// What the leg comes down to in this round.
fn turn<'w>(draft: &mut Draft<'w>, census: &Census<'w>, leg: Leg<'w>) -> Turn<'w> {
    match leg {
        Leg::Arrived => {
            trial::end_all(draft);
            Turn::Rest
        }
        Leg::Waits(finding) => {
            draft.tell(finding);
            draft.look(LookAgain::Soon);
            Turn::Wait
        }
        Leg::Stuck(finding) => {
            draft.tell(finding);
            Turn::Rest
        }
        Leg::TakeBack => Turn::TakeBack,
        Leg::LogsCut => {
            draft.ledger.logs_cut = true;
            Turn::TakeBack
        }
        Leg::Switch(release) => tried(draft, census, release, Turn::Switch(release)),
        Leg::Lower(to, release) | Leg::CutLogs(to, release) => tried(draft, census, release, Turn::Lower(to)),
    }
}

/// This turn, if the release it leads to has not failed, the trials of it have passed and the snapshot before it was taken;
/// and if no alarm is raised.
fn tried<'w>(draft: &mut Draft<'w>, census: &Census<'w>, release: &'w Release, turn: Turn<'w>) -> Turn<'w> {
    for voter in census.voters.iter().filter(|voter| voter.member.told() != Some(release)) {
        draft.tell_of(voter.member.serial, Finding::ReleaseOutdated);
    }
    if cure::has_failed(draft, release) {
        trial::end_all(draft);
        return Turn::Rest;
    }
    match draft.world.overall {
        Overall::Known { alarm: Some(_), .. } | Overall::OfAlarms(Some(_)) => {
            draft.tell(Finding::AlarmRaised);
            Turn::Rest
        }
        Overall::Known { alarm: None, .. } | Overall::OfAlarms(None) | Overall::Unknown => {
            let tried = trial::of(draft, census, release);
            match tried.max(saved(draft, census, release, tried)) {
                Verdict::Passed => turn,
                Verdict::Open => Turn::Wait,
                // A trial takes the flags that are wished: with what it refused, a pod that is replaced now would be started.
                // Other flags make another template, and that another trial.
                Verdict::Failed if tried == Verdict::Failed => Turn::Wait,
                Verdict::Failed => Turn::Rest,
            }
        }
    }
}

/// What came of the snapshot. That comes after the trials, unless one that is down for what it is told to run waits for it:
/// such a one can't be tried.
fn saved(draft: &mut Draft<'_>, census: &Census<'_>, release: &Release, tried: Verdict) -> Verdict {
    let waits = census.voters.iter().any(|voter| voter.member.fails_on_release());
    match tried {
        Verdict::Passed => snapshot::before(draft, census, release),
        Verdict::Open if waits => snapshot::before(draft, census, release),
        Verdict::Open | Verdict::Failed => Verdict::Passed,
    }
}

/// Whether all that could take the leadership over are on nodes that are about to be drained, and this one is not: it would
/// be moved back at once, for ever. Such a leader hands over when it is told to end, as etcd does by itself.
fn would_lead_again(census: &Census<'_>, leader: &Peer<'_>) -> bool {
    // The heirs on nodes that stay come first.
    let first = census.heirs(leader).next();
    !census.is_cordoned(leader) && first.is_some_and(|heir| census.is_cordoned(heir))
}

/// Takes the next step of a roll; false if nobody is due. Whoever is not ready comes first: a new pod may mend that, and
/// nobody else is stopped meanwhile. Where no new pod can be started, none is deleted.
fn advance(draft: &mut Draft<'_>, census: &Census<'_>, release: Option<&Release>) -> bool {
    let survives_its_pod = match draft.world.wish.storage {
        Storage::Claims { .. } => true,
        Storage::Ephemeral => false,
    };
    let wants_release = |voter: &Peer<'_>| release.is_some_and(|release| voter.member.told() != Some(release));
    let is_outdated = |voter: &Peer<'_>| survives_its_pod && voter.member.outdated();
    let is_held = |voter: &Peer<'_>| is_outdated(voter) && census.is_held_by_its_node(voter);
    let wants_pod = |voter: &Peer<'_>| is_outdated(voter) && !is_held(voter);
    for voter in census.voters.iter().filter(|voter| is_held(voter)) {
        draft.tell_of(voter.member.serial, Finding::NodeCordoned);
    }
    let due = census.voters.iter().filter(|voter| wants_release(voter) || wants_pod(voter));
    let unready = |voter: &Peer<'_>| voter.member.pod.is_some_and(|pod| !pod.ready);
    let Some(next) = due.max_by_key(|voter| (unready(voter), voter.member.serial)) else {
        return census.voters.iter().any(is_held);
    };
    if !census.is_calm_but_for(Some(next.member.serial)) || !draft.is_idle() {
        wait(draft);
        return true;
    }
    if census.leads(next) && census.voters.len() > 1 && !would_lead_again(census, next) {
        if let Some(step) = shrink::hand_over(draft, census, next) {
            draft.step(step);
        }
        return true;
    }
    match release.filter(|_| wants_release(next)) {
        Some(release) if wants_pod(next) => {
            draft.remember_release(&next.member, release);
            draft.delete_pod(&next.member);
        }
        Some(release) => draft.switch_release(&next.member, release),
        None => draft.delete_pod(&next.member),
    }
    true
}
