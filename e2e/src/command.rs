//! Runs other programs and says, when one fails, which command line it was and what it printed. Knows nothing of what it
//! runs.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};

use tokio::io::AsyncWriteExt;

/// How many of the last lines of a failed program are quoted: enough for the cause, short enough to read.
const QUOTED_LINES: usize = 20;

/// What went wrong with a program.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It could not be started.
    #[error("failed to start `{line}`")]
    Spawn {
        /// The command line.
        line: String,
        /// Why.
        source: std::io::Error,
    },
    /// It ended with an error.
    #[error("failed to run `{line}` ({status}):\n{output}")]
    Failed {
        /// The command line.
        line: String,
        /// Its exit status.
        status: ExitStatus,
        /// The last lines that it printed.
        output: String,
    },
}

/// One call of a program.
#[derive(Debug, Clone)]
pub struct Command {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    folder: Option<OsString>,
    input: Option<Vec<u8>>,
}

impl Command {
    /// A call of `program` without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self { program: program.as_ref().to_owned(), args: vec![], envs: vec![], folder: None, input: None }
    }

    /// A call within a network namespace. Only the network changes: the mounts stay, because a node needs the cgroup
    /// mounts that `ip netns exec` hides.
    pub fn in_namespace(namespace: &Path, program: impl AsRef<OsStr>) -> Self {
        let mut net = OsString::from("--net=");
        net.push(namespace);
        Self::new("nsenter").arg(net).arg("--").arg(program)
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs in this folder.
    #[must_use]
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.as_os_str().to_owned());
        self
    }

    /// Writes this to its standard input.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// The same call as the standard library's type, for those that need its pipes.
    pub fn to_std(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        command.args(&self.args).envs(self.envs.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    /// Runs it and returns what it printed; an error when it doesn't end well.
    pub async fn run(&self) -> Result<String, CommandError> {
        let output = self.output().await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let printed = [output.stdout, output.stderr].concat();
        Err(self.failed(output.status, &String::from_utf8_lossy(&printed)))
    }

    /// Whether it can be started and ends well.
    pub async fn succeeds(&self) -> bool {
        self.output().await.is_ok_and(|output| output.status.success())
    }

    /// Runs it with our own input and output, as if the user had called it.
    pub async fn show(&self) -> Result<ExitStatus, CommandError> {
        let mut command = tokio::process::Command::from(self.to_std());
        command.status().await.map_err(|source| self.not_started(source))
    }

    async fn output(&self) -> Result<Output, CommandError> {
        let mut command = tokio::process::Command::from(self.to_std());
        let input = if self.input.is_some() { Stdio::piped() } else { Stdio::null() };
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|source| self.not_started(source))?;
        if let (Some(input), Some(mut stdin)) = (&self.input, child.stdin.take()) {
            // A program that ends without reading its input says so itself, better than a broken pipe does.
            let _ = stdin.write_all(input).await;
        }
        child.wait_with_output().await.map_err(|source| self.not_started(source))
    }

    fn not_started(&self, source: std::io::Error) -> CommandError {
        CommandError::Spawn { line: self.to_string(), source }
    }

    /// The error for a call that ended with `status` after it printed `printed`.
    pub fn failed(&self, status: ExitStatus, printed: &str) -> CommandError {
        let lines: Vec<&str> = printed.lines().collect();
        let output = lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n");
        CommandError::Failed { line: self.to_string(), status, output }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program.to_string_lossy())?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", arg.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_quotes_the_command_line_and_its_output() {
        let error = Command::new("sh").args(["-c", "echo wrong; exit 3"]).run().await.unwrap_err().to_string();
        assert!(error.contains("sh -c echo wrong; exit 3") && error.contains("\nwrong"), "{error}");
    }

    #[tokio::test]
    async fn input_reaches_the_program() {
        assert_eq!(Command::new("cat").input("hello").run().await.unwrap(), "hello");
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let error = Command::new("no-such-program").run().await.unwrap_err().to_string();
        assert_eq!(error, "failed to start `no-such-program`");
    }
}
