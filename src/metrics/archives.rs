//! What is measured of continuous backups: how many are well, and how far the worst is behind.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, PoisonError};

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
        for Archive { health, lag_seconds: _ } in &all {
            *counts.entry(health).or_default() += 1;
        }
        let help = "EtcdClusters with a continuous backup, by how that is";
        let mut family = encoder.encode_descriptor("archives", help, None, MetricType::Gauge)?;
        for (health, count) in counts {
            ConstGauge::new(count).encode(family.encode_family(&[("health", health)])?)?;
        }
        let Some(worst) = all.iter().filter_map(|archive| archive.lag_seconds).max() else { return Ok(()) };
        let help = "For how long the cluster whose continuous backup is most behind has had something that is not in the store";
        let worst = ConstGauge::new(i64::try_from(worst).unwrap_or(i64::MAX));
        worst.encode(encoder.encode_descriptor("archive_lag", help, Some(&Unit::Seconds), MetricType::Gauge)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn clusters_are_counted_and_the_worst_lag_is_told() {
        let metrics = Metrics::new();
        assert!(!metrics.render().unwrap().contains("archive_lag"), "there is none");
        let archive = |health, lag_seconds| Some(Archive { health, lag_seconds });
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
}
