//! What is measured of continuous backups: how many are well, and how far the worst is behind.

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
        for Archive { health, lag_seconds: _, proved_at: _ } in &all {
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
        let proved = all.iter().filter_map(|archive| archive.proved_at).min();
        let help = "How long ago the continuous backup was proved to restore of which that is longest ago";
        worst(&mut encoder, "archive_proved", help, proved.map(|proved| now.duration_since(proved).as_secs()))
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

    #[test]
    fn clusters_are_counted_and_the_worst_lag_is_told() {
        let metrics = Metrics::new();
        assert!(!metrics.render().unwrap().contains("archive_"), "there is none");
        let archive = |health, lag_seconds| Some(Archive { health, lag_seconds, proved_at: None });
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
        assert!(!text.contains("archive_proved"), "none was");
        let proved = |days: i64| Timestamp::now() - SignedDuration::from_hours(24 * days);
        for (name, days) in [("ns/d", 1), ("ns/e", 2)] {
            metrics
                .archive(name, Some(Archive { health: "healthy", lag_seconds: None, proved_at: Some(proved(days)) }));
        }
        let text = metrics.render().unwrap();
        assert!(text.contains("quorate_archive_proved_seconds 1728"), "{text}");
        metrics.archive("ns/b", None);
        assert!(metrics.render().unwrap().contains("quorate_archive_lag_seconds 3"));
    }
}
