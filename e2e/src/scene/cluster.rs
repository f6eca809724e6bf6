//! One EtcdCluster of a scene: what a user does with it and what can be seen of it. Everything goes through the
//! Kubernetes API or etcd's own; nothing here knows the operator's code.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use etcd_client::Client;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use quorate_crds::{ConditionType, EtcdCluster, MemberHealth, MemberRole, OnScaleDown, Phase, TlsMode, names};
use serde_json::{Value, json};

use super::members::{Door, Keys, Membership, dial, dial_patiently, membership, serves, told};
use super::{PATIENCE, Scene, View, wait_for};

/// An EtcdCluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    scene: Scene,
    name: String,
}

/// What makes a member the same one: its id in etcd and the volume that it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// etcd's id.
    pub id: u64,
    /// The UID of its claim.
    pub volume: Option<String>,
}

impl Cluster {
    /// A cluster of this name in this scene.
    pub fn new(scene: Scene, name: &str) -> Self {
        Self { scene, name: name.to_owned() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its scene.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    /// Its object.
    pub fn objects(&self) -> Api<EtcdCluster> {
        self.scene.api()
    }

    /// The pods of the scene.
    pub fn pods(&self) -> Api<Pod> {
        self.scene.api()
    }

    /// The claims of the scene.
    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        self.scene.api()
    }

    fn selector(&self) -> ListParams {
        let member = format!("{}={}", names::LABEL_NAME, names::APP_NAME);
        ListParams::default().labels(&format!("{}={},{member}", names::LABEL_CLUSTER, self.name))
    }

    /// One look at everything that the API server holds of it.
    pub async fn view(&self) -> Result<View> {
        let (objects, pods, claims) = (self.objects(), self.pods(), self.claims());
        let selector = self.selector();
        let (object, pods, claims) =
            tokio::try_join!(objects.get(&self.name), pods.list(&selector), claims.list(&selector))?;
        Ok(View {
            object,
            pods: pods.items.into_iter().map(|pod| (pod.metadata.name.clone().unwrap_or_default(), pod)).collect(),
            claims: claims
                .items
                .into_iter()
                .map(|claim| (claim.metadata.name.clone().unwrap_or_default(), claim))
                .collect(),
        })
    }

    /// What a client of this cluster shows, as an application has it: out of the Secret that it mounts. Nothing in plain
    /// text.
    pub async fn keys(&self) -> Result<Option<Arc<Keys>>> {
        self.keys_of(&self.objects().get(&self.name).await?).await
    }

    async fn keys_of(&self, object: &EtcdCluster) -> Result<Option<Arc<Keys>>> {
        let tls = &object.spec.tls;
        let name = match (tls.mode, &tls.secrets) {
            (TlsMode::Disabled, _) => return Ok(None),
            (TlsMode::Secrets, Some(secrets)) => secrets.client.name.clone(),
            (TlsMode::Issued, _) | (TlsMode::Secrets, None) => names::client_secret(&self.name),
        };
        // At once: of a Secret that is changed meanwhile the certificate and the key have to fit.
        let mut held = self.secret(&name).await?;
        let mut text = |key| text_in(&mut held, &name, key);
        let keys = Keys { trusted: text("ca.crt")?, certificate: text("tls.crt")?, key: text("tls.key")? };
        Ok(Some(Arc::new(keys)))
    }

    /// One text in a Secret of the scene's namespace.
    pub async fn secret_text(&self, name: &str, key: &str) -> Result<String> {
        text_in(&mut self.secret(name).await?, name, key)
    }

    /// What a Secret of the scene's namespace holds.
    async fn secret(&self, name: &str) -> Result<BTreeMap<String, ByteString>> {
        let secret = self.scene.api::<Secret>().get(name).await;
        Ok(secret.with_context(|| format!("there is no Secret {name}"))?.data.unwrap_or_default())
    }

    /// The way to a member of this name at this address.
    pub fn door(&self, member: &str, address: &str, keys: Option<Arc<Keys>>) -> Door {
        let host = format!("{member}.{}.{}.svc", self.name, self.scene.namespace());
        Door { address: address.to_owned(), host, keys }
    }

    /// The ways to the members whose pods carry the voter's label; to all pods as long as none does.
    pub async fn voters_doors(&self) -> Result<BTreeMap<String, Door>> {
        let (keys, addresses) = tokio::try_join!(self.keys(), self.voters_addresses())?;
        Ok(addresses.into_iter().map(|(name, ip)| (name.clone(), self.door(&name, &ip, keys.clone()))).collect())
    }

    /// The addresses of the pods that carry the voter's label; of all pods as long as none does.
    pub async fn voters_addresses(&self) -> Result<BTreeMap<String, String>> {
        let pods = self.pods().list(&self.selector()).await?;
        let addresses = |voters: bool| -> BTreeMap<String, String> {
            let wanted = pods.items.iter().filter(|pod| {
                let role = pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::LABEL_ROLE));
                pod.metadata.deletion_timestamp.is_none()
                    && (!voters || role.is_some_and(|role| role == names::ROLE_VOTER))
            });
            let named =
                wanted.filter_map(|pod| Some((pod.metadata.name.clone()?, pod.status.as_ref()?.pod_ip.clone()?)));
            named.collect()
        };
        let voters = addresses(true);
        Ok(if voters.is_empty() { addresses(false) } else { voters })
    }

    /// Waits until the cluster, seen through the Kubernetes API, is as `look` demands.
    pub async fn until(&self, what: &str, deadline: Duration, look: impl Fn(&View) -> Result<()>) -> Result<View> {
        wait_for(&format!("{what} ({})", self.name), deadline, async || {
            let view = self.view().await?;
            look(&view).with_context(|| view.summary())?;
            Ok(view)
        })
        .await
    }

    /// Waits until the cluster is as asked for, with `voters` members: what the status says, what the pods say and what
    /// etcd says have to agree, and every member has to serve a linearizable read itself.
    pub async fn settles(&self, voters: usize) -> Result<Membership> {
        self.settles_within(voters, PATIENCE).await
    }

    /// The same, in this time.
    pub async fn settles_within(&self, voters: usize, deadline: Duration) -> Result<Membership> {
        wait_for(&format!("{} to settle with {voters} members", self.name), deadline, async || {
            let view = self.view().await?;
            self.is_settled(&view, voters).await.with_context(|| view.summary())
        })
        .await
    }

    /// The same, without the member `gone`: what was there before a fault may look settled until it is noticed.
    pub async fn settles_without(&self, gone: &str, voters: usize) -> Result<Membership> {
        wait_for(&format!("{} to settle with {voters} members, {gone} none of them", self.name), PATIENCE, async || {
            let view = self.view().await?;
            let membership = self.is_settled(&view, voters).await.with_context(|| view.summary())?;
            ensure!(!membership.members.contains_key(gone), "{gone} is still a member");
            Ok(membership)
        })
        .await
    }

    /// etcd's own member list, linearizable.
    pub async fn membership(&self) -> Result<Membership> {
        membership(&self.voters_doors().await?).await
    }

    /// Waits for etcd's own member list.
    pub async fn answers(&self) -> Result<Membership> {
        wait_for(&format!("a linearizable member list of {}", self.name), PATIENCE, async || self.membership().await)
            .await
    }

    /// Who every member is, by name.
    pub async fn identities(&self) -> Result<BTreeMap<String, Identity>> {
        let membership = self.answers().await?;
        let view = self.view().await?;
        let identities = membership.members.into_values().map(|member| {
            let volume = view.volume(&member.name).map(str::to_owned);
            (member.name, Identity { id: member.id, volume })
        });
        Ok(identities.collect())
    }

    /// Demands that exactly the members of before are there, under their ids, on their volumes: no membership call was
    /// made, for each leaves another id or another name behind.
    pub async fn is_the_same_as(&self, before: &BTreeMap<String, Identity>) -> Result<()> {
        let now = self.identities().await?;
        ensure!(now == *before, "the members are other ones than before: {now:?}, before {before:?}");
        Ok(())
    }

    /// A merge patch of the object, as `kubectl patch` does it.
    pub async fn patch(&self, patch: Value) -> Result<()> {
        let patch = Patch::Merge(patch);
        self.objects().patch(&self.name, &PatchParams::default(), &patch).await.context("failed to patch")?;
        Ok(())
    }

    /// Another size.
    pub async fn scale(&self, replicas: u8) -> Result<()> {
        self.patch(json!({ "spec": { "replicas": replicas } })).await
    }

    /// Deletes the object and waits until it is gone.
    pub async fn delete(&self) -> Result<()> {
        self.objects().delete(&self.name, &DeleteParams::default()).await.context("failed to delete the cluster")?;
        wait_for(&format!("the deletion of {} to complete", self.name), PATIENCE, async || {
            match self.objects().get_opt(&self.name).await? {
                None => Ok(()),
                Some(object) => bail!("it is there, with finalizers {:?}", object.metadata.finalizers),
            }
        })
        .await
    }

    /// etcd's own member list by this member, linearizable.
    pub async fn membership_at(&self, door: &Door) -> Result<Membership> {
        membership(&BTreeMap::from([(self.name.clone(), door.clone())])).await
    }

    /// Makes a call to one member after the other until one answers; what the last one said if none does.
    pub async fn ask<T>(&self, mut call: impl AsyncFnMut(&mut Client) -> Result<T>) -> Result<T> {
        let mut last = anyhow!("no member has an address");
        for (name, door) in self.voters_doors().await? {
            let asked = async { call(&mut dial(&door).await?).await };
            match asked.await {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error.context(name),
            }
        }
        Err(last)
    }

    /// Makes calls to one member that can't be made once more: one that is cut short may have had its effect. So each is waited
    /// for, where a disk stands still too.
    pub async fn ask_patiently<T>(&self, call: impl AsyncFnOnce(&mut Client) -> Result<T>) -> Result<T> {
        let doors = self.voters_doors().await?;
        let (name, door) = doors.iter().next().context("no member has an address")?;
        call(&mut dial_patiently(door).await?).await.with_context(|| name.clone())
    }

    /// Writes one key.
    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        wait_for(&format!("a write to {}", self.name), PATIENCE, async || {
            self.ask(async |client| client.put(key, value, None).await.map_err(told)).await.map(drop)
        })
        .await
    }

    /// Deletes one key.
    pub async fn remove(&self, key: &str) -> Result<()> {
        let removed = self.ask_patiently(async |client| client.delete(key, None).await.map_err(told)).await?;
        ensure!(removed.deleted() == 1, "{} keys were deleted", removed.deleted());
        Ok(())
    }

    /// Demands that a key reads as it was written, linearizably.
    pub async fn reads(&self, key: &str, value: &str) -> Result<()> {
        let answer = wait_for(&format!("a linearizable read from {}", self.name), PATIENCE, async || {
            self.ask(async |client| client.get(key, None).await.map_err(told)).await
        })
        .await?;
        let found = answer.kvs().first().map(|pair| String::from_utf8_lossy(pair.value()).into_owned());
        ensure!(found.as_deref() == Some(value), "{key} reads {found:?}, not {value:?}");
        Ok(())
    }

    /// Demands that everything says the same: settled, with this many members.
    async fn is_settled(&self, view: &View, voters: usize) -> Result<Membership> {
        let status = view.status();
        ensure!(view.is_current(), "the status speaks of an older generation");
        ensure!(status.phase == Some(Phase::Running), "the phase is not Running");
        ensure!(view.is(ConditionType::Ready) && view.is(ConditionType::Available), "it is not Ready and Available");
        ensure!(
            !view.is(ConditionType::Reconciling) && !view.is(ConditionType::Stalled),
            "it is Reconciling or Stalled"
        );
        ensure!(
            usize::try_from(status.ready_replicas) == Ok(voters),
            "{} are ready, not {voters}",
            status.ready_replicas
        );
        ensure!(view.pods.len() == voters, "there are {} pods, not {voters}", view.pods.len());
        let keys = self.keys_of(&view.object).await?;
        let doors: BTreeMap<_, _> = view
            .addresses()
            .into_iter()
            .map(|(name, ip)| (name.clone(), self.door(&name, &ip, keys.clone())))
            .collect();
        ensure!(doors.len() == voters, "{} pods have an address, not {voters}", doors.len());
        let membership = membership(&doors).await?;
        ensure!(membership.members.len() == voters, "etcd lists {:?}", membership.members);
        ensure!(status.members.len() == voters, "the status lists {} members", status.members.len());
        for member in &status.members {
            let listed = membership.members.get(&member.name);
            let listed = listed.with_context(|| format!("etcd does not list {}", member.name))?;
            ensure!(!listed.learner && member.role == Some(MemberRole::Voter), "{} is not a voter", member.name);
            ensure!(member.health == Some(MemberHealth::Healthy), "{} is not healthy", member.name);
            let id = member.id.as_ref().and_then(quorate_crds::HexId::get);
            ensure!(
                id == Some(listed.id),
                "the status says that {} is {:?}, etcd {:x}",
                member.name,
                member.id,
                listed.id
            );
            let door = doors.get(&member.name).with_context(|| format!("{} has no pod", member.name))?;
            let version = Some(view.object.spec.version.as_str());
            ensure!(
                member.version.as_deref() == version,
                "the status says that {} runs {:?}",
                member.name,
                member.version
            );
            serves(door, version).await.with_context(|| member.name.clone())?;
        }
        let cluster = status.cluster_id.as_ref().and_then(quorate_crds::HexId::get);
        ensure!(
            cluster == Some(membership.cluster),
            "the status says cluster {cluster:?}, etcd {}",
            membership.cluster
        );
        ensure!(
            status.version.as_deref() == Some(view.object.spec.version.as_str()),
            "the status' version is {:?}",
            status.version
        );
        has_claims_of_members(view, &membership)?;
        self.has_a_budget_for(voters).await?;
        Ok(membership)
    }

    /// Demands that so many voters are protected from evictions: one may go where that leaves a quorum, and the only one
    /// there is; one that is not ready is no exception.
    async fn has_a_budget_for(&self, voters: usize) -> Result<()> {
        let budget = self.scene.api::<PodDisruptionBudget>().get(&self.name).await.context("there is no budget")?;
        let spec = budget.spec.context("the budget has no spec")?;
        let least = IntOrString::Int(i32::try_from(least_available(voters))?);
        ensure!(
            spec.min_available.as_ref() == Some(&least) && spec.max_unavailable.is_none(),
            "the budget wants {:?}, or {:?} away, not {least:?}",
            spec.min_available,
            spec.max_unavailable
        );
        let policy = spec.unhealthy_pod_eviction_policy.as_deref();
        ensure!(policy == Some("IfHealthyBudget"), "the budget's policy for pods that are not ready is {policy:?}");
        Ok(())
    }
}

/// Takes one text out of what a Secret of this name holds.
fn text_in(held: &mut BTreeMap<String, ByteString>, secret: &str, key: &str) -> Result<String> {
    let bytes = held.remove(key).with_context(|| format!("{secret} has no {key}"))?;
    Ok(String::from_utf8(bytes.0)?)
}

/// How many of so many voters an eviction has to leave: of two both, as one of them is no quorum.
fn least_available(voters: usize) -> usize {
    if voters == 2 { 2 } else { voters.saturating_sub(1) }
}

/// Demands that each member has a claim and nobody else does; with ephemeral storage that there is none. Only where the
/// claims of removed members are to stay there may be more: a spare's goes before a cluster is settled.
fn has_claims_of_members(view: &View, membership: &Membership) -> Result<()> {
    let storage = &view.object.spec.storage;
    let claims: BTreeSet<&String> = view.claims.keys().collect();
    let due: BTreeSet<&String> = membership.members.keys().filter(|_| !storage.ephemeral).collect();
    let fit = match storage.retention().on_scale_down {
        OnScaleDown::Delete => claims == due,
        OnScaleDown::Retain => claims.is_superset(&due),
    };
    ensure!(fit, "the claims are {claims:?}, not {due:?}");
    Ok(())
}
