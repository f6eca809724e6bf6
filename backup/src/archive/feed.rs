//! The watch, received without a pause: a watch that lags makes etcd read its whole backlog again for each thousand revisions.
//! What is not consumed in time waits in a bounded backlog; beyond it the watch is given up rather than slowed down.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::PbWatchResponse;
use etcd_client::{Client, WatchOptions, WatchRequestSender, WatchResponseStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::backlog::{Backlog, Heard, News, Room};
use crate::format::Revision;

/// The largest message that is taken. Fragments are bounded by etcd's largest request, which may be set up to this.
const LARGEST_MESSAGE: usize = 96 << 20;

/// How soon a question that etcd left unanswered is asked again. It looks ten times a second for watches that are behind.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Why a watch has ended that etcd did not cancel.
const STREAM_ENDED: &str = "the stream has ended";

/// Why the watch ended.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// etcd refuses, or the connection is lost.
    #[error("the watch failed: {0}")]
    Etcd(#[from] etcd_client::Error),
    /// etcd ended it.
    #[error("etcd ended the watch: {0}")]
    Canceled(String),
    /// What it should begin with was compacted.
    #[error("the history before revision {0} has been compacted")]
    Compacted(i64),
    /// More came than could be stored in time.
    #[error("the watch was given up: more came than could be stored in time ({0})")]
    Overflow(#[source] io::Error),
}

type Requests = Arc<Mutex<Option<WatchRequestSender>>>;

/// A watch of all keys.
#[derive(Debug)]
pub(super) struct Feed {
    /// None once it has ended: etcd goes on sending into a watch of which either side is held.
    requests: Requests,
    backlog: Arc<Backlog>,
    receiving: JoinHandle<()>,
    /// What it begins with had not been written when etcd took it.
    begins_ahead: bool,
}

impl Feed {
    /// Opens it at a revision, whose own events come first. etcd has taken it then, though it may compact that revision before
    /// it has read it: see [`Self::in_step`].
    pub async fn open(client: &Client, from: Revision, (folder, room): (&Path, &Room)) -> Result<Self, FeedError> {
        let backlog = Arc::new(Backlog::new(folder, room.clone()).map_err(FeedError::Overflow)?);
        let from = from.to_etcd();
        let options =
            WatchOptions::new().with_all_keys().with_start_revision(from).with_fragment().with_progress_notify();
        let mut client = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
        let (requests, mut responses) = Box::pin(client.watch("", Some(options))).await?.split();
        let first = responses.message().await?.ok_or_else(|| FeedError::Canceled(STREAM_ENDED.into()))?.0;
        let begins_ahead = first.header.as_ref().is_some_and(|header| header.revision < from);
        if let Some(news) = read(first)? {
            backlog.push(news);
        }
        let requests = Arc::new(Mutex::new(Some(requests)));
        let (news, asked) = (Arc::clone(&backlog), Arc::clone(&requests));
        let receiving = tokio::spawn(async move {
            receive(responses, news).await;
            asked.lock().await.take();
        });
        Ok(Self { requests, backlog, receiving, begins_ahead })
    }

    /// Waits until etcd sends what is written as it is written, or has begun to send. Then it has hardly any history to read for
    /// this watch, which is received without a pause, so that a compaction does not overtake it. An error if it has ended.
    pub async fn in_step(&self) -> Result<(), FeedError> {
        while !self.begins_ahead && self.backlog.is_empty() && !self.has_ended() {
            // Of a watch that is behind etcd leaves this unanswered, and so it does before what the watch begins with is there.
            if let Err(error) = self.ask_progress().await
                && !self.has_ended()
            {
                return Err(error);
            }
            sleep(ASK_AGAIN).await;
        }
        // What came before its end is of no use without the rest.
        while self.has_ended() {
            self.next().await?;
        }
        Ok(())
    }

    /// The next news; an error when the watch has ended and all its news were consumed.
    pub async fn next(&self) -> Result<Heard, FeedError> {
        self.backlog.next().await
    }

    /// Whether the watch has ended, though some of its news may wait.
    pub fn has_ended(&self) -> bool {
        self.backlog.has_ended()
    }

    /// Whether news wait to be taken.
    pub fn holds(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// From now on its news may wait in all the room there is.
    pub fn take_all_room(&self) {
        self.backlog.take_all_room();
    }

    /// Asks etcd up to where it has sent everything. The answer is news; a watch that has ended is not asked, and of one that
    /// can't be asked any more what has come is taken first.
    pub async fn ask_progress(&self) -> Result<(), FeedError> {
        match self.requests.lock().await.as_mut() {
            Some(requests) => match requests.request_progress().await {
                Err(error) if !self.holds() => Err(error.into()),
                Ok(()) | Err(_) => Ok(()),
            },
            None => Ok(()),
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

#[cfg(test)]
impl Feed {
    /// One whose news somebody else puts into this backlog, and that answers no question.
    pub fn told(backlog: Arc<Backlog>) -> Self {
        let (requests, mut asked) = tokio::sync::mpsc::channel(1);
        let requests = WatchRequestSender(requests);
        let receiving = tokio::spawn(async move { while asked.recv().await.is_some() {} });
        Self { requests: Arc::new(Mutex::new(Some(requests))), backlog, receiving, begins_ahead: false }
    }
}

async fn receive(mut responses: WatchResponseStream, backlog: Arc<Backlog>) {
    loop {
        let ended = match responses.message().await {
            Ok(Some(response)) => match read(response.0) {
                Ok(Some(news)) => {
                    if backlog.push(news) {
                        continue;
                    }
                    // The backlog knows why.
                    return;
                }
                Ok(None) => continue,
                Err(error) => error,
            },
            Ok(None) => FeedError::Canceled(STREAM_ENDED.into()),
            Err(error) => error.into(),
        };
        backlog.end(ended);
        return;
    }
}

fn read(response: PbWatchResponse) -> Result<Option<News>, FeedError> {
    let PbWatchResponse { header, created, canceled, compact_revision, cancel_reason, events, fragment, .. } = response;
    if canceled {
        return Err(if compact_revision > 0 {
            FeedError::Compacted(compact_revision)
        } else {
            FeedError::Canceled(cancel_reason)
        });
    }
    if !events.is_empty() {
        return Ok(Some(News::Events(events)));
    }
    // The header of what was created, and of events, is the store's revision and proves nothing; that of an answer without
    // events says that all before it was sent.
    let revision = header.filter(|_| !created && !fragment).and_then(|header| u64::try_from(header.revision).ok());
    Ok(revision.map(News::Progress))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn backlog() -> (TempDir, Arc<Backlog>) {
        let folder = tempfile::tempdir().unwrap();
        let backlog = Arc::new(Backlog::new(folder.path(), Room::new(1 << 20)).unwrap());
        (folder, backlog)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_behind_is_in_step_when_etcd_answers() {
        let (_folder, backlog) = backlog();
        let (requests, mut asked) = tokio::sync::mpsc::channel(1);
        let answers = Arc::clone(&backlog);
        let receiving = tokio::spawn(async move {
            // etcd leaves two questions unanswered.
            for _ in 0..3 {
                asked.recv().await.unwrap();
            }
            assert!(answers.push(News::Progress(7)));
            while asked.recv().await.is_some() {}
        });
        let requests = Arc::new(Mutex::new(Some(WatchRequestSender(requests))));
        let feed = Feed { requests, backlog, receiving, begins_ahead: false };
        feed.in_step().await.unwrap();
        assert_eq!(feed.next().await.unwrap().news, News::Progress(7), "it stays for who records");
    }

    #[tokio::test]
    async fn of_a_watch_that_can_not_be_asked_any_more_what_has_come_is_taken_first() {
        let (_folder, backlog) = backlog();
        let (requests, _) = tokio::sync::mpsc::channel(1);
        let requests = Arc::new(Mutex::new(Some(WatchRequestSender(requests))));
        assert!(backlog.push(News::Progress(7)));
        let feed = Feed { requests, backlog, receiving: tokio::spawn(async {}), begins_ahead: false };
        feed.ask_progress().await.unwrap();
        feed.next().await.unwrap();
        assert!(matches!(feed.ask_progress().await, Err(FeedError::Etcd(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_begins_ahead_is_not_waited_for() {
        let (_folder, backlog) = backlog();
        let mut feed = Feed::told(backlog);
        feed.begins_ahead = true;
        feed.in_step().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_whose_begin_was_compacted_is_told_before_anything_is_built_on_it() {
        for news in [None, Some(News::Progress(7))] {
            let (_folder, backlog) = backlog();
            let feed = Feed::told(Arc::clone(&backlog));
            assert!(news.is_none_or(|news| backlog.push(news)));
            backlog.end(FeedError::Compacted(9));
            assert!(matches!(feed.in_step().await, Err(FeedError::Compacted(9))));
        }
    }
}
