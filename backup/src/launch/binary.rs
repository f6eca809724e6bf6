//! The etcd binary of the image: where it is, which version it has, and the last step, becoming it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::remembered::{self, Fingerprint};
use super::{Reason, Refusal};
use crate::ticket::EtcdVersion;

/// Where the official image has it.
const USUAL_PLACE: &str = "/usr/local/bin/etcd";
/// `etcd --version` takes 20 to 60 ms, unless the node reads the image for the first time, from a disk that is busy. What
/// comes of a longer wait can't be taken back: a trial that failed is not repeated, and a member whose binary is refused is
/// told to run what it ran before, for good. Yet it has to end well before the operator gives up a learner that has not
/// joined (`START_PATIENCE_MS` in `statemachine/src/census.rs`): else that learner's successors would be slow in the same
/// way, and nobody would hear why.
pub const VERSION_DEADLINE: Duration = Duration::from_secs(45);
/// What etcd calls its version in the output of `--version`.
const VERSION_LABEL: &str = "etcd Version:";
/// Variables that etcd would take as flags, against the ticket, and those that speak to the launcher.
const PRIVATE_PREFIXES: [&str; 2] = ["ETCD_", "QUORATE_"];

/// The binary, and its version as soon as it is known. It can't change while this container lives.
#[derive(Debug)]
pub struct Binary {
    wanted: PathBuf,
    memory: PathBuf,
    asking: Option<JoinHandle<Result<Known, Refusal>>>,
    known: Option<Known>,
}

#[derive(Debug, Clone)]
struct Known {
    path: PathBuf,
    version: EtcdVersion,
    /// Whether it said so at an earlier start, and was not asked since.
    recalled: bool,
}

impl Binary {
    /// Begins to ask for the version, while the ticket is still under way. What the same binary said at an earlier start of
    /// this pod is taken from `memory`, a folder: a killed etcd has its ticket already, and would be away for as long as that takes.
    pub fn ask(wanted: PathBuf, memory: PathBuf) -> Self {
        let asking = Some(tokio::spawn(recall_or_ask(wanted.clone(), memory.clone())));
        Self { wanted, memory, asking, known: None }
    }

    /// The binary's path, if it has this version.
    pub async fn demand(&mut self, version: &EtcdVersion) -> Result<PathBuf, Refusal> {
        let mut known = self.known().await?;
        if known.recalled && known.version != *version {
            // Nothing is refused for what was only remembered.
            known = ask_and_keep(known.path, self.memory.clone()).await?;
            self.known = Some(known.clone());
        }
        known.demand(version)?;
        Ok(known.path)
    }

    async fn known(&mut self) -> Result<Known, Refusal> {
        if let Some(known) = &self.known {
            return Ok(known.clone());
        }
        let asked = match self.asking.take() {
            Some(asking) => asking.await.unwrap_or_else(|fault| {
                Err(Refusal::new(Reason::BinaryMissing, format!("failed to ask etcd: {fault}")))
            }),
            None => recall_or_ask(self.wanted.clone(), self.memory.clone()).await,
        };
        let known = asked?;
        self.known = Some(known.clone());
        Ok(known)
    }
}

impl Known {
    fn demand(&self, version: &EtcdVersion) -> Result<(), Refusal> {
        if self.version == *version {
            return Ok(());
        }
        let message = format!(
            "the ticket is for etcd {version}, {} is {}: the image has another version than the spec",
            self.path.display(),
            self.version
        );
        Err(Refusal::new(Reason::WrongVersion, message))
    }
}

/// Whether the binary has this version and takes these flags: etcd reads all of them before it says its version
/// (`server/etcdmain/config.go`, `parse`).
pub async fn takes(wanted: PathBuf, version: &EtcdVersion, flags: Vec<String>) -> Result<(), Refusal> {
    let path = found(&wanted)?;
    // Without the flags first: else a binary of another version is told from a wrong flag only by its words.
    ask(path.clone(), &[]).await?.demand(version)?;
    ask(path, &flags).await.map(drop)
}

/// Becomes etcd; returns only if that fails.
pub fn become_etcd(path: &Path, flags: &[String]) -> Refusal {
    let mut command = Command::new(path);
    without_private_variables(&mut command).args(flags);
    let fault = command.exec();
    Refusal::new(Reason::BinaryMissing, format!("failed to become {}: {fault}", path.display()))
}

async fn recall_or_ask(wanted: PathBuf, memory: PathBuf) -> Result<Known, Refusal> {
    let path = found(&wanted)?;
    let (program, folder) = (path.clone(), memory.clone());
    let recalling = spawn_blocking(move || remembered::recall(&folder, &Fingerprint::of(&program)?));
    match recalling.await.unwrap_or_default() {
        Some(version) => Ok(Known { path, version, recalled: true }),
        None => ask_and_keep(path, memory).await,
    }
}

async fn ask_and_keep(path: PathBuf, memory: PathBuf) -> Result<Known, Refusal> {
    let known = ask(path, &[]).await?;
    let Known { path, version, recalled: _ } = known.clone();
    let keeping = spawn_blocking(move || match Fingerprint::of(&path) {
        Some(binary) => remembered::keep(&memory, binary, version),
        None => Ok(()),
    });
    // It was only for the next start.
    if let Ok(Err(fault)) = keeping.await {
        tracing::debug!("failed to remember the version of etcd: {fault}");
    }
    Ok(known)
}

/// Runs it to hear its version.
async fn ask(path: PathBuf, flags: &[String]) -> Result<Known, Refusal> {
    let mut command = Command::new(&path);
    without_private_variables(&mut command).args(flags).arg("--version").stdin(Stdio::null());
    // A fifth faster: on the way of a start, and where several members start at once, they share the processors.
    command.env("GOMAXPROCS", "1");
    let mut command = tokio::process::Command::from(command);
    let output = match timeout(VERSION_DEADLINE, command.kill_on_drop(true).output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(fault)) => return Err(not_runnable(&path, &fault)),
        Err(_) => {
            let message = format!("{} did not say its version within {VERSION_DEADLINE:?}", path.display());
            return Err(Refusal::new(Reason::WrongVersion, message));
        }
    };
    let version = version_in(&output).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
        let message = format!("{} named no version, ended with {}, and said: {said}", path.display(), output.status);
        Refusal::new(Reason::WrongVersion, message)
    })?;
    Ok(Known { path, version, recalled: false })
}

fn not_runnable(path: &Path, fault: &io::Error) -> Refusal {
    Refusal::new(Reason::BinaryMissing, format!("failed to run {}: {fault}", path.display()))
}

fn version_in(output: &Output) -> Option<EtcdVersion> {
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|line| line.strip_prefix(VERSION_LABEL))?.trim();
    (output.status.success() && !version.is_empty()).then(|| EtcdVersion::new(version))
}

fn found(wanted: &Path) -> Result<PathBuf, Refusal> {
    find(wanted, std::env::var_os("PATH").as_deref()).ok_or_else(|| {
        let message = format!("no executable {} on PATH, nor {USUAL_PLACE}", wanted.display());
        Refusal::new(Reason::BinaryMissing, message)
    })
}

/// A path as it is; a bare name where `PATH` has it, else etcd's usual place.
fn find(wanted: &Path, search: Option<&OsStr>) -> Option<PathBuf> {
    if wanted.components().count() > 1 {
        return is_executable(wanted).then(|| wanted.to_owned());
    }
    let folders = search.map(std::env::split_paths).into_iter().flatten();
    folders
        .map(|folder| folder.join(wanted))
        .chain([PathBuf::from(USUAL_PLACE)])
        .find(|path| path.is_absolute() && is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn without_private_variables(command: &mut Command) -> &mut Command {
    for name in private(std::env::vars_os().map(|(name, _)| name)) {
        command.env_remove(name);
    }
    command
}

fn private(names: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    names.filter(|name| PRIVATE_PREFIXES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(code: i32, stdout: &str) -> Output {
        Output { status: ExitStatus::from_raw(code << 8), stdout: stdout.into(), stderr: Vec::new() }
    }

    #[test]
    fn the_version_is_read_from_what_etcd_prints() {
        let printed = "etcd Version: 3.6.16\nGit SHA: abc\nGo Version: go1.24\nGo OS/Arch: linux/amd64\n";
        assert_eq!(version_in(&output(0, printed)), Some("3.6.16".into()));
        assert_eq!(version_in(&output(1, printed)), None);
        assert_eq!(version_in(&output(0, "etcd Version: \n")), None);
        assert_eq!(version_in(&output(0, "3.6.16\n")), None);
    }

    #[test]
    fn the_first_executable_on_the_path_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        for (place, mode) in [(&one, 0o644), (&two, 0o755)] {
            fs::create_dir(place).unwrap();
            fs::write(place.join("etcd-of-a-test"), "").unwrap();
            fs::set_permissions(place.join("etcd-of-a-test"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let search = std::env::join_paths([&one, &two]).unwrap();
        let name = Path::new("etcd-of-a-test");
        assert_eq!(find(name, Some(&search)), Some(two.join(name)));
        assert_eq!(find(&one.join(name), Some(&search)), None);
        assert_eq!(find(&two.join(name), None), Some(two.join(name)));
    }

    /// A program that names no version whatever it is asked, and a folder that says that it is 3.6.16.
    fn remembered_as_3_6_16() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        remembered::keep(folder.path(), Fingerprint::of(&program).unwrap(), "3.6.16".into()).unwrap();
        (folder, program)
    }

    #[tokio::test]
    async fn a_binary_that_said_its_version_before_is_not_asked_again() {
        let (folder, program) = remembered_as_3_6_16();
        let mut binary = Binary::ask(program.clone(), folder.path().to_owned());
        assert_eq!(binary.demand(&"3.6.16".into()).await, Ok(program));
    }

    #[tokio::test]
    async fn nothing_is_refused_for_what_was_only_remembered() {
        let (folder, program) = remembered_as_3_6_16();
        let mut binary = Binary::ask(program, folder.path().to_owned());
        let refusal = binary.demand(&"3.7.3".into()).await.unwrap_err();
        assert!(refusal.message.contains("named no version"), "{refusal:?}");
    }

    #[test]
    fn variables_that_etcd_would_obey_are_private() {
        let names = ["ETCD_NAME", "QUORATE_MEMBER", "PATH", "GOMEMLIMIT", "ETCDCTL_API"].map(OsString::from);
        let found: Vec<_> = private(names.into_iter()).collect();
        assert_eq!(found, ["ETCD_NAME", "QUORATE_MEMBER"]);
    }
}
