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
