//! Observes one cluster: the object, its pods, claims and nodes, and every member over etcd's own ports. What is unknown
//! stays unknown. Nothing is written and nothing decided here.

pub mod archive;
pub mod backup;
pub mod cache;
pub mod certificates;
pub mod endpoints;
pub mod facts;
mod launcher;
pub mod links;
pub mod members;
mod overall;
mod places;
pub mod pods;
mod reference;
pub mod said;
mod seats;
pub mod snapshots;
pub mod trials;
pub mod trouble;
pub mod verify;
mod wish;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use quorate_crds::{EtcdCluster, names};
use quorate_etcd::Pool;
use quorate_statemachine::{
    Freshness, Home, Memory, Millis, Minor, NodeName, NodeSight, PodStage, RoleLabel, Serial, Trouble, World,
};
use serde_json::Value;

use self::archive::Archives;
use self::backup::Backup;
use self::cache::{Cache, Key};
use self::certificates::Tls;
use self::endpoints::Endpoints;
use self::facts::{ClaimFacts, NodeFacts, Place, SecretFacts, millis};
use self::members::{Address, Earlier};
use self::places::Places;
use self::pods::{AnyPod, Leaving, PodFacts};
use self::said::{Said, Seen};
use self::snapshots::SnapshotFacts;
use self::trials::TrialFacts;
use self::verify::Proofs;
use super::ledger;
use super::pki::Wallet;
use super::render::{self, Delivery};
use crate::api::{Error, Kube};

/// What the watches have brought.
#[derive(Debug, Default)]
pub struct Watched {
    /// Clusters' pods.
    pub pods: Cache<AnyPod>,
    /// Members' claims.
    pub claims: Cache<ClaimFacts>,
    /// Clusters' Services.
    pub services: Cache<Value>,
    /// Clusters' disruption budgets.
    pub budgets: Cache<Value>,
    /// What proves clusters' continuous backups.
    pub cron_jobs: Cache<Value>,
    /// The snapshots before clusters go to another minor.
    pub snapshots: Cache<SnapshotFacts>,
    /// Clusters' Secrets.
    pub secrets: Cache<SecretFacts>,
    /// The nodes.
    pub nodes: RwLock<HashMap<NodeName, NodeFacts>>,
    /// Where their volumes can be used.
    pub places: Places,
}

impl Watched {
    /// The nodes as they are now.
    fn nodes(&self) -> HashMap<NodeName, NodeFacts> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What was observed of one cluster.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object.
    pub cluster: Arc<EtcdCluster>,
    /// The same in the state machine's words, with all the rest.
    pub world: World,
    /// Its pods, for guards and reports.
    pub pods: BTreeMap<Serial, PodFacts>,
    /// Its trials of releases, for reports.
    pub trials: Vec<(Serial, TrialFacts)>,
    /// The snapshots before it goes to another minor, for reports.
    pub snapshots: BTreeMap<Minor, SnapshotFacts>,
    /// Its claims, for reports.
    pub claims: BTreeMap<Serial, ClaimFacts>,
    /// StorageClasses that its claims name and that do not exist. Looked for only where a pod can't be scheduled.
    pub missing_classes: BTreeSet<String>,
    /// How the agent comes into its next pods.
    pub delivery: Delivery,
    /// Its Services and its budget, from the watches.
    pub furniture: Furniture,
    /// What its members said.
    pub said: Said,
    /// Whether the addresses of its newcomers are published.
    pub endpoints: Endpoints,
    /// Its certificates.
    pub tls: Tls,
    /// What the sidecars of its continuous backup said.
    pub archives: Archives,
    /// What came of proving that backup.
    pub proofs: Proofs,
    /// The backup that it is to begin with, until a seed is chosen.
    pub backup: Option<Backup>,
}

/// What a cluster has besides members, by name.
#[derive(Clone, Debug, Default)]
pub struct Furniture {
    /// Its Services.
    pub services: BTreeMap<String, Value>,
    /// Its disruption budget.
    pub budgets: BTreeMap<String, Value>,
    /// What proves its continuous backup.
    pub cron_jobs: BTreeMap<String, Value>,
}

/// Who observes.
#[derive(Clone)]
pub struct Observer {
    /// The Kubernetes API.
    pub kube: Kube,
    /// What the watches have brought.
    pub watched: Arc<Watched>,
    /// Connections to members.
    pub pool: Arc<Pool>,
    /// The domain of the Kubernetes cluster, in certificates.
    pub domain: Arc<str>,
}

/// The Kubernetes side of an observation.
struct Objects {
    freshness: Freshness,
    cluster: Arc<EtcdCluster>,
    pods: BTreeMap<Serial, PodFacts>,
    trials: Vec<(Serial, TrialFacts)>,
    claims: BTreeMap<Serial, ClaimFacts>,
    /// Nodes that were asked for already.
    asked: BTreeMap<NodeName, NodeSight>,
    endpoints: Endpoints,
    tls: Tls,
    archives: Archives,
    proofs: Proofs,
}

/// What was found in the round before beside what members said. Not all of it is looked for in each.
#[derive(Clone, Copy, Debug)]
pub struct Before<'b> {
    /// What the sidecars of the continuous backup said.
    pub archives: &'b Archives,
    /// What came of proving that backup.
    pub proofs: &'b Proofs,
    /// Whether the addresses of newcomers were published.
    pub endpoints: &'b Endpoints,
}

impl Observer {
    /// Whether the watch shows a pod of the cluster that goes at once.
    pub fn shows_one_that_goes(&self, cluster: &EtcdCluster) -> bool {
        self.shows_member(cluster, |pod| pod.leaving == Leaving::AtOnce)
    }

    /// Whether the watch shows a pod of the cluster that stays, and whose etcd has ended.
    pub fn shows_one_that_ended(&self, cluster: &EtcdCluster) -> bool {
        self.shows_member(cluster, |pod| {
            let ended = pod.container.as_ref().is_some_and(|container| container.ended);
            // Of one that is over its kubelet starts nothing again.
            ended && pod.leaving == Leaving::No && pod.stage != PodStage::Finished
        })
    }

    fn shows_member(&self, cluster: &EtcdCluster, is_one: impl Fn(&PodFacts) -> bool) -> bool {
        let own = cluster.uid();
        self.watched.pods.any_of(&key(cluster), |pod| match pod {
            AnyPod::Member(pod) => pod.owner == own && is_one(pod),
            AnyPod::Trial(_) => false,
        })
    }

    /// Observes with Kubernetes' objects from the watches.
    pub async fn glance(
        &self,
        cluster: Arc<EtcdCluster>,
        earlier: Earlier<'_>,
        before: Before<'_>,
        wallet: &Wallet,
    ) -> Result<Observed, Error> {
        let key = key(&cluster);
        let (pods, trials) = own_pods(&cluster, self.watched.pods.of(&key));
        let claims = by_serial(&cluster, self.watched.claims.of(&key));
        let tls = self.tls(&cluster, &pods.keys().copied().collect(), wallet).await?;
        let addresses_of_pods = addresses(&cluster, &pods);
        let cron_job = own(&cluster, self.watched.cron_jobs.of(&key)).remove(&names::verification(&key.name));
        let (mut said, archives, proofs) = tokio::join!(
            members::ask(&self.pool, tls.access.as_ref(), &addresses_of_pods, earlier),
            archive::ask(&cluster, &pods, tls.access.as_ref(), before.archives),
            verify::look(&self.kube, &cluster, cron_job.as_ref(), before.proofs),
        );
        said.disown_strangers(|member| serial_of(&cluster, member));
        said.recall(earlier.seen);
        let endpoints = endpoints::look(&self.kube, &cluster, &pods, &said, before.endpoints).await;
        endpoints.hold_back(&mut said);
        if let Some(access) = tls.access.as_ref() {
            let asks = (overall::whom(&cluster, &pods, &said), overall::expects_newcomers(&cluster, &said));
            overall::ask(&self.pool, access, &addresses_of_pods, asks, &mut said).await;
        }
        let (freshness, asked) = (Freshness::Cached, BTreeMap::new());
        let objects = Objects { freshness, cluster, pods, trials, claims, asked, endpoints, tls, archives, proofs };
        self.assemble(objects, said).await
    }

    /// Observes with Kubernetes' objects from the API server, by quorum reads. The order matters: the object with its
    /// ledger first, then the member list, so that the list is never older than what the ledger says of it. What was
    /// seen at each pod a moment ago is kept; pods that nobody looked at yet are looked at now. `None`: the object is
    /// gone, or is another by now.
    pub async fn stare(&self, glanced: &Observed, wallet: &Wallet) -> Result<Option<Observed>, Error> {
        let Key { namespace, name } = key(&glanced.cluster);
        let cluster = self.kube.get::<EtcdCluster>(&namespace, &name).await?;
        let Some(cluster) = cluster.filter(|cluster| cluster.uid() == glanced.cluster.uid()) else { return Ok(None) };
        let cluster = Arc::new(cluster);
        let labels = format!("{}={name}", names::LABEL_CLUSTER);
        let (pods, claims, list, asked) = tokio::join!(
            self.kube.list::<Pod>(&namespace, &labels),
            self.kube.list::<PersistentVolumeClaim>(&namespace, &labels),
            self.list_again(glanced),
            self.ask_for_nodes(glanced.world.nodes.keys().cloned().collect()),
        );
        let pods = pods?.iter().filter_map(|pod| Some((pod.name_any(), AnyPod::of(pod)?))).collect();
        let (pods, trials) = own_pods(&cluster, pods);
        let claims = claims?.iter().filter_map(|claim| Some((claim.name_any(), ClaimFacts::of(claim)?))).collect();
        let mut claims = by_serial(&cluster, claims);
        let unlisted = self.unlisted_claims(&cluster, &claims).await?;
        claims.extend(unlisted);
        let said = Said { list, ..glanced.said.clone() };
        let mut said = self.complete(said, &addresses(&cluster, &pods)).await;
        said.disown_strangers(|member| serial_of(&cluster, member));
        // For those who came after the glance.
        let endpoints = endpoints::look(&self.kube, &cluster, &pods, &said, &glanced.endpoints).await;
        endpoints.hold_back(&mut said);
        let tls = self.tls_anew(&cluster, wallet, &glanced.tls).await?;
        let (archives, proofs) = (glanced.archives.clone(), glanced.proofs.clone());
        let (freshness, asked) = (Freshness::Quorum, asked?);
        let objects = Objects { freshness, cluster, pods, trials, claims, asked, endpoints, tls, archives, proofs };
        self.assemble(objects, said).await.map(Some)
    }

    /// The claims on which members were created and that no list by label shows, by their names: one that lost its label is no
    /// volume that is lost.
    async fn unlisted_claims(
        &self,
        cluster: &EtcdCluster,
        listed: &BTreeMap<Serial, ClaimFacts>,
    ) -> Result<BTreeMap<Serial, ClaimFacts>, Error> {
        let Key { namespace, name } = key(cluster);
        let Memory::Ledger(ledger) = ledger::read(&name, cluster.status.as_ref()) else { return Ok(BTreeMap::new()) };
        if cluster.spec.storage.ephemeral {
            return Ok(BTreeMap::new());
        }
        let created = ledger.members.iter().filter_map(|(serial, entry)| Some((*serial, entry.create.clone()?)));
        let unlisted = created.filter(|(serial, _)| !listed.contains_key(serial)).map(async |(serial, create)| {
            let found = self.kube.get::<PersistentVolumeClaim>(&namespace, &names::member(&name, serial.0)).await?;
            let found = found.as_ref().and_then(ClaimFacts::of).filter(|claim| claim.uid == create);
            Ok(found.map(|claim| (serial, claim)))
        });
        Ok(try_join_all(unlisted).await?.into_iter().flatten().collect())
    }

    /// The member list once more, if there was one a moment ago.
    async fn list_again(&self, glanced: &Observed) -> Option<quorate_etcd::MemberList> {
        glanced.said.list.as_ref()?;
        let leader = glanced.said.leader().map(|(serial, _)| serial);
        let access = glanced.tls.access.as_ref()?;
        let addresses = addresses(&glanced.cluster, &glanced.pods);
        members::list_in_time(&self.pool, access, &members::ticketed(&addresses), leader).await
    }

    /// What was said, without pods that are gone, and with those that are new.
    async fn complete(&self, mut said: Said, addresses: &BTreeMap<Serial, Address>) -> Said {
        let still = |serial: &Serial, seen: &Seen| {
            addresses.get(serial).is_some_and(|address| address.pod == seen.pod && address.ip == seen.ip)
        };
        said.seen.retain(|serial, seen| still(serial, seen));
        let new: Vec<_> = addresses.iter().filter(|(serial, _)| !said.seen.contains_key(serial)).collect();
        let looks = join_all(new.into_iter().map(async |(serial, address)| (*serial, members::look(address).await)));
        said.seen.extend(looks.await);
        said
    }

    async fn assemble(&self, objects: Objects, said: Said) -> Result<Observed, Error> {
        let watched_nodes = self.watched.nodes();
        let is_in_doubt = |place: &Place| match (objects.freshness, place.home(&watched_nodes)) {
            (Freshness::Quorum, Home::Node(node)) => !watched_nodes.contains_key(&node),
            (Freshness::Quorum, Home::Anywhere) | (Freshness::Cached, _) => false,
        };
        let places = self.watched.places.of(&self.kube, &key(&objects.cluster), &objects.claims, is_in_doubt).await?;
        let homes = objects.claims.iter().map(|(serial, claim)| {
            (*serial, places.get(&claim.uid).map_or(Home::Anywhere, |place| place.home(&watched_nodes)))
        });
        let homes: BTreeMap<_, _> = homes.collect();
        let Objects { freshness, cluster, pods, trials, claims, asked, endpoints, tls, archives, proofs } = objects;
        let memory = ledger::read(&cluster.name_any(), cluster.status.as_ref());
        let named = named_nodes(&pods, &homes, &memory);
        let cordoned = named.iter().filter(|name| watched_nodes.get(*name).is_some_and(|node| node.cordoned));
        let cordoned = cordoned.cloned().collect();
        // A node that the watch doesn't show is asked for also from a cached look: whether it is gone is a verdict, and
        // nothing else would call for a closer look.
        let known = |name: &NodeName| match freshness {
            Freshness::Cached => watched_nodes.get(name).map(|node| node.sight),
            Freshness::Quorum => asked.get(name).copied(),
        };
        let mut nodes: BTreeMap<_, _> = named.iter().filter_map(|name| Some((name.clone(), known(name)?))).collect();
        let unknown = named.into_iter().filter(|name| !nodes.contains_key(name)).collect();
        nodes.extend(self.ask_for_nodes(unknown).await?);
        let backup = self.backup(&cluster, &memory).await?;
        let key = key(&cluster);
        let now = now();
        let snapshots = snapshots::of_cluster(&cluster, self.watched.snapshots.of(&key), now);
        let world = World {
            now,
            freshness,
            wish: wish::of(&cluster, backup::origin(backup.as_ref())),
            memory,
            seats: seats::seats(&cluster, &pods, &claims, &homes, &said),
            nodes,
            cordoned,
            membership: seats::membership(&cluster, &said),
            overall: said.overall,
            trials: trials.iter().map(|(serial, trial)| trial.in_words_of_plan(*serial)).collect(),
            snapshots: snapshots.iter().map(|(minor, facts)| (*minor, facts.saved)).collect(),
        };
        let furniture = Furniture {
            services: own(&cluster, self.watched.services.of(&key)),
            budgets: own(&cluster, self.watched.budgets.of(&key)),
            cron_jobs: own(&cluster, self.watched.cron_jobs.of(&key)),
        };
        let missing_classes = self.missing_classes(&pods, &claims).await?;
        let delivery = delivery(&watched_nodes);
        Ok(Observed {
            cluster,
            world,
            pods,
            trials,
            snapshots,
            claims,
            missing_classes,
            delivery,
            furniture,
            said,
            endpoints,
            tls,
            archives,
            proofs,
            backup,
        })
    }

    /// The StorageClasses that do not exist, of those for whose volumes pods wait: the scheduler says only that the claim
    /// is not bound.
    async fn missing_classes(
        &self,
        pods: &BTreeMap<Serial, PodFacts>,
        claims: &BTreeMap<Serial, ClaimFacts>,
    ) -> Result<BTreeSet<String>, Error> {
        let waits = |serial: &Serial| {
            let told = pods.get(serial).and_then(|pod| pod.trouble.as_ref());
            told.is_some_and(|told| told.trouble == Trouble::Unschedulable)
        };
        let unbound = claims.iter().filter(|(serial, claim)| claim.volume_name.is_none() && waits(serial));
        let classes: BTreeSet<_> = unbound.filter_map(|(_, claim)| claim.class.clone()).collect();
        let looked_for = classes.into_iter().map(async |name| {
            match self.kube.get_global::<StorageClass>(&name).await {
                Ok(found) => Ok(found.is_none().then_some(name)),
                // Who may not look can't say that it is missing.
                Err(error) if error.is_forbidden() => Ok(None),
                Err(error) => Err(error),
            }
        });
        Ok(try_join_all(looked_for).await?.into_iter().flatten().collect())
    }

    /// Each of these nodes by a quorum read: one that is not there is gone.
    async fn ask_for_nodes(&self, named: Vec<NodeName>) -> Result<BTreeMap<NodeName, NodeSight>, Error> {
        let asked = named.into_iter().map(async |name| {
            let node = self.kube.get_global::<Node>(name.as_str()).await?;
            let sight = node.map_or(NodeSight::Gone, |node| NodeFacts::of(&node).sight);
            Ok((name, sight))
        });
        Ok(try_join_all(asked).await?.into_iter().collect())
    }
}

/// The agent's image is mounted if every node can do that: which one the scheduler takes is not known beforehand.
fn delivery(nodes: &HashMap<NodeName, NodeFacts>) -> Delivery {
    let everywhere = !nodes.is_empty() && nodes.values().all(|node| node.runs_from_images);
    if everywhere { Delivery::ImageVolume } else { Delivery::InitContainer }
}

/// The operator's clock.
pub fn now() -> Millis {
    millis(Timestamp::now())
}

/// Which cluster an object is.
pub fn key(cluster: &EtcdCluster) -> Key {
    Key { namespace: cluster.namespace().unwrap_or_default(), name: cluster.name_any() }
}

/// What of that which carries a cluster's label is this very object's: anybody can write the label, and an earlier cluster
/// of its name wrote the same.
fn own(cluster: &EtcdCluster, mut all: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let uid = cluster.metadata.uid.as_deref();
    all.retain(|_, child| {
        let owners = child["metadata"]["ownerReferences"].as_array();
        owners.into_iter().flatten().any(|owner| owner["controller"] == true && owner["uid"].as_str() == uid)
    });
    all
}

/// The pods of this very object, and its trials: those of an earlier one of its name are being collected.
fn own_pods(
    cluster: &EtcdCluster,
    all: BTreeMap<String, AnyPod>,
) -> (BTreeMap<Serial, PodFacts>, Vec<(Serial, TrialFacts)>) {
    let (mut pods, mut trials) = (BTreeMap::new(), Vec::new());
    for (name, pod) in all {
        match pod {
            AnyPod::Member(pod) if pod.owner == cluster.uid() => {
                pods.insert(name, pod);
            }
            AnyPod::Trial(trial) if trial.owner == cluster.uid() => {
                let serial = names::serial(&cluster.name_any(), &trial.member);
                trials.extend(serial.map(|serial| (Serial(serial), trial)));
            }
            AnyPod::Member(_) | AnyPod::Trial(_) => {}
        }
    }
    (by_serial(cluster, pods), trials)
}

fn by_serial<T>(cluster: &EtcdCluster, children: BTreeMap<String, T>) -> BTreeMap<Serial, T> {
    let cluster = cluster.name_any();
    let with_serial = children.into_iter().filter_map(|(name, facts)| {
        let serial = names::serial(&cluster, &name)?;
        Some((Serial(serial), facts))
    });
    with_serial.collect()
}

/// Where each pod can be asked, if it can.
pub fn addresses(cluster: &EtcdCluster, pods: &BTreeMap<Serial, PodFacts>) -> BTreeMap<Serial, Address> {
    let Some(cluster) = render::Cluster::of(cluster) else { return BTreeMap::new() };
    let can_answer = pods.iter().filter(|(_, pod)| pod.stage != PodStage::Finished);
    can_answer
        .filter_map(|(serial, pod)| {
            let address = Address {
                pod: pod.uid.clone(),
                volume: pod.volume.clone(),
                ip: pod.ip?,
                host: cluster.host(*serial),
                ticketed: pod.ticket.as_ref().map(|ticket| ticket.since),
                votes: pod.label != RoleLabel::Absent,
                leaving: pod.leaving,
            };
            Some((*serial, address))
        })
        .collect()
}

fn named_nodes(pods: &BTreeMap<Serial, PodFacts>, homes: &BTreeMap<Serial, Home>, memory: &Memory) -> Vec<NodeName> {
    let of_pods = pods.values().filter_map(|pod| pod.node.clone());
    let of_homes = homes.values().filter_map(|home| match home {
        Home::Node(node) => Some(node.clone()),
        Home::Anywhere => None,
    });
    let of_ledger: Vec<_> = match memory {
        Memory::Ledger(ledger) => ledger.members.values().filter_map(|entry| entry.node.clone()).collect(),
        Memory::Blank | Memory::Unreadable => Vec::new(),
    };
    let mut all: Vec<_> = of_pods.chain(of_homes).chain(of_ledger).collect();
    all.sort();
    all.dedup();
    all
}

/// The serial to which a listed member's peer URL belongs.
pub fn serial_of(cluster: &EtcdCluster, member: &quorate_etcd::Member) -> Option<Serial> {
    let cluster = render::Cluster::of(cluster)?;
    member.peer_urls.iter().find_map(|url| cluster.serial_of_peer_url(url))
}
