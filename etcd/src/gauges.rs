//! Reads the few gauges that matter out of etcd's `/metrics`, in Prometheus' text format, as the bytes come in. It keeps
//! one line at a time and judges nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::MemberId;

/// The most that is kept of one line, in bytes. The lines that matter have below 100; a longer one is none of them.
const LINE_LIMIT: usize = 1024;

/// The gauges that were found. `None`: not there, or not a number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauges {
    /// `etcd_server_has_leader`.
    pub has_leader: Option<bool>,
    /// `etcd_server_is_leader`.
    pub is_leader: Option<bool>,
    /// `etcd_server_is_learner`.
    pub is_learner: Option<bool>,
    /// `etcd_server_id`: the member's id in hexadecimal.
    pub server_id: Option<String>,
    /// `etcd_server_proposals_committed_total`: for all its name, the raft index that is known as committed.
    pub committed: Option<u64>,
    /// `etcd_server_proposals_applied_total`: for all its name, the raft index that is applied.
    pub applied: Option<u64>,
    /// `process_start_time_seconds`, since 1970.
    pub process_start: Option<f64>,
    /// `etcd_server_version`.
    pub server_version: Option<String>,
    /// `etcd_cluster_version`.
    pub cluster_version: Option<String>,
    /// Whether any `etcd_network_snapshot_receive_inflights_total` is above zero.
    pub receives_snapshot: bool,
    /// The members for which `etcd_network_active_peers` stands at one.
    pub active_peers: BTreeSet<MemberId>,
    /// `etcd_network_peer_sent_bytes_total`, by receiver.
    pub sent_bytes: BTreeMap<MemberId, u64>,
}

/// Takes the text in pieces of any size.
#[derive(Debug, Default)]
pub struct GaugesReader {
    found: Gauges,
    line: Vec<u8>,
    too_long: bool,
}

impl GaugesReader {
    /// Takes the next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        // `split` yields at least one piece; what follows the last line feed is no whole line yet.
        let rest = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.keep(piece);
            self.end_line();
        }
        self.keep(rest);
    }

    /// What was found, the last line included even if no line feed ended it.
    pub fn finish(mut self) -> Gauges {
        self.end_line();
        self.found
    }

    fn keep(&mut self, piece: &[u8]) {
        self.too_long |= self.line.len() + piece.len() > LINE_LIMIT;
        if !self.too_long {
            self.line.extend_from_slice(piece);
        }
    }

    fn end_line(&mut self) {
        if !self.too_long
            && let Ok(line) = str::from_utf8(&self.line)
        {
            self.found.take(line);
        }
        self.line.clear();
        self.too_long = false;
    }
}

impl Gauges {
    /// Takes one line: `name value` or `name{label="value"} value`, perhaps with a timestamp after it.
    fn take(&mut self, line: &str) {
        let name_ends = line.find(['{', ' ']).unwrap_or(line.len());
        let (name, rest) = line.split_at(name_ends);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_once('}').unwrap_or_default(),
            None => ("", rest),
        };
        let Some(value) = rest.split_ascii_whitespace().next().and_then(|value| value.parse::<f64>().ok()) else {
            return;
        };
        match name {
            "etcd_server_has_leader" => self.has_leader = truth(value),
            "etcd_server_is_leader" => self.is_leader = truth(value),
            "etcd_server_is_learner" => self.is_learner = truth(value),
            "etcd_server_id" => note(&mut self.server_id, label(labels, "server_id"), value),
            "etcd_server_proposals_committed_total" => self.committed = whole(value),
            "etcd_server_proposals_applied_total" => self.applied = whole(value),
            "process_start_time_seconds" => self.process_start = value.is_finite().then_some(value),
            "etcd_server_version" => note(&mut self.server_version, label(labels, "server_version"), value),
            "etcd_cluster_version" => note(&mut self.cluster_version, label(labels, "cluster_version"), value),
            // One series for each sender.
            "etcd_network_snapshot_receive_inflights_total" => self.receives_snapshot |= value > 0.0,
            // One series for each peer; a peer that is gone leaves its own at zero.
            "etcd_network_active_peers" if truth(value) == Some(true) => {
                self.active_peers.extend(peer(labels, "Remote"));
            }
            "etcd_network_peer_sent_bytes_total" => {
                self.sent_bytes.extend(peer(labels, "To").zip(whole(value)));
            }
            _ => (),
        }
    }
}

/// The member that a label names.
fn peer(labels: &str, name: &str) -> Option<MemberId> {
    label(labels, name)?.parse().ok()
}

/// Keeps a label's value if its series stands at one: etcd leaves the series of an earlier cluster version at zero.
fn note(slot: &mut Option<String>, label: Option<&str>, value: f64) {
    if truth(value) == Some(true)
        && let Some(label) = label
    {
        *slot = Some(label.to_owned());
    }
}

/// The value of a label. Those that matter hold versions and numbers, so nothing in them is ever escaped.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
}

/// One or zero.
fn truth(value: f64) -> Option<bool> {
    match whole(value)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// A whole number, as far as a float holds one exactly. A raft index gets there after 285 years at a million a second.
fn whole(value: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if !(0.0..=EXACT).contains(&value) || value.fract() != 0.0 {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range, as just checked")]
    Some(value as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Gauges {
        let mut reader = GaugesReader::default();
        reader.feed(text.as_bytes());
        reader.finish()
    }

    #[test]
    fn an_earlier_cluster_version_at_zero_does_not_count() {
        let now = "etcd_cluster_version{cluster_version=\"3.6\"} 1\n";
        let before = "etcd_cluster_version{cluster_version=\"3.5\"} 0\n";
        for text in [format!("{now}{before}"), format!("{before}{now}")] {
            assert_eq!(read(&text).cluster_version.as_deref(), Some("3.6"));
        }
    }

    #[test]
    fn peers_are_known_by_their_ids() {
        let peer =
            |id: &str, active: u8| format!("etcd_network_active_peers{{Local=\"8e\",Remote=\"{id}\"}} {active}\n");
        let found = read(&(peer("a", 1) + &peer("b", 0) + &peer("c", 1) + &peer("no id", 1)));
        assert_eq!(found.active_peers, [MemberId(0xa), MemberId(0xc)].into());
        let sent = "etcd_network_peer_sent_bytes_total{To=\"a\"} 1.2e+06\n";
        assert_eq!(read(sent).sent_bytes, [(MemberId(0xa), 1_200_000)].into());
    }

    #[test]
    fn a_snapshot_is_received_from_anybody() {
        let from =
            |id: &str, count: u8| format!("etcd_network_snapshot_receive_inflights_total{{From=\"{id}\"}} {count}\n");
        assert!(read(&(from("a", 1) + &from("b", 0))).receives_snapshot);
        assert!(!read(&from("a", 0)).receives_snapshot);
        assert!(!read("").receives_snapshot);
    }

    #[test]
    fn large_numbers_come_with_an_exponent() {
        let gauges =
            read("etcd_server_proposals_committed_total 1.2345678e+07\netcd_server_proposals_applied_total 2e+10");
        assert_eq!((gauges.committed, gauges.applied), (Some(12_345_678), Some(20_000_000_000)));
    }

    #[test]
    fn what_is_not_a_gauge_of_ours_is_passed_over() {
        for text in [
            "",
            "\n\n",
            "# HELP etcd_server_has_leader Whether or not a leader exists. 1 is existence, 0 is not.",
            "etcd_server_has_leader",
            "etcd_server_has_leader NaN",
            "etcd_server_has_leader 2",
            "etcd_server_has_leader -1",
            "etcd_server_has_leader 0.5",
            "etcd_server_has_leader{",
            "etcd_server_has_leader{} x",
            "etcd_server_has_leader_changes 1",
            "etcd_server_id 1",
            "etcd_server_id{server_id=8e} 1",
            "etcd_server_proposals_applied_total 1e300",
            "process_start_time_seconds +Inf",
        ] {
            assert_eq!(read(text), Gauges::default(), "{text}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_and_the_next_is_not() {
        let long = format!("etcd_server_is_leader {}1\netcd_server_has_leader 1", " ".repeat(LINE_LIMIT));
        let gauges = read(&long);
        assert_eq!((gauges.is_leader, gauges.has_leader), (None, Some(true)));
    }

    /// A page with the given numbers among lines of no interest.
    #[expect(clippy::cast_precision_loss, reason = "Prometheus writes floats, and the indices fit")]
    fn page(has_leader: bool, index: u64, id: u64, noise: &str) -> String {
        let has_leader = u8::from(has_leader);
        format!(
            "# TYPE etcd_server_has_leader gauge\netcd_server_has_leader {has_leader}\n{noise}\n\
             etcd_server_id{{server_id=\"{id:x}\"}} 1\netcd_server_proposals_applied_total {:e}\n",
            index as f64
        )
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000), size in 1..500_usize) {
            let mut reader = GaugesReader::default();
            bytes.chunks(size).for_each(|piece| reader.feed(piece));
            reader.finish();
        }

        #[test]
        fn any_line_of_a_known_name_is_read_without_panic(name in "(etcd_server_id|etcd_server_has_leader|process_start_time_seconds)", rest in "[{}\"=, 0-9a-zE+.]{0,40}") {
            read(&format!("{name}{rest}"));
        }

        #[test]
        fn numbers_come_back_whatever_the_pieces(
            has_leader: bool,
            index in 0..=9_007_199_254_740_992_u64,
            id: u64,
            noise in "[a-z_]{0,30}[ {}\"0-9]{0,20}",
            size in 1..200_usize,
        ) {
            let text = page(has_leader, index, id, &noise);
            let mut reader = GaugesReader::default();
            text.as_bytes().chunks(size).for_each(|piece| reader.feed(piece));
            let gauges = reader.finish();
            prop_assert_eq!(gauges.has_leader, Some(has_leader));
            prop_assert_eq!(gauges.applied, Some(index));
            prop_assert_eq!(gauges.server_id, Some(format!("{id:x}")));
            prop_assert_eq!(gauges.is_leader, None);
        }
    }
}
