//! Where the members can be reached, as the API server last said. While that is away, what was known stays.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use tokio::task::JoinHandle;

use crate::scene::{Cluster, Door, Keys};

/// How often the pods are read.
const READ_INTERVAL: Duration = Duration::from_millis(300);
/// How long a read may take: with the API server away, the next try must not wait for its connection.
const READ_DEADLINE: Duration = Duration::from_secs(2);

/// Where a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The way to it.
    pub door: Door,
    /// The name of its node.
    pub node: String,
}

/// The members' places by name, kept up to date until it is dropped by all.
#[derive(Clone, Debug)]
pub struct Book {
    cluster: Cluster,
    keys: Option<Arc<Keys>>,
    places: Arc<RwLock<Arc<BTreeMap<String, Place>>>>,
    _reader: Arc<Reader>,
}

#[derive(Debug)]
struct Reader(JoinHandle<()>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Book {
    /// Reads the places, and goes on doing so.
    pub async fn open(cluster: &Cluster) -> Result<Self> {
        let keys = cluster.keys().await?;
        let places = Arc::new(RwLock::new(Arc::new(read(cluster, keys.as_ref()).await?)));
        let (of, shown, written) = (cluster.clone(), keys.clone(), places.clone());
        let reader = tokio::spawn(async move {
            loop {
                tokio::time::sleep(READ_INTERVAL).await;
                if let Ok(Ok(read)) = tokio::time::timeout(READ_DEADLINE, read(&of, shown.as_ref())).await {
                    *written.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
                }
            }
        });
        Ok(Self { cluster: cluster.clone(), keys, places, _reader: Arc::new(Reader(reader)) })
    }

    /// All places as they are now, for who can't go by what was known: an error while the API server is away.
    pub async fn now(&self) -> Result<BTreeMap<String, Place>> {
        read(&self.cluster, self.keys.as_ref()).await
    }

    /// All places.
    pub fn places(&self) -> Arc<BTreeMap<String, Place>> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A member and its place, by any number: they are counted round.
    pub fn any(&self, number: usize) -> Option<(String, Place)> {
        let places = self.places();
        let (name, place) = places.iter().nth(number % places.len().max(1))?;
        Some((name.clone(), place.clone()))
    }
}

async fn read(cluster: &Cluster, keys: Option<&Arc<Keys>>) -> Result<BTreeMap<String, Place>> {
    let place = |name: &str, pod: &Pod| {
        let node = pod.spec.as_ref()?.node_name.clone()?;
        let address = pod.status.as_ref()?.pod_ip.as_deref()?;
        Some(Place { door: cluster.door(name, address, keys.cloned()), node })
    };
    let view = cluster.view().await?;
    Ok(view.pods.iter().filter_map(|(name, pod)| Some((name.clone(), place(name, pod)?))).collect())
}
