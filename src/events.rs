//! Sends events: of clusters and of backups. What is worth one is decided elsewhere.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use quorate_crds::Reason;
use quorate_crds::names::FIELD_MANAGER;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::telemetry::chain;
use crate::writes::{self, Writes};

/// How long one try to send an event may take.
const DEADLINE: Duration = Duration::from_secs(2);
/// For how long after the begin of a call of [`Teller::send`] what may pass is tried again: an event is derived from what
/// turns, so one that is lost is never told. With the last try, one event takes 8 s at most.
const PATIENCE: Duration = Duration::from_secs(6);
/// The pause before the second try; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);
/// How long [`Teller::finish`] waits: a little longer than one try takes.
const FAREWELL: Duration = Duration::from_secs(3);
/// How much of another program's words is told, in bytes. The agent's are no longer; the API server refuses a condition with
/// more than 32 KiB, and with it the whole status.
pub const LONGEST_QUOTE: usize = 2000;
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
    /// What is being sent.
    under_way: TaskTracker,
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
    /// One that has told nothing yet. `identity` is what this operator is called.
    pub fn new(client: Client, identity: &str) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: Some(identity.to_owned()) };
        Self { client, reporter, recorders: Arc::default(), under_way: TaskTracker::new() }
    }

    /// Sends what there is to tell of an object in the background: nothing waits for it.
    pub fn tell(&self, writes: &Writes, regarding: ObjectReference, news: Vec<News>) {
        if news.is_empty() {
            return;
        }
        let (teller, writes) = (self.clone(), writes.clone());
        self.under_way.spawn(async move { teller.send(&writes, &regarding, news).await });
    }

    /// Lets what is being sent end, for a moment at most: what the last rounds had to tell is told by nobody else.
    pub async fn finish(&self) {
        self.under_way.close();
        if timeout(FAREWELL, self.under_way.wait()).await.is_err() {
            tracing::warn!(events_of = self.under_way.len(), "stops with events that could not be sent");
        }
    }

    /// Each event is tried once at least. What can't be told is logged: an event is no state.
    async fn send(&self, writes: &Writes, regarding: &ObjectReference, news: Vec<News>) {
        let until = Instant::now() + PATIENCE;
        for News { warning, reason, note, member } in news {
            tracing::info!(kind = regarding.kind, name = regarding.name, %reason, note, "tells");
            let secondary = member.map(|name| ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                namespace: regarding.namespace.clone(),
                name: Some(name),
                ..ObjectReference::default()
            });
            let note = cut(note, MAX_NOTE);
            let recorder = self.recorder(&note);
            let event = Event {
                type_: if warning { EventType::Warning } else { EventType::Normal },
                reason: reason.as_str().into(),
                note: Some(note),
                action: reason.as_str().into(),
                secondary,
            };
            if let Err(error) = publish(writes, &recorder, &event, regarding, until).await {
                tracing::warn!(error = %chain(&error), %reason, "failed to send an event");
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

/// Sends one event, and tries again `until` then what may pass. What was sent without an answer may be there: a second try
/// has another name, and the event shows twice, which is better than not at all.
async fn publish(
    writes: &Writes,
    recorder: &Recorder,
    event: &Event,
    regarding: &ObjectReference,
    until: Instant,
) -> Result<(), writes::Error<kube::Error>> {
    let mut pause = PAUSE;
    loop {
        match writes.mention(DEADLINE, recorder.publish(event, regarding)).await {
            Err(error) if may_pass(&error) && writes.open() && Instant::now() + pause < until => sleep(pause).await,
            told => return told,
        }
        pause *= 2;
    }
}

/// Whether another try may soon succeed: nobody answered, or the answer asks for patience. An internal error (500) is what a
/// webhook that fails makes of each event, for as long as it fails: no round waits for that.
fn may_pass(error: &writes::Error<kube::Error>) -> bool {
    match error {
        writes::Error::Deadline(_) | writes::Error::Failed(kube::Error::Service(_) | kube::Error::HyperError(_)) => {
            true
        }
        writes::Error::Failed(kube::Error::Api(status)) => matches!(status.code, 429 | 502..=504),
        writes::Error::Failed(_) | writes::Error::NotLeading | writes::Error::Stopping => false,
    }
}

/// Another program's words, as much of them as is told.
pub fn quoted(words: &str) -> String {
    let told = cut(words.to_owned(), LONGEST_QUOTE);
    if told.len() < words.len() { told + "..." } else { told }
}

/// As many of its first letters as fit into so many bytes.
pub fn cut(text: String, most: usize) -> String {
    let fits = |end: &usize| *end <= most;
    match text.char_indices().map(|(at, letter)| at + letter.len_utf8()).take_while(fits).last() {
        Some(end) if end < text.len() => text[..end].to_owned(),
        Some(_) | None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io;
    use std::iter::repeat;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use tokio::sync::watch;

    use super::*;
    use crate::lease::Claim;

    /// What becomes of a call.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        /// Nobody answers it.
        Lost,
        /// There is no connection.
        Refused,
        Answered(StatusCode),
    }

    const FINE: Fate = Fate::Answered(StatusCode::CREATED);

    /// A teller whose calls have these fates, and the methods of the calls that it has made.
    fn teller(mut fates: impl Iterator<Item = Fate> + Send + 'static) -> (Teller, Arc<Mutex<Vec<String>>>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let api = tower::service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.method().to_string());
            let fate = fates.next().unwrap();
            async move {
                let code = match fate {
                    Fate::Lost => pending::<StatusCode>().await,
                    Fate::Refused => return Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                    Fate::Answered(code) => code,
                };
                let body = if code.is_success() { r#"{"metadata":{}}"# } else { "" };
                let mut response = Response::new(Body::from(body.as_bytes().to_vec()));
                *response.status_mut() = code;
                Ok(response)
            }
        });
        (Teller::new(Client::new(api, "ns"), "test"), calls)
    }

    fn writes(stopping: bool) -> Writes {
        let (_, stopping) = watch::channel(stopping);
        Writes::new(Claim::forever(), stopping, None)
    }

    fn news(note: &str) -> News {
        let member = Some("db-2".to_owned());
        News { warning: false, reason: Reason::MemberSwitched, note: note.into(), member }
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_is_told_again_in_the_same_words_is_counted_in_the_same_event() {
        let (teller, calls) = teller(repeat(FINE));
        for note in ["to 3.7", "to 3.6", "to 3.7"] {
            teller.send(&writes(false), &ObjectReference::default(), vec![news(note)]).await;
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

    #[tokio::test(start_paused = true)]
    async fn no_event_is_lost_when_nobody_answers_for_a_few_seconds() {
        let (teller, calls) = teller([Fate::Lost; 2].into_iter().chain(repeat(FINE)));
        let begun = Instant::now();
        teller.send(&writes(false), &ObjectReference::default(), vec![news("to 3.7"), news("to 3.6")]).await;
        assert_eq!(calls.lock().unwrap().len(), 4, "after two tries both are told");
        assert!(begun.elapsed() > 2 * DEADLINE && begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_told_last_is_sent_before_the_end_and_waited_for_a_moment_only() {
        for (fate, sent) in [(FINE, 2), (Fate::Lost, 2)] {
            let (teller, calls) = teller(repeat(fate));
            let begun = Instant::now();
            teller.tell(&writes(true), ObjectReference::default(), vec![news("to 3.7"), news("to 3.6")]);
            teller.finish().await;
            assert_eq!(calls.lock().unwrap().len(), sent, "{fate:?}");
            assert!(begun.elapsed() <= FAREWELL, "{fate:?}: {:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again_for_a_while_and_what_is_refused_is_not() {
        for (fate, tries) in [
            (Fate::Lost, 3),
            (Fate::Refused, 4),
            (Fate::Answered(StatusCode::TOO_MANY_REQUESTS), 4),
            (Fate::Answered(StatusCode::SERVICE_UNAVAILABLE), 4),
            (Fate::Answered(StatusCode::INTERNAL_SERVER_ERROR), 1),
            (Fate::Answered(StatusCode::FORBIDDEN), 1),
            (Fate::Answered(StatusCode::NOT_FOUND), 1),
        ] {
            let (teller, calls) = teller(repeat(fate));
            let begun = Instant::now();
            teller.send(&writes(false), &ObjectReference::default(), vec![news("to 3.7")]).await;
            assert_eq!(calls.lock().unwrap().len(), tries, "{fate:?}");
            assert!(begun.elapsed() < PATIENCE + DEADLINE, "{fate:?}: {:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_after_an_event_that_took_all_the_time_is_tried_once() {
        let (teller, calls) = teller(repeat(Fate::Lost));
        teller.send(&writes(false), &ObjectReference::default(), ["1", "2", "3"].map(news).into()).await;
        assert_eq!(calls.lock().unwrap().len(), 3 + 1 + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_or_leads_no_more_does_not_try_again() {
        let (teller, calls) = teller(repeat(Fate::Lost));
        teller.send(&writes(true), &ObjectReference::default(), vec![news("to 3.7")]).await;
        assert_eq!(calls.lock().unwrap().len(), 1, "it stops");
        let writes = writes(false);
        // A claim for tests holds for an hour.
        tokio::time::advance(Duration::from_secs(3600 - 1)).await;
        teller.send(&writes, &ObjectReference::default(), vec![news("to 3.7")]).await;
        assert_eq!(calls.lock().unwrap().len(), 2, "its claim ended meanwhile");
    }
}
