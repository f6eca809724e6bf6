//! The launcher and its reader against real etcd, if the local cluster's tools have been built; the fixtures, which
//! the same binaries made, stand in otherwise. `QUORATE_REAL_ETCD=required` turns missing binaries into a failure.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::ports::free_address;
use crate::process::{FIRST_SEGMENT, Pod, get, try_ask, until};
use quorate_backup::ticket::{Start, Ticket};
use quorate_backup::wal::{Wal, inspect};

/// Set to `required` where the binaries must be there.
const DEMAND: &str = "QUORATE_REAL_ETCD";
/// How many kills for each version: enough to hit both sides of the first entry.
const KILLS: u32 = 8;

/// The built etcd binaries with their versions, one for each minor version.
fn binaries() -> Vec<(String, PathBuf)> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/tools");
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(tools)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("etcd-3."))
        .flat_map(|folder| ["etcd", "server"].map(|name| folder.join("bin").join(name)))
        .filter_map(|binary| Some((version(&binary)?, binary)))
        .collect();
    found.sort();
    found.dedup_by_key(|(version, _)| version.clone());
    let demanded = std::env::var(DEMAND).is_ok_and(|demand| demand == "required");
    assert!(!found.is_empty() || !demanded, "no etcd in .cache/tools, and {DEMAND}=required");
    if found.is_empty() {
        eprintln!("no etcd in .cache/tools: nothing was tried here");
    }
    found
}

fn version(binary: &Path) -> Option<String> {
    let output = Command::new(binary).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next()?.strip_prefix("etcd Version: ")?.to_owned())
}

/// A one-member cluster of this binary that serves as soon as it can.
struct Seed {
    pod: Pod,
    ticket: Ticket,
    metrics: SocketAddr,
}

impl Seed {
    fn new((version, binary): &(String, PathBuf)) -> Self {
        let mut pod = Pod::new();
        pod.etcd.clone_from(binary);
        let [client, peer, metrics] = [(); 3].map(|()| free_address());
        pod.listen = metrics.to_string();
        let mut ticket = pod.ticket(Start::Create);
        ticket.version = version.as_str().into();
        ticket.flags.extend([
            format!("--listen-client-urls=http://{client}"),
            format!("--advertise-client-urls=http://{client}"),
            format!("--listen-peer-urls=http://{peer}"),
            format!("--initial-advertise-peer-urls=http://{peer}"),
            format!("--initial-cluster=blue-0=http://{peer}"),
            "--initial-cluster-state=new".into(),
            format!("--listen-metrics-urls=http://{metrics}"),
            // An election takes a second otherwise.
            "--heartbeat-interval=20".into(),
            "--election-timeout=200".into(),
        ]);
        Self { pod, ticket, metrics }
    }

    fn is_ready(&self) -> Option<()> {
        try_ask(self.metrics, "GET", "/readyz", "").filter(|(status, _)| *status == 200).map(drop)
    }

    fn log(&self) -> Wal {
        inspect(&self.pod.volume().join("data")).unwrap()
    }
}

#[test]
fn a_create_serves_takes_over_the_port_and_resumes() {
    for etcd in binaries() {
        let mut seed = Seed::new(&etcd);
        seed.pod.show(&seed.ticket);
        let mut launcher = seed.pod.launch();
        until("it serves", || seed.is_ready());
        assert_eq!(get(seed.metrics, "/quorate").0, 404);
        assert_eq!(seed.log(), Wal::HasEntry, "{etcd:?}");
        launcher.child.kill().unwrap();
        launcher.ends();
        let remembered = seed.pod.path("quorate-etcd-version.json");
        let said = fs::read_to_string(&remembered).unwrap();
        assert!(said.contains(&format!(r#""version":"{}""#, etcd.0)), "{said}");
        // A version that the ticket doesn't name is not believed: it is asked again.
        fs::write(&remembered, said.replace(&etcd.0, "3.4.0")).unwrap();

        seed.ticket.start = Start::Resume;
        seed.pod.show(&seed.ticket);
        let _launcher = seed.pod.launch();
        until("it serves again", || seed.is_ready());
        assert_eq!(fs::read_to_string(&remembered).unwrap(), said);
    }
}

#[test]
fn killed_in_its_first_milliseconds_it_comes_up_with_the_same_ticket() {
    for etcd in binaries() {
        let mut empty = 0;
        for kill in 0..KILLS {
            let seed = Seed::new(&etcd);
            seed.pod.show(&seed.ticket);
            let mut launcher = seed.pod.launch();
            let log = seed.pod.volume().join(FIRST_SEGMENT);
            until("etcd has made its log", || log.exists().then_some(()));
            // Not a wait for anything: the moment of the kill is what varies.
            thread::sleep(Duration::from_millis(u64::from(kill % 4) * 3));
            launcher.child.kill().unwrap();
            launcher.ends();
            let left = seed.log();
            assert_ne!(left, Wal::Absent);
            empty += u32::from(left == Wal::Empty);

            let _launcher = seed.pod.launch();
            until(&format!("{etcd:?} serves after a kill that left {left:?}"), || seed.is_ready());
        }
        eprintln!("{}: {} of {KILLS} kills left a log without an entry", etcd.0, empty);
    }
}
