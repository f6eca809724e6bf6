//! Runs programs and says how long they took and how much memory was theirs. It knows nothing of what they do.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

use crate::command::Command;

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(5);
const KIB_PER_MIB: f64 = 1024.0;

/// What a program came to.
#[derive(Debug)]
pub struct Ended {
    /// In seconds.
    pub seconds: f64,
    /// The most anonymous memory that it had, in MiB.
    pub memory: f64,
    /// What it printed.
    pub printed: String,
    /// What it told besides.
    pub told: String,
}

/// Waits until everything is on the disk, so that nobody pays for what was written before.
pub async fn settle() -> Result<()> {
    Ok(Command::new("sync").run().await.map(drop)?)
}

/// Sends a signal to a process.
fn signal(process: u32, signal: Signal) -> Result<()> {
    let process = Pid::from_raw(process.cast_signed()).context("no process")?;
    kill_process(process, signal).with_context(|| format!("failed to signal process {process:?}"))
}

/// Runs a program to its end.
pub async fn run(command: &Command) -> Result<Ended> {
    settle().await?;
    let started = Instant::now();
    let running = Running::start(command)?;
    running.ended(started).await
}

/// Runs programs one after the other; the seconds of all.
pub async fn run_all(commands: &[Command]) -> Result<f64> {
    settle().await?;
    let started = Instant::now();
    for command in commands {
        command.run().await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    line: String,
}

impl Running {
    /// Starts it. It is killed when it is dropped.
    pub fn start(command: &Command) -> Result<Self> {
        let mut started = tokio::process::Command::from(command.to_std());
        started.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let child = started.spawn().with_context(|| format!("failed to start `{command}`"))?;
        Ok(Self { child, line: command.to_string() })
    }

    /// Asks it to end, and waits until it has.
    pub async fn terminate(self) -> Result<Ended> {
        signal(self.child.id().context("it has ended")?, Signal::TERM)?;
        self.ended(Instant::now()).await
    }

    /// The most anonymous memory that it has until something else is done, in MiB.
    pub async fn memory_until(&self, done: impl Future<Output = Result<()>>) -> Result<f64> {
        let (done, memory) = watched(self.child.id(), done).await;
        done.map(|()| memory)
    }

    async fn ended(self, started: Instant) -> Result<Ended> {
        let Self { child, line } = self;
        let (output, memory) = watched(child.id(), child.wait_with_output()).await;
        let output = output?;
        let seconds = started.elapsed().as_secs_f64();
        let [printed, told] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "`{line}` failed ({}): {told}", output.status);
        Ok(Ended { seconds, memory, printed, told })
    }
}

/// What something comes to, and the most anonymous memory that a process has meanwhile, in MiB.
async fn watched<T>(process: Option<u32>, done: impl Future<Output = T>) -> (T, f64) {
    tokio::pin!(done);
    let mut memory = 0.0_f64;
    loop {
        tokio::select! {
            done = &mut done => return (done, memory),
            () = tokio::time::sleep(LOOK) => memory = memory.max(process.and_then(anonymous).unwrap_or_default()),
        }
    }
}

/// What a process and those that it has started have for themselves, without the pages of files, which the kernel takes back
/// when it needs them.
fn anonymous(process: u32) -> Option<f64> {
    let own = in_mib(&std::fs::read_to_string(format!("/proc/{process}/status")).ok()?)?;
    Some(own + children(process).into_iter().filter_map(anonymous).sum::<f64>())
}

/// Whom a process has started, by any of its threads. Until such a one becomes another program, its memory is the very same.
fn children(process: u32) -> Vec<u32> {
    let program = |process: u32| std::fs::read_link(format!("/proc/{process}/exe")).ok();
    let own = program(process);
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let started = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let all = started.flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>());
    all.filter(|child| program(*child) != own).collect()
}

fn in_mib(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? / KIB_PER_MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_mib() {
        assert_eq!(in_mib("Name:\tx\nRssAnon:\t    2048 kB\nRssFile:\t 1 kB\n"), Some(2.0));
        assert_eq!(in_mib("Name:\tx\n"), None);
    }

    #[tokio::test]
    async fn what_a_program_has_started_counts_as_its_own() {
        let running = Running::start(&Command::new("sh").args(["-c", "sleep 20; true"])).unwrap();
        let process = running.child.id().unwrap();
        crate::scene::wait_for("the child", crate::scene::PATIENCE, async || {
            ensure!(children(process).len() == 1, "it has none");
            Ok(())
        })
        .await
        .unwrap();
        let alone = in_mib(&std::fs::read_to_string(format!("/proc/{process}/status")).unwrap()).unwrap();
        assert!(anonymous(process).unwrap() > alone);
    }

    #[tokio::test]
    async fn a_program_that_fails_says_what_it_said() {
        let error = run(&Command::new("sh").args(["-c", "echo wrong >&2; exit 2"])).await.unwrap_err().to_string();
        assert!(error.contains("wrong"), "{error}");
        let ended = run(&Command::new("echo").arg("well")).await.unwrap();
        assert_eq!(ended.printed, "well\n");
    }
}
