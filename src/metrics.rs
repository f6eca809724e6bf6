//! The operator's own metrics. Labels come from closed sets: nothing a user can name becomes a label.

#[cfg(test)]
mod alerts_tests;
mod archives;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, text::encode};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use prometheus_client::registry::{Registry, Unit};

pub use archives::Archive;
use archives::Archives;

/// Bounds of reconcile durations in seconds: a round at rest takes some milliseconds, one with deadlines a few seconds.
const RECONCILE_BOUNDS: [f64; 9] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0];
/// Bounds in seconds of what users wait for: to heal, to bootstrap.
const WAIT_BOUNDS: [f64; 11] = [0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 180.0, 600.0, 3600.0];

const SECONDS_OF_A_DAY: f64 = 86_400.0;

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reconciles: Family<Outcome, Counter>,
    reconcile_seconds: Histogram,
    clusters: Family<InPhase, Gauge>,
    phases: Mutex<HashMap<String, &'static str>>,
    stalled: Holding,
    certificates_invalid: Holding,
    backups: Family<Outcome, Counter>,
    actions: Family<Action, Counter>,
    heal_seconds: Histogram,
    bootstrap_seconds: Histogram,
    calls: Family<Call, Counter>,
    panics: Counter,
    leader: Gauge,
    certificates: Arc<Certificates>,
    archives: Arc<Archives>,
}

/// The clusters of which something holds; their number is told.
#[derive(Debug, Default)]
struct Holding {
    number: Gauge,
    clusters: Mutex<HashSet<String>>,
}

impl Holding {
    fn note(&self, cluster: &str, holds: bool) {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        if holds {
            clusters.insert(cluster.to_owned());
        } else {
            clusters.remove(cluster);
        }
        self.number.set(i64::try_from(clusters.len()).unwrap_or(i64::MAX));
    }
}

/// When the first certificate of each cluster runs out. The days left are counted when they are asked for.
#[derive(Debug, Default)]
struct Certificates(Mutex<HashMap<String, Timestamp>>);

impl Certificates {
    /// Days until the first of all runs out; none while there is none.
    fn days_left(&self, now: Timestamp) -> Option<f64> {
        let first = self.0.lock().unwrap_or_else(PoisonError::into_inner).values().min().copied();
        first.map(|first| first.duration_since(now).as_secs_f64() / SECONDS_OF_A_DAY)
    }
}

impl Collector for Certificates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(days) = self.days_left(Timestamp::now()) else { return Ok(()) };
        let gauge = ConstGauge::new(days);
        let help = "Days until the first certificate of any cluster runs out";
        gauge.encode(encoder.encode_descriptor("certificates_days_left", help, None, gauge.metric_type())?)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Action {
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    service: &'static str,
    verb: &'static str,
    kind: String,
    outcome: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn counted_from_zero(outcomes: [&'static str; 2]) -> Family<Outcome, Counter> {
    let family = Family::<Outcome, Counter>::default();
    for outcome in outcomes {
        drop(family.get_or_create(&Outcome { outcome }));
    }
    family
}

impl Metrics {
    /// A fresh set, all at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("quorate");
        // What is born with its first count has no increase: an alert would miss the first failure of each process.
        let [reconciles, backups] = [["ok", "error"], ["complete", "failed"]].map(counted_from_zero);
        registry.register("reconciles", "Rounds of observe, plan, act, report, by outcome", reconciles.clone());
        let reconcile_seconds = Histogram::new(RECONCILE_BOUNDS);
        registry.register_with_unit(
            "reconcile_duration",
            "How long a round took",
            Unit::Seconds,
            reconcile_seconds.clone(),
        );
        let clusters = Family::default();
        registry.register("clusters", "EtcdClusters by phase, as seen by the operator that leads", clusters.clone());
        let stalled = Holding::default();
        registry.register(
            "clusters_stalled",
            "EtcdClusters that wait for their users, whatever their phase",
            stalled.number.clone(),
        );
        let certificates_invalid = Holding::default();
        registry.register(
            "clusters_certificates_invalid",
            "EtcdClusters with certificates that can't be used, or not be renewed",
            certificates_invalid.number.clone(),
        );
        registry.register("backups", "EtcdBackups that have ended, by outcome", backups.clone());
        let actions = Family::default();
        registry.register("actions", "Steps done for clusters", actions.clone());
        let heal_seconds = Histogram::new(WAIT_BOUNDS);
        registry.register_with_unit(
            "heal_duration",
            "From a fault seen to Running",
            Unit::Seconds,
            heal_seconds.clone(),
        );
        let bootstrap_seconds = Histogram::new(WAIT_BOUNDS);
        registry.register_with_unit(
            "bootstrap_duration",
            "From the creation of an EtcdCluster to its first Running",
            Unit::Seconds,
            bootstrap_seconds.clone(),
        );
        let calls = Family::default();
        registry.register(
            "api_calls",
            "Reads and writes of Kubernetes' objects, and changes of etcd's members; without watches, the Lease, events, \
             definitions, and what etcd is only asked",
            calls.clone(),
        );
        let panics = Counter::default();
        registry.register("panics", "Rounds of any object that a mistake in Quorate ended", panics.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 where this operator is the one that acts", leader.clone());
        let certificates = Arc::<Certificates>::default();
        registry.register_collector(Box::new(certificates.clone()));
        let archives = Arc::<Archives>::default();
        registry.register_collector(Box::new(archives.clone()));
        Self {
            registry,
            reconciles,
            reconcile_seconds,
            clusters,
            phases: Mutex::default(),
            stalled,
            certificates_invalid,
            backups,
            actions,
            heal_seconds,
            bootstrap_seconds,
            calls,
            panics,
            leader,
            certificates,
            archives,
        }
    }

    /// One round ended.
    pub fn reconciled(&self, outcome: &'static str, took: Duration) {
        self.reconciles.get_or_create(&Outcome { outcome }).inc();
        self.reconcile_seconds.observe(took.as_secs_f64());
    }

    /// A round ended in a panic.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// A cluster was seen in this phase; `None`: it is no more.
    pub fn phase(&self, cluster: &str, phase: Option<&'static str>) {
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match phase {
            Some(phase) => phases.insert(cluster.to_owned(), phase),
            None => phases.remove(cluster),
        };
        if before == phase {
            return;
        }
        if let Some(phase) = before {
            self.clusters.get_or_create(&InPhase { phase }).dec();
        }
        if let Some(phase) = phase {
            self.clusters.get_or_create(&InPhase { phase }).inc();
        }
    }

    /// A cluster was seen to wait for its user, or not to.
    pub fn stalled(&self, cluster: &str, is: bool) {
        self.stalled.note(cluster, is);
    }

    /// A cluster was seen to have certificates that can't be used, or can't be renewed, or not to.
    pub fn certificates_invalid(&self, cluster: &str, are: bool) {
        self.certificates_invalid.note(cluster, are);
    }

    /// An `EtcdBackup` has ended.
    pub fn backed_up(&self, outcome: &'static str) {
        self.backups.get_or_create(&Outcome { outcome }).inc();
    }

    /// A cluster's certificates were seen, of which the first runs out then; `None`: there are none, or it is no more.
    pub fn certificates(&self, cluster: &str, until: Option<Timestamp>) {
        let mut certificates = self.certificates.0.lock().unwrap_or_else(PoisonError::into_inner);
        match until {
            Some(until) => certificates.insert(cluster.to_owned(), until),
            None => certificates.remove(cluster),
        };
    }

    /// A cluster's continuous backup was seen; `None`: there is none, or the cluster is no more.
    pub fn archive(&self, cluster: &str, archive: Option<Archive>) {
        self.archives.note(cluster, archive);
    }

    /// A step was done.
    pub fn acted(&self, action: &'static str) {
        self.actions.get_or_create(&Action { action }).inc();
    }

    /// A fault was mended.
    pub fn healed(&self, took: Duration) {
        self.heal_seconds.observe(took.as_secs_f64());
    }

    /// A cluster reached its first size.
    pub fn bootstrapped(&self, took: Duration) {
        self.bootstrap_seconds.observe(took.as_secs_f64());
    }

    /// A call to Kubernetes, or one that changes etcd, ended.
    pub fn called(&self, service: &'static str, verb: &'static str, kind: &str, outcome: &'static str) {
        self.calls.get_or_create(&Call { service, verb, kind: kind.to_owned(), outcome }).inc();
    }

    /// This operator is, or is no longer, the one that acts. One that is not sees no cluster, and tells of none.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        if !leads {
            let clusters: Vec<_> = self.phases.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
            for cluster in clusters {
                self.forget(&cluster);
            }
        }
    }

    /// A cluster is no more, or is seen by another operator.
    pub fn forget(&self, cluster: &str) {
        self.phase(cluster, None);
        self.stalled(cluster, false);
        self.certificates_invalid(cluster, false);
        self.certificates(cluster, None);
        self.archive(cluster, None);
    }

    /// All of it in the OpenMetrics text form.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_counted_in_one_phase_only() {
        let metrics = Metrics::new();
        metrics.phase("ns/a", Some("Growing"));
        metrics.phase("ns/a", Some("Running"));
        metrics.phase("ns/a", Some("Running"));
        metrics.phase("ns/b", Some("Running"));
        let text = metrics.render().unwrap();
        assert!(text.contains("quorate_clusters{phase=\"Growing\"} 0"), "{text}");
        assert!(text.contains("quorate_clusters{phase=\"Running\"} 2"), "{text}");
        metrics.phase("ns/a", None);
        assert!(metrics.render().unwrap().contains("quorate_clusters{phase=\"Running\"} 1"));
    }

    #[test]
    fn the_days_left_are_those_of_the_first_certificate() {
        let metrics = Metrics::new();
        assert!(!metrics.render().unwrap().contains("certificates_days_left"), "there is none");
        let after = |days: i64| Some(Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(24 * days));
        metrics.certificates("ns/a", after(3));
        metrics.certificates("ns/b", after(2));
        assert!(metrics.render().unwrap().contains("quorate_certificates_days_left -"), "long ago");
        assert_eq!(metrics.certificates.days_left(Timestamp::UNIX_EPOCH), Some(2.0));
        metrics.certificates("ns/b", None);
        assert_eq!(metrics.certificates.days_left(Timestamp::UNIX_EPOCH), Some(3.0));
    }

    #[test]
    fn an_operator_that_does_not_lead_any_more_tells_of_no_cluster() {
        let metrics = Metrics::new();
        metrics.leads(true);
        metrics.phase("ns/a", Some("Running"));
        metrics.stalled("ns/a", true);
        metrics.certificates_invalid("ns/a", true);
        metrics.certificates("ns/a", Some(Timestamp::UNIX_EPOCH));
        let at = Some(Timestamp::UNIX_EPOCH);
        let archive =
            Archive { health: "healthy", lag_seconds: Some(1), committed_at: at, full_at: at, proved_at: None };
        metrics.archive("ns/a", Some(archive));
        metrics.leads(true);
        let text = metrics.render().unwrap();
        assert!(text.contains("quorate_clusters{phase=\"Running\"} 1") && text.contains("quorate_archives{"), "{text}");
        assert!(text.contains("quorate_clusters_stalled 1"), "{text}");
        assert!(text.contains("quorate_clusters_certificates_invalid 1"), "{text}");
        metrics.leads(false);
        let text = metrics.render().unwrap();
        assert!(text.contains("quorate_clusters{phase=\"Running\"} 0"), "{text}");
        assert!(text.contains("quorate_clusters_stalled 0"), "{text}");
        assert!(text.contains("quorate_clusters_certificates_invalid 0"), "{text}");
        assert!(!text.contains("quorate_certificates_days_left ") && !text.contains("quorate_archives{"), "{text}");
    }

    #[test]
    fn counters_appear_with_their_labels() {
        let metrics = Metrics::new();
        metrics.called("kubernetes", "get", "Pod", "ok");
        metrics.acted("Promote");
        metrics.reconciled("ok", Duration::from_millis(3));
        let text = metrics.render().unwrap();
        for line in [
            r#"quorate_api_calls_total{service="kubernetes",verb="get",kind="Pod",outcome="ok"} 1"#,
            r#"quorate_actions_total{action="Promote"} 1"#,
            r#"quorate_reconciles_total{outcome="ok"} 1"#,
            "quorate_reconcile_duration_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
