//! Has etcd's own tool make a member's data folder of a database: it writes the log, the membership, and a revision above
//! every one that was ever seen.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::RestoreError;

/// etcdutl, and what it is told about revisions.
#[derive(Debug, Clone)]
pub struct Tool {
    /// The program: a path, or a name on PATH. Of the etcd version that will run.
    pub program: PathBuf,
    /// How far the revision is moved on, so that it is above all that were ever handed out. Zero moves nothing, which is
    /// for looking at a backup only: clients that had seen later revisions would not notice that they are gone.
    pub bump_revision: u64,
}

/// Which member it becomes.
#[derive(Debug, Clone)]
pub struct Membership {
    /// Its name.
    pub name: String,
    /// `name=url` of each first member.
    pub initial_cluster: String,
    /// The token that makes the new cluster's id another one.
    pub token: String,
    /// Its peer URLs.
    pub peer_urls: String,
}

/// Makes `folder` of `database`.
pub(super) async fn restore(
    tool: &Tool,
    membership: &Membership,
    database: &Path,
    folder: &Path,
) -> Result<(), RestoreError> {
    let Membership { name, initial_cluster, token, peer_urls } = membership;
    let mut command = Command::new(&tool.program);
    // The hash that it would check is of the database as it was before the deltas; ours have been checked.
    command.args(["snapshot", "restore", "--skip-hash-check"]).arg(database).arg("--data-dir").arg(folder);
    command.args(["--name", name, "--initial-cluster", initial_cluster, "--initial-cluster-token", token]);
    command.args(["--initial-advertise-peer-urls", peer_urls]);
    if tool.bump_revision > 0 {
        command.args(["--bump-revision", &tool.bump_revision.to_string(), "--mark-compacted"]);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.map_err(|source| RestoreError::Run { tool: tool.program.clone(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Its last lines say what is wrong; before them it tells what it does.
    let last: Vec<_> = stderr.lines().rev().take(5).collect();
    let stderr = last.into_iter().rev().collect::<Vec<_>>().join("\n");
    Err(RestoreError::Etcdutl { status: output.status, stderr })
}
