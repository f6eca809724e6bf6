//! What the operator did, by its own log: reads its lines, wherever its pods ran and whatever became of them. It keeps
//! each file open, so that a line survives the pod that wrote it.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::clock::{Clock, Moment};
use super::history::{Deed, MemberId, Role, Roster, Step};
use crate::faults::operator::NAMESPACE;
use crate::lab::Lab;

/// How often the files are looked at: a pod's folder stays for longer than this after its pod was deleted.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// What the operator says when it has done a step.
pub(super) const DID: &str = "did";
/// What it says before each call that asks etcd for a change.
const CALLS: &str = "calls etcd";
/// What it says after such a call, whatever came of it.
const CALLED: &str = "called etcd";
/// What it says before it asks Kubernetes for what takes a member or its volume away.
const ASKS: &str = "asks Kubernetes";
/// The outcomes of such a call after which nobody knows whether it had its effect.
const UNKNOWN_OUTCOMES: [&str; 2] = ["deadline", "error"];
/// Those after which it surely had none.
const NO_EFFECT: [&str; 2] = ["refused", "shut"];

/// A thread that reads the operator's logs until it is stopped.
#[derive(Debug)]
pub struct OperatorLog {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Said>,
}

/// What all replicas said since the run began, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// What they did to the cluster.
    pub deeds: Vec<Deed>,
    /// Every line, after the name of the pod.
    pub lines: Vec<String>,
}

impl OperatorLog {
    /// Begins to read what all replicas say of this cluster from now on.
    pub fn follow(lab: &Lab, cluster: &str, clock: Clock) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let folders: Vec<PathBuf> = lab.nodes().map(|node| lab.pod_logs(node.number())).collect();
        let (cluster, stopped) = (cluster.to_owned(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut files = Files::default();
            let (mut deeds, mut lines) = (Vec::new(), Vec::new());
            loop {
                // Asked before the look, so that the last look comes after the request to stop.
                let last = stopped.load(Ordering::Relaxed);
                let clock = clock.set_by_the_wall();
                for (pod, line) in files.new_lines(&folders) {
                    deeds.extend(deed(&line, &cluster, &clock).map(|deed| Deed { by: Some(pod.clone()), ..deed }));
                    lines.extend(moment(&line, &clock).map(|moment| (moment, format!("{moment} {pod} {line}"))));
                }
                if last {
                    deeds.sort_by_key(|deed| deed.at);
                    lines.sort_by_key(|(moment, _)| *moment);
                    return Said { deeds, lines: lines.into_iter().map(|(_, line)| line).collect() };
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        });
        Self { stop, thread }
    }

    /// Stops, and tells what was said.
    pub async fn end(self) -> anyhow::Result<Said> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await?;
        joined.map_err(|_| anyhow::anyhow!("the reader of the operator's log panicked"))
    }
}

/// The open log files, by inode: a rotated one keeps it, and a new one may have an old one's name.
#[derive(Debug, Default)]
struct Files(HashMap<u64, Open>);

#[derive(Debug)]
struct Open {
    pod: String,
    file: File,
    /// The beginning of a line whose end was not there yet.
    rest: Vec<u8>,
}

impl Files {
    /// The lines that have come since the last time, each with its pod.
    fn new_lines(&mut self, folders: &[PathBuf]) -> Vec<(String, String)> {
        for path in folders.iter().flat_map(|folder| log_files(folder)) {
            let Ok(file) = File::open(&path) else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            self.0.entry(metadata.ino()).or_insert_with(|| Open { pod: pod_of(&path), file, rest: Vec::new() });
        }
        let mut lines = Vec::new();
        for Open { pod, file, rest } in self.0.values_mut() {
            // What can't be read now is read at the next look.
            let _ = file.read_to_end(rest);
            let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let text: Vec<u8> = rest.drain(..whole).collect();
            lines.extend(String::from_utf8_lossy(&text).lines().map(|line| (pod.clone(), line.to_owned())));
        }
        lines
    }
}

/// The pod whose log this is.
fn pod_of(path: &Path) -> String {
    let folder = path.parent().and_then(Path::parent).and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    folder.split('_').nth(1).unwrap_or_default().to_owned()
}

/// The logs of the operator's containers on one node: `<namespace>_<pod>_<uid>/<container>/<n>.log`.
fn log_files(folder: &Path) -> Vec<PathBuf> {
    let below = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let ours = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with(&format!("{NAMESPACE}_"))
    };
    let containers = below(folder).into_iter().filter(ours).flat_map(|pod| below(&pod));
    let files = containers.flat_map(|container| below(&container));
    files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect()
}

/// When a line was written, unless that was before the run: by the operator's own word. The container runtime stamps a line
/// when it reads it, which on a busy machine is later than what the line announces; its time counts only for what is no
/// line of the operator's log.
fn moment(line: &str, clock: &Clock) -> Option<Moment> {
    let stamped = line.split_once(' ')?.0;
    let own: Option<Timestamp> = said(line).and_then(|said| said["timestamp"].as_str()?.parse().ok());
    let time: Timestamp = own.or_else(|| stamped.parse().ok())?;
    clock.at(SystemTime::from(time))
}

/// What the operator said, in a line as the container runtime writes it: `<time> stderr F <JSON>`.
pub(super) fn said(line: &str) -> Option<Value> {
    let said = line.split_once(" F ").map(|(_, json)| json)?;
    serde_json::from_str(said).ok()
}

/// What a line says that was done to this cluster since the run began.
fn deed(line: &str, cluster: &str, clock: &Clock) -> Option<Deed> {
    let said = said(line)?;
    if said["cluster"] != cluster {
        return None;
    }
    let text = |field: &str| said[field].as_str().unwrap_or_default();
    let step = match text("message") {
        DID => read(text("step")).unwrap_or_else(|| Step::Unreadable { line: line.to_owned() }),
        CALLS => match read(text("step")) {
            Some(call @ (Step::AddLearner { .. } | Step::Promote { .. } | Step::Remove { .. })) => {
                Step::Calls { call: Box::new(call) }
            }
            Some(_) => return None,
            None => Step::Unreadable { line: line.to_owned() },
        },
        ASKS => match read(text("step")) {
            Some(call @ (Step::DeletePod { .. } | Step::DeleteClaim { .. } | Step::SwitchRelease { .. })) => {
                Step::Calls { call: Box::new(call) }
            }
            Some(_) | None => Step::Unreadable { line: line.to_owned() },
        },
        CALLED if UNKNOWN_OUTCOMES.contains(&text("outcome")) => Step::LostAnswer { verb: text("verb").to_owned() },
        CALLED if NO_EFFECT.contains(&text("outcome")) => Step::Refused { verb: text("verb").to_owned() },
        _ => return None,
    };
    Some(Deed { at: moment(line, clock)?, by: None, step })
}

/// Reads a step as the operator's log has it, as in `Promote { serial: Serial(1), id: MemberId(7), expect: {...} }`.
fn read(text: &str) -> Option<Step> {
    let name: String = text.chars().take_while(char::is_ascii_alphanumeric).collect();
    Some(match name.as_str() {
        "AddLearner" => Step::AddLearner { serial: serial(text)?, expect: expect(text)? },
        "Promote" => Step::Promote { serial: serial(text)?, id: id(text)?, expect: expect(text)? },
        "Remove" => Step::Remove { id: id(text)?, expect: expect(text)? },
        "MoveLeader" => Step::MoveLeader,
        "DeletePod" => Step::DeletePod { serial: serial(text)? },
        "SwitchRelease" => Step::SwitchRelease { serial: serial(text)? },
        "DeleteClaim" => Step::DeleteClaim { serial: serial(text)? },
        "CreateClaim" | "CreatePod" | "IssueTicket" | "LabelPod" | "ResizePod" | "TryRelease" | "EndTrial"
        | "TakeSnapshot" | "EnableDowngrade" | "CancelDowngrade" | "ReleaseFinalizer" => Step::Harmless { name },
        // Nor is a step that came later harmless until somebody has said so.
        _ => return None,
    })
}

fn serial(text: &str) -> Option<u32> {
    number(after(text, "serial: Serial(")?)
}

fn id(text: &str) -> Option<MemberId> {
    number(after(text, " id: MemberId(")?).map(MemberId)
}

fn expect(text: &str) -> Option<Roster> {
    let (listed, _) = after(text, "expect: {")?.split_once('}')?;
    let members = listed.split("MemberId(").skip(1);
    members.map(|member| Some((number(member).map(MemberId)?, role(after(member, "): ")?)?))).collect()
}

fn role(text: &str) -> Option<Role> {
    let name: String = text.chars().take_while(char::is_ascii_alphabetic).collect();
    match name.as_str() {
        "Voter" => Some(Role::Voter),
        "Learner" => Some(Role::Learner),
        _ => None,
    }
}

pub(super) fn after<'a>(text: &'a str, what: &str) -> Option<&'a str> {
    text.split_once(what).map(|(_, rest)| rest)
}

pub(super) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.split_once(')')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn voters(numbers: &[u64]) -> Roster {
        numbers.iter().map(|number| (MemberId(*number), Role::Voter)).collect()
    }

    #[test]
    fn steps_are_read_as_the_operator_writes_them() {
        let text = "AddLearner { serial: Serial(3), expect: {MemberId(1): Voter, MemberId(22): Voter}, after: None }";
        assert_eq!(read(text), Some(Step::AddLearner { serial: 3, expect: voters(&[1, 22]) }));
        let text = "Promote { serial: Serial(3), id: MemberId(5), expect: {MemberId(5): Learner} }";
        let expect = [(MemberId(5), Role::Learner)].into();
        assert_eq!(read(text), Some(Step::Promote { serial: 3, id: MemberId(5), expect }));
        let text = "Remove { serial: Some(Serial(2)), id: MemberId(5), expect: {} }";
        assert_eq!(read(text), Some(Step::Remove { id: MemberId(5), expect: voters(&[]) }));
        let text = "DeletePod { serial: Serial(0), pod: Uid(\"a\") }";
        assert_eq!(read(text), Some(Step::DeletePod { serial: 0 }));
        let text =
            "SwitchRelease { serial: Serial(1), pod: Uid(\"a\"), release: Release { version: 3.6.16 }, ticket: None }";
        assert_eq!(read(text), Some(Step::SwitchRelease { serial: 1 }));
        assert_eq!(read("CreateClaim(Serial(1))"), Some(Step::Harmless { name: "CreateClaim".into() }));
        for unreadable in [
            "",
            "AddLearner { serial: 3 }",
            "Remove { id: MemberId(x), expect: {} }",
            "Remove { id: MemberId(5), expect: {MemberId(5)} }",
            "Remove { id: MemberId(5), expect: {MemberId(5): Witness} }",
            "{}",
        ] {
            assert_eq!(read(unreadable), None, "{unreadable}");
        }
    }

    #[test]
    fn only_what_was_done_to_the_cluster_since_the_run_began_counts() {
        let clock = Clock::start();
        let later = Timestamp::now().as_second() + 60;
        let later = Timestamp::from_second(later).unwrap();
        let line = |time: &str, message: &str, cluster: &str| {
            format!(
                r#"{time} stderr F {{"level":"INFO","message":"{message}","cluster":"{cluster}","step":"MoveLeader {{ from: MemberId(1), to: MemberId(2) }}"}}"#
            )
        };
        let read = |line: String| deed(&line, "db", &clock).map(|deed| deed.step);
        assert_eq!(read(line(&later.to_string(), "did", "db")), Some(Step::MoveLeader));
        assert_eq!(read(line(&later.to_string(), "plans", "db")), None);
        assert_eq!(read(line(&later.to_string(), "calls etcd", "db")), None, "no member comes or goes by it");
        let remove = "Remove { serial: None, id: MemberId(5), expect: {MemberId(5): Voter} }";
        let called = format!(r#"{later} stderr F {{"message":"calls etcd","cluster":"db","step":"{remove}"}}"#);
        let call = Box::new(Step::Remove { id: MemberId(5), expect: voters(&[5]) });
        assert_eq!(read(called), Some(Step::Calls { call }));
        let asked =
            |step: &str| format!(r#"{later} stderr F {{"message":"asks Kubernetes","cluster":"db","step":"{step}"}}"#);
        let call = Box::new(Step::DeletePod { serial: 1 });
        assert_eq!(read(asked("DeletePod { serial: Serial(1), pod: Uid(a) }")), Some(Step::Calls { call }));
        assert!(
            matches!(read(asked("MoveLeader { }")), Some(Step::Unreadable { .. })),
            "it is not asked of Kubernetes"
        );
        assert_eq!(read(line(&later.to_string(), "did", "other")), None);
        assert_eq!(read(line("2001-01-01T00:00:00Z", "did", "db")), None);
        let called = |outcome: &str| {
            format!(
                r#"{later} stderr F {{"message":"called etcd","cluster":"db","verb":"remove","outcome":"{outcome}"}}"#
            )
        };
        assert_eq!(read(called("deadline")), Some(Step::LostAnswer { verb: "remove".into() }));
        assert_eq!(read(called("refused")), Some(Step::Refused { verb: "remove".into() }));
        assert_eq!(read(called("ok")), None, "what it did is said after it");
        let unknown = format!(r#"{later} stderr F {{"message":"did","cluster":"db"}}"#);
        assert!(matches!(read(unknown), Some(Step::Unreadable { .. })));
    }

    #[test]
    fn the_operator_says_itself_when_it_was() {
        let clock = Clock::start();
        let began = Timestamp::now().as_second();
        let at = |second: i64| Timestamp::from_second(began + second).unwrap();
        // The runtime read it five seconds late.
        let line = format!(
            r#"{} stderr F {{"timestamp":"{}","message":"did","cluster":"db","step":"EndTrial {{ }}"}}"#,
            at(65),
            at(60)
        );
        let read = deed(&line, "db", &clock).unwrap();
        assert!(read.at < clock.at(SystemTime::from(at(61))).unwrap(), "{}", read.at);
        // What is no line of its log, as a panic, has the runtime's time.
        let panicked = format!("{} stderr F thread 'main' panicked", at(65));
        assert_eq!(moment(&panicked, &clock), clock.at(SystemTime::from(at(65))));
        let early = line.replace(&at(60).to_string(), "2001-01-01T00:00:00Z");
        assert_eq!(deed(&early, "db", &clock), None, "it was said before the run");
    }

    #[test]
    fn lines_are_read_once_and_whole_whatever_becomes_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let pod = folder.path().join("quorate-system_quorate-1_uid/operator");
        std::fs::create_dir_all(&pod).unwrap();
        let path = pod.join("0.log");
        let mut file = File::create(&path).unwrap();
        let mut files = Files::default();
        let folders = [folder.path().to_path_buf()];
        file.write_all(b"one\ntw").unwrap();
        let said = |line: &str| vec![("quorate-1".to_owned(), line.to_owned())];
        assert_eq!(files.new_lines(&folders), said("one"));
        file.write_all(b"o\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(files.new_lines(&folders), said("two"));
        assert!(files.new_lines(&folders).is_empty());
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_left_without_a_panic(text in ".{0,200}") {
            let _ = read(&text);
            let _ = read(&format!("Promote {{ {text}"));
            let _ = deed(&text, "db", &Clock::start());
        }
    }
}
