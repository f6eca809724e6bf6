//! Sends events: of clusters and of backups. What is worth one is decided elsewhere.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};
use quorate_crds::Reason;

use crate::writes::Writes;

/// How long an event may take. It is told or it is not; nothing waits for it longer.
const DEADLINE: Duration = Duration::from_secs(2);
/// The longest note that the API server takes, in bytes.
const MAX_NOTE: usize = 1024;

/// One thing to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Something to worry about, or not.
    pub warning: bool,
    /// The reason.
    pub reason: Reason,
    /// The sentence.
    pub note: String,
    /// The member that it is about.
    pub member: Option<String>,
}

/// Sends what there is to tell of an object. What can't be told is logged: an event is no state.
pub async fn send(recorder: &Recorder, writes: &Writes, regarding: &ObjectReference, news: Vec<News>) {
    for News { warning, reason, note, member } in news {
        tracing::info!(kind = regarding.kind, name = regarding.name, %reason, note, "tells");
        let secondary = member.map(|name| ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: regarding.namespace.clone(),
            name: Some(name),
            ..ObjectReference::default()
        });
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.as_str().into(),
            note: Some(cut(note)),
            action: reason.as_str().into(),
            secondary,
        };
        if let Err(error) = writes.mention(DEADLINE, recorder.publish(&event, regarding)).await {
            tracing::warn!(%error, %reason, "failed to send an event");
        }
    }
}

fn cut(note: String) -> String {
    let fits = |end: &usize| *end <= MAX_NOTE;
    match note.char_indices().map(|(at, letter)| at + letter.len_utf8()).take_while(fits).last() {
        Some(end) if end < note.len() => note[..end].to_owned(),
        Some(_) | None => note,
    }
}
