//! Sends events: of clusters and of backups. What is worth one is decided elsewhere.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use quorate_crds::Reason;
use tokio::time::Instant;

use crate::writes::Writes;

/// How long an event may take. It is told or it is not; nothing waits for it longer.
const DEADLINE: Duration = Duration::from_secs(2);
/// The longest note that the API server takes, in bytes.
const MAX_NOTE: usize = 1024;

/// For how long after it was told last a sentence is counted in the event that is there: as long as kube's Recorder does.
const REMEMBERED: Duration = Duration::from_mins(6);
/// Of how many sentences that is remembered at most.
const MOST_REMEMBERED: usize = 1000;

/// Who tells events, of all objects. What is told again of an object in the same words is counted in the event that is there.
#[derive(Clone)]
pub struct Teller {
    client: Client,
    reporter: Reporter,
    /// By what they tell: one alone would count another sentence for the same reason as a repetition, and show the first.
    recorders: Arc<Mutex<HashMap<String, (Recorder, Instant)>>>,
}

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

impl Teller {
    /// One that has told nothing yet.
    pub fn new(client: Client, reporter: Reporter) -> Self {
        Self { client, reporter, recorders: Arc::default() }
    }

    /// Sends what there is to tell of an object. What can't be told is logged: an event is no state.
    pub async fn tell(&self, writes: &Writes, regarding: &ObjectReference, news: Vec<News>) {
        for News { warning, reason, note, member } in news {
            tracing::info!(kind = regarding.kind, name = regarding.name, %reason, note, "tells");
            let secondary = member.map(|name| ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                namespace: regarding.namespace.clone(),
                name: Some(name),
                ..ObjectReference::default()
            });
            let note = cut(note);
            let recorder = self.recorder(&note);
            let event = Event {
                type_: if warning { EventType::Warning } else { EventType::Normal },
                reason: reason.as_str().into(),
                note: Some(note),
                action: reason.as_str().into(),
                secondary,
            };
            if let Err(error) = writes.mention(DEADLINE, recorder.publish(&event, regarding)).await {
                tracing::warn!(%error, %reason, "failed to send an event");
            }
        }
    }

    fn recorder(&self, note: &str) -> Recorder {
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        recorders.retain(|_, (_, told)| now.duration_since(*told) < REMEMBERED);
        if recorders.len() >= MOST_REMEMBERED && !recorders.contains_key(note) {
            recorders.clear();
        }
        let new = || (Recorder::new(self.client.clone(), self.reporter.clone()), now);
        let (recorder, told) = recorders.entry(note.to_owned()).or_insert_with(new);
        *told = now;
        recorder.clone()
    }
}

fn cut(note: String) -> String {
    let fits = |end: &usize| *end <= MAX_NOTE;
    match note.char_indices().map(|(at, letter)| at + letter.len_utf8()).take_while(fits).last() {
        Some(end) if end < note.len() => note[..end].to_owned(),
        Some(_) | None => note,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use tokio::sync::watch;

    use super::*;
    use crate::lease::Claim;

    #[tokio::test(start_paused = true)]
    async fn only_what_is_told_again_in_the_same_words_is_counted_in_the_same_event() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let api = tower::service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.method().to_string());
            async { Ok::<_, Infallible>(Response::new(Body::from(br#"{"metadata":{}}"#.to_vec()))) }
        });
        let reporter = Reporter { controller: "quorate".into(), instance: Some("test".into()) };
        let teller = Teller::new(Client::new(api, "ns"), reporter);
        let (_going_on, stopping) = watch::channel(false);
        let writes = Writes::new(Claim::forever(), stopping, None);
        let news = |note: &str| {
            let member = Some("db-2".to_owned());
            vec![News { warning: false, reason: Reason::MemberSwitched, note: note.into(), member }]
        };
        for note in ["to 3.7", "to 3.6", "to 3.7"] {
            teller.tell(&writes, &ObjectReference::default(), news(note)).await;
        }
        assert_eq!(*calls.lock().unwrap(), ["POST", "POST", "PATCH"]);
        for number in 0..=MOST_REMEMBERED {
            teller.recorder(&number.to_string());
        }
        assert!(teller.recorders.lock().unwrap().len() <= MOST_REMEMBERED);
        tokio::time::advance(REMEMBERED).await;
        teller.recorder("another");
        assert_eq!(teller.recorders.lock().unwrap().len(), 1);
    }
}
