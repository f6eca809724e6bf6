//! Faults of the operator: killed, away, or crashing after a number of writes. It acts on the Deployment as an
//! administrator would; each fault that lasts is taken back however its scene ends.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use rustix::process::Signal;
use serde_json::json;

use super::processes;
use crate::scene::{PATIENCE, wait_for};

/// The operator's namespace.
pub const NAMESPACE: &str = "quorate-system";
/// The name of its Deployment and of its Lease.
pub const NAME: &str = "quorate";
/// The environment variable that lets the operator end itself after so many writes.
const CRASH_VARIABLE: &str = "QUORATE_CRASH_AFTER_WRITES";

/// The operator, as its administrator sees it. Cheap to clone.
#[derive(Clone)]
pub struct Operator {
    client: Client,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Operator")
    }
}

impl Operator {
    /// The operator of the cluster that this client talks to.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Its pods that are not on their way out, by name.
    pub async fn replicas(&self) -> Result<BTreeMap<String, Pod>> {
        let deployment = self.deployments().get(NAME).await.context("the operator is not installed")?;
        let labels = deployment.spec.and_then(|spec| spec.selector.match_labels).unwrap_or_default();
        let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let pods = self.pods().list(&ListParams::default().labels(&labels.join(","))).await?.items;
        let staying = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(staying.map(|pod| (pod.metadata.name.clone().unwrap_or_default(), pod)).collect())
    }

    /// Who holds the Lease, in the operator's own words.
    pub async fn holder(&self) -> Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let lease = leases.get(NAME).await?.spec.context("the Lease is empty")?;
        lease.holder_identity.filter(|holder| !holder.is_empty()).context("nobody holds the Lease")
    }

    /// The pod that leads.
    pub async fn leader(&self) -> Result<Pod> {
        wait_for("an operator that leads", PATIENCE, async || {
            let holder = self.holder().await?;
            let replicas = self.replicas().await?;
            let names = format!("{:?}", replicas.keys());
            let leader = replicas.into_iter().find(|(name, _)| holder.starts_with(name.as_str()));
            leader.map(|(_, pod)| pod).with_context(|| format!("{holder} holds the Lease and is none of {names}"))
        })
        .await
    }

    /// The process of the operator that leads.
    pub async fn leading_process(&self) -> Result<i32> {
        let uid = self.leader().await?.metadata.uid.context("a pod without a UID")?;
        wait_for("the leading operator's process", PATIENCE, async || {
            processes::in_pod(&uid, NAME).first().copied().context("its pod has none")
        })
        .await
    }

    /// `kill -9` of the operator that leads.
    pub async fn kill(&self) -> Result<()> {
        processes::signal(self.leading_process().await?, Signal::KILL)
    }

    /// Deletes one of its pods, with the grace of a rollout.
    pub async fn delete_pod(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await.context("failed to delete the operator's pod")?;
        Ok(())
    }

    /// Deletes all of its pods without grace.
    pub async fn delete_pods(&self) -> Result<()> {
        let now = DeleteParams::default().grace_period(0);
        for name in self.replicas().await?.keys() {
            self.pods().delete(name, &now).await.context("failed to delete an operator's pod")?;
        }
        Ok(())
    }

    /// Waits until all wanted replicas are ready and one leads.
    pub async fn is_ready(&self) -> Result<()> {
        wait_for("the operator to be ready", PATIENCE, async || {
            let deployment = self.deployments().get(NAME).await?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
            let status = deployment.status.unwrap_or_default();
            ensure!(status.observed_generation == deployment.metadata.generation, "its Deployment is not yet seen");
            let (ready, updated, all) = (
                status.ready_replicas.unwrap_or(0),
                status.updated_replicas.unwrap_or(0),
                status.replicas.unwrap_or(0),
            );
            ensure!(ready == wanted && updated == wanted && all == wanted, "{ready} of {wanted} ready, {all} in all");
            Ok(())
        })
        .await?;
        self.leader().await.map(drop)
    }

    /// Runs `body` with no operator at all, and has it back afterwards, however that ended.
    pub async fn away_during<T>(&self, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
        let replicas = self.deployments().get(NAME).await?.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let outcome = match self.scale(0).await {
            Ok(()) => body().await,
            Err(error) => Err(error),
        };
        self.scale(replicas).await?;
        outcome
    }

    /// Runs `body` with one operator that ends itself right after its `write`-th write, and has the usual ones back
    /// afterwards.
    pub async fn crashing_during<T>(&self, write: u32, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
        let replicas = self.deployments().get(NAME).await?.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let crash = write.to_string();
        let outcome = match self.scale_with(1, Some(&crash)).await {
            Ok(()) => body().await,
            Err(error) => Err(error),
        };
        self.scale_with(replicas, None).await?;
        outcome
    }

    /// Waits until the crashing operator has ended itself once, or `done` says that it never will. Then it is told not
    /// to do it again.
    pub async fn crashes_once(&self, done: impl AsyncFn() -> Result<()>) -> Result<bool> {
        let crashed = wait_for("the operator to crash, or to have done everything", PATIENCE * 5, async || {
            if self.has_crashed().await? {
                return Ok(true);
            }
            done().await.map(|()| false)
        })
        .await?;
        self.configure(None).await?;
        Ok(crashed)
    }

    async fn has_crashed(&self) -> Result<bool> {
        let pods = self.replicas().await?;
        let restarts =
            pods.values().flat_map(|pod| pod.status.iter()).flat_map(|status| status.container_statuses.iter());
        Ok(restarts.flatten().any(|container| {
            let ended = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
                state.as_ref().is_some_and(|state| state.terminated.is_some())
            };
            container.restart_count > 0 || ended(&container.state) || ended(&container.last_state)
        }))
    }

    async fn scale(&self, replicas: i32) -> Result<()> {
        self.set_replicas(replicas).await?;
        if replicas > 0 {
            return self.is_ready().await;
        }
        wait_for("the operator to be gone", PATIENCE, async || {
            let pods = self.pods().list(&ListParams::default()).await?.items;
            let names: Vec<_> = pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
            ensure!(!names.iter().any(|name| name.starts_with(&format!("{NAME}-"))), "{names:?}");
            Ok(())
        })
        .await
    }

    /// No operator, then so many with this crash variable: no write of an earlier one is in between.
    async fn scale_with(&self, replicas: i32, crash: Option<&str>) -> Result<()> {
        self.scale(0).await?;
        self.configure(crash).await?;
        // One that crashes at its first write may never be ready.
        if crash.is_some() { self.set_replicas(replicas).await } else { self.scale(replicas).await }
    }

    async fn set_replicas(&self, replicas: i32) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.deployments()
            .patch(NAME, &PatchParams::default(), &patch)
            .await
            .context("failed to scale the operator")?;
        Ok(())
    }

    async fn configure(&self, crash: Option<&str>) -> Result<()> {
        let deployment = self.deployments().get(NAME).await?;
        let template =
            deployment.spec.and_then(|spec| spec.template.spec).context("a Deployment without a template")?;
        let container = template.containers.first().context("a Deployment without a container")?.name.clone();
        let variable = match crash {
            Some(value) => json!({ "name": CRASH_VARIABLE, "value": value }),
            None => json!({ "name": CRASH_VARIABLE, "$patch": "delete" }),
        };
        let patch = json!({ "spec": { "template": { "spec": {
            "containers": [{ "name": container, "env": [variable] }],
        } } } });
        let patch = Patch::Strategic(patch);
        self.deployments().patch(NAME, &PatchParams::default(), &patch).await.context("failed to set the crash")?;
        Ok(())
    }
}
