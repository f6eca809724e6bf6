//! The floor: etcd in hand-written pods, with the same image, volumes, probes and security as Quorate's, and nobody who
//! looks after them.

use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use super::stopwatch::{self, Up, are_up, pods, uids};
use crate::scene::Scene;

/// The version that is measured: the default of an EtcdCluster.
const IMAGE: &str = "quay.io/coreos/etcd:v3.6.16";
/// The user of Quorate's pods.
const USER: i64 = 65532;

/// A cluster of hand-written pods `<name>-0` and so on.
#[derive(Clone, Debug)]
pub struct Raw {
    scene: Scene,
    name: String,
    members: usize,
}

impl Raw {
    /// A cluster of so many members, not created yet.
    pub fn new(scene: &Scene, name: &str, members: usize) -> Self {
        Self { scene: scene.clone(), name: name.to_owned(), members }
    }

    /// The label of its pods.
    pub fn label(&self) -> String {
        format!("raw={}", self.name)
    }

    /// The names of its pods and claims.
    pub fn names(&self) -> Vec<String> {
        (0..self.members).map(|number| format!("{}-{number}", self.name)).collect()
    }

    /// Creates everything at once; the seconds until all members are up.
    pub async fn create(&self) -> Result<f64> {
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
        self.is_up(started).await
    }

    /// The seconds since `started` until all members are up.
    pub async fn is_up(&self, started: Instant) -> Result<f64> {
        let none = [].into();
        stopwatch::until("the hand-written pods", started, async || {
            are_up(&self.scene, &self.label(), self.members, &none, Up::Ready).await
        })
        .await
    }

    /// Creates pods on claims that are there.
    pub async fn create_pods(&self, names: &[String]) -> Result<()> {
        let pods = self.scene.api::<Pod>();
        let make =
            names.iter().map(|name| {
                let pods = pods.clone();
                async move {
                    anyhow::Ok(pods.create(&PostParams::default(), &serde_json::from_value(self.pod(name))?).await?)
                }
            });
        try_join_all(make).await.context("failed to create the pods")?;
        Ok(())
    }

    /// Deletes pods without grace and creates them again on the same volumes; the seconds until all members are up.
    pub async fn renew(&self, names: &[String]) -> Result<f64> {
        let old = uids(&pods(&self.scene, &self.label()).await?);
        let staying = self.members - names.len();
        let started = Instant::now();
        self.delete_pods(names).await?;
        self.create_pods(names).await?;
        let count = self.members - staying;
        stopwatch::until("the renewed pods", started, async || {
            are_up(&self.scene, &self.label(), count, &old, Up::Ready).await
        })
        .await
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

    fn pod(&self, name: &str) -> Value {
        let all: Vec<_> = self.names().iter().map(|name| format!("{name}={}", self.url(name, 2380))).collect();
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
            "--initial-cluster-state=new".to_owned(),
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
                    "name": "etcd", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": command,
                    "readinessProbe": { "httpGet": { "path": "/readyz", "port": 2381 }, "periodSeconds": 1 },
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

fn claim(name: &str) -> Value {
    let cluster = name.rsplit_once('-').map_or(name, |(cluster, _)| cluster);
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "labels": { "raw": cluster } },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}
