//! The one gate through which every write goes, to Kubernetes and to etcd alike: the Lease is looked at right before,
//! each write has a deadline and is counted. What is written is not its business.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::lease::Claim;

/// The exit code of a crash that a test asked for. Nothing else ends with it.
pub const CRASH_CODE: i32 = 86;

/// Why a write has no answer to show.
#[derive(Debug, thiserror::Error)]
pub enum Error<E> {
    /// The Lease is another's, or might be: nothing was written.
    #[error("this operator does not lead")]
    NotLeading,
    /// The operator is being stopped: nothing was written.
    #[error("this operator is being stopped")]
    Stopping,
    /// No answer in time: it may have been written or not.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// The answer is an error.
    #[error(transparent)]
    Failed(E),
}

/// The gate. Clones share it. Only writes that succeeded are counted.
#[derive(Clone, Debug)]
pub struct Writes {
    claim: Claim,
    stopping: watch::Receiver<bool>,
    done: Arc<AtomicU64>,
    crash_after: Option<u64>,
}

impl Writes {
    /// A gate that is open while `claim` holds and `stopping` is false. With `crash_after`, the process exits right
    /// after that many writes, for the tests that crash an operator at each of its writes.
    pub fn new(claim: Claim, stopping: watch::Receiver<bool>, crash_after: Option<u64>) -> Self {
        Self { claim, stopping, done: Arc::default(), crash_after }
    }

    /// Whether a write may start now.
    pub fn open(&self) -> bool {
        self.claim.holds() && !*self.stopping.borrow()
    }

    /// Which of this operator's terms as a leader it is, while one lasts.
    pub fn term(&self) -> Option<u64> {
        self.claim.term()
    }

    /// Does one write, if the gate is open.
    pub async fn perform<T, E>(
        &self,
        deadline: Duration,
        write: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error<E>> {
        if *self.stopping.borrow() {
            return Err(Error::Stopping);
        }
        if !self.claim.holds() {
            return Err(Error::NotLeading);
        }
        match timeout(deadline, write).await {
            Ok(Ok(value)) => {
                self.count();
                Ok(value)
            }
            Ok(Err(error)) => Err(Error::Failed(error)),
            Err(_) => Err(Error::Deadline(deadline)),
        }
    }

    /// Does something that nobody waits for and no decision rests on, such as telling an event; it is not counted.
    pub async fn mention<T, E>(
        &self,
        deadline: Duration,
        write: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error<E>> {
        if !self.claim.holds() {
            return Err(Error::NotLeading);
        }
        timeout(deadline, write).await.map_err(|_| Error::Deadline(deadline))?.map_err(Error::Failed)
    }

    fn count(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if self.crash_after == Some(done) {
            tracing::error!(writes = done, "crashes, as QUORATE_CRASH_AFTER_WRITES asks");
            std::process::exit(CRASH_CODE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(10);

    fn fine() -> std::future::Ready<Result<u8, std::fmt::Error>> {
        std::future::ready(Ok(1))
    }

    #[tokio::test]
    async fn nothing_is_written_without_the_lease_or_while_stopping() {
        let (stop, stopping) = watch::channel(false);
        let shut = Writes::new(Claim::never(), stopping.clone(), None);
        assert!(matches!(shut.perform(SOON, fine()).await, Err(Error::NotLeading)));
        let writes = Writes::new(Claim::forever(), stopping, None);
        assert!(writes.open());
        assert!(matches!(writes.perform(SOON, fine()).await, Ok(1)));
        stop.send(true).unwrap();
        assert!(matches!(writes.perform(SOON, fine()).await, Err(Error::Stopping)));
        assert!(!writes.open());
        assert_eq!(writes.done.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_an_answer_ends_at_its_deadline() {
        let (_stop, stopping) = watch::channel(false);
        let writes = Writes::new(Claim::forever(), stopping, None);
        let answer: Result<(), Error<std::fmt::Error>> = writes.perform(SOON, std::future::pending()).await;
        assert!(matches!(answer, Err(Error::Deadline(_))));
    }
}
