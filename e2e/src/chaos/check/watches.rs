//! Whether watches are complete and in order: each sees every revision after its first once, in order, up to the last,
//! and all see the same.

use std::collections::{BTreeMap, HashSet};

use crate::chaos::history::{Change, Event, History, Key, Op, Revision, Value, Watched};

/// What is known of a revision, and who said so.
struct Known<'a> {
    key: &'a Key,
    change: Change,
    by: String,
}

/// What is wrong.
pub fn check(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    let truth = truth(history, &mut wrong);
    let written: HashSet<Value> = history
        .calls
        .iter()
        .filter_map(|call| match call.op {
            Op::Put(value) | Op::Swap { to: value, .. } => Some(value),
            Op::Get | Op::Delete => None,
        })
        .collect();
    for watch in history.watches.iter().chain(history.replays.values()) {
        in_order(watch, &mut wrong);
        complete(watch, &truth, &mut wrong);
        reached(watch, history.last, &mut wrong);
        for Event { revision, key, change } in &watch.events {
            if let Change::Put(value) = change
                && !written.contains(value)
            {
                wrong.push(format!("{} saw {key} = {value} at {revision}, which nobody wrote", watch.name));
            }
        }
    }
    wrong
}

/// What each revision is, by all acknowledged writes and all watches; and where two say different things.
fn truth<'a>(history: &'a History, wrong: &mut Vec<String>) -> BTreeMap<Revision, Known<'a>> {
    let mut truth: BTreeMap<Revision, Known<'a>> = BTreeMap::new();
    let writes = history.calls.iter().filter_map(|call| {
        let (revision, change) = call.acknowledged()?;
        Some((revision, Known { key: &call.key, change, by: format!("client {}", call.client.0) }))
    });
    let seen = history.watches.iter().chain(history.replays.values()).flat_map(|watch| {
        let known = |event: &'a Event| Known { key: &event.key, change: event.change, by: watch.name.clone() };
        watch.events.iter().map(move |event| (event.revision, known(event)))
    });
    for (revision, says) in writes.chain(seen) {
        match truth.get(&revision) {
            Some(known) if known.key == says.key && known.change == says.change => (),
            Some(known) => wrong.push(format!(
                "revision {revision} is {:?} of {} by {}, and {:?} of {} by {}",
                known.change, known.key, known.by, says.change, says.key, says.by
            )),
            None => {
                truth.insert(revision, says);
            }
        }
    }
    truth
}

/// Revisions only go up: each write of a run changes one key, so none has two events.
fn in_order(watch: &Watched, wrong: &mut Vec<String>) {
    let mut last = watch.after;
    for event in &watch.events {
        if event.revision <= last {
            wrong.push(format!("{} saw {} of {} after {last}", watch.name, event.revision, event.key));
        }
        last = last.max(event.revision);
    }
}

/// Nothing between its first and its last revision is missing.
fn complete(watch: &Watched, truth: &BTreeMap<Revision, Known<'_>>, wrong: &mut Vec<String>) {
    let (after, reached) = (watch.after, watch.reached());
    if after >= reached {
        return;
    }
    let seen: HashSet<Revision> = watch.events.iter().map(|event| event.revision).collect();
    for (revision, Known { key, change, by }) in truth.range(after.next()..=reached) {
        if !seen.contains(revision) {
            wrong.push(format!("{} missed {revision}, {change:?} of {key}, known by {by}", watch.name));
        }
    }
}

fn reached(watch: &Watched, last: Option<Revision>, wrong: &mut Vec<String>) {
    let reached = watch.reached();
    if let Some(why) = &watch.refused {
        wrong.push(format!("{} ended at {reached}: {why}", watch.name));
    } else if let Some(last) = last.filter(|last| reached < *last) {
        wrong.push(format!("{} reached {reached} only, not the last revision {last}", watch.name));
    }
}
