//! What is still stored when a session ends: what has come by then, in bounded time.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Recording, finished};
use crate::archive::backlog::News;
use crate::archive::course::Course;
use crate::archive::session::revision;
use crate::archive::turn::Post;
use crate::archive::{ArchiveError, Duty, Fault, Next};

/// How long it may take: to hear up to where all has come, and to store it.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// The same where another archive goes on: the pod must not wait for it.
const SHORT_LAST_WORDS: Duration = Duration::from_secs(2);

/// What is stored at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Nothing.
    Nothing,
    /// What has come.
    Heard,
    /// What has been written, once it has come.
    Written,
}

impl Last {
    fn of(ended: &Result<Next, ArchiveError>) -> Self {
        match ended {
            Ok(Next::Full(_) | Next::Stop) => Self::Written,
            // The next watch may not bring it once more: etcd may have compacted it by then, or it is too much.
            Err(ArchiveError::Feed(_) | ArchiveError::Etcd(_) | ArchiveError::Fault(Fault::Large(_))) => Self::Heard,
            // What comes next goes on with it; or it may be of another history, or can't be stored.
            Ok(Next::Continue)
            | Err(
                ArchiveError::Fault(Fault::Forked(_) | Fault::Order { .. } | Fault::Empty | Fault::Record(_))
                | ArchiveError::Access(_)
                | ArchiveError::Silent
                | ArchiveError::TooOld(_)
                | ArchiveError::Store(_)
                | ArchiveError::Keys(_)
                | ArchiveError::Chain(_)
                | ArchiveError::Take(_)
                | ArchiveError::Flush(_)
                | ArchiveError::Task(_),
            ) => Self::Nothing,
        }
    }
}

impl Recording<'_> {
    /// Stores what has come so far. Who stands by has nothing to store.
    pub(super) async fn last_words(
        &mut self,
        ended: &Result<Next, ArchiveError>,
        course: &mut Course,
        mut stop: watch::Receiver<bool>,
    ) {
        let last = Last::of(ended);
        if self.post != Post::Committer || last == Last::Nothing {
            return;
        }
        let limit = match (ended, self.session.settings.duty) {
            (Ok(Next::Stop), Duty::BesideLeader) => SHORT_LAST_WORDS,
            (Ok(Next::Stop | Next::Full(_) | Next::Continue) | Err(_), Duty::Always | Duty::BesideLeader) => LAST_WORDS,
        };
        let said = timeout(limit, self.store_what_came(last, limit, course));
        let said = if ended.is_ok() {
            said.await
        } else {
            tokio::select! {
                said = said => said,
                // Told to stop meanwhile, it ends: the pod must not wait for it.
                _ = stop.wait_for(|stop| *stop) => return,
            }
        };
        match said {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the last events could not be recorded: {error}"),
            Err(_) => tracing::warn!("the last events could not be recorded within {limit:?}"),
        }
    }

    async fn store_what_came(&mut self, last: Last, limit: Duration, course: &mut Course) -> Result<(), ArchiveError> {
        self.let_work_end(course).await?;
        // etcd may have ended already, or hang: what is closed is stored all the same, in what is left of the time.
        let heard = match last {
            Last::Written => self.hear_all(limit / 2).await,
            Last::Heard | Last::Nothing => Ok(()),
        };
        self.flush_within(limit / 4).await;
        self.let_work_end(course).await?;
        heard
    }

    async fn let_work_end(&mut self, course: &mut Course) -> Result<(), ArchiveError> {
        if self.work.is_some() {
            let done = finished(&mut self.work).await?;
            Box::pin(self.done(done, course)).await?;
        }
        Ok(())
    }

    /// Takes all that was written until now, as far as etcd tells it in time.
    async fn hear_all(&mut self, within: Duration) -> Result<(), ArchiveError> {
        let until = Instant::now() + within;
        let last = timeout_at(until, revision(&mut self.connection)).await.map_err(|_| ArchiveError::Silent)??.get();
        self.hear_until(last, until).await
    }

    /// Takes all up to this revision, which was written.
    pub(super) async fn hear_until(&mut self, last: u64, until: Instant) -> Result<(), ArchiveError> {
        // All of that has come to its end, or is in the full snapshot. To ask would be in vain: etcd leaves a question for
        // progress unanswered until the revision is there with which the watch begins, as behind a full snapshot after which
        // nothing was written.
        if self.recorder.head() >= last {
            return Ok(());
        }
        self.feed.ask_progress().await?;
        loop {
            let heard = timeout_at(until, self.feed.next()).await.map_err(|_| ArchiveError::Silent)??;
            // An earlier question's answer may still be on its way.
            let all_came = matches!(heard.news, News::Progress(reached) if reached >= last);
            self.take(heard).await?;
            if all_came {
                return Ok(());
            }
        }
    }
}
