//! Steps on etcd's membership. Before each call the linearizable member list is read from the very member that is called,
//! and must hold exactly the members that were planned from, in the same roles.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backon::{ConstantBuilder, Retryable};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use quorate_crds::EtcdCluster;
use quorate_etcd::{Access, CHANGE_DEADLINE, CallError, MemberClient, Refusal};
use quorate_statemachine::{
    Alive, Life, Listed, MemberId, Membership, Minor, Role, Roster, Serial, Sight, Step, is_near,
};

use super::{Acting, Stop};
use crate::api::DEADLINE;
use crate::cluster::observe;
use crate::cluster::observe::members::{self, Address};
use crate::writes;

// A call that the gate cuts off is given up without a note that its connection may lead nowhere.
const _: () = assert!(CHANGE_DEADLINE.as_millis() < DEADLINE.as_millis(), "a change ends before the gate cuts it off");

/// How often a promotion is tried again, and how long after it was refused, that etcd does not let happen yet: of a young log it asks for
/// nine tenths, which is more than we do, and of which the leader hears with its next heartbeat.
const PROMOTION_RETRIES: usize = 5;
const PROMOTES_AGAIN_AFTER: Duration = Duration::from_millis(25);

impl Acting<'_> {
    /// Adds a learner, and says its id.
    pub(super) async fn add_learner(&self, step: &Step, serial: Serial, expect: &Roster) -> Result<MemberId, Stop> {
        self.object_is_untouched().await?;
        // The list comes last: with a slow API server, one that was read beside the object would be old when the call is made.
        let member = self.member_that_agrees(expect).await?;
        let added = self.change(step, "add-learner", member.add_learner(&self.cluster.peer_url(serial))).await?;
        Ok(MemberId(added.id.0))
    }

    /// Promotes a learner. That it lags by the leader's own count, which may come a moment after its own, is waited for; each call
    /// has both guards anew, and in this order: who tells a linearizable list knows all that was committed until then.
    pub(super) async fn promote(&self, step: &Step, serial: Serial, id: MemberId, expect: &Roster) -> Result<(), Stop> {
        let pauses = ConstantBuilder::default().with_delay(PROMOTES_AGAIN_AFTER).with_max_times(PROMOTION_RETRIES);
        let lags = |stop: &Stop| matches!(stop, Stop::Etcd(error) if error.refusal() == Some(Refusal::LearnerNotReady));
        (|| self.promote_now(step, serial, id, expect)).retry(pauses).when(lags).await
    }

    async fn promote_now(&self, step: &Step, serial: Serial, id: MemberId, expect: &Roster) -> Result<(), Stop> {
        let member = self.member_that_agrees(expect).await?;
        self.still_promotable(serial).await?;
        self.change(step, "promote", member.promote(quorate_etcd::MemberId(id.0))).await?;
        Ok(())
    }

    pub(super) async fn remove(
        &self,
        step: &Step,
        serial: Option<Serial>,
        id: MemberId,
        expect: &Roster,
    ) -> Result<(), Stop> {
        if let Some(serial) = serial {
            self.others_still_serve(serial).await?;
        }
        let member = self.member_that_agrees(expect).await?;
        self.change(step, "remove", member.remove(quorate_etcd::MemberId(id.0))).await?;
        // The sooner the better: until then a kill of the last voter that is left leaves it without a leader for ever.
        Ok(member.persist_commit().await?)
    }

    /// Demands, before anything is taken away of one that the list does not hold any more, that those who stay have written its
    /// removal down: who removed it may have been killed right after that.
    pub(super) async fn removal_is_persisted(&self, serial: Serial) -> Result<(), Stop> {
        match &self.observed.world.membership {
            Membership::Known(list) if self.is_to_go_on() && list.listed(serial).is_none() => {
                Ok(self.one_that_serves()?.persist_commit().await?)
            }
            Membership::Known(_) | Membership::Unknown => Ok(()),
        }
    }

    pub(super) async fn move_leader(&self, step: &Step, from: MemberId, to: MemberId) -> Result<(), Stop> {
        let Some((serial, _)) = self.observed.said.leader().filter(|(_, leader)| *leader == from) else {
            return Err(Stop::Surprise(format!("{from} does not lead")));
        };
        self.still_serves(to).await?;
        let member = self.client(serial)?;
        if member.status().await?.leader != Some(quorate_etcd::MemberId(from.0)) {
            return Err(Stop::Surprise(format!("{from} does not lead any more")));
        }
        self.change(step, "move-leader", member.move_leader(quorate_etcd::MemberId(to.0))).await
    }

    /// Lets etcd lower the version that the cluster runs at. It refuses all but the minor below, and asks all members.
    pub(super) async fn enable_downgrade(&self, step: &Step, to: Minor) -> Result<(), Stop> {
        let member = self.client(self.leader()?)?;
        self.change(step, "enable-downgrade", member.enable_downgrade(&format!("{to}.0"))).await
    }

    pub(super) async fn cancel_downgrade(&self, step: &Step) -> Result<(), Stop> {
        let leader = self.leader()?;
        let member = self.client(leader)?;
        let Some(runs_at) = self.alive(leader).and_then(|alive| alive.cluster_version) else {
            return Err(Stop::Surprise("the leader has not said at which version the cluster runs".into()));
        };
        let below = format!("{}.0", runs_at.previous());
        self.change(step, "cancel-downgrade", member.cancel_downgrade(&below)).await
    }

    fn leader(&self) -> Result<Serial, Stop> {
        let leader = self.observed.said.leader().map(|(serial, _)| serial);
        leader.ok_or_else(|| Stop::Surprise("nobody leads".into()))
    }

    /// Demands that nobody wrote the object since it was read. Another operator may have added a learner and removed it
    /// again, after which the member list is what it was when this plan was made, and the plan is not; or it may be about
    /// to stop another member.
    pub(super) async fn object_is_untouched(&self) -> Result<(), Stop> {
        let now = self.actor.kube.get::<EtcdCluster>(self.cluster.namespace, self.cluster.name).await?;
        let version = now.and_then(|cluster| cluster.resource_version());
        if version.is_some() && version == self.version {
            Ok(())
        } else {
            Err(Stop::Surprise("the object has changed since it was planned from".into()))
        }
    }

    /// A voter that was seen to serve: the leader if it is known.
    fn one_that_serves(&self) -> Result<MemberClient, Stop> {
        let serves = |serial: &Serial| match self.alive(*serial) {
            Some(alive) => alive.has_leader && !alive.learner,
            None => false,
        };
        let leader = self.observed.said.leader().map(|(serial, _)| serial);
        let any = || self.observed.said.seen.keys().copied().find(serves);
        let serial = leader.or_else(any).ok_or_else(|| Stop::Surprise("no member serves".into()))?;
        self.client(serial)
    }

    /// A member whose linearizable list is the one that was planned from: the leader if it is known.
    async fn member_that_agrees(&self, expect: &Roster) -> Result<MemberClient, Stop> {
        let member = self.one_that_serves()?;
        let found = members::roster(&member.member_list().await?);
        if found == *expect {
            Ok(member)
        } else {
            Err(Stop::Surprise("the member list has changed since it was planned from".into()))
        }
    }

    /// Demands, right before a promotion, that the learner is alive in the process that was observed, has caught up and
    /// is not being deleted: etcd promotes dead learners, and then the cluster stops.
    async fn still_promotable(&self, serial: Serial) -> Result<(), Stop> {
        let surprise = |what: &str| Stop::Surprise(format!("the learner {serial} {what}"));
        let planned = self.alive(serial).ok_or_else(|| surprise("was not seen"))?.process;
        let addresses = self.addresses();
        let address = addresses.get(&serial).ok_or_else(|| surprise("has no address"))?;
        let name = self.cluster.member(serial);
        let led_by = self.observed.said.leader().and_then(|(leader, _)| addresses.get(&leader));
        let look_at_leader = async { Some(members::look(led_by?).await) };
        let get_pod = self.actor.kube.get::<Pod>(self.cluster.namespace, &name);
        let (seen, leader, pod) = tokio::join!(members::look(address), look_at_leader, get_pod);
        let still = pod?.is_some_and(|pod| stays(&pod, address.pod.as_str()));
        let Sight::Etcd(now) = seen.sight else { return Err(surprise("does not answer")) };
        let Some(Sight::Etcd(leader)) = leader.map(|leader| leader.sight) else {
            return Err(Stop::Surprise("nobody who leads answers".into()));
        };
        let caught_up = is_near(now.applied, leader.committed.max(now.committed));
        match (still, now.live && now.has_leader, now.process == planned, caught_up) {
            (true, true, true, true) => Ok(()),
            (false, ..) => Err(surprise("is being deleted")),
            (_, false, ..) => Err(surprise("is not alive")),
            (_, _, false, _) => Err(surprise("was started anew")),
            (.., false) => Err(surprise("lags")),
        }
    }

    /// Demands, right before a voter that serves is stopped for a change or removed, that all others serve now and nobody has
    /// asked one of them to go: with a slow API server half a minute may have gone by since they were looked at. One that was
    /// not seen to serve, voter or learner, must not answer now either.
    pub(super) async fn others_still_serve(&self, serial: Serial) -> Result<(), Stop> {
        if !self.is_to_go_on() {
            return Ok(());
        }
        let addresses = self.addresses();
        if self.alive(serial).is_none() {
            return match addresses.get(&serial) {
                Some(address) => is_still_silent(serial, address).await,
                None => Ok(()),
            };
        }
        let Some(voters) = self.voters().filter(|voters| voters.contains(&serial)) else { return Ok(()) };
        let others = voters.into_iter().filter(|other| *other != serial);
        let looks = others.map(async |other| {
            let Some(address) = addresses.get(&other) else { return Ok(false) };
            let name = self.cluster.member(other);
            let get_pod = self.actor.kube.get::<Pod>(self.cluster.namespace, &name);
            let (seen, pod) = tokio::join!(members::look(address), get_pod);
            Ok::<_, Stop>(serves(&seen.sight) && pod?.is_some_and(|pod| stays(&pod, address.pod.as_str())))
        });
        if try_join_all(looks).await?.into_iter().all(|stays| stays) {
            Ok(())
        } else {
            Err(Stop::Surprise(format!(
                "{serial} serves and is not stopped: another voter does not serve, or is to go, by now"
            )))
        }
    }

    /// Demands, right before it is to lead, that a member serves: a leader drops proposals while it hands over, and gives up one
    /// that does not answer only after an election timeout (`leadTransferee` in `raft.go` of go.etcd.io/raft).
    async fn still_serves(&self, id: MemberId) -> Result<(), Stop> {
        let surprise = || Stop::Surprise(format!("{id} is to lead and does not serve"));
        let Membership::Known(list) = &self.observed.world.membership else { return Err(surprise()) };
        let serial = list.members.get(&id).and_then(|listed| listed.serial).ok_or_else(surprise)?;
        let address = self.addresses().remove(&serial).ok_or_else(surprise)?;
        let seen = members::look(&address).await;
        let is_it = seen.member.is_none_or(|member| member == id);
        if is_it && serves(&seen.sight) { Ok(()) } else { Err(surprise()) }
    }

    /// Who votes, if the list is known.
    fn voters(&self) -> Option<BTreeSet<Serial>> {
        match &self.observed.world.membership {
            Membership::Known(list) => {
                let serial_of = |listed: &Listed| listed.serial.filter(|_| listed.role == Role::Voter);
                Some(list.members.values().filter_map(serial_of).collect())
            }
            Membership::Unknown => None,
        }
    }

    /// Whether the list is known, and it votes.
    pub(super) fn is_voter(&self, serial: Serial) -> bool {
        self.voters().is_some_and(|voters| voters.contains(&serial))
    }

    /// Whether it is neither to be deleted nor to be put to sleep.
    pub(super) fn is_to_go_on(&self) -> bool {
        let wish = &self.observed.world.wish;
        wish.life == Life::Wanted && wish.replicas > 0
    }

    pub(super) fn alive(&self, serial: Serial) -> Option<&Alive> {
        match &self.observed.said.seen.get(&serial)?.sight {
            Sight::Etcd(alive) => Some(alive),
            Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => None,
        }
    }

    fn client(&self, serial: Serial) -> Result<MemberClient, Stop> {
        let seen = self.observed.said.seen.contains_key(&serial);
        let Some(address) = self.addresses().remove(&serial).filter(|_| seen) else {
            return Err(Stop::Surprise(format!("{serial} has no address")));
        };
        Ok(self.actor.pool.member(self.access()?, &address.endpoint())?)
    }

    /// Where each member can be asked.
    pub(super) fn addresses(&self) -> BTreeMap<Serial, Address> {
        observe::addresses(&self.observed.cluster, &self.observed.pods)
    }

    /// What it takes to speak with members.
    pub(super) fn access(&self) -> Result<&Access, Stop> {
        let access = self.observed.tls.access.as_ref();
        access.ok_or_else(|| Stop::Surprise("there is nothing yet to show the members".into()))
    }

    /// One change of etcd, through the gate.
    async fn change<T>(
        &self,
        step: &Step,
        verb: &'static str,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, Stop> {
        // A line before the call, and one after it whatever came of it: chaos runs judge membership by them, also of calls
        // whose answer was lost, and of an operator that was killed meanwhile.
        tracing::info!(cluster = %self.cluster.name, ?step, "calls etcd");
        let answer = self.actor.kube.writes().perform(DEADLINE, call).await;
        let outcome = match &answer {
            Ok(_) => "ok",
            Err(writes::Error::NotLeading | writes::Error::Stopping) => "shut",
            Err(writes::Error::Deadline(_) | writes::Error::Failed(CallError::TimedOut { .. })) => "deadline",
            Err(writes::Error::Failed(error)) if error.refusal().is_some() => "refused",
            Err(writes::Error::Failed(_)) => "error",
        };
        self.actor.metrics.called("etcd", verb, "Member", outcome);
        tracing::info!(cluster = %self.cluster.name, verb, outcome, "called etcd");
        answer.map_err(|error| match error {
            writes::Error::NotLeading => Stop::Shut("this operator does not lead"),
            writes::Error::Stopping => Stop::Shut("this operator is being stopped"),
            writes::Error::Deadline(deadline) => {
                Stop::Surprise(format!("no answer to {verb} within {deadline:?}; the member list will show"))
            }
            writes::Error::Failed(error) => error.into(),
        })
    }
}

/// Demands that no etcd answers at this address: one look that found nothing may have come a moment too early.
async fn is_still_silent(serial: Serial, address: &Address) -> Result<(), Stop> {
    match members::look(address).await.sight {
        Sight::Etcd(_) => Err(Stop::Surprise(format!("{serial} was to go as one that does not answer, and answers"))),
        Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => Ok(()),
    }
}

/// Whether an etcd answered there that is alive and sees a leader.
fn serves(sight: &Sight) -> bool {
    match sight {
        Sight::Etcd(now) => now.live && now.has_leader,
        Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => false,
    }
}

/// Whether a pod is still the one of this UID, and nobody has asked it to go.
fn stays(pod: &Pod, uid: &str) -> bool {
    pod.metadata.uid.as_deref() == Some(uid) && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_is_to_go_or_another_one_of_its_name_does_not_stay() {
        let stays = |metadata| stays(&serde_json::from_value(json!({ "metadata": metadata })).unwrap(), "pod-1");
        assert!(stays(json!({ "uid": "pod-1" })));
        assert!(!stays(json!({ "uid": "pod-1", "deletionTimestamp": "2026-05-01T10:00:00Z" })));
        assert!(!stays(json!({ "uid": "pod-2" })));
    }
}
