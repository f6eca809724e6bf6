//! The agent as a process, and how much memory it took.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How it ended.
pub struct Ended {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
    /// The most anonymous memory it was seen to have, in KiB.
    pub most_rss_anon: u64,
}

impl Ended {
    /// Its JSON, if it was a success.
    pub fn json(&self) -> serde_json::Value {
        assert!(self.success, "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    /// What it complained of.
    pub fn error(&self) -> &str {
        assert!(!self.success, "{}", self.stdout);
        &self.stderr
    }
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_quorate-agent");

/// A command of the agent.
pub fn command(arguments: &[&str]) -> Command {
    with_pipes(Command::new(PROGRAM), arguments)
}

fn with_pipes(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end.
pub fn run(arguments: &[&str]) -> Ended {
    ended(command(arguments))
}

/// The same where no file may have more than so many blocks of 512 bytes: to write more fails, as on a disk that is full.
pub fn run_in_little_room(blocks: u64, arguments: &[&str]) -> Ended {
    // Of the signal that comes with it the agent would die. One that is ignored stays so beyond `exec`.
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script, "sh", PROGRAM]);
    ended(with_pipes(shell, arguments))
}

fn ended(mut command: Command) -> Ended {
    let child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let (done, ended) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        let mut most = 0;
        // The kernel keeps no high-water mark of anonymous memory alone, so it is looked at every few milliseconds.
        while ended.recv_timeout(Duration::from_millis(5)) == Err(mpsc::RecvTimeoutError::Timeout) {
            most = most.max(rss_anon(Path::new(&status)).unwrap_or(0));
        }
        most
    });
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    drop(done);
    Ended {
        success: status.success(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
        most_rss_anon: watcher.join().unwrap(),
    }
}

fn rss_anon(status: &Path) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.trim().strip_suffix(" kB")?.trim().parse().ok()
}
