//! Grows a cluster by learners: adds them, starts them in turn, promotes them. Never adds a voter, never removes one.

use crate::{
    FIRST_WITHOUT_OLD_LOG, Finding, LookAgain, Refusal, Role, RoleLabel, Roster, Serial, Start, Step,
    census::{Census, Peer, quorum},
    course,
    draft::Draft,
    keep,
    member::{Ground, Member, Volume},
    spares,
};

/// How old the pod of a spare may be to be waited for with a promotion. A launcher waits 1 to 3 s after its pod was made. Not
/// added before the others are promoted, the spare is refused until they have been connected for 5 s (etcd
/// server/etcdserver/server.go, HealthInterval): waiting for it no longer than that never costs much more.
const JOIN_PATIENCE_MS: u64 = 5_000;
/// How old the pod of a spare may be to be waited for with the addition of another one. Two that are added one right after the
/// other vote 0.3 to 0.4 s earlier than two of which the second has to wait until the first has come up. Where nothing has to
/// be fetched first, launchers wait 1.7 to 2.3 s after their pods were made, and 0.3 s apart at most; and when a pod was made
/// Kubernetes tells in whole seconds.
const COME_TOGETHER_MS: u64 = 3_500;

/// Removes a learner that is given up or too many. That costs nothing; another serial takes its place.
pub fn give_up(draft: &mut Draft<'_>, census: &Census<'_>) -> Option<Step> {
    for learner in census.learners.iter().filter(|learner| learner.leaving) {
        draft.tell_of(learner.member.serial, Finding::LearnerGivenUp);
    }
    let too_many = census.hopeful_learners().count() > census.wanted_learners();
    let least_wanted = |learner: &&Peer<'_>| (learner.leaving, learner.member.alive().is_none(), learner.member.serial);
    let victim = census.learners.iter().filter(|learner| learner.leaving || too_many).max_by_key(least_wanted);
    victim.map(|victim| census.removal_of(victim))
}

/// Promotes a learner once all that are wanted now have caught up, so that their promotions come back to back and the
/// cluster does not stay at an even size.
pub fn promote(draft: &mut Draft<'_>, census: &Census<'_>) -> Option<Step> {
    let first = census.learners.first()?;
    draft.look(LookAgain::Soon);
    let another_comes = room(census) > 0 && spares::one_is_new(draft, JOIN_PATIENCE_MS);
    if another_comes || !census.learners.iter().all(|learner| may_be_promoted(census, learner)) {
        return None;
    }
    // It counts as a voter at once: with it, and those that are well, there must be a quorum of one more.
    if census.well_voters() + 1 < quorum(census.voters.len() + 1) {
        draft.tell(Finding::QuorumTooThin);
        return None;
    }
    Some(promotion_of(first, census.roster()))
}

/// Makes the first learner a voter, and from an odd number the second right after it: the first makes it even, where one
/// failure more costs the quorum, and the second, which needs no larger quorum, ends that.
///
/// Before it votes it can only be resumed, and so can those that vote already, the seed among them and whoever is to leave: a
/// voter that comes back to an emptied volume and starts there with nothing has forgotten what it voted for and what it
/// acknowledged.
pub fn let_vote(draft: &mut Draft<'_>, census: &Census<'_>) {
    let together = if census.voters.len() % 2 == 1 { 2 } else { 1 };
    let voters_to_be = || census.learners.iter().take(together);
    for voter in &census.voters {
        keep::take_back_create(draft, &voter.member);
    }
    for learner in voters_to_be() {
        keep::let_only_resume(draft, &learner.member);
    }
    for learner in voters_to_be() {
        let_budget_count(draft, &learner.member);
    }
    let mut roster = census.roster();
    for learner in voters_to_be() {
        draft.step(promotion_of(learner, roster.clone()));
        roster.insert(learner.id, Role::Voter);
    }
}

/// Has the budget count it before it votes: from an eviction after that, and before its label, one of two voters would be
/// gone.
fn let_budget_count(draft: &mut Draft<'_>, learner: &Member<'_>) {
    if let Some(pod) = learner.pod.filter(|pod| pod.label == RoleLabel::Absent) {
        draft.step(Step::LabelPod { serial: learner.serial, pod: pod.uid.clone(), label: RoleLabel::Returning });
    }
}

fn promotion_of(learner: &Peer<'_>, expect: Roster) -> Step {
    Step::Promote { serial: learner.member.serial, id: learner.id, expect }
}

/// As etcd promotes a learner that died since, and stops (seen on 3.5, 3.6 and 3.7), who acts looks at it anew right before.
///
/// What it counts itself as is not asked: 3.5 knows that it is a learner only from the entry that added it, which one that
/// joined by a snapshot never sees (etcd server/etcdserver/server.go, applyConfChange). The member list says it.
fn may_be_promoted(census: &Census<'_>, learner: &Peer<'_>) -> bool {
    census.was_just_seen(learner)
        && learner.member.ground() == Ground::Sound
        && matches!(learner.member.volume(), Volume::Intact(_))
        && census.has_caught_up(learner)
}

/// Adds the readiest spare as a learner: one whose launcher waits, so that its name is known where it is asked for. Not
/// while one that was told to join has not come up: it compares the member list with the one on its ticket when it starts. Nor,
/// for a moment, while another spare is about to wait that can be added right after it.
pub fn add(draft: &mut Draft<'_>, census: &Census<'_>) -> Option<Step> {
    if room(census) == 0 || census.hopeful_learners().any(is_joining) {
        return None;
    }
    let spare = spares::readiest(draft)?;
    if room(census) > 1 && spares::one_comes(draft, COME_TOGETHER_MS) {
        draft.look(LookAgain::Soon);
        return None;
    }
    let voters = census.voters.len();
    // etcd refuses it otherwise, except to a cluster of one (server/etcdserver/server.go, mayAddMember).
    if voters > 1 && census.well_voters() < quorum(voters + 1) {
        draft.tell(Finding::QuorumTooThin);
        return None;
    }
    Some(Step::AddLearner { serial: spare.serial, expect: census.roster(), after: None })
}

/// Adds the next spare right after the first, if it is as ready and there is room for both: nobody has yet been told of a list
/// that this changes.
pub fn add_another(draft: &mut Draft<'_>, census: &Census<'_>, first: Serial) {
    let another = spares::ready(draft).map(|spare| spare.serial).find(|serial| *serial != first);
    if let Some(serial) = another.filter(|_| room(census) > 1) {
        draft.step(Step::AddLearner { serial, expect: census.roster(), after: Some(first) });
    }
}

/// Before a newcomer joins a cluster that wrote its log in the old form: moves the leadership to a member of a minor that
/// can't read that form, if one is well. Such a member has been started on a cut log, while one that was not started since
/// holds the old entries in memory, and would send them to the newcomer. Not to one that overlooks somebody: for the addition
/// it would be moved back at once, for ever.
pub fn lead_from_clean_log(draft: &Draft<'_>, census: &Census<'_>) -> Option<Step> {
    let leader = census.leader().filter(|leader| !runs_without_old_log(leader) && wants_clean_log(draft, census))?;
    let fit = || census.heirs(leader).filter(|heir| runs_without_old_log(heir) && !heir.overlooks_somebody());
    let heir = fit().find(|heir| census.has_caught_up(heir)).or_else(|| fit().next())?;
    Some(Step::MoveLeader { from: leader.id, to: heir.id })
}

/// Whether a newcomer is to join a cluster that wrote its log in the old form.
pub fn wants_clean_log(draft: &Draft<'_>, census: &Census<'_>) -> bool {
    course::wrote_old_log(&draft.ledger) && census.expects_newcomers()
}

/// Whether it runs a minor that can't read the old form: it was started on a log that has none of it.
pub fn runs_without_old_log(peer: &Peer<'_>) -> bool {
    peer.member.told().is_some_and(|told| told.version.minor >= FIRST_WITHOUT_OLD_LOG) && peer.member.runs_as_told()
}

/// How many learners may be added now: as many as are missing, and etcd takes beside those that there are.
fn room(census: &Census<'_>) -> usize {
    census.missing_learners().min(census.max_learners().saturating_sub(census.learners.len()))
}

/// Starts the learners that were added, in turn: first those that were told already, then those whose pods wait.
/// Each once the one before it answers: an etcd that begins asks all others for their version, and waits 7 s for one that
/// listens and begins as well (`getVersion` in etcd's `server/etcdserver/cluster_util.go`).
pub fn start(draft: &mut Draft<'_>, census: &Census<'_>) {
    let told = census.hopeful_learners().filter(|learner| is_joining(learner));
    let next = census.hopeful_learners().filter(|learner| !is_joining(learner) && is_startable(draft, learner));
    let in_turn: Vec<_> = told.chain(next).collect();
    for learner in in_turn {
        if !tell_to_join(draft, census, learner) {
            // It was told before, and is awaited in later rounds.
            return;
        }
    }
}

/// Whether it was told to join and has not come up.
fn is_joining(learner: &Peer<'_>) -> bool {
    let member = &learner.member;
    let told = member.create.is_some() || member.pod.is_some_and(|pod| pod.ticket.is_some());
    told && !member.started && member.alive().is_none()
}

fn is_startable(draft: &Draft<'_>, learner: &Peer<'_>) -> bool {
    let member = &learner.member;
    !member.started && member.waits() && !member.wants_new_pod() && keep::may_join(draft, member)
}

/// Puts a ticket on it to join exactly the members there are now, on its own volume. Says whether it does.
fn tell_to_join(draft: &mut Draft<'_>, census: &Census<'_>, learner: &Peer<'_>) -> bool {
    let member = &learner.member;
    draft.look(LookAgain::Soon);
    let (Some(pod), Some(volume)) = (member.pod, member.volume_to_create_on()) else { return false };
    let on_sound_node = pod.node.is_some() && member.ground() == Ground::Sound;
    let changes = member.wants_new_pod() || draft.switches_release(member.serial);
    let may_have_it = on_sound_node && !pod.terminating && !changes;
    let ticket = member.ticket(Start::Join(census.ids()), volume);
    // That it was told to resume means that it ran. Only its launcher can say that it left nothing.
    let has_run = pod.ticket.as_ref().is_some_and(|ticket| ticket.start == Start::Resume);
    let left_nothing = matches!(member.refusal(), Some(Refusal::VolumeLost | Refusal::NoEntry));
    let may_have_it = may_have_it && (!has_run || left_nothing);
    match member.volume() {
        Volume::Blank(_) | Volume::Intact(_) if may_have_it && pod.ticket.as_ref() != Some(&ticket) => {
            // It is sent what the leader holds in memory, cut or not.
            draft.ledger.logs_cut &= census.leader().is_some_and(runs_without_old_log);
            draft.issue_ticket(member, ticket.start, volume);
            true
        }
        Volume::Blank(_) | Volume::Intact(_) | Volume::Absent | Volume::Unfit | Volume::Going(_) | Volume::Lost(_) => {
            false
        }
    }
}
