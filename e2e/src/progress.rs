//! Shows what is being done and for how long: spinners on a terminal, plain lines elsewhere. Decides nothing.

use std::fmt::Display;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// How often a spinner turns: smooth, at no cost.
const TICK: Duration = Duration::from_millis(100);
/// How often a long step says where it is when there is no terminal: often enough that a log shows it is alive.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// The progress of one run.
#[derive(Debug, Clone)]
pub struct Progress {
    bars: MultiProgress,
    terminal: bool,
}

impl Progress {
    /// Progress on standard error.
    pub fn new() -> Self {
        let bars = MultiProgress::new();
        let terminal = !bars.is_hidden();
        Self { bars, terminal }
    }

    /// Begins a step called `what`.
    pub fn step(&self, what: impl Display) -> Step {
        let bar = self.terminal.then(|| {
            let style = ProgressStyle::with_template("{spinner} {prefix:.bold} {wide_msg:.dim} {elapsed:.dim}");
            let bar = self.bars.add(ProgressBar::new_spinner());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.set_prefix(what.to_string());
            bar.enable_steady_tick(TICK);
            bar
        });
        let now = Instant::now();
        Step { progress: self.clone(), what: what.to_string(), bar, started: now, last_line: now }
    }

    /// A line that stays.
    pub fn line(&self, text: impl Display) {
        if self.terminal {
            // A line that can't be shown is no reason to stop.
            let _ = self.bars.println(text.to_string());
        } else {
            eprintln!("{text}");
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

/// A step that is being done.
#[derive(Debug)]
pub struct Step {
    progress: Progress,
    what: String,
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
}

impl Step {
    /// Says where the step is now.
    pub fn note(&mut self, text: impl Display) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_string());
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            self.progress.line(format_args!("  {}: {text} ({} s)", self.what, self.started.elapsed().as_secs()));
        }
    }

    /// Ends the step with what came of it.
    pub fn done(self, result: impl Display) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.progress.line(format_args!("✔ {}: {result} ({:.1} s)", self.what, self.started.elapsed().as_secs_f64()));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
