//! Faults of the operator: killed, away, or crashing after a number of writes. It acts on the Deployment as an
//! administrator would; each fault that lasts is taken back however its scene ends.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role, RoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use rustix::process::Signal;
use serde_json::json;

use super::processes;
use crate::scene::{PATIENCE, Scene, wait_for};

/// The operator's namespace.
pub const NAMESPACE: &str = "quorate-system";
/// The name of the Deployment and of the Lease of the one that is installed; and of every operator's process.
pub const NAME: &str = "quorate";
/// The environment variable that lets the operator end itself after so many writes.
const CRASH_VARIABLE: &str = "QUORATE_CRASH_AFTER_WRITES";
/// The environment variable that names the agent's image.
const AGENT_VARIABLE: &str = "QUORATE_AGENT_IMAGE";
/// The exit code with which it does so, and with which nothing else ends.
const CRASH_CODE: i32 = 86;

/// The label by which a Deployment of the operator knows its pods.
const LABEL: &str = "app.kubernetes.io/name";

/// The operator, as its administrator sees it. Cheap to clone.
#[derive(Clone)]
pub struct Operator {
    client: Client,
    /// The name of its Deployment and of its Lease.
    name: String,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Operator")
    }
}

impl Operator {
    /// The operator of the cluster that this client talks to.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), name: NAME.to_owned() }
    }

    /// Runs `body` with another operator of the same make, which looks after the scene's namespace alone. Meanwhile the
    /// installed one has to be away.
    pub async fn of_its_own<T>(&self, scene: &Scene, body: impl AsyncFnOnce(&Self) -> Result<T>) -> Result<T> {
        let other = Self { client: self.client.clone(), name: format!("{}-{}", self.name, scene.namespace()) };
        let outcome = match self.install(&other.name, scene.namespace()).await {
            Ok(()) => body(&other).await,
            Err(error) => Err(error),
        };
        other.uninstall().await?;
        outcome
    }

    /// Installs another like this one, with a Lease of its own.
    async fn install(&self, name: &str, namespace: &str) -> Result<()> {
        let mut deployment = self.deployments().get(&self.name).await.context("the operator is not installed")?;
        deployment.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        deployment.status = None;
        let spec = deployment.spec.as_mut().context("a Deployment without a spec")?;
        let labels: BTreeMap<_, _> = [(LABEL.to_owned(), name.to_owned())].into();
        spec.replicas = Some(1);
        spec.selector.match_labels = Some(labels.clone());
        spec.template.metadata.get_or_insert_default().labels = Some(labels);
        let template = spec.template.spec.as_mut().context("a Deployment without a template")?;
        template.affinity = None;
        template.service_account_name = Some(name.to_owned());
        template.service_account = None;
        let container = template.containers.first_mut().context("a Deployment without a container")?;
        for (variable, value) in [("QUORATE_NAMESPACES", namespace), ("QUORATE_LEASE_NAME", name)] {
            let value = EnvVar { name: variable.into(), value: Some(value.into()), value_from: None };
            container.env.get_or_insert_default().push(value);
        }
        self.allow(name).await?;
        let created = self.deployments().create(&PostParams::default(), &deployment).await;
        created.context("failed to create its Deployment").map(drop)
    }

    /// Makes a ServiceAccount that may do what the installed operator may. It is another one, so that the audit log tells
    /// which of them did what.
    async fn allow(&self, name: &str) -> Result<()> {
        let lease = |verbs: &[&str], names: &[&str]| json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": names, "verbs": verbs });
        let metadata = json!({ "name": name });
        let rules = [lease(&["create"], &[]), lease(&["get", "update"], &[name])];
        let bind = |kind: &str, role: &str| {
            json!({ "metadata": metadata,
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role },
                "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }] })
        };
        let account: ServiceAccount = serde_json::from_value(json!({ "metadata": metadata }))?;
        let role: Role = serde_json::from_value(json!({ "metadata": metadata, "rules": rules }))?;
        let here: RoleBinding = serde_json::from_value(bind("Role", name))?;
        let everywhere: ClusterRoleBinding = serde_json::from_value(bind("ClusterRole", NAME))?;
        let params = PostParams::default();
        self.own().create(&params, &account).await.context("failed to create its ServiceAccount")?;
        self.own().create(&params, &role).await.context("failed to create its Role")?;
        self.own().create(&params, &here).await.context("failed to create its RoleBinding")?;
        let bindings = Api::all(self.client.clone());
        bindings.create(&params, &everywhere).await.context("failed to create its ClusterRoleBinding").map(drop)
    }

    /// Takes away all there is of it, and waits until its pods are gone.
    async fn uninstall(&self) -> Result<()> {
        let params = DeleteParams::background();
        gone(self.deployments().delete(&self.name, &params).await)?;
        self.is_gone().await?;
        gone(self.own::<Lease>().delete(&self.name, &params).await)?;
        gone(Api::<ClusterRoleBinding>::all(self.client.clone()).delete(&self.name, &params).await)?;
        gone(self.own::<RoleBinding>().delete(&self.name, &params).await)?;
        gone(self.own::<Role>().delete(&self.name, &params).await)?;
        gone(self.own::<ServiceAccount>().delete(&self.name, &params).await)
    }

    /// Objects of a kind in the operator's namespace.
    fn own<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn deployments(&self) -> Api<Deployment> {
        self.own()
    }

    fn pods(&self) -> Api<Pod> {
        self.own()
    }

    /// Its pods that are not on their way out, by name.
    pub async fn replicas(&self) -> Result<BTreeMap<String, Pod>> {
        let pods = self.pods().list(&self.labelled()).await?.items;
        let staying = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(staying.map(|pod| (pod.metadata.name.clone().unwrap_or_default(), pod)).collect())
    }

    fn labelled(&self) -> ListParams {
        ListParams::default().labels(&format!("{LABEL}={}", self.name))
    }

    /// Who holds the Lease, in the operator's own words.
    pub async fn holder(&self) -> Result<String> {
        let lease = self.own::<Lease>().get(&self.name).await?.spec.context("the Lease is empty")?;
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
            let deployment = self.deployments().get(&self.name).await?;
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
        let replicas = self.deployments().get(&self.name).await?.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let outcome = match self.scale(0).await {
            Ok(()) => body().await,
            Err(error) => Err(error),
        };
        self.scale(replicas).await?;
        outcome
    }

    /// Runs `body` with operators of another version, which put this image of the agent into new pods, and has the usual ones
    /// back afterwards, however that ended.
    pub async fn with_agent_during<T>(&self, image: &str, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
        let env = self.container().await?.env.unwrap_or_default();
        let usual =
            env.into_iter().find(|variable| variable.name == AGENT_VARIABLE).and_then(|variable| variable.value);
        let changed = async {
            self.set(AGENT_VARIABLE, Some(image)).await?;
            self.is_ready().await
        };
        let outcome = match changed.await {
            Ok(()) => body().await,
            Err(error) => Err(error),
        };
        self.set(AGENT_VARIABLE, usual.as_deref()).await?;
        self.is_ready().await?;
        outcome
    }

    /// Runs `body` with one operator that ends itself right after its `write`-th write, and has the usual ones back
    /// afterwards.
    pub async fn crashing_during<T>(&self, write: u32, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
        let replicas = self.deployments().get(&self.name).await?.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let crash = write.to_string();
        let outcome = match self.scale_with(1, Some(&crash)).await {
            Ok(()) => body().await,
            Err(error) => Err(error),
        };
        self.scale_with(replicas, None).await?;
        outcome
    }

    /// Waits until the crashing operator has ended itself once, or `done` says that it never will. Then it is told not
    /// to do it again. An end that was not asked for is a fault of the operator.
    pub async fn crashes_once(&self, done: impl AsyncFn() -> Result<()>) -> Result<bool> {
        let code = wait_for("the operator to crash, or to have done everything", PATIENCE * 5, async || {
            match self.exit_code().await? {
                Some(code) => Ok(Some(code)),
                None => done().await.map(|()| None),
            }
        })
        .await?;
        if let Some(code) = code {
            ensure!(code == CRASH_CODE, "the operator ended with code {code}, not as was asked for with {CRASH_CODE}");
        }
        self.set(CRASH_VARIABLE, None).await?;
        Ok(code.is_some())
    }

    /// The exit code of a container of its pods that has ended, if one has.
    async fn exit_code(&self) -> Result<Option<i32>> {
        let pods = self.replicas().await?;
        let statuses = pods.values().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()).flatten();
        let states = statuses.flat_map(|container| [&container.state, &container.last_state]);
        let mut ended = states.filter_map(|state| state.as_ref()?.terminated.as_ref());
        Ok(ended.next().map(|end| end.exit_code))
    }

    async fn scale(&self, replicas: i32) -> Result<()> {
        self.set_replicas(replicas).await?;
        if replicas > 0 {
            return self.is_ready().await;
        }
        self.is_gone().await
    }

    async fn is_gone(&self) -> Result<()> {
        wait_for("the operator to be gone", PATIENCE, async || {
            let pods = self.pods().list(&self.labelled()).await?.items;
            let names: Vec<_> = pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
            ensure!(names.is_empty(), "{names:?}");
            Ok(())
        })
        .await
    }

    /// No operator, then so many with this crash variable: no write of an earlier one is in between.
    async fn scale_with(&self, replicas: i32, crash: Option<&str>) -> Result<()> {
        self.scale(0).await?;
        self.set(CRASH_VARIABLE, crash).await?;
        // One that crashes at its first write may never be ready.
        if crash.is_some() { self.set_replicas(replicas).await } else { self.scale(replicas).await }
    }

    async fn set_replicas(&self, replicas: i32) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.deployments()
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
            .context("failed to scale the operator")?;
        Ok(())
    }

    /// Gives its container an environment variable, or takes it away.
    async fn set(&self, variable: &str, value: Option<&str>) -> Result<()> {
        let container = self.container().await?.name;
        let variable = match value {
            Some(value) => json!({ "name": variable, "value": value }),
            None => json!({ "name": variable, "$patch": "delete" }),
        };
        let patch = json!({ "spec": { "template": { "spec": {
            "containers": [{ "name": container, "env": [variable] }],
        } } } });
        let patch = Patch::Strategic(patch);
        self.deployments()
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
            .context("failed to change the operator's environment")?;
        Ok(())
    }

    async fn container(&self) -> Result<Container> {
        let deployment = self.deployments().get(&self.name).await?;
        let template =
            deployment.spec.and_then(|spec| spec.template.spec).context("a Deployment without a template")?;
        template.containers.into_iter().next().context("a Deployment without a container")
    }
}

/// What is gone already need not be deleted.
fn gone<T>(deleted: kube::Result<T>) -> Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        deleted => deleted.map(drop).context("failed to take away an operator's object"),
    }
}
