//! The watch, received without a pause: a watch that lags makes etcd read its whole backlog again for each thousand revisions.
//! What is not consumed in time waits in a bounded backlog; beyond it the watch is given up rather than slowed down.

use std::io;
use std::path::Path;
use std::sync::Arc;

use etcd_client::proto::PbWatchResponse;
use etcd_client::{Client, WatchOptions, WatchRequestSender, WatchResponseStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::backlog::{Backlog, Heard, News, Room};
use crate::format::Revision;

/// The largest message that is taken. Fragments are bounded by etcd's largest request, which may be set up to this.
const LARGEST_MESSAGE: usize = 96 << 20;

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
}

impl Feed {
    /// Opens it at a revision, whose own events come first.
    pub async fn open(client: &Client, from: Revision, (folder, room): (&Path, &Room)) -> Result<Self, FeedError> {
        let backlog = Arc::new(Backlog::new(folder, room.clone()).map_err(FeedError::Overflow)?);
        let from = from.to_etcd();
        let options =
            WatchOptions::new().with_all_keys().with_start_revision(from).with_fragment().with_progress_notify();
        let mut client = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
        let (requests, responses) = Box::pin(client.watch("", Some(options))).await?.split();
        let requests = Arc::new(Mutex::new(Some(requests)));
        let (news, asked) = (Arc::clone(&backlog), Arc::clone(&requests));
        let receiving = tokio::spawn(async move {
            receive(responses, news).await;
            asked.lock().await.take();
        });
        Ok(Self { requests, backlog, receiving })
    }

    /// The next news; an error when the watch has ended and all its news were consumed.
    pub async fn next(&self) -> Result<Heard, FeedError> {
        self.backlog.next().await
    }

    /// Whether the watch has ended, though some of its news may wait.
    pub fn has_ended(&self) -> bool {
        self.backlog.has_ended()
    }

    /// From now on its news may wait in all the room there is.
    pub fn take_all_room(&self) {
        self.backlog.take_all_room();
    }

    /// Asks etcd up to where it has sent everything. The answer is news; a watch that has ended is not asked.
    pub async fn ask_progress(&self) -> Result<(), FeedError> {
        match self.requests.lock().await.as_mut() {
            Some(requests) => Ok(requests.request_progress().await?),
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
        Self { requests: Arc::new(Mutex::new(Some(requests))), backlog, receiving }
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
            Ok(None) => FeedError::Canceled("the stream has ended".into()),
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
