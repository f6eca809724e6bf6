//! What came of a run, counted: a table for people, JSON for programs, and the files that keep it. Only arithmetic and
//! layout.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::check::{JUDGE, Promotions, Violation, promotions, verb};
use super::gaps::{Gap, gaps};
use super::history::{Op, Outcome, Step};
use super::inject::Carried;
use super::run::Run;
use super::versions::{Ran, UNKNOWN, ran};

/// The file that a report is kept in.
pub const REPORT: &str = "report.json";
/// The schedule of a run that was kept.
pub const SCHEDULE: &str = "schedule.json";
/// What was done in a run that was kept.
pub const DEEDS: &str = "faults.json";
/// The record of a run that was kept.
pub const HISTORY: &str = "history.jsonl";

/// How often one kind of fault was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// It was done.
    pub done: usize,
    /// Its moment was wrong.
    pub skipped: usize,
    /// It could not be done.
    pub failed: usize,
}

/// What came of one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Answered.
    pub done: usize,
    /// Surely without effect.
    pub failed: usize,
    /// With or without effect.
    pub unknown: usize,
}

/// The counts of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub(super) seed: u64,
    pub(super) version: String,
    #[serde(default)]
    pub(super) stays: bool,
    /// How long the schedule was, with the quiet after the last fault.
    pub(super) fault_seconds: f64,
    /// What it was made of, by the version that ran. Reports of before don't say it.
    #[serde(default)]
    pub(super) versions: BTreeMap<String, Ran>,
    /// What git calls what the operator was built from.
    #[serde(default = "unknown")]
    pub(super) commit: String,
    /// Which judge it was.
    #[serde(default)]
    pub(super) judge: Option<u32>,
    pub(super) faults: BTreeMap<String, Faults>,
    pub(super) calls: BTreeMap<String, Calls>,
    pub(super) keys: usize,
    pub(super) watched_events: usize,
    pub(super) operator_steps: BTreeMap<String, usize>,
    /// Of how many promotions it was judged how far the learner had come. Reports from before the tenth judge don't say it.
    #[serde(default)]
    pub(super) promotions: Option<Promotions>,
    pub(super) gaps_of_writes: Vec<Gap>,
    pub(super) converged_seconds: Option<f64>,
    pub(super) violations: Vec<Violation>,
}

impl Report {
    /// Counts a run.
    pub fn of(run: &Run) -> Self {
        let Run { schedule, deeds, history, operator_log: _, commit, renewals, converged, violations } = run;
        let mut faults: BTreeMap<String, Faults> = BTreeMap::new();
        for deed in deeds {
            let counts = faults.entry(deed.event.fault.name().to_owned()).or_default();
            match deed.carried {
                Carried::Done(_) => counts.done += 1,
                Carried::Skipped(_) => counts.skipped += 1,
                Carried::Failed(_) => counts.failed += 1,
            }
        }
        let mut calls: BTreeMap<String, Calls> = BTreeMap::new();
        let mut keys: Vec<_> = history.calls.iter().map(|call| &call.key).collect();
        for call in &history.calls {
            let counts = calls.entry(name_of(call.op).to_owned()).or_default();
            match call.outcome {
                Outcome::Done { .. } => counts.done += 1,
                Outcome::Failed(_) => counts.failed += 1,
                Outcome::Unknown(_) => counts.unknown += 1,
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let mut operator_steps = BTreeMap::new();
        for deed in &history.deeds {
            *operator_steps.entry(step_name(&deed.step).to_owned()).or_default() += 1;
        }
        Self {
            seed: schedule.seed,
            version: schedule.version.clone(),
            stays: schedule.stays,
            fault_seconds: rounded(schedule.lasts()),
            versions: ran(run),
            commit: commit.clone(),
            judge: Some(JUDGE),
            faults,
            calls,
            keys: keys.len(),
            watched_events: history.watches.iter().map(|watch| watch.events.len()).sum(),
            operator_steps,
            promotions: Some(promotions(history)),
            gaps_of_writes: gaps(&history.calls, deeds, renewals),
            converged_seconds: converged.map(rounded),
            violations: violations.clone(),
        }
    }

    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty()
    }

    /// The version that it began with, and whether that was to stay.
    pub(super) fn etcd(&self) -> String {
        if self.stays { format!("{} throughout", self.version) } else { self.version.clone() }
    }

    /// It as JSON.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).context("failed to write the report")
    }
}

/// The report that was kept in this folder.
pub fn kept(folder: &Path) -> Result<Report> {
    let path = folder.join(REPORT);
    let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} holds no report", path.display()))
}

/// Writes schedule, faults, history and report of a run into a folder of its own below this one, and returns it.
pub fn keep(run: &Run, below: &Path) -> Result<PathBuf> {
    let stays = if run.schedule.stays { "-stay" } else { "" };
    let folder = below.join(format!("seed-{}{stays}", run.schedule.seed));
    // What an earlier run of this seed left would be taken for this one's, and a failure may not come again.
    set_aside_if_failed(&folder)?;
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).with_context(|| format!("failed to write {name}"))
    };
    write(SCHEDULE, serde_json::to_string_pretty(&run.schedule)?)?;
    write(DEEDS, serde_json::to_string_pretty(&run.deeds)?)?;
    write("operator.log", run.operator_log.join("\n"))?;
    write(REPORT, Report::of(run).json()?)?;
    run.history.write(&folder.join(HISTORY))?;
    Ok(folder)
}

/// Gives a run that failed a name of its own, so that no later run of its seed takes its place.
fn set_aside_if_failed(folder: &Path) -> Result<()> {
    if !kept(folder).is_ok_and(|report| !report.is_sound()) {
        return Ok(());
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut named = (1..=u32::MAX).map(|number| folder.with_file_name(format!("{name}-failed-{number}")));
    let free = named.find(|it| !it.exists()).context("there is no name left for a run that failed")?;
    std::fs::rename(folder, &free).with_context(|| format!("failed to set {} aside", folder.display()))
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

fn name_of(op: Op) -> &'static str {
    match op {
        Op::Put(_) => "put",
        Op::Get => "get",
        Op::Delete => "delete",
        Op::Swap { .. } => "swap",
    }
}

fn step_name(step: &Step) -> &str {
    match step {
        Step::AddLearner { .. } => "AddLearner",
        Step::Promote { .. } => "Promote",
        Step::Remove { .. } => "Remove",
        Step::MoveLeader => "MoveLeader",
        Step::DeletePod { .. } => "DeletePod",
        Step::SwitchRelease { .. } => "SwitchRelease",
        Step::DeleteClaim { .. } => "DeleteClaim",
        Step::Calls { call } if verb(call).is_some() => "calls for a change of the member list",
        Step::Calls { .. } => "calls that take a pod or a volume away",
        Step::LostAnswer { .. } => "lost answers of etcd",
        Step::Refused { .. } => "changes that etcd refused",
        Step::Harmless { name } => name,
        Step::Unreadable { .. } => "unreadable",
    }
}

/// To milliseconds: what lies below is noise.
pub(super) fn rounded(span: Duration) -> f64 {
    (span.as_secs_f64() * 1000.0).round() / 1000.0
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            version: _,
            stays: _,
            fault_seconds,
            versions,
            commit,
            judge,
            faults,
            calls,
            keys,
            watched_events,
            operator_steps,
            promotions,
            gaps_of_writes,
            converged_seconds,
            violations,
        } = self;
        writeln!(f, "seed {seed}, etcd {}, {fault_seconds} s of faults", self.etcd())?;
        for (version, Ran { fault_seconds, quiet_seconds }) in versions {
            writeln!(f, "etcd {version}: {fault_seconds} s under faults, {quiet_seconds} s quiet")?;
        }
        let judge = judge.map_or_else(unknown, |judge| judge.to_string());
        writeln!(f, "operator {commit}, judge {judge}")?;
        writeln!(f, "\n{:<20} {:>7} {:>7} {:>7}", "fault", "done", "skipped", "failed")?;
        for (name, Faults { done, skipped, failed }) in faults {
            writeln!(f, "{name:<20} {done:>7} {skipped:>7} {failed:>7}")?;
        }
        writeln!(f, "\n{:<20} {:>7} {:>7} {:>7}", "call", "done", "failed", "unknown")?;
        for (name, Calls { done, failed, unknown }) in calls {
            writeln!(f, "{name:<20} {done:>7} {failed:>7} {unknown:>7}")?;
        }
        let steps: Vec<String> = operator_steps.iter().map(|(name, times)| format!("{name} {times}")).collect();
        writeln!(f, "\n{keys} keys, {watched_events} events seen by watches; operator: {}", steps.join(", "))?;
        promotions.iter().try_for_each(|promotions| writeln!(f, "{promotions}"))?;
        let converged = converged_seconds.map_or_else(|| "not converged".to_owned(), |s| format!("converged in {s} s"));
        writeln!(f, "{converged}; the longest times without an acknowledged write:")?;
        gaps_of_writes.iter().try_for_each(|gap| writeln!(f, "  {gap}"))?;
        if violations.is_empty() {
            return write!(f, "nothing is wrong");
        }
        write!(f, "{} violations", violations.len())?;
        violations.iter().try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::check::Check;
    use crate::chaos::clock::Moment;
    use crate::chaos::fault::Fault;
    use crate::chaos::history::{Answer, Call, ClientId, Deed as Act, History, Key, Revision, Value};
    use crate::chaos::inject::Deed;
    use crate::chaos::schedule::{Event, Schedule};

    fn run() -> Run {
        let call = |op, at, outcome| Call {
            client: ClientId(0),
            member: "db-0".into(),
            key: Key("k".into()),
            op,
            invoked: Moment(at),
            returned: Moment(at + 1),
            outcome,
        };
        let put = || Outcome::Done { revision: Revision(2), answer: Answer::Put };
        let calls = vec![
            call(Op::Put(Value(1)), 0, put()),
            call(Op::Put(Value(2)), 2_500_000, put()),
            call(Op::Get, 3, Outcome::Failed("gone".into())),
            call(Op::Delete, 4, Outcome::Unknown("no answer".into())),
        ];
        let deed = |carried| Deed {
            event: Event { at: 1, fault: Fault::Scale { replicas: 5 } },
            begun: Moment(1),
            ended: Moment(2),
            carried,
        };
        Run {
            schedule: Schedule::generate(7, Duration::from_mins(1), "3.6.16"),
            deeds: vec![deed(Carried::Done("5 members".into())), deed(Carried::Skipped("asleep".into()))],
            history: History {
                calls,
                deeds: vec![Act { at: Moment(1), by: None, step: Step::MoveLeader }],
                ..History::default()
            },
            operator_log: vec!["db does".into()],
            commit: "8535b60".into(),
            renewals: vec![],
            converged: None,
            violations: vec![Violation { check: Check::Kept, what: "a write is lost".into() }],
        }
    }

    #[test]
    fn everything_is_counted() {
        let report = Report::of(&run());
        assert_eq!(report.faults["scale"], Faults { done: 1, skipped: 1, failed: 0 });
        assert_eq!(report.calls["put"], Calls { done: 2, failed: 0, unknown: 0 });
        assert_eq!(report.calls["delete"], Calls { done: 0, failed: 0, unknown: 1 });
        assert_eq!((report.keys, report.operator_steps["MoveLeader"]), (1, 1));
        assert_eq!(report.gaps_of_writes.len(), 1);
        assert_eq!(report.promotions, Some(Promotions { asked: 0, judged: 0 }));
        assert!(!report.is_sound());
        let text = report.to_string();
        for says in ["seed 7, etcd 3.6.16", "scale                      1       1       0", "kept: a write is lost"] {
            assert!(text.contains(says), "{says:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_run_that_stays_says_so() {
        let schedule = Schedule::staying(7, Duration::from_mins(1), "3.5.35");
        let report = Report::of(&Run { schedule, ..run() });
        assert!(report.to_string().starts_with("seed 7, etcd 3.5.35 throughout, 60 s of faults"));
        let text = report.json().unwrap();
        assert!(text.contains(r#""stays": true"#) && serde_json::from_str::<Report>(&text).unwrap() == report);
        // What was kept before runs could stay says nothing of it.
        let older = text.replace(r#""stays": true,"#, "");
        assert_eq!(serde_json::from_str::<Report>(&older).unwrap().etcd(), "3.5.35");
    }

    #[test]
    fn what_an_older_report_does_not_say_is_unknown() {
        let mut report = serde_json::to_value(Report::of(&run())).unwrap();
        let says = |report: &serde_json::Value| {
            let report: Report = serde_json::from_value(report.clone()).unwrap();
            (
                report.versions.len(),
                report.commit.clone(),
                report.judge,
                report.to_string().lines().nth(1).map(str::to_owned),
            )
        };
        let told = |text: &str| Some(text.to_owned());
        assert_eq!(
            says(&report),
            (1, "8535b60".into(), Some(JUDGE), told("etcd unknown: 0 s under faults, 60 s quiet"))
        );
        for field in ["versions", "commit", "judge", "promotions"] {
            assert!(report.as_object_mut().unwrap().remove(field).is_some(), "{field}");
        }
        assert_eq!(says(&report), (0, UNKNOWN.into(), None, told("operator unknown, judge unknown")));
    }

    #[test]
    fn a_run_is_kept_in_files_that_can_be_read_back() {
        let below = tempfile::tempdir().unwrap();
        let folder = keep(&run(), below.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&read("schedule.json")).unwrap(), run().schedule);
        assert_eq!(serde_json::from_str::<Vec<Deed>>(&read("faults.json")).unwrap(), run().deeds);
        assert_eq!(kept(&folder).unwrap(), Report::of(&run()));
        assert_eq!(read("operator.log"), "db does");
        assert!(read("history.jsonl").lines().count() >= 5 && read("report.json").contains("a write is lost"));
    }

    #[test]
    fn a_run_that_failed_stays_when_its_seed_is_run_again_and_a_sound_one_does_not() {
        let below = tempfile::tempdir().unwrap();
        let sound = || Run { violations: vec![], ..run() };
        for run in [run(), run(), sound(), sound()] {
            keep(&run, below.path()).unwrap();
        }
        let mut kept: Vec<_> = std::fs::read_dir(below.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        kept.sort();
        assert_eq!(kept, ["seed-7", "seed-7-failed-1", "seed-7-failed-2"]);
        assert!(super::kept(&below.path().join("seed-7")).unwrap().is_sound());
        assert!(!super::kept(&below.path().join("seed-7-failed-2")).unwrap().is_sound());
    }
}
