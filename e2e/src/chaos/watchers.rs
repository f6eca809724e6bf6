//! Watches over all keys of a run. One that breaks goes on with another member from the revision after its last; what it
//! saw is recorded as it came.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::watch;

use super::clients::value;
use super::history::{Change, Event, Key, Revision, Watched};
use super::keys::PREFIX;
use crate::scene::{Door, dial};

/// How long a watch may be silent before it is opened elsewhere: keys are written all the time.
const SILENCE: Duration = Duration::from_secs(4);
/// How long opening a watch may take.
const OPEN_DEADLINE: Duration = Duration::from_secs(3);
/// The pause before the next member is tried.
const PAUSE: Duration = Duration::from_millis(100);

/// What a watch has seen so far.
pub type Seen = Arc<Mutex<Watched>>;

/// A record for a watch of this name that asks for all that comes after a revision.
pub fn record(name: String, after: Revision) -> Seen {
    Arc::new(Mutex::new(Watched { name, after, events: Vec::new(), refused: None }))
}

/// What was seen.
pub fn taken(seen: &Seen) -> Watched {
    seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Watches, each time the member that `whom` gives for the number of the try, until the goal is reached or the server
/// refuses.
pub async fn follow(seen: Seen, mut goal: watch::Receiver<Option<Revision>>, whom: impl Fn(usize) -> Option<Door>) {
    let mut last = seen.lock().unwrap_or_else(PoisonError::into_inner).reached();
    for number in 0.. {
        let Some(door) = whom(number) else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let opened = tokio::time::timeout(OPEN_DEADLINE, open(&door, last)).await;
        if let Ok(Ok((_client, mut stream))) = opened {
            loop {
                if reached(*goal.borrow_and_update(), last) {
                    return;
                }
                let message = tokio::select! {
                    message = tokio::time::timeout(SILENCE, stream.message()) => message,
                    // The goal is known now, and may have been reached already.
                    _ = goal.changed() => continue,
                };
                let Ok(Ok(Some(response))) = message else { break };
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if response.compact_revision() > 0 {
                    seen.refused = Some(format!("compacted up to {}", response.compact_revision()));
                    return;
                }
                if response.canceled() {
                    break;
                }
                for event in events(&response) {
                    last = last.max(event.revision);
                    seen.events.push(event);
                }
            }
        }
        if reached(*goal.borrow(), last) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn reached(goal: Option<Revision>, last: Revision) -> bool {
    goal.is_some_and(|goal| last >= goal)
}

async fn open(door: &Door, last: Revision) -> Result<(Client, WatchStream)> {
    let mut client = dial(door).await?;
    let options = WatchOptions::new().with_prefix().with_start_revision(last.next().0);
    let mut stream = client.watch(PREFIX, Some(options)).await.context("failed to open a watch")?;
    let first = stream.message().await.context("failed to open a watch")?.context("the watch ended at once")?;
    ensure!(first.created(), "the watch was not created");
    Ok((client, stream))
}

fn events(response: &WatchResponse) -> impl Iterator<Item = Event> {
    response.events().iter().filter_map(|event| {
        let pair = event.kv()?;
        let change = match event.event_type() {
            EventType::Put => Change::Put(value(pair.value())),
            EventType::Delete => Change::Deleted,
        };
        let key = Key(String::from_utf8_lossy(pair.key()).into_owned());
        Some(Event { revision: Revision(pair.mod_revision()), key, change })
    })
}
