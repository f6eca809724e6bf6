//! Whether every acknowledged write is still in the history of every member after all was over, and whether all members
//! hold the same.

use std::collections::HashMap;

use crate::chaos::history::{Change, History, Key, Revision};

/// What is wrong.
pub fn check(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    if !history.calls.is_empty() && history.replays.is_empty() {
        wrong.push("no member gave its history after all was over".to_owned());
    }
    for (member, replay) in &history.replays {
        let has: HashMap<Revision, (&Key, Change)> =
            replay.events.iter().map(|event| (event.revision, (&event.key, event.change))).collect();
        // What a member did not come to tell is a matter of `watches`.
        let reached = replay.reached();
        let told_all = history.last.is_some_and(|last| reached >= last);
        for call in &history.calls {
            let told = |(revision, _): &(Revision, Change)| told_all || *revision <= reached;
            let Some((revision, change)) = call.acknowledged().filter(told) else { continue };
            match has.get(&revision) {
                Some((key, found)) if **key == call.key && *found == change => (),
                Some((key, found)) => wrong.push(format!(
                    "an acknowledged write is lost on {member}, where its revision is {found:?} of {key}:\n    {call}"
                )),
                None => wrong.push(format!("an acknowledged write is lost on {member}:\n    {call}")),
            }
        }
    }
    let mut hashes = history.hashes.iter();
    if let Some((first, hash)) = hashes.next() {
        for (member, other) in hashes.filter(|(_, other)| *other != hash) {
            wrong.push(format!("{first} and {member} hold different data: their hashes are {hash:x} and {other:x}"));
        }
    }
    wrong
}
