//! A store that speaks S3, for scenes: versitygw, beside the cluster, where its pods reach it, so that a scene can stop it and
//! take away what it keeps; or in the cluster, as a pod and a Service.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{PATIENCE, Scene, Server, is_ready, reached_at, wait_for};
use crate::command::Command;
use crate::images::{BUSYBOX, STORE};
use crate::progress::Progress;
use crate::tools::{self, Tool};

const BUCKET: &str = "bucket";
const ADDRESS: &str = "s3://bucket/etcd";
const REGION: &str = "local";
/// The credentials that it takes.
const ACCESS: &str = "scene";
const SECRET: &str = "not-a-secret";
/// The pod, its Service, and the port of both.
const POD: &str = "store";
const PORT: u16 = 7070;

/// A running store, ended when it is dropped.
#[derive(Debug)]
pub struct Gateway(Server);

impl Gateway {
    /// An empty one. Only on the local cluster, whose pods reach this machine at a known address.
    pub async fn start() -> Result<Self> {
        let program = tools::build(Tool::VersityGw, &Progress::new()).await?.program("versitygw");
        let server = Server::start(|port, folder| {
            std::fs::create_dir(folder.join(BUCKET))?;
            Ok(Command::new(program)
                .args(["--access", ACCESS, "--secret", SECRET, "--region", REGION, "--keep-alive", "--quiet"])
                .args(["--port", &format!("0.0.0.0:{port}"), "posix"])
                .arg(folder))
        })
        .await?;
        Ok(Self(server))
    }

    /// The store as a spec describes it, with credentials out of this Secret.
    pub fn store(&self, secret: &str) -> Value {
        store_at(self.0.url(), secret)
    }

    /// The same, reached by way of somebody of this machine who listens at this port.
    pub fn store_behind(&self, port: u16, secret: &str) -> Result<Value> {
        Ok(store_at(&format!("http://{}:{port}", reached_at()?), secret))
    }

    /// The store as a spec describes it, with the credentials that this ServiceAccount is given.
    pub fn store_as(&self, account: &str) -> Value {
        json!({ "address": ADDRESS, "options": options(self.0.url()), "serviceAccountName": account })
    }

    /// What it takes: the key's id and the key.
    pub fn keys() -> (&'static str, &'static str) {
        (ACCESS, SECRET)
    }

    /// Where this machine itself reaches it.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.0.port()))
    }

    /// Where it keeps its buckets, each in a folder of its own.
    pub fn buckets(&self) -> &Path {
        self.0.folder()
    }

    /// One that is a pod with a Service, as a spec describes it. What it keeps goes with the scene. The Secrets have to be there:
    /// of the credentials and, for a store that speaks TLS, of its certificate.
    pub async fn in_cluster(scene: &Scene, secret: &str, certificate: Option<&str>) -> Result<Value> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [pod(secret, certificate), service()] });
        scene.apply(&list).await?.well()?;
        wait_for("the store to be ready", PATIENCE, async || {
            let pod: Pod = scene.api().get(POD).await?;
            ensure!(is_ready(&pod), "it is not");
            Ok(())
        })
        .await?;
        let scheme = if certificate.is_some() { "https" } else { "http" };
        Ok(store_at(&format!("{scheme}://{}:{PORT}", Self::host_in(scene)), secret))
    }

    /// The name of that Service, which its certificate has to carry.
    pub fn host_in(scene: &Scene) -> String {
        format!("{POD}.{}.svc", scene.namespace())
    }

    /// A Secret of this name with the credentials, or with a wrong key.
    pub fn credentials(secret: &str, right: bool) -> Value {
        let key = if right { SECRET } else { "another" };
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": secret },
            "stringData": { "access-key-id": ACCESS, "secret-access-key": key },
        })
    }

    /// Stops it in the middle of whatever it does, or lets it go on.
    pub fn pause(&self, pause: bool) -> Result<()> {
        self.0.pause(pause)
    }

    /// Ends it: whoever connects is refused. What it keeps stays.
    pub fn stop(&mut self) -> Result<()> {
        self.0.stop()
    }

    /// Starts it anew with what it kept, where it was.
    pub async fn start_again(&mut self) -> Result<()> {
        self.0.start_again().await
    }

    /// The only file whose path has this part.
    pub fn object(&self, part: &str) -> Result<PathBuf> {
        let found = self.objects(part)?;
        let [only] = found.as_slice() else { anyhow::bail!("{} objects have {part} in their names", found.len()) };
        Ok(only.clone())
    }

    /// The files whose paths have this part.
    pub fn objects(&self, part: &str) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        files(&self.0.folder().join(BUCKET), &mut found)?;
        found.retain(|path| path.to_string_lossy().contains(part));
        Ok(found)
    }
}

fn store_at(endpoint: &str, secret: &str) -> Value {
    json!({ "address": ADDRESS, "options": options(endpoint), "credentials": { "name": secret } })
}

fn options(endpoint: &str) -> Value {
    json!({ "endpoint": endpoint, "region": REGION })
}

fn pod(secret: &str, certificate: Option<&str>) -> Value {
    let from_secret = |name: &str, key: &str| json!({ "name": name, "valueFrom": { "secretKeyRef": { "name": secret, "key": key } } });
    let kept = json!({ "name": "kept", "mountPath": "/kept" });
    let (bucket, listens) = (format!("/kept/{BUCKET}"), format!("0.0.0.0:{PORT}"));
    let mut env =
        vec![from_secret("ROOT_ACCESS_KEY", "access-key-id"), from_secret("ROOT_SECRET_KEY", "secret-access-key")];
    let mut mounts = vec![kept.clone()];
    let mut volumes = vec![json!({ "name": "kept", "emptyDir": {} })];
    if let Some(certificate) = certificate {
        env.extend(
            [("VGW_CERT", "/tls/tls.crt"), ("VGW_KEY", "/tls/tls.key")]
                .map(|(name, value)| json!({ "name": name, "value": value })),
        );
        mounts.push(json!({ "name": "tls", "mountPath": "/tls" }));
        volumes.push(json!({ "name": "tls", "secret": { "secretName": certificate } }));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": POD, "labels": { "app": POD } },
        "spec": {
            "securityContext": { "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532 },
            "terminationGracePeriodSeconds": 0,
            "initContainers": [{
                "name": "bucket", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent",
                "command": ["mkdir", "-p", bucket], "volumeMounts": [kept],
            }],
            "containers": [{
                "name": "versitygw", "image": STORE, "imagePullPolicy": "IfNotPresent",
                "args": ["--region", REGION, "--keep-alive", "--quiet", "--port", listens, "posix", "/kept"],
                "env": env,
                "ports": [{ "containerPort": PORT }],
                "readinessProbe": { "tcpSocket": { "port": PORT }, "periodSeconds": 1 },
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": POD },
        "spec": { "selector": { "app": POD }, "ports": [{ "port": PORT, "targetPort": PORT }] },
    })
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
