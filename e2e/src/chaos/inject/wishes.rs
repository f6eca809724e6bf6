//! What a user may change in the middle of everything: the size, the settings, the version, and whether it sleeps.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Carried, Injector, tried};
use crate::chaos::fault::Change;
use crate::scene::{PATIENCE, wait_for};

impl Injector {
    pub(super) async fn scale(&self, replicas: u8) -> Result<Carried> {
        self.wish(replicas).await?;
        self.size.store(replicas, Ordering::Relaxed);
        Ok(Carried::Done(format!("{replicas} members")))
    }

    pub(super) async fn hibernate(&self, span: Duration) -> Result<Carried> {
        let asleep = self.wish(0).await;
        if asleep.is_ok() {
            tokio::time::sleep(span).await;
        }
        // Also where nobody knows whether it was heard: it would sleep for the rest of the run.
        wait_for("the cluster to be woken", PATIENCE, async || self.wake().await).await?;
        asleep?;
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
        self.patch(json!({ "version": to })).await?;
        Ok(Carried::Done(to.to_owned()))
    }

    pub(super) async fn turn_back(&self, to: &str, back: &str, span: Duration) -> Result<Carried> {
        self.upgrade(to).await?;
        tokio::time::sleep(span).await;
        let ran = self.cluster.view().await.ok().and_then(|view| view.status().version.clone());
        self.upgrade(back).await?;
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

    async fn patch(&self, spec: Value) -> Result<()> {
        tried(async || self.cluster.patch(json!({ "spec": spec })).await).await
    }
}
