//! Keeps a record of a cluster: a full snapshot now and then, and every event between, so that any revision can be restored.
//! It reads one member and never slows it down: when it can't keep up it stops recording and begins anew with a full
//! snapshot. Beside each member of a cluster there may be one: the one beside the leader records, the others follow and
//! are ready to go on. It does not decide who leads.

mod backlog;
mod board;
mod course;
mod door;
mod feed;
mod flush;
mod former;
mod http;
mod lag;
mod lead;
mod leases;
mod pauses;
mod recorder;
mod recording;
mod retention;
mod rivals;
#[cfg(test)]
pub(crate) mod scene;
mod session;
pub mod status;
mod successor;
mod turn;

use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinError;

use crate::care::Keep;
use crate::format::{ChainError, Lineage};
use crate::keys::KeysError;
use crate::snapshot::TakeError;
use crate::source::{AccessError, remedy};
use crate::store::StoreError;

pub use board::Board;
pub use course::run;
pub use feed::FeedError;
pub use flush::FlushError;
pub use http::serve;
pub use recorder::{Batch, Fault, Recorder};

/// What can be set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whose record it is.
    pub lineage: Lineage,
    /// When it records.
    pub duty: Duty,
    /// How often what came is stored: what may be lost with the cluster.
    pub flush_every: Duration,
    /// How often a full snapshot begins a new generation.
    pub full_every: Duration,
    /// After how many bytes of events (uncompressed) a full snapshot begins a new generation: restored files hold them all,
    /// and must stay below etcd's quota.
    pub full_after: u64,
    /// A folder for what does not fit memory.
    pub spill: PathBuf,
    /// How many bytes may lie there.
    pub spill_limit: u64,
    /// What is kept of older generations; `None`: all of it.
    pub keep: Option<Keep>,
}

/// When an archive records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Whatever its member is.
    Always,
    /// While its member leads. Else it follows, and never ends because the store or the member can't be used.
    BesideLeader,
}

/// Why recording stopped for the moment.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// etcd can't be reached.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// etcd refuses.
    #[error("failed to ask etcd: {0}{remedy}", remedy = remedy(.0))]
    Etcd(#[from] etcd_client::Error),
    /// etcd does not answer.
    #[error("failed to ask etcd: no answer came in time")]
    Silent,
    /// What it shows in a watch is not all that happened.
    #[error(
        "etcd {0} may leave events out of a watch around a compaction (etcd #18089, #19179): a continuous backup needs \
         3.5.16 or later, `quorate-agent snapshot` does not"
    )]
    TooOld(String),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// To whom is encrypted can't be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The generation that was recorded can't be read.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// No full snapshot was taken.
    #[error(transparent)]
    Take(#[from] Box<TakeError>),
    /// The watch has ended.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// What the watch shows does not follow what was recorded.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// What came can't be stored.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// A task ended unexpectedly.
    #[error("failed to store what came: {0}")]
    Task(#[from] JoinError),
}

/// What has to come next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// To go on with this generation, or to look which one there is.
    Continue,
    /// To begin a new generation.
    Full(&'static str),
    /// Nothing: it was told to stop.
    Stop,
}
