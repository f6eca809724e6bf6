//! Restores a backup onto the volume of a new cluster's first member, before its launcher. The volume's marker says how far
//! that has come, so whatever was killed is repeated, and nothing is ever restored onto a volume on which etcd was started.
//! It starts nothing.

mod fault;
mod room;
mod serve;

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::format::{Choice, GenerationKey, Revision};
use crate::launch::Identity;
use crate::launch::marker::{self, Marker, Restore};
use crate::launch::ticket_file;
use crate::restore::{self, Damaged, Making, Membership, Progress, RestoreError, Restored, Tool, Wanted};
use crate::store::Store;
use crate::ticket::{DATA_FOLDER, EtcdVersion};
use crate::wal::{self, Wal};

pub use fault::SeedError;
pub use serve::{Desk, until_restored};

/// What a seed is to be.
#[derive(Debug, Clone)]
pub struct Order {
    /// Its volume's root.
    pub volume: PathBuf,
    /// Whose the volume is.
    pub identity: Identity,
    /// The version of etcd that will run.
    pub version: EtcdVersion,
    /// The file that shows the pod's ticket. Once there is one, it is the launcher's turn.
    pub ticket: PathBuf,
    /// etcd's limit for its database, in bytes.
    pub quota: Option<u64>,
    /// Which backup, and up to where.
    pub wanted: Wanted,
    /// etcdutl.
    pub tool: Tool,
    /// Which member it becomes.
    pub membership: Membership,
}

/// How it ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filled {
    /// The backup was restored now.
    Now(Restored),
    /// It had been restored before.
    Before,
    /// etcd was started here, or was told to: nothing was done.
    Started,
}

/// A restore that was found to be above the quota: only reading all of it tells, and the next try would find the same.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TooLarge {
    generation: GenerationKey,
    revision: Revision,
    database: u64,
    thinned: bool,
}

/// Restores the backup onto the volume, unless that was done before. `too_large` remembers from one try to the next what is
/// not worth to be fetched again.
async fn fill(
    store: &Store,
    order: &Order,
    too_large: &mut Option<TooLarge>,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Filled, SeedError> {
    let Order { volume, identity, version, ticket, quota, wanted, tool, membership } = order;
    // A container that is started once more, as after its node's: the launcher judges what is on the volume.
    if ticket_file::read(ticket).map_err(|refusal| SeedError::Ticket(refusal.message))?.is_some() {
        return Ok(Filled::Started);
    }
    let _held = lock(volume)?;
    match state_of(volume, identity, version)? {
        State::Started => return Ok(Filled::Started),
        State::Restored => return Ok(Filled::Before),
        State::Open => {}
    }
    let mark = |state: Restore| {
        let marker = Marker::of(identity).restoring(state);
        marker.write(volume).map_err(|source| SeedError::volume("write the marker on", volume, source))
    };
    mark(Restore::Begun)?;
    let data = volume.join(DATA_FOLDER);
    let cleared = marker::discard(volume).and_then(|_| restore::clear_remains(&data));
    cleared.map_err(|source| SeedError::volume("delete half a restore from", volume, source))?;
    let choice = restore::find(store, wanted, Damaged::Fails).await?;
    is_readable(&choice.chain.full.etcd_version, version)?;
    room::check(&choice, volume)?;
    let making = Making { tool, membership, quota: *quota };
    let restored = restore_once(store, &choice, &data, &making, too_large, report).await?;
    match wal::inspect(&data)? {
        Wal::HasEntry => {}
        Wal::Absent | Wal::Empty => return Err(SeedError::NoLog),
    }
    mark(Restore::Done(version.clone()))?;
    Ok(Filled::Now(restored))
}

/// Restores the data folder, unless that was found to be too large.
async fn restore_once(
    store: &Store,
    choice: &Choice,
    data: &Path,
    making: &Making<'_>,
    too_large: &mut Option<TooLarge>,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Restored, RestoreError> {
    let found = too_large.as_ref().zip(making.quota);
    let same =
        |(found, _): &(&TooLarge, u64)| found.generation == choice.chain.key && found.revision == choice.revision;
    if let Some((&TooLarge { database, thinned, .. }, quota)) = found.filter(same) {
        return Err(RestoreError::AboveQuota { database, quota, thinned });
    }
    let restored = restore::data_folder(store, choice, data, making, report).await;
    if let Err(RestoreError::AboveQuota { database, thinned, quota: _ }) = restored {
        let (generation, revision) = (choice.chain.key.clone(), choice.revision);
        *too_large = Some(TooLarge { generation, revision, database, thinned });
    }
    restored
}

/// Demands that the backup was not made by a later line of etcd than will run. What is no version is left to etcdutl.
fn is_readable(backup: &str, version: &EtcdVersion) -> Result<(), SeedError> {
    let line = |text: &str| {
        let mut parts = text.split('.').map(|part| part.parse::<u32>().ok());
        Some((parts.next()??, parts.next()??))
    };
    match (line(backup), line(version.as_str())) {
        (Some(made), Some(runs)) if made > runs => {
            Err(SeedError::Later { backup: backup.to_owned(), version: version.clone() })
        }
        (Some(_) | None, Some(_) | None) => Ok(()),
    }
}

/// What a volume is to a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// New, or with what a restore left that did not come to its end, or was made for another version of etcd.
    Open,
    /// All is there.
    Restored,
    /// etcd was started here.
    Started,
}

fn state_of(volume: &Path, identity: &Identity, version: &EtcdVersion) -> Result<State, SeedError> {
    let Some(marker) = Marker::read(volume)? else {
        let data = marker::first_data(volume).map_err(|source| SeedError::volume("list", volume, source))?;
        return data.map_or(Ok(State::Open), |name| Err(SeedError::OtherData(name)));
    };
    let was_waited_on = marker.is_of_a_wait(volume, identity);
    if was_waited_on.map_err(|source| SeedError::volume("list", volume, source))? {
        return Ok(State::Open);
    }
    if !marker.is_of(identity) {
        return Err(SeedError::OtherMarker { member: marker.member, volume: marker.volume });
    }
    Ok(match marker.restore {
        None => State::Started,
        Some(Restore::Done(for_version)) if for_version == *version => State::Restored,
        Some(Restore::Begun | Restore::Done(_)) => State::Open,
    })
}

/// Locks the volume as the launcher does, so that no two work on it.
fn lock(volume: &Path) -> Result<File, SeedError> {
    let root = File::open(volume).map_err(|source| SeedError::volume("open", volume, source))?;
    match root.try_lock() {
        Ok(()) => Ok(root),
        Err(TryLockError::WouldBlock) => Err(SeedError::InUse),
        // Some network file systems can't lock a folder.
        Err(TryLockError::Error(fault)) => {
            tracing::warn!("failed to lock the volume: {fault}");
            Ok(root)
        }
    }
}

/// Whether a file system has no room.
fn is_full(fault: &io::Error) -> bool {
    matches!(fault.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}
