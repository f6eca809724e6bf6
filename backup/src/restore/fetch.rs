//! Fetches a full snapshot into a file: decompressed, proved, and without the hash that etcd put behind it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tokio::task::{JoinHandle, spawn_blocking};

use super::{Progress, RestoreError, scratch};
use crate::bolt::{Database, Tail};
use crate::format::{Chain, DataObject, DataReader};
use crate::store::Store;

/// After so many bytes the disk is made to take what came, while more comes: else the end would wait for all of it.
const WRITE_BACK: u64 = 64 << 20;

/// Writes the database of a generation's full snapshot to `path`, which must not exist.
pub(super) async fn full(
    store: &Store,
    chain: &Chain,
    path: &Path,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<(), RestoreError> {
    let fault = |source| RestoreError::Write { path: path.to_owned(), source };
    let mut file = scratch::create(path).map_err(fault)?;
    let mut reader = DataReader::new(&DataObject::new(store, &chain.key, &chain.full.data)?);
    let total = chain.full.data.plain_bytes;
    let (mut offset, mut unsynced) = (0, 0);
    let mut sync: Option<JoinHandle<io::Result<()>>> = None;
    // Writing waits for the disk, so it runs on a thread that may; the next piece is fetched meanwhile.
    while let Some(piece) = reader.next().await? {
        let length = piece.len() as u64;
        let (back, result) = spawn_blocking(move || write(file, &piece, offset)).await?;
        file = back;
        result.map_err(fault)?;
        offset += length;
        unsynced += length;
        if let Some(ended) = sync.take_if(|sync| sync.is_finished()) {
            // The kernel tells a failed write to one who syncs, and to nobody after that.
            ended.await?.map_err(fault)?;
        }
        if unsynced >= WRITE_BACK && sync.is_none() {
            unsynced = 0;
            let file = file.try_clone().map_err(fault)?;
            sync = Some(spawn_blocking(move || file.sync_data()));
        }
        report(Progress::Fetching { done: offset, total });
    }
    if let Some(last) = sync {
        last.await?.map_err(fault)?;
    }
    file.set_len(chain.full.database_bytes).map_err(fault)?;
    let database = Database::open(&file)?;
    let found = Tail::read(&database)?.revision;
    if found == chain.full.revision.get() {
        Ok(())
    } else {
        Err(RestoreError::Full { key: chain.key.full(), said: chain.full.revision, found })
    }
}

fn write(file: File, piece: &[u8], offset: u64) -> (File, io::Result<()>) {
    let result = file.write_all_at(piece, offset);
    (file, result)
}
