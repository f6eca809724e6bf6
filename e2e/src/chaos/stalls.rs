//! How long the machine stood still: a thread that writes a few bytes to the disk and sleeps, again and again, and adds up
//! by how much that took longer than it should. It knows nothing of what runs beside it, and judges nothing.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// How long it sleeps between two writes: an fsync twice a second is nothing beside what a cluster of etcd makes.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a write and a sleep may take beyond that before the machine counts as standing still: some ten times what a
/// loaded machine with a slow disk takes.
const TOLERATED: Duration = Duration::from_secs(1);

/// A watch over the machine, until it is dropped.
#[derive(Debug)]
pub struct Stalls {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    over: AtomicBool,
    count: Mutex<Count>,
}

impl State {
    /// The first round begins at that moment.
    fn new(began: Instant) -> Self {
        let count = Count { stood_still: Duration::ZERO, round: Some(began) };
        Self { over: AtomicBool::new(false), count: Mutex::new(count) }
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes round after round until it is over.
    fn watch(&self, mut touch: impl FnMut() -> std::io::Result<()>) {
        while !self.over.load(Ordering::Relaxed) {
            if touch().is_err() {
                // A disk that can't be written to is somebody else's trouble, and no stall.
                self.count().ends();
                return;
            }
            std::thread::sleep(PAUSE);
            self.count().goes_on();
        }
    }
}

#[derive(Debug)]
struct Count {
    /// In rounds that have ended.
    stood_still: Duration,
    /// When the round began that is under way. None when there will be no more: what comes then is not counted.
    round: Option<Instant>,
}

impl Count {
    /// That of the round that is under way is counted while it lasts.
    fn so_far(&self) -> Duration {
        self.stood_still + self.round.map_or(Duration::ZERO, |began| excess(began.elapsed()))
    }

    fn goes_on(&mut self) {
        self.stood_still = self.so_far();
        self.round = Some(Instant::now());
    }

    fn ends(&mut self) {
        self.stood_still = self.so_far();
        self.round = None;
    }
}

/// By how much a round took too long.
fn excess(round: Duration) -> Duration {
    let beyond = round.saturating_sub(PAUSE);
    if beyond > TOLERATED { beyond } else { Duration::ZERO }
}

impl Stalls {
    /// Begins to watch, by a file in this folder that nobody sees.
    pub fn watch(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        let mut file = tempfile::tempfile_in(folder).context("failed to create a file to watch the disk by")?;
        let state = Arc::new(State::new(Instant::now()));
        let watching = state.clone();
        std::thread::spawn(move || watching.watch(|| touch(&mut file)));
        Ok(Self { state })
    }

    /// For how long the machine has stood still since, in all.
    pub fn so_far(&self) -> Duration {
        self.state.count().so_far()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
    }
}

fn touch(file: &mut File) -> std::io::Result<()> {
    file.rewind()?;
    file.write_all(b"chaos")?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_far_beyond_a_slow_disk_is_a_stall() {
        assert_eq!(excess(Duration::ZERO), Duration::ZERO);
        assert_eq!(excess(PAUSE + TOLERATED), Duration::ZERO);
        assert_eq!(excess(PAUSE + Duration::from_secs(5)), Duration::from_secs(5));
    }

    #[test]
    fn a_round_that_does_not_end_counts_while_it_lasts() {
        let stalls = Stalls { state: Arc::new(seven_seconds_ago()) };
        assert!(stalls.so_far() >= Duration::from_secs(6), "{:?}", stalls.so_far());
    }

    #[test]
    fn a_round_that_has_ended_stays_counted() {
        let state = seven_seconds_ago();
        state.count().goes_on();
        assert!(state.count().stood_still >= Duration::from_secs(6), "{state:?}");
        assert!(state.count().round.is_some_and(|began| began.elapsed() < Duration::from_secs(6)), "{state:?}");
    }

    /// Else all time that comes would be one stall, and nobody who waits would ever be told to give up.
    #[test]
    fn a_disk_that_refuses_ends_the_count() {
        let state = seven_seconds_ago();
        state.watch(|| Err(std::io::ErrorKind::StorageFull.into()));
        assert!(state.count().round.is_none(), "{state:?}");
        assert!(state.count().so_far() >= Duration::from_secs(6), "{state:?}");
    }

    fn seven_seconds_ago() -> State {
        State::new(Instant::now().checked_sub(Duration::from_secs(7)).unwrap())
    }
}
