//! Steps on Kubernetes objects, each with the guard that the plan's `Step` tells. Nothing is ever deleted by force.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::Preconditions;
use quorate_crds::{EtcdCluster, names};
use quorate_etcd::Listener;
use quorate_statemachine::{
    Birth, Life, Mark, Membership, Release, Role, RoleLabel, Serial, Sight, Start, Step, Ticket, Uid, Version, is_near,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::taken::{whose_child, whose_claim};
use super::{Acting, Stop};
use crate::api::{Error, Namespaced};
use crate::cluster::observe::backup::Backup;
use crate::cluster::observe::pods::PodFacts;
use crate::cluster::observe::{self, members};
use crate::cluster::render::{self, Begin, METRICS_PORT, Sealed, Volume};

/// How often it is looked whether an etcd answers that was told to begin. Until it does, that costs a refused connection.
const COMES_UP_LOOKS: Duration = Duration::from_millis(10);
/// The same while its launcher answers: it waits for the ticket to come by the kubelet, or for its name in DNS.
const LAUNCHER_LOOKS: Duration = Duration::from_millis(50);
/// How often it is looked whether one that came up has caught up: to tell its metrics takes it 7 ms of the processor.
const CATCHES_UP_LOOKS: Duration = Duration::from_millis(25);
/// For how long one that came up is given to catch up: who has to be sent a whole database takes longer, and is left to later
/// rounds.
const CATCHES_UP_WITHIN: Duration = Duration::from_millis(300);

impl Acting<'_> {
    pub(super) async fn create_claim(&self, serial: Serial) -> Result<Uid, Stop> {
        let claim = render::claim(&self.cluster, serial);
        let made = self.create_or_tell(&claim, whose_claim).await?;
        let uid = made.metadata.uid.as_deref().map(Uid::new);
        uid.ok_or_else(|| Stop::Surprise(format!("the new claim of {serial} has no UID")))
    }

    /// Demands that the claim a pod will find by its name is the one that was observed.
    pub(super) async fn still_claimed(&self, serial: Serial, uid: &Uid) -> Result<Uid, Stop> {
        let name = self.cluster.member(serial);
        let claim = self.actor.kube.get::<PersistentVolumeClaim>(self.cluster.namespace, &name).await?;
        let still = claim.is_some_and(|claim| {
            claim.metadata.uid.as_deref() == Some(uid.as_str()) && claim.metadata.deletion_timestamp.is_none()
        });
        if still { Ok(uid.clone()) } else { Err(Stop::Surprise(format!("the claim {name} is not the one observed"))) }
    }

    /// Makes a pod on this claim, or on an emptyDir. It has a ticket from birth only to resume; it restores only while the
    /// backup is known, which is before a seed is chosen.
    pub(super) async fn create_pod(
        &self,
        serial: Serial,
        claim: Option<&Uid>,
        birth: Birth,
        release: &Release,
    ) -> Result<(), Stop> {
        let sealed = match (birth, claim) {
            (Birth::Resuming(_), Some(claim)) => {
                Some(self.seal(serial, claim, None, release.version, &Begin::Resume)?)
            }
            (Birth::Resuming(_), None) => return Err(Stop::Surprise(format!("{serial} has no claim to resume on"))),
            (Birth::Waiting | Birth::Restoring, _) => None,
        };
        let volume = claim.map_or(Volume::Ephemeral, Volume::Claim);
        let agent = (&self.actor.agent, self.observed.delivery);
        let mut pod = render::pod(&self.cluster, serial, release, agent, volume, sealed.as_ref());
        if birth == Birth::Resuming(Role::Voter) {
            let label = (names::LABEL_ROLE.to_owned(), names::ROLE_RETURNING.to_owned());
            pod.metadata.labels.get_or_insert_default().extend([label]);
        }
        if birth == Birth::Restoring {
            let Some(Backup::Ready(source)) = &self.observed.backup else {
                return Err(Stop::Surprise(format!("there is no backup to restore for {serial}")));
            };
            pod = render::with_restore(pod, &self.cluster, serial, release, source)?;
        }
        self.create_or_tell(&pod, whose_child).await?;
        Ok(())
    }

    /// Puts a ticket on a pod, and perhaps a label along with it.
    pub(super) async fn issue_ticket(
        &self,
        serial: Serial,
        pod: &Uid,
        ticket: &Ticket,
        label: Option<RoleLabel>,
    ) -> Result<(), Stop> {
        let sealed = self.seal_planned(serial, ticket)?;
        let observed = self.pod(serial, pod)?;
        let mut metadata = json!({ "uid": observed.uid.as_str(), "resourceVersion": observed.resource_version,
            "annotations": sealed.annotations() });
        if let Some(label) = label {
            metadata["labels"] = json!({ names::LABEL_ROLE: as_text(label) });
        }
        match self.change_metadata(serial, &metadata).await {
            Err(error) if error.is_surprise() => {
                metadata["resourceVersion"] = json!(self.version_as_told(serial, observed).await?.ok_or(error)?);
                self.change_metadata(serial, &metadata).await?;
            }
            put => put?,
        }
        self.hand_over(serial, observed, &sealed).await;
        Ok(())
    }

    /// Changes the metadata of a member's pod, if that has the UID and the version in it.
    pub(super) async fn change_metadata(&self, serial: Serial, metadata: &Value) -> Result<(), Error> {
        let change = json!({ "metadata": metadata });
        self.actor.kube.merge::<Pod>(self.cluster.namespace, &self.cluster.member(serial), &change).await?;
        Ok(())
    }

    /// The version of a pod that has changed since it was observed, if it is told the same: its kubelet writes whenever a probe or
    /// a container has another outcome, and most of all while its etcd starts.
    async fn version_as_told(&self, serial: Serial, observed: &PodFacts) -> Result<Option<String>, Error> {
        let pod = self.actor.kube.get::<Pod>(self.cluster.namespace, &self.cluster.member(serial)).await?;
        let now = pod.as_ref().and_then(PodFacts::of).filter(|now| now.is_as_told(observed));
        Ok(now.map(|now| now.resource_version))
    }

    /// Waits until one answers that was told to begin; the last of a plan also until it has caught up.
    pub(super) async fn begins(&self, serial: Serial, patience: Instant, is_last: bool) -> Result<(), Stop> {
        let port = self.metrics_port(serial)?;
        comes_up(serial, port, patience).await?;
        if is_last {
            catches_up(port, patience, self.committed()).await;
        }
        Ok(())
    }

    /// How far the log had been committed by the leader's word when it was looked at.
    fn committed(&self) -> u64 {
        let leader = self.observed.said.leader().and_then(|(leader, _)| self.alive(leader));
        leader.map_or(0, |leader| leader.committed)
    }

    fn metrics_port(&self, serial: Serial) -> Result<SocketAddr, Stop> {
        let ip = self.observed.pods.get(&serial).and_then(|pod| pod.ip);
        let ip = ip.ok_or_else(|| Stop::Surprise(format!("the pod of {serial} has no address")))?;
        Ok(SocketAddr::new(ip, METRICS_PORT))
    }

    /// Sends a ticket that is on its pod now to the launcher, if that waits for it: the kubelet takes up to a second to
    /// bring it.
    async fn hand_over(&self, serial: Serial, pod: &PodFacts, sealed: &Sealed) {
        let seen = self.observed.said.seen.get(&serial);
        let waits = seen.filter(|seen| seen.pod == pod.uid && matches!(seen.sight, Sight::Waiting(_)));
        if let (Some(courier), Some(seen)) = (&self.actor.courier, waits) {
            courier.hand_over(seen.ip, &pod.uid, sealed.text()).await;
        }
    }

    /// A ticket of the plan's, rendered.
    pub(super) fn seal_planned(&self, serial: Serial, ticket: &Ticket) -> Result<Sealed, Stop> {
        let begin = match &ticket.start {
            Start::Seed => Begin::Seed,
            Start::Resume => Begin::Resume,
            Start::Join(ids) => Begin::Join(ids.iter().map(|id| self.serial_of(*id)).collect::<Result<_, _>>()?),
        };
        // One whose pod does not say what it runs, is meant to run what is wished.
        let version = ticket.version.unwrap_or(self.observed.world.wish.release.version);
        self.seal(serial, &ticket.volume, ticket.mark.as_ref(), version, &begin)
    }

    fn seal(
        &self,
        serial: Serial,
        volume: &Uid,
        mark: Option<&Mark>,
        version: Version,
        begin: &Begin,
    ) -> Result<Sealed, Stop> {
        let mut ticket = render::ticket(&self.cluster, serial, volume, version, begin)?;
        ticket.mark = mark.map(|mark| mark.as_str().into());
        Ok(Sealed::new(&ticket, observe::now())?)
    }

    /// The serial of a listed member: the words in which etcd is told of the others.
    fn serial_of(&self, id: quorate_statemachine::MemberId) -> Result<Serial, Stop> {
        let serial = match &self.observed.world.membership {
            Membership::Known(list) => list.members.get(&id).and_then(|listed| listed.serial),
            Membership::Unknown => None,
        };
        serial.ok_or_else(|| Stop::Surprise(format!("member {id} has no serial")))
    }

    /// Gives an object of ours the labels back by which lists and watches find it, if it is `still` the one whose metadata has
    /// these fields.
    pub(super) async fn label_again<K: Namespaced>(&self, name: &str, still: Value) -> Result<(), Error> {
        let mut metadata = still;
        metadata["labels"] = json!(self.cluster.labels());
        self.actor.kube.merge::<K>(self.cluster.namespace, name, &json!({ "metadata": metadata })).await?;
        tracing::warn!(cluster = %self.cluster.name, kind = %K::kind(&()), name, "had lost its labels, and has them again");
        Ok(())
    }

    /// The pod that the plan speaks of, as it was observed.
    pub(super) fn pod(&self, serial: Serial, uid: &Uid) -> Result<&PodFacts, Stop> {
        let observed = self.observed.pods.get(&serial).filter(|pod| pod.uid == *uid);
        observed.ok_or_else(|| Stop::Surprise(format!("the pod of {serial} is another one")))
    }

    pub(super) async fn delete_pod(&self, step: &Step, serial: Serial, uid: &Uid) -> Result<(), Stop> {
        self.object_is_untouched().await?;
        self.others_still_serve(serial).await?;
        self.removal_is_persisted(serial).await?;
        let still = Preconditions {
            uid: Some(uid.as_str().into()),
            resource_version: Some(self.pod(serial, uid)?.resource_version.clone()),
        };
        let name = self.cluster.member(serial);
        self.asks(step);
        Ok(self.actor.kube.delete::<Pod>(self.cluster.namespace, &name, still).await?)
    }

    /// Deletes a claim only if the quorum says, now, that its member is not one; or if the whole cluster goes.
    pub(super) async fn delete_claim(&self, step: &Step, serial: Serial, uid: &Uid) -> Result<(), Stop> {
        if self.observed.world.wish.life != Life::Deleting {
            self.surely_no_member(serial).await?;
            self.removal_is_persisted(serial).await?;
        }
        let still = Preconditions { uid: Some(uid.as_str().into()), resource_version: None };
        let name = self.cluster.member(serial);
        self.asks(step);
        Ok(self.actor.kube.delete::<PersistentVolumeClaim>(self.cluster.namespace, &name, still).await?)
    }

    async fn surely_no_member(&self, serial: Serial) -> Result<(), Stop> {
        let leader = self.observed.said.leader().map(|(serial, _)| serial);
        let list = members::list(&self.actor.pool, self.access()?, &members::ticketed(&self.addresses()), leader).await;
        let list = list.ok_or_else(|| Stop::Surprise("nobody gave a member list before a claim is deleted".into()))?;
        let listed =
            list.members.iter().any(|member| observe::serial_of(&self.observed.cluster, member) == Some(serial));
        if listed { Err(Stop::Surprise(format!("{serial} is a member, so its claim stays"))) } else { Ok(()) }
    }

    pub(super) async fn label_pod(&self, serial: Serial, uid: &Uid, label: RoleLabel) -> Result<(), Stop> {
        let observed = self.observed.pods.get(&serial).filter(|observed| observed.uid == *uid);
        let unready = observed.filter(|observed| label == RoleLabel::Voter && !observed.ready);
        if let Some(ip) = unready.and_then(|unready| unready.ip) {
            // The change makes the kubelet ask the pod's readiness at once. Asked too early, it asks again only after a
            // second; the answer takes until the member can serve.
            let ready = quorate_etcd::is_ready(SocketAddr::new(ip, METRICS_PORT)).await;
            tracing::trace!(cluster = %self.cluster.name, member = %serial, ready, "is labelled");
        }
        let metadata = json!({ "uid": uid.as_str(), "labels": { names::LABEL_ROLE: as_text(label) } });
        Ok(self.change_metadata(serial, &metadata).await?)
    }

    pub(super) async fn release_finalizer(&self) -> Result<(), Stop> {
        let metadata = &self.observed.cluster.metadata;
        let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != names::FINALIZER);
        let change = json!({ "metadata": { "uid": metadata.uid, "resourceVersion": metadata.resource_version,
            "finalizers": finalizers } });
        match self.actor.kube.merge::<EtcdCluster>(self.cluster.namespace, self.cluster.name, &change).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a pod's label says of its member's role.
fn as_text(label: RoleLabel) -> Option<&'static str> {
    match label {
        RoleLabel::Absent => None,
        RoleLabel::Returning => Some(names::ROLE_RETURNING),
        RoleLabel::Voter => Some(names::ROLE_VOTER),
    }
}

/// Waits until an etcd answers that was told to begin. All that it needs from then on is the processor, which looks at all
/// members would take from it.
async fn comes_up(serial: Serial, port: SocketAddr, patience: Instant) -> Result<(), Stop> {
    let looked = async {
        loop {
            let pause = match quorate_etcd::who_listens(port).await {
                Listener::Etcd => return,
                Listener::Launcher => LAUNCHER_LOOKS,
                Listener::Nobody => COMES_UP_LOOKS,
            };
            sleep(pause).await;
        }
    };
    timeout_at(patience, looked).await.map_err(|_| Stop::Surprise(format!("{serial} has not come up yet")))
}

/// Waits, for a moment at most, until one that came up knows its leader and is not far behind what had been `committed`. Nothing
/// rests on that: it saves a look at all members that would find it on its way. That it is ready it would say half a second
/// later, if it is asked before it hears of its leader (`readIndexRetryTime` in `server/etcdserver/v3_server.go`).
async fn catches_up(port: SocketAddr, patience: Instant, committed: u64) {
    let looked = async {
        loop {
            if let quorate_etcd::Sight::Etcd(now) = quorate_etcd::look(port).await
                && now.has_leader
                && is_near(now.applied, committed.max(now.committed))
            {
                return;
            }
            sleep(CATCHES_UP_LOOKS).await;
        }
    };
    let _ = timeout_at(patience.min(Instant::now() + CATCHES_UP_WITHIN), looked).await;
}
