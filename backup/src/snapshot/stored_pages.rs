//! The pages of a database that lies compressed, perhaps encrypted, in a store: frames are fetched as they are needed, and a few are kept.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;

use crate::bolt::Pages;
use crate::format::{DataObject, FRAME};

/// Frames that are kept: the way from the root to the last leaf, which etcd's writes at the end lay close together.
const KEPT: usize = 4;

/// A database in a store. To be used on a thread that may block, within a runtime.
#[derive(Debug)]
pub(super) struct StoredPages {
    object: DataObject,
    database_bytes: u64,
    runtime: Handle,
    kept: Mutex<VecDeque<(usize, Vec<u8>)>>,
}

impl StoredPages {
    pub fn new(object: DataObject, database_bytes: u64) -> Self {
        Self { object, database_bytes, runtime: Handle::current(), kept: Mutex::default() }
    }

    /// Copies from one frame what it has of the wanted bytes.
    fn copy(&self, frame: usize, start: usize, into: &mut [u8]) -> io::Result<usize> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|(number, _)| *number == frame) {
            let plain = self.runtime.block_on(self.object.frame(frame)).map_err(io::Error::other)?;
            kept.push_front((frame, plain.ok_or(io::ErrorKind::UnexpectedEof)?));
            kept.truncate(KEPT);
        }
        let plain = kept.iter().find(|(number, _)| *number == frame).and_then(|(_, plain)| plain.get(start..));
        let plain = plain.filter(|plain| !plain.is_empty()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let length = plain.len().min(into.len());
        into[..length].copy_from_slice(&plain[..length]);
        Ok(length)
    }
}

impl Pages for StoredPages {
    fn read_at(&self, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
        let frame_size = FRAME as u64;
        while !into.is_empty() {
            let frame = usize::try_from(offset / frame_size).unwrap_or(usize::MAX);
            let start = usize::try_from(offset % frame_size).unwrap_or(usize::MAX);
            let copied = self.copy(frame, start, into)?;
            into = &mut into[copied..];
            offset += copied as u64;
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.database_bytes)
    }
}
