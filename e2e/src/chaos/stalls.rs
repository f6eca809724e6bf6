//! How long the machine stood still: a thread that writes a few bytes to the disk and sleeps, again and again, and adds up
//! by how much that took longer than it should. It knows nothing of what runs beside it, and judges nothing.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// In microseconds, of rounds that have ended.
    stood_still: AtomicU64,
    /// When the round began that is under way.
    round: Mutex<Instant>,
}

impl State {
    fn begins(&self) {
        *self.round.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// By how much the round that is under way takes too long by now.
    fn under_way(&self) -> Duration {
        excess(self.round.lock().unwrap_or_else(PoisonError::into_inner).elapsed())
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
        let (over, stood_still) = (AtomicBool::new(false), AtomicU64::new(0));
        let state = Arc::new(State { over, stood_still, round: Mutex::new(Instant::now()) });
        let watching = state.clone();
        std::thread::spawn(move || {
            while !watching.over.load(Ordering::Relaxed) {
                watching.begins();
                let started = Instant::now();
                if touch(&mut file).is_err() {
                    // A disk that can't be written to is somebody else's trouble, and no stall.
                    return;
                }
                std::thread::sleep(PAUSE);
                let micros = u64::try_from(excess(started.elapsed()).as_micros()).unwrap_or(u64::MAX);
                watching.begins();
                watching.stood_still.fetch_add(micros, Ordering::Relaxed);
            }
        });
        Ok(Self { state })
    }

    /// For how long the machine has stood still since, in all.
    pub fn so_far(&self) -> Duration {
        Duration::from_micros(self.state.stood_still.load(Ordering::Relaxed)) + self.state.under_way()
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
        let began = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        let state = State { over: AtomicBool::new(false), stood_still: AtomicU64::new(0), round: Mutex::new(began) };
        let state = Arc::new(state);
        let stalls = Stalls { state: state.clone() };
        assert!(stalls.so_far() >= Duration::from_secs(6), "{:?}", stalls.so_far());
        state.begins();
        assert_eq!(stalls.so_far(), Duration::ZERO);
    }
}
