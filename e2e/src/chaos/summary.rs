//! Many runs in tables, as the documentation shows them: by the version that they began with, and whether it was to
//! stay; and their minutes by the minor that ran. Reads reports that were kept; runs and judges nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::check::Promotions;
use super::report::{Faults, REPORT, Report, kept};
use super::versions::UNKNOWN;

/// What there is to say of all runs that began with one version.
#[derive(Debug, Default)]
struct Runs<'a> {
    reports: Vec<&'a Report>,
}

impl Runs<'_> {
    fn sum(&self, of: impl Fn(&Report) -> usize) -> usize {
        self.reports.iter().map(|report| of(report)).sum()
    }

    fn most(&self, of: impl Fn(&Report) -> f64) -> f64 {
        self.reports.iter().map(|report| of(report)).fold(0.0, f64::max)
    }

    /// How often a kind of fault was dealt, and of these done, left out and not to be done.
    fn faults(&self, kind: &str) -> String {
        let sum = |of: fn(&Faults) -> usize| self.sum(|report| report.faults.get(kind).map_or(0, of));
        let dealt = sum(|faults| faults.done + faults.skipped + faults.failed);
        let (done, skipped, failed) =
            (sum(|faults| faults.done), sum(|faults| faults.skipped), sum(|faults| faults.failed));
        format!("{dealt} / {done} / {skipped} / {failed}")
    }

    fn row(&self, version: &str) -> String {
        let seeds: Vec<String> = self.reports.iter().map(|report| report.seed.to_string()).collect();
        let minutes = self.reports.iter().map(|report| report.fault_seconds).sum::<f64>() / 60.0;
        let faults = self.sum(|report| report.faults.values().map(|faults| faults.done).sum());
        let calls = |of: fn(&super::report::Calls) -> usize| move |report: &Report| report.calls.values().map(of).sum();
        let all = self.sum(calls(|calls| calls.done + calls.failed + calls.unknown));
        let answered = self.sum(calls(|calls| calls.done));
        let gap = self.most(|report| report.gaps_of_writes.first().map_or(0.0, |gap| gap.seconds));
        let quiet = self.most(|report| report.gaps_of_writes.iter().map(|gap| gap.quiet_seconds).fold(0.0, f64::max));
        let promotions = |of: fn(&Promotions) -> usize| self.sum(|report| report.promotions.as_ref().map_or(0, of));
        let (judged, asked) = (promotions(|all| all.judged), promotions(|all| all.asked));
        let never = self.reports.iter().any(|report| report.converged_seconds.is_none());
        let converged = self.most(|report| report.converged_seconds.unwrap_or(0.0));
        let converged = if never { "not always".to_owned() } else { format!("{converged:.0} s") };
        let broken: Vec<String> =
            self.reports.iter().filter(|report| !report.is_sound()).map(|report| told(report)).collect();
        let broken = if broken.is_empty() { "none".to_owned() } else { broken.join("; ") };
        let seeds = seeds.join(", ");
        format!(
            "| {version} | {seeds} | {minutes:.0} | {faults} | {all} | {answered} | {gap:.0} s | {quiet:.0} s \
             | {judged} of {asked} | {converged} | {broken} |"
        )
    }
}

/// Minutes in which one minor ran.
#[derive(Debug, Default)]
struct Minutes {
    under_faults: f64,
    quiet: f64,
    /// One or the other: their report does not tell them apart.
    either: f64,
}

/// The minutes of all runs by the minor that ran. Of runs whose report does not say it, it is unknown.
fn by_minor(reports: &[Report]) -> BTreeMap<&str, Minutes> {
    let mut all: BTreeMap<&str, Minutes> = BTreeMap::new();
    for report in reports {
        for (version, ran) in &report.versions {
            let minutes = all.entry(version.rsplit_once('.').map_or(version, |(minor, _)| minor)).or_default();
            minutes.under_faults += ran.fault_seconds / 60.0;
            minutes.quiet += ran.quiet_seconds / 60.0;
        }
        if report.versions.is_empty() {
            all.entry(UNKNOWN).or_default().either += report.fault_seconds / 60.0;
        }
    }
    all
}

/// What a run broke.
fn told(report: &Report) -> String {
    let checks: BTreeSet<String> = report.violations.iter().map(|violation| violation.check.to_string()).collect();
    format!("{}: {}", report.seed, checks.into_iter().collect::<Vec<_>>().join(", "))
}

/// The tables of all runs that were kept below this folder.
pub fn of_all(below: &Path) -> Result<String> {
    let folders = std::fs::read_dir(below).with_context(|| format!("no run was kept in {}", below.display()))?;
    let mut folders: Vec<PathBuf> = folders.map(|folder| Ok(folder?.path())).collect::<Result<_>>()?;
    folders.sort();
    let mut reports = Vec::new();
    for folder in folders {
        // One that was stopped half-way has none.
        if folder.join(REPORT).is_file() {
            reports.push(kept(&folder)?);
        }
    }
    reports.sort_by_key(|report| report.seed);
    Ok(tables(&reports))
}

fn tables(reports: &[Report]) -> String {
    let mut by_version: BTreeMap<String, Runs<'_>> = BTreeMap::new();
    for report in reports {
        by_version.entry(report.etcd()).or_default().reports.push(report);
    }
    let mut text =
        "| etcd at first | Seeds | Minutes of faults | Faults | Calls | Answered | Longest without a write | \
         Of such times the longest part without a fault | Promotions judged | Converged within | Broken |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for (version, runs) in &by_version {
        text.extend([runs.row(version), "\n".to_owned()]);
    }
    let kinds: BTreeSet<&str> = reports.iter().flat_map(|report| report.faults.keys().map(String::as_str)).collect();
    let versions: Vec<&str> = by_version.keys().map(String::as_str).collect();
    // Writing to a string can't fail.
    let _ = write!(
        text,
        "\n| Fault: dealt / done / left out / failed | {} |\n|---|{}\n",
        versions.join(" | "),
        "---|".repeat(versions.len())
    );
    for kind in kinds {
        let counts: Vec<String> = by_version.values().map(|runs| runs.faults(kind)).collect();
        let _ = writeln!(text, "| {kind} | {} |", counts.join(" | "));
    }
    text += "\n| etcd that ran | Minutes under faults | Quiet minutes | Minutes not told apart |\n|---|---|---|---|\n";
    for (minor, Minutes { under_faults, quiet, either }) in by_minor(reports) {
        let _ = writeln!(text, "| {minor} | {under_faults:.1} | {quiet:.1} | {either:.1} |");
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::check::{Check, Violation};
    use crate::chaos::report::Calls;
    use crate::chaos::versions::Ran;

    fn report(seed: u64, version: &str, violations: Vec<Violation>) -> Report {
        Report {
            seed,
            version: version.into(),
            stays: false,
            fault_seconds: 90.0,
            versions: [(version.into(), Ran { fault_seconds: 84.0, quiet_seconds: 6.0 })].into(),
            commit: "8535b60".into(),
            judge: Some(8),
            faults: [("scale".into(), Faults { done: 2, skipped: 1, failed: 3 })].into(),
            calls: [("put".into(), Calls { done: 10, failed: 1, unknown: 2 })].into(),
            keys: 1,
            watched_events: 0,
            operator_steps: BTreeMap::new(),
            promotions: None,
            gaps_of_writes: vec![],
            converged_seconds: Some(3.2),
            violations,
        }
    }

    #[test]
    fn runs_are_added_up_by_their_version() {
        let lost = Violation { check: Check::Kept, what: "a write".into() };
        let reports =
            [report(1, "3.5.35", vec![]), report(2, "3.5.35", vec![lost.clone(), lost]), report(3, "3.6.16", vec![])];
        let text = tables(&reports);
        for line in [
            "| 3.5.35 | 1, 2 | 3 | 4 | 26 | 20 | 0 s | 0 s | 0 of 0 | 3 s | 2: kept |",
            "| 3.6.16 | 3 | 2 | 2 | 13 | 10 | 0 s | 0 s | 0 of 0 | 3 s | none |",
            "| Fault: dealt / done / left out / failed | 3.5.35 | 3.6.16 |",
            "| scale | 12 / 4 / 2 / 6 | 6 / 2 / 1 / 3 |",
            "| 3.5 | 2.8 | 0.2 | 0.0 |",
            "| 3.6 | 1.4 | 0.1 | 0.0 |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn runs_that_stayed_are_told_apart() {
        let text = tables(&[report(1, "3.5.35", vec![]), Report { stays: true, ..report(2, "3.5.35", vec![]) }]);
        for line in [
            "| 3.5.35 | 1 | 2 | 2 | 13 | 10 | 0 s | 0 s | 0 of 0 | 3 s | none |",
            "| 3.5.35 throughout | 2 | 2 | 2 | 13 | 10 | 0 s | 0 s | 0 of 0 | 3 s | none |",
            "| Fault: dealt / done / left out / failed | 3.5.35 | 3.5.35 throughout |",
            "| scale | 6 / 2 / 1 / 3 | 6 / 2 / 1 / 3 |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn minutes_are_those_of_the_minor_that_ran() {
        let ran = |fault_seconds, quiet_seconds| Ran { fault_seconds, quiet_seconds };
        let went_up = [("3.6.16".to_owned(), ran(30.0, 0.0)), ("3.7.3".to_owned(), ran(48.0, 12.0))];
        let text = tables(&[
            Report { versions: went_up.into(), ..report(1, "3.6.16", vec![]) },
            Report { versions: BTreeMap::new(), ..report(2, "3.6.16", vec![]) },
            report(3, "3.7.2", vec![]),
        ]);
        let rows = "| 3.6 | 0.5 | 0.0 | 0.0 |\n| 3.7 | 2.2 | 0.3 | 0.0 |\n| unknown | 0.0 | 0.0 | 1.5 |";
        assert!(text.ends_with(rows), "{rows}\nis not in\n{text}");
    }

    /// The documentation counts what anybody can count again.
    #[test]
    fn the_tables_in_the_documentation_are_those_of_the_reports_beside_it() {
        let docs = crate::workspace::root().join("docs");
        let (told, counted) =
            (std::fs::read_to_string(docs.join("chaos.md")).unwrap(), of_all(&docs.join("chaos")).unwrap());
        assert!(told.contains(&counted), "docs/chaos.md lacks what `chaos --summary docs/chaos` shows:\n{counted}");
    }

    #[test]
    fn only_folders_with_a_report_count() {
        let below = tempfile::tempdir().unwrap();
        std::fs::create_dir(below.path().join("seed-1")).unwrap();
        assert!(!of_all(below.path()).unwrap().contains("seed"));
        std::fs::write(below.path().join("seed-1").join(REPORT), report(1, "3.7.3", vec![]).json().unwrap()).unwrap();
        assert!(of_all(below.path()).unwrap().contains("| 3.7.3 | 1 |"));
        assert!(of_all(&below.path().join("none")).is_err());
    }
}
