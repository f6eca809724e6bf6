//! The floor: etcd in hand-written pods, with the same image, volumes, probes, requests and security as Quorate's, and
//! nobody who looks after them. What an administrator would do with them by hand is here too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use etcd_client::MemberAddOptions;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::stopwatch::{self, Members, Up, pods, uids, until_up};
use crate::scene::{Door, Membership, Scene, dial, membership, told};

/// The user of Quorate's pods.
const USER: i64 = 65532;

/// A cluster of hand-written pods `<name>-0` and so on.
#[derive(Clone, Debug)]
pub struct Raw {
    scene: Scene,
    name: String,
    members: usize,
    version: &'static str,
}

/// How a hand-written pod's etcd starts.
#[derive(Clone, Debug)]
struct Start {
    /// `new` or `existing`.
    state: &'static str,
    /// Who is a member.
    members: Vec<String>,
}

impl Raw {
    /// A cluster of so many members, not created yet.
    pub fn new(scene: &Scene, name: &str, members: usize) -> Self {
        Self { scene: scene.clone(), name: name.to_owned(), members, version: super::V3_6 }
    }

    /// The same, on this version of etcd.
    pub fn version(self, version: &'static str) -> Self {
        Self { version, ..self }
    }

    /// The label of its pods.
    pub fn label(&self) -> String {
        format!("raw={}", self.name)
    }

    /// The names of its pods and claims.
    pub fn names(&self) -> Vec<String> {
        (0..self.members).map(|number| format!("{}-{number}", self.name)).collect()
    }

    /// Creates everything at once; the seconds until all members are up and their pods Ready.
    pub async fn create(&self) -> Result<f64> {
        self.create_until(Up::Ready).await
    }

    /// Creates everything at once; the seconds until all members are up.
    pub async fn create_until(&self, up: Up) -> Result<f64> {
        let started = Instant::now();
        let service: Service = serde_json::from_value(self.service())?;
        let services = self.scene.api::<Service>();
        let claims = self.scene.api::<PersistentVolumeClaim>();
        let make_claims =
            self.names().into_iter().map(|name| {
                let claims = claims.clone();
                async move {
                    anyhow::Ok(claims.create(&PostParams::default(), &serde_json::from_value(claim(&name))?).await?)
                }
            });
        let (names, params) = (self.names(), PostParams::default());
        let (service, claims, pods) =
            tokio::join!(services.create(&params, &service), try_join_all(make_claims), self.create_pods(&names));
        service.context("failed to create the Service")?;
        claims.context("failed to create the claims")?;
        pods?;
        self.is_up(started, up).await
    }

    /// The seconds since `started` until all members are up.
    pub async fn is_up(&self, started: Instant, up: Up) -> Result<f64> {
        let none = [].into();
        until_up((&self.scene, &self.label()), started, self.members, &none, up).await
    }

    /// Creates pods on claims that are there.
    pub async fn create_pods(&self, names: &[String]) -> Result<()> {
        let start = Start { state: "new", members: self.names() };
        try_join_all(names.iter().map(|name| self.create_pod(name, &start))).await?;
        Ok(())
    }

    async fn create_pod(&self, name: &str, start: &Start) -> Result<()> {
        let pod = serde_json::from_value(self.pod(name, start))?;
        self.scene.api::<Pod>().create(&PostParams::default(), &pod).await.context("failed to create the pod")?;
        Ok(())
    }

    /// Gives one pod the image of another version; returns when it is a Ready voter on it.
    pub async fn change_version(&self, name: &str, version: &str) -> Result<()> {
        let image = json!({ "spec": { "containers": [{ "name": "etcd", "image": image(version) }] } });
        let (pods, params) = (self.scene.api::<Pod>(), PatchParams::default());
        pods.patch(name, &params, &Patch::Strategic(image)).await.context("failed to change the image")?;
        let mut members =
            Members::open((&self.scene, &self.label()), self.members, &BTreeSet::new(), Up::Voting).await?;
        stopwatch::until("the member on the new version", Instant::now(), async || {
            stopwatch::runs(&pods.get(name).await?, version)?;
            members.are_up().await
        })
        .await
        .map(drop)
    }

    /// Deletes one pod with its grace and creates it again on its volume; returns when it is a healthy voter.
    pub async fn restart(&self, name: &str) -> Result<()> {
        let old = uids(&pods(&self.scene, &self.label()).await?);
        let api = self.scene.api::<Pod>();
        api.delete(name, &DeleteParams::default()).await.context("failed to delete the pod")?;
        stopwatch::until("the pod to be gone", Instant::now(), async || {
            ensure!(api.get_opt(name).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        self.create_pods(&[name.to_owned()]).await?;
        until_up((&self.scene, &self.label()), Instant::now(), 1, &old, Up::Voting).await.map(drop)
    }

    /// Removes a member that is lost and has a new one join under the next name, as a learner first; returns when that is
    /// a healthy voter.
    pub async fn replace(&self, lost: &str) -> Result<()> {
        let name = format!("{}-{}", self.name, self.members);
        let mut doors = self.doors().await?;
        doors.remove(lost);
        let known = membership(&doors).await?;
        let leads = doors.get(known.leader()?).context("the leader has no address")?;
        let mut client = dial(leads).await?;
        let id = known.members.get(lost).context("it is no member")?.id;
        client.member_remove(id).await.map_err(told).context("failed to remove the member")?;
        // Its node does not say that it has ended, and Kubernetes takes it away only by and by (PodGC).
        self.delete_pods(&[lost.to_owned()]).await?;
        let learner = MemberAddOptions::new().with_is_learner();
        let added = client.member_add([self.url(&name, 2380)], Some(learner)).await.map_err(told);
        let added = added.context("failed to add the learner")?.member().context("no member was added")?.id();
        let claim = serde_json::from_value(claim(&name))?;
        self.scene.api::<PersistentVolumeClaim>().create(&PostParams::default(), &claim).await?;
        let members = known.members.into_keys().filter(|member| member != lost).chain([name.clone()]).collect();
        self.create_pod(&name, &Start { state: "existing", members }).await?;
        stopwatch::until("the learner to be promoted", Instant::now(), async || {
            // etcd refuses it until the learner has caught up.
            client.member_promote(added).await.map_err(told).map(drop)
        })
        .await?;
        until_up((&self.scene, &self.label()), Instant::now(), self.members, &BTreeSet::new(), Up::Voting)
            .await
            .map(drop)
    }

    /// etcd's own member list.
    pub async fn membership(&self) -> Result<Membership> {
        membership(&self.doors().await?).await
    }

    async fn doors(&self) -> Result<BTreeMap<String, Door>> {
        let pods = pods(&self.scene, &self.label()).await?.into_iter();
        let doors = pods.filter_map(|pod| {
            let (name, address) = (pod.metadata.name?, pod.status?.pod_ip?);
            Some((name.clone(), Door { address, host: name, keys: None }))
        });
        Ok(doors.collect())
    }

    /// Deletes pods without grace and creates them again on the same volumes; the seconds until all members are up.
    pub async fn renew(&self, names: &[String]) -> Result<f64> {
        let old = uids(&pods(&self.scene, &self.label()).await?);
        let staying = self.members - names.len();
        let started = Instant::now();
        self.delete_pods(names).await?;
        self.create_pods(names).await?;
        let count = self.members - staying;
        until_up((&self.scene, &self.label()), started, count, &old, Up::Ready).await
    }

    /// Deletes pods without grace.
    pub async fn delete_pods(&self, names: &[String]) -> Result<()> {
        let pods = self.scene.api::<Pod>();
        let now = DeleteParams::default().grace_period(0);
        try_join_all(names.iter().map(|name| pods.delete(name, &now))).await.context("failed to delete the pods")?;
        Ok(())
    }

    /// Deletes everything as a user would; the seconds until pods and claims are gone.
    pub async fn delete(&self) -> Result<f64> {
        let started = Instant::now();
        let (services, pods, claims) =
            (self.scene.api::<Service>(), self.scene.api::<Pod>(), self.scene.api::<PersistentVolumeClaim>());
        let (params, list) = (DeleteParams::default(), ListParams::default().labels(&self.label()));
        let (service, deleted, _) = tokio::join!(
            services.delete(&self.name, &params),
            pods.delete_collection(&params, &list),
            claims.delete_collection(&params, &list)
        );
        service.context("failed to delete the Service")?;
        deleted.context("failed to delete the pods")?;
        stopwatch::until("the hand-written pods to be gone", started, async || {
            let left = (pods.list(&list).await?.items.len(), claims.list(&list).await?.items.len());
            anyhow::ensure!(left == (0, 0), "{left:?} pods and claims are there");
            Ok(())
        })
        .await
    }

    fn service(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": self.name },
            "spec": {
                "clusterIP": "None", "publishNotReadyAddresses": true, "selector": { "raw": self.name },
                "ports": [{ "name": "peer", "port": 2380 }, { "name": "client", "port": 2379 }],
            },
        })
    }

    fn url(&self, member: &str, port: u16) -> String {
        format!("http://{member}.{}.{}.svc:{port}", self.name, self.scene.namespace())
    }

    fn pod(&self, name: &str, start: &Start) -> Value {
        let Start { state, members } = start;
        let all: Vec<_> = members.iter().map(|name| format!("{name}={}", self.url(name, 2380))).collect();
        let command = [
            "/usr/local/bin/etcd".to_owned(),
            format!("--name={name}"),
            "--data-dir=/var/lib/etcd/data".to_owned(),
            "--listen-peer-urls=http://0.0.0.0:2380".to_owned(),
            "--listen-client-urls=http://0.0.0.0:2379".to_owned(),
            "--listen-metrics-urls=http://0.0.0.0:2381".to_owned(),
            format!("--initial-advertise-peer-urls={}", self.url(name, 2380)),
            format!("--advertise-client-urls={}", self.url(name, 2379)),
            format!("--initial-cluster={}", all.join(",")),
            format!("--initial-cluster-token={}-{}", self.scene.namespace(), self.name),
            format!("--initial-cluster-state={state}"),
        ];
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { "raw": self.name } },
            "spec": {
                "hostname": name, "subdomain": self.name,
                "automountServiceAccountToken": false, "enableServiceLinks": false,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                    "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": { "type": "RuntimeDefault" },
                },
                "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "raw": self.name } },
                    },
                }] } },
                "containers": [{
                    "name": "etcd", "image": image(self.version), "imagePullPolicy": "IfNotPresent", "command": command,
                    "readinessProbe": { "httpGet": { "path": "/readyz", "port": 2381 }, "periodSeconds": 1 },
                    "resources": { "requests": { "cpu": "100m", "memory": "100Mi" } },
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                    "volumeMounts": [{ "name": "data", "mountPath": "/var/lib/etcd" }],
                }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": name } }],
            },
        })
    }
}

fn image(version: &str) -> String {
    format!("quay.io/coreos/etcd:v{version}")
}

fn claim(name: &str) -> Value {
    let cluster = name.rsplit_once('-').map_or(name, |(cluster, _)| cluster);
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "labels": { "raw": cluster } },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}
