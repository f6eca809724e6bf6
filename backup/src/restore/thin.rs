//! Leaves the history out where a database would come near etcd's quota with it. etcd counts the whole file, also what nobody
//! uses any more, and refuses every write above that; and the history can't be read anyway once its restore is marked as
//! compacted.

use std::fs::{self, File};
use std::path::Path;

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::{Progress, RestoreError, scratch, unwritable};
use crate::bolt::{Database, Live};

/// Above this part of the quota, in percent. Below it there is room for what is written before etcd has compacted the history
/// and goes on in its place.
const MUCH: u64 = 60;

/// Whether a database of so many bytes is to be without its history.
pub(super) fn is_much(bytes: u64, quota: u64) -> bool {
    u128::from(bytes) * 100 > u128::from(quota) * u128::from(MUCH)
}

/// Writes the database at `path` anew without its history, if that is below the quota. Tells how many events were left out.
pub(super) async fn thin(path: &Path, quota: u64, report: &(dyn Fn(Progress) + Sync)) -> Result<u64, RestoreError> {
    let (gone_over, mut seen) = watch::channel((0, 0));
    let path = path.to_owned();
    let writing = spawn_blocking(move || replace(&path, quota, &gone_over));
    let reporting = async {
        while seen.changed().await.is_ok() {
            let (done, total) = *seen.borrow_and_update();
            report(Progress::Thinning { done, total });
        }
    };
    let (written, ()) = tokio::join!(writing, reporting);
    written?
}

fn replace(path: &Path, quota: u64, gone_over: &watch::Sender<(u64, u64)>) -> Result<u64, RestoreError> {
    let thinner = path.with_extension("live");
    let whole = File::open(path).map_err(unwritable(path))?;
    let whole = Database::open(&whole)?;
    let mut report = |done, total| {
        gone_over.send_replace((done, total));
    };
    let live = Live::find(&whole, &mut report)?;
    if live.bytes > quota {
        return Err(RestoreError::AboveQuota { database: live.bytes, quota, thinned: true });
    }
    let free = scratch::free(path).map_err(unwritable(path))?;
    if live.bytes > free {
        return Err(RestoreError::NoRoom { needed: live.bytes, free });
    }
    let file = scratch::create(&thinner).map_err(unwritable(&thinner))?;
    live.write(&whole, &file, &mut report)?;
    fs::rename(&thinner, path).map_err(unwritable(path))?;
    Ok(live.left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_percent_are_not_much_and_more_is() {
        assert!(!is_much(0, 0) && is_much(1, 0));
        assert!(!is_much(60, 100) && is_much(61, 100));
        assert!(!is_much(u64::MAX / 2, u64::MAX) && is_much(u64::MAX, u64::MAX));
    }
}
