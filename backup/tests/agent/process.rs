//! The real `quorate-agent` as a process, with a folder for its volume and its ticket, and a script for its etcd.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use quorate_backup::launch::{Reason, Report};
use quorate_backup::ticket::{Start, Ticket};
use tempfile::TempDir;

/// Everything here takes milliseconds; this is for machines that are very busy.
pub const DEADLINE: Duration = Duration::from_secs(30);
pub const MEMBER: &str = "blue-0";
pub const VOLUME: &str = "v-1";
pub const AGENT: &str = env!("CARGO_BIN_EXE_quorate-agent");
pub const FIRST_SEGMENT: &str = "data/member/wal/0000000000000000-0000000000000000.wal";

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A pod: its volume, its ticket, and what its etcd has recorded.
pub struct Pod {
    folder: TempDir,
    pub variables: Vec<(String, String)>,
    pub etcd: PathBuf,
    pub listen: String,
}

impl Pod {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("volume")).unwrap();
        let record = folder.path().join("record").to_str().unwrap().to_owned();
        let variables = [("QUORATE_MEMBER", MEMBER), ("QUORATE_VOLUME", VOLUME), ("FAKE_RECORD", &record)];
        Self {
            variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            etcd: fixture("etcd"),
            listen: "127.0.0.1:0".into(),
            folder,
        }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn volume(&self) -> PathBuf {
        self.path("volume")
    }

    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.volume().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// The volume as a member of this name and volume left it, with this log.
    pub fn carry(&self, member: &str, volume: &str, log: &str) {
        self.put("quorate.json", format!(r#"{{"format":1,"member":"{member}","volume":"{volume}"}}"#));
        self.put(FIRST_SEGMENT, fs::read(fixture(log)).unwrap());
    }

    /// The ticket that fits this pod.
    pub fn ticket(&self, start: Start) -> Ticket {
        let data_dir = format!("--data-dir={}", self.volume().join("data").display());
        let flags = vec!["--name=blue-0".into(), data_dir, "--initial-cluster-token=a b".into()];
        let (member, volume) = (MEMBER.into(), VOLUME.into());
        Ticket { start, member, volume, mark: None, version: "3.6.16".into(), flags }
    }

    /// Shows a ticket to the launcher as the kubelet does: a new file under the old name.
    pub fn show(&self, ticket: &Ticket) {
        self.show_text(&ticket.render().unwrap());
    }

    pub fn show_text(&self, text: &str) {
        fs::write(self.path("ticket.new"), text).unwrap();
        fs::rename(self.path("ticket.new"), self.path("ticket")).unwrap();
    }

    pub fn launch(&self) -> Launcher {
        let mut child = Command::new(AGENT)
            .arg("launch")
            .args(["--listen", &self.listen])
            .arg("--ticket")
            .arg(self.path("ticket"))
            .arg("--volume")
            .arg(self.volume())
            .arg("--etcd")
            .arg(&self.etcd)
            .arg("--memory")
            .arg(self.folder.path())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Launcher { child, lines, log: Vec::new() }
    }

    /// What etcd was started with, once it was.
    pub fn record(&self) -> String {
        until("etcd is started", || fs::read_to_string(self.path("record")).ok())
    }

    pub fn was_started(&self) -> bool {
        self.path("record").exists()
    }

    pub fn marker(&self) -> Option<String> {
        fs::read_to_string(self.volume().join("quorate.json")).ok()
    }
}

/// A running `quorate-agent launch`, or the etcd that it has become.
pub struct Launcher {
    pub child: Child,
    lines: Receiver<String>,
    pub log: Vec<String>,
}

impl Launcher {
    /// Waits for a line of the log with this in it.
    pub fn says(&mut self, text: &str) -> String {
        let end = Instant::now() + DEADLINE;
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            self.log.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
        panic!("it never said {text:?}, but: {:#?}", self.log);
    }

    /// Where it listens.
    pub fn address(&mut self) -> SocketAddr {
        let line = self.says("listening on ");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    pub fn ends(&mut self) -> ExitStatus {
        until("the process ends", || self.child.try_wait().unwrap())
    }

    /// All that it has said until its end.
    pub fn whole_log(&mut self) -> &[String] {
        self.log.extend(self.lines.iter());
        &self.log
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tries until there is a value.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The status and the body of an answer; nothing if there is none, as when etcd is just taking over.
pub fn try_ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    // A server that has seen enough may close before it has read everything.
    let _ = stream.write_all(body.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

pub fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    try_ask(address, method, path, body).unwrap()
}

pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    ask(address, "GET", path, "")
}

pub fn report(address: SocketAddr) -> Report {
    let (status, body) = get(address, "/quorate");
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}

/// Waits until it reports this.
pub fn reports(address: SocketAddr, reason: Reason) -> Report {
    until(&format!("it reports {reason}"), || Some(report(address)).filter(|report| report.reason == reason))
}
