//! The rules for what members are told to run, and when.

use quorate_statemachine::{
    Alive, Life, Listed, MemberList, Minor, Outcome, Overall, Plan, Release, Saved, Serial, Start, Step, Version, World,
};

use super::{alive, ledger, ledger_after, list, need, pod, voters, well};

type Verdict = Result<(), String>;

/// The voters that are well and told to run something else.
fn switched<'p>(world: &World, plan: &'p Plan) -> Vec<(Serial, &'p Release)> {
    let steps = plan.steps.iter().filter_map(|step| match step {
        Step::SwitchRelease { serial, release, .. } => Some((*serial, release)),
        _ => None,
    });
    steps.filter(|(serial, _)| well(world, Some(*serial)) && votes(world, *serial)).collect()
}

fn votes(world: &World, serial: Serial) -> bool {
    list(world).is_some_and(|list| voters(list).values().any(|voter| *voter == Some(serial)))
}

fn voting(world: &World) -> Vec<Serial> {
    list(world).map(|list| voters(list).into_values().flatten().collect()).unwrap_or_default()
}

fn leader(list: &MemberList) -> Option<Serial> {
    list.members.get(&list.leader?)?.serial
}

fn cluster_version(world: &World) -> Option<Minor> {
    alive(world, leader(list(world)?)?)?.cluster_version
}

fn told(world: &World, serial: Serial) -> Option<Version> {
    pod(world, serial)?.release.as_ref().map(|release| release.version)
}

/// It answers, and runs what it was told to in the container of that.
fn runs_as_told(world: &World, serial: Serial) -> bool {
    let Some(pod) = pod(world, serial) else { return false };
    let runs = alive(world, serial).and_then(|alive| alive.version);
    !pod.switching && runs.is_some() && runs == told(world, serial)
}

fn downgrade(world: &World) -> Option<Minor> {
    match world.overall {
        Overall::Known { downgrade, .. } => downgrade,
        Overall::Unknown | Overall::OfAlarms(_) => None,
    }
}

pub fn leader_hands_over(world: &World, plan: &Plan) -> Verdict {
    let Some(list) = list(world).filter(|_| world.wish.life == Life::Wanted && world.wish.replicas > 0) else {
        return Ok(());
    };
    for step in &plan.steps {
        let (Step::DeletePod { serial, .. } | Step::SwitchRelease { serial, .. }) = step else { continue };
        let leads = leader(list) == Some(*serial) && well(world, Some(*serial));
        let alone = voters(list).len() == 1 || only_one_on_a_node_that_stays(world, *serial);
        need(!leads || alone, || format!("{serial} leads: {step:?}"))?;
    }
    Ok(())
}

/// Whether all other voters that are well are on nodes that are about to be drained, and this one is not.
fn only_one_on_a_node_that_stays(world: &World, serial: Serial) -> bool {
    let leaves = |serial: Serial| {
        let pod = world.seats.get(&serial).and_then(|seat| seat.pod.as_ref());
        pod.and_then(|pod| pod.node.as_ref()).is_some_and(|node| world.cordoned.contains(node))
    };
    let others: Vec<_> =
        voting(world).into_iter().filter(|other| *other != serial && well(world, Some(*other))).collect();
    !leaves(serial) && !others.is_empty() && others.into_iter().all(leaves)
}

pub fn next_when_last_is_back(world: &World, plan: &Plan) -> Verdict {
    let switched = switched(world, plan);
    need(switched.len() <= 1, || format!("{switched:?}"))?;
    if switched.is_empty() {
        return Ok(());
    }
    let all = voting(world);
    let committed = |alive: &Alive| alive.committed;
    let leads = list(world).and_then(leader).and_then(|leader| alive(world, leader)).map_or(u64::MAX, committed);
    for serial in &all {
        let state = alive(world, *serial).ok_or_else(|| format!("{serial} is down"))?;
        need(well(world, Some(*serial)) && runs_as_told(world, *serial), || format!("{serial} is not back"))?;
        for other in all.iter().filter(|other| *other != serial) {
            let connected = knows_of(world, *serial, *other) || knows_of(world, *other, *serial);
            need(connected, || format!("{serial} and {other} are not connected"))?;
        }
        need(leads.saturating_sub(state.applied) <= 100, || format!("{serial} lags"))?;
        need(pod(world, *serial).is_some_and(|pod| pod.ready && !pod.terminating), || {
            format!("{serial} is not ready")
        })?;
    }
    Ok(())
}

/// Whether one member says that it is connected to another one, and was not started before it.
fn knows_of(world: &World, one: Serial, other: Serial) -> bool {
    let started = |serial| alive(world, serial).map(|alive| alive.process);
    started(one) >= started(other) && counts(world, one, other)
}

/// Whether one member says that it is connected to another one.
fn counts(world: &World, one: Serial, other: Serial) -> bool {
    let is_other = |line: &Listed| line.serial == Some(other);
    let id = list(world).and_then(|list| list.members.iter().find(|(_, line)| is_other(line)).map(|(id, _)| *id));
    alive(world, one).zip(id).is_some_and(|(alive, id)| alive.links.contains_key(&id))
}

pub fn one_minor_a_step(world: &World, plan: &Plan) -> Verdict {
    for (serial, release) in switched(world, plan) {
        let to = release.version.minor;
        let cluster = cluster_version(world).ok_or("nobody knows what the cluster runs at")?;
        need(to == cluster || to == cluster.next(), || format!("{serial}: to {to} in a cluster at {cluster}"))?;
        need(to == cluster || downgrade(world).is_none(), || format!("{serial}: up while a downgrade is enabled"))?;
        let all = voting(world);
        let minors = || all.iter().filter_map(|serial| told(world, *serial)).map(|version| version.minor);
        need(minors().chain([to]).all(|minor| minor.0.abs_diff(to.0) <= 1), || format!("{to} beside others"))?;
    }
    Ok(())
}

/// One that was on the higher minor goes down only beside one that holds the cluster's version at that of its new minor or
/// below, or by a downgrade.
pub fn down_by_etcd(world: &World, plan: &Plan) -> Verdict {
    for (serial, release) in switched(world, plan) {
        let to = release.version.minor;
        if told(world, serial).is_none_or(|told| told.minor <= to) {
            continue;
        }
        let lowered = downgrade(world) == Some(to) && alive(world, serial).is_some_and(|a| a.storage == Some(to));
        let others = voting(world).into_iter().filter(|other| *other != serial);
        let mut holders =
            others.filter(|other| runs_as_told(world, *other) && told(world, *other).is_some_and(|t| t.minor <= to));
        let held = cluster_version(world).is_some_and(|cluster| cluster <= to) && holders.next().is_some();
        need(lowered || held, || format!("{serial}: nothing keeps the cluster at {to}"))?;
    }
    Ok(())
}

/// Who is down and has data is taken back to a lower minor only as long as nobody knows the cluster to run above that.
pub fn not_taken_below(world: &World, plan: &Plan) -> Verdict {
    let live = world.seats.keys().filter_map(|serial| alive(world, *serial)?.cluster_version).max();
    let ledger = ledger(world);
    for step in &plan.steps {
        let Step::SwitchRelease { serial, release, .. } = step else { continue };
        let to = release.version.minor;
        let has_data = ledger.members.get(serial).is_some_and(|entry| entry.create.is_some());
        let is_down = alive(world, *serial).is_none() && told(world, *serial).is_some_and(|told| told.minor > to);
        need(!(has_data && is_down) || live.is_none_or(|live| live <= to), || {
            format!("{serial}: to {to}, and somebody says {live:?}")
        })?;
    }
    Ok(())
}

pub fn tried_first(world: &World, plan: &Plan) -> Verdict {
    for (serial, release) in switched(world, plan) {
        let node = pod(world, serial).and_then(|pod| pod.node.clone());
        let passed = world.trials.iter().any(|trial| {
            trial.serial == serial
                && trial.release == *release
                && Some(&trial.node) == node.as_ref()
                && trial.template == world.wish.template
                && trial.outcome == Outcome::Passed
        });
        need(passed, || format!("{serial}: {release:?}"))?;
    }
    Ok(())
}

/// No voter is the first of a minor before the snapshot that is wanted was taken, also none that is down; one that is taken
/// back to what it ran before is.
pub fn saved_first(world: &World, plan: &Plan) -> Verdict {
    for step in &plan.steps {
        let Step::SwitchRelease { serial, release, .. } = step else { continue };
        let to = release.version.minor;
        let before = ledger(world);
        let entry = before.members.get(serial);
        let back = entry.is_some_and(|entry| [&entry.release, &entry.former].contains(&&Some(release.clone())));
        let begun = voting(world).into_iter().filter_map(|serial| told(world, serial)).any(|told| told.minor == to);
        let saved = world.snapshots.get(&to) == Some(&Saved::Taken) || cluster_version(world) == Some(to);
        let due = world.wish.snapshot_first && votes(world, *serial) && !back;
        need(!due || begun || saved, || format!("{serial} to {to}"))?;
    }
    Ok(())
}

pub fn logs_are_cut(world: &World, plan: &Plan) -> Verdict {
    for (serial, release) in switched(world, plan) {
        let below = |serial: &Serial| told(world, *serial).is_some_and(|told| told.minor < Minor(7));
        let first = release.version.minor >= Minor(7) && voting(world).iter().all(below);
        let after = ledger_after(world, plan);
        let cut = after.logs_cut || after.oldest_log.is_some_and(|oldest| oldest >= Minor(6));
        need(!first || cut, || format!("{serial}"))?;
    }
    Ok(())
}

pub fn written_down_first(world: &World, plan: &Plan) -> Verdict {
    let after = ledger_after(world, plan);
    for step in &plan.steps {
        let Step::SwitchRelease { serial, release, .. } = step else { continue };
        let Some(entry) = after.members.get(serial).filter(|entry| entry.create.is_some()) else { continue };
        need(entry.release.as_ref() == Some(release), || format!("{serial}: the ledger says {:?}", entry.release))?;
        let old = release.version.minor < Minor(6);
        need(!old || after.oldest_log == Some(release.version.minor), || format!("{:?}", after.oldest_log))?;
    }
    Ok(())
}

pub fn no_newcomer_in_a_downgrade(world: &World, plan: &Plan) -> Verdict {
    let joins = |step: &&Step| match step {
        Step::AddLearner { .. } => true,
        Step::IssueTicket { ticket, .. } => matches!(ticket.start, Start::Join(_)),
        _ => false,
    };
    let joining = plan.steps.iter().find(joins);
    need(joining.is_none() || downgrade(world).is_none(), || format!("{joining:?}"))
}

pub fn newcomer_runs_the_leaders_minor(world: &World, plan: &Plan) -> Verdict {
    let seeded = ledger(world).seeding;
    for step in &plan.steps {
        let Step::IssueTicket { serial, ticket, .. } = step else { continue };
        let fresh = pod(world, *serial).is_some_and(|pod| pod.ticket.is_none());
        if !fresh
            || !matches!(ticket.start, Start::Join(_))
            || ledger(world).members.get(serial).is_some_and(|e| e.create.is_some())
        {
            continue;
        }
        let leader = list(world).and_then(leader).and_then(|leader| told(world, leader));
        let same = leader.is_some() && leader.map(|v| v.minor) == ticket.version.map(|v| v.minor);
        need(same, || format!("{serial} as {:?} beside {leader:?}, {seeded:?}", ticket.version))?;
    }
    Ok(())
}
