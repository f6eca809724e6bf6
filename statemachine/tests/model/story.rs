//! Tells a path through the model in words.

use std::fmt::Write;

use quorate_statemachine::{Ledger, Memory, Phase};
use stateright::Path;

use crate::{
    check::{Action, COMES_TO_REST, Quorate},
    faults::Kind,
    glimpse::{Next, look_on},
    observe::{Eyes, ids},
    operator::voters,
    state::{Node, Operator, State},
};

/// The path, a line for each transition, then what is there in the end.
pub fn tell(model: &Quorate, property: &str, path: Path<State, Action>) -> String {
    let mut story = format!("\n{}: broken: \"{property}\"\n", model.config.name);
    let steps: Vec<_> = path.into();
    for (index, (state, action)) in steps.iter().enumerate() {
        let next = steps.get(index + 1).map(|(next, _)| next);
        if let (Some(action), Some(next)) = (action, next) {
            let _ = writeln!(story, "{:>3}. {}", index + 1, words(model, *action, state, next));
        }
    }
    let Some((last, _)) = steps.last() else { return story };
    let _ = writeln!(story, "In the end:\n{}", scene(last));
    if property == COMES_TO_REST {
        let mut rounds = Vec::new();
        let why = model.calm.comes(&model.config, last, Some(&mut rounds));
        rounds.truncate(40);
        for round in rounds {
            let _ = writeln!(story, "     then {round}");
        }
        let _ = writeln!(story, "  {}", why.err().unwrap_or_default());
    }
    story
}

fn words(model: &Quorate, action: Action, before: &State, after: &State) -> String {
    match action {
        Action::Observe(operator) => intent(model, before, operator, Eyes::Open),
        Action::ObserveBlind(operator) => {
            format!("(etcd does not answer) {}", intent(model, before, operator, Eyes::Blind))
        }
        Action::Act(operator) => acted(before, after, operator),
        Action::ActUnshown(operator) => format!("{}; its watches lag", acted(before, after, operator)),
        Action::ActOnDying(operator) => format!("the learner dies, and {}", acted(before, after, operator)),
        Action::ActRefused(operator) => format!("Kubernetes refuses, and {}", acted(before, after, operator)),
        Action::Crash(_) => "an operator crashes".to_owned(),
        Action::Progress(serial) => format!("{serial} goes on: {}", seat(after, serial)),
        Action::CatchUp(serial) => format!("{serial} catches up"),
        Action::Monitor => format!("etcd looks at its versions: {:?}", after.versions),
        Action::Heal(serial) => format!("the node of {serial} is back"),
        Action::NeverHeals(serial) => format!("the node of {serial}, which was cut off, is gone for good"),
        Action::NextWish => format!("now {:?} is wished", model.config.wish(after)),
        Action::Strike(kind, serial) => format!("FAULT at {serial}: {}: {}", fault(kind), seat(after, serial)),
        Action::DeleteAllPods => "FAULT: all pods are deleted".to_owned(),
        Action::LoseStatus => "FAULT: the status is lost".to_owned(),
    }
}

fn intent(model: &Quorate, before: &State, operator: usize, eyes: Eyes) -> String {
    let plan = match look_on(&model.config, before, operator, eyes) {
        None => return "nobody observes".to_owned(),
        Some(Next::Act(_, plan, _)) => plan,
        Some(Next::Look(glimpse)) => {
            let what = match (glimpse.said, glimpse.objects) {
                (Some(_), _) => "asks etcd and the launchers, and has to look again by quorum reads",
                (None, Some(_)) => "reads pods, claims and nodes",
                (None, None) => "reads the object",
            };
            return format!("an operator {what}");
        }
    };
    let mut text = format!("an operator observes: {:?}", plan.phase);
    if let Some(ledger) = &plan.ledger {
        let _ = write!(text, ", ledger [{}]", remembered(ledger));
    }
    for step in &plan.steps {
        let _ = write!(text, "\n       means to {step:?}");
    }
    if plan.phase != Phase::Running || !plan.findings.is_empty() {
        let _ = write!(text, "\n       finds {:?}", plan.findings);
    }
    text
}

fn acted(before: &State, after: &State, operator: usize) -> String {
    let Operator::Acting(intent) = &before.operators[operator] else { return "nobody acts".to_owned() };
    let what = if intent.ledger.is_some() {
        "writes the ledger".to_owned()
    } else {
        format!("does {:?}", intent.steps.first().map(|held| &held.step))
    };
    let same = before.seats == after.seats && before.memory == after.memory && before.leader == after.leader;
    format!("an operator {what}{}", if same { ", which is refused or changes nothing" } else { "" })
}

fn fault(kind: Kind) -> &'static str {
    match kind {
        Kind::Kill => "etcd is killed",
        Kind::Birth => "etcd is killed before its first entry",
        Kind::DeletePod => "the pod is deleted",
        Kind::ForceDelete => "the pod is deleted by force",
        Kind::Evict => "the pod is evicted",
        Kind::Cordon => "the node is cordoned",
        Kind::Finish => "the pod's containers end for good",
        Kind::DeleteClaim => "the claim is deleted",
        Kind::Swap => "the volume is swapped for an empty one",
        Kind::Foreign => "the volume carries foreign data",
        Kind::Cut => "the node is cut off",
        Kind::Gone => "the node is gone",
        Kind::Late => "time goes by",
        Kind::AllPods | Kind::StatusLost | Kind::Blind | Kind::Dying | Kind::Refused | Kind::Crash => "",
    }
}

/// What is really there, a line for each seat.
fn scene(state: &State) -> String {
    let mut text = String::new();
    for serial in state.serials() {
        let _ = writeln!(text, "  {serial}: {}", seat(state, serial));
    }
    let list: Vec<_> = ids(state.members()).map(|id| id.0).collect();
    let voting: Vec<_> = ids(voters(state)).map(|id| id.0).collect();
    let _ = writeln!(text, "  members {list:?}, voters {voting:?}, leader {:?}, {:?}", state.leader, state.versions);
    match &*state.memory {
        Memory::Blank => text.push_str("  no ledger"),
        Memory::Unreadable => text.push_str("  a ledger that can't be read"),
        Memory::Ledger(ledger) => text.push_str(&remembered(ledger)),
    }
    text
}

fn remembered(ledger: &Ledger) -> String {
    let mut text = format!("{:?}, next {}", ledger.seeding, ledger.next_serial);
    for (serial, entry) in &ledger.members {
        let create = entry.create.as_ref().map_or("-", |uid| uid.as_str());
        let node = entry.node.as_ref().map_or("-", |node| node.as_str());
        let _ = write!(text, "; {serial}: {:?} create {create} node {node}", entry.standing);
    }
    text
}

fn seat(state: &State, serial: u8) -> String {
    let seat = state.seat(serial);
    let mut text = match seat.claim {
        None => "no claim".to_owned(),
        Some(claim) => {
            format!("claim .{}{} {:?}", claim.made, if claim.terminating { " terminating" } else { "" }, claim.data)
        }
    };
    match seat.pod {
        None => text.push_str(", no pod"),
        Some(pod) => {
            let ticket = pod.ticket.map(|ticket| ticket.start);
            let going = if pod.terminating { " terminating" } else { "" };
            let _ = write!(text, ", pod {:?}/{:?}{going} ticket {ticket:?} {:?}", pod.stage, pod.process, pod.age);
            let _ = write!(text, ", runs 3.{} of 3.{}", pod.runs, pod.release);
        }
    }
    if let Some(member) = seat.member {
        let _ = write!(text, ", {:?}{}", member.role, if member.started { "" } else { " (unstarted)" });
    }
    if seat.node != Node::Ready {
        let _ = write!(text, ", node {:?}", seat.node);
    }
    if seat.leftover {
        text.push_str(", its process goes on without it");
    }
    if seat.ghost {
        text.push_str(", a GHOST of it still runs");
    }
    text
}
