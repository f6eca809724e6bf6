//! Faults of processes, on whatever node they run: the nodes of the local cluster share one process table.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{EtcdProcess, PATIENCE, Scene, etcd_processes, is_launcher, pids, wait_for};

/// How often a birth is looked for: the moments that matter are tens of milliseconds apart.
const BIRTH_INTERVAL: Duration = Duration::from_millis(2);
/// The span after its start within which a killed etcd leaves a log without an entry.
pub const FIRST_MOMENTS: Duration = Duration::from_millis(300);

/// Sends a signal to a process; one that has ended is an error.
pub fn signal(pid: i32, signal: Signal) -> Result<()> {
    let id = Pid::from_raw(pid).context("0 is no process")?;
    kill_process(id, signal).with_context(|| format!("failed to signal process {pid}"))
}

/// The process of a member, once it runs.
pub async fn member(scene: &Scene, name: &str) -> Result<EtcdProcess> {
    wait_for(&format!("a process of {name}"), PATIENCE, async || {
        let running = etcd_processes(scene.namespace());
        let seen = format!("{running:?}");
        running.into_iter().find(|process| process.member() == name).with_context(|| format!("only {seen}"))
    })
    .await
}

/// `kill -9` of a member's etcd.
pub async fn kill_member(scene: &Scene, name: &str) -> Result<()> {
    let process = member(scene, name).await?;
    signal(process.pid, Signal::KILL)
}

/// Stops a member's etcd where it stands; it keeps its connections and answers nothing.
pub async fn freeze_member(scene: &Scene, name: &str) -> Result<EtcdProcess> {
    let process = member(scene, name).await?;
    signal(process.pid, Signal::STOP)?;
    Ok(process)
}

/// Lets a frozen process go on. One that was killed meanwhile is no error.
pub fn thaw(process: &EtcdProcess) {
    if EtcdProcess::read(process.pid).as_ref() == Some(process)
        && let Err(error) = signal(process.pid, Signal::CONT)
    {
        eprintln!("failed to thaw {process:?}: {error:#}");
    }
}

/// The moment for try `number` within the first 300 ms: spread evenly, however many tries there are (multiples of the
/// golden ratio).
pub fn moment(number: u32) -> Duration {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    FIRST_MOMENTS.mul_f64((f64::from(number) * GOLDEN).fract())
}

/// Waits for the birth of an etcd in this namespace whose member is none of `known`, and does `what` to it `after` that
/// moment. One that has ended by itself by then, as an etcd does whose name its peers can't look up yet, is none; the next
/// birth is waited for. Returns it.
pub async fn at_birth(scene: &Scene, known: &BTreeSet<String>, after: Duration, what: Signal) -> Result<EtcdProcess> {
    let (namespace, known) = (scene.namespace().to_owned(), known.clone());
    let waited = tokio::task::spawn_blocking(move || {
        // What is something else already stays that; only launchers and processes to come have to be looked at.
        let mut old: BTreeSet<i32> = pids().into_iter().filter(|pid| !is_launcher(*pid)).collect();
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let young = pids().into_iter().filter(|pid| !old.contains(pid)).filter_map(EtcdProcess::read);
            let mut ours = young.filter(|process| process.namespace() == namespace);
            if let Some(born) = ours.find(|process| !known.contains(process.member())) {
                std::thread::sleep(after);
                match signal(born.pid, what) {
                    Ok(()) => return Ok(born),
                    Err(error) if EtcdProcess::read(born.pid).as_ref() == Some(&born) => return Err(error),
                    Err(_) => drop(old.insert(born.pid)),
                }
            }
            std::thread::sleep(BIRTH_INTERVAL);
        }
        bail!("no etcd was started in {namespace} within {} s", PATIENCE.as_secs())
    });
    waited.await.context("the watch for a birth ended")?
}

/// All processes of a pod, on whatever node.
pub fn of_pod(uid: &str) -> Vec<i32> {
    let group = format!("pod{uid}");
    let ours =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&group));
    pids().into_iter().filter(ours).collect()
}

/// The processes of a pod that run this program, by its name in the process table.
pub fn in_pod(uid: &str, program: &str) -> Vec<i32> {
    let runs =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == program);
    of_pod(uid).into_iter().filter(runs).collect()
}

/// The resident memory of a process in MiB.
pub fn resident_mib(pid: i32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the process has ended")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("it has no memory")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS is no number")?;
    ensure!(kib > 0.0, "it has no memory");
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_spread_over_the_span() {
        let mut moments: Vec<_> = (0..50).map(moment).collect();
        moments.sort();
        assert!(moments.iter().all(|moment| *moment < FIRST_MOMENTS));
        let widest = moments.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
        assert!(widest < Duration::from_millis(15), "{widest:?}");
    }

    #[test]
    fn our_own_memory_can_be_read() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(resident_mib(pid).unwrap() > 0.1);
    }
}
