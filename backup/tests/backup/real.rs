//! Real etcd of one member on free local ports, and its own tools.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use etcd_client::Client;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::ports::free_address;
use crate::programs::{answers, built, without};

/// How much of what an etcd said is shown when a test has failed.
const LAST_LINES: usize = 15;

/// Flags of members that vote for each other: also on a busy machine the leader stays, unless it is told to go.
const STEADY: [&str; 2] = ["--heartbeat-interval=100", "--election-timeout=3000"];

/// Set to `required` where the binaries must be there.
const DEMAND: &str = "QUORATE_REAL_ETCD";

/// The binaries to try, by their versions.
pub fn versions() -> Vec<Binaries> {
    let folders = match std::env::var_os("QUORATE_ETCD_BIN") {
        Some(folders) => std::env::split_paths(&folders).collect(),
        None => built("etcd-3.", "etcdutl"),
    };
    let binaries: Vec<_> = folders.into_iter().map(Binaries).collect();
    if binaries.is_empty() {
        without("etcd", "QUORATE_ETCD_BIN", DEMAND);
    }
    for binaries in &binaries {
        assert!(binaries.tool("etcd").is_file(), "there is no {}", binaries.tool("etcd").display());
    }
    binaries
}

/// Runs a test for each version, all at once: most of their time is waiting.
pub fn each_version(test: impl AsyncFn(&Binaries) + Sync) {
    thread::scope(|scope| {
        for binaries in versions() {
            let test = &test;
            scope.spawn(move || Runtime::new().unwrap().block_on(Box::pin(test(&binaries))));
        }
    });
}

/// The newest of them, for what does not depend on the version.
pub fn newest() -> Option<Binaries> {
    versions().pop()
}

/// The binaries of one version.
#[derive(Debug, Clone)]
pub struct Binaries(PathBuf);

impl Binaries {
    pub fn tool(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs a tool and gives what it printed.
    pub fn run(&self, name: &str, arguments: &[&str]) -> String {
        let output = Command::new(self.tool(name)).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{name} {arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// What `etcdutl snapshot status` says of a database, which includes bbolt's own check of every page.
    pub fn status(&self, database: &Path) -> serde_json::Value {
        let text = self.run("etcdutl", &["snapshot", "status", database.to_str().unwrap(), "-w", "json"]);
        serde_json::from_str(&text).unwrap()
    }

    /// etcd's own hash of the history in a database. Only 3.6 and later have a tool for it; the files are the same.
    pub fn hash(database: &Path, revision: u64) -> u64 {
        let has_tool = |binaries: &Self| {
            let help = Command::new(binaries.tool("etcdutl")).arg("--help").output().unwrap();
            String::from_utf8_lossy(&help.stdout).contains("hashkv")
        };
        let newest = versions().into_iter().rev().find(has_tool).expect("one etcdutl has to be of 3.6 or later");
        let revision = revision.to_string();
        let text = newest.run("etcdutl", &["hashkv", database.to_str().unwrap(), "--rev", &revision, "-w", "json"]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["hash"].as_u64().unwrap_or_else(|| panic!("{text}"))
    }
}

/// bbolt's own tool finds nothing wrong.
pub fn bbolt_check(database: &Path) {
    let output = Command::new(by_hand("bbolt", "QUORATE_BBOLT")).arg("check").arg(database).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("OK"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// A program by which a person looks at what there is: the one that this variable names, or else the built one.
pub fn by_hand(program: &str, variable: &str) -> PathBuf {
    let found = match std::env::var_os(variable) {
        Some(path) => Some(PathBuf::from(path)),
        None => built(&format!("{program}-"), program).pop().map(|folder| folder.join(program)),
    };
    found.filter(|path| path.is_file()).unwrap_or_else(|| {
        panic!("there is no {program} to try with: quorate-e2e tools builds it, and {variable} may name another one")
    })
}

/// A member.
pub struct Etcd {
    pub binaries: Binaries,
    pub client: SocketAddr,
    peer: SocketAddr,
    pub data: TempDir,
    process: Option<Child>,
}

impl Etcd {
    /// A new cluster of one.
    pub fn start(binaries: &Binaries) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::on(binaries, folder)
    }

    /// On this folder, whose `data` may have been restored.
    pub fn on(binaries: &Binaries, data: TempDir) -> Self {
        let mut etcd = Self::stopped(binaries, data);
        etcd.resume();
        etcd
    }

    /// The same, without its process.
    pub fn stopped(binaries: &Binaries, data: TempDir) -> Self {
        let [client, peer] = [(); 2].map(|()| free_address());
        Self { binaries: binaries.clone(), client, peer, data, process: None }
    }

    /// Starts its process.
    pub fn resume(&mut self) {
        self.resume_with(&[]);
    }

    /// Starts its process with flags beside the usual ones.
    pub fn resume_with(&mut self, more: &[&str]) {
        let (client, peer) = (self.url(), format!("http://{}", self.peer));
        let child = Command::new(self.binaries.tool("etcd"))
            .args([
                "--name=default",
                "--initial-cluster-state=new",
                "--max-txn-ops=2000",
                "--max-request-bytes=8388608",
                // An election takes a second otherwise.
                "--heartbeat-interval=20",
                "--election-timeout=200",
            ])
            .arg(format!("--data-dir={}", self.data.path().join("data").display()))
            .args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")])
            .args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")])
            .arg(format!("--initial-cluster=default={peer}"))
            .args(more)
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(self.log()).unwrap())
            .spawn()
            .unwrap();
        answers(self.process.insert(child), self.client, "/version");
    }

    /// A new cluster of two: the one that leads, and one that follows.
    pub async fn pair(binaries: &Binaries) -> (Self, Self) {
        let [mut leader, mut follower] = [(); 2].map(|()| Self::stopped(binaries, tempfile::tempdir().unwrap()));
        leader.resume_with(&STEADY);
        let peer = format!("http://{}", follower.peer);
        leader.connect().await.member_add([peer.clone()], None).await.unwrap();
        let cluster = format!("--initial-cluster=default=http://{},follower={peer}", leader.peer);
        let joins = ["--name=follower", "--initial-cluster-state=existing", &cluster];
        follower.resume_with(&[&STEADY[..], &joins].concat());
        (leader, follower)
    }

    fn log(&self) -> PathBuf {
        self.data.path().join("log")
    }

    /// Whether its process has ended, and what it said last: what one needs who reads why a test has failed.
    fn last_words(&mut self) -> String {
        let ended = self.process.as_mut().map(|process| process.try_wait().unwrap());
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(LAST_LINES).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        format!("etcd on {}, ended: {ended:?}\n{last}", self.client)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    pub async fn connect(&self) -> Client {
        Client::connect([self.url()], None).await.unwrap()
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.last_words());
        }
        self.kill();
    }
}
