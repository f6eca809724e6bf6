//! Has etcd's own tool make a member's data folder of a database: it writes the log, the membership, and a revision above
//! every one that was ever seen.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use jiff::Timestamp;
use tokio::process::Command;

use super::RestoreError;
use crate::format::Revision;

/// etcdutl, and what it is told about revisions.
#[derive(Debug, Clone)]
pub struct Tool {
    /// The program: a path, or a name on PATH. Of the etcd version that will run.
    pub program: PathBuf,
    /// How far the revision is moved on.
    pub bump: Bump,
}

/// How far the revision is moved on: above all that were ever handed out, or clients that had seen later ones would not
/// notice that they are gone, and miss what comes instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bump {
    /// To the microseconds since 1970, and by [`LEAST_BUMP`] at least. No cluster writes a million times a second, so it is
    /// above what came after the backup, and above what an earlier restore of the same backup has handed out.
    ToTheClock,
    /// By so much. Zero moves nothing, which is for looking at a backup only.
    By(u64),
}

/// More than a cluster hands out between its last backup and its end, by etcd's own advice; for clocks that are behind.
pub const LEAST_BUMP: u64 = 1_000_000_000;

impl Bump {
    /// Whether what comes before the first new revision counts as compacted, so that nobody can read it.
    pub(super) fn marks_compacted(self) -> bool {
        match self {
            Self::ToTheClock => true,
            Self::By(revisions) => revisions > 0,
        }
    }

    /// In revisions, from this one on.
    fn revisions(self, from: Revision, now: Timestamp) -> u64 {
        match self {
            Self::ToTheClock => {
                let clock = u64::try_from(now.as_microsecond()).unwrap_or(0);
                clock.saturating_sub(from.get()).max(LEAST_BUMP)
            }
            Self::By(revisions) => revisions,
        }
    }
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

/// Makes `folder` of `database`, whose last revision is `revision`. An outline will do.
pub(super) async fn restore(
    tool: &Tool,
    membership: &Membership,
    (database, revision): (&Path, Revision),
    folder: &Path,
) -> Result<(), RestoreError> {
    let Membership { name, initial_cluster, token, peer_urls } = membership;
    let mut command = Command::new(&tool.program);
    // There is no hash behind it; ours have been checked.
    command.args(["snapshot", "restore", "--skip-hash-check"]).arg(database).arg("--data-dir").arg(folder);
    command.args(["--name", name, "--initial-cluster", initial_cluster, "--initial-cluster-token", token]);
    command.args(["--initial-advertise-peer-urls", peer_urls]);
    if tool.bump.marks_compacted() {
        let bump = tool.bump.revisions(revision, Timestamp::now());
        command.args(["--bump-revision", &bump.to_string(), "--mark-compacted"]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_restore_hands_out_later_revisions_whatever_was_written_since_the_backup() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let begins = |revision: u64, now| revision + Bump::ToTheClock.revisions(Revision::new(revision).unwrap(), now);
        let first = begins(5_000, at(1_800_000_000));
        // It served for a day at a thousand a second; then the same backup is restored again, or an older one.
        let last = first + 86_400 * 1_000;
        for revision in [5_000, 1] {
            assert!(begins(revision, at(1_800_086_400)) > last);
        }
        // So does a backup of the restored cluster, at once and by a clock that knows nothing.
        for now in [at(1_800_000_001), at(0), Timestamp::MIN] {
            assert!(begins(last, now) >= last + LEAST_BUMP);
        }
        assert!(first < 1 << 53, "clients that hold numbers as JSON does can tell it from the next");
        assert_eq!(Bump::By(0).revisions(Revision::default(), at(1)), 0);
        assert!(Bump::ToTheClock.marks_compacted() && Bump::By(1).marks_compacted() && !Bump::By(0).marks_compacted());
    }
}
