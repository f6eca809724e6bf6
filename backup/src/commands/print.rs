//! How commands show their results: text for people, JSON for programs. Progress goes to the terminal, if there is one.

use std::io::{self, Write};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// The form of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs: one JSON document.
    Json,
}

/// Writes to standard output. A reader that went away (`| head`) is no error.
pub fn out(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Shows a result in the wanted form.
pub fn show(output: Output, result: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    match output {
        Output::Text => out(&text()),
        Output::Json => out(&serde_json::to_string_pretty(result)?),
    }
}

/// A bar that counts bytes, on the terminal only.
pub fn bytes_bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::no_length().with_message(what);
    let style = "{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A size as people read it.
pub fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// A time span as people read it.
pub fn span(duration: std::time::Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// A bar that counts, on the terminal only.
pub fn count_bar(what: &str) -> ProgressBar {
    ProgressBar::no_length().with_style(count_style(what))
}

/// Shows on a bar how much is done, of all.
pub fn set(bar: &ProgressBar, done: u64, total: u64) {
    bar.set_length(total);
    bar.set_position(done);
}

/// How a bar looks that counts.
pub fn count_style(what: &str) -> ProgressStyle {
    let style = format!("{what} {{bar:30}} {{pos}} of {{len}}, {{eta}} left");
    ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A moment as people read it: to the second.
pub fn time(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Columns that are as wide as their widest cell, as kubectl prints them.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        // The last cell of a short row says why it is short, and reaches over the others.
        let cells = rows.iter().filter(|row| row.len() == headings.len()).filter_map(|row| row.get(column));
        cells.map(String::len).chain(headings.get(column).map(|heading| heading.len())).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..headings.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<_> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("   ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut headings.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn a_table_is_aligned_and_a_short_row_does_not_widen_it() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        let rows = [row(&["a", "1", "x"]), row(&["bcd", "the whole of it is gone"])];
        let wanted = "NAME   N   STATE\na      1   x\nbcd    the whole of it is gone";
        assert_eq!(table(&["NAME", "N", "STATE"], &rows), wanted);
    }
}
