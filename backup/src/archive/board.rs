//! The notice board of an archive: what it does, how far it has come and what is wrong, written by those who record and
//! read by HTTP. It logs what turns, each time once.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use super::lag::Sightings;
use super::status::{Fault, Head, Reason, Report, Role, cut};
use crate::format::{Chain, Lineage};
use crate::store::Address;

/// Shared by all parts of an archive. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Board(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    metrics: Metrics,
}

#[derive(Debug)]
struct State {
    /// Its lag is counted when it is asked for.
    report: Report,
    sightings: Sightings,
}

/// What is counted. What is measured is filled in when it is asked for.
#[derive(Debug)]
struct Metrics {
    registry: Registry,
    committer: Gauge,
    head: Gauge,
    lag_revisions: Gauge,
    lag_seconds: Gauge,
    faulty: Gauge,
    commits: Counter,
    fulls: Counter,
    lost: Counter,
    moments: Arc<Moments>,
}

/// When the last backups came into the store. A gauge that is registered is told from the first: these are not until there
/// is one, as 0 would be a moment, too.
#[derive(Debug, Default)]
struct Moments(Mutex<Option<Head>>);

impl Moments {
    fn set(&self, head: Option<Head>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = head;
    }
}

impl Collector for Moments {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let head = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Head { revision: _, committed_at, full_revision: _, full_taken }) = head else { return Ok(()) };
        let help = "When the last revision that is in the store came there, in seconds since 1970";
        moment(&mut encoder, "last_commit_timestamp", help, committed_at)?;
        let help = "When the full snapshot was taken that the generation began with, in seconds since 1970";
        moment(&mut encoder, "last_full_timestamp", help, full_taken)
    }
}

fn moment(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, at: Timestamp) -> fmt::Result {
    let gauge = ConstGauge::new(at.as_second());
    gauge.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?)
}

impl Metrics {
    fn new() -> Self {
        let mut registry = Registry::with_prefix("quorate_archive");
        let gauge = |registry: &mut Registry, name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let counter = |registry: &mut Registry, name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let committer = gauge(&mut registry, "committer", "1 where this archive records, 0 where it stands by");
        let head = gauge(&mut registry, "head_revision", "The last revision that is in the store");
        let lag_revisions = gauge(&mut registry, "lag_revisions", "Revisions of the member that are not in the store");
        let lag_seconds = Gauge::default();
        let help = "For how long the member has had something that is not in the store";
        registry.register_with_unit("lag", help, Unit::Seconds, lag_seconds.clone());
        let faulty = gauge(&mut registry, "faulty", "1 while something keeps this archive from its work");
        let commits = counter(&mut registry, "commits", "Manifests that this archive has committed");
        let fulls = counter(&mut registry, "fulls", "Full snapshots that this archive has taken");
        let lost = counter(&mut registry, "commits_lost", "Commits for which another archive was first");
        let moments = Arc::<Moments>::default();
        registry.register_collector(Box::new(moments.clone()));
        Self { registry, committer, head, lag_revisions, lag_seconds, faulty, commits, fulls, lost, moments }
    }
}

impl Board {
    /// The board of an archive that has not begun.
    pub fn new(address: &Address, lineage: &Lineage) -> Self {
        let report = Report {
            role: Role::Standby,
            location: address.to_string(),
            lineage: lineage.as_str().to_owned(),
            generation: None,
            head: None,
            lag: None,
            fault: None,
        };
        let state = State { report, sightings: Sightings::default() };
        Self(Arc::new(Inner { state: Mutex::new(state), metrics: Metrics::new() }))
    }

    /// What holds at this moment.
    pub fn read(&self) -> Report {
        let state = self.lock();
        Report { lag: state.sightings.lag(Instant::now()), ..state.report.clone() }
    }

    /// All that is counted and measured, in the OpenMetrics text form.
    pub fn metrics(&self) -> Result<String, fmt::Error> {
        let Report { role, location: _, lineage: _, generation: _, head, lag, fault } = self.read();
        let metrics = &self.0.metrics;
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        metrics.committer.set(i64::from(role == Role::Committer));
        metrics.head.set(head.map_or(0, |head| number(head.revision)));
        metrics.lag_revisions.set(lag.map_or(-1, |lag| number(lag.revisions)));
        metrics.lag_seconds.set(lag.map_or(-1, |lag| number(lag.seconds)));
        metrics.faulty.set(i64::from(fault.is_some()));
        metrics.moments.set(head);
        let mut text = String::new();
        encode(&mut text, &metrics.registry)?;
        Ok(text)
    }

    pub(super) fn role(&self, role: Role) {
        let mut state = self.lock();
        if state.report.role != role {
            state.report.role = role;
            match role {
                Role::Committer => tracing::info!("the member leads: this archive records"),
                Role::Standby => tracing::info!("this archive stands by"),
            }
        }
    }

    pub(super) fn member_at(&self, revision: u64) {
        self.lock().sightings.seen(revision, Instant::now());
    }

    pub(super) fn member_silent(&self) {
        self.lock().sightings.lost();
    }

    /// This is what is in the store; `committed_at` is when its end came there.
    pub(super) fn stored(&self, chain: &Chain, committed_at: Timestamp) {
        let mut state = self.lock();
        let revision = chain.head().get();
        state.sightings.stored(revision);
        state.report.generation = Some(format!("{}/{}", chain.key.cluster, chain.key.name));
        state.report.head = Some(Head {
            revision,
            committed_at,
            full_revision: chain.full.revision.get(),
            full_taken: chain.full.taken,
        });
    }

    pub(super) fn committed(&self) {
        self.0.metrics.commits.inc();
    }

    pub(super) fn took_full(&self) {
        self.0.metrics.fulls.inc();
    }

    pub(super) fn lost_commit(&self) {
        self.0.metrics.lost.inc();
    }

    /// Something went wrong.
    pub(super) fn fault(&self, reason: Reason, message: &str) {
        let message = cut(message);
        let mut state = self.lock();
        let before = state.report.fault.as_ref();
        if before.is_none_or(|before| before.reason != reason || before.message != message) {
            tracing::warn!("{}: {message}", reason.as_str());
        }
        let since = before.filter(|before| before.reason == reason).map_or_else(Timestamp::now, |before| before.since);
        state.report.fault = Some(Fault { reason, message, since });
    }

    /// All is well again.
    pub(super) fn well(&self) {
        if let Some(Fault { reason, .. }) = self.lock().report.fault.take() {
            tracing::info!("{} is over", reason.as_str());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::format::tests::stored;
    use crate::store::tests::faulty::sound;

    fn board() -> Board {
        Board::new(&"s3://bucket/etcd".parse().unwrap(), &"blue".parse().unwrap())
    }

    #[test]
    fn a_fault_keeps_its_begin_while_its_reason_stays() {
        let board = board();
        board.fault(Reason::StoreFailed, "one");
        let since = board.read().fault.unwrap().since;
        board.fault(Reason::StoreFailed, "two");
        let fault = board.read().fault.unwrap();
        assert_eq!((fault.since, fault.message.as_str()), (since, "two"));
        board.well();
        assert_eq!(board.read().fault, None);
        board.fault(Reason::StoreFailed, &"x".repeat(10_000));
        assert!(board.read().fault.unwrap().message.len() < 1000);
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let board = board();
        let report = board.read();
        assert_eq!((report.role, report.lag, report.head, report.generation), (Role::Standby, None, None, None));
        let text = board.metrics().unwrap();
        assert!(text.contains("quorate_archive_lag_seconds -1") && !text.contains("timestamp"), "{text}");
        board.role(Role::Committer);
        assert!(board.metrics().unwrap().contains("quorate_archive_committer 1"));
    }

    #[tokio::test]
    async fn all_that_is_counted_and_measured_is_told_by_its_name() {
        let board = board();
        board.role(Role::Committer);
        board.stored(&stored(&sound(), 100, &[(20, 110)]).await, Timestamp::constant(120, 999_999_999));
        board.member_at(25);
        board.fault(Reason::StoreFailed, "one");
        (0..4).for_each(|_| board.committed());
        (0..3).for_each(|_| board.took_full());
        (0..2).for_each(|_| board.lost_commit());
        let text = board.metrics().unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
        let told: BTreeMap<_, i64> = lines.map(|(name, number)| (name, number.parse().unwrap())).collect();
        // As long as this machine took for the lines above.
        let seconds = told["quorate_archive_lag_seconds"];
        assert!(seconds >= 0, "{text}");
        let wanted = [
            ("quorate_archive_committer", 1),
            ("quorate_archive_head_revision", 20),
            ("quorate_archive_lag_revisions", 5),
            ("quorate_archive_lag_seconds", seconds),
            ("quorate_archive_faulty", 1),
            ("quorate_archive_commits_total", 4),
            ("quorate_archive_fulls_total", 3),
            ("quorate_archive_commits_lost_total", 2),
            ("quorate_archive_last_commit_timestamp_seconds", 120),
            ("quorate_archive_last_full_timestamp_seconds", 100),
        ];
        assert_eq!(told, BTreeMap::from(wanted));
    }
}
