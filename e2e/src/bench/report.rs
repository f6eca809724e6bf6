//! What was measured, as a table and as JSON. Only arithmetic and layout.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

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
struct Spread {
    min: f64,
    median: f64,
    max: f64,
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
        write!(f, "{:.2} / {:.2} / {:.2}", self.min, self.median, self.max)
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
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Report {
    lines: Vec<Line>,
}

impl Report {
    /// Adds a row.
    pub fn add(&mut self, name: String, unit: &'static str, measured: &Measured) {
        let Measured { floor, value } = measured;
        let (n, floor, value) = (value.len(), Spread::of(floor), Spread::of(value));
        let ratio = floor.zip(value).map(|(floor, value)| rounded(value.median / floor.median));
        self.lines.push(Line { name, unit, floor, value, ratio, n });
    }

    /// Writes all rows as a JSON list.
    pub fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(path);
        std::fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        std::fs::write(path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("failed to write {}", path.display()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_dash = |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |spread| spread.to_string());
        writeln!(
            f,
            "{:<30} {:<7} {:<24} {:<24} {:>6} {:>3}",
            "", "unit", "floor min/median/max", "value min/median/max", "ratio", "n"
        )?;
        for line in &self.lines {
            let Line { name, unit, floor, value, ratio, n } = line;
            let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            writeln!(f, "{name:<30} {unit:<7} {:<24} {:<24} {ratio:>6} {n:>3}", or_dash(*floor), or_dash(*value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_the_medians() {
        let mut report = Report::default();
        let measured = Measured { floor: vec![2.0, 1.0, 9.0], value: vec![3.0, 1.0, 2.0, 6.0] };
        report.add("x".into(), "s", &measured);
        report.add("y".into(), "MiB", &Measured { floor: vec![], value: vec![20.0] });
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json[0]["floor"], serde_json::json!({ "min": 1.0, "median": 2.0, "max": 9.0 }));
        assert_eq!(
            (&json[0]["value"]["median"], &json[0]["ratio"], &json[0]["n"]),
            (&2.5.into(), &1.25.into(), &4.into())
        );
        assert!(json[1]["floor"].is_null() && json[1]["ratio"].is_null());
        assert!(report.to_string().contains("1.00 / 2.50 / 6.00"));
    }
}
