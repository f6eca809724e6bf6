//! The whole life of an archive: one session after the other until it is told to stop, with a pause after each failure.
//! What a failure calls for is decided here.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::backlog::Room;
use super::board::Board;
use super::door::Door;
use super::feed::FeedError;
use super::flush::FlushError;
use super::former::Former;
use super::lead;
use super::pauses::{self, Pauses};
use super::retention::Retention;
use super::rivals::Rivals;
use super::session::{OTHER_RECIPIENTS, Session, Start};
use super::status::{Reason, Role};
use super::{ArchiveError, Duty, Fault, Next, Settings};
use crate::format::{Chain, ChainError, CommitError, Sample, Seal};
use crate::source::Access;
use crate::store;

/// How soon one that can't follow looks again whether the one that records has begun a new generation.
const FOLLOW_PAUSE: Duration = Duration::from_secs(5);

/// What outlives a session.
pub(super) struct Course {
    /// What was recorded, as far as it was read.
    pub chain: Option<Chain>,
    /// How the data was sealed of what was recorded last. The public keys are nowhere else once others are asked for.
    pub seal: Option<Seal>,
    /// Since when that is not how it is asked for.
    pub former: Former,
    /// A generation that was begun beside the one before, for the next session.
    pub prepared: Option<Start>,
    /// The end of those that were gone over from: the one with the last moment.
    pub left_at: Option<Sample>,
    /// Since when the session records that is not only being begun.
    pub records_since: Option<Instant>,
    pub rivals: Rivals,
    pub retention: Retention,
}

impl Course {
    pub fn new(retention: Retention) -> Self {
        Self {
            chain: None,
            seal: None,
            former: Former::default(),
            prepared: None,
            left_at: None,
            records_since: None,
            rivals: Rivals::default(),
            retention,
        }
    }

    /// Another generation is gone over to from this one.
    pub fn leave(&mut self, chain: &Chain) {
        let end = Sample { at: chain.last_moment(), revision: chain.head() };
        self.left_at = self.left_at.into_iter().chain([end]).max_by_key(|left| left.at);
    }
}

/// Records until it is told to stop. One that records whatever its member is ends with an error if the store can't be used
/// at the begin; no other failure ends it.
pub async fn run(
    store: &store::Settings,
    source: &Access,
    settings: &Settings,
    board: &Board,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ArchiveError> {
    let (tell, told) = watch::channel(false);
    tokio::spawn(lead::follow(source.clone(), board.clone(), tell));
    // Held to the end: without anybody who listens, nobody would look how far the member is.
    let (_always, pinned) = watch::channel(true);
    let leads = match settings.duty {
        Duty::Always => pinned,
        Duty::BesideLeader => told.clone(),
    };
    let mut course = Course::new(Retention::new(settings.keep));
    let room = Room::new(settings.spill_limit);
    let mut opened: Option<Door> = None;
    let mut pauses = Pauses::default();
    let mut next = Next::Continue;
    loop {
        let led = *leads.borrow();
        let records = led && !course.rivals.yields();
        let full = match next {
            Next::Stop => return Ok(()),
            Next::Continue => None,
            Next::Full(reason) if records => Some(reason),
            Next::Full(reason) => {
                board.role(Role::Standby);
                tracing::debug!("it can't follow: {reason}");
                // Nothing tells it whether the other one still commits: in a while it tries to go on itself.
                course.rivals.expire(std::time::Instant::now(), settings.flush_every);
                if wait(FOLLOW_PAUSE, (led, leads.clone()), &mut stop).await == Woken::Stop {
                    return Ok(());
                }
                None
            }
        };
        course.records_since = None;
        let lived =
            Box::pin(live((store, &mut opened), source, (settings, &room), board, (full, &mut course), &leads, &stop));
        let error = match lived.await {
            Ok(then) => {
                next = then;
                continue;
            }
            Err(error) => error,
        };
        if settings.duty == Duty::Always && opened.is_none() {
            return Err(error);
        }
        let recorded = board.read().role == Role::Committer;
        board.role(Role::Standby);
        next = after(&error);
        if matches!(&error, ArchiveError::Flush(FlushError::Commit(CommitError::Lost(_)))) {
            tracing::info!("{error}");
            board.lost_commit();
            // Who only stood in has no rival.
            if recorded {
                course.rivals.lost(std::time::Instant::now());
            }
            continue;
        }
        let reason = Reason::of(&error);
        if let Some(door) = &opened {
            door.failed(reason);
        }
        board.fault(reason, &error.to_string());
        // A full snapshot that takes long and was in vain is no good time.
        if course.records_since.is_some_and(|since| since.elapsed() > pauses::LONGEST) {
            pauses = Pauses::default();
        }
        if timeout(pauses.after(reason), stop.wait_for(|stop| *stop)).await.is_ok() {
            return Ok(());
        }
    }
}

/// One session, with the store open.
async fn live(
    (store, opened): (&store::Settings, &mut Option<Door>),
    source: &Access,
    (settings, room): (&Settings, &Room),
    board: &Board,
    (full, course): (Option<&'static str>, &mut Course),
    leads: &watch::Receiver<bool>,
    stop: &watch::Receiver<bool>,
) -> Result<Next, ArchiveError> {
    let door = match opened {
        Some(door) => door,
        None => match unless_stopped(stop.clone(), Box::pin(Door::open(store))).await {
            Some(door) => opened.insert(door?),
            None => return Ok(Next::Stop),
        },
    };
    let session = Session { door, source, settings, room, board };
    Box::pin(session.run(full, course, leads.clone(), stop.clone())).await
}

/// Why a pause is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    Again,
    Stop,
}

/// Until the time is over, the leadership moves, or it is told to stop.
async fn wait(
    pause: Duration,
    (led, mut leads): (bool, watch::Receiver<bool>),
    stop: &mut watch::Receiver<bool>,
) -> Woken {
    tokio::select! {
        () = sleep(pause) => Woken::Again,
        _ = leads.wait_for(|leads| *leads != led) => Woken::Again,
        _ = stop.wait_for(|stop| *stop) => Woken::Stop,
    }
}

/// What comes of this, which is dropped when it is told to stop before.
pub(super) async fn unless_stopped<T>(mut stop: watch::Receiver<bool>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        // What takes no time is done all the same: a session that was prepared holds what is still to be stored.
        biased;
        done = work => Some(done),
        _ = stop.wait_for(|stop| *stop) => None,
    }
}

/// What a failure calls for.
fn after(error: &ArchiveError) -> Next {
    match error {
        ArchiveError::Feed(FeedError::Compacted(_)) => Next::Full("the history after the last record was compacted"),
        ArchiveError::Feed(FeedError::Overflow(_)) => Next::Full("more came than could be stored in time"),
        ArchiveError::Fault(Fault::Large(_)) => Next::Full("one revision has more events than can be held"),
        ArchiveError::Fault(_) => Next::Full("the cluster has another history than the one that was recorded"),
        ArchiveError::Chain(ChainError::NoFull(_)) | ArchiveError::Flush(FlushError::Chain(ChainError::NoFull(_))) => {
            Next::Full("the full snapshot of the last generation is gone")
        }
        ArchiveError::Flush(FlushError::OtherRecipients) => Next::Full(OTHER_RECIPIENTS),
        ArchiveError::Chain(ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. })
        | ArchiveError::Flush(FlushError::Chain(
            ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. },
        )) => Next::Full("the last generation is damaged"),
        ArchiveError::Access(_)
        | ArchiveError::Etcd(_)
        | ArchiveError::Silent
        | ArchiveError::TooOld(_)
        | ArchiveError::Store(_)
        | ArchiveError::Keys(_)
        | ArchiveError::Chain(ChainError::Store(_))
        | ArchiveError::Take(_)
        | ArchiveError::Feed(FeedError::Etcd(_) | FeedError::Canceled(_))
        | ArchiveError::Flush(FlushError::Commit(_) | FlushError::Chain(ChainError::Store(_)))
        | ArchiveError::Task(_) => Next::Continue,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::archive::scene::{Scene, Silent};
    use crate::format::tests::generation;
    use crate::format::{ManifestFault, Revision};
    use crate::keys::KeyFiles;
    use crate::store::{CredentialsFolder, StoreError};

    #[tokio::test]
    async fn a_stop_is_heard_while_the_store_is_opened() {
        let silent = Silent::start().await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("account-key"), "c2VjcmV0").unwrap();
        let store = store::Settings {
            address: "azure://account/container/prefix".parse().unwrap(),
            options: BTreeMap::from([("endpoint".to_owned(), silent.url())]),
            credentials: Some(CredentialsFolder(folder.path().to_owned())),
            ca: None,
            keys: KeyFiles::default(),
        };
        let scene = Scene::new();
        let Session { source, settings, board, .. } = scene.session();
        silent.stop_soon(|stop| run(&store, source, settings, board, stop)).await.unwrap();
    }

    #[tokio::test]
    async fn what_takes_no_time_is_done_also_by_who_was_told_to_stop() {
        let (_tell, stop) = watch::channel(true);
        assert_eq!(unless_stopped(stop.clone(), std::future::ready(7)).await, Some(7));
        assert_eq!(unless_stopped(stop, std::future::pending::<u8>()).await, None);
    }

    #[test]
    fn what_can_not_be_restored_is_ended_whoever_found_it() {
        let (key, first) = (generation(1), Revision::default());
        let manifest = key.delta(first);
        let faults: [&dyn Fn() -> ChainError; 4] = [
            &|| ChainError::NoFull(key.clone()),
            &|| ChainError::Manifest { key: manifest.clone(), fault: ManifestFault::Version(3) },
            &|| ChainError::Broken(manifest.clone()),
            &|| ChainError::Gap { missing: manifest.clone(), next: manifest.clone(), after: first },
        ];
        for fault in faults {
            for error in [ArchiveError::Chain(fault()), ArchiveError::Flush(FlushError::Chain(fault()))] {
                assert!(matches!(after(&error), Next::Full(_)), "{error}");
            }
        }
        assert_eq!(after(&ArchiveError::Flush(FlushError::OtherRecipients)), Next::Full(OTHER_RECIPIENTS));
        let lost = ArchiveError::Flush(FlushError::Commit(CommitError::Lost(manifest.clone())));
        let away = || ChainError::Store(StoreError::TooLarge { key: manifest.clone(), bytes: 2, limit: 1 });
        for passes in [lost, ArchiveError::Chain(away()), ArchiveError::Flush(FlushError::Chain(away()))] {
            assert_eq!(after(&passes), Next::Continue, "{passes}");
        }
    }
}
