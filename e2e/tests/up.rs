//! `up` is killed half-way, `down` too, and all of a lab at once as by a power cut: the next `up` is clean. A lab of its own;
//! must not touch any other.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::lab::{Cgroup, Signal};

/// The lab that is torn.
const LAB: &str = "torn";
/// At how many moments of one `up` it is killed.
const MOMENTS: u32 = 6;
/// The longest that a command may take.
const PATIENCE: Duration = Duration::from_mins(3);
/// How often to look whether a command has ended.
const POLL: Duration = Duration::from_millis(20);

/// A command on the lab that runs. Killed when it is dropped.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str]) -> Result<Self> {
        let child = Command::new(env!("CARGO_BIN_EXE_quorate-e2e"))
            .args(["--lab", LAB, "--provider", "local"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start quorate-e2e")?;
        Ok(Self(child))
    }

    /// How it ended, if it has by then.
    fn ends_by(&mut self, deadline: Instant) -> Result<Option<ExitStatus>> {
        loop {
            match self.0.try_wait().context("failed to wait for quorate-e2e")? {
                Some(status) => return Ok(Some(status)),
                None if Instant::now() >= deadline => return Ok(None),
                None => thread::sleep(POLL),
            }
        }
    }

    /// Kills it after a time. Says whether it had not ended by then.
    fn killed_after(mut self, time: Duration) -> Result<bool> {
        if self.ends_by(Instant::now() + time)?.is_some() {
            return self.succeeds().map(|()| false);
        }
        self.0.kill().context("failed to kill it")?;
        self.0.wait().context("failed to wait for its end")?;
        Ok(true)
    }

    fn succeeds(mut self) -> Result<()> {
        let ended = self.ends_by(Instant::now() + PATIENCE)?;
        let status = ended.context("it takes longer than it may")?;
        let mut said = String::new();
        self.0.stderr.take().context("it has no stderr")?.read_to_string(&mut said).context("failed to read it")?;
        ensure!(status.success(), "it ended with {status}: {said}");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended can't be killed, and needn't.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    Running::start(arguments)?.succeeds().with_context(|| format!("quorate-e2e {}", arguments.join(" ")))
}

/// The lab is brought up, and all of it works: `status` fails when a part is missing, and a pod's image must be there.
fn comes_up() -> Result<()> {
    run(&["up", "--nodes", "1"])?;
    run(&["status"])?;
    run(&["kubectl", "--", "wait", "--for=condition=Ready", "node", "--all", "--timeout=60s"])
}

/// Takes the lab down when the test ends, however it ends.
struct Gone;

impl Drop for Gone {
    fn drop(&mut self) {
        if let Err(error) = run(&["down"]) {
            eprintln!("{error:#}");
        }
    }
}

#[test]
fn up_is_clean_after_any_crash() -> Result<()> {
    run(&["tools"])?;
    run(&["down"])?;
    let _gone = Gone;
    // The first one also fetches and builds what is missing.
    comes_up()?;
    run(&["down"])?;
    let began = Instant::now();
    run(&["up", "--nodes", "1"])?;
    let mut whole = began.elapsed();
    assert!(run(&["kubectl", "--", "get", "node", "node2"]).is_err(), "a check that can't fail");

    ensure!(
        Running::start(&["down"])?.killed_after(Duration::from_millis(30))?,
        "a `down` had ended before it was killed"
    );
    comes_up().context("after a `down` that was killed")?;

    Cgroup::of_lab(LAB)?.signal(Signal::KILL);
    ensure!(run(&["status"]).is_err(), "everything was killed, and `status` does not see it");
    comes_up().context("after everything was killed")?;

    for moment in 1..=MOMENTS {
        let time = loop {
            run(&["down"])?;
            let time = whole * moment / (MOMENTS + 1);
            if Running::start(&["up", "--nodes", "1"])?.killed_after(time)? {
                break time;
            }
            // It was quicker than the one whose time was taken: its own moments come earlier.
            whole = time;
        };
        comes_up().with_context(|| format!("after an `up` that was killed after {time:?}"))?;
        eprintln!("killed after {:.2} s of {:.2} s: the next `up` is clean", time.as_secs_f64(), whole.as_secs_f64());
    }
    Ok(())
}
