//! The agent as a process, and how much memory it took.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How it ended.
pub struct Ended {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
    /// The most anonymous memory it was seen to have with its children, in KiB.
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
    ended(in_little_room(blocks, arguments))
}

/// A command of the agent there.
pub fn in_little_room(blocks: u64, arguments: &[&str]) -> Command {
    // Of the signal that comes with it the agent would die. One that is ignored stays so beyond `exec`.
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script, "sh", PROGRAM]);
    with_pipes(shell, arguments)
}

/// A command of a process that dies when it writes more than so many blocks of 512 bytes to a file: in the middle of its work,
/// by a signal, as one that is killed.
pub fn dying_at(blocks: u64, agent: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    let script = format!("ulimit -c 0; ulimit -f {blocks}; exec \"$@\"");
    shell.args(["-c", &script, "sh"]).arg(agent.get_program()).args(agent.get_args());
    with_pipes(shell, &[])
}

fn ended(mut command: Command) -> Ended {
    let child = command.spawn().unwrap();
    let memory = Memory::of(child.id());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    Ended {
        success: status.success(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
        most_rss_anon: memory.most(),
    }
}

/// Looks at the anonymous memory that a process has with its children, until somebody asks for the most of it.
pub struct Memory {
    done: mpsc::Sender<()>,
    watcher: JoinHandle<u64>,
}

impl Memory {
    pub fn of(process: u32) -> Self {
        let (done, ended) = mpsc::channel::<()>();
        let watcher = thread::spawn(move || {
            let mut most = 0;
            // The kernel keeps no high-water mark of anonymous memory alone, so it is looked at every few milliseconds.
            while ended.recv_timeout(Duration::from_millis(5)) == Err(mpsc::RecvTimeoutError::Timeout) {
                most = most.max(with_children(process));
            }
            most
        });
        Self { done, watcher }
    }

    /// In KiB.
    pub fn most(self) -> u64 {
        let Self { done, watcher } = self;
        drop(done);
        watcher.join().unwrap()
    }
}

/// The anonymous memory of a process and its children, in KiB. Their numbers are higher than its own, as long as the kernel
/// does not begin anew with the lowest. One that is not yet another program has the same memory, not as much more.
fn with_children(process: u32) -> u64 {
    let status = |process: u32| fs::read_to_string(format!("/proc/{process}/status")).ok();
    let program = |process: u32| fs::read_link(format!("/proc/{process}/exe")).ok();
    let own = program(process);
    let parent = format!("PPid:\t{process}");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let later =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|one| *one > process);
    let children = later.filter(|one| program(*one) != own).filter_map(status);
    let children = children.filter(|text| text.lines().any(|line| line == parent));
    status(process).into_iter().chain(children).filter_map(|text| rss_anon(&text)).sum()
}

fn rss_anon(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.trim().strip_suffix(" kB")?.trim().parse().ok()
}
