//! When the next generation is due beside the one that is recorded into, why, and when it is gone over to. It takes no
//! snapshot, and stores nothing.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;

use super::Recording;
use crate::archive::course::Course;
use crate::archive::former::Former;
use crate::archive::session::OTHER_RECIPIENTS;
use crate::archive::status::Reason;
use crate::archive::{ArchiveError, Next};
use crate::format::Seal;

/// How long etcd may take to tell the revision of users and roles. It goes through the quorum.
const AUTH_ANSWER: Duration = Duration::from_secs(5);
/// The most deltas of one generation. Who records or restores holds what is said of each, up to a kilobyte: a tenth of what
/// the sidecar may take, and two days of a flush every few seconds.
pub(super) const MOST_DELTAS: usize = 50_000;

impl Recording<'_> {
    /// The next generation's full snapshot is stored, or was not taken.
    pub(super) async fn succeed(
        &mut self,
        came: Result<(), ArchiveError>,
        former: &Former,
    ) -> Result<(), ArchiveError> {
        match came {
            Ok(()) => {
                // What came before it is stored as soon as etcd says that it was all.
                self.due = true;
                Ok(self.feed.ask_progress().await?)
            }
            Err(error) => {
                self.session.fault(Reason::of(&error), &former.tell(&error.to_string()));
                Ok(())
            }
        }
    }

    /// Goes over to the generation that was begun beside this one, once all that came before it is stored here.
    pub(super) fn go_over(&mut self, course: &mut Course) -> Option<Next> {
        let chain = self.chain.as_ref()?;
        let mut start = self.successor.take_behind(chain.head())?;
        start.grants.extend(self.leases.unrecorded());
        course.leave(chain);
        course.prepared = Some(start);
        Some(Next::Continue)
    }

    /// Who shall be able to read what comes next, if they are others. Keys that can't be read are told where they are needed.
    pub(super) fn other_recipients(&self, former: &mut Former) -> Option<Seal> {
        let asked = Seal::of(self.session.door.store().keys()).ok()?;
        former.notice(&self.seal, &asked, Timestamp::now());
        (asked != self.seal).then_some(asked)
    }

    /// Why the next generation has to be begun, if it can be. While something is being done with this one that is not known: it
    /// is asked when that ends.
    pub(super) async fn full_is_due(&mut self, others: Option<&Seal>) -> Result<Option<&'static str>, ArchiveError> {
        let settings = self.session.settings;
        if let Some(asked) = others {
            self.successor.hasten(asked);
        }
        if !self.successor.is_open() {
            return Ok(None);
        }
        self.look_owed = self.chain.is_none();
        let Some(chain) = &self.chain else { return Ok(None) };
        if others.is_some() {
            return Ok(Some(OTHER_RECIPIENTS));
        }
        if chain.links.len() > MOST_DELTAS {
            return Ok(Some("the deltas since the last one have become many"));
        }
        let auth_revision = match timeout(AUTH_ANSWER, self.auth.ask()).await {
            Ok(Ok(auth_revision)) => auth_revision,
            // What a member has sent that is gone may be in nobody else's hands: it is stored before this ends.
            Ok(Err(_)) if self.feed.holds() => return Ok(None),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Ok(None),
        };
        if auth_revision != chain.full.auth_revision {
            return Ok(Some("users or roles have changed"));
        }
        let deltas: u64 = chain.links.iter().map(|link| link.delta.data.plain_bytes).sum();
        if deltas > settings.full_after {
            return Ok(Some("the events since the last one have become many"));
        }
        // Before it was taken it is no time for the next one: our clock is behind then.
        let age = Duration::try_from(Timestamp::now().duration_since(chain.full.taken)).unwrap_or_default();
        Ok((age >= settings.full_every).then_some("it is time for one"))
    }
}
