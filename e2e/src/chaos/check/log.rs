//! Whether the history that a member tells in the end is what was called for and nothing else: each revision is one write of
//! somebody's, which may have had that effect there, and none has it twice. What reads found is judged elsewhere.

use std::collections::{BTreeMap, HashMap};

use crate::chaos::history::{Call, Change, Event, History, Key, Op, Outcome, Revision, Value};

/// What is wrong. One history that was told to its end is enough: where two differ, the check of watches says so.
pub fn check(history: &History) -> Vec<String> {
    let whole = history.replays.values().find(|replay| history.last.is_some_and(|last| replay.reached() >= last));
    let Some(replay) = whole else { return Vec::new() };
    let mut store = Store::of(&history.calls);
    let mut events: Vec<&Event> = replay.events.iter().collect();
    events.sort_by_key(|event| event.revision);
    let found = events.into_iter().filter_map(|event| Some((event, store.take(event).err()?)));
    found
        .map(|(Event { revision, key, change }, why)| format!("revision {revision}, {change:?} of {key}: {why}"))
        .collect()
}

/// The store as the revisions so far have left it, and the writes that may still come.
struct Store<'a> {
    holds: BTreeMap<&'a Key, Value>,
    /// Who wrote a value, until it was found.
    writes: HashMap<Value, &'a Call>,
    /// The deletions that were acknowledged, by their revision.
    deletions: HashMap<Revision, &'a Call>,
    /// How many deletions of a key had no answer, and may have had their effect or have it later.
    unanswered: HashMap<&'a Key, usize>,
}

impl<'a> Store<'a> {
    fn of(calls: &'a [Call]) -> Self {
        let mut store = Self {
            holds: BTreeMap::new(),
            writes: HashMap::new(),
            deletions: HashMap::new(),
            unanswered: HashMap::new(),
        };
        for call in calls {
            match (call.op, &call.outcome) {
                (Op::Put(value) | Op::Swap { to: value, .. }, _) => drop(store.writes.insert(value, call)),
                (Op::Delete, Outcome::Unknown(_)) => *store.unanswered.entry(&call.key).or_default() += 1,
                (Op::Delete, Outcome::Done { .. } | Outcome::Failed(_)) => {
                    store.deletions.extend(call.acknowledged().map(|(revision, _)| (revision, call)));
                }
                (Op::Get, _) => {}
            }
        }
        store
    }

    /// Takes the next revision, or says why nobody can have made it.
    fn take(&mut self, event: &'a Event) -> Result<(), String> {
        match event.change {
            Change::Put(value) => {
                let before = self.holds.insert(&event.key, value);
                let call = self.writes.remove(&value).ok_or("nobody wrote it, or it was there before")?;
                is_of(call, event)?;
                match call.op {
                    Op::Swap { from, .. } if from != before => Err(format!(
                        "the key held {before:?} right before, and this was not to be written then:\n    {call}"
                    )),
                    Op::Swap { .. } | Op::Put(_) | Op::Get | Op::Delete => Ok(()),
                }
            }
            Change::Deleted => {
                self.holds.remove(&event.key).ok_or("the key held nothing")?;
                if let Some(call) = self.deletions.remove(&event.revision) {
                    return is_of(call, event);
                }
                let left = self.unanswered.get_mut(&event.key).filter(|left| **left > 0);
                *left.ok_or("nobody deleted it")? -= 1;
                Ok(())
            }
        }
    }
}

/// Demands that a write may be this very revision, by what its client was told.
fn is_of(call: &Call, event: &Event) -> Result<(), String> {
    let may_be = match &call.outcome {
        Outcome::Unknown(_) => true,
        Outcome::Done { .. } | Outcome::Failed(_) => call.acknowledged() == Some((event.revision, event.change)),
    };
    if may_be && call.key == event.key { Ok(()) } else { Err(format!("by its client it is not this:\n    {call}")) }
}
