//! Known mistakes, planted one at a time between the production `plan` and the operator that acts on it, or into a guard
//! (`operator.rs` and `glimpse.rs` ask for those). Each has to be caught: this shows that the checks can fail.

use std::collections::BTreeSet;

use quorate_statemachine::{
    Bind, Birth, Entry, FIRST_WITH_NEW_LOG, Life, MemberList, Membership, Memory, NodeSight, Plan, Refusal, Role,
    RoleLabel, Roster, Seat, Seeding, Serial, Sight, Standing, Start, Step, Ticket, Wish, World, plan,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// Membership calls are made whatever the member list is by then.
    ExpectedSetUnchecked,
    /// A learner is added whatever was written to the object since it was planned.
    LedgerUnread,
    /// What carries weight is done by what the watches show.
    GlanceTrusted,
    /// A voter that serves is stopped without a look at the others.
    OthersUnseen,
    /// A learner whose volume was lost is created again on another one.
    CreatedTwice,
    /// A voter too many is removed without asking how the others are.
    RemovedInHaste,
    /// A voter is removed, and nothing is done so that those who stay write that down.
    RemovalUnwritten,
    /// A learner is promoted as soon as it answers.
    PromotedLagging,
    /// A learner is promoted when it has been started, alive or not.
    PromotedDead,
    /// A learner becomes a voter with the ticket it was created by, and its launcher does not look for the mark.
    PromotedCreatable,
    /// A launcher creates on any volume without data, whatever mark its ticket names.
    MarkUnchecked,
    /// Another pod is seeded when the seed does not come up.
    SeededTwice,
    /// The volume is deleted first, then the member removed.
    VolumeDeletedBeforeRemoval,
    /// Two members are told to run the new release at once.
    SwitchedTwo,
    /// The next member is switched as soon as the last one's pod is told.
    SwitchedBeforeBack,
    /// The wished release is run at once, however far it is.
    JumpedTwoMinors,
    /// The leader is switched without handing over.
    LeaderSwitched,
    /// A pod that is out of date is replaced whatever its node takes.
    CordonOverlooked,
    /// Members are switched back though all run the new minor and etcd was not asked.
    TakenDownByImage,
    /// The logs of 3.5 are not cut before 3.7.
    LogsLeft,
    /// As many learners are added as fit what the members are told to run, whatever they still run.
    LearnersForWhatIsTold,
    /// Nothing is tried before.
    Untried,
    /// The first pod whose launcher waits becomes the seed, whatever is on its volume.
    SeededUnrestored,
    /// The pod of a seed restores whenever it is made.
    RestoredAgain,
    /// A pod on an unreachable node is deleted by force and started elsewhere.
    ForceDeletedUnreachable,
    /// A voter without a pod counts as down, whoever is connected to it.
    ConnectionsUnread,
    /// A voter whose node is gone is removed without asking how the others are.
    BuriedInHaste,
    /// A voter that came back to an emptied volume is told to join again on it. That its identity is created twice is not
    /// judged where this is planted (`kubelet.rs`), so that what it costs is seen.
    RejoinedEmpty,
    /// The plan is made as if nobody had paused.
    PauseOverlooked,
    /// The disruption budget lets one more go than can be spared.
    BudgetTooLow,
    /// The disruption budget stays as it is when a voter is stopped.
    BudgetKept,
    /// It lets one go again as soon as nobody is being stopped.
    BudgetHurried,
    /// A learner is promoted before the disruption budget counts its pod.
    PromotedUncounted,
    /// A serial is handed out in each round, whatever spares there are.
    SerialsWasted,
    /// No pod is ever made.
    NeverHealed,
}

/// What an operator with this mistake in it decides.
pub fn decide(mistake: Option<Mistake>, world: &World) -> Plan {
    let mut plan = plan(world);
    let Some(mistake) = mistake else { return plan };
    let spoilt = match mistake {
        Mistake::ExpectedSetUnchecked
        | Mistake::LedgerUnread
        | Mistake::GlanceTrusted
        | Mistake::OthersUnseen
        | Mistake::RemovalUnwritten
        | Mistake::MarkUnchecked => None,
        Mistake::CreatedTwice => create_again(world, &mut plan),
        Mistake::RemovedInHaste => remove_in_haste(world),
        Mistake::PromotedLagging => promote_if(world, |sight| matches!(sight, Sight::Etcd(_))),
        Mistake::PromotedDead => promote_if(world, |sight| !matches!(sight, Sight::Etcd(_))),
        Mistake::PromotedCreatable => promote_only(&plan),
        Mistake::SeededTwice => seed_another(world),
        Mistake::VolumeDeletedBeforeRemoval => delete_first(world, &plan),
        Mistake::ForceDeletedUnreachable => start_elsewhere(world),
        Mistake::SwitchedTwo => switch_two(world, &plan),
        Mistake::SwitchedBeforeBack => switch_tried(world, &mut plan, |_, leads| !leads),
        Mistake::Untried => switch_if(world, &mut plan, |calm, leads| calm && !leads),
        Mistake::JumpedTwoMinors | Mistake::TakenDownByImage => {
            try_wished(world).or_else(|| switch_if(world, &mut plan, |calm, leads| calm && !leads))
        }
        Mistake::LeaderSwitched => switch_tried(world, &mut plan, |calm, _| calm),
        Mistake::LogsLeft => leave_logs(world, &plan),
        Mistake::LearnersForWhatIsTold => believe_what_is_told(world),
        Mistake::SeededUnrestored => seed_unrestored(world, &mut plan),
        Mistake::RestoredAgain => Some(plan.steps.clone().into_iter().map(restoring).collect()),
        Mistake::ConnectionsUnread => Some(read_no_connections(world)),
        Mistake::BuriedInHaste => bury_in_haste(world),
        Mistake::RejoinedEmpty => rejoin_empty(world),
        Mistake::PauseOverlooked => Some(overlook_pause(world)),
        Mistake::CordonOverlooked => Some(overlook_cordon(world)),
        Mistake::BudgetTooLow => {
            plan.budget = plan.budget.map(|budget| budget.saturating_sub(1));
            None
        }
        Mistake::BudgetKept => {
            plan.budget = plan.budget.filter(|_| !plan.steps.iter().any(stops));
            None
        }
        Mistake::BudgetHurried => {
            let hurried = list(world).and_then(|(list, _)| u8::try_from(list.members.len()).ok()?.checked_sub(1));
            plan.budget = plan.budget.or(hurried);
            None
        }
        Mistake::PromotedUncounted => Some(without_labels_before_promotions(&plan)),
        Mistake::SerialsWasted => waste_serial(world, &mut plan),
        Mistake::NeverHealed => Some(without_new_pods(&plan)),
    };
    if let Some(steps) = spoilt {
        plan.steps = steps;
    }
    plan
}

fn stops(step: &Step) -> bool {
    matches!(step, Step::SwitchRelease { .. } | Step::DeletePod { .. })
}

fn switch_two(world: &World, plan: &Plan) -> Option<Vec<Step>> {
    let first = plan.steps.iter().find(|step| matches!(step, Step::SwitchRelease { .. }))?.clone();
    let Step::SwitchRelease { serial, release, .. } = &first else { return None };
    let (other, pod) = world
        .seats
        .iter()
        .filter_map(|(other, seat)| Some((*other, seat.pod.as_ref()?)))
        .find(|(other, pod)| other != serial && pod.release.as_ref() != Some(release))?;
    let second = Step::SwitchRelease { serial: other, pod: pod.uid.clone(), release: release.clone(), ticket: None };
    Some(vec![first, second])
}

/// Switches the highest voter that does not run what is wished, where that is told of whether all have come back and of
/// whether it leads; and writes that down.
fn switch_if(world: &World, plan: &mut Plan, fits: fn(bool, bool) -> bool) -> Option<Vec<Step>> {
    let (list, _) = list(world)?;
    let wished = &world.wish.release;
    let pod = |serial: &Serial| world.seats.get(serial)?.pod.as_ref();
    let voters = || list.members.iter().filter_map(|(id, line)| Some((*id, line.serial?)));
    let back = voters()
        .all(|(_, serial)| pod(&serial).is_some_and(|pod| !pod.switching && matches!(pod.sight, Sight::Etcd(_))));
    let due = |serial: &Serial| pod(serial).is_some_and(|pod| pod.release.as_ref() != Some(wished));
    let (_, serial) = voters()
        .filter(|(id, serial)| due(serial) && fits(back, list.leader == Some(*id)))
        .max_by_key(|(_, serial)| *serial)?;
    let mut ledger = match (&plan.ledger, &world.memory) {
        (Some(ledger), _) | (None, Memory::Ledger(ledger)) => ledger.clone(),
        (None, Memory::Blank | Memory::Unreadable) => return None,
    };
    ledger.members.get_mut(&serial)?.release = Some(wished.clone());
    plan.ledger = Some(ledger);
    let pod = pod(&serial)?.uid.clone();
    Some(vec![Step::SwitchRelease { serial, pod, release: wished.clone(), ticket: None }])
}

/// Tries what is wished for whom it was not tried.
fn try_wished(world: &World) -> Option<Vec<Step>> {
    let release = &world.wish.release;
    let untried =
        |serial: &Serial| !world.trials.iter().any(|trial| trial.serial == *serial && trial.release == *release);
    let serial = *world.seats.keys().find(|serial| untried(serial))?;
    let node = world.seats.get(&serial)?.pod.as_ref()?.node.clone()?;
    Some(vec![Step::TryRelease { serial, node, release: release.clone() }])
}

/// The same, once all trials have been made.
fn switch_tried(world: &World, plan: &mut Plan, fits: fn(bool, bool) -> bool) -> Option<Vec<Step>> {
    (world.trials.len() == world.seats.len()).then(|| switch_if(world, plan, fits)).flatten()
}

fn leave_logs(world: &World, right: &Plan) -> Option<Vec<Step>> {
    let cuts = right.steps.iter().any(|step| matches!(step, Step::EnableDowngrade(_)));
    let mut forgetful = world.clone();
    let Memory::Ledger(ledger) = &mut forgetful.memory else { return None };
    ledger.oldest_log = Some(FIRST_WITH_NEW_LOG);
    cuts.then(|| plan(&forgetful).steps)
}

fn believe_what_is_told(world: &World) -> Option<Vec<Step>> {
    let mut believing = world.clone();
    let Memory::Ledger(ledger) = &mut believing.memory else { return None };
    ledger.members.values_mut().for_each(|entry| entry.former = None);
    for pod in believing.seats.values_mut().filter_map(|seat| seat.pod.as_mut()) {
        if let (Sight::Etcd(alive), Some(told)) = (&mut pod.sight, &pod.release) {
            alive.version = Some(told.version);
        }
    }
    let steps = plan(&believing).steps;
    steps.iter().any(|step| matches!(step, Step::AddLearner { .. })).then_some(steps)
}

fn list(world: &World) -> Option<(&MemberList, Roster)> {
    match &world.membership {
        Membership::Unknown => None,
        Membership::Known(list) => Some((list, list.members.iter().map(|(id, listed)| (*id, listed.role)).collect())),
    }
}

fn create_again(world: &World, plan: &mut Plan) -> Option<Vec<Step>> {
    let (list, roster) = list(world)?;
    let known = roster.into_keys().collect();
    let Memory::Ledger(ledger) = &world.memory else { return None };
    let learners = list.members.values().filter(|listed| listed.role == Role::Learner);
    for serial in learners.filter_map(|listed| listed.serial) {
        let first = ledger.members.get(&serial)?.create.clone()?;
        let Seat { pod, claim } = world.seats.get(&serial).cloned().unwrap_or_default();
        match (pod, claim) {
            (None, None) => {
                let release = world.wish.release.clone();
                let pod = Step::CreatePod { serial, bind: Bind::NewClaim, birth: Birth::Waiting, release };
                return Some(vec![Step::CreateClaim(serial), pod]);
            }
            (Some(pod), Some(claim)) if claim.uid != first && matches!(pod.sight, Sight::Waiting(_)) => {
                let mut ledger = ledger.clone();
                ledger.members.get_mut(&serial)?.create = Some(claim.uid.clone());
                plan.ledger = Some(ledger);
                let ticket = Ticket { start: Start::Join(known), volume: claim.uid, mark: None, version: None };
                return Some(vec![Step::IssueTicket { serial, pod: pod.uid, ticket }]);
            }
            (Some(_) | None, _) => {}
        }
    }
    None
}

fn remove_in_haste(world: &World) -> Option<Vec<Step>> {
    let (list, expect) = list(world)?;
    let voters = list.members.iter().filter(|(_, listed)| listed.role == Role::Voter);
    let excess = voters.clone().count() > usize::from(world.wish.replicas);
    let (id, listed) = voters.rev().find(|(id, _)| list.leader != Some(**id)).filter(|_| excess)?;
    Some(vec![Step::Remove { serial: listed.serial, id: *id, expect }])
}

fn promote_if(world: &World, fits: fn(&Sight) -> bool) -> Option<Vec<Step>> {
    let (list, expect) = list(world)?;
    let learners = list.members.iter().filter(|(_, listed)| listed.role == Role::Learner && listed.started);
    let sight = |serial: Serial| world.seats.get(&serial).and_then(|seat| seat.pod.as_ref()).map(|pod| &pod.sight);
    let (id, serial) = learners
        .filter_map(|(id, listed)| Some((*id, listed.serial?)))
        .find(|(_, serial)| sight(*serial).is_some_and(fits))?;
    Some(vec![Step::Promote { serial, id, expect }])
}

fn promote_only(plan: &Plan) -> Option<Vec<Step>> {
    let promotions: Vec<_> = plan.steps.iter().filter(|step| matches!(step, Step::Promote { .. })).cloned().collect();
    (!promotions.is_empty()).then_some(promotions)
}

fn seed_another(world: &World) -> Option<Vec<Step>> {
    let Memory::Ledger(ledger) = &world.memory else { return None };
    let Seeding::Begun(seed) = ledger.seeding else { return None };
    let (serial, pod) = world
        .seats
        .iter()
        .filter(|(serial, _)| **serial != seed)
        .filter_map(|(serial, seat)| Some((*serial, seat.pod.as_ref()?)))
        .find(|(_, pod)| matches!(pod.sight, Sight::Waiting(_)) && pod.ticket.is_none())?;
    let ticket = Ticket { start: Start::Seed, volume: pod.volume.clone(), mark: None, version: None };
    Some(vec![Step::IssueTicket { serial, pod: pod.uid.clone(), ticket }])
}

fn seed_unrestored(world: &World, plan: &mut Plan) -> Option<Vec<Step>> {
    let Memory::Ledger(ledger) = &world.memory else { return None };
    let mut ledger = ledger.clone();
    let (serial, pod) =
        world.seats.iter().filter_map(|(serial, seat)| Some((*serial, seat.pod.as_ref()?))).find(|(_, pod)| {
            matches!(pod.sight, Sight::Waiting(_)) && !pod.restores && ledger.seeding == Seeding::NotBegun
        })?;
    ledger.seeding = Seeding::Begun(serial);
    ledger.members.get_mut(&serial)?.create = Some(pod.volume.clone());
    plan.ledger = Some(ledger);
    let ticket = Ticket { start: Start::Seed, volume: pod.volume.clone(), mark: None, version: None };
    Some(vec![Step::IssueTicket { serial, pod: pod.uid.clone(), ticket }])
}

fn restoring(step: Step) -> Step {
    match step {
        Step::CreatePod { serial, bind, birth: _, release } => {
            Step::CreatePod { serial, bind, birth: Birth::Restoring, release }
        }
        other => other,
    }
}

fn delete_first(world: &World, plan: &Plan) -> Option<Vec<Step>> {
    let serial = plan.steps.iter().find_map(|step| match step {
        Step::Remove { serial, .. } => *serial,
        _ => None,
    })?;
    let claim = world.seats.get(&serial)?.claim.as_ref().filter(|claim| !claim.terminating)?;
    let deletion = Step::DeleteClaim { serial, claim: claim.uid.clone() };
    Some([vec![deletion], plan.steps.clone()].concat())
}

fn start_elsewhere(world: &World) -> Option<Vec<Step>> {
    let Memory::Ledger(ledger) = &world.memory else { return None };
    for (serial, seat) in &world.seats {
        let entry = ledger.members.get(serial)?;
        let cut = |node| matches!(world.nodes.get(node), Some(NodeSight::NotReady(_)));
        match (&seat.pod, &seat.claim) {
            (Some(pod), _) if pod.node.as_ref().is_some_and(cut) => {
                return Some(vec![Step::DeletePod { serial: *serial, pod: pod.uid.clone() }]);
            }
            (None, Some(claim)) if entry.node.as_ref().is_some_and(cut) => {
                let bind = Bind::Claim(claim.uid.clone());
                let release = world.wish.release.clone();
                return Some(vec![Step::CreatePod {
                    serial: *serial,
                    bind,
                    birth: Birth::Resuming(Role::Voter),
                    release,
                }]);
            }
            (Some(_) | None, _) => {}
        }
    }
    None
}

fn read_no_connections(world: &World) -> Vec<Step> {
    let mut unread = world.clone();
    for pod in unread.seats.values_mut().filter_map(|seat| seat.pod.as_mut()) {
        if let Sight::Etcd(alive) = &mut pod.sight {
            alive.links.clear();
        }
    }
    plan(&unread).steps
}

fn bury_in_haste(world: &World) -> Option<Vec<Step>> {
    let Memory::Ledger(ledger) = &world.memory else { return None };
    let (list, expect) = list(world)?;
    let is_gone = |serial: Serial| {
        let node = ledger.members.get(&serial).and_then(|entry| entry.node.as_ref());
        node.and_then(|node| world.nodes.get(node)) == Some(&NodeSight::Gone)
    };
    let mut voters = list.members.iter().filter(|(_, listed)| listed.role == Role::Voter);
    let (id, listed) = voters.find(|(_, listed)| listed.serial.is_some_and(is_gone))?;
    Some(vec![Step::Remove { serial: listed.serial, id: *id, expect }])
}

fn rejoin_empty(world: &World) -> Option<Vec<Step>> {
    let Memory::Ledger(ledger) = &world.memory else { return None };
    let (serial, pod) = world
        .seats
        .iter()
        .filter_map(|(serial, seat)| Some((*serial, seat.pod.as_ref()?)))
        .find(|(_, pod)| pod.sight == Sight::Refused(Refusal::VolumeLost))?;
    let known = ledger.members.values().filter_map(|entry| match entry.standing {
        Standing::Learner(id) | Standing::Voter(id) => Some(id),
        Standing::Spare => None,
    });
    let ticket = Ticket { start: Start::Join(known.collect()), volume: pod.volume.clone(), mark: None, version: None };
    Some(vec![Step::IssueTicket { serial, pod: pod.uid.clone(), ticket }])
}

fn overlook_pause(world: &World) -> Vec<Step> {
    let wish = Wish { life: Life::Wanted, ..world.wish.clone() };
    plan(&World { wish, ..world.clone() }).steps
}

fn overlook_cordon(world: &World) -> Vec<Step> {
    plan(&World { cordoned: BTreeSet::new(), ..world.clone() }).steps
}

fn waste_serial(world: &World, plan: &mut Plan) -> Option<Vec<Step>> {
    let Memory::Ledger(ledger) = &world.memory else { return None };
    let mut ledger = ledger.clone();
    let serial = ledger.next_serial;
    ledger.next_serial = serial.next();
    ledger.members.insert(serial, Entry::default());
    plan.ledger = Some(ledger);
    let release = world.wish.release.clone();
    let pod = Step::CreatePod { serial, bind: Bind::NewClaim, birth: Birth::Waiting, release };
    Some(vec![Step::CreateClaim(serial), pod])
}

fn without_new_pods(plan: &Plan) -> Vec<Step> {
    plan.steps.iter().filter(|step| !matches!(step, Step::CreatePod { .. })).cloned().collect()
}

fn without_labels_before_promotions(plan: &Plan) -> Vec<Step> {
    let early = |step: &Step| matches!(step, Step::LabelPod { label: RoleLabel::Returning, .. });
    plan.steps.iter().filter(|step| !early(step)).cloned().collect()
}
