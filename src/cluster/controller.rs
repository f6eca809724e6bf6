//! The wiring: what the watches bring goes into the caches and wakes the clusters it concerns; each cluster is driven by
//! one round at a time, many clusters at once. Nothing is decided here.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use backon::ExponentialBuilder;
use futures::stream::{self, BoxStream, Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{self, Action, ReconcileRequest};
use kube::runtime::predicates;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, ExponentialBackoff, watcher};
use kube::runtime::{Predicate, PredicateConfig, WatchStreamExt, applier};
use kube::{Api, Client, Resource, ResourceExt};
use quorate_crds::names::LABEL_CLUSTER;
use quorate_crds::{EtcdBackup, EtcdCluster};
use quorate_etcd::Pool;
use quorate_statemachine::NodeName;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::act::{Actor, Courier};
use super::observe::cache::{Cache, Key};
use super::observe::facts::{self, ClaimFacts, NodeFacts, SecretFacts};
use super::observe::pods::AnyPod;
use super::observe::snapshots::SnapshotFacts;
use super::observe::{Observer, Watched, key};
use super::render::Agent;
use super::{Driver, Error};
use crate::api::{Kube, WATCH_SECONDS};
use crate::events::Teller;
use crate::guard::guarded;
use crate::lease::Claim;
use crate::lists::Lists;
use crate::metrics::Metrics;
use crate::stop::turned;
use crate::telemetry::chain;

/// How many objects a list asks for at a time: a page is in memory as a whole.
const PAGE: u32 = 100;
/// The pauses of a watch that fails. kube's default grows to 30 s, for which a healed API server would go unheard.
const WATCH_PAUSE_FIRST: Duration = Duration::from_millis(200);
const WATCH_PAUSE_LONGEST: Duration = Duration::from_secs(5);

/// A key to be driven, or a watch that failed for now.
type Wake = Result<ReconcileRequest<EtcdCluster>, watcher::Error>;

/// What a controller needs.
pub struct Setup {
    /// The Kubernetes API, with the gate for writes.
    pub kube: Kube,
    /// The right to write: clusters are driven while it holds.
    pub claim: Claim,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The image that brings the agent.
    pub agent_image: String,
    /// The domain of the Kubernetes cluster.
    pub domain: String,
    /// Sends events.
    pub teller: Teller,
    /// How many clusters are driven at once.
    pub concurrency: u16,
}

/// Drives the clusters of one namespace, or of all, until `stop` turns true; then lets the rounds that run end. Fills
/// [`lists`], and acts only then.
pub async fn run(setup: Setup, namespace: Option<String>, lists: Arc<Lists>, stop: watch::Receiver<bool>) {
    let Setup { kube, claim, metrics, agent_image, domain, teller, concurrency } = setup;
    let domain: Arc<str> = domain.into();
    let watched = Arc::new(Watched::default());
    let pool = Arc::new(Pool::default());
    let observer =
        Observer { kube: kube.clone(), watched: watched.clone(), pool: pool.clone(), domain: domain.clone() };
    let courier = Courier::new().map(Arc::new);
    let ticket_key = courier.as_ref().map(|courier| courier.public_key().to_owned());
    let agent = Agent { image: agent_image, ticket_key };
    let actor = Actor { kube: kube.clone(), pool, metrics: metrics.clone(), agent, courier, domain };
    let driver = Arc::new(Driver::new(observer, actor, teller, metrics));
    let sources = Sources { client: kube.client(), namespace, lists: lists.clone() };

    let (store, writer) = reflector::store();
    let wakes = stream::select_all([
        sources.clusters(writer, driver.clone()),
        sources.children::<Pod, _>(watched.clone(), |watched| &watched.pods, AnyPod::of),
        sources.children::<PersistentVolumeClaim, _>(watched.clone(), |watched| &watched.claims, ClaimFacts::of),
        sources.children::<Service, _>(watched.clone(), |watched| &watched.services, facts::furniture),
        sources.children::<PodDisruptionBudget, _>(watched.clone(), |watched| &watched.budgets, facts::furniture),
        sources.children::<CronJob, _>(watched.clone(), |watched| &watched.cron_jobs, facts::furniture),
        sources.children::<EtcdBackup, _>(watched.clone(), |watched| &watched.snapshots, SnapshotFacts::of),
        // Only their metadata: what they hold is read when it is needed, and ten thousand clusters have many.
        sources.children::<PartialObjectMeta<Secret>, _>(watched.clone(), |watched| &watched.secrets, SecretFacts::of),
        sources.nodes(watched, store.clone()),
        on_leading(claim, store.clone()),
    ]);
    let wakes = wakes.take_until(turned(stop.clone()));
    let config = controller::Config::default().concurrency(concurrency);
    let rounds = applier(
        move |cluster, driver: Arc<Driver>| Box::pin(round(cluster, driver, lists.clone(), stop.clone())),
        |cluster, error, driver| {
            let pause = driver.pause_after_failure(&key(&cluster));
            tracing::warn!(cluster = %key(&cluster), error = %chain(error), ?pause, "a round failed");
            Action::requeue(pause)
        },
        driver,
        store,
        wakes,
        config,
    );
    rounds
        .for_each(async |round| match round {
            // Told by the error policy, or a key that was woken after its cluster had gone.
            Ok(_) | Err(controller::Error::ReconcilerFailed(..) | controller::Error::ObjectNotFound(_)) => (),
            Err(error) => tracing::warn!(error = %chain(&error), "a watch failed; it is tried again"),
        })
        .await;
}

/// One round, once all lists are there, which can end nothing but itself.
async fn round(
    cluster: Arc<EtcdCluster>,
    driver: Arc<Driver>,
    lists: Arc<Lists>,
    stop: watch::Receiver<bool>,
) -> Result<Action, Error> {
    tokio::select! {
        () = lists.filled() => (),
        () = turned(stop) => return Ok(Action::await_change()),
    }
    if !driver.may_act() {
        return Ok(Action::await_change());
    }
    let metrics = driver.metrics.clone();
    guarded(&metrics, async move { driver.round(cluster).await.map(Action::requeue) }).await
}

/// The lists that have to be there before anybody acts.
pub fn lists(namespace: Option<String>) -> Lists {
    let kinds = [
        EtcdCluster::kind(&()),
        Pod::kind(&()),
        PersistentVolumeClaim::kind(&()),
        Service::kind(&()),
        PodDisruptionBudget::kind(&()),
        CronJob::kind(&()),
        EtcdBackup::kind(&()),
        Secret::kind(&()),
        Node::kind(&()),
    ];
    Lists::new(namespace, kinds)
}

/// Where events come from.
struct Sources {
    client: Client,
    namespace: Option<String>,
    lists: Arc<Lists>,
}

impl Sources {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// A watch that goes on after errors, and says when its list is there.
    fn watch<K>(
        &self,
        api: Api<K>,
        labels: Option<&str>,
    ) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let config = watcher::Config::default().page_size(PAGE).timeout(WATCH_SECONDS);
        let config = labels.map_or_else(|| config.clone(), |labels| config.clone().labels(labels));
        let pauses = ExponentialBuilder::default()
            .with_min_delay(WATCH_PAUSE_FIRST)
            .with_max_delay(WATCH_PAUSE_LONGEST)
            .without_max_times()
            .with_jitter();
        let lists = self.lists.clone();
        watcher(api, config).backoff(ExponentialBackoff::from(pauses)).inspect(move |event| {
            if matches!(event, Ok(Event::InitDone)) {
                lists.has(&K::kind(&()));
            }
        })
    }

    /// The clusters themselves: woken by what the user changes, not by our own status.
    fn clusters(&self, writer: reflector::store::Writer<EtcdCluster>, driver: Arc<Driver>) -> BoxStream<'static, Wake> {
        let changes = predicates::generation.combine(predicates::finalizers).combine(predicates::annotations);
        let mut listed = HashSet::new();
        let forget = move |event: &watcher::Result<Event<EtcdCluster>>| match event {
            Ok(Event::Delete(cluster)) => driver.forget(&key(cluster)),
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(cluster)) => {
                listed.insert(key(cluster));
            }
            // A list comes anew when the watch was away for too long, and tells of no deletion.
            Ok(Event::InitDone) => driver.forget_all_but(&std::mem::take(&mut listed)),
            Ok(Event::Apply(_)) | Err(_) => {}
        };
        self.watch(self.api::<EtcdCluster>(), None)
            .inspect(forget)
            .modify(|cluster| cluster.managed_fields_mut().clear())
            .reflect(writer)
            .touched_objects()
            .predicate_filter(changes, PredicateConfig::default())
            .map(|cluster| cluster.map(|cluster| ObjectRef::from_obj(&cluster).into()))
            .boxed()
    }

    /// Children of one kind: into their cache as facts, waking their cluster.
    fn children<K, T>(
        &self,
        watched: Arc<Watched>,
        cache: fn(&Watched) -> &Cache<T>,
        facts: fn(&K) -> Option<T>,
    ) -> BoxStream<'static, Wake>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static,
        T: Clone + PartialEq + Send + Sync + 'static,
    {
        let events = self.watch(self.api::<K>(), Some(LABEL_CLUSTER));
        events
            .flat_map(move |event| match event {
                Ok(event) => wake_all(cache(&watched).take(event, facts)),
                Err(error) => stream::once(async { Err(error) }).boxed(),
            })
            .boxed()
    }

    /// Nodes: the clusters that have something on a node are woken when it comes or goes.
    fn nodes(&self, watched: Arc<Watched>, store: Store<EtcdCluster>) -> BoxStream<'static, Wake> {
        let mut relist = HashMap::new();
        let events = self.watch(Api::<Node>::all(self.client.clone()), None);
        events
            .flat_map(move |event| match event {
                Ok(event) => {
                    let changed = take_node(&watched, &mut relist, event);
                    wake_all(changed.iter().flat_map(|node| clusters_on(node, &watched, &store)).collect())
                }
                Err(error) => stream::once(async { Err(error) }).boxed(),
            })
            .boxed()
    }
}

fn wake_all(keys: Vec<Key>) -> BoxStream<'static, Wake> {
    let requests = keys.into_iter().map(|key| Ok(ObjectRef::new(&key.name).within(&key.namespace).into()));
    stream::iter(requests).boxed()
}

/// Takes what the watch of nodes brought; says which nodes are not as they were.
fn take_node(watched: &Watched, relist: &mut HashMap<NodeName, NodeFacts>, event: Event<Node>) -> Vec<NodeName> {
    let mut nodes = watched.nodes.write().unwrap_or_else(PoisonError::into_inner);
    let name = |node: &Node| NodeName::new(&node.name_any());
    match event {
        Event::Init => {
            relist.clear();
            Vec::new()
        }
        Event::InitApply(node) => {
            relist.insert(name(&node), NodeFacts::of(&node));
            Vec::new()
        }
        Event::InitDone => {
            let stale = std::mem::replace(&mut *nodes, std::mem::take(relist));
            let gone = stale.keys().filter(|name| !nodes.contains_key(name));
            let other = nodes.iter().filter(|(name, facts)| stale.get(name) != Some(facts)).map(|(name, _)| name);
            gone.chain(other).cloned().collect()
        }
        Event::Apply(node) => {
            let (name, facts) = (name(&node), NodeFacts::of(&node));
            let before = nodes.insert(name.clone(), facts.clone());
            if before == Some(facts) { Vec::new() } else { vec![name] }
        }
        Event::Delete(node) => {
            nodes.remove(&name(&node));
            vec![name(&node)]
        }
    }
}

/// The clusters that have a pod on a node, or remember a member there.
fn clusters_on(node: &NodeName, watched: &Watched, store: &Store<EtcdCluster>) -> Vec<Key> {
    let with_pods = watched.pods.with(|pod| pod.node() == Some(node));
    let remembering = store.state_filter(|cluster| {
        let ledger = cluster.status.as_ref().and_then(|status| status.ledger.as_ref());
        ledger.is_some_and(|ledger| ledger.members.values().any(|m| m.node.as_deref() == Some(node.as_str())))
    });
    with_pods.into_iter().chain(remembering.iter().map(|cluster| key(cluster))).collect()
}

/// Whoever begins to lead looks at every cluster.
fn on_leading(claim: Claim, store: Store<EtcdCluster>) -> BoxStream<'static, Wake> {
    claim.begins().flat_map(move |()| wake_all(store.state().iter().map(|cluster| key(cluster)).collect())).boxed()
}

#[cfg(test)]
mod tests {
    use quorate_crds::EtcdClusterSpec;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::fake_api::{FakeApi, Fault};
    use crate::writes::Writes;

    const PODS: &str = "/api/v1/namespaces/ns/pods";
    /// How long a call for the slow cluster takes each way: it is answered in time, but only just.
    const WAY: Duration = Duration::from_secs(2);
    /// How often chance is given to have the slow one first.
    const TRIES: u32 = 32;

    fn pods(api: &FakeApi, cluster: &str) -> usize {
        api.names(PODS).iter().filter(|pod| pod.starts_with(cluster)).count()
    }

    /// Drives two clusters, of which one has a bad line, so many at once, until the other has its pods. Says how long it took.
    async fn drive_beside_a_slow_one(concurrency: u16) -> Duration {
        let api = FakeApi::default();
        for name in ["slow", "quick"] {
            let mut cluster = EtcdCluster::new(name, EtcdClusterSpec::default());
            cluster.metadata.generation = Some(1);
            let path = format!("/apis/quorate.dev/v1alpha1/namespaces/ns/etcdclusters/{name}");
            api.put(&path, serde_json::to_value(cluster).unwrap());
        }
        api.disturb("slow", Fault::Lag { there: WAY, back: WAY });
        let (stop, stopping) = watch::channel(false);
        let (claim, metrics) = (Claim::forever(), Arc::new(Metrics::new()));
        let setup = Setup {
            kube: Kube::new(api.client(), metrics.clone(), Writes::new(claim.clone(), stopping.clone(), None)),
            claim,
            metrics,
            agent_image: "agent:1".into(),
            domain: "cluster.local".into(),
            teller: Teller::new(api.client(), "test"),
            concurrency,
        };
        let namespace = Some("ns".to_owned());
        let lists = Arc::new(lists(namespace.clone()));
        let begun = Instant::now();
        let running = tokio::spawn(run(setup, namespace, lists, stopping));
        while pods(&api, "quick") < 3 {
            assert!(begun.elapsed() < Duration::from_mins(10), "{:?}", api.written());
            sleep(Duration::from_millis(1)).await;
        }
        let took = begun.elapsed();
        stop.send_replace(true);
        running.await.unwrap();
        took
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_whose_calls_lag_holds_up_another_only_where_one_is_driven_at_a_time() {
        let took = drive_beside_a_slow_one(2).await;
        assert!(took < 2 * WAY, "by then no call of the slow one was answered: {took:?}");
        // Which of the two comes first is the runtime's choice each time.
        let mut was_held_up = false;
        for _ in 0..TRIES {
            was_held_up = was_held_up || drive_beside_a_slow_one(1).await >= 2 * WAY;
        }
        assert!(was_held_up, "the slow one was not slow");
    }
}
