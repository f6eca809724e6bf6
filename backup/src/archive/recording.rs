//! Recording into one generation: what the watch brings is held until it is stored, by this archive or by another one. Who
//! stands by holds what the other has not stored yet, and so can go on from there at once.

#[cfg(test)]
mod clock_tests;
mod last_words;
mod next_full;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::backlog::{Heard, News};
use super::course::Course;
use super::feed::Feed;
use super::flush::{self, FlushError};
use super::leases::{self, Leases};
use super::recorder::{Fault, Recorder};
use super::rivals::is_silent;
use super::session::{Session, Start, read_on};
use super::status::{Reason, Role};
use super::successor::Successor;
use super::turn::{self, Post, Prospect, Turn};
use super::{ArchiveError, Next};
use crate::format::{COMMIT_WITHIN, Chain, ChainError, GenerationKey, Revision, Seal};
use crate::source::{AuthRevision, Connection};

/// Records that are stored at once, in bytes, if they come faster than by the clock.
const FLUSH_AT: usize = 4 << 20;
/// Records that may be held while others are being stored, in bytes. Beyond that they wait in the backlog.
const MOST_HELD: usize = 8 << 20;
/// The longest time between two looks by the clock, however seldom is stored.
const LONGEST_TICK: Duration = Duration::from_secs(10);
/// The shortest time between two looks of one that stands by, when much comes.
const CATCH_UP_EVERY: Duration = Duration::from_secs(1);
/// How often the one that records looks whether its full snapshot is still there, without which nothing that it stores can
/// be restored, and whether somebody has begun a newer generation; also by that it notices a store that fails while there
/// is nothing to store. It costs four requests.
const LOOK_AROUND: Duration = Duration::from_mins(1);
/// After so many flushes and a look around without anything new, nobody adds to a generation any more.
const FLUSHES_THAT_COUNT: u32 = 3;
/// Clocks that are apart by less do no more harm than restores by a time are exact.
const CLOCK_BEHIND: SignedDuration = SignedDuration::from_mins(1);
/// The least time for which something lies unstored before one that stands by stores it: one that records may be slow, and
/// loses its session to whoever is before it.
const STAND_IN_AFTER: Duration = Duration::from_secs(15);

/// What was done beside the receiving.
enum Did {
    /// A batch was stored.
    Stored,
    /// What others have stored was read, in this post: from this head on, and a generation that they have begun.
    CaughtUp { post: Post, before: Revision, newer: Option<Box<Chain>> },
}

type Work = JoinHandle<(Chain, Result<Did, FlushError>)>;

/// Recording into one generation.
pub(super) struct Recording<'a> {
    session: Session<'a>,
    connection: Connection,
    /// Not there while something is being done with it.
    chain: Option<Chain>,
    key: GenerationKey,
    recorder: Recorder,
    feed: Feed,
    seal: Seal,
    leases: Leases,
    auth: AuthRevision,
    work: Option<Work>,
    post: Post,
    /// What is closed is stored with the next answer to a question for progress.
    due: bool,
    /// A look by the clock came while something was being done, and could not tell whether a full snapshot is due.
    look_owed: bool,
    flushed: Instant,
    /// When others were last asked for.
    looked: Instant,
    /// When somebody was last seen to store something.
    moved: Instant,
    /// Since when something is closed that nobody has stored although the store answers.
    left_since: Option<Instant>,
    successor: Successor<'a>,
    /// The last newer generation that is not gone over to: it can't be followed.
    passed_over: Option<crate::format::GenerationName>,
}

impl<'a> Recording<'a> {
    pub fn new(session: Session<'a>, start: Start, post: Post) -> Self {
        let Start { connection, chain, mut recorder, feed, seal, grants } = start;
        let mut leases = Leases::new(connection.client.lease_client());
        leases.learn(grants);
        leases.know(chain.links.iter().flat_map(|link| &link.delta.leases));
        let auth = AuthRevision::new(connection.clone());
        recorder.not_before(chain.last_moment());
        let now = Instant::now();
        Self {
            session,
            connection,
            key: chain.key.clone(),
            chain: Some(chain),
            recorder,
            feed,
            seal,
            leases,
            auth,
            work: None,
            post,
            due: false,
            look_owed: false,
            flushed: now,
            looked: now,
            moved: now,
            left_since: None,
            successor: Successor::none(session),
            passed_over: None,
        }
    }

    /// What was recorded, if it is known.
    pub fn into_chain(mut self) -> Option<Chain> {
        self.chain.take()
    }

    /// Records until something calls for another session. What has come by then is stored, as far as that is soon done.
    pub async fn run(
        &mut self,
        course: &mut Course,
        leads: watch::Receiver<bool>,
        stop: watch::Receiver<bool>,
    ) -> Result<Next, ArchiveError> {
        let ended = Box::pin(self.record(course, leads, stop.clone())).await;
        Box::pin(self.last_words(&ended, course, stop)).await;
        ended
    }

    async fn record(
        &mut self,
        course: &mut Course,
        mut leads: watch::Receiver<bool>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<Next, ArchiveError> {
        self.show_role();
        let mut clock = interval(self.session.settings.flush_every.min(LONGEST_TICK));
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        clock.tick().await;
        loop {
            // What makes room is to store what is closed: where nothing is, only more of it closes anything.
            let has_room = self.recorder.bytes() < MOST_HELD || !self.recorder.has_closed();
            let next = tokio::select! {
                news = self.feed.next(), if has_room => {
                    self.take(news?).await?;
                    None
                }
                done = finished(&mut self.work), if self.work.is_some() => match self.done(done?, course).await? {
                    // Before the next flush: where there is always something to store, no tick would find it idle.
                    None if std::mem::take(&mut self.look_owed) => {
                        let leads = *leads.borrow();
                        self.look(course, leads).await?;
                        None
                    }
                    next => next,
                },
                came = self.successor.came() => {
                    self.succeed(came, &course.former).await?;
                    None
                }
                _ = clock.tick() => {
                    // Not held while it looks: whoever tells must not wait.
                    let leads = *leads.borrow();
                    self.look(course, leads).await?;
                    None
                }
                // Of one whose channel is closed nothing is heard any more.
                Ok(()) = leads.changed() => {
                    self.turn(*leads.borrow_and_update() && !course.rivals.yields());
                    None
                }
                _ = stop.wait_for(|stop| *stop) => Some(Next::Stop),
            };
            if let Some(next) = next.or_else(|| self.go_over(course)) {
                return Ok(next);
            }
            if self.recorder.bytes() >= FLUSH_AT {
                match self.post {
                    // Its turn comes also when there is always something to store.
                    Post::Committer if self.looked.elapsed() >= LOOK_AROUND => self.catch_up(true),
                    Post::Committer => self.flush().await,
                    Post::Standby | Post::TakingOver if self.looked.elapsed() >= CATCH_UP_EVERY => self.catch_up(false),
                    Post::Standby | Post::TakingOver => {}
                }
            }
        }
    }

    /// The member leads, or does not any more.
    fn turn(&mut self, leads: bool) {
        match (leads, self.post) {
            (true, Post::Standby) => {
                self.post = Post::TakingOver;
                self.catch_up(true);
            }
            (true, Post::TakingOver | Post::Committer) => {}
            // The member is gone, and nobody else may have what it has sent: this ends by itself once that is taken.
            (false, Post::Committer) if self.feed.has_ended() => {}
            (false, Post::Standby | Post::TakingOver | Post::Committer) => {
                self.post = Post::Standby;
                self.successor.drop_it();
            }
        }
        self.show_role();
    }

    fn show_role(&self) {
        self.session.board.role(match self.post {
            Post::Standby | Post::TakingOver => Role::Standby,
            Post::Committer => Role::Committer,
        });
    }

    async fn take(&mut self, Heard { at, news }: Heard) -> Result<(), Fault> {
        match news {
            News::Progress(revision) => {
                self.recorder.progress(revision)?;
                if self.due && self.post == Post::Committer {
                    self.flush().await;
                }
                Ok(())
            }
            News::Events(events) => {
                for event in events {
                    if let Some(lease) = self.recorder.event(event, at)? {
                        self.leases.see(lease);
                    }
                }
                Ok(())
            }
        }
    }

    /// What is done by the clock.
    async fn look(&mut self, course: &mut Course, leads: bool) -> Result<(), ArchiveError> {
        let settings = self.session.settings;
        // Also where it only stands by: whoever records next knows since when.
        let others = self.other_recipients(&mut course.former);
        match self.post {
            Post::Standby => {
                let left = self.left_for();
                if leads && course.rivals.yields() && course.rivals.has_gone(left, settings.flush_every) {
                    tracing::info!("the other archive commits no more");
                    self.turn(true);
                } else if !leads && left >= STAND_IN_AFTER && is_silent(left, settings.flush_every) {
                    tracing::info!("nobody has stored what came for {left:?}: this archive does, for once");
                    self.flush().await;
                } else if self.recorder.has_closed() {
                    self.catch_up(true);
                }
            }
            Post::TakingOver => self.catch_up(true),
            Post::Committer => {
                if let Some(reason) = self.full_is_due(others.as_ref()).await? {
                    self.successor.begin(reason);
                }
                if self.chain.as_ref().is_some_and(|chain| !chain.links.is_empty()) {
                    course.retention.goes_on();
                }
                // Also while something waits to be stored: it may wait for the room that this makes.
                course.retention.look(&self.session.door.store(), &settings.lineage, &self.key).await;
                if self.looked.elapsed() >= LOOK_AROUND {
                    self.catch_up(true);
                }
                // The answer closes the last revision, and what is closed is stored with it; if none has come since the
                // last tick, without it.
                if std::mem::replace(&mut self.due, self.flushed.elapsed() + LONGEST_TICK / 2 >= settings.flush_every) {
                    self.flush().await;
                    self.due = false;
                }
            }
        }
        Ok(self.feed.ask_progress().await?)
    }

    /// For how long something is closed that nobody has stored.
    fn left_for(&mut self) -> Duration {
        if !self.recorder.has_closed() {
            self.left_since = None;
            return Duration::ZERO;
        }
        self.left_since.get_or_insert_with(Instant::now).elapsed()
    }

    /// Stores what is closed, unless something else is under way.
    async fn flush(&mut self) {
        self.flush_within(leases::WAIT).await;
    }

    /// The same. For so long etcd may tell of leases; what it has not told by then is left out.
    async fn flush_within(&mut self, wait: Duration) {
        self.due = false;
        let Some(mut chain) = self.chain.take() else { return };
        self.flushed = Instant::now();
        let Some(batch) = self.recorder.take() else {
            self.chain = Some(chain);
            return;
        };
        let leases = self.leases.flush(wait).await;
        self.successor.learn(&leases);
        let (door, board, seal) = (self.session.door.clone(), self.session.board.clone(), self.seal.clone());
        self.work = Some(tokio::spawn(async move {
            let result = flush::flush(&door, (&mut chain, &seal), batch, leases, &board, COMMIT_WITHIN).await;
            (chain, result.map(|()| Did::Stored))
        }));
    }

    /// Reads what others have stored, and looks around; unless something else is under way.
    fn catch_up(&mut self, look_for_newer: bool) {
        let Some(mut chain) = self.chain.take() else { return };
        self.looked = Instant::now();
        let (store, post) = (self.session.door.store(), self.post);
        let passed_over = self.passed_over.clone().filter(|passed| *passed > chain.key.name);
        let after = look_for_newer.then(|| passed_over.unwrap_or_else(|| chain.key.name.clone()));
        self.work = Some(tokio::spawn(async move {
            let before = chain.head();
            let newer = read_on(&store, &mut chain, post, after.as_ref()).await;
            let result = newer.map(|newer| Did::CaughtUp { post, before, newer: newer.map(Box::new) });
            (chain, result.map_err(FlushError::Chain))
        }));
    }

    /// What comes of what was done.
    async fn done(
        &mut self,
        (chain, result): (Chain, Result<Did, FlushError>),
        course: &mut Course,
    ) -> Result<Option<Next>, ArchiveError> {
        self.work = None;
        let board = self.session.board;
        let did = match result {
            Ok(did) => did,
            Err(FlushError::Chain(ChainError::Store(error))) => {
                // What is held stays held. Nobody can store it.
                self.left_since = None;
                self.session.fault(Reason::of_store(&error), &error.to_string());
                self.chain = Some(chain);
                return Ok(None);
            }
            Err(error) => {
                self.chain = Some(chain);
                return Err(error.into());
            }
        };
        match self.successor.failure() {
            Some((reason, message)) => board.fault(*reason, &course.former.tell(message)),
            None => board.well(),
        }
        match did {
            Did::Stored => {
                board.committed();
                board.stored(&chain, Timestamp::now());
                (self.moved, self.left_since) = (Instant::now(), None);
                tracing::debug!("recorded up to revision {}", chain.head());
                let behind = chain.last_moment().duration_since(Timestamp::now());
                if behind > CLOCK_BEHIND {
                    tracing::warn!(
                        "this clock is {behind:#} behind the last moment of what was recorded: what comes until then can be restored by \
                         its revision, and not by a time"
                    );
                }
                self.chain = Some(chain);
            }
            Did::CaughtUp { post, before, newer } => {
                // Also what an earlier look has found that could not be ended.
                self.recorder.forget(chain.head(), chain.last_events())?;
                if chain.head() > before {
                    self.recorder.not_before(chain.last_moment());
                    for link in chain.links.iter().rev().take_while(|link| link.delta.from > before) {
                        self.leases.know(&link.delta.leases);
                        self.successor.learn(&link.delta.leases);
                    }
                    board.stored(&chain, chain.last_moment());
                    (self.moved, self.left_since) = (Instant::now(), None);
                }
                let turn = newer.as_ref().map_or(Turn::Stay, |newer| self.weigh(&chain, newer));
                if let (Turn::Over, Some(newer)) = (turn, newer) {
                    tracing::info!("going over to the newer generation {}", newer.key);
                    course.leave(&chain);
                    course.chain = Some(*newer);
                    return Ok(Some(Next::Continue));
                }
                self.chain = Some(chain);
                if turn == Turn::AfterStoring {
                    self.flush().await;
                    return Ok(None);
                }
                match (self.post, post) {
                    // It had begun before: nobody has looked for the full snapshot.
                    (Post::TakingOver, Post::Standby) => self.catch_up(true),
                    (Post::TakingOver, Post::TakingOver | Post::Committer) => {
                        self.post = Post::Committer;
                        self.show_role();
                        self.flush().await;
                        self.feed.ask_progress().await?;
                        self.due = true;
                    }
                    (Post::Standby | Post::Committer, _) => {}
                }
            }
        }
        Ok(None)
    }

    /// What to do about a newer generation.
    fn weigh(&mut self, chain: &Chain, newer: &Chain) -> Turn {
        if self.successor.is(&newer.key) {
            return Turn::Stay;
        }
        // Where the keys can't be read, nobody knows whether it fits: the next look finds it again.
        let Ok(seal) = Seal::of(self.session.door.store().keys()) else { return Turn::Stay };
        let turn = turn::turn(Prospect {
            post: self.post,
            heard: self.recorder.head(),
            stored: chain.head(),
            holds: self.recorder.has_closed(),
            may_go_on: self.own_may_go_on(),
            full: newer.full.revision,
            newest: newer.head(),
            fits: seal.is_of(newer.last_data()),
        });
        if turn == Turn::PassOver {
            self.passed_over = Some(newer.key.name.clone());
        }
        turn
    }

    /// Whether the generation that is followed was added to so recently that it may be added to again.
    fn own_may_go_on(&self) -> bool {
        self.moved.elapsed() < self.session.settings.flush_every * FLUSHES_THAT_COUNT + LOOK_AROUND
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if let Some(work) = &self.work {
            work.abort();
        }
    }
}

/// The end of what is being done.
async fn finished<T>(work: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}
