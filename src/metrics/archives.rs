//! What is measured of continuous backups: how many are well, how far the worst is behind, and of which the last backup or
//! the last proof is longest ago.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// How a cluster's continuous backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Archive {
    /// `healthy`, `unhealthy` or `unknown`.
    pub health: &'static str,
    /// For how long the cluster has had something that is not in the store, if that is known.
    pub lag_seconds: Option<u64>,
    /// When something was last stored.
    pub committed_at: Option<Timestamp>,
    /// When the last full snapshot was taken.
    pub full_at: Option<Timestamp>,
    /// When it was last proved that it restores.
    pub proved_at: Option<Timestamp>,
}

/// Those of all clusters.
#[derive(Debug, Default)]
pub(super) struct Archives(Mutex<HashMap<String, Archive>>);

impl Archives {
    /// One was seen, or is no more.
    pub fn note(&self, cluster: &str, archive: Option<Archive>) {
        let mut archives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match archive {
            Some(archive) => archives.insert(cluster.to_owned(), archive),
            None => archives.remove(cluster),
        };
    }
}

impl Collector for Archives {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all: Vec<_> = self.0.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect();
        let mut counts = BTreeMap::<&str, i64>::new();
        for Archive { health, lag_seconds: _, committed_at: _, full_at: _, proved_at: _ } in &all {
            *counts.entry(health).or_default() += 1;
        }
        let help = "EtcdClusters with a continuous backup, by how that is";
        let mut family = encoder.encode_descriptor("archives", help, None, MetricType::Gauge)?;
        for (health, count) in counts {
            ConstGauge::new(count).encode(family.encode_family(&[("health", health)])?)?;
        }
        let lag = all.iter().filter_map(|archive| archive.lag_seconds).max();
        let help = "For how long the cluster whose continuous backup is most behind has had something that is not in the store";
        worst(&mut encoder, "archive_lag", help, lag.map(|lag| i64::try_from(lag).unwrap_or(i64::MAX)))?;
        let now = Timestamp::now();
        let longest_ago = |of: fn(&Archive) -> Option<Timestamp>| {
            all.iter().filter_map(of).min().map(|at| now.duration_since(at).as_secs())
        };
        let help = "How long ago something was last stored in the continuous backup of which that is longest ago";
        worst(&mut encoder, "archive_committed", help, longest_ago(|archive| archive.committed_at))?;
        let help =
            "How long ago the last full snapshot was taken for the continuous backup of which that is longest ago";
        worst(&mut encoder, "archive_full", help, longest_ago(|archive| archive.full_at))?;
        let help = "How long ago the continuous backup was proved to restore of which that is longest ago";
        worst(&mut encoder, "archive_proved", help, longest_ago(|archive| archive.proved_at))
    }
}

fn worst(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, seconds: Option<i64>) -> fmt::Result {
    let Some(seconds) = seconds else { return Ok(()) };
    let gauge = ConstGauge::new(seconds);
    gauge.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::super::Metrics;
    use super::*;

    /// One of which nothing else is known.
    fn archive(health: &'static str) -> Archive {
        Archive { health, lag_seconds: None, committed_at: None, full_at: None, proved_at: None }
    }

    #[test]
    fn clusters_are_counted_and_the_worst_lag_is_told() {
        let metrics = Metrics::new();
        assert!(!metrics.render().unwrap().contains("archive_"), "there is none");
        let archive = |health, lag_seconds| Some(Archive { lag_seconds, ..archive(health) });
        metrics.archive("ns/a", archive("healthy", Some(3)));
        metrics.archive("ns/b", archive("healthy", Some(7)));
        metrics.archive("ns/c", archive("unknown", None));
        let text = metrics.render().unwrap();
        for line in [
            "quorate_archives{health=\"healthy\"} 2",
            "quorate_archives{health=\"unknown\"} 1",
            "quorate_archive_lag_seconds 7",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        metrics.archive("ns/b", None);
        assert!(metrics.render().unwrap().contains("quorate_archive_lag_seconds 3"));
    }

    #[test]
    fn the_last_backup_stands_beside_the_last_proof_each_of_the_cluster_for_which_it_is_longest_ago() {
        let metrics = Metrics::new();
        metrics.archive("ns/a", Some(archive("unhealthy")));
        assert!(!metrics.render().unwrap().contains("quorate_archive_"), "nothing was stored, and nothing proved");
        let ago = |days: i64| Some(Timestamp::now() - SignedDuration::from_hours(24 * days));
        let of = |committed, full, proved| {
            let (committed_at, full_at, proved_at) = (ago(committed), ago(full), ago(proved));
            Some(Archive { committed_at, full_at, proved_at, ..archive("healthy") })
        };
        metrics.archive("ns/b", of(3, 4, 1));
        metrics.archive("ns/c", of(1, 5, 2));
        let told = |name: &str| {
            let text = metrics.render().unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
            line.parse::<i64>().unwrap() / 86_400
        };
        let names = ["committed", "full", "proved"].map(|name| format!("quorate_archive_{name}_seconds"));
        assert_eq!(names.each_ref().map(|name| told(name)), [3, 5, 2]);
        metrics.archive("ns/b", None);
        assert_eq!(names.each_ref().map(|name| told(name)), [1, 5, 2]);
        // One that was never proved does not count there.
        metrics.archive("ns/c", Some(Archive { proved_at: None, ..of(1, 5, 2).unwrap() }));
        let text = metrics.render().unwrap();
        assert!(text.contains("quorate_archive_committed_seconds ") && !text.contains("archive_proved"), "{text}");
    }
}
