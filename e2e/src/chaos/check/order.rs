//! Whether revisions tell one order of all calls: they never go back in real time, each is one write, and what a read
//! found was written at the revision it names. Over all keys at once, so it sees what a check key by key can't.

use std::collections::{BTreeMap, HashMap};

use crate::chaos::history::{Answer, Call, Change, Found, Key, Op, Revision, Value};

/// What is wrong.
pub fn check(calls: &[Call]) -> Vec<String> {
    let mut wrong = goes_back(calls);
    wrong.extend(written_twice(calls));
    wrong.extend(read_wrong(calls));
    wrong
}

/// A call that began after another had ended has at least its revision; a write that changed anything has a higher one.
fn goes_back(calls: &[Call]) -> Vec<String> {
    let done: Vec<(&Call, Revision, Answer)> =
        calls.iter().filter_map(|call| call.done().map(|(revision, answer)| (call, revision, answer))).collect();
    let (mut by_begin, mut by_end) = (done.clone(), done);
    by_begin.sort_by_key(|(call, ..)| call.invoked);
    by_end.sort_by_key(|(call, ..)| call.returned);
    let mut ended = by_end.into_iter().peekable();
    let mut highest: Option<(&Call, Revision)> = None;
    let mut wrong = Vec::new();
    for (call, revision, answer) in by_begin {
        while let Some((earlier, at, _)) = ended.next_if(|(earlier, ..)| earlier.returned < call.invoked) {
            if highest.is_none_or(|(_, highest)| at > highest) {
                highest = Some((earlier, at));
            }
        }
        let Some((earlier, least)) = highest else { continue };
        if revision < least || (answer.wrote() && revision == least) {
            wrong.push(format!("a revision went back:\n    {earlier}\n    {call}"));
        }
    }
    wrong
}

/// No revision is two writes.
fn written_twice(calls: &[Call]) -> Vec<String> {
    let mut writes: BTreeMap<Revision, &Call> = BTreeMap::new();
    let mut wrong = Vec::new();
    for call in calls {
        let Some((revision, _)) = call.acknowledged() else { continue };
        if let Some(earlier) = writes.insert(revision, call) {
            wrong.push(format!("revision {revision} is two writes:\n    {earlier}\n    {call}"));
        }
    }
    wrong
}

/// A read finds what was written to that key, at the revision at which it was written, and not from the future.
fn read_wrong(calls: &[Call]) -> Vec<String> {
    let mut written: HashMap<Value, (&Key, Option<Revision>)> = HashMap::new();
    for call in calls {
        match call.op {
            Op::Put(value) | Op::Swap { to: value, .. } => {
                let at = match call.acknowledged() {
                    Some((revision, Change::Put(_))) => Some(revision),
                    Some((_, Change::Deleted)) | None => None,
                };
                written.insert(value, (&call.key, at));
            }
            Op::Get | Op::Delete => (),
        }
    }
    let mut wrong = Vec::new();
    for call in calls {
        let Some((revision, Answer::Get(Some(Found { value, modified })))) = call.done() else { continue };
        match written.get(&value) {
            None => wrong.push(format!("nobody wrote what was read:\n    {call}")),
            Some((key, _)) if **key != call.key => wrong.push(format!("that was written to {key}:\n    {call}")),
            Some((_, Some(at))) if *at != modified => wrong.push(format!("that was written at {at}:\n    {call}")),
            Some(_) if modified > revision => wrong.push(format!("what was read is of a later revision:\n    {call}")),
            Some(_) => (),
        }
    }
    wrong
}
