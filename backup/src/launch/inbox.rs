//! The inbox: takes at most one pushed ticket, and only until the ticket's file has shown one. From then on the file
//! alone counts, so a push can only ever be early, never different for long.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::ticket::{PodUid, Ticket};
use crate::ticket_push::{PublicKey, PushError, PushedTicket};

/// Whose pushes are taken, and for whom.
#[derive(Debug, Clone)]
pub struct PushSettings {
    /// The pod that the launcher runs in.
    pub pod: PodUid,
    /// The public half of the operator's key.
    pub key: PublicKey,
}

/// What became of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is followed at once.
    Taken,
    /// No key is known here.
    Off,
    /// It is not of the agreed form.
    Malformed(String),
    /// It is not for this pod, or not from the operator.
    Forbidden(PushError),
    /// There is a ticket already.
    TooLate,
}

/// What the launcher knows of tickets.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// The file has not been looked at yet.
    Unknown,
    /// The file has never shown a ticket.
    Open,
    /// This one was pushed before the file has shown any.
    Pushed(String),
    /// The file has shown a ticket once.
    Closed,
}

/// The inbox, shared by the one who waits and by HTTP.
#[derive(Debug, Clone)]
pub struct Inbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Option<PushSettings>,
    content: Mutex<Content>,
    arrived: Notify,
}

impl Inbox {
    /// An inbox that takes nothing before the file has been looked at, and nothing at all without settings.
    pub fn new(settings: Option<PushSettings>) -> Self {
        Self(Arc::new(Inner { settings, content: Mutex::new(Content::Unknown), arrived: Notify::new() }))
    }

    /// The ticket that counts, given the one that the file shows now.
    pub fn reconcile(&self, shown: Option<String>) -> Option<String> {
        let mut content = self.content();
        if shown.is_some() {
            *content = Content::Closed;
            return shown;
        }
        match &*content {
            Content::Unknown => {
                *content = Content::Open;
                None
            }
            Content::Pushed(text) => Some(text.clone()),
            Content::Open | Content::Closed => None,
        }
    }

    /// The file shows something that can't be read: also that ends the time of pushes.
    pub fn close(&self) {
        *self.content() = Content::Closed;
    }

    /// Takes a pushed ticket, or says why not.
    pub fn offer(&self, body: &[u8]) -> Outcome {
        let Some(PushSettings { pod, key }) = &self.0.settings else { return Outcome::Off };
        let pushed: PushedTicket = match serde_json::from_slice(body) {
            Ok(pushed) => pushed,
            Err(fault) => return Outcome::Malformed(fault.to_string()),
        };
        match pushed.verify(key, pod) {
            Ok(()) => (),
            Err(fault @ PushError::Form) => return Outcome::Malformed(fault.to_string()),
            Err(
                fault @ (PushError::OtherPod | PushError::Signature | PushError::PublicKey | PushError::SigningKey),
            ) => return Outcome::Forbidden(fault),
        }
        if let Err(fault) = Ticket::parse(&pushed.ticket) {
            return Outcome::Malformed(fault.to_string());
        }
        let mut content = self.content();
        match &*content {
            Content::Open => {
                *content = Content::Pushed(pushed.ticket);
                self.0.arrived.notify_one();
                Outcome::Taken
            }
            Content::Unknown | Content::Pushed(_) | Content::Closed => Outcome::TooLate,
        }
    }

    /// Waits for a push to be taken.
    pub async fn arrival(&self) {
        self.0.arrived.notified().await;
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        // Each change of the content is a single assignment: what a panic elsewhere left is whole.
        self.0.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket_push::{SigningKey, sign};

    const TICKET: &str = r#"{"start":"create","member":"blue-0","volume":"v-1","version":"3.6.16","flags":[]}"#;

    fn inbox() -> (Inbox, SigningKey) {
        let key = SigningKey::generate().unwrap();
        let settings = PushSettings { pod: "pod-1".into(), key: key.public_key().unwrap() };
        (Inbox::new(Some(settings)), key)
    }

    fn envelope(key: &SigningKey, pod: &str, ticket: &str) -> Vec<u8> {
        serde_json::to_vec(&sign(key, &pod.into(), ticket)).unwrap()
    }

    #[test]
    fn the_first_good_one_is_taken_and_counts_until_the_file_shows_any() {
        let (inbox, key) = inbox();
        let body = envelope(&key, "pod-1", TICKET);
        assert_eq!(inbox.offer(&body), Outcome::TooLate, "before the file has been looked at");
        assert_eq!(inbox.reconcile(None), None);
        assert_eq!(inbox.offer(&body), Outcome::Taken);
        assert_eq!(inbox.reconcile(None).as_deref(), Some(TICKET));
        assert_eq!(inbox.offer(&body), Outcome::TooLate, "a replay");
        assert_eq!(inbox.offer(&envelope(&key, "pod-1", &TICKET.replace("create", "resume"))), Outcome::TooLate);
        assert_eq!(inbox.reconcile(Some("file".into())).as_deref(), Some("file"));
        assert_eq!(inbox.reconcile(None), None, "the pushed one does not come back");
        assert_eq!(inbox.offer(&body), Outcome::TooLate);
    }

    #[test]
    fn a_file_that_has_shown_anything_closes_it() {
        let (inbox, key) = inbox();
        let body = envelope(&key, "pod-1", TICKET);
        inbox.reconcile(Some("file".into()));
        inbox.reconcile(None);
        assert_eq!(inbox.offer(&body), Outcome::TooLate);
        let (unreadable, key) = self::inbox();
        unreadable.reconcile(None);
        unreadable.close();
        assert_eq!(unreadable.offer(&envelope(&key, "pod-1", TICKET)), Outcome::TooLate);
    }

    #[test]
    fn forged_foreign_and_malformed_ones_leave_it_open() {
        let (inbox, key) = inbox();
        inbox.reconcile(None);
        let stranger = SigningKey::generate().unwrap();
        let forged = inbox.offer(&envelope(&stranger, "pod-1", TICKET));
        assert_eq!(forged, Outcome::Forbidden(PushError::Signature));
        let foreign = inbox.offer(&envelope(&key, "pod-2", TICKET));
        assert_eq!(foreign, Outcome::Forbidden(PushError::OtherPod));
        assert!(matches!(inbox.offer(b"{}"), Outcome::Malformed(_)));
        assert!(matches!(inbox.offer(&envelope(&key, "pod-1", "{}")), Outcome::Malformed(_)));
        let no_hex = br#"{"pod":"pod-1","ticket":"{}","signature":"xx"}"#;
        assert!(matches!(inbox.offer(no_hex), Outcome::Malformed(_)));
        assert_eq!(inbox.offer(&envelope(&key, "pod-1", TICKET)), Outcome::Taken);
        assert_eq!(Inbox::new(None).offer(b""), Outcome::Off);
    }
}
