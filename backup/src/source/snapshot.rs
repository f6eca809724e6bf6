//! etcd's snapshot as it streams in, proved by the SHA-256 that etcd sends last. Only a stream whose end was proved has an
//! end: everything else is an error, also a connection that closes as if all had been sent.

use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::{Bytes, BytesMut};
use etcd_client::{Client, SnapshotStreaming};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::remedy;

/// The size of the SHA-256 that etcd sends after the database.
pub const TRAILER: usize = 32;
/// The size in which pieces are handed on. etcd sends 32 KiB at a time.
const PIECE: usize = 1 << 20;
/// How long etcd may be silent. It reads from memory or disk and sends; a pause of seconds is a full disk queue.
const SILENCE: Duration = Duration::from_mins(1);

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// etcd refuses, or the connection is lost.
    #[error("failed to read the snapshot from etcd: {0}{remedy}", remedy = remedy(.0))]
    Etcd(#[from] etcd_client::Error),
    /// etcd sends nothing more.
    #[error("failed to read the snapshot from etcd: nothing came for {SILENCE:?}")]
    Silent,
    /// The stream ends before the hash.
    #[error("failed to read the snapshot from etcd: it ends after {0} bytes, before its hash")]
    Cut(u64),
    /// The hash is another one.
    #[error(
        "failed to read the snapshot from etcd: its SHA-256 is not the one that etcd sent; it was cut or changed on its way"
    )]
    Hash,
    /// A thread ended unexpectedly.
    #[error("failed to hash the snapshot: {0}")]
    Thread(#[from] JoinError),
}

/// What comes of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// The next bytes of the database. They are not proved yet.
    Database(Bytes),
    /// All bytes were right. This is the hash that proved them, as etcd sent it.
    Proved([u8; TRAILER]),
}

/// A snapshot on its way.
pub struct SnapshotStream {
    messages: SnapshotStreaming,
    /// What came and was not handed on. The last bytes of the stream are no part of the database, and which bytes are
    /// the last shows only at the end.
    held: BytesMut,
    /// The hash of what was handed on. Hashing takes as long as etcd takes to send, so it runs beside it.
    hashing: JoinHandle<Context>,
    handed_on: u64,
    total: Option<u64>,
}

impl SnapshotStream {
    /// Asks for one.
    pub async fn open(client: &mut Client) -> Result<Self, SnapshotError> {
        let messages = timeout(SILENCE, Box::pin(client.snapshot())).await.map_err(|_| SnapshotError::Silent)??;
        let hashing = spawn_blocking(|| Context::new(&SHA256));
        Ok(Self { messages, held: BytesMut::new(), hashing, handed_on: 0, total: None })
    }

    /// How large the database is, in bytes, as soon as etcd has said so.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// The next piece. After [`Piece::Proved`] nothing may be asked for.
    pub async fn next(&mut self) -> Result<Piece, SnapshotError> {
        while self.held.len() < PIECE + TRAILER {
            match timeout(SILENCE, self.messages.message()).await.map_err(|_| SnapshotError::Silent)?? {
                Some(message) => {
                    let all = message.remaining_bytes().saturating_add(message.blob().len() as u64);
                    self.total.get_or_insert_with(|| all.saturating_sub(TRAILER as u64));
                    self.held.extend_from_slice(message.blob());
                }
                None => return self.end().await,
            }
        }
        let piece = self.held.split_to(self.held.len() - TRAILER).freeze();
        self.hand_on(piece).await
    }

    async fn end(&mut self) -> Result<Piece, SnapshotError> {
        let came = self.handed_on + self.held.len() as u64;
        let Some(database) = self.held.len().checked_sub(TRAILER).filter(|_| came > TRAILER as u64) else {
            return Err(SnapshotError::Cut(came));
        };
        if database > 0 {
            let piece = self.held.split_to(database).freeze();
            return self.hand_on(piece).await;
        }
        let trailer = self.held.first_chunk().copied().ok_or(SnapshotError::Cut(came))?;
        let hash = (&mut self.hashing).await?.finish();
        if hash.as_ref() == trailer { Ok(Piece::Proved(trailer)) } else { Err(SnapshotError::Hash) }
    }

    async fn hand_on(&mut self, piece: Bytes) -> Result<Piece, SnapshotError> {
        let mut hash = (&mut self.hashing).await?;
        let hashed = piece.clone();
        self.hashing = spawn_blocking(move || {
            hash.update(&hashed);
            hash
        });
        self.handed_on += piece.len() as u64;
        Ok(Piece::Database(piece))
    }
}
