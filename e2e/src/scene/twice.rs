//! Watches, all the time, that no member identity has its database open in two processes at once, wherever they are: a
//! process without it takes no part in raft, not yet or not any more. One thread looks for all scenes of this process; it
//! reports and stops nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::processes::{EtcdProcess, is_launcher, pids};

/// How often the processes are looked at. Two lives of one identity that overlap do so for seconds when a node is cut
/// off, and for some tens of milliseconds when a pod is replaced too early.
const LOOK_INTERVAL: Duration = Duration::from_millis(15);
/// How often a process that was something else before is looked at again. Only a launcher becomes etcd, and it is
/// looked at each time.
const SETTLED_INTERVAL: Duration = Duration::from_millis(300);
/// How young a process has to be to be looked at each time, whatever it is.
const YOUNG: Duration = Duration::from_secs(2);

/// What the watching thread has seen, by namespace.
static SEEN: OnceLock<Mutex<BTreeMap<String, BTreeSet<String>>>> = OnceLock::new();

/// The watch over all namespaces.
#[derive(Debug)]
pub struct Twice;

/// The watch over one namespace.
#[derive(Debug)]
pub struct Watch {
    namespace: String,
}

impl Twice {
    /// Begins to watch a namespace.
    pub fn watch(namespace: &str) -> Watch {
        SEEN.get_or_init(|| {
            std::thread::spawn(look_for_ever);
            Mutex::default()
        });
        Watch { namespace: namespace.to_owned() }
    }
}

impl Watch {
    /// Demands that no identity of this namespace was seen in two processes at once.
    pub fn nothing_ran_twice(&self) -> Result<()> {
        let seen = seen().get(&self.namespace).cloned().unwrap_or_default();
        ensure!(seen.is_empty(), "one identity ran twice: {}", Vec::from_iter(seen).join("; "));
        Ok(())
    }
}

fn seen() -> MutexGuard<'static, BTreeMap<String, BTreeSet<String>>> {
    SEEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is remembered of a process, so that not every command line has to be read at each look.
#[derive(Debug)]
struct Known {
    first: Instant,
    last: Instant,
    etcd: Option<EtcdProcess>,
    launcher: bool,
}

fn look_for_ever() {
    let mut known = HashMap::new();
    loop {
        for (namespace, text) in look(&mut known) {
            seen().entry(namespace).or_default().insert(text);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// One look: each identity that runs in two processes, with its namespace.
fn look(known: &mut HashMap<i32, Known>) -> Vec<(String, String)> {
    let now = Instant::now();
    let pids: BTreeSet<i32> = pids().into_iter().collect();
    known.retain(|pid, _| pids.contains(pid));
    for pid in pids {
        let entry = known.entry(pid).or_insert(Known { first: now, last: now, etcd: None, launcher: true });
        let due =
            entry.etcd.is_some() || entry.launcher || now - entry.first < YOUNG || now - entry.last >= SETTLED_INTERVAL;
        if due {
            entry.last = now;
            entry.etcd = EtcdProcess::read(pid);
            entry.launcher = entry.etcd.is_none() && is_launcher(pid);
        }
    }
    doubles(known.values().filter_map(|known| known.etcd.clone()).collect())
}

/// Each identity with two processes that both still run now: one of them may have ended while the others were read. So each
/// is looked at before and after all others: a thread that is put aside between two looks would else see one life and the
/// next.
fn doubles(processes: Vec<EtcdProcess>) -> Vec<(String, String)> {
    let mut by_identity: BTreeMap<String, Vec<EtcdProcess>> = BTreeMap::new();
    for process in processes {
        by_identity.entry(process.identity.clone()).or_default().push(process);
    }
    let double = by_identity.into_values().filter(|processes| processes.len() > 1);
    let certain = double.filter_map(|processes| {
        let alive = |processes: Vec<EtcdProcess>| -> Vec<EtcdProcess> {
            processes.into_iter().filter(|process| is_still(process) && process.has_database()).collect()
        };
        let alive = alive(alive(processes));
        let [first, .., last] = alive.as_slice() else { return None };
        Some((first.namespace().to_owned(), format!("{} as processes {} and {}", first.identity, first.pid, last.pid)))
    });
    certain.collect()
}

fn is_still(process: &EtcdProcess) -> bool {
    EtcdProcess::read(process.pid).as_ref() == Some(process)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::process::{Child, Command, Stdio};

    use tempfile::TempDir;

    use super::*;

    /// A process that looks like the member `member` of cluster `db` in namespace `space`, and does nothing. Its
    /// database, if it has one, is locked.
    fn member(member: &str, space: &str, database: Option<File>) -> Child {
        let flag = format!("--initial-advertise-peer-urls=http://{member}.db.{space}.svc:2380");
        let mut command = Command::new("sh");
        command.args(["-c", "read line", "etcd", &flag]).stdin(Stdio::piped());
        if let Some(database) = database {
            command.stdout(Stdio::from(database));
        }
        command.spawn().unwrap()
    }

    /// A database of its own, locked.
    fn database(folder: &TempDir) -> File {
        let folder = folder.path().join("member/snap");
        fs::create_dir_all(&folder).unwrap();
        let database = File::create(folder.join("db")).unwrap();
        database.lock().unwrap();
        database
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn within(span: Duration, holds: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        while started.elapsed() < span {
            if holds() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn an_identity_that_runs_twice_is_noticed() {
        let watch = Twice::watch("planted");
        let volumes = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let twice = volumes.each_ref().map(|volume| member("db-0", "planted", Some(database(volume))));
        assert!(within(Duration::from_secs(10), || watch.nothing_ran_twice().is_err()));
        let error = watch.nothing_ran_twice().unwrap_err().to_string();
        assert!(error.contains("http://db-0.db.planted.svc:2380"), "{error}");
        twice.into_iter().for_each(end);
    }

    #[test]
    fn different_members_and_one_after_the_other_are_fine() {
        let watch = Twice::watch("fine");
        let volumes = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let other = member("db-1", "fine", Some(database(&volumes[1])));
        // It waits for the database, or has closed it.
        let idle = member("db-0", "fine", None);
        for _ in 0..5 {
            let process = member("db-0", "fine", Some(database(&volumes[0])));
            assert!(within(Duration::from_secs(10), || super::super::etcd_processes("fine").len() == 3));
            end(process);
        }
        end(idle);
        end(other);
        watch.nothing_ran_twice().unwrap();
    }
}
