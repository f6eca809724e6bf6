//! Leader election by a Lease: who of several operators may write. Taking and renewing are compare-and-swap by
//! resourceVersion. Time is this process's own clock since it saw the record change, as in client-go: clocks of
//! different machines are never compared.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::metrics::Metrics;
use crate::telemetry::chain;

/// How long a Lease is respected after its record was last seen to change.
const DURATION: Duration = Duration::from_secs(15);
/// How long after the start of the last renewal that succeeded its holder may still write. The difference to
/// [`DURATION`] is as long as a write may take ([`crate::api::DEADLINE`]), so the last write of an old leader has ended
/// before a new one starts.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often the holder begins to renew: 12 writes a minute, and one renewal may fail without a loss.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How often a candidate looks, and how soon a failed renewal is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// The deadline of each call. Shorter than a retry may wait for, longer than an API server under load takes.
const CALL_DEADLINE: Duration = Duration::from_secs(4);
/// A released Lease: anyone may take it.
const NOBODY: &str = "";

/// A time of leading without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Term {
    /// How many this process had before.
    number: u64,
    /// Until when it lasts if it is not renewed.
    until: Instant,
}

impl Term {
    fn lasts(self) -> bool {
        Instant::now() < self.until
    }
}

/// The right to write, as long as it lasts. Cheap to clone and to ask.
#[derive(Clone, Debug)]
pub struct Claim(watch::Receiver<Option<Term>>);

impl Claim {
    /// Whether this operator may start a write now.
    pub fn holds(&self) -> bool {
        self.0.borrow().is_some_and(Term::lasts)
    }

    /// Which of this operator's terms it is, while one lasts.
    pub fn term(&self) -> Option<u64> {
        self.0.borrow().filter(|term| term.lasts()).map(|term| term.number)
    }

    /// Resolves when leading ends, and when it begins: also again after a gap in which the term ran out and nobody else
    /// took the Lease, as after a pause of this process. `None` when the election has ended.
    pub async fn changed(&mut self) -> Option<bool> {
        let number = |term: &Option<Term>| term.map(|term| term.number);
        let before = number(&self.0.borrow_and_update());
        loop {
            self.0.changed().await.ok()?;
            let now = number(&self.0.borrow_and_update());
            if now != before {
                return Some(now.is_some());
            }
        }
    }

    /// An item each time that leading begins, until the election has ended.
    pub fn begins(self) -> impl Stream<Item = ()> + Send + 'static {
        stream::unfold(self, async |mut claim| {
            loop {
                if claim.changed().await? {
                    return Some(((), claim));
                }
            }
        })
    }

    /// A claim that holds for good, for tests.
    #[cfg(test)]
    pub fn forever() -> Self {
        let term = Term { number: 0, until: Instant::now() + Duration::from_hours(1) };
        let (sender, receiver) = watch::channel(Some(term));
        std::mem::forget(sender);
        Self(receiver)
    }

    /// A claim that does not hold, for tests.
    #[cfg(test)]
    pub fn never() -> Self {
        Self(watch::channel(None).1)
    }
}

/// Which record was seen last, and when it was seen first, by this process's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sighting {
    version: Option<String>,
    since: Instant,
}

/// What to do about the Lease now.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// There is none, and nobody can lead: create it.
    Create,
    /// It is free or has run out: take it, as this transition.
    Take { transitions: i32 },
    /// It is ours.
    Renew,
    /// It is another's, or may have been until just now.
    Wait,
}

/// Judges a Lease as `me`, who sees the record unchanged since `since`.
fn evaluate(lease: Option<&Lease>, me: &str, since: Instant, now: Instant) -> Verdict {
    let Some(lease) = lease else {
        // Its holder may not know yet that it was deleted.
        return if now.duration_since(since) >= DURATION { Verdict::Create } else { Verdict::Wait };
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let transitions = spec.lease_transitions.unwrap_or_default().saturating_add(1);
    let lasts = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map_or(DURATION, Duration::from_secs);
    match spec.holder_identity.as_deref() {
        // A container that was restarted in its pod finds its own name: the kubelet never runs two at once.
        Some(holder) if holder == me => Verdict::Renew,
        None | Some(NOBODY) => Verdict::Take { transitions },
        Some(_) if now.duration_since(since) >= lasts => Verdict::Take { transitions },
        Some(_) => Verdict::Wait,
    }
}

/// The election, as one of its candidates.
pub struct Election {
    api: Api<Lease>,
    name: String,
    me: String,
    metrics: Arc<Metrics>,
    seen: Option<Sighting>,
    terms: u64,
    claim: watch::Sender<Option<Term>>,
}

/// Why a round of the election failed. The next round tries again.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("the API server did not answer within {CALL_DEADLINE:?}")]
    Deadline,
    #[error(transparent)]
    Kube(#[from] kube::Error),
}

impl Election {
    /// Joins the election for the Lease `namespace`/`name` as `me`.
    pub fn new(client: Client, namespace: &str, name: &str, me: &str, metrics: Arc<Metrics>) -> (Self, Claim) {
        let (claim, receiver) = watch::channel(None);
        let api = Api::namespaced(client, namespace);
        (Self { api, name: name.into(), me: me.into(), metrics, seen: None, terms: 0, claim }, Claim(receiver))
    }

    /// Takes part until `stop` resolves, then hands the Lease back.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        loop {
            let started = Instant::now();
            let pause = self.round().await;
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = sleep_until(started + pause) => (),
            }
        }
        let led = self.leads();
        // Another may have the Lease before we hear that it is released.
        self.lead_until(None);
        if led && let Err(error) = self.release().await {
            let error = chain(&error);
            tracing::warn!(error, "failed to release the Lease; another operator has to wait until it runs out");
        }
    }

    /// Looks at the Lease once and does what is due. Says how long after its start to look again.
    async fn round(&mut self) -> Duration {
        let started = Instant::now();
        match self.compete().await {
            Ok(true) => {
                self.lead_until(Some(started + RENEW_DEADLINE));
                RENEW_EVERY
            }
            Ok(false) => {
                self.lead_until(None);
                RETRY
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "failed to look at or renew the Lease");
                let term = *self.claim.borrow();
                self.lead_until(term.filter(|term| term.lasts()).map(|term| term.until));
                RETRY
            }
        }
    }

    /// One look, and one compare-and-swap if it is due. Says whether we lead.
    async fn compete(&mut self) -> Result<bool, RoundError> {
        let lease = within(self.api.get_opt(&self.name)).await?;
        // What was read may have been written while we asked.
        let now = Instant::now();
        let version = lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        let since = match &self.seen {
            Some(seen) if seen.version == version => seen.since,
            _ => now,
        };
        // As long as we lead, nobody else does. Who has never seen one takes it that there never was one: to wait here too
        // would hold up each first start by 15 s. A Lease that is deleted and a process that starts before its holder has
        // looked again make two leaders for some seconds; every write is guarded for that.
        let verdict = if lease.is_none() && (self.seen.is_none() || self.claim.borrow().is_some_and(Term::lasts)) {
            Verdict::Create
        } else {
            self.seen = Some(Sighting { version, since });
            evaluate(lease.as_ref(), &self.me, since, now)
        };
        let swapped = match verdict {
            Verdict::Create => within(self.api.create(&PostParams::default(), &self.first_record())).await,
            Verdict::Take { transitions } => self.swap(lease.unwrap_or_default(), Some(transitions)).await,
            Verdict::Renew => self.swap(lease.unwrap_or_default(), None).await,
            Verdict::Wait => return Ok(false),
        };
        match swapped {
            Ok(_) => Ok(true),
            // Somebody else was faster.
            Err(RoundError::Kube(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => {
                // What was seen is not what is there: whatever is seen next, and be it nothing, counts from then.
                self.seen = Some(Sighting { version: Some(String::new()), since: Instant::now() });
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn first_record(&self) -> Lease {
        let now = MicroTime(Timestamp::now());
        Lease {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.me.clone()),
                lease_duration_seconds: Some(seconds(DURATION)),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: Some(0),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Writes our name into the record that was read; the API server refuses it if it has changed since.
    async fn swap(&self, mut lease: Lease, taken: Option<i32>) -> Result<Lease, RoundError> {
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.me.clone());
        spec.lease_duration_seconds = Some(seconds(DURATION));
        spec.renew_time = Some(now.clone());
        if let Some(transitions) = taken {
            spec.acquire_time = Some(now);
            spec.lease_transitions = Some(transitions);
        }
        within(self.api.replace(&self.name, &PostParams::default(), &lease)).await
    }

    async fn release(&self) -> Result<(), RoundError> {
        let Some(mut lease) = within(self.api.get_opt(&self.name)).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(self.me.as_str()) {
            spec.holder_identity = Some(NOBODY.into());
            spec.lease_duration_seconds = Some(1);
            within(self.api.replace(&self.name, &PostParams::default(), &lease)).await?;
            tracing::info!("released the Lease");
        }
        Ok(())
    }

    fn leads(&self) -> bool {
        self.claim.borrow().is_some()
    }

    /// A term that has run out meanwhile is over, though nobody else took the Lease: whoever asked in the gap was told
    /// that this operator does not lead, and has to hear that it does again.
    fn lead_until(&mut self, until: Option<Instant>) {
        let before = *self.claim.borrow();
        let term = match (before, until) {
            (Some(term), Some(until)) if term.lasts() => Some(Term { until, ..term }),
            (_, Some(until)) => {
                tracing::info!(identity = %self.me, after_a_gap = before.is_some(), "leads");
                self.terms += 1;
                Some(Term { number: self.terms, until })
            }
            (Some(_), None) => {
                tracing::warn!(identity = %self.me, "does not lead any more");
                None
            }
            (None, None) => None,
        };
        self.metrics.leads(term.is_some());
        self.claim.send_replace(term);
    }
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, RoundError> {
    Ok(timeout(CALL_DEADLINE, call).await.map_err(|_| RoundError::Deadline)??)
}

fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod election_tests;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held_by(holder: Option<&str>, duration: Option<i32>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: holder.map(Into::into),
            lease_duration_seconds: duration,
            lease_transitions: Some(4),
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[test]
    fn a_free_lease_is_taken_and_our_own_renewed() {
        let now = Instant::now();
        assert_eq!(evaluate(Some(&held_by(None, None)), "me", now, now), Verdict::Take { transitions: 5 });
        assert_eq!(evaluate(Some(&held_by(Some(""), Some(1))), "me", now, now), Verdict::Take { transitions: 5 });
        assert_eq!(evaluate(Some(&held_by(Some("me"), Some(15))), "me", now, now), Verdict::Renew);
        assert_eq!(evaluate(Some(&Lease::default()), "me", now, now), Verdict::Take { transitions: 1 });
    }

    #[test]
    fn anothers_lease_is_taken_only_after_its_record_stood_still_for_its_duration() {
        let since = Instant::now();
        let lease = held_by(Some("other"), Some(15));
        let just_before = since + Duration::from_millis(14_999);
        assert_eq!(evaluate(Some(&lease), "me", since, just_before), Verdict::Wait);
        let just_after = since + Duration::from_secs(15);
        assert_eq!(evaluate(Some(&lease), "me", since, just_after), Verdict::Take { transitions: 5 });
    }

    #[test]
    fn a_lease_that_is_gone_is_made_anew_only_once_its_holder_must_have_noticed() {
        let since = Instant::now();
        assert_eq!(evaluate(None, "me", since, since + DURATION - Duration::from_millis(1)), Verdict::Wait);
        assert_eq!(evaluate(None, "me", since, since + DURATION), Verdict::Create);
    }

    #[test]
    fn the_old_leaders_last_write_ends_before_a_new_one_may_start() {
        assert!(RENEW_DEADLINE + crate::api::DEADLINE <= DURATION);
        assert!(RENEW_EVERY + CALL_DEADLINE < RENEW_DEADLINE);
        assert!(DURATION + RETRY + CALL_DEADLINE <= Duration::from_secs(21));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_ends_by_itself() {
        let (sender, receiver) = watch::channel(Some(Term { number: 0, until: Instant::now() + RENEW_DEADLINE }));
        let claim = Claim(receiver);
        assert!(claim.holds());
        tokio::time::advance(RENEW_DEADLINE).await;
        assert!(!claim.holds());
        drop(sender);
        assert!(!Claim::never().holds());
        assert!(Claim::forever().holds());
    }

    fn candidate() -> (Election, Claim) {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(config).unwrap();
        Election::new(client, "ns", "quorate", "me", Arc::default())
    }

    /// A paused operator whose Lease nobody took renews it as if nothing had been; its rounds of the time between gave up.
    #[tokio::test(start_paused = true)]
    async fn a_renewal_after_a_gap_begins_anew_and_one_without_does_not() {
        let (mut election, claim) = candidate();
        let mut waiting = claim.clone();
        let lead = |election: &mut Election| election.lead_until(Some(Instant::now() + RENEW_DEADLINE));
        let changes = tokio::spawn(async move {
            let mut changes = Vec::new();
            while let Some(change) = waiting.changed().await {
                changes.push(change);
            }
            changes
        });
        tokio::task::yield_now().await;
        lead(&mut election);
        tokio::task::yield_now().await;
        assert!(claim.holds());
        tokio::time::advance(RENEW_EVERY).await;
        lead(&mut election);
        tokio::task::yield_now().await;
        assert!(claim.holds());
        tokio::time::advance(RENEW_DEADLINE).await;
        assert!(!claim.holds());
        lead(&mut election);
        tokio::task::yield_now().await;
        assert!(claim.holds());
        drop(election);
        assert_eq!(changes.await.unwrap(), [true, true], "it begins twice");
    }

    proptest! {
        /// Whatever the record says, a Lease that another renewed within its duration is left alone.
        #[test]
        fn a_live_lease_is_never_taken(duration in 1..100_000_i32, part in 0.0..0.999_f64) {
            let since = Instant::now();
            let now = since + Duration::from_secs(u64::from(duration.unsigned_abs())).mul_f64(part);
            prop_assert_eq!(evaluate(Some(&held_by(Some("other"), Some(duration))), "me", since, now), Verdict::Wait);
        }
    }
}
