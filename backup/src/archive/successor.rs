//! The generation that is begun beside the one that is recorded into, so that nothing of what is written meanwhile waits for
//! its full snapshot, or is in neither. It does not decide when one is due.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

use super::ArchiveError;
use super::session::{Session, Start};
use crate::format::{GenerationKey, Revision};

/// How soon it is tried again after it failed.
const AGAIN_AFTER: Duration = Duration::from_mins(1);

/// What becomes of it.
pub(super) struct Successor<'a> {
    session: Session<'a>,
    stage: Stage<'a>,
    /// The last try failed, and none has ended well since.
    failed: bool,
}

enum Stage<'a> {
    /// There is none.
    None,
    /// Its full snapshot is being taken.
    Coming(Pin<Box<dyn Future<Output = Result<Start, ArchiveError>> + Send + 'a>>),
    /// Its full snapshot is stored, and its watch runs.
    Ready(Box<Start>),
    /// It failed then.
    Failed(Instant),
}

impl<'a> Successor<'a> {
    pub fn none(session: Session<'a>) -> Self {
        Self { session, stage: Stage::None, failed: false }
    }

    /// Whether one can be begun now.
    pub fn is_open(&self) -> bool {
        match self.stage {
            Stage::None => true,
            Stage::Coming(_) | Stage::Ready(_) => false,
            Stage::Failed(at) => at.elapsed() >= AGAIN_AFTER,
        }
    }

    pub fn begin(&mut self, reason: &'static str) {
        let session = self.session;
        self.stage = Stage::Coming(Box::pin(async move { session.begin(reason, &session.room.sparing()).await }));
    }

    /// Whoever does not record any more begins none either. What is stored of it is found by whoever does.
    pub fn drop_it(&mut self) {
        (self.stage, self.failed) = (Stage::None, false);
    }

    /// Whether it has failed, and no later one has come since.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The end of taking its full snapshot, be it good or bad. While none is being taken, never.
    pub async fn came(&mut self) -> Result<(), ArchiveError> {
        let Stage::Coming(coming) = &mut self.stage else { return std::future::pending().await };
        let came = coming.as_mut().await;
        self.failed = came.is_err();
        match came {
            Ok(start) => {
                self.stage = Stage::Ready(Box::new(start));
                Ok(())
            }
            Err(error) => {
                self.stage = Stage::Failed(Instant::now());
                Err(error)
            }
        }
    }

    /// Whether this is it.
    pub fn is(&self, key: &GenerationKey) -> bool {
        matches!(&self.stage, Stage::Ready(start) if start.chain.key == *key)
    }

    /// It, if all up to its full snapshot is stored in the one before.
    pub fn take_behind(&mut self, stored: Revision) -> Option<Start> {
        let Stage::Ready(start) = &self.stage else { return None };
        // More came during its snapshot than may wait: what is recorded here is whole, and goes on.
        if start.feed.has_ended() {
            tracing::warn!(
                "the watch of {} has ended before it was gone over to: another one is begun",
                start.chain.key
            );
            (self.stage, self.failed) = (Stage::Failed(Instant::now()), true);
            return None;
        }
        if start.chain.head() > stored {
            return None;
        }
        match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::Ready(start) => Some(*start),
            Stage::None | Stage::Coming(_) | Stage::Failed(_) => None,
        }
    }
}
