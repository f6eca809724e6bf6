//! What the command does where the cluster can be reached: makes or reads the schedule, runs it, keeps and shows what came
//! of it, and shrinks it if it failed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use quorate_crds::EtcdClusterSpec;
use serde::de::DeserializeOwned;

use super::check::{self, Check, Promotions, Violation};
use super::history::History;
use super::inject::Deed;
use super::report::{DEEDS, HISTORY, Report, SCHEDULE, keep};
use super::run::{Run, run};
use super::schedule::{Event, Schedule, Versions};
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
    /// The version of etcd; the operator's default when not given. A run that goes down begins with the last one.
    pub version: Option<String>,
    /// Where etcd's minor version goes.
    pub versions: Versions,
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
        let seed = self.seed.unwrap_or_else(fresh_seed);
        Ok(match self.versions {
            Versions::Up => Schedule::generate(seed, self.length, &version),
            Versions::Stay => Schedule::staying(seed, self.length, &version),
            Versions::Down => Schedule::going_down(seed, self.length),
        })
    }
}

/// Judges a run that was kept in this folder once more, by the checks of now. What is wrong with it, and how much it tells of
/// its promotions.
pub fn judge(folder: &Path) -> Result<(Vec<Violation>, Promotions)> {
    let schedule: Schedule = read(&folder.join(SCHEDULE))?;
    let deeds: Vec<Deed> = read(&folder.join(DEEDS))?;
    let history = History::read(&folder.join(HISTORY))?;
    let mut violations = check::check(&history);
    violations.extend(check::of_little_worth(&history, &schedule, &deeds));
    Ok((violations, check::promotions(&history)))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("failed to understand {}", path.display()))
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
    let whole = &failed.schedule;
    shortest(whole, &worth_finding(broken(&failed.violations)), TRIES, async |shorter: &Schedule| {
        progress.line(format_args!("tries {} of {} faults", shorter.events.len(), whole.events.len()));
        match Box::pin(play_once(shorter, progress)).await {
            Ok(run) => Ok(broken(&run.violations)),
            Err(error) => {
                progress.line(format_args!("that could not be played, and counts as sound: {error:#}"));
                Ok(BTreeSet::new())
            }
        }
    })
    .await
}

/// The promises whose breach is looked for in shorter schedules: that a run says little follows from others, and the shorter one
/// is the less it says.
fn worth_finding(mut broken: BTreeSet<Check>) -> BTreeSet<Check> {
    if broken.len() > 1 {
        broken.remove(&Check::Complete);
    }
    broken
}

/// The promises that were broken.
fn broken(violations: &[Violation]) -> BTreeSet<Check> {
    violations.iter().map(|violation| violation.check).collect()
}

/// The shortest part of a schedule found within `most` tries that breaks one of these promises; `play` says which a part
/// breaks. Each is played once: one that breaks them only now and then is taken for sound when it does not, so that more
/// faults may be left than are needed, but what is left did break one.
async fn shortest(
    whole: &Schedule,
    promises: &BTreeSet<Check>,
    most: usize,
    mut play: impl AsyncFnMut(&Schedule) -> Result<BTreeSet<Check>>,
) -> Result<Schedule> {
    ensure!(!whole.events.is_empty(), "it failed without any fault");
    let events = shrink(whole.events.clone(), most, async |events: &[Event]| {
        let shorter = whole.with_only(events.to_vec());
        Ok(!play(&shorter).await?.is_disjoint(promises))
    });
    Ok(whole.with_only(events.await?))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Three minutes of faults, and two of them that are to be needed.
    fn planted() -> (Schedule, [Event; 2]) {
        let whole = Schedule::staying(1, Duration::from_mins(3), "3.6.16");
        let needed = [whole.events[11].clone(), whole.events[37].clone()];
        (whole, needed)
    }

    /// What is left of a schedule that broke `Kept` and `Order`.
    fn found(whole: &Schedule, most: usize, mut play: impl FnMut(&Schedule) -> BTreeSet<Check>) -> Schedule {
        let promises = BTreeSet::from([Check::Kept, Check::Order]);
        let search = shortest(whole, &promises, most, async |shorter: &Schedule| Ok(play(shorter)));
        // Nothing is run, so that no try ever waits.
        search.now_or_never().unwrap().unwrap()
    }

    fn has(schedule: &Schedule, needed: &[Event]) -> bool {
        needed.iter().all(|event| schedule.events.contains(event))
    }

    #[test]
    fn that_a_run_says_little_is_looked_for_only_if_that_is_all() {
        assert_eq!(worth_finding([Check::Complete].into()), [Check::Complete].into());
        assert_eq!(worth_finding([Check::Converged, Check::Complete].into()), [Check::Converged].into());
    }

    #[test]
    fn a_failure_that_needs_two_faults_is_shrunk_to_these() {
        let (whole, needed) = planted();
        let left = found(&whole, usize::MAX, |shorter| {
            // What else it breaks is another failure.
            let broken = [Some(Check::Converged), has(shorter, &needed).then_some(Check::Kept)];
            broken.into_iter().flatten().collect()
        });
        assert_eq!(left, whole.with_only(needed.to_vec()));
    }

    #[test]
    fn a_failure_that_comes_every_second_time_ends_with_one_that_came() {
        let (whole, needed) = planted();
        let (mut times, mut failed) = (0, Vec::new());
        let left = found(&whole, usize::MAX, |shorter| {
            times += 1;
            if !has(shorter, &needed) || times % 2 == 1 {
                return BTreeSet::new();
            }
            failed.push(shorter.clone());
            BTreeSet::from([Check::Order])
        });
        assert_eq!(failed.last(), Some(&left));
        assert!(failed.iter().all(|shorter| shorter.stays && shorter.events.len() < whole.events.len()));
    }

    #[test]
    fn what_never_fails_again_is_left_whole_and_the_tries_are_counted() {
        let (whole, _) = planted();
        let mut times = 0;
        let left = found(&whole, 7, |_| {
            times += 1;
            BTreeSet::from([Check::Converged])
        });
        assert_eq!((left.events, times), (whole.events, 7));
    }

    #[test]
    fn what_can_not_be_played_ends_the_search() {
        let (whole, _) = planted();
        let promises = BTreeSet::from([Check::Kept]);
        let refusal = |schedule: &Schedule| {
            let search = shortest(schedule, &promises, 7, async |_: &Schedule| Err(anyhow!("no cluster")));
            search.now_or_never().unwrap().unwrap_err().to_string()
        };
        assert_eq!(refusal(&whole), "no cluster");
        assert_eq!(refusal(&whole.with_only(vec![])), "it failed without any fault");
    }
}
