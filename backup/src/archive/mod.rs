//! Keeps a record of a cluster: a full snapshot now and then, and every event between, so that any revision can be restored.
//! It reads one member and never slows it down: when it can't keep up it stops recording and begins anew with a full
//! snapshot. It does not decide which member is the right one, nor what is kept for how long.

mod backlog;
mod feed;
mod flush;
mod leases;
mod recorder;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::format::{Chain, ChainError, GenerationKey, Lineage, Revision, generations};
use crate::snapshot::{self, TakeError};
use crate::source::{Access, AccessError, AuthRevision, Connection, Identity};
use crate::store::{Store, StoreError};

use backlog::News;
use feed::Feed;
pub use feed::FeedError;
pub use flush::FlushError;
use leases::Leases;
pub use recorder::{Batch, Fault, Recorder};

/// How many revisions behind a watch may begin. etcd reads its whole backlog again for each thousand that it sends, so a
/// longer way is shorter by a full snapshot.
const MOST_BEHIND: u64 = 10_000;
/// Records that are stored at once, in bytes, if they come faster than by the clock.
const FLUSH_AT: usize = 4 << 20;
/// Records that may be held while others are being stored, in bytes. Beyond that they wait in the backlog.
const MOST_HELD: usize = 8 << 20;
/// The pause after a first failure; each next one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long ending may take: to hear up to where all has come, and to store it.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// What can be set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whose record it is.
    pub lineage: Lineage,
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
}

/// Why recording stopped for the moment.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// etcd can't be reached.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// etcd refuses.
    #[error("failed to ask etcd: {0}")]
    Etcd(#[from] etcd_client::Error),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
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

/// Records until it is told to stop. Failures end it only before it has begun: a store that can't be used at all.
pub async fn run(
    store: &Store,
    source: &Access,
    settings: &Settings,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ArchiveError> {
    store.prepare().await?;
    let mut next = Next::Continue;
    let mut pause = FIRST_PAUSE;
    while next != Next::Stop {
        let begun = Instant::now();
        let session = Session { store, source, settings };
        next = match Box::pin(session.run(next, stop.clone())).await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!("recording stopped: {error}");
                if begun.elapsed() > LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                }
                tokio::select! {
                    () = sleep(pause) => {}
                    _ = stop.wait_for(|stop| *stop) => break,
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
                after(&error)
            }
        };
    }
    Ok(())
}

/// What a failure calls for.
fn after(error: &ArchiveError) -> Next {
    match error {
        ArchiveError::Feed(FeedError::Compacted(_)) => Next::Full("the history after the last record was compacted"),
        ArchiveError::Feed(FeedError::Overflow(_)) => Next::Full("more came than could be stored in time"),
        ArchiveError::Fault(_) => Next::Full("the cluster has another history than the one that was recorded"),
        ArchiveError::Chain(
            ChainError::NoFull(_) | ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. },
        ) => Next::Full("the last generation is damaged"),
        ArchiveError::Access(_)
        | ArchiveError::Etcd(_)
        | ArchiveError::Store(_)
        | ArchiveError::Chain(ChainError::Store(_))
        | ArchiveError::Take(_)
        | ArchiveError::Feed(FeedError::Etcd(_) | FeedError::Canceled(_))
        | ArchiveError::Flush(_)
        | ArchiveError::Task(_) => Next::Continue,
    }
}

/// Recording by one connection, until something calls for another.
struct Session<'a> {
    store: &'a Store,
    source: &'a Access,
    settings: &'a Settings,
}

impl Session<'_> {
    async fn run(&self, next: Next, stop: watch::Receiver<bool>) -> Result<Next, ArchiveError> {
        let mut connection = self.source.connect().await?;
        let identity = Identity::ask(&mut connection.client).await?;
        let full = match next {
            Next::Stop => return Ok(Next::Stop),
            Next::Full(reason) => Some(reason),
            Next::Continue => None,
        };
        let (chain, recorder, feed) = match (full, self.newest(&identity).await?) {
            (None, Some(chain)) => {
                let now = revision(&mut connection).await?;
                // etcd takes a watch from the future and silently leaves out what is before it.
                if now < chain.head() {
                    return Ok(Next::Full("the cluster's revision is below what was recorded"));
                }
                if now.get() - chain.head().get() > MOST_BEHIND {
                    return Ok(Next::Full("the last record is too far behind"));
                }
                let recorder = Recorder::new(chain.head(), chain.last_events());
                let feed = self.watch(&connection, recorder.watch_from()).await?;
                tracing::info!("recording goes on after revision {} of {}", chain.head(), chain.key);
                (chain, recorder, feed)
            }
            (None, None) => self.begin(&mut connection, "there is none yet").await?,
            (Some(reason), _) => self.begin(&mut connection, reason).await?,
        };
        let leases = Leases::new(connection.client.lease_client());
        let auth = AuthRevision::new(connection.clone());
        let chain = Some(chain);
        let recording = Recording { session: self, connection, chain, recorder, feed, leases, auth, flushing: None };
        Box::pin(recording.run(stop)).await
    }

    /// The generation of this cluster that began last.
    async fn newest(&self, identity: &Identity) -> Result<Option<Chain>, ArchiveError> {
        let keys = generations(self.store, &self.settings.lineage).await?;
        for key in keys.iter().rev().filter(|key| key.cluster == identity.cluster) {
            match Chain::read(self.store, key).await {
                Ok(chain) => return Ok(Some(chain)),
                // One whose snapshot was never completed.
                Err(ChainError::NoFull(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Begins a generation. The watch is there before the snapshot is, so that nothing between is compacted away, and no
    /// backlog has to be read again.
    async fn begin(
        &self,
        connection: &mut Connection,
        reason: &'static str,
    ) -> Result<(Chain, Recorder, Feed), ArchiveError> {
        let watched_from = revision(connection).await?.next();
        let feed = self.watch(connection, watched_from).await?;
        let member = std::slice::from_ref(self.source);
        let taken = snapshot::take(self.store, member, &self.settings.lineage, |_| {}).await.map_err(Box::new)?;
        let chain = Chain::read(self.store, &taken.generation).await?;
        let recorder = Recorder::after_full(chain.head(), chain.last_events(), watched_from);
        tracing::info!("new generation {} at revision {}: {reason}", GenerationKey::folder(&chain.key), chain.head());
        Ok((chain, recorder, feed))
    }

    async fn watch(&self, connection: &Connection, from: Revision) -> Result<Feed, FeedError> {
        Feed::open(&connection.client, from, (&self.settings.spill, self.settings.spill_limit)).await
    }
}

/// The revision of the cluster, as its quorum knows it.
async fn revision(connection: &mut Connection) -> Result<Revision, etcd_client::Error> {
    let answer = Box::pin(connection.client.get("quorate", None)).await?;
    let revision = answer.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
    Ok(Revision::from_etcd(revision).unwrap_or_default())
}

/// Recording into one generation.
struct Recording<'a> {
    session: &'a Session<'a>,
    connection: Connection,
    /// Not there while a batch is being stored.
    chain: Option<Chain>,
    recorder: Recorder,
    feed: Feed,
    leases: Leases,
    auth: AuthRevision,
    flushing: Option<JoinHandle<(Chain, Result<(), FlushError>)>>,
}

impl Recording<'_> {
    async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<Next, ArchiveError> {
        let settings = self.session.settings;
        let mut clock = interval(settings.flush_every);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        clock.tick().await;
        loop {
            let has_room = self.recorder.bytes() < MOST_HELD;
            tokio::select! {
                news = self.feed.next(), if has_room => self.take(news?)?,
                done = finished(&mut self.flushing), if self.flushing.is_some() => self.stored(done?)?,
                _ = clock.tick() => {
                    if let Some(next) = self.look().await? {
                        return Box::pin(self.end(next)).await;
                    }
                }
                _ = stop.wait_for(|stop| *stop) => return Box::pin(self.end(Next::Stop)).await,
            }
            if self.recorder.bytes() >= FLUSH_AT {
                self.flush().await;
            }
        }
    }

    fn take(&mut self, news: News) -> Result<(), Fault> {
        let now = Timestamp::now();
        match news {
            News::Progress(revision) => self.recorder.progress(revision, now),
            News::Events(events) => {
                for event in events {
                    if let Some(lease) = self.recorder.event(event, now)? {
                        self.leases.see(lease);
                    }
                }
                Ok(())
            }
        }
    }

    /// What is done by the clock.
    async fn look(&mut self) -> Result<Option<Next>, ArchiveError> {
        if let Some(reason) = self.full_is_due().await? {
            return Ok(Some(Next::Full(reason)));
        }
        // The answer closes the last revision; it is stored with what came by then, or at the next tick.
        self.feed.ask_progress().await?;
        self.flush().await;
        Ok(None)
    }

    /// Why the generation has to end. While a batch is being stored that is not known; the next tick asks again.
    async fn full_is_due(&mut self) -> Result<Option<&'static str>, ArchiveError> {
        let settings = self.session.settings;
        let Some(chain) = &self.chain else { return Ok(None) };
        if self.auth.ask().await? != chain.full.auth_revision {
            return Ok(Some("users or roles have changed"));
        }
        let deltas: u64 = chain.links.iter().map(|link| link.delta.data.plain_bytes).sum();
        if deltas > settings.full_after {
            return Ok(Some("the events since the last one have become many"));
        }
        let age = Timestamp::now().duration_since(chain.full.taken);
        Ok((age.unsigned_abs() >= settings.full_every).then_some("it is time for one"))
    }

    /// Stores what is closed, unless storing is under way.
    async fn flush(&mut self) {
        let Some(mut chain) = self.chain.take() else { return };
        let Some(batch) = self.recorder.take() else {
            self.chain = Some(chain);
            return;
        };
        let leases = self.leases.flush().await;
        let store = self.session.store.clone();
        self.flushing = Some(tokio::spawn(async move {
            let result = flush::flush(&store, &mut chain, batch, leases).await;
            (chain, result)
        }));
    }

    fn stored(&mut self, (chain, result): (Chain, Result<(), FlushError>)) -> Result<(), ArchiveError> {
        self.flushing = None;
        result?;
        tracing::debug!("recorded up to revision {}", chain.head());
        self.chain = Some(chain);
        Ok(())
    }

    /// Stores what has come so far, in bounded time.
    async fn end(mut self, next: Next) -> Result<Next, ArchiveError> {
        let last_words = async {
            if self.flushing.is_some() {
                let done = finished(&mut self.flushing).await?;
                self.stored(done)?;
            }
            let last = revision(&mut self.connection).await?.get();
            self.feed.ask_progress().await?;
            loop {
                let news = self.feed.next().await?;
                // An earlier question's answer may still be on its way.
                let all_came = matches!(news, News::Progress(reached) if reached >= last);
                self.take(news)?;
                if all_came {
                    break;
                }
            }
            self.flush().await;
            if self.flushing.is_some() {
                let done = finished(&mut self.flushing).await?;
                self.stored(done)?;
            }
            Ok::<_, ArchiveError>(())
        };
        match timeout(LAST_WORDS, last_words).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the last events could not be recorded: {error}"),
            Err(_) => tracing::warn!("the last events could not be recorded within {LAST_WORDS:?}"),
        }
        Ok(next)
    }
}

/// The end of a batch that is being stored.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}
