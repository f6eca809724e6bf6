//! Mends a pod that is down because of what it is told to run: by telling it to run something else. Never touches one
//! whose etcd runs, never a volume.

use std::cmp::Ordering;

use crate::{
    Entry, Failed, Finding, Memory, Minor, Overall, Release, Standing,
    draft::Draft,
    member::{Ground, Member},
};

/// Tells the pod to run something else, if that may help; false if not.
///
/// One that has never been well on what it was last told to run, or whose image can't be had, gets what may be run now; if
/// that is the very release it fails on, it gets back the one that it ran before, and the release is not tried again until
/// something else is wished. Not where it only waits for a registry that does not answer: that is no failure of the release.
pub fn cure(draft: &mut Draft<'_>, member: &Member<'_>) -> bool {
    if !member.fails_on_release() || member.ground() != Ground::Sound {
        return false;
    }
    let Some(told) = member.told().cloned() else { return false };
    if let Some(up) = way_up(draft, member, &told) {
        go_up(draft, member, &up);
        return true;
    }
    let ran = former(draft, member, &told);
    let other = draft.cure.clone().filter(|other| fits(draft, member, &told, ran.as_ref(), other));
    if let Some(other) = other {
        draft.switch_release(member, &other);
        return true;
    }
    let may_go_back = |former: &Release| {
        !member.is_unreachable() && leads_back(draft, member, former) && !undoes_a_turn(draft, member, &told, former)
    };
    let Some(former) = ran.filter(may_go_back) else { return false };
    draft.switch_release(member, &former);
    if let Some(entry) = draft.ledger.members.get_mut(&member.serial) {
        entry.former = None;
    }
    let wished = draft.world.wish.release.clone();
    draft.ledger.failed = Some(Failed { release: told, wished, serial: member.serial });
    true
}

/// Whether it may be told to run this instead of what it fails on.
fn fits(draft: &Draft<'_>, member: &Member<'_>, told: &Release, ran: Option<&Release>, other: &Release) -> bool {
    // A patch runs on the data of the patch before it, whatever became of that one. One that was well on what it is told fails
    // for other reasons, while the others serve on it. If they don't, it may be the patch all the same: an entry of the log on
    // which all end, again at each start.
    let is_patch = other.version.minor == told.version.minor;
    let turns_back = ran.is_some_and(|ran| turns_back(draft, told, ran, other));
    let leads_back = ran.is_some_and(|ran| leads_back(draft, member, ran));
    let may_change = ran.is_some() || member.is_unreachable() || draft.majority_is_down;
    let at_fault = leads_back || turns_back || member.never_started() || (is_patch && may_change);
    // What never ran has to be of the minor of those that it is to join.
    let newcomers = draft.newcomers.as_ref().map(|release| release.version.minor);
    let may_join = member.started || newcomers == Some(other.version.minor);
    at_fault && may_join && other != told && (is_patch || turns_back || !draft.only_patches)
}

/// Whether what is wished takes it back to what it ran before, though no other runs that any more.
///
/// Down: as long as nobody knows the cluster to run above that. It may have been up unseen, so that this is for the user to
/// say, not for [`leads_back`]; if it was, [`way_up`] brings it back. Not in a downgrade, where the cluster's version is lowered
/// before the database of a member that is down. Up, out of a downgrade: to the very release that it ran on this data. For one
/// that turned back down that is what it failed on: it goes up in its turn only, as there its log is thought of.
fn turns_back(draft: &Draft<'_>, told: &Release, ran: &Release, to: &Release) -> bool {
    let (minor, from) = (to.version.minor, told.version.minor);
    match minor.cmp(&from) {
        Ordering::Less => {
            let known = [draft.cluster_version, draft.highest_cluster_version()];
            ran.version.minor == minor && known == [Some(minor); 2] && is_enabled(draft, None)
        }
        Ordering::Equal => false,
        Ordering::Greater => {
            let is_its_turn = is_enabled(draft, Some(from)) || !draft.only_patches;
            ran == to && minor == from.next() && draft.cluster_version == Some(from) && is_its_turn
        }
    }
}

/// Whether what it ran before is what it was turned back down from, as [`turns_back`] has it: that fails as well, and to go there
/// once more is against the wish. Whether a downgrade is enabled tells which of the two it was, for on its way down a member goes
/// back up. While nobody says so, who may is waited for.
fn undoes_a_turn(draft: &Draft<'_>, member: &Member<'_>, told: &Release, former: &Release) -> bool {
    let is_enabled = match draft.world.overall {
        Overall::Known { downgrade, alarm: _ } => downgrade == Some(told.version.minor),
        Overall::Unknown => draft.majority_is_down || is_alone(draft, member),
        // A leader that can't tell runs what all go down to.
        Overall::OfAlarms(_) => true,
    };
    former.version.minor > told.version.minor && !is_enabled
}

/// Whether it is the only voter.
fn is_alone(draft: &Draft<'_>, member: &Member<'_>) -> bool {
    other_voters(draft, member).next().is_none()
}

/// What the ledger says of the voters besides it.
fn other_voters<'d>(draft: &'d Draft<'_>, member: &Member<'_>) -> impl Iterator<Item = &'d Entry> {
    let own = member.serial;
    draft.ledger.members.iter().filter_map(move |(serial, entry)| match entry.standing {
        Standing::Voter(_) => (*serial != own).then_some(entry),
        Standing::Learner(_) | Standing::Spare => None,
    })
}

/// Whether it is known that this downgrade is enabled, or that none is.
fn is_enabled(draft: &Draft<'_>, to: Option<Minor>) -> bool {
    match draft.world.overall {
        Overall::Known { downgrade, alarm: _ } => downgrade == to,
        Overall::Unknown | Overall::OfAlarms(_) => false,
    }
}

/// What it ran before it was told to run what it fails on. If the ledger names none, and says something else than its pod, that
/// is it: it was to be taken back, and an operator ended in between.
fn former(draft: &Draft<'_>, member: &Member<'_>, told: &Release) -> Option<Release> {
    let entry = draft.ledger.members.get(&member.serial)?;
    // One that was to get another patch has both: what it ran is kept then.
    [&entry.former, &entry.release].into_iter().flatten().find(|before| *before != told).cloned()
}

/// What the leader runs, for a member that is told a lower minor than the cluster runs at: it was taken back, and had been
/// up on the new one all the same, unseen. On the old one it can't come up any more. A leader that runs less than it says the
/// cluster to run at shows no way up, whatever that is.
fn way_up(draft: &Draft<'_>, member: &Member<'_>, told: &Release) -> Option<Release> {
    let below = draft.cluster_version.is_some_and(|minor| told.version.minor < minor);
    draft.newcomers.clone().filter(|up| below && member.started && told.version.minor < up.version.minor)
}

/// Tells it to run what the leader runs. That this failed once was said too early, and there is no way back from here.
fn go_up(draft: &mut Draft<'_>, member: &Member<'_>, up: &Release) {
    draft.switch_release(member, up);
    if let Some(entry) = draft.ledger.members.get_mut(&member.serial) {
        entry.former = None;
    }
    if has_failed(draft, up) {
        draft.ledger.failed = None;
    }
}

/// Whether the release before can still run on the member's data. Once etcd has been started on another minor in the last
/// voter, the leader moves the cluster's version, each member writes it into its database, and an etcd of the minor before
/// refuses that ("is not supported", `server/storage/schema`): only a downgrade leads back then, which needs the member up.
/// One that is alone has nobody who could know better.
fn leads_back(draft: &Draft<'_>, member: &Member<'_>, former: &Release) -> bool {
    let minor = |release: Option<&Release>| release.map(|release| release.version.minor);
    let has_moved = draft.highest_cluster_version().is_some_and(|minor| former.version.minor < minor);
    let mut others = other_voters(draft, member).map(|entry| minor(entry.release.as_ref()));
    let before = Some(former.version.minor);
    minor(member.told()) == before
        || (!has_moved && (is_alone(draft, member) || member.never_started() || others.any(|other| other == before)))
}

/// Forgets a failure once something else is wished. It is the user's to say that the release may be tried again: by wishing for
/// the old one in between.
pub fn recall(draft: &mut Draft<'_>) {
    let other = draft.ledger.failed.as_ref().is_some_and(|failed| failed.wished != draft.world.wish.release);
    if other {
        draft.ledger.failed = None;
    }
}

/// Tells of a failure that stands in the way.
pub fn tell(draft: &mut Draft<'_>) {
    if draft.ledger.failed.is_some() {
        draft.tell(Finding::ReleaseFailed);
    }
}

/// Whether a member has failed on this release.
pub fn has_failed(draft: &Draft<'_>, release: &Release) -> bool {
    draft.ledger.failed.as_ref().is_some_and(|failed| failed.release == *release)
}

/// What may help a member while etcd can't be asked: what is wished, if that is of the minor that the member has data of.
/// Of another minor nobody can know now whether it would be a step of one.
pub fn without_etcd(draft: &Draft<'_>, member: &Member<'_>) -> Option<Release> {
    let Memory::Ledger(ledger) = &draft.world.memory else { return None };
    let wished = &draft.world.wish.release;
    let told = ledger.members.get(&member.serial)?.release.as_ref()?;
    (told.version.minor == wished.version.minor && !has_failed(draft, wished)).then(|| wished.clone())
}
