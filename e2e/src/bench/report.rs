//! What was measured, as a table that also says what is within its reach, and as JSON. Only arithmetic and layout.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::reach::{Reach, Verdict, verdict};

/// The samples of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// What the same takes without an operator; empty where there is no such thing.
    pub floor: Vec<f64>,
    /// What it takes with it.
    pub value: Vec<f64>,
}

/// The least, the median and the most of some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// Half of them are no more.
    pub median: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let upper = sorted.get(middle).copied()?;
        let lower = sorted.get((sorted.len() - 1) / 2).copied()?;
        Some(Self { min: rounded(min), median: rounded(f64::midpoint(lower, upper)), max: rounded(max) })
    }
}

/// To milliseconds: what lies below is noise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of hundreds of thousands nobody reads the hundredths.
        let decimals = if self.max < 1_000.0 { 2 } else { 0 };
        let Self { min, median, max } = self;
        write!(f, "{min:.decimals$} / {median:.decimals$} / {max:.decimals$}")
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Line {
    name: String,
    unit: &'static str,
    floor: Option<Spread>,
    value: Option<Spread>,
    ratio: Option<f64>,
    n: usize,
    /// For the table; the file has what was measured, and nothing else.
    #[serde(skip)]
    reach: Option<Reach>,
}

impl Line {
    fn verdict(&self) -> Option<Verdict> {
        self.reach.map(|reach| verdict(reach, self.ratio, self.value))
    }
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Report {
    lines: Vec<Line>,
}

impl Report {
    /// Adds a row, with what it is to reach, if anything.
    pub fn add(&mut self, name: String, unit: &'static str, reach: Option<Reach>, measured: &Measured) {
        let Measured { floor, value } = measured;
        let (n, floor, value) = (value.len(), Spread::of(floor), Spread::of(value));
        let ratio = floor.zip(value).map(|(floor, value)| rounded(value.median / floor.median));
        self.lines.push(Line { name, unit, floor, value, ratio, n, reach });
    }

    /// How many rows are within their reach, and which are not.
    fn summary(&self) -> String {
        let judged = self.lines.iter().filter_map(|line| Some((line.name.as_str(), line.verdict()?)));
        let (met, missed): (Vec<_>, Vec<_>) = judged.partition(|(_, verdict)| *verdict == Verdict::Met);
        let said = format!("{} of {} rows with a reach are within it", met.len(), met.len() + missed.len());
        if missed.is_empty() {
            return said;
        }
        let names: Vec<_> = missed.into_iter().map(|(name, _)| name).collect();
        format!("{said}; missed: {}", names.join(", "))
    }

    /// Writes all rows as a JSON list.
    pub fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(path);
        std::fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        std::fs::write(path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("failed to write {}", path.display()))
    }
}

fn or_dash(shown: Option<impl fmt::Display>) -> String {
    shown.map_or_else(|| "-".to_owned(), |shown| shown.to_string())
}

/// The table, and after it the line that sums it up.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<30} {:<7} {:<24} {:<24} {:>6} {:>3}  {:<16} {:<3}",
            "", "unit", "floor min/median/max", "value min/median/max", "ratio", "n", "reach", "met"
        )?;
        for line in &self.lines {
            let Line { name, unit, floor, value, ratio, n, reach } = line;
            let (floor, value, reach) = (or_dash(*floor), or_dash(*value), or_dash(*reach));
            let ratio = or_dash(ratio.map(|ratio| format!("{ratio:.2}")));
            let met = or_dash(line.verdict().map(|verdict| match verdict {
                Verdict::Met => "yes",
                Verdict::Missed => "no",
            }));
            writeln!(f, "{name:<30} {unit:<7} {floor:<24} {value:<24} {ratio:>6} {n:>3}  {reach:<16} {met:<3}")?;
        }
        write!(f, "{}", self.summary())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_ratio_is_that_of_the_medians() {
        let mut report = Report::default();
        let measured = Measured { floor: vec![2.0, 1.0, 9.0], value: vec![3.0, 1.0, 2.0, 6.0] };
        report.add("x".into(), "s", None, &measured);
        report.add("y".into(), "MiB", None, &Measured { floor: vec![], value: vec![20.0] });
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json[0]["floor"], serde_json::json!({ "min": 1.0, "median": 2.0, "max": 9.0 }));
        assert_eq!(
            (&json[0]["value"]["median"], &json[0]["ratio"], &json[0]["n"]),
            (&2.5.into(), &1.25.into(), &4.into())
        );
        assert!(json[1]["floor"].is_null() && json[1]["ratio"].is_null());
        assert!(report.to_string().contains("1.00 / 2.50 / 6.00"));
    }

    /// Twice the floor.
    fn twice() -> Measured {
        Measured { floor: vec![1.0], value: vec![2.0] }
    }

    #[test]
    fn rows_that_miss_their_reach_are_named() {
        let mut report = Report::default();
        report.add("x".into(), "s", Some(Reach::RatioAtMost(2.0)), &twice());
        assert!(report.to_string().ends_with("\n1 of 1 rows with a reach are within it"));
        report.add("a".into(), "s", Some(Reach::RatioBelow(2.0)), &twice());
        report.add("-".into(), "s", None, &twice());
        report.add("b".into(), "s", Some(Reach::RatioAtMost(1.9)), &twice());
        let table = report.to_string();
        assert!(table.ends_with("\n1 of 3 rows with a reach are within it; missed: a, b"));
        let told: Vec<_> = table.lines().filter_map(|line| line.split_whitespace().next_back()).collect();
        assert_eq!(told, ["met", "yes", "no", "-", "no", "b"]);
    }

    #[test]
    fn the_file_has_only_what_was_measured() {
        let mut report = Report::default();
        report.add("x".into(), "s", Some(Reach::RatioAtMost(2.0)), &twice());
        let json = serde_json::to_value(&report).unwrap();
        let fields: BTreeSet<&str> = json[0].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, BTreeSet::from(["floor", "n", "name", "ratio", "unit", "value"]));
    }
}
