//! kubectl, called as a user calls it. It runs and reports; what the answer means is the scene's business.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncWriteExt as _;

use crate::lab::Lab;

/// How long a call may take: longer than any drain that a scene starts.
const DEADLINE: Duration = Duration::from_mins(3);

/// What kubectl said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The command line, for messages.
    pub line: String,
    /// It ended with 0.
    pub fine: bool,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Said {
    /// Demands that it ended well, and returns what it printed.
    pub fn well(self) -> Result<String> {
        if self.fine {
            return Ok(self.out);
        }
        bail!("`{}` failed: {}", self.line, self.err.trim())
    }

    /// Demands that it did not end well, and returns why.
    pub fn refused(self) -> Result<String> {
        if self.fine {
            bail!("`{}` was accepted: {}", self.line, self.out.trim());
        }
        Ok(self.err)
    }
}

/// The local cluster's kubectl, or the one on the path with the user's own kubeconfig.
fn program() -> Result<std::process::Command> {
    if std::env::var_os(super::LAB_VARIABLE).is_some() {
        return Ok(Lab::from_env()?.kubectl().to_std());
    }
    Ok(std::process::Command::new("kubectl"))
}

/// Calls kubectl and waits for its end.
pub async fn kubectl(args: &[&str], input: Option<Vec<u8>>) -> Result<Said> {
    let mut command = tokio::process::Command::from(program()?);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("failed to start kubectl")?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        stdin.write_all(&input).await.context("failed to hand kubectl its input")?;
    }
    let line = format!("kubectl {}", args.join(" "));
    let ended = tokio::time::timeout(DEADLINE, child.wait_with_output()).await;
    let output = ended.with_context(|| format!("`{line}` did not end within {} s", DEADLINE.as_secs()))??;
    Ok(Said {
        line,
        fine: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
