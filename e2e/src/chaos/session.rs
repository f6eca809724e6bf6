//! What the command does where the cluster can be reached: makes or reads the schedule, runs it, keeps and shows what came
//! of it, and shrinks it if it failed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use quorate_crds::EtcdClusterSpec;

use super::check::{Check, Violation};
use super::report::{Report, keep};
use super::run::{Run, run};
use super::schedule::Schedule;
use super::shrink::shrink;
use crate::progress::Progress;
use crate::scene::Scene;
use crate::workspace;

/// How many shorter schedules are tried: each takes as long as it lasts, and then some. Enough to go from fifty faults
/// to three.
const TRIES: usize = 40;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Session {
    /// The seed; one by chance when not given.
    pub seed: Option<u64>,
    /// How long faults are made.
    pub length: Duration,
    /// The version of etcd; the operator's default when not given.
    pub version: Option<String>,
    /// A file with a schedule, instead of one from a seed.
    pub replay: Option<PathBuf>,
    /// Shrink a schedule that fails.
    pub shrink: bool,
    /// Show JSON instead of a table.
    pub json: bool,
}

/// A seed by chance, for those who want another run each time.
pub fn fresh_seed() -> u64 {
    // Six digits are enough to tell runs apart, and easy to say.
    fastrand::u64(..1_000_000)
}

impl Session {
    /// Does it. Whether all was sound.
    pub async fn play(&self) -> Result<bool> {
        let progress = Progress::new();
        let schedule = self.schedule()?;
        let run = play_once(&schedule, &progress).await?;
        let folder = keep(&run, &workspace::cache().join("chaos"))?;
        let report = Report::of(&run);
        if self.json {
            println!("{}", report.json()?);
        } else {
            println!("{report}");
        }
        progress.line(format_args!("everything is in {}", folder.display()));
        if !report.is_sound() && self.shrink {
            let shorter = Box::pin(shortened(&run, &progress)).await?;
            let path = folder.join("shrunk.json");
            std::fs::write(&path, serde_json::to_string_pretty(&shorter)?).context("failed to write the schedule")?;
            progress.line(format_args!(
                "{} faults are left; replay them from {}",
                shorter.events.len(),
                path.display()
            ));
            shorter.events.iter().for_each(|event| progress.line(format_args!("  {} ms: {}", event.at, event.fault)));
        }
        Ok(report.is_sound())
    }

    fn schedule(&self) -> Result<Schedule> {
        if let Some(path) = &self.replay {
            return read(path);
        }
        let version = self.version.clone().unwrap_or_else(|| EtcdClusterSpec::default().version);
        Ok(Schedule::generate(self.seed.unwrap_or_else(fresh_seed), self.length, &version))
    }
}

fn read(path: &Path) -> Result<Schedule> {
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} holds no schedule", path.display()))
}

/// One run in a scene of its own. What is wrong with it is dumped before the scene is closed.
async fn play_once(schedule: &Schedule, progress: &Progress) -> Result<Run> {
    let scene = Scene::open(&format!("chaos-{}", schedule.seed)).await?;
    let run = Box::pin(run(&scene, schedule, progress)).await;
    let trouble = match &run {
        Ok(run) => run.violations.first().map(|violation| anyhow!("{violation}")),
        Err(error) => Some(anyhow!("{error:#}")),
    };
    if let Some(error) = trouble {
        progress.line(scene.dump(&error).await);
    }
    match (run, scene.close().await) {
        (Ok(mut run), Err(error)) => {
            let what = format!("its end took too long: {error:#}");
            run.violations.push(Violation { check: Check::Converged, what });
            Ok(run)
        }
        (run, _) => run,
    }
}

/// The shortest schedule found that breaks one of the same promises.
async fn shortened(failed: &Run, progress: &Progress) -> Result<Schedule> {
    let broken: BTreeSet<Check> = failed.violations.iter().map(|violation| violation.check).collect();
    let whole = &failed.schedule;
    ensure!(!whole.events.is_empty(), "it failed without any fault");
    let events = shrink(whole.events.clone(), TRIES, async |events| {
        let shorter = whole.with_only(events.to_vec());
        progress.line(format_args!("tries {} of {} faults", events.len(), whole.events.len()));
        let run = play_once(&shorter, progress).await?;
        Ok(run.violations.iter().any(|violation| broken.contains(&violation.check)))
    });
    Ok(whole.with_only(events.await?))
}
