//! The pods with a label as a watch brings them: however often they are looked at, the API server that is being measured
//! sends each change once. It shows pods; whether they are up is not its business.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use tokio::task::JoinSet;

use crate::scene::Scene;

/// An open watch. It ends with this.
pub struct PodWatch {
    store: reflector::Store<Pod>,
    _driver: JoinSet<()>,
}

impl PodWatch {
    /// Opens one; returns once it shows what there is.
    pub async fn open(scene: &Scene, label: &str) -> Result<Self> {
        let (store, writer) = reflector::store();
        let wanted = watcher::Config::default().labels(label);
        let events = watcher(scene.api::<Pod>(), wanted).default_backoff().reflect(writer);
        let mut driver = JoinSet::new();
        driver.spawn(events.for_each(async |_| ()));
        store.wait_until_ready().await.context("the watch for pods has ended")?;
        Ok(Self { store, _driver: driver })
    }

    /// The pods that are not on their way out.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        let stays = |pod: &Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
        self.store.state().into_iter().filter(stays).collect()
    }
}
