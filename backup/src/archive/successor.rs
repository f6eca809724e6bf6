//! The generation that is begun beside the one that is recorded into, so that nothing of what is written meanwhile waits for
//! its full snapshot, or is in neither. It does not decide when one is due.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

use super::ArchiveError;
use super::session::{Session, Start};
use super::status::Reason;
use crate::format::{GenerationKey, LeaseGrant, Revision, Seal};

/// How soon it is tried again after it failed.
const AGAIN_AFTER: Duration = Duration::from_mins(1);
/// The longest pause after a full snapshot in vain. Each is twice as long as the one before: what was too much for one is often
/// too much for the next, and each full snapshot stays in the store.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// What becomes of it.
pub(super) struct Successor<'a> {
    session: Session<'a>,
    stage: Stage<'a>,
    /// What was learned of leases since it was begun: they may end before anybody reads what it has heard.
    grants: Vec<LeaseGrant>,
    /// Why the last try failed, if none has ended well since.
    failure: Option<(Reason, String)>,
    /// How soon it is tried again after the next full snapshot in vain.
    pause: Duration,
    /// For whom it was hastened last.
    hastened: Option<Seal>,
}

enum Stage<'a> {
    /// There is none.
    None,
    /// Its full snapshot is being taken.
    Coming(Pin<Box<dyn Future<Output = Result<Start, ArchiveError>> + Send + 'a>>),
    /// Its full snapshot is stored, and its watch runs.
    Ready(Box<Start>),
    /// It failed, and is not tried again before this moment.
    Failed(Instant),
}

impl<'a> Successor<'a> {
    pub fn none(session: Session<'a>) -> Self {
        Self { session, stage: Stage::None, grants: Vec::new(), failure: None, pause: AGAIN_AFTER, hastened: None }
    }

    /// Whether one can be begun now.
    pub fn is_open(&self) -> bool {
        match self.stage {
            Stage::None => true,
            Stage::Coming(_) | Stage::Ready(_) => false,
            Stage::Failed(until) => until <= Instant::now(),
        }
    }

    /// Lets one be begun soon for these recipients, whatever pause the last one called for: until then what is stored can be
    /// read by those who shall not read it any more. Once: what fails for them is paused after as ever.
    pub fn hasten(&mut self, asked: &Seal) {
        if self.hastened.as_ref() == Some(asked) {
            return;
        }
        (self.hastened, self.pause) = (Some(asked.clone()), AGAIN_AFTER);
        if let Stage::Failed(until) = &mut self.stage {
            *until = (*until).min(Instant::now() + AGAIN_AFTER);
        }
    }

    pub fn begin(&mut self, reason: &'static str) {
        let session = self.session;
        self.grants.clear();
        self.stage = Stage::Coming(Box::pin(async move { session.begin(reason, &session.room.sparing()).await }));
    }

    /// Whoever does not record any more begins none either. What is stored of it is found by whoever does.
    pub fn drop_it(&mut self) {
        (self.stage, self.failure) = (Stage::None, None);
    }

    /// Why the last one failed, if no later one has come since.
    pub fn failure(&self) -> Option<&(Reason, String)> {
        self.failure.as_ref()
    }

    /// These are recorded in the generation before it.
    pub fn learn(&mut self, grants: &[LeaseGrant]) {
        match self.stage {
            Stage::Coming(_) | Stage::Ready(_) => self.grants.extend_from_slice(grants),
            Stage::None | Stage::Failed(_) => {}
        }
    }

    /// The end of taking its full snapshot, be it good or bad. While none is being taken, never.
    pub async fn came(&mut self) -> Result<(), ArchiveError> {
        let Stage::Coming(coming) = &mut self.stage else { return std::future::pending().await };
        let came = coming.as_mut().await;
        match came {
            Ok(start) => {
                (self.stage, self.failure) = (Stage::Ready(Box::new(start)), None);
                Ok(())
            }
            Err(error) => {
                self.fail(AGAIN_AFTER, (Reason::of(&error), error.to_string()));
                Err(error)
            }
        }
    }

    fn fail(&mut self, pause: Duration, why: (Reason, String)) {
        (self.stage, self.failure) = (Stage::Failed(Instant::now() + pause), Some(why));
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
            let (key, pause) = (&start.chain.key, self.pause);
            let why = format!(
                "the watch of {key} has ended before it was gone over to, as when more comes than half of what may be spilled: \
                 another one is begun in {} min",
                pause.as_secs() / 60
            );
            self.fail(pause, (Reason::StoreFailed, why));
            self.pause = (pause * 2).min(LONGEST_PAUSE);
            return None;
        }
        if start.chain.head() > stored {
            return None;
        }
        match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::Ready(mut start) => {
                start.grants = std::mem::take(&mut self.grants);
                Some(*start)
            }
            Stage::None | Stage::Coming(_) | Stage::Failed(_) => None,
        }
    }
}

#[cfg(test)]
impl Successor<'_> {
    /// Its full snapshot is stored.
    pub fn ready(&mut self, start: Start) {
        self.stage = Stage::Ready(Box::new(start));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::archive::feed::FeedError;
    use crate::archive::scene::Scene;
    use crate::format::tests::stored;

    const GRANT: LeaseGrant = LeaseGrant { id: 5, ttl: 60 };

    #[tokio::test(start_paused = true)]
    async fn one_that_can_not_be_gone_over_to_is_followed_by_ever_fewer() {
        let scene = Scene::new();
        let chain = stored(&scene.door.store(), 100, &[]).await;
        let mut successor = Successor::none(scene.session());
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            let (start, news) = scene.start(chain.clone()).await;
            news.end(FeedError::Canceled("more came than may wait".into()));
            successor.ready(start);
            assert!(successor.take_behind(chain.head()).is_none());
            assert!(successor.failure().is_some());
            advance(Duration::from_secs(60 * minutes - 1)).await;
            assert!(!successor.is_open(), "{minutes}");
            advance(Duration::from_secs(2)).await;
            assert!(successor.is_open(), "{minutes}");
        }
        let (start, news) = scene.start(chain.clone()).await;
        news.end(FeedError::Canceled("more came than may wait".into()));
        successor.ready(start);
        assert!(successor.take_behind(chain.head()).is_none());
        successor.hasten(&Seal::Open);
        advance(Duration::from_secs(59)).await;
        successor.hasten(&Seal::Open);
        assert!(!successor.is_open());
        advance(Duration::from_secs(1)).await;
        assert!(successor.is_open(), "where other recipients are asked for nobody waits an hour");
    }

    #[tokio::test]
    async fn what_is_learned_of_leases_while_it_comes_is_passed_on() {
        let scene = Scene::new();
        let chain = stored(&scene.door.store(), 100, &[]).await;
        let mut successor = Successor::none(scene.session());
        successor.learn(&[LeaseGrant { id: 4, ..GRANT }]);
        successor.begin("it is time for one");
        successor.learn(&[GRANT]);
        let (start, _news) = scene.start(chain.clone()).await;
        successor.ready(start);
        let later = LeaseGrant { id: 6, ..GRANT };
        successor.learn(&[later]);
        assert_eq!(successor.take_behind(chain.head()).unwrap().grants, [GRANT, later]);
    }
}
