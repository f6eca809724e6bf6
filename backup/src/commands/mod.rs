//! The commands for backups: their arguments, what they print, and how far they are. What they do is the library's.

pub mod archive;
mod arguments;
mod choose;
pub mod copy;
pub mod delete;
pub mod list;
mod print;
pub mod prune;
pub mod restore;
pub mod seed;
pub mod snapshot;
pub mod verify;

use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use quorate_backup::store::taken_back;
use tokio::runtime::Builder;

/// How long a command that ends waits until uploads that were given up are taken back: for their parts on the way, and for a
/// request or two.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(10);

/// Runs a command to its end, or until SIGINT or SIGTERM: then what it was doing is dropped, and cleans up after itself, but for
/// what a thread of its own holds: that stays for the next one to clear away.
fn run<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    on_threads(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
        let ended = tokio::select! {
            result = command => result,
            _ = terminate.recv() => Err(anyhow::anyhow!("ended by SIGTERM")),
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("ended by SIGINT")),
        };
        taken_back(TAKEN_BACK_WITHIN).await;
        ended
    })
}

/// Runs this to its end, and then waits for nothing. What computes or waits for a disk in a thread of its own can't be dropped:
/// it ends with the process.
fn on_threads<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Builder::new_multi_thread().enable_all().build().context("failed to start threads")?;
    let ended = runtime.block_on(command);
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command};
    use std::sync::mpsc;
    use std::time::Instant;

    use tokio::task::spawn_blocking;

    use super::*;

    #[test]
    fn what_is_told_to_stop_does_not_wait_for_a_thread_that_hangs() {
        const HANGS: Duration = Duration::from_mins(1);
        let begun = Instant::now();
        let (_never, hangs) = mpsc::channel::<()>();
        let ended = run(async move {
            let hanging = spawn_blocking(move || hangs.recv_timeout(HANGS));
            assert!(Command::new("kill").args(["-TERM", &process::id().to_string()]).status()?.success());
            hanging.await??;
            Ok(())
        });
        assert_eq!(ended.unwrap_err().to_string(), "ended by SIGTERM");
        assert!(begun.elapsed() < HANGS / 2);
    }
}
