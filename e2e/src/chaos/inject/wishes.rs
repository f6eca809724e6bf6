//! What a user may change in the middle of everything: the size, the settings, the version, and whether it sleeps.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Carried, Injector, tried};
use crate::chaos::fault::Change;
use crate::scene::{PATIENCE, wait_for};

/// How long a look may take that only tells what ran: the way back does not wait for it.
const VIEW_DEADLINE: Duration = Duration::from_secs(3);

impl Injector {
    pub(super) async fn scale(&self, replicas: u8) -> Result<Carried> {
        self.wish(replicas).await?;
        self.size.store(replicas, Ordering::Relaxed);
        Ok(Carried::Done(format!("{replicas} members")))
    }

    pub(super) async fn hibernate(&self, span: Duration) -> Result<Carried> {
        Box::pin(for_a_while(span, self.wish(0), async || self.wake().await)).await?;
        Ok(Carried::Done(format!("{} members", self.size())))
    }

    /// As many members as the user wants when the cluster is awake.
    pub async fn wake(&self) -> Result<()> {
        self.wish(self.size()).await
    }

    pub(super) async fn roll(&self, change: Change) -> Result<Carried> {
        let (patch, what) = match change {
            Change::SnapshotCount(count) => {
                (json!({ "etcd": { "snapshotCount": count } }), format!("snapshotCount {count}"))
            }
            Change::CpuMillis(millis) => {
                (json!({ "resources": { "requests": { "cpu": format!("{millis}m") } } }), format!("{millis}m of a cpu"))
            }
        };
        self.patch(patch).await?;
        Ok(Carried::Done(what))
    }

    pub(super) async fn upgrade(&self, to: &str) -> Result<Carried> {
        self.wish_version(to).await?;
        Ok(Carried::Done(to.to_owned()))
    }

    pub(super) async fn turn_back(&self, to: &str, back: &str, span: Duration) -> Result<Carried> {
        let turned = for_a_while(span, self.wish_version(to), async || {
            let ran = self.runs().await;
            self.wish_version(back).await.map(|()| ran)
        });
        let ran = Box::pin(turned).await?;
        Ok(Carried::Done(format!("{to}, {back}; {} ran last", ran.as_deref().unwrap_or("nobody knows what"))))
    }

    async fn wish(&self, replicas: u8) -> Result<()> {
        let patched = self.patch(json!({ "replicas": replicas })).await;
        // One that had no answer may have been heard; that nobody is wanted excuses more, so it counts then.
        if patched.is_ok() || replicas == 0 {
            self.wished.store(replicas, Ordering::Relaxed);
        }
        patched
    }

    async fn wish_version(&self, version: &str) -> Result<()> {
        self.patch(json!({ "version": version })).await
    }

    /// The version that runs, if that can be told soon.
    async fn runs(&self) -> Option<String> {
        let view = tokio::time::timeout(VIEW_DEADLINE, self.cluster.view()).await.ok()?.ok()?;
        view.status().version
    }

    async fn patch(&self, spec: Value) -> Result<()> {
        tried(async || self.cluster.patch(json!({ "spec": spec })).await).await
    }
}

/// Wishes something for a while, and takes it back for as long as it takes to be heard. Also where nobody knows whether the
/// wish was: it would hold for the rest of the run.
async fn for_a_while<T>(
    span: Duration,
    wish: impl Future<Output = Result<()>>,
    back: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let heard = wish.await;
    if heard.is_ok() {
        tokio::time::sleep(span).await;
    }
    let taken_back = wait_for("the wish to be taken back", PATIENCE, back).await?;
    heard.map(|()| taken_back)
}

#[cfg(test)]
mod tests {
    use anyhow::{bail, ensure};

    use super::*;

    /// How often a wish is taken back whose own answer, and the first two on its way back, are lost or not.
    async fn taken_back(lost: bool) -> (Result<()>, u32) {
        let mut tries = 0;
        let wish = async {
            ensure!(!lost, "no answer");
            Ok(())
        };
        let outcome = for_a_while(Duration::ZERO, wish, async || {
            tries += 1;
            if lost && tries < 3 {
                bail!("no answer to the way back");
            }
            Ok(())
        });
        (outcome.await, tries)
    }

    #[tokio::test]
    async fn a_wish_whose_answer_was_lost_is_taken_back_until_that_is_heard_and_is_told_as_lost() {
        let (outcome, tries) = taken_back(true).await;
        assert_eq!((outcome.unwrap_err().to_string(), tries), ("no answer".to_owned(), 3));
        let (outcome, tries) = taken_back(false).await;
        assert!(outcome.is_ok() && tries == 1, "{outcome:?} after {tries}");
    }
}
