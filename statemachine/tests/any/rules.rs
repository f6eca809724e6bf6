//! What holds for every plan in every world, each rule written from the design and from nothing in the code it checks.

#[path = "versions.rs"]
mod versions;

use std::collections::{BTreeMap, BTreeSet};

use quorate_statemachine::{
    Alive, Bind, Birth, Entry, Home, Ledger, Life, MemberId, MemberList, Membership, Memory, NodeSight, Origin, Phase,
    Plan, Pod, PodStage, Readiness, Role, Roster, Seeding, Serial, Sight, Start, Step, Storage, Ticket, World,
};

/// A rule: why a plan for this world must not be, if it must not.
pub type Rule = fn(&World, &Plan) -> Result<(), String>;

pub const RULES: [(&str, Rule); 29] = [
    ("one change of members, two additions, or two promotions, bound to the list", one_change_of_members),
    ("no change of members without a list that is all ours", no_change_without_our_list),
    ("a removal leaves a quorum of well voters", removal_leaves_a_quorum),
    ("only a live learner that has caught up is promoted", promotion_of_the_living),
    ("who votes can only be resumed", voters_are_only_resumed),
    ("paused is paused", paused_is_paused),
    ("no claim of a member is deleted", no_claim_of_a_member_is_deleted),
    ("a create goes to one volume", a_create_goes_to_one_volume),
    ("a member is resumed on its own volume", resumed_on_its_own_volume),
    ("no pod is deleted on a node that is away", no_pod_deleted_on_an_absent_node),
    ("seeded at most once", seeded_at_most_once),
    ("a backup is restored before the seed, and only then", restored_before_the_seed),
    ("serials only go up", serials_only_go_up),
    ("no step contradicts another", no_contradiction),
    ("no well voter is stopped while another is down", no_well_voter_is_stopped_beside_an_ill_one),
    ("no drain takes a voter while another is stopped", no_drain_beside_a_stop),
    ("no volume goes with a pod that is deleted", no_volume_goes_with_its_pod),
    ("objects are created where there are none", created_where_there_is_none),
    ("a leader hands over before it is stopped", versions::leader_hands_over),
    ("the next only when the last is back", versions::next_when_last_is_back),
    ("versions go one minor a step", versions::one_minor_a_step),
    ("going down is left to etcd", versions::down_by_etcd),
    ("nobody is taken back below the cluster", versions::not_taken_below),
    ("a release is tried first", versions::tried_first),
    ("a snapshot is taken before another minor", versions::saved_first),
    ("logs are cut before a minor that cannot read them", versions::logs_are_cut),
    ("what a member runs is written down first", versions::written_down_first),
    ("no newcomer while a downgrade is enabled", versions::no_newcomer_in_a_downgrade),
    ("a newcomer runs the leader's minor", versions::newcomer_runs_the_leaders_minor),
];

/// The rules a plan breaks.
pub fn broken(world: &World, plan: &Plan) -> Vec<String> {
    RULES.iter().filter_map(|(name, rule)| rule(world, plan).err().map(|why| format!("{name}: {why}"))).collect()
}

fn need(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn ledger(world: &World) -> Ledger {
    match &world.memory {
        Memory::Blank | Memory::Unreadable => Ledger::default(),
        Memory::Ledger(ledger) => ledger.clone(),
    }
}

/// The ledger as it stands before the first step.
fn ledger_after(world: &World, plan: &Plan) -> Ledger {
    plan.ledger.clone().unwrap_or_else(|| ledger(world))
}

fn list(world: &World) -> Option<&MemberList> {
    match &world.membership {
        Membership::Unknown => None,
        Membership::Known(list) => Some(list),
    }
}

fn pod(world: &World, serial: Serial) -> Option<&Pod> {
    world.seats.get(&serial)?.pod.as_ref()
}

fn alive(world: &World, serial: Serial) -> Option<&Alive> {
    match &pod(world, serial).filter(|pod| !pod.terminating)?.sight {
        Sight::Etcd(alive) => Some(alive),
        Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => None,
    }
}

fn well(world: &World, serial: Option<Serial>) -> bool {
    serial.and_then(|serial| alive(world, serial)).is_some_and(|alive| alive.live && alive.has_leader)
}

fn voters(list: &MemberList) -> BTreeMap<MemberId, Option<Serial>> {
    let voters = list.members.iter().filter(|(_, line)| line.role == Role::Voter);
    voters.map(|(id, line)| (*id, line.serial)).collect()
}

fn is_member(world: &World, serial: Serial) -> bool {
    list(world).is_some_and(|list| list.members.values().any(|line| line.serial == Some(serial)))
}

fn ends(world: &World) -> bool {
    world.wish.life == Life::Deleting
}

fn one_change_of_members(world: &World, plan: &Plan) -> Result<(), String> {
    let changes: Vec<_> = plan.steps.iter().filter(|step| step.changes_members()).collect();
    let promotions: BTreeSet<_> =
        changes.iter().filter_map(|step| if let Step::Promote { id, .. } = step { Some(*id) } else { None }).collect();
    let from_odd = list(world).is_some_and(|list| voters(list).len() % 2 == 1);
    let two_promotions = changes.len() == 2 && promotions.len() == 2 && from_odd;
    let additions = changes.iter().filter_map(|step| match step {
        Step::AddLearner { serial, after, .. } => Some((*serial, *after)),
        _ => None,
    });
    let additions: Vec<_> = additions.collect();
    let two_additions = match additions[..] {
        [(first, None), (second, Some(after))] => changes.len() == 2 && after == first && second != first,
        _ => false,
    };
    let alone = changes.len() <= 1 && additions.iter().all(|(_, after)| after.is_none());
    need(alone || two_additions || two_promotions, || format!("{changes:?}"))?;
    let members = list(world).map(|list| list.members.iter().map(|(id, line)| (*id, line.role)));
    let mut roster: Roster = members.into_iter().flatten().collect();
    for step in changes {
        if let Step::AddLearner { expect, .. } | Step::Promote { expect, .. } | Step::Remove { expect, .. } = step {
            need(*expect == roster, || format!("{step:?} does not expect {roster:?}"))?;
        }
        match step {
            Step::AddLearner { serial, .. } => need(!is_member(world, *serial), || format!("{serial} is a member"))?,
            Step::Promote { id, .. } | Step::Remove { id, .. } => {
                need(roster.contains_key(id), || format!("{id} is no member"))?;
                // The second of two promotions comes after the first.
                roster.insert(*id, Role::Voter);
            }
            _ => {}
        }
    }
    Ok(())
}

fn no_change_without_our_list(world: &World, plan: &Plan) -> Result<(), String> {
    let ours = list(world).is_some_and(|list| {
        let known = match ledger(world).seeding {
            Seeding::NotBegun => false,
            Seeding::Begun(seed) => list.members.values().all(|line| line.serial == Some(seed)),
            Seeding::Done(cluster) => cluster == list.cluster,
        };
        known && list.members.values().all(|line| line.serial.is_some())
    });
    let changes = |step: &Step| step.changes_members() || matches!(step, Step::MoveLeader { .. });
    need(ours || !plan.steps.iter().any(changes), || "the list is unknown or not ours alone".to_owned())
}

fn removal_leaves_a_quorum(world: &World, plan: &Plan) -> Result<(), String> {
    for step in &plan.steps {
        let (Step::Remove { id, .. }, Some(list)) = (step, list(world)) else { continue };
        let mut others = voters(list);
        let Some(victim) = others.remove(id) else { continue };
        let well_ones = others.values().filter(|serial| well(world, **serial)).count();
        need(well_ones > others.len() / 2, || format!("{well_ones} of {} are well", others.len()))?;
        let victim_lives = victim.is_some_and(|victim| alive(world, victim).is_some());
        need(!victim_lives || well_ones == others.len(), || format!("{id} lives, and another is down"))?;
        need(!well(world, victim) || list.leader != Some(*id), || format!("{id} leads"))?;
    }
    Ok(())
}

fn promotion_of_the_living(world: &World, plan: &Plan) -> Result<(), String> {
    for step in &plan.steps {
        let (Step::Promote { serial, id, .. }, Some(list)) = (step, list(world)) else { continue };
        need(list.members.get(id).is_some_and(|line| line.role == Role::Learner), || format!("{id} is no learner"))?;
        let learner = alive(world, *serial).ok_or_else(|| format!("{serial} is not alive"))?;
        need(learner.live && learner.has_leader, || format!("{serial} is not well"))?;
        need(world.now.since(learner.seen) <= 10_000, || format!("{serial} was seen too long ago"))?;
        let leader = list.leader.and_then(|leader| list.members.get(&leader)?.serial);
        let leader = leader.and_then(|leader| alive(world, leader)).ok_or("nobody leads")?;
        let lag = leader.committed.saturating_sub(learner.applied);
        need(lag <= 100, || format!("{serial} lags by {lag}"))?;
        let voters = voters(list);
        let well_ones = voters.values().filter(|serial| well(world, **serial)).count();
        need(well_ones + 1 > voters.len().div_ceil(2), || "no quorum would be well".to_owned())?;
    }
    Ok(())
}

/// Nobody becomes a voter who could still be created: on an emptied volume it would be, and forget what it promised.
fn voters_are_only_resumed(world: &World, plan: &Plan) -> Result<(), String> {
    let mut tickets: BTreeMap<Serial, &Ticket> =
        world.seats.keys().filter_map(|serial| Some((*serial, pod(world, *serial)?.ticket.as_ref()?))).collect();
    for step in &plan.steps {
        match step {
            Step::IssueTicket { serial, ticket, .. } => drop(tickets.insert(*serial, ticket)),
            Step::Promote { serial, .. } => {
                let ticket = tickets.get(serial).ok_or_else(|| format!("{serial} has no ticket"))?;
                need(ticket.start == Start::Resume, || format!("{serial} carries {ticket:?}"))?;
                let create = ledger_after(world, plan).members.get(serial).and_then(|entry| entry.create.clone());
                need(create.as_ref() == Some(&ticket.volume), || format!("{serial} belongs on {create:?}"))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn paused_is_paused(world: &World, plan: &Plan) -> Result<(), String> {
    let still = plan.steps.is_empty() && plan.ledger.is_none() && plan.budget.is_none();
    need(world.wish.life != Life::Paused || still, || format!("{:?}", plan.steps))
}

fn no_claim_of_a_member_is_deleted(world: &World, plan: &Plan) -> Result<(), String> {
    for step in &plan.steps {
        let Step::DeleteClaim { serial, claim } = step else { continue };
        let seat = world.seats.get(serial).and_then(|seat| seat.claim.as_ref());
        need(seat.is_some_and(|seat| seat.uid == *claim && seat.ours), || format!("{serial}: not our claim"))?;
        if ends(world) {
            continue;
        }
        need(list(world).is_some() && plan.phase != Phase::QuorumLost, || "nobody knows the members".to_owned())?;
        need(!is_member(world, *serial), || format!("{serial} is a member"))?;
        need(pod(world, *serial).is_none(), || format!("{serial} still has a pod"))?;
    }
    Ok(())
}

fn a_create_goes_to_one_volume(world: &World, plan: &Plan) -> Result<(), String> {
    let (before, after) = (ledger(world), ledger_after(world, plan));
    for (serial, entry) in &after.members {
        let earlier = before.members.get(serial).and_then(|entry| entry.create.as_ref());
        need(earlier.is_none() || earlier == entry.create.as_ref(), || {
            format!("{serial}: the ledger changed its mind")
        })?;
        let mark = before.members.get(serial).filter(|_| earlier.is_some()).map(|entry| &entry.mark);
        need(mark.is_none_or(|mark| *mark == entry.mark), || format!("{serial}: the ledger has another mark"))?;
    }
    for step in &plan.steps {
        let Step::IssueTicket { serial, pod: uid, ticket } = step else { continue };
        let pod =
            pod(world, *serial).filter(|pod| pod.uid == *uid).ok_or_else(|| format!("{serial} has no such pod"))?;
        let create = after.members.get(serial).and_then(|entry: &Entry| entry.create.as_ref());
        need(create == Some(&ticket.volume), || format!("{serial}: the ledger says {create:?}"))?;
        let mark = after.members.get(serial).and_then(|entry| entry.mark.as_ref());
        let expected = if ticket.start == Start::Resume { None } else { mark };
        need(ticket.mark.as_ref() == expected, || format!("{serial}: the ledger says {mark:?}"))?;
        match ticket.start {
            Start::Seed | Start::Join(_) => {
                need(pod.volume == ticket.volume, || format!("{serial}: its pod has another volume"))?;
                need(alive(world, *serial).is_none(), || format!("{serial} runs already"))?;
            }
            Start::Resume => {}
        }
    }
    Ok(())
}

fn resumed_on_its_own_volume(world: &World, plan: &Plan) -> Result<(), String> {
    let after = ledger_after(world, plan);
    for step in &plan.steps {
        let Step::CreatePod { serial, bind, birth, release: _ } = step else { continue };
        let resume = matches!(birth, Birth::Resuming(_));
        let create = after.members.get(serial).and_then(|entry| entry.create.as_ref());
        let claim = world.seats.get(serial).and_then(|seat| seat.claim.as_ref());
        match bind {
            Bind::Claim(uid) => {
                need(claim.is_some_and(|claim| claim.uid == *uid), || format!("{serial}: no such claim"))?;
                need(create.is_none() || create == Some(uid), || format!("{serial} belongs on {create:?}"))?;
                need(!resume || create == Some(uid), || format!("{serial}: nothing to resume on {uid:?}"))?;
            }
            Bind::NewClaim | Bind::Ephemeral => {
                need(create.is_none() && !resume, || format!("{serial} belongs on {create:?}"))?;
            }
        }
    }
    Ok(())
}

fn no_pod_deleted_on_an_absent_node(world: &World, plan: &Plan) -> Result<(), String> {
    for step in plan.steps.iter().filter(|_| !ends(world)) {
        let Step::DeletePod { serial, .. } = step else { continue };
        let node = pod(world, *serial).and_then(|pod| pod.node.as_ref());
        let sight = node.map(|node| world.nodes.get(node));
        need(matches!(sight, None | Some(Some(NodeSight::Ready | NodeSight::Gone))), || {
            format!("{serial}: {sight:?}")
        })?;
    }
    Ok(())
}

fn seeded_at_most_once(world: &World, plan: &Plan) -> Result<(), String> {
    let (before, after) = (ledger(world).seeding, ledger_after(world, plan).seeding);
    let goes_on = match (before, after) {
        (Seeding::NotBegun, Seeding::NotBegun | Seeding::Begun(_)) | (Seeding::Begun(_), Seeding::Done(_)) => true,
        (Seeding::Begun(_), Seeding::Begun(_)) | (Seeding::Done(_), Seeding::Done(_)) => before == after,
        (Seeding::NotBegun, Seeding::Done(_))
        | (Seeding::Begun(_), Seeding::NotBegun)
        | (Seeding::Done(_), Seeding::NotBegun | Seeding::Begun(_)) => false,
    };
    need(goes_on, || format!("from {before:?} to {after:?}"))?;
    for step in &plan.steps {
        match step {
            Step::IssueTicket { serial, ticket, .. } if ticket.start == Start::Seed => {
                need(after == Seeding::Begun(*serial), || format!("{serial} is not the seed of {after:?}"))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn restored_before_the_seed(world: &World, plan: &Plan) -> Result<(), String> {
    let (before, after) = (ledger(world).seeding, ledger_after(world, plan).seeding);
    let mut restoring = 0;
    for step in &plan.steps {
        match step {
            Step::CreatePod { serial, birth: Birth::Restoring, .. } => {
                restoring += 1;
                need(after == Seeding::NotBegun, || format!("{serial} restores, and there is a seed"))?;
                let ready = world.wish.origin == Origin::Backup(Readiness::Ready);
                need(ready && restoring == 1, || format!("{serial} restores what can't be, or is being restored"))?;
            }
            Step::IssueTicket { serial, ticket, .. } if ticket.start == Start::Seed && before == Seeding::NotBegun => {
                let restored =
                    pod(world, *serial).is_some_and(|pod| pod.restores && matches!(pod.sight, Sight::Waiting(_)));
                need(restored || world.wish.origin == Origin::Nothing, || format!("{serial} has no backup"))?;
            }
            Step::AddLearner { serial, .. } => {
                let carries = pod(world, *serial).is_some_and(|pod| pod.restores);
                need(!carries, || format!("{serial} has a backup on its volume, and is to join"))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn serials_only_go_up(world: &World, plan: &Plan) -> Result<(), String> {
    let (before, after) = (ledger(world), ledger_after(world, plan));
    need(after.next_serial >= before.next_serial, || "the next serial fell".to_owned())?;
    for serial in after.members.keys().filter(|serial| !before.members.contains_key(serial)) {
        let is_new = *serial >= before.next_serial && *serial < after.next_serial && !world.seats.contains_key(serial);
        need(is_new || is_member(world, *serial), || format!("{serial} was handed out again"))?;
    }
    for serial in before.members.keys().filter(|serial| !after.members.contains_key(serial)) {
        need(*serial < after.next_serial || after.next_serial == serial.next(), || format!("{serial} may come again"))?;
    }
    Ok(())
}

fn no_contradiction(_: &World, plan: &Plan) -> Result<(), String> {
    let mut acts: BTreeMap<Serial, Vec<&Step>> = BTreeMap::new();
    for step in &plan.steps {
        match step {
            Step::CreatePod { serial, .. }
            | Step::IssueTicket { serial, .. }
            | Step::SwitchRelease { serial, .. }
            | Step::ResizePod { serial, .. }
            | Step::DeletePod { serial, .. }
            | Step::DeleteClaim { serial, .. }
            | Step::AddLearner { serial, .. }
            | Step::Promote { serial, .. }
            | Step::Remove { serial: Some(serial), .. } => acts.entry(*serial).or_default().push(step),
            Step::CreateClaim(_)
            | Step::LabelPod { .. }
            | Step::TryRelease { .. }
            | Step::EndTrial { .. }
            | Step::TakeSnapshot(_)
            | Step::EnableDowngrade(_)
            | Step::CancelDowngrade
            | Step::Remove { serial: None, .. }
            | Step::MoveLeader { .. }
            | Step::ReleaseFinalizer => {}
        }
    }
    for (serial, acts) in &acts {
        let is_told_before_it_votes = matches!(acts[..], [Step::IssueTicket { .. }, Step::Promote { .. }]);
        need(acts.len() <= 1 || is_told_before_it_votes, || format!("{serial}: {acts:?}"))?;
        let deleted = acts.iter().any(|step| matches!(step, Step::DeletePod { .. }));
        let labels = |step: &Step| matches!(step, Step::LabelPod { serial: of, .. } if of == serial);
        need(!deleted || !plan.steps.iter().any(labels), || format!("{serial} is labelled and deleted"))?;
    }
    let joined = plan.steps.iter().filter_map(|step| match step {
        Step::IssueTicket { ticket: Ticket { start: Start::Join(list), .. }, .. } => Some(list),
        _ => None,
    });
    let joined: BTreeSet<_> = joined.collect();
    let changes = plan.steps.iter().any(Step::changes_members);
    need(!changes || joined.is_empty(), || "a ticket to join a list that is being changed".to_owned())?;
    need(joined.len() <= 1, || format!("tickets to join {joined:?}"))
}

fn no_well_voter_is_stopped_beside_an_ill_one(world: &World, plan: &Plan) -> Result<(), String> {
    let Some(list) = list(world).filter(|_| !ends(world) && world.wish.replicas > 0) else { return Ok(()) };
    let all_well = voters(list).values().all(|serial| well(world, *serial));
    let stopped = stopped(world, list, plan);
    need(stopped.is_empty() || (all_well && stopped.len() == 1), || format!("{stopped:?}"))
}

/// The well voters that a plan stops.
fn stopped(world: &World, list: &MemberList, plan: &Plan) -> Vec<Serial> {
    let voters = voters(list);
    let stopped = plan.steps.iter().filter_map(|step| match step {
        Step::DeletePod { serial, .. } | Step::SwitchRelease { serial, .. } => Some(*serial),
        _ => None,
    });
    stopped
        .filter(|serial| well(world, Some(*serial)) && voters.values().any(|voter| *voter == Some(*serial)))
        .collect()
}

/// The kubelet reports one that is stopped as ready for a while.
fn no_drain_beside_a_stop(world: &World, plan: &Plan) -> Result<(), String> {
    let Some(list) = list(world).filter(|_| !ends(world) && world.wish.replicas > 0) else { return Ok(()) };
    let (count, stopped) = (voters(list).len(), stopped(world, list, plan));
    let spares_all = plan.budget.is_some_and(|budget| usize::from(budget) >= count);
    need(stopped.is_empty() || count == 1 || spares_all, || format!("{stopped:?}, and {:?}", plan.budget))
}

fn no_volume_goes_with_its_pod(world: &World, plan: &Plan) -> Result<(), String> {
    for step in plan.steps.iter().filter(|_| !ends(world)) {
        let Step::DeletePod { serial, .. } = step else { continue };
        let seat = world.seats.get(serial);
        let entry = ledger(world).members.get(serial).cloned().unwrap_or_default();
        let has_data = entry.create.is_some() && (is_member(world, *serial) || list(world).is_none());
        let goes = match world.wish.storage {
            Storage::Claims { .. } => seat.and_then(|seat| seat.claim.as_ref()).is_some_and(|claim| {
                let on_gone_node =
                    matches!(&claim.home, Home::Node(node) if world.nodes.get(node) == Some(&NodeSight::Gone));
                claim.terminating && Some(&claim.uid) == entry.create.as_ref() && !on_gone_node
            }),
            Storage::Ephemeral => seat
                .and_then(|seat| seat.pod.as_ref())
                .is_some_and(|pod| pod.stage != PodStage::Finished && Some(&pod.uid) == entry.create.as_ref()),
        };
        need(!(has_data && goes), || format!("{serial}"))?;
    }
    Ok(())
}

fn created_where_there_is_none(world: &World, plan: &Plan) -> Result<(), String> {
    for step in &plan.steps {
        match step {
            Step::CreatePod { serial, .. } => need(pod(world, *serial).is_none(), || format!("{serial} has a pod"))?,
            Step::CreateClaim(serial) => {
                let free = world.seats.get(serial).is_none_or(|seat| seat.claim.is_none());
                need(free, || format!("{serial} has a claim"))?;
            }
            _ => {}
        }
    }
    Ok(())
}
