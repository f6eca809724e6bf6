//! A scene: one test's own namespace on a real cluster, what it does there as a user would, and what it looks at. It
//! opens and closes namespaces and keeps scenes apart; faults live next door, and nothing here knows how a node is run.

mod cluster;
mod contents;
mod dump;
mod exchange;
mod gateway;
mod knock;
mod kubectl;
mod members;
pub mod metrics;
mod processes;
mod server;
mod twice;
mod view;
mod wait;
mod wish;
mod writer;
mod writes;

use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use futures::FutureExt as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Client, Config};
use quorate_crds::EtcdCluster;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::lab::Lab;

pub use cluster::{Cluster, Identity};
pub use contents::{Contents, Entry, Granted, Held};
pub use dump::failed_since;
pub use gateway::Gateway;
pub use knock::{AGENT_PORT, Answer, CLIENT_PORT, PEER_PORT, Shown, fetch, knock};
pub use kubectl::{Said, kubectl};
pub use members::{Door, Keys, Member, Membership, dial, membership, told};
pub use processes::{EtcdProcess, etcd_processes, is_launcher, pids};
pub use server::{Process, Server, reached_at};
pub use twice::{Twice, Watch};
pub use view::{View, is_ready};
pub use wait::{longest, stays, wait_for};
pub use wish::{Wish, usual_etcd};
pub use writer::{Writer, Written};
pub use writes::{OperatorWrite, operator_writes, unwritten_during};

/// Names the local cluster that scenes play on. Unset: the user's own, without faults of nodes and processes.
pub const LAB_VARIABLE: &str = "QUORATE_LAB";
/// Says how much is played: `all`, or a choice with short loops.
const SCENES_VARIABLE: &str = "QUORATE_TESTS";
/// More statuses than the operator writes of a cluster that is paused from the start.
const STATUSES: u32 = 5;

/// Names the version of etcd for clusters of which a scene names none. Unset or empty: the operator's default.
pub const ETCD_VARIABLE: &str = "QUORATE_SCENES_ETCD";

/// What an archive says when more comes than it holds in memory.
pub const PUT_ASIDE: &str = "it is put aside in a file";

/// How long anything may take before a scene says that it hangs. An upper bound, not a measure of speed: two cores run
/// three nodes and several scenes at a time here.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// How long a whole scene may take: longer than any of them, short enough that a hang is dumped and reported.
const SCENE_LIMIT: Duration = Duration::from_mins(15);
/// The same for scenes that repeat a fault fifty times.
const THOROUGH_LIMIT: Duration = Duration::from_hours(4);

/// How long one answer of the API server may take before the connection counts as dead; kube's default waits for ever.
const API_DEADLINE: Duration = Duration::from_secs(20);

/// Keeps scenes that disturb what all share apart from all others.
static STAGE: RwLock<()> = RwLock::const_new(());

/// Whom a scene can share the cluster with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It touches only its own namespace.
    Shared,
    /// It disturbs nodes, the network or the operator, or bounds for how long nobody can write: no other scene runs meanwhile.
    Alone,
}

/// A scene has the stage as long as it holds this.
#[derive(Debug)]
enum OnStage {
    Shared(#[expect(dead_code, reason = "held for its drop")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held for its drop")] RwLockWriteGuard<'static, ()>),
}

impl Stage {
    async fn take(self) -> OnStage {
        match self {
            Self::Shared => OnStage::Shared(STAGE.read().await),
            Self::Alone => OnStage::Alone(STAGE.write().await),
        }
    }
}

/// Whether every loop runs to its end (`make e2e`), or only a sample of it (`make test`).
pub fn thorough() -> bool {
    std::env::var(SCENES_VARIABLE).is_ok_and(|scenes| scenes == "all")
}

/// A fresh namespace, and the means to act and look in it. Cheap to clone.
#[derive(Clone)]
pub struct Scene {
    client: Client,
    name: String,
    namespace: String,
}

impl std::fmt::Debug for Scene {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scene").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Plays one scene on the stage that it needs.
pub async fn play(name: &str, stage: Stage, body: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    let held = stage.take().await;
    let outcome = play_within(name, body).await;
    drop(held);
    outcome
}

/// Plays a scene for whoever has the stage: opens its namespace, runs `body`, watches all the while that no member identity
/// runs twice, and closes the namespace. When something fails, everything that helps to understand it is written to a
/// folder first.
pub async fn play_within(name: &str, body: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    let scene = Scene::open(name).await?;
    let watch = Twice::watch(&scene.namespace);
    let started = Instant::now();
    let limit = if thorough() { THOROUGH_LIMIT } else { SCENE_LIMIT };
    let played = AssertUnwindSafe(tokio::time::timeout(limit, body(&scene))).catch_unwind().await;
    let outcome = match played {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(anyhow::anyhow!("the scene did not end within {} s", limit.as_secs())),
        Err(panic) => Err(anyhow::anyhow!("the scene panicked: {}", panic_text(panic.as_ref()))),
    };
    let outcome = outcome.and_then(|()| watch.nothing_ran_twice());
    let outcome = match outcome {
        Ok(()) => {
            eprintln!("scene {name}: {:.1} s", started.elapsed().as_secs_f64());
            scene.close().await
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => Ok(()),
        Err(error) => {
            let excerpt = dump::dump(&scene, &error).await;
            let mut text = String::new();
            write!(text, "scene {name} failed after {:.1} s: {error:#}\n{excerpt}", started.elapsed().as_secs_f64())?;
            scene.clear_away().await;
            Err(anyhow::anyhow!(text))
        }
    }
}

/// So many parts of a scene at a time, each in a namespace of its own, for whoever has the stage.
pub async fn play_side_by_side(name: &str, parts: u32, body: impl AsyncFn(u32, &Scene) -> Result<()>) -> Result<()> {
    let parts = (0..parts).map(|part| {
        let body = &body;
        async move { play_within(&format!("{name}_{part}"), async |scene| body(part, scene).await).await }
    });
    try_join_all(parts).await.map(drop)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// A client of the API server: the local cluster's, or the one that `KUBECONFIG` names. Its calls end: kube's default has no read deadline.
pub async fn client() -> Result<Client> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Two tests may come here at once; that one of them is late is no error.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let mut config = match std::env::var_os(LAB_VARIABLE) {
        Some(_) => Lab::from_env()?.kube_config().await?,
        None => Config::infer().await.context("failed to find a cluster; start scenes by `quorate-e2e test`")?,
    };
    config.read_timeout = Some(API_DEADLINE);
    Ok(Client::try_from(config)?)
}

impl Scene {
    /// Opens a fresh namespace for the test called `name`.
    pub async fn open(name: &str) -> Result<Self> {
        let client = client().await?;
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let short: String = name.replace('_', "-").chars().take(40).collect();
        let namespace = format!("{}-{:06x}", short.trim_end_matches('-'), millis & 0xff_ffff);
        let object = Namespace {
            metadata: ObjectMeta {
                name: Some(namespace.clone()),
                labels: Some([("quorate.dev/scene".to_owned(), "true".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let spaces: Api<Namespace> = Api::all(client.clone());
        spaces.create(&PostParams::default(), &object).await.context("failed to create the scene's namespace")?;
        let scene = Self { client, name: name.to_owned(), namespace };
        scene.account_is_there().await?;
        Ok(scene)
    }

    /// Waits for the default ServiceAccount, without which no pod can be created by hand.
    async fn account_is_there(&self) -> Result<()> {
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = self.api();
        wait_for("the namespace's default ServiceAccount", PATIENCE, async || {
            accounts.get("default").await?;
            Ok(())
        })
        .await
    }

    /// The API client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The scene's own namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The test's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The objects of a kind in the scene's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// kubectl in the scene's namespace, as the user would call it.
    pub async fn kubectl(&self, args: &[&str]) -> Result<Said> {
        kubectl(&[&["--namespace", &self.namespace], args].concat(), None).await
    }

    /// `kubectl apply -f -` of this object in the scene's namespace.
    pub async fn apply(&self, object: &serde_json::Value) -> Result<Said> {
        let input = serde_json::to_vec(object)?;
        kubectl(&["--namespace", &self.namespace, "apply", "-f", "-"], Some(input)).await
    }

    /// What `kubectl apply` would say to this object; nothing is stored.
    pub async fn apply_dry(&self, object: &serde_json::Value) -> Result<Said> {
        self.dry("apply", object).await
    }

    /// What `kubectl replace` would say to this object; nothing is stored. It reads the object before it sends the other one:
    /// where the operator has written a status in between, it says so, and is asked again as it demands.
    pub async fn replace_dry(&self, object: &serde_json::Value) -> Result<Said> {
        let mut said = self.dry("replace", object).await?;
        for _ in 0..STATUSES {
            if !said.err.contains("the object has been modified") {
                break;
            }
            said = self.dry("replace", object).await?;
        }
        Ok(said)
    }

    async fn dry(&self, verb: &str, object: &serde_json::Value) -> Result<Said> {
        let input = serde_json::to_vec(object)?;
        kubectl(&["--namespace", &self.namespace, verb, "--dry-run=server", "-f", "-"], Some(input)).await
    }

    /// Applies an EtcdCluster as the user would, and demands that it is accepted.
    pub async fn create(&self, wish: &Wish) -> Result<Cluster> {
        self.apply(&wish.object()).await?.well()?;
        Ok(self.cluster(wish.name()))
    }

    /// An EtcdCluster of this name, there or not.
    pub fn cluster(&self, name: &str) -> Cluster {
        Cluster::new(self.clone(), name)
    }

    /// Deletes the clusters and waits until they and their pods are gone. A namespace that still holds pods when it is
    /// deleted takes half their grace longer, whatever they do.
    async fn end(&self) -> Result<()> {
        let (clusters, pods) = (self.api::<EtcdCluster>(), self.api::<Pod>());
        let (now, all) = (DeleteParams::default(), ListParams::default());
        // One answer that is lost is no fault of the operator.
        wait_for("the scene's clusters and pods to be told to go", PATIENCE, async || {
            clusters.delete_collection(&now, &all).await.context("failed to delete the scene's clusters")?;
            pods.delete_collection(&now, &all).await.context("failed to delete the scene's pods")?;
            Ok(())
        })
        .await?;
        wait_for("the scene's clusters and pods to be gone", PATIENCE, async || {
            let left = (clusters.list(&all).await?.items.len(), pods.list(&all).await?.items.len());
            ensure!(left == (0, 0), "{} clusters and {} pods are there", left.0, left.1);
            Ok(())
        })
        .await
    }

    /// Ends all that runs in the namespace and waits for that: a deletion that hangs is a fault of the operator. Then the
    /// namespace itself goes, for which nobody waits: it holds only what Kubernetes alone takes away.
    pub async fn close(&self) -> Result<()> {
        if std::env::var_os("QUORATE_KEEP").is_some() {
            eprintln!("scene {}: kept namespace {}", self.name, self.namespace);
            return Ok(());
        }
        self.end().await?;
        let spaces: Api<Namespace> = Api::all(self.client.clone());
        wait_for("the scene's namespace to be told to go", PATIENCE, async || {
            match spaces.delete(&self.namespace, &DeleteParams::default()).await {
                // It is gone, or on its way.
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
                answer => answer.map(drop).context("failed to delete the namespace"),
            }
        })
        .await
    }

    /// After a failure was dumped: the namespace goes, but nobody waits for it, and what it left on the cluster may not
    /// hold up the scenes that follow. Whoever wants to look at it says so before.
    async fn clear_away(&self) {
        if std::env::var_os("QUORATE_KEEP").is_some() {
            eprintln!("scene {}: kept namespace {}", self.name, self.namespace);
            return;
        }
        let spaces: Api<Namespace> = Api::all(self.client.clone());
        if let Err(error) = spaces.delete(&self.namespace, &DeleteParams::default()).await {
            eprintln!("scene {}: failed to delete its namespace: {error}", self.name);
        }
    }

    /// Writes down everything that helps to understand a failure, and returns an excerpt of it.
    pub async fn dump(&self, error: &anyhow::Error) -> String {
        dump::dump(self, error).await
    }

    /// Demands that the claims of this scene have left nothing behind that would be taken for another's.
    pub async fn has_no_claims(&self) -> Result<()> {
        let claims: Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> = self.api();
        let names: Vec<_> = claims.list(&ListParams::default()).await?.items;
        ensure!(names.is_empty(), "{} claims are still there", names.len());
        Ok(())
    }
}
