//! How long each version of etcd ran while a schedule did, under faults and in the quiet after the last one, by the
//! operator's log. Only arithmetic.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock::Moment;
use super::operator_log::{DID, after, number, said};
use super::report::rounded;
use super::run::Run;

/// What stands for a version that nobody knows, and for a commit.
pub const UNKNOWN: &str = "unknown";

/// How long a version ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ran {
    /// Until the last fault that was done was over.
    pub fault_seconds: f64,
    /// From then on, until the schedule was over.
    pub quiet_seconds: f64,
}

/// How long each version ran: at any time the lowest that a member has.
pub fn ran(run: &Run) -> BTreeMap<String, Ran> {
    let Run { schedule, deeds, history, operator_log, commit: _, renewals: _, converged: _, violations: _ } = run;
    // What waits for its moment begins later than it was to.
    let began = deeds.iter().map(|deed| deed.begun.earlier_by(Duration::from_millis(deed.event.at.into())));
    let began = began.min().unwrap_or_default();
    let over = began.later_by(schedule.lasts());
    let quiet = deeds.iter().filter(|deed| deed.is_done()).map(|deed| deed.ended).max().unwrap_or(began).min(over);

    let mut spans: BTreeMap<Option<Version>, (Duration, Duration)> = BTreeMap::new();
    let (mut members, mut lowest, mut since) = (BTreeMap::new(), None, began);
    let mut until = |moment: Moment, version: Option<Version>| {
        let (under_faults, in_quiet) = spans.entry(version).or_default();
        *under_faults += moment.min(quiet).since(since);
        *in_quiet += moment.min(over).since(since.max(quiet));
        since = since.max(moment);
    };
    for Change { at, serial, runs } in operator_log.iter().filter_map(|line| change(line, &history.cluster)) {
        until(at, lowest);
        match runs {
            Some(version) => members.insert(serial, version),
            None => members.remove(&serial),
        };
        lowest = members.values().min().copied().or(lowest);
    }
    until(over, lowest);
    let told = |version: Option<Version>| {
        version.map_or_else(|| UNKNOWN.to_owned(), |(minor, patch)| format!("3.{minor}.{patch}"))
    };
    let ran = |(faults, quiet)| Ran { fault_seconds: rounded(faults), quiet_seconds: rounded(quiet) };
    let spans = spans.into_iter().filter(|(_, (faults, quiet))| !(*faults + *quiet).is_zero());
    spans.map(|(version, span)| (told(version), ran(span))).collect()
}

/// Minor and patch.
type Version = (u32, u32);

/// What the operator did to what a member runs.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    at: Moment,
    serial: u32,
    /// Nothing any more: it is no member, or its volume is gone.
    runs: Option<Version>,
}

/// Reads it from a line as it is kept: `<seconds> s <pod> <time> stderr F <JSON>`.
fn change(line: &str, cluster: &str) -> Option<Change> {
    let said = said(line)?;
    let text = |field: &str| said[field].as_str();
    if text("message") != Some(DID) || text("cluster") != Some(cluster) {
        return None;
    }
    let step = text("step")?;
    let runs = match step.split(' ').next()? {
        "CreatePod" | "SwitchRelease" => Some(version(step)?),
        "Remove" | "DeleteClaim" => None,
        _ => return None,
    };
    let seconds = line.split_once(" s ")?.0.parse().ok()?;
    let at = Moment::default().later_by(Duration::try_from_secs_f64(seconds).ok()?);
    Some(Change { at, serial: number(after(step, "Serial(")?)?, runs })
}

fn version(step: &str) -> Option<Version> {
    let version = after(step, "release: Release { version: Version { minor: Minor(")?;
    let patch = after(version, "patch: ")?.split_once(' ')?.0;
    Some((number(version)?, patch.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::fault::Fault;
    use crate::chaos::history::History;
    use crate::chaos::inject::{Carried, Deed};
    use crate::chaos::schedule::{Event, Schedule};

    fn said(second: u32, cluster: &str, step: &str) -> String {
        format!(
            r#"{second}.000 s quorate-1 2026-11-26T07:05:18Z stderr F {{"message":"did","cluster":"{cluster}","step":"{step}"}}"#
        )
    }

    fn runs(step: &str, serial: u32, minor: u32) -> String {
        let version = format!("Version {{ minor: Minor({minor}), patch: 3 }}");
        format!("{step} {{ serial: Serial({serial}), release: Release {{ version: {version}, image: Image(x) }} }}")
    }

    /// A minute that begins at 10 s; its one fault that is done ends at 50 s, and a later one is left out.
    fn run(operator_log: Vec<String>) -> Run {
        let deed = |at, ended: u64, carried| Deed {
            event: Event { at, fault: Fault::Scale { replicas: 5 } },
            begun: Moment(10_000_000 + u64::from(at) * 1000),
            ended: Moment(ended * 1_000_000),
            carried,
        };
        let schedule = Schedule::generate(7, Duration::from_mins(1), "3.6.3");
        Run {
            schedule,
            deeds: vec![deed(1000, 50, Carried::Done("x".into())), deed(50_000, 65, Carried::Skipped("x".into()))],
            history: History { cluster: "db".into(), ..History::default() },
            operator_log,
            commit: UNKNOWN.into(),
            renewals: vec![],
            converged: None,
            violations: vec![],
        }
    }

    fn told(operator_log: Vec<String>) -> Vec<(String, f64, f64)> {
        let ran = ran(&run(operator_log)).into_iter();
        ran.map(|(version, ran)| (version, ran.fault_seconds, ran.quiet_seconds)).collect()
    }

    #[test]
    fn the_lowest_version_of_any_member_counts() {
        let log = vec![
            said(1, "db", &runs("CreatePod", 0, 6)),
            said(1, "db", &runs("CreatePod", 1, 6)),
            said(20, "db", &runs("SwitchRelease", 0, 7)),
            // Another cluster's, and one that is only tried.
            said(25, "other", &runs("SwitchRelease", 1, 7)),
            said(26, "db", &runs("TryRelease", 1, 7)),
            said(40, "db", &runs("SwitchRelease", 1, 7)),
            said(60, "db", &runs("SwitchRelease", 1, 6)),
            said(64, "db", "Remove { serial: Some(Serial(1)), id: MemberId(5), expect: {} }"),
        ];
        assert_eq!(told(log), [("3.6.3".into(), 30.0, 4.0), ("3.7.3".into(), 10.0, 16.0)]);
    }

    #[test]
    fn a_cluster_that_sleeps_has_the_version_that_it_had_and_a_log_that_is_lost_has_none() {
        let log = vec![
            said(30, "db", &runs("CreatePod", 0, 7)),
            said(31, "db", "DeleteClaim { serial: Serial(0), claim: Uid(x) }"),
        ];
        assert_eq!(told(log), [("3.7.3".into(), 20.0, 20.0), (UNKNOWN.into(), 20.0, 0.0)]);
        assert_eq!(told(vec!["no line".into()]), [(UNKNOWN.into(), 40.0, 20.0)]);
    }
}
